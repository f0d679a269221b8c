"""Texts as sequences that an encoder takes: one per text that fits, overlapping windows for one that does not.

Every token of a long text gets its vector from the window in which it stands most centrally, where it has most context
on both sides. Each window is opened and closed like a text of its own; the opening vector of the text is that of the
first window, the closing vector that of the last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from metrist.models.states import Long


@dataclass(frozen=True, slots=True)
class Frame:
    """How many tokens open and close a text, and how many the model takes at once, these included."""

    opening: int
    closing: int
    limit: int

    @property
    def room(self) -> int:
        """Tokens of a text that fit beside those that open and close it."""
        return max(1, self.limit - self.opening - self.closing)

    def inside(self, ids: Sequence[int]) -> int:
        """How many of the tokens are the text's own."""
        return len(ids) - self.opening - self.closing

    def kept(self, ids: list[int], long: Long) -> list[int]:
        """The tokens that are read: all of them, or as many as fit."""
        if long == "windows" or self.inside(ids) <= self.room:
            return ids
        return ids[: self.opening + self.room] + ids[len(ids) - self.closing :]


@dataclass(frozen=True, slots=True)
class Window:
    """One sequence for the model. Its vectors `first:last` become the text's rows from `row` on."""

    text: int
    ids: list[int]
    first: int
    last: int
    row: int


def windows(text: int, ids: list[int], frame: Frame) -> Iterator[Window]:
    """The sequences that give a text's vectors; none where it has no tokens."""
    size, room = frame.inside(ids), frame.room
    if size <= room:
        if ids:
            yield Window(text, ids, 0, len(ids), 0)
        return
    body = ids[frame.opening : len(ids) - frame.closing]
    opening, closing = ids[: frame.opening], ids[len(ids) - frame.closing :]
    starts = [*range(0, size - room, max(1, room // 2)), size - room]
    for start, begin, end in zip(starts, *_owned(starts, room, size), strict=True):
        first = 0 if start == 0 else frame.opening + begin - start
        last = frame.opening + end - start + (frame.closing if end == size else 0)
        row = 0 if start == 0 else frame.opening + begin
        yield Window(text, opening + body[start : start + room] + closing, first, last, row)


def _owned(starts: Sequence[int], room: int, size: int) -> tuple[list[int], list[int]]:
    """Where each window's own tokens begin and end: half-way between its middle and its neighbours' middles."""
    borders = [(later + earlier + room - 1) // 2 + 1 for earlier, later in pairwise(starts)]
    return [0, *borders], [*borders, size]
