"""Texts as token ids: each distinct text once, cut where a model has no more room, while the device computes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrist.errors import ModelError, did_you_mean
from metrist.models.devices import Options

Ids = NDArray[np.int64]

_PROBES = ["a", "A small cat sat on the mat, twice.", " Zürich  is\n2 far – ", ""]
#: A word, or a slice of one that has no end, with the white space after it.
_SLICE = re.compile(r"\S{1,32}\s*")
#: What follows on a window starts within it, at this share of its room before its end.
_OVERLAP = 0.25
#: What a tokenizer that knows no limit gives as its limit is larger than this.
_NO_LIMIT = 1_000_000
#: Marks of a word's beginning in the tokens of byte-level and sentencepiece vocabularies.
_SPACES = ("Ġ", "▁")


class TokenizerSide:
    """One side of a tokenizer: conditions, or targets, which some tokenizers treat as another language."""

    def __init__(self, tokenizer: Any, *, target: bool = False) -> None:
        self._tokenizer = tokenizer
        self._name = "text_target" if target and hasattr(tokenizer, "_switch_to_target_mode") else "text"
        self._direct = self._agrees()
        self.before, self.after = self._frame()

    def ids(self, texts: Sequence[str]) -> list[Ids]:
        """Each text's ids with the special tokens that the tokenizer adds, whatever their number."""
        clean = [replace_surrogates(text) for text in texts]
        if not clean:
            return []
        return self._fast(clean) if self._direct else self._called(clean)

    def cut(self, ids: Ids, limit: int | None) -> Ids:
        """The first `limit` tokens, the special ones at the end kept, as the tokenizer itself would cut."""
        if limit is None or len(ids) <= limit:
            return ids
        kept = max(limit - self.after, self.before)
        return np.concatenate([ids[:kept], ids[len(ids) - self.after :]])

    def _called(self, texts: list[str]) -> list[Ids]:
        asked = {self._name: texts}
        # `verbose` would warn of every text that is longer than the model's limit.
        rows = self._tokenizer(**asked, verbose=False)["input_ids"]
        return [np.array(row, dtype=np.int64) for row in rows]

    def _fast(self, texts: list[str]) -> list[Ids]:
        backend = self._tokenizer.backend_tokenizer
        backend.no_truncation()
        backend.no_padding()
        return [np.array(one.ids, dtype=np.int64) for one in backend.encode_batch_fast(texts)]

    def _agrees(self) -> bool:
        """Whether the compiled tokenizer alone gives the same ids: it makes no lists that nobody reads."""
        if not hasattr(getattr(self._tokenizer, "backend_tokenizer", None), "encode_batch_fast"):
            return False
        pairs = zip(self._fast(_PROBES), self._called(_PROBES), strict=True)
        return all(np.array_equal(fast, called) for fast, called in pairs)

    def _frame(self) -> tuple[int, int]:
        """How many special tokens stand before and after a text."""
        asked = {self._name: _PROBES[:1]}
        bare = self._tokenizer(**asked, add_special_tokens=False, verbose=False)["input_ids"][0]
        full = self.ids(_PROBES[:1])[0].tolist()
        before = next((i for i in range(len(full)) if full[i : i + len(bare)] == bare), 0)
        return before, len(full) - len(bare) - before


class BackgroundTokens:
    """Tokenises texts in the order in which they will be asked for, a part at a time, in a thread of its own: compiled
    tokenizers leave Python free to feed the device meanwhile."""

    _PART = 1 << 17  # characters

    def __init__(self, side: TokenizerSide, texts: Sequence[str]) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._parts: list[Future[list[Ids]]] = []
        self._place: list[tuple[int, int]] = []
        part: list[str] = []
        size = 0
        for text in texts:
            if part and size + len(text) > self._PART:
                self._submit(side, part)
                part, size = [], 0
            self._place.append((len(self._parts), len(part)))
            part.append(text)
            size += len(text)
        if part:
            self._submit(side, part)

    def _submit(self, side: TokenizerSide, part: list[str]) -> None:
        self._parts.append(self._thread.submit(side.ids, part))

    def part(self, text: int) -> int:
        """Which part has the text: what is in one part is known at the same time."""
        return self._place[text][0]

    def __getitem__(self, text: int) -> Ids:
        part, at = self._place[text]
        return self._parts[part].result()[at]

    def __enter__(self) -> BackgroundTokens:
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, at: TracebackType | None) -> None:
        self._thread.shutdown(cancel_futures=True)


