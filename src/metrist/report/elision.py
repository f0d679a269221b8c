"""Long texts, of which only some stretches are of interest: what is shown of them, and what is left out between."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

#: A stretch of more characters or lines without anything of interest is left out but for its ends.
_CHARACTERS, _LINES = 2000, 20
#: Characters that are shown on either side of what is left out, or up to a word's end more.
_AROUND, _WORD = 200, 30


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a text; one that is not shown stands for as many characters as it has."""

    start: int
    end: int
    shown: bool

    @property
    def instead(self) -> str:
        """What stands in the place of a stretch that is left out."""
        return f"… {self.end - self.start:,} characters without errors …"


def parts_of(text: str, spans: Iterable[tuple[int, int]]) -> Iterator[Part]:
    """The text from its beginning to its end. The spans are shown whole, with what stands around them."""
    at = 0
    for start, end in _free(len(text), spans):
        left, right = _word_end(text, start + _AROUND), _word_start(text, end - _AROUND)
        if left < right and _is_long(text[left:right]):
            yield Part(at, left, shown=True)
            yield Part(left, right, shown=False)
            at = right
    yield Part(at, len(text), shown=True)


def _free(length: int, spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The stretches that no span touches."""
    at = 0
    for start, end in sorted(spans):
        if start > at:
            yield at, start
        at = max(at, end)
    if length > at:
        yield at, length


def _is_long(text: str) -> bool:
    return len(text) > _CHARACTERS or text.count("\n") > _LINES


def _word_end(text: str, at: int) -> int:
    return next((n for n in range(at, min(at + _WORD, len(text))) if text[n].isspace()), at)


def _word_start(text: str, at: int) -> int:
    return next((n for n in range(at, max(at - _WORD, 0), -1) if text[n - 1].isspace()), at)
