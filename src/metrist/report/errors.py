"""Outputs with their errors underlined and the reasons below: on a terminal, as plain text, and as rows of JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from metrist.ratings import Error
from metrist.report.cells import fixed, visible
from metrist.report.elision import Part, parts_of
from metrist.report.underlines import Span, marked_lines

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.text import Text

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
    def placed(self) -> list[tuple[int, Error]]:
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
        spans = [(e.start or 0, e.end or 0, f"{n}", _MARKS[rank(e)]) for n, e in output.placed]
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
        yield "the run does not hold the output; its errors:", output.placed
    else:
        yield "", output.placed
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

    drawn, text, placed = Text(), output.output or "", output.placed
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
