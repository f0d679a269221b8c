"""Outputs with their errors underlined and the reasons below: in colour on a terminal, as plain text, and as rows."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from metrist.errors import label_item
from metrist.ratings import Error
from metrist.report.tables import escape_controls, format_number

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.text import Text

#: From the worst on; where errors overlap, the worst gives the colour. An unknown severity is shown as the last.
SEVERITIES = ("critical", "major", "minor", "neutral")
STYLES = ("bold underline #d32f2f", "bold underline #d32f2f", "underline #b8860b", "underline #1976d2")
#: The characters that underline errors of each severity in plain text.
MARKS = "==~-"
LEGEND = "Underlined with = are major and critical errors, with ~ minor ones, with - others."
_WIDTH = 96
#: Characters shown of an unparsable answer.
_MAX_RAW = 200
#: A stretch without errors of more characters or lines than this is left out, except for its ends.
_LONG_CHARACTERS, _LONG_LINES = 2000, 20
#: Characters shown on either side of a gap, and how many more it takes at most to reach the end of a word.
_CONTEXT, _MAX_WORD = 200, 30

#: Start, end, label, and the character that underlines it.
Span = tuple[int, int, str, str]
NumberedError = tuple[int, Error]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedOutput:
    """One output with its errors.

    `by` is the metric that found the errors and `value` its score; errors annotated by people name their raters.
    `failure` says why there is no score, `raw` is the answer in that case, and `note` a remark on the answer. `reasons`
    are what judges say about the output, by their texts.
    """

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
    reasons: Mapping[str, str] = field(default_factory=dict)

    @property
    def located_errors(self) -> list[NumberedError]:
        """The errors with offsets in the output, with their numbers."""
        return locate_errors(enumerate(self.errors, 1), "output")

    @property
    def source_errors(self) -> list[NumberedError]:
        """The errors with offsets in the source."""
        return locate_errors(enumerate(self.errors, 1), "source")

    @property
    def unlocated_errors(self) -> list[NumberedError]:
        """The errors whose words are in neither text."""
        return [(n, e) for n, e in enumerate(self.errors, 1) if e.start is None]

    def row(self) -> dict[str, Any]:
        """A plain row, which metrist reads as a record with errors."""
        names = ("source", "output", "task", "language", "failure", "note", "raw")
        scored = self.by is not None and self.value is not None and not math.isnan(self.value)
        return {
            "item": self.item,
            "system": self.system,
            **{name: getattr(self, name) for name in names if getattr(self, name) is not None},
            **({"scores": {self.by: self.value}} if scored else {}),
            **({"reasons": dict(self.reasons)} if self.reasons else {}),
            "errors": [error_row(error) for error in self.errors],
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Explanations:
    """Explained outputs, with notes on what is shown."""

    outputs: Sequence[ExplainedOutput]
    notes: Sequence[str] = ()

    def text(self, width: int = _WIDTH) -> str:
        """Plain text: each error is underlined on a line below, beginning with its number."""
        blocks = ["\n".join(_render_plain(output, width)) for output in self.outputs]
        marked = any(output.errors for output in self.outputs) or not any(output.reasons for output in self.outputs)
        return "\n\n".join([*blocks, "\n".join([*self.notes, *([LEGEND] if marked else [])])]).rstrip()

    def rows(self) -> Iterator[dict[str, Any]]:
        """One plain row per output, with offsets."""
        return (output.row() for output in self.outputs)

    def __str__(self) -> str:
        return self.text()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        return _render_rich(self)


def locate_errors(errors: Iterable[NumberedError], side: str) -> list[NumberedError]:
    """The errors with offsets in the output, or in the source."""
    return [(number, error) for number, error in errors if error.start is not None and error.side == side]


def rank_severity(error: Error) -> int:
    """The error's index in `SEVERITIES`, 0 being the worst."""
    severity = (error.severity or "").lower()
    return SEVERITIES.index(severity) if severity in SEVERITIES else len(SEVERITIES) - 1


def error_row(error: Error) -> dict[str, Any]:
    """An error as plain data, without what it does not say."""
    required = ("aspect", "severity", "penalty", "text", "start", "end")
    row = {f.name: getattr(error, f.name) for f in fields(error)}
    return {name: value for name, value in row.items() if name in required or value not in ("", None, "output")}


def _format_title(output: ExplainedOutput) -> str:
    return f"item {escape_controls(label_item(output.item))} · system {escape_controls(output.system)}"


def _describe_judgment(output: ExplainedOutput) -> Iterator[str]:
    if output.by is not None:
        score = "no score" if output.value is None or math.isnan(output.value) else format_number(output.value, 2)
        yield f"{escape_controls(output.by)}: {score}"
    elif output.errors:
        raters = dict.fromkeys(error.rater for error in output.errors if error.rater)
        yield f"annotated by {', '.join(map(escape_controls, raters))}" if raters else "annotated in the file"
    if output.failure:
        yield f"failed: {escape_controls(output.failure)}"
    if output.raw:
        line = " ".join(output.raw.split())
        yield f"the answer: {escape_controls(line[:_MAX_RAW])}{'…' if len(line) > _MAX_RAW else ''}"
    if output.note:
        yield f"note: {escape_controls(output.note)}"


