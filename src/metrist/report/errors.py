"""Long texts, of which only some stretches are of interest: what is shown of them, and what is left out between."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from metrist.ratings import Error
from metrist.report.cells import fixed, visible

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.text import Text


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


# Plain text in lines of a given width, with marks on the lines below what they are about.


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


# Outputs with their errors underlined and the reasons below: on a terminal, as plain text, and as rows of JSON.


#: From the worst on: where errors overlap, the worst gives the colour. An unknown severity is shown as the last.
SEVERITIES = ("critical", "major", "minor", "neutral")
_STYLES = ("bold underline #d32f2f", "bold underline #d32f2f", "underline #b8860b", "underline #1976d2")
#: What underlines an error without colour.
_MARKS = "==~-"
_WIDTH = 96
#: Characters that are shown of an answer that could not be read.
_RAW = 200
#: Above, right, below and left of a text on a terminal.
_INDENT = (0, 0, 0, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedOutput:
    """One output and what was found in it. `by` names the metric that found the errors, `value` its score; errors that
    people found name their raters. `failure` says why there is no score, `raw` what was answered then, `note` what is
    odd about the answer."""

    item: str
    system: str
    output: str | None
    errors: tuple[Error, ...] = ()
    source: str | None = None
    task: str | None = None
    language: str | None = None
    by: str | None = None
    value: float | None = None
    failure: str | None = None
    note: str | None = None
    raw: str | None = None

    @property
    def located_errors(self) -> list[tuple[int, Error]]:
        """The errors with a place in the output, with their numbers."""
        return [(n, e) for n, e in self._numbered if e.start is not None and e.side == "output"]

    @property
    def in_source(self) -> list[tuple[int, Error]]:
        """The errors with a place in the source."""
        return [(n, e) for n, e in self._numbered if e.start is not None and e.side == "source"]

    @property
    def unplaced(self) -> list[tuple[int, Error]]:
        """The errors whose words were not found."""
        return [(n, e) for n, e in self._numbered if e.start is None]

    @property
    def _numbered(self) -> list[tuple[int, Error]]:
        return list(enumerate(self.errors, 1))

    def row(self) -> dict[str, Any]:
        """A plain row, which metrist reads as a record with errors."""
        kinds = {"task": self.task, "language": self.language}
        told = {"failure": self.failure, "note": self.note, "raw": self.raw}
        texts = {"source": self.source, "output": self.output, **kinds, **told}
        known = self.by is not None and self.value is not None and not math.isnan(self.value)
        return {
            "item": self.item,
            "system": self.system,
            **{name: text for name, text in texts.items() if text is not None},
            **({"scores": {self.by: self.value}} if known else {}),
            "errors": [_error_row(error) for error in self.errors],
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Explanations:
    """Outputs to be shown, and notes on what is shown."""

    outputs: Sequence[ExplainedOutput]
    notes: Sequence[str] = ()

    def text(self, width: int = _WIDTH) -> str:
        """Plain characters: each error is underlined on a line below, beginning with its number."""
        blocks = ["\n".join(_plain(output, width)) for output in self.outputs]
        return "\n\n".join([*blocks, "\n".join([*self.notes, _LEGEND])])

    def rows(self) -> Iterator[dict[str, Any]]:
        """One plain row per output, with offsets."""
        return (output.row() for output in self.outputs)

    def __str__(self) -> str:
        return self.text()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.padding import Padding
        from rich.text import Text

        for output in self.outputs:
            yield Text(_title(output), style="bold")
            for line in _about(output):
                yield Text(line, style="dim")
            if output.output is not None:
                yield Padding(_drawn(output), _INDENT)
            yield from _drawn_reasons(output)
            yield Text("")
        if self.notes:
            yield Text("\n".join(self.notes), style="dim")


_LEGEND = "Underlined with = are major and critical errors, with ~ minor ones, with - others."


def rank(error: Error) -> int:
    """How bad an error is, 0 being the worst."""
    named = (error.severity or "").lower()
    return SEVERITIES.index(named) if named in SEVERITIES else len(SEVERITIES) - 1


def _error_row(error: Error) -> dict[str, Any]:
    kept = ("aspect", "severity", "penalty", "text", "start", "end")
    row = {f.name: getattr(error, f.name) for f in fields(error)}
    return {name: value for name, value in row.items() if name in kept or value not in ("", None, "output")}


def _title(output: ExplainedOutput) -> str:
    return f"item {visible(output.item)} · system {visible(output.system)}"


def _about(output: ExplainedOutput) -> Iterator[str]:
    if output.by is not None:
        score = "no score" if output.value is None or math.isnan(output.value) else fixed(output.value, 2)
        yield f"{visible(output.by)}: {score}"
    if output.failure:
        yield f"failed: {visible(output.failure)}"
    if output.raw:
        line = " ".join(output.raw.split())
        yield f"the answer: {visible(line[:_RAW])}{'…' if len(line) > _RAW else ''}"
    if output.note:
        yield f"note: {visible(output.note)}"


def _plain(output: ExplainedOutput, width: int) -> Iterator[str]:
    yield _title(output)
    yield from _about(output)
    if output.output is not None:
        spans = [(e.start or 0, e.end or 0, f"{n}", _MARKS[rank(e)]) for n, e in output.located_errors]
        yield from (f"  {line}" for line in _underlined(output.output, spans, width - 2))
    for heading, errors in _groups(output):
        if heading:
            yield heading
        for number, error in errors:
            yield f"  {number}. {_reason(error)}"


def _underlined(text: str, spans: Sequence[Span], width: int) -> Iterator[str]:
    for part in parts_of(text, [(start, end) for start, end, _, _ in spans]):
        if not part.shown:
            yield part.instead
            continue
        at = part.start
        here = [(start - at, end - at, label, mark) for start, end, label, mark in spans if at <= start <= part.end]
        yield from marked_lines(text[at : part.end], here, width)


def _groups(output: ExplainedOutput) -> Iterator[tuple[str, list[tuple[int, Error]]]]:
    if not output.errors:
        if not output.failure:
            yield "no errors", []
        return
    if output.output is None:
        yield "the run does not hold the output; its errors:", output.located_errors
    else:
        yield "", output.located_errors
    if output.in_source:
        yield "in the source:", output.in_source
    if output.unplaced:
        yield "without a place in the text:", output.unplaced


def _reason(error: Error) -> str:
    penalty = f" -{error.penalty:g}" if error.penalty is not None else ""
    words = f" “{visible(error.text)}”" if error.text else ""
    rater = f" by {visible(error.rater)}" if error.rater else ""
    why = f": {visible(error.explanation)}" if error.explanation else ""
    better = f" → {visible(error.revision)}" if error.revision else ""
    return f"{visible(error.severity or 'error')}{penalty} {visible(error.aspect)}{rater}{words}{why}{better}"


def _drawn(output: ExplainedOutput) -> Text:
    """The output, each stretch of it in the style of the worst error there, each error's number behind its end."""
    from rich.text import Text

    drawn, text, placed = Text(), output.output or "", output.located_errors
    for part in parts_of(text, [(e.start or 0, e.end or 0) for _, e in placed]):
        if part.shown:
            _draw_part(drawn, text, part, placed)
        else:
            drawn.append(f"\n{part.instead}\n", style="dim italic")
    return drawn


def _draw_part(drawn: Text, text: str, part: Part, placed: Sequence[tuple[int, Error]]) -> None:
    ends = {at for _, e in placed for at in (e.start or 0, e.end or 0) if part.start <= at <= part.end}
    borders = sorted({part.start, part.end, *ends})
    for start, end in zip(borders, [*borders[1:], part.end], strict=True):
        for number, error in placed:
            if error.end == start:
                drawn.append(f"[{number}]", style=_STYLES[rank(error)].replace("underline ", ""))
        here = [rank(e) for _, e in placed if (e.start or 0) <= start and end <= (e.end or 0) and start < end]
        shown = "\n".join(map(visible, text[start:end].split("\n")))
        drawn.append(shown, style=_STYLES[min(here)] if here else "")


def _drawn_reasons(output: ExplainedOutput) -> Iterator[Text]:
    from rich.text import Text

    for heading, errors in _groups(output):
        if heading:
            yield Text(heading, style="italic")
        for number, error in errors:
            line = Text(f"  {number}. ", style=_STYLES[rank(error)].replace("underline ", ""))
            yield line.append(_reason(error), style="not bold default")
