"""Texts that are longer than what a model reads at once: how they are cut into windows, and how the windows are read.

- Sentences: `TokenizedText.pieces` cuts a text into sentences of limited length; outputs are judged in these.
- Passages: `list_windows` covers what is still unread of a source that a sentence is held against.
- Aligned windows: `align_windows` cuts an output, its reference and its source at the same relative places.
- Central windows: `split_tokens` gives each token the vector of the window in which it is most central.
- Windows of words: `split_text` cuts a condition of a likelihood model.

The ways of cutting differ because trainings and published metrics do; `read_tokens` and `read_spans` read the windows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from metrist.models import batching
from metrist.models.protocols import Long
from metrist.models.tokenization import TokenizerSide
from metrist.sentences import split_sentences

if TYPE_CHECKING:
    from metrist.models.text_encoder import TextEncoder

Ids = NDArray[np.int32]
Numbers = NDArray[np.float64]
CharacterSpan = tuple[int, int]
#: First token of a text and the end, exclusive.
Window = tuple[int, int]
_Key = TypeVar("_Key")
_Item = TypeVar("_Item")

#: Characters that are tokenized at once, and sequences that are kept in memory at once.
_CHARACTERS, _SEQUENCES = 50_000, 4_096


# ---- Texts as tokens


class SentencePart(NamedTuple):
    """A sentence, or a part of a long one: characters `start` to `end` of the text and tokens `first` to `last`, ends
    exclusive."""

    start: int
    end: int
    first: int
    last: int


@dataclass(frozen=True, eq=False)
class TokenizedText:
    """A text's tokens with the characters that each stands for."""

    text: str
    ids: Ids
    starts: Ids
    ends: Ids

    @classmethod
    def read(cls, texts: Sequence[str], encoder: TextEncoder) -> list[Self]:
        """Tokenize texts of any length, some characters at a time: encodings take far more memory than their texts."""
        parts: list[tuple[int, int, int]] = []
        for number, text in enumerate(texts):
            start = 0
            while len(text) - start > _CHARACTERS:
                end = start + _CHARACTERS
                # At white space if there is any.
                space = max(text.rfind(" ", start, end), text.rfind("\n", start, end))
                end = space if space > start else end
                parts.append((number, start, end))
                start = end
            parts.append((number, start, len(text)))
        columns: list[list[Ids]] = [[np.empty((0, 3), np.int32)] for _ in texts]
        for batch in batching.split_batches([end - start for _, start, end in parts], _CHARACTERS, padded=False):
            chosen = [parts[at] for at in batch]
            encodings = encoder.encode([texts[number][start:end] for number, start, end in chosen])
            for (number, start, _), (ids, offsets) in zip(chosen, encodings, strict=True):
                columns[number].append(np.column_stack([ids, offsets + start]).astype(np.int32))
        tables = [np.ascontiguousarray(np.concatenate(own).T) for own in columns]
        return [cls(text, *table) for text, table in zip(texts, tables, strict=True)]

    def pieces(self, most: int) -> list[SentencePart]:
        """The sentences that have tokens, in parts of at most `most` tokens, divided between words where possible."""
        pieces: list[SentencePart] = []
        spans = split_sentences(self.text)
        bounds = np.searchsorted(self.starts, np.array(spans, np.int64).reshape(-1, 2)).tolist()
        # A part of a sentence begins where a word begins.
        word_starts = np.concatenate([[True], self.starts[1:] > self.ends[:-1]]) if len(self.ids) else np.empty(0, bool)
        for (start, end), (first, last) in zip(spans, bounds, strict=True):
            if first == last:
                continue
            # Parts of about equal length.
            cuts = [first]
            while last - cuts[-1] > most:
                begin = cuts[-1]
                parts = -(-(last - begin) // most)
                cut = begin + -(-(last - begin) // parts)
                words = np.flatnonzero(word_starts[begin + 1 : cut + 1])
                # In a single endless word there is no better place.
                cuts.append(begin + 1 + int(words[-1]) if len(words) and words[-1] >= (cut - begin) // 2 else cut)
            cuts.append(last)
            places = [start, *(int(self.starts[cut]) for cut in cuts[1:-1])]
            ends = [*(int(self.ends[cut - 1]) for cut in cuts[1:-1]), end]
            pieces += map(SentencePart, places, ends, cuts[:-1], cuts[1:])
        return pieces


# ---- Reading with the heads of a text encoder


def read_tokens(
    encoder: TextEncoder, heads: str | Sequence[str], windows: Iterable[tuple[_Key, Ids, Ids | None]]
) -> Iterator[tuple[_Key, Numbers]]:
    """Read windows of an output, each with what stands beside it, some at a time. Yield the key of each and the outputs
    of the heads for its tokens, [tokens, outputs]."""
    for chosen in _take_some(windows):
        results = encoder.score_tokens(heads, [encoder.join(own, beside) for _, own, beside in chosen])
        for (key, own, _), numbers in zip(chosen, results, strict=True):
            # A special token comes first.
            yield key, np.asarray(numbers, np.float64)[1 : 1 + len(own)]


def read_spans(
    encoder: TextEncoder, head: str, windows: Iterable[tuple[_Key, Ids, Ids | None, Sequence[Window]]]
) -> Iterator[tuple[_Key, Numbers]]:
    """Read windows as `read_tokens` does. Yield the key of each and the head's outputs for the mean over each of its
    spans, [spans, outputs]."""
    for chosen in _take_some(windows):
        spans = [[(start + 1, end + 1) for start, end in own] for *_, own in chosen]
        results = encoder.score_spans(head, [encoder.join(own, beside) for _, own, beside, _ in chosen], spans)
        for (key, *_), numbers in zip(chosen, results, strict=True):
            yield key, np.asarray(numbers, np.float64)


def _take_some(items: Iterable[_Item]) -> Iterator[list[_Item]]:
    iterator = iter(items)
    while chosen := list(islice(iterator, _SEQUENCES)):
        yield chosen


# ---- Passages of a source

#: Tokens that a window shares with what was read before, so that a statement across the border is read whole.
_OVERLAP = 48


def list_windows(length: int, read: Sequence[Window], room: int) -> list[Window]:
    """Windows of at most `room` tokens for all tokens of a source that are in none of the windows already read. Each
    overlaps with what lies beside it."""
    overlap = min(_OVERLAP, room // 4)
    windows: list[Window] = []
    end_of_read = 0
    for start, end in [*sorted(read), (length, length)]:
        if start > end_of_read:
            # As few windows as possible of about equal size, each overlapping with the next.
            first, last = max(end_of_read - overlap, 0), min(start + overlap, length)
            count = max(1, -(-(last - first - overlap) // (room - overlap)))
            size = -(-(last - first + (count - 1) * overlap) // count)
            for number in range(count):
                begin = min(first + number * (size - overlap), max(last - size, first))
                windows.append((begin, min(begin + size, last)))
        end_of_read = max(end_of_read, end)
    return windows


# ---- Aligned windows of several texts

#: A cut between windows moves to the end of a sentence if there is one within this share of a window.
_SNAP = 0.25


def align_windows(sides: Sequence[TokenizedText], room: int) -> Iterator[list[Window]]:
    """The tokens of each side in each window, such that the sides of a window fit into the room. Texts that fit as a
    whole are one window; otherwise all sides are cut at the same relative places, at ends of sentences where there are
    any nearby."""
    lengths = [len(side.ids) for side in sides]
    count = 1 if sum(lengths) <= room else math.ceil(sum(lengths) / (room * (1 - 2 * _SNAP)))
    # Each window needs a token of the output.
    count = min(count, lengths[0])
    cuts = [_place_cuts(side, count) for side in sides]
    for window in range(count):
        bounds = [(side[window], side[window + 1]) for side in cuts]
        # Only an output of very few tokens beside a very long source is still too long: the rest is not read.
        while (excess := sum(end - start for start, end in bounds) - room) > 0:
            longest = max(range(len(bounds)), key=lambda side: bounds[side][1] - bounds[side][0])
            start, end = bounds[longest]
            bounds[longest] = start, end - min(excess, max(1, (end - start) // 2))
        yield bounds


def _place_cuts(side: TokenizedText, count: int) -> list[int]:
    """Where windows begin, in tokens, and the end of the text."""
    length = len(side.ids)
    if count == 1:
        return [0, length]
    ends = np.searchsorted(side.starts, [end for _, end in split_sentences(side.text)]) if length else np.zeros(0)
    cuts = [0]
    for window in range(1, count):
        ideal = length * window / count
        nearest = min(ends.tolist(), key=lambda end: abs(end - ideal), default=ideal)
        cut = nearest if abs(nearest - ideal) <= _SNAP * length / count else ideal
        cuts.append(max(cuts[-1], round(cut)))
    return [*cuts, length]


# ---- Central windows: a vector for every token
#
# A text that fits is one sequence; a longer one is read in overlapping windows, each with the special tokens of a text.
# The vectors of the opening special tokens are those of the first window, those of the closing ones of the last.


@dataclass(frozen=True, slots=True)
class SequenceFormat:
    """The numbers of special tokens before and after a text, and the model's limit, these included."""

    opening: int
    closing: int
    limit: int

    @property
    def room(self) -> int:
        """The number of a text's own tokens that fit."""
        return max(1, self.limit - self.opening - self.closing)

    def inside(self, ids: Sequence[int]) -> int:
        """Return how many of the tokens are the text's own."""
        return len(ids) - self.opening - self.closing

    def truncate(self, ids: list[int], long: Long) -> list[int]:
        """Return the tokens to read: all of them, or as many as fit."""
        if long == "windows" or self.inside(ids) <= self.room:
            return ids
        return ids[: self.opening + self.room] + ids[len(ids) - self.closing :]


@dataclass(frozen=True, slots=True)
class CentralWindow:
    """One input sequence. Its vectors `first:last` become the text's rows from `row` on."""

    text: int
    ids: list[int]
    first: int
    last: int
    row: int


def split_tokens(text: int, ids: list[int], sequence: SequenceFormat) -> Iterator[CentralWindow]:
    """Yield the sequences that give a text's vectors; none if it has no tokens."""
    size, room = sequence.inside(ids), sequence.room
    if size <= room:
        if ids:
            yield CentralWindow(text, ids, 0, len(ids), 0)
        return
    body = ids[sequence.opening : len(ids) - sequence.closing]
    opening, closing = ids[: sequence.opening], ids[len(ids) - sequence.closing :]
    starts = [*range(0, size - room, max(1, room // 2)), size - room]
    # A window's own tokens begin and end half-way between its centre and its neighbours' centres.
    borders = [(later + earlier + room - 1) // 2 + 1 for earlier, later in pairwise(starts)]
    for start, begin, end in zip(starts, [0, *borders], [*borders, size], strict=True):
        first = 0 if start == 0 else sequence.opening + begin - start
        last = sequence.opening + end - start + (sequence.closing if end == size else 0)
        row = 0 if start == 0 else sequence.opening + begin
        yield CentralWindow(text, opening + body[start : start + room] + closing, first, last, row)


# ---- Windows of words

#: A word, or a slice of a very long one, with the white space after it.
_SLICE = re.compile(r"\S{1,32}\s*")
#: The share of a window that overlaps with the next.
_SHARED = 0.25


def split_text(side: TokenizerSide, text: str, limit: int) -> list[str]:
    """Split a text into overlapping windows of at most `limit` tokens, special ones included; return the text itself if
    it fits. Windows begin and end at white space, or within very long words."""
    if len(side.ids([text])[0]) <= limit:
        return [text]
    spans = [match.span() for match in _SLICE.finditer(text)]
    distinct = list(dict.fromkeys(text[a:b].strip() for a, b in spans))
    frame = side.before + side.after
    cost = dict(zip(distinct, (max(len(ids) - frame, 1) for ids in side.ids(distinct)), strict=True))
    costs = [cost[text[a:b].strip()] for a, b in spans]
    inner = max(limit - frame, 1)
    while True:
        pieces = [text[spans[a][0] : spans[b - 1][1]].strip() for a, b in _overlapping_runs(costs, inner)]
        excess = max(len(ids) for ids in side.ids(pieces)) - limit
        if excess <= 0 or inner == 1:
            return pieces
        # Words can take more tokens in context than alone: reduce the limit and try again.
        inner = max(inner - excess, 1)


def _overlapping_runs(costs: Sequence[int], limit: int) -> list[tuple[int, int]]:
    """Return overlapping runs of words whose total cost is at most `limit`; a costlier word forms a run alone."""
    runs: list[tuple[int, int]] = []
    start = 0
    while True:
        stop, total = start, 0
        while stop < len(costs) and (stop == start or total + costs[stop] <= limit):
            total += costs[stop]
            stop += 1
        runs.append((start, stop))
        if stop == len(costs):
            return runs
        back = 0.0
        following = stop
        while following - 1 > start and back + costs[following - 1] <= limit * _SHARED:
            following -= 1
            back += costs[following]
        start = following
