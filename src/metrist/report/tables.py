"""A table once, written as text, Markdown, LaTeX, JSON or HTML."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from metrist.errors import RunError, did_you_mean
from metrist.report import markup
from metrist.report.cells import plain, shortened, visible, written
from metrist.report.layout import aligned

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

Align = Literal["left", "right", "center"]
Format = Literal["text", "markdown", "latex", "json", "html"]
FORMATS: tuple[str, ...] = get_args(Format)
_LONGEST = 80


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

    def text(self, width: int | None = None) -> str:
        """Plain characters in aligned columns, at home in a log file; folded where a width is given and too small."""
        head = [self._cell(column.name) for column in self.columns]
        body = [[self._cell(cell) for cell in row] for row in self.rows]
        lines = aligned([head, *body], [column.align for column in self.columns], width)
        title = [visible(self.title), ""] if self.title else []
        notes = ["", *map(visible, self.notes)] if self.notes else []
        return "\n".join([*title, *lines, *notes])

    def __str__(self) -> str:
        return self.text()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        # A Text object, not a string: a name such as [red] is no markup.
        drawn = Text(self.text(options.max_width))
        if self.title:
            drawn.stylize("bold", 0, len(visible(self.title)))
        yield drawn

    def _repr_html_(self) -> str:
        return self.render("html")

    @staticmethod
    def _cell(value: Any) -> str:
        return shortened(written(value), _LONGEST)