def _group_errors(output: ExplainedOutput) -> Iterator[tuple[str, list[NumberedError]]]:
    """The errors under headings; the first heading may be empty."""
    if not output.errors:
        if not output.failure and not output.reasons:
            yield "no errors", []
        return
    yield "the run does not store the output; its errors:" if output.output is None else "", output.located_errors
    if output.source_errors:
        yield "in the source:", output.source_errors
    if output.unlocated_errors:
        yield "without a place in the text:", output.unlocated_errors


def describe_error(error: Error) -> str:
    """An error in one line: severity, penalty, aspect, words, explanation and correction."""
    parts = [
        escape_controls(error.severity or "error"),
        f" -{error.penalty:g}" if error.penalty is not None else "",
        f" {escape_controls(error.aspect)}",
        f" by {escape_controls(error.rater)}" if error.rater else "",
        f" “{escape_controls(error.text)}”" if error.text else "",
        f": {escape_controls(error.explanation)}" if error.explanation else "",
        f" → {escape_controls(error.revision)}" if error.revision else "",
    ]
    return "".join(parts)


def _render_plain(output: ExplainedOutput, width: int) -> Iterator[str]:
    yield _format_title(output)
    yield from _describe_judgment(output)
    if output.output is not None:
        spans = [(e.start or 0, e.end or 0, f"{n}", MARKS[rank_severity(e)]) for n, e in output.located_errors]
        yield from (f"  {line}" for line in _underline(output.output, spans, width - 2))
    for heading, errors in _group_errors(output):
        if heading:
            yield heading
        for number, error in errors:
            yield f"  {number}. {describe_error(error)}"
    for judge, reason in output.reasons.items():
        yield from mark_lines(f"{'reasons' if judge == output.by else judge}: {reason}", (), width)


def _underline(text: str, spans: Sequence[Span], width: int) -> Iterator[str]:
    for part in split_text(text, [(start, end) for start, end, _, _ in spans]):
        if part.shown:
            offset = part.start
            inside = [
                (start - offset, end - offset, label, mark)
                for start, end, label, mark in spans
                if offset <= start <= part.end
            ]
            yield from mark_lines(text[offset : part.end], inside, width)
        else:
            yield part.placeholder


def _render_rich(explanations: Explanations) -> RenderResult:
    from rich.padding import Padding
    from rich.text import Text

    for output in explanations.outputs:
        yield Text(_format_title(output), style="bold")
        for line in _describe_judgment(output):
            yield Text(line, style="dim")
        if output.output is not None:
            yield Padding(draw_errors(output.output, output.located_errors), (0, 0, 0, 2))
        for heading, errors in _group_errors(output):
            if heading:
                yield Text(heading, style="italic")
            for number, error in errors:
                reason = Text(f"  {number}. ", style=STYLES[rank_severity(error)].replace("underline ", ""))
                yield reason.append(describe_error(error), style="not bold default")
        for judge, said in output.reasons.items():
            lines = "\n".join(map(escape_controls, said.split("\n")))
            name = "reasons" if judge == output.by else escape_controls(judge)
            yield Text(f"{name}: ", style="italic").append(lines, style="not italic")
        yield Text("")
    if explanations.notes:
        yield Text("\n".join(explanations.notes), style="dim")


def draw_errors(
    text: str, errors: Sequence[NumberedError], *, longest: int | None = _LONG_CHARACTERS, context: int = _CONTEXT
) -> Text:
    """A text for a terminal, with each stretch in the style of its worst error, and each error's number after its end;
    `longest` and `context` are those of `split_text`."""
    from rich.text import Text

    drawing = Text()
    for part in split_text(text, [(e.start or 0, e.end or 0) for _, e in errors], longest=longest, context=context):
        if part.shown:
            _draw_part(drawing, text, part, errors)
        else:
            drawing.append(f"\n{part.placeholder}\n", style="dim italic")
    return drawing


def _draw_part(drawing: Text, text: str, part: TextPart, errors: Sequence[NumberedError]) -> None:
    ends = {i for _, e in errors for i in (e.start or 0, e.end or 0) if part.start <= i <= part.end}
    borders = sorted({part.start, part.end, *ends})
    for start, end in zip(borders, [*borders[1:], part.end], strict=True):
        for number, error in errors:
            if error.end == start:
                drawing.append(f"[{number}]", style=STYLES[rank_severity(error)].replace("underline ", ""))
        ranks = [rank_severity(e) for _, e in errors if (e.start or 0) <= start < end <= (e.end or 0)]
        shown = "\n".join(map(escape_controls, text[start:end].split("\n")))
        drawing.append(shown, style=STYLES[min(ranks)] if ranks else "")


