"""Models whose outputs are cached on disk between runs.

A key is a hash of the model's facts (weights, tokenizer, dtype), metrist's version, the settings of the call and the
texts.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from metrist._version import __version__
from metrist.models.protocols import EncoderModel, LikelihoodModel, Likelihoods, Long, States, TextModel
from metrist.models.sqlite_store import CacheFile, open_cache

_HEAD = struct.Struct("<qqq")
_Input = TypeVar("_Input")


class _Cached:
    """A model and the folder of its cache, which is opened separately in each process."""

    def __init__(self, model: Any, folder: Path, limit_gb: float = 10.0) -> None:
        self._model, self._folder, self._limit_gb = model, folder, limit_gb

    def __getattr__(self, name: str) -> Any:
        if name == "_model":  # Not set yet while the object is copied or unpickled.
            raise AttributeError(name)
        return getattr(self._model, name)

    @property
    def _cache(self) -> CacheFile:
        return open_cache(self._folder, self._limit_gb)

    @property
    def facts(self) -> Mapping[str, str]:
        facts: Mapping[str, str] = self._model.facts
        return facts


class CachedLikelihoodModel(_Cached):
    """A likelihood model with a cache. Pairs that could not be scored are not stored."""

    _model: LikelihoodModel

    def log_probs(self, pairs: Sequence[tuple[str, str]], max_tokens: int | None = None) -> Likelihoods:
        keys = _keys(self._model, max_tokens, pairs)
        return _look_up(self._cache, keys, pairs, lambda new: self._model.log_probs(new, max_tokens))

    def windows(self, text: str, max_tokens: int | None = None) -> list[str]:
        return self._model.windows(text, max_tokens)

    def pieces(self, target: str, max_tokens: int | None = None) -> list[str]:
        return self._model.pieces(target, max_tokens)


class CachedTextModel(_Cached):
    """A model for whole texts with a cache. Texts that could not be scored are not stored."""

    _model: TextModel

    def running(self, texts: Sequence[str], max_tokens: int | None = None) -> Likelihoods:
        keys = _keys(self._model, ["running", max_tokens], [(text,) for text in texts])
        return _look_up(self._cache, keys, texts, lambda new: self._model.running(new, max_tokens))

    def in_windows(self, text: str, max_tokens: int | None = None) -> int:
        return self._model.in_windows(text, max_tokens)

    def spelled(self, tokens: Sequence[int]) -> list[str]:
        return self._model.spelled(tokens)


class CachedEncoder(_Cached):
    """An encoder with a cache."""

    _model: EncoderModel

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
        # The last layer has one key, whether it is named by number or not.
        settings = [self.layers if layer is None else layer, long]
        keys = _keys(self._model, settings, [(text,) for text in texts])
        known = {key: _unpack_text(value) for key, value in self._cache.find(list(dict.fromkeys(keys))).items()}
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in known}
        if missing:
            states = self._model.states(list(missing.values()), layer, long)
            fresh = dict(zip(missing, _split_texts(states), strict=True))
            self._cache.keep({key: _pack_text(text) for key, text in fresh.items()})
            known.update(fresh)
        return _join_texts([known[key] for key in keys])

    def token_ids(self, texts: Sequence[str], long: Long = "windows") -> list[list[int]]:
        return self._model.token_ids(texts, long)

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        return self._model.pieces(tokens)


def _look_up(
    cache: CacheFile, keys: Sequence[bytes], inputs: Sequence[_Input], compute: Callable[[list[_Input]], Likelihoods]
) -> Likelihoods:
    """Return the likelihoods of all inputs, one key each: cached ones, and new ones computed and stored."""
    known = {key: _unpack_pair(value) for key, value in cache.find(list(dict.fromkeys(keys))).items()}
    missing = {key: value for key, value in zip(keys, inputs, strict=True) if key not in known}
    failures: dict[bytes, str] = {}
    if missing:
        computed = compute(list(missing.values()))
        fresh = dict(zip(missing, _split_pairs(computed), strict=True))
        failures = {key: computed.failures[n] for n, key in enumerate(missing) if n in computed.failures}
        cache.keep({key: _pack_pair(pair) for key, pair in fresh.items() if key not in failures})
        known.update(fresh)
    return _join_pairs([known[key] for key in keys], [failures.get(key) for key in keys])


def _keys(
    model: LikelihoodModel | TextModel | EncoderModel, settings: object, inputs: Sequence[tuple[str, ...]]
) -> list[bytes]:
    # The same weights can be loaded as different kinds of model.
    facts = [__version__, type(model).__name__, sorted(model.facts.items()), settings]
    head = hashlib.sha256(json.dumps(facts).encode())
    return [_key(head.copy(), texts) for texts in inputs]


def _key(digest: Any, texts: tuple[str, ...]) -> bytes:
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        # The length separates texts unambiguously.
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    key: bytes = digest.digest()
    return key


class _Pair(NamedTuple):
    """A cached pair."""

    logprobs: NDArray[np.float32]
    tokens: NDArray[np.int32]
    condition_cut: int
    target_cut: int


def _split_pairs(likelihoods: Likelihoods) -> list[_Pair]:
    borders = zip(likelihoods.starts[:-1].tolist(), likelihoods.starts[1:].tolist(), strict=True)
    cuts = zip(likelihoods.condition_cut.tolist(), likelihoods.target_cut.tolist(), strict=True)
    return [
        _Pair(likelihoods.logprobs[start:stop], likelihoods.tokens[start:stop].astype(np.int32), *cut)
        for (start, stop), cut in zip(borders, cuts, strict=True)
    ]


def _pack_pair(pair: _Pair) -> bytes:
    head = _HEAD.pack(len(pair.logprobs), pair.condition_cut, pair.target_cut)
    return head + pair.logprobs.astype("<f4").tobytes() + pair.tokens.astype("<i4").tobytes()


def _unpack_pair(data: bytes) -> _Pair:
    count, condition_cut, target_cut = _HEAD.unpack_from(data)
    logprobs = np.frombuffer(data, "<f4", count, _HEAD.size)
    tokens = np.frombuffer(data, "<i4", count, _HEAD.size + 4 * count)
    return _Pair(logprobs, tokens, condition_cut, target_cut)


def _join_pairs(pairs: Sequence[_Pair], failures: Sequence[str | None]) -> Likelihoods:
    return Likelihoods(
        logprobs=_concatenate([pair.logprobs for pair in pairs], np.float32),
        tokens=_concatenate([pair.tokens for pair in pairs], np.int64),
        starts=_starts([len(pair.logprobs) for pair in pairs]),
        condition_cut=np.array([pair.condition_cut for pair in pairs], np.int64),
        target_cut=np.array([pair.target_cut for pair in pairs], np.int64),
        failures={n: failure for n, failure in enumerate(failures) if failure is not None},
    )


class _Text(NamedTuple):
    """A cached text."""

    vectors: NDArray[np.float32]
    tokens: NDArray[np.int32]
    special: NDArray[np.bool_]
    cut: int


def _split_texts(states: States) -> list[_Text]:
    borders = zip(states.starts[:-1].tolist(), states.starts[1:].tolist(), strict=True)
    rows = [slice(start, stop) for start, stop in borders]
    return [
        _Text(states.vectors[row], states.tokens[row].astype(np.int32), states.special[row], cut)
        for row, cut in zip(rows, states.cut.tolist(), strict=True)
    ]


def _pack_text(text: _Text) -> bytes:
    # Vectors are stored uncompressed: zstd saves 8 % and takes as long as reading them.
    head = _HEAD.pack(*text.vectors.shape, text.cut)
    ends = text.tokens.astype("<i4").tobytes() + text.special.astype(np.uint8).tobytes()
    return head + text.vectors.astype("<f4").tobytes() + ends


def _unpack_text(data: bytes) -> _Text:
    count, width, cut = _HEAD.unpack_from(data)
    vectors = np.frombuffer(data, "<f4", count * width, _HEAD.size).reshape(count, width)
    after = _HEAD.size + 4 * count * width
    tokens = np.frombuffer(data, "<i4", count, after)
    special = np.frombuffer(data, np.uint8, count, after + 4 * count).astype(np.bool_)
    return _Text(vectors, tokens, special, cut)


def _join_texts(texts: Sequence[_Text]) -> States:
    return States(
        vectors=np.concatenate([text.vectors for text in texts], dtype=np.float32) if texts else np.empty((0, 0), "f4"),
        tokens=_concatenate([text.tokens for text in texts], np.int64),
        special=_concatenate([text.special for text in texts], np.bool_),
        starts=_starts([len(text.tokens) for text in texts]),
        cut=np.array([text.cut for text in texts], np.int64),
    )


def _concatenate(columns: Sequence[NDArray[Any]], kind: Any) -> NDArray[Any]:
    return np.concatenate(columns).astype(kind) if columns else np.empty(0, kind)


def _starts(lengths: Sequence[int]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
