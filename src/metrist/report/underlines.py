"""Plain text in lines of a given width, with marks on the lines below what they are about."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from metrist.report.cells import visible

#: Start and end of a stretch of text, a label, and the character that underlines it.
Span = tuple[int, int, str, str]


@dataclass(frozen=True, slots=True)
class _Cell:
    """A character as it is shown: its place in the text, and how many columns it takes."""

    at: int
    shown: str
    columns: int


def marked_lines(text: str, spans: Sequence[Span], width: int) -> Iterator[str]:
    """The text's lines, each followed by as many lines of marks as its spans need so that none covers another."""
    for line in _wrapped(text, max(width, 20)):
        yield "".join(cell.shown for cell in line).rstrip()
        yield from _marks(line, spans, len(text))


def _wrapped(text: str, width: int) -> Iterator[list[_Cell]]:
    line: list[_Cell] = []
    used = 0
    for at, character in enumerate(text):
        cell = _cell(at, character)
        line.append(cell)
        used += cell.columns
        if character == "\n":
            yield line
            line, used = [], 0
        elif used > width:
            # At the last space, or where there is none in the middle of a word.
            cut = next((n for n in range(len(line) - 1, 0, -1) if line[n - 1].shown == " "), len(line) - 1) or 1
            yield line[:cut]
            line = line[cut:]
            used = sum(one.columns for one in line)
    if line or not text:
        yield line


def _cell(at: int, character: str) -> _Cell:
    if character == "\n":
        return _Cell(at, "", 0)
    shown = " " if character == "\t" else visible(character)
    if len(shown) > 1:
        return _Cell(at, shown, len(shown))
    if unicodedata.combining(shown) or unicodedata.category(shown) in ("Mn", "Me", "Cf"):
        return _Cell(at, shown, 0)
    return _Cell(at, shown, 2 if unicodedata.east_asian_width(shown) in "WF" else 1)


def _marks(line: Sequence[_Cell], spans: Sequence[Span], length: int) -> Iterator[str]:
    rows: list[str] = []
    for start, end, label, mark in sorted(spans):
        stretch = _columns(line, start, max(end, start + 1), length)
        if stretch is None:
            continue
        left, wide = stretch
        shown = label + mark * (wide - len(label)) if line[0].at <= start or not line else mark * wide
        row = next((n for n, row in enumerate(rows) if len(row) <= left - bool(row)), len(rows))
        if row == len(rows):
            rows.append("")
        rows[row] = rows[row].ljust(left) + shown
    yield from rows


def _columns(line: Sequence[_Cell], start: int, end: int, length: int) -> tuple[int, int] | None:
    """Where on the line the stretch begins, and how many columns it takes; None where it is on other lines. A stretch
    at the very end of a text, which covers nothing, stands behind the last character."""
    inside = [n for n, cell in enumerate(line) if start <= cell.at < end]
    if not inside:
        behind = start >= length and bool(line) and line[-1].at == length - 1
        return (sum(cell.columns for cell in line), 1) if behind else None
    left = sum(cell.columns for cell in line[: inside[0]])
    return left, max(sum(line[n].columns for n in inside), 1)
