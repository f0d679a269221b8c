"""A table once, written as text, Markdown, LaTeX, JSON or HTML."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from metrist.errors import RunError, did_you_mean
from metrist.report import markup
from metrist.report.cells import plain, shortened, visible, written

if TYPE_CHECKING:
    from rich.table import Table as RichTable

Align = Literal["left", "right", "center"]
Format = Literal["text", "markdown", "latex", "json", "html"]
FORMATS: tuple[str, ...] = get_args(Format)
_LONGEST = 60


@dataclass(frozen=True, slots=True)
class Column:
    """A column's heading and the side on which its cells line up."""

    name: str
    align: Align = "left"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Table:
    """Rows under columns. A cell is a string, a plain number, None, or one of `metrist.report.cells`."""

    title: str = ""
    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if len(set(names)) != len(names):
            raise ValueError(f"two columns of one table have the same name: {names}")
        if wrong := [row for row in self.rows if len(row) != len(names)]:
            raise ValueError(f"a row of {len(wrong[0])} cells does not fit {len(names)} columns: {wrong[0]}")

    def render(self, form: str = "text") -> str:
        """The table in one of the `FORMATS`."""
        match form:
            case "text":
                return self.text()
            case "json":
                return json.dumps(self.to_dict(), indent=2)
            case "markdown" | "latex" | "html":
                return markup.WRITERS[form](markup.Sheet.of(self.title, self.columns, self.rows, self.notes))
        raise RunError(f"no table format {form!r}; known are {', '.join(FORMATS)}{did_you_mean(form, FORMATS)}")

    def to_dict(self) -> dict[str, Any]:
        """The table as plain data, each row a mapping from column to value."""
        names = [column.name for column in self.columns]
        rows = [dict(zip(names, map(plain, row), strict=True)) for row in self.rows]
        return {"title": self.title, "columns": names, "rows": rows, "notes": list(self.notes)}

    def text(self) -> str:
        """Plain characters in aligned columns, at home in a log file."""
        head = [self._cell(column.name) for column in self.columns]
        body = [[self._cell(cell) for cell in row] for row in self.rows]
        widths = [max(map(_width, column)) for column in zip(head, *body, strict=True)]
        lines = [self._line(head, widths), "  ".join("-" * width for width in widths)]
        lines += [self._line(row, widths) for row in body]
        title = [visible(self.title), ""] if self.title else []
        notes = ["", *map(visible, self.notes)] if self.notes else []
        return "\n".join([*title, *lines, *notes])

    def __str__(self) -> str:
        return self.text()

    def __rich__(self) -> RichTable:
        from rich import box
        from rich.table import Table as RichTable
        from rich.text import Text

        # Text objects, not strings: a name such as [red] is no markup.
        drawn = RichTable(box=box.SIMPLE_HEAD, title_justify="left", caption_justify="left")
        drawn.title = Text(visible(self.title), style="bold") if self.title else None
        drawn.caption = Text("\n".join(map(visible, self.notes))) if self.notes else None
        for column in self.columns:
            drawn.add_column(Text(self._cell(column.name)), justify=column.align)
        for row in self.rows:
            drawn.add_row(*(Text(self._cell(cell)) for cell in row))
        return drawn

    def _repr_html_(self) -> str:
        return self.render("html")

    @staticmethod
    def _cell(value: Any) -> str:
        return shortened(written(value), _LONGEST)

    def _line(self, cells: Sequence[str], widths: Sequence[int]) -> str:
        placed = (_placed(*trio) for trio in zip(cells, widths, self.columns, strict=True))
        return "  ".join(placed).rstrip()


def _placed(cell: str, width: int, column: Column) -> str:
    space = width - _width(cell)
    left = {"left": 0, "right": space, "center": space // 2}[column.align]
    return " " * left + cell + " " * (space - left)


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
