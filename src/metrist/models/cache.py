"""Models that remember: what was computed once, in this run or another, is read from disk.

An entry is found by a hash of the model's facts (weights, tokenizer, dtype), metrist's version, what was asked of the
model and the texts. Nothing is remembered where the environment names no folder; see `cache_file`.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from metrist._version import __version__
from metrist.models.protocols import EncoderModel, LikelihoodModel, Likelihoods, Long, States, TextModel
from metrist.models.sqlite_store import CacheFile, cache_file

_HEAD = struct.Struct("<qqq")
_Asked = TypeVar("_Asked")


def remembering(model: LikelihoodModel) -> LikelihoodModel:
    """The same model, with a memory on disk. Whether there is one is looked up at each call, so a model that stays
    loaded serves runs with and without it."""
    return CachedLikelihoodModel(model)


def remembering_reader(model: TextModel) -> TextModel:
    """The same model for whole texts, with a memory on disk; see `remembering`."""
    return CachedTextModel(model)


def remembering_encoder(model: EncoderModel) -> EncoderModel:
    """The same encoder, with a memory on disk; see `remembering`."""
    return CachedEncoder(model)


class CachedLikelihoodModel:
    """A likelihood model that asks its memory first. Pairs that could not be scored are not remembered."""

    def __init__(self, model: LikelihoodModel) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        if name == "_model":  # Not there yet: an object that is being copied or unpickled.
            raise AttributeError(name)
        return getattr(self._model, name)

    @property
    def facts(self) -> Mapping[str, str]:
        return self._model.facts

    def log_probs(self, pairs: Sequence[tuple[str, str]], max_tokens: int | None = None) -> Likelihoods:
        file = cache_file()
        if file is None:
            return self._model.log_probs(pairs, max_tokens)
        keys = _keys(self._model, max_tokens, pairs)
        return _remembered(file, keys, pairs, lambda new: self._model.log_probs(new, max_tokens))

    def windows(self, text: str, max_tokens: int | None = None) -> list[str]:
        return self._model.windows(text, max_tokens)

    def pieces(self, target: str, max_tokens: int | None = None) -> list[str]:
        return self._model.pieces(target, max_tokens)


class CachedTextModel:
    """A model for whole texts that asks its memory first. Texts that could not be read are not remembered."""

    def __init__(self, model: TextModel) -> None:
        self._model = model

    @property
    def facts(self) -> Mapping[str, str]:
        return self._model.facts

    def running(self, texts: Sequence[str], max_tokens: int | None = None) -> Likelihoods:
        file = cache_file()
        if file is None:
            return self._model.running(texts, max_tokens)
        keys = _keys(self._model, ["running", max_tokens], [(text,) for text in texts])
        return _remembered(file, keys, texts, lambda new: self._model.running(new, max_tokens))

    def in_windows(self, text: str, max_tokens: int | None = None) -> int:
        return self._model.in_windows(text, max_tokens)

    def spelled(self, tokens: Sequence[int]) -> list[str]:
        return self._model.spelled(tokens)


class CachedEncoder:
    """An encoder that asks its memory first."""

    def __init__(self, model: EncoderModel) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        if name == "_model":
            raise AttributeError(name)
        return getattr(self._model, name)

    @property
    def facts(self) -> Mapping[str, str]:
        return self._model.facts

    @property
    def layers(self) -> int:
        return self._model.layers

    @property
    def limit(self) -> int:
        return self._model.limit

    @property
    def word_start(self) -> str:
        return self._model.word_start

    def states(self, texts: Sequence[str], layer: int | None = None, long: Long = "windows") -> States:
        file = cache_file()
        if file is None:
            return self._model.states(texts, layer, long)
        # Asked for by number or as the last, a layer is the same.
        how = [self.layers if layer is None else layer, long]
        keys = _keys(self._model, how, [(text,) for text in texts])
        known = {key: _unpacked_text(value) for key, value in file.find(list(dict.fromkeys(keys))).items()}
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in known}
        if missing:
            fresh = dict(zip(missing, _texts_of(self._model.states(list(missing.values()), layer, long)), strict=True))
            file.keep({key: _packed_text(text) for key, text in fresh.items()})
            known.update(fresh)
        return _states([known[key] for key in keys])

    def token_ids(self, texts: Sequence[str], long: Long = "windows") -> list[list[int]]:
        return self._model.token_ids(texts, long)

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        return self._model.pieces(tokens)


def _remembered(
    file: CacheFile, keys: Sequence[bytes], asked: Sequence[_Asked], compute: Callable[[list[_Asked]], Likelihoods]
) -> Likelihoods:
    """What is asked, one key each: from the file as far as it is there, the rest computed and kept."""
    known = {key: _unpacked_pair(value) for key, value in file.find(list(dict.fromkeys(keys))).items()}
    missing = {key: one for key, one in zip(keys, asked, strict=True) if key not in known}
    failures: dict[bytes, str] = {}
    if missing:
        computed = compute(list(missing.values()))
        fresh = dict(zip(missing, _pairs_of(computed), strict=True))
        failures = {key: computed.failures[n] for n, key in enumerate(missing) if n in computed.failures}
        file.keep({key: _packed_pair(pair) for key, pair in fresh.items() if key not in failures})
        known.update(fresh)
    return _likelihoods([known[key] for key in keys], [failures.get(key) for key in keys])


def _keys(
    model: LikelihoodModel | TextModel | EncoderModel, how: object, asked: Sequence[tuple[str, ...]]
) -> list[bytes]:
    # The same weights can be read as different kinds of model, so the kind counts too.
    facts = [__version__, type(model).__name__, sorted(model.facts.items()), how]
    head = hashlib.sha256(json.dumps(facts).encode())
    return [_key(head.copy(), texts) for texts in asked]


def _key(digest: Any, texts: tuple[str, ...]) -> bytes:
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        # With its length before it, no text can pass for the end of another.
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    key: bytes = digest.digest()
    return key


class _Pair(NamedTuple):
    """What is remembered of a pair."""

    logprobs: NDArray[np.float32]
    tokens: NDArray[np.int32]
    condition_cut: int
    target_cut: int


def _pairs_of(found: Likelihoods) -> list[_Pair]:
    borders = zip(found.starts[:-1].tolist(), found.starts[1:].tolist(), strict=True)
    cuts = zip(found.condition_cut.tolist(), found.target_cut.tolist(), strict=True)
    return [
        _Pair(found.logprobs[start:stop], found.tokens[start:stop].astype(np.int32), *cut)
        for (start, stop), cut in zip(borders, cuts, strict=True)
    ]


def _packed_pair(pair: _Pair) -> bytes:
    head = _HEAD.pack(len(pair.logprobs), pair.condition_cut, pair.target_cut)
    return head + pair.logprobs.astype("<f4").tobytes() + pair.tokens.astype("<i4").tobytes()


def _unpacked_pair(data: bytes) -> _Pair:
    count, condition_cut, target_cut = _HEAD.unpack_from(data)
    logprobs = np.frombuffer(data, "<f4", count, _HEAD.size)
    tokens = np.frombuffer(data, "<i4", count, _HEAD.size + 4 * count)
    return _Pair(logprobs, tokens, condition_cut, target_cut)


def _likelihoods(pairs: Sequence[_Pair], failures: Sequence[str | None]) -> Likelihoods:
    return Likelihoods(
        logprobs=_joined([pair.logprobs for pair in pairs], np.float32),
        tokens=_joined([pair.tokens for pair in pairs], np.int64),
        starts=_starts([len(pair.logprobs) for pair in pairs]),
        condition_cut=np.array([pair.condition_cut for pair in pairs], np.int64),
        target_cut=np.array([pair.target_cut for pair in pairs], np.int64),
        failures={n: failure for n, failure in enumerate(failures) if failure is not None},
    )


class _Text(NamedTuple):
    """What is remembered of a text."""

    vectors: NDArray[np.float32]
    tokens: NDArray[np.int32]
    special: NDArray[np.bool_]
    cut: int


def _texts_of(found: States) -> list[_Text]:
    borders = zip(found.starts[:-1].tolist(), found.starts[1:].tolist(), strict=True)
    rows = [slice(start, stop) for start, stop in borders]
    return [
        _Text(found.vectors[row], found.tokens[row].astype(np.int32), found.special[row], cut)
        for row, cut in zip(rows, found.cut.tolist(), strict=True)
    ]


def _packed_text(text: _Text) -> bytes:
    # Vectors are stored as they are: packing them by zstd saves 8 %, and takes as long as reading them.
    head = _HEAD.pack(*text.vectors.shape, text.cut)
    ends = text.tokens.astype("<i4").tobytes() + text.special.astype(np.uint8).tobytes()
    return head + text.vectors.astype("<f4").tobytes() + ends


def _unpacked_text(data: bytes) -> _Text:
    count, width, cut = _HEAD.unpack_from(data)
    vectors = np.frombuffer(data, "<f4", count * width, _HEAD.size).reshape(count, width)
    after = _HEAD.size + 4 * count * width
    tokens = np.frombuffer(data, "<i4", count, after)
    special = np.frombuffer(data, np.uint8, count, after + 4 * count).astype(np.bool_)
    return _Text(vectors, tokens, special, cut)


def _states(texts: Sequence[_Text]) -> States:
    return States(
        vectors=np.concatenate([text.vectors for text in texts], dtype=np.float32) if texts else np.empty((0, 0), "f4"),
        tokens=_joined([text.tokens for text in texts], np.int64),
        special=_joined([text.special for text in texts], np.bool_),
        starts=_starts([len(text.tokens) for text in texts]),
        cut=np.array([text.cut for text in texts], np.int64),
    )


def _joined(columns: Sequence[NDArray[Any]], kind: Any) -> NDArray[Any]:
    return np.concatenate(columns).astype(kind) if columns else np.empty(0, kind)


def _starts(lengths: Sequence[int]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