@dataclass(frozen=True, slots=True)
class TextPart:
    """A stretch of a text, shown or left out."""

    start: int
    end: int
    shown: bool

    @property
    def placeholder(self) -> str:
        """Shown in place of a stretch that is left out."""
        return f"… {self.end - self.start:,} characters without errors …"


def split_text(
    text: str, spans: Iterable[tuple[int, int]], *, longest: int | None = _LONG_CHARACTERS, context: int = _CONTEXT
) -> Iterator[TextPart]:
    """Split a text into parts to show and long parts without a span to leave out. Spans, and both ends of the text, are
    shown with `context` characters; what lies between is left out where it has more than `longest` characters, or many
    lines. None leaves out nothing."""
    shown_from = 0
    for start, end in _find_gaps(len(text), spans) if longest is not None else ():
        cut_from, cut_to = _find_word_end(text, start + context), _find_word_start(text, end - context)
        if cut_from < cut_to:
            gap = text[cut_from:cut_to]
            if len(gap) > (longest or 0) or gap.count("\n") > _LONG_LINES:
                yield TextPart(shown_from, cut_from, shown=True)
                yield TextPart(cut_from, cut_to, shown=False)
                shown_from = cut_to
    yield TextPart(shown_from, len(text), shown=True)


def _find_gaps(length: int, spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The stretches that no span touches."""
    covered = 0
    for start, end in sorted(spans):
        if start > covered:
            yield covered, start
        covered = max(covered, end)
    if length > covered:
        yield covered, length


def _find_word_end(text: str, start: int) -> int:
    return next((i for i in range(start, min(start + _MAX_WORD, len(text))) if text[i].isspace()), start)


def _find_word_start(text: str, start: int) -> int:
    return next((i for i in range(start, max(start - _MAX_WORD, 0), -1) if text[i - 1].isspace()), start)


@dataclass(frozen=True, slots=True)
class _Glyph:
    """A character as it is shown: its index in the text, and how many columns it takes."""

    index: int
    shown: str
    columns: int


def mark_lines(text: str, spans: Sequence[Span], width: int) -> Iterator[str]:
    """Wrap a text, with lines of marks below each line, as many as its spans need so that none covers another."""
    for line in _wrap(text, max(width, 20)):
        yield "".join(glyph.shown for glyph in line).rstrip()
        yield from _draw_marks(line, spans, len(text))


def _wrap(text: str, width: int) -> Iterator[list[_Glyph]]:
    line: list[_Glyph] = []
    used = 0
    for index, character in enumerate(text):
        glyph = _measure(index, character)
        line.append(glyph)
        used += glyph.columns
        if character == "\n":
            yield line
            line, used = [], 0
        elif used > width:
            # Break at the last space, or inside a word if there is none.
            cut = next((n for n in range(len(line) - 1, 0, -1) if line[n - 1].shown == " "), len(line) - 1) or 1
            yield line[:cut]
            line = line[cut:]
            used = sum(glyph.columns for glyph in line)
    if line or not text:
        yield line


def _measure(index: int, character: str) -> _Glyph:
    if character == "\n":
        return _Glyph(index, "", 0)
    shown = " " if character == "\t" else escape_controls(character)
    if len(shown) > 1:
        return _Glyph(index, shown, len(shown))
    if unicodedata.combining(shown) or unicodedata.category(shown) in ("Mn", "Me", "Cf"):
        return _Glyph(index, shown, 0)
    return _Glyph(index, shown, 2 if unicodedata.east_asian_width(shown) in "WF" else 1)


def _draw_marks(line: Sequence[_Glyph], spans: Sequence[Span], length: int) -> Iterator[str]:
    rows: list[str] = []
    for start, end, label, mark in sorted(spans):
        position = _find_columns(line, start, max(end, start + 1), length)
        if position is None:
            continue
        column, width = position
        begins_here = not line or line[0].index <= start
        marks = label + mark * (width - len(label)) if begins_here else mark * width
        # Use the first row of marks with room before this column.
        row = next((n for n, row in enumerate(rows) if len(row) <= column - bool(row)), len(rows))
        if row == len(rows):
            rows.append("")
        rows[row] = rows[row].ljust(column) + marks
    yield from rows


def _find_columns(line: Sequence[_Glyph], start: int, end: int, length: int) -> tuple[int, int] | None:
    """The first column of a span on this line and its width; None if it is on other lines. An empty span at the end of
    the text stands after the last character."""
    inside = [n for n, glyph in enumerate(line) if start <= glyph.index < end]
    if not inside:
        after_end = start >= length and bool(line) and line[-1].index == length - 1
        return (sum(glyph.columns for glyph in line), 1) if after_end else None
    column = sum(glyph.columns for glyph in line[: inside[0]])
    return column, max(sum(line[n].columns for n in inside), 1)