def token_limit(tokenizer: Any) -> int | None:
    """How many tokens the tokenizer says its model takes; None where it does not say."""
    said = getattr(tokenizer, "model_max_length", None)
    return int(said) if said is not None and said < _NO_LIMIT else None


def context_length(tokenizer: Any, config: Any) -> int | None:
    """How many tokens a causal model takes; what the tokenizer says counts where the model sets no limit."""
    for name in ("max_position_embeddings", "n_positions", "max_seq_len"):
        said = getattr(config, name, None)
        if isinstance(said, int) and said > 0:
            return said
    return token_limit(tokenizer)


def split_windows(side: TokenizerSide, text: str, room: int) -> list[str]:
    """Overlapping pieces of the text that fit into `room` tokens, special ones included; the text itself where it fits.

    Pieces begin and end at white space, or within a word that has none for long.
    """
    if len(side.ids([text])[0]) <= room:
        return [text]
    spans = [found.span() for found in _SLICE.finditer(text)]
    distinct = list(dict.fromkeys(text[a:b].strip() for a, b in spans))
    frame = side.before + side.after
    cost = dict(zip(distinct, (max(len(ids) - frame, 1) for ids in side.ids(distinct)), strict=True))
    costs = [cost[text[a:b].strip()] for a, b in spans]
    inner = max(room - frame, 1)
    while True:
        pieces = [text[spans[a][0] : spans[b - 1][1]].strip() for a, b in _runs(costs, inner)]
        excess = max(len(ids) for ids in side.ids(pieces)) - room
        if excess <= 0 or inner == 1:
            return pieces
        # Words in their sentence can take more tokens than alone: leave room for that, and try again.
        inner = max(inner - excess, 1)


def _runs(costs: Sequence[int], room: int) -> list[tuple[int, int]]:
    """Overlapping runs of words whose costs stay within `room`; a word above it is a run of its own."""
    found: list[tuple[int, int]] = []
    start = 0
    while True:
        stop, total = start, 0
        while stop < len(costs) and (stop == start or total + costs[stop] <= room):
            total += costs[stop]
            stop += 1
        found.append((start, stop))
        if stop == len(costs):
            return found
        back = 0.0
        following = stop
        while following - 1 > start and back + costs[following - 1] <= room * _OVERLAP:
            following -= 1
            back += costs[following]
        start = following


def readable_tokens(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Tokens as text that a reader can put together again: a word's first piece has the space before it."""
    special = set(tokenizer.all_special_ids)
    return [_readable(tokenizer, int(one), int(one) in special) for one in ids]


def _readable(tokenizer: Any, one: int, special: bool) -> str:
    token = str(tokenizer.convert_ids_to_tokens(one))
    if special:
        return token
    text = str(tokenizer.convert_tokens_to_string([token]))
    return f" {text.lstrip()}" if token.startswith(_SPACES) else text or token


def replace_surrogates(text: str) -> str:
    """The text with `?` for half a character, as broken JSON gives it: that is no text for a tokenizer."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


# Languages that a multilingual model's tokenizer marks by a token of their own.


def set_languages(tokenizer: Any, options: Options) -> Any:
    """The tokenizer, told in which languages conditions and targets are. One that marks languages must be told; another
    cannot be."""
    marks = hasattr(tokenizer, "tgt_lang") and hasattr(tokenizer, "src_lang")
    if options.languages is None:
        if marks and tokenizer.tgt_lang is None:
            raise ModelError(f"{options.model} marks languages: say which one the texts are in, as in language='en'")
        return tokenizer
    if not marks:
        raise ModelError(
            f"{options.model} marks no languages: leave language={options.languages[1]!r} out, or set language=None "
            f"where that is the metric's default"
        )
    for code in options.languages:
        _check(tokenizer, options.model, code)
    tokenizer.src_lang, tokenizer.tgt_lang = options.languages
    return tokenizer


def language_facts(tokenizer: Any) -> dict[str, str]:
    """The languages as a fact of the model, where there are any."""
    both = getattr(tokenizer, "src_lang", None), getattr(tokenizer, "tgt_lang", None)
    return {"languages": f"{both[0]}->{both[1]}"} if all(both) else {}


def _check(tokenizer: Any, model: str, code: str) -> None:
    # Some kinds of tokenizer list their codes in one way, some in another.
    known = list(getattr(tokenizer, "lang_code_to_id", None) or getattr(tokenizer, "lang_code_to_token", None) or ())
    there = code in known if known else tokenizer.convert_tokens_to_ids(code) != tokenizer.unk_token_id
    if not there:
        raise ModelError(f"{model} knows no language {code!r}{did_you_mean(code, known)}")
