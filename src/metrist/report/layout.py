"""Columns of characters: how wide each one is, and where its cells are folded when a screen is narrow.

A number with its end cut off would be a lie, so cells are folded between words, and columns that do not fit even then
are given up: each cell gets a line of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

GAP = "  "


def aligned(rows: Sequence[Sequence[str]], aligns: Sequence[str], screen: int | None) -> list[str]:
    """Lines of a table whose first row is its heading, no wider than the screen (None: as wide as need be)."""
    natural = [max(map(width_of, column)) for column in zip(*rows, strict=True)]
    widths = natural if screen is None else _narrowed(natural, rows, screen)
    if widths is None:
        return _stacked(rows)
    rule = GAP.join("-" * width for width in widths)
    head, *body = (_lines(row, widths, aligns) for row in rows)
    return [*head, rule, *(line for lines in body for line in lines)]


def width_of(text: str) -> int:
    """How many places a text takes on a terminal; Chinese characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _narrowed(natural: Sequence[int], rows: Sequence[Sequence[str]], screen: int) -> list[int] | None:
    """Widths that fit the screen, taken from the widest column first; None where words would have to be cut."""
    least = [max(map(_longest_word, column)) for column in zip(*rows, strict=True)]
    room = screen - len(GAP) * (len(least) - 1)
    if sum(least) > room:
        return None
    widths = list(natural)
    while sum(widths) > room:
        spare = [(width, i) for i, (width, needed) in enumerate(zip(widths, least, strict=True)) if width > needed]
        widths[max(spare)[1]] -= 1
    return widths


def _longest_word(cell: str) -> int:
    return max(map(width_of, cell.split()), default=0)


def _lines(row: Sequence[str], widths: Sequence[int], aligns: Sequence[str]) -> list[str]:
    cells = [_folded(cell, width) for cell, width in zip(row, widths, strict=True)]
    height = max(map(len, cells))
    padded = [cell + [""] * (height - len(cell)) for cell in cells]
    return [GAP.join(map(_placed, line, widths, aligns)).rstrip() for line in zip(*padded, strict=True)]


def _folded(cell: str, width: int) -> list[str]:
    if width_of(cell) <= width:
        return [cell]
    lines = [""]
    for word in cell.split():
        longer = f"{lines[-1]} {word}".lstrip()
        if width_of(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def _placed(cell: str, width: int, align: str) -> str:
    space = width - width_of(cell)
    left = {"left": 0, "right": space, "center": space // 2}[align]
    return " " * left + cell + " " * (space - left)


def _stacked(rows: Sequence[Sequence[str]]) -> list[str]:
    heads, *body = rows
    indent = max(map(width_of, heads))
    lines: list[str] = []
    for row in body:
        lines += [_placed(head, indent, "left") + GAP + cell for head, cell in zip(heads, row, strict=True)]
        lines.append("")
    return lines[:-1]
