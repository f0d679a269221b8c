"""Outputs as text: plain, as Markdown, and in colour on a terminal.

What is shown of an output is a sequence of lines and texts, which every form draws in its own way. Errors are marked in
the texts, and markup inside a text is never interpreted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from metrist.errors import escape_controls
from metrist.report.cells import format_number
from metrist.report.heat import SPACE, STEPS
from metrist.report.output_card import (
    MarkedText,
    NumberedError,
    OutputCard,
    Piece,
    ReadText,
    clean_text,
    describe_error,
    locate_errors,
    rank_severity,
    severity_of,
    split_text,
)
from metrist.report.tables import escape_markdown, text_width

if TYPE_CHECKING:
    from rich.console import RenderResult

STYLES = {
    "critical": "bold underline #d32f2f",
    "major": "bold underline #d32f2f",
    "minor": "underline #b8860b",
    "neutral": "underline #1976d2",
}
#: The characters that underline errors of each severity in plain text.
MARKS = "==~-"
LEGEND = "Underlined with = are major and critical errors, with ~ minor ones, with - others."
#: Plain text marks words from this step of the colour scale on.
MARKED_STEP = 3
WIDTH = 96
#: In a short form, characters shown at either end of a stretch without errors, and the longest middle shown as well;
#: the same of what a metric says about an output.
_SHORT: Mapping[str, Any] = {"context": 160, "longest": 160}
_REMARK: Mapping[str, Any] = {"context": 400, "longest": 160}
#: An explained output is shown almost whole.
_EXPLAINED: Mapping[str, Any] = {"context": 200, "longest": 2000}
#: References shown in a short form.
_MAX_REFERENCES = 2
#: Characters shown of an unparsable answer.
_MAX_RAW = 200

#: Start, end, label, and the character that underlines it.
Span = tuple[int, int, str, str]


@dataclass(frozen=True, slots=True)
class TextLine:
    """One thing to show. `kind` is title, reason, system, scores, judgment, heading, error or remark; `name` is who
    says it. Plain text wraps a line unless it is `unbroken`, for programs that search in it."""

    kind: str
    text: str
    name: str = ""
    error: NumberedError | None = None
    indent: int = 3
    unbroken: bool = False


CardElement = TextLine | MarkedText | ReadText


def compose_entry(
    rank: int, cards: Sequence[OutputCard], reason: str, decimals: Mapping[str, int], *, full: bool, how_full: str
) -> Iterator[CardElement]:
    """All that is shown of one output, or of two of the same item, in order. `how_full` names the setting that shows
    whole texts and all references."""
    first, *others = cards
    count = None if full else _MAX_REFERENCES
    cut: Mapping[str, Any] = {} if full else _SHORT

    def list_references(card: OutputCard) -> Iterator[CardElement]:
        texts, more = card.list_references(count, **cut)
        yield from texts
        if more:
            yield TextLine("remark", f"{more} ({how_full})")

    system = "" if others else f" · system {first.shown_system}"
    yield TextLine("title", f"{rank}. {first.shown_item}{system}", indent=0, unbroken=True)
    if reason:
        yield TextLine("reason", reason)
    # Two outputs of an item usually have the same source and references, which are shown once.
    shared = bool(others) and all(share_context(first, other) for other in others)
    if shared:
        yield from first.list_context(**cut)
    for card in cards:
        if others:
            yield TextLine("system", f"system {card.shown_system}")
        scores = ((name, value, f"({more})" if more else "") for name, value, more in card.list_scores(decimals))
        yield TextLine("scores", " · ".join(" ".join(filter(None, score)) for score in scores))
        if not shared:
            yield from card.list_context(**cut)
        errors, names = card.number_errors()
        if output := card.mark_text("output", **cut):
            yield output
        for number, error in errors:
            yield TextLine(
                "error", f"{describe_error(error)} ({escape_controls(names[number])})", error=(number, error)
            )
        for name, score in card.scores.items():
            if score.failure:
                yield TextLine("remark", f"no score: {score.failure}", name)
            if score.explanation:
                remark = MarkedText(name="", text=score.explanation, **({} if full else _REMARK))
                yield TextLine("remark", "\n".join(piece.text for piece in remark.pieces()), name)
        if not shared:
            yield from list_references(card)
    if shared:
        yield from list_references(first)


def share_context(first: OutputCard, second: OutputCard) -> bool:
    """Whether two outputs answer the same, and that is known."""
    one, two = first.record, second.record
    if one is None or two is None:
        return False
    return (one.instruction, one.source, one.references) == (two.instruction, two.source, two.references)


def compose_explained(card: OutputCard) -> Iterator[CardElement]:
    """All that is shown of an output that `explain` explains, in order."""
    yield TextLine("title", f"{card.shown_item} · system {card.system}", indent=0, unbroken=True)
    judgments = []
    if card.by is not None:
        value = math.nan if card.value is None else card.value
        judgments.append(f"{card.by}: {'no score' if math.isnan(value) else format_number(value, 2)}")
        if card.failure:
            judgments.append(f"failed: {card.failure}")
        if raw := card.scores[card.by].raw:
            line = " ".join(raw.split())
            judgments.append(f"the answer: {line[:_MAX_RAW]}{'…' if len(line) > _MAX_RAW else ''}")
    elif card.errors:
        raters = dict.fromkeys(error.rater for error in card.errors if error.rater)
        judgments.append(f"annotated by {', '.join(raters)}" if raters else "annotated in the file")
    if card.note:
        judgments.append(f"note: {card.note}")
    yield from (TextLine("judgment", judgment, indent=0, unbroken=True) for judgment in judgments)
    errors = card.number_errors()[0]
    located, in_source = (locate_errors(errors, side) for side in ("output", "source"))
    if card.output is not None:
        yield MarkedText(name="", text=card.output, errors=located, **_EXPLAINED)
    elif errors:
        yield TextLine("heading", "the run does not store the output; its errors:", indent=0)
    if not errors and not card.failure and not card.reasons:
        # A note says who did not look, or what is odd about the answer.
        yield TextLine("heading", "no errors in what was checked" if card.note else "no errors", indent=0)
    unlocated = [(number, error) for number, error in errors if error.start is None]
    for heading, own in (("", located), ("in the source:", in_source), ("without a place in the text:", unlocated)):
        if heading and own:
            yield TextLine("heading", heading, indent=0)
        for number, error in own:
            yield TextLine("error", describe_error(error), error=(number, error), indent=2, unbroken=True)
    for judge, reason in card.reasons.items():
        yield TextLine("remark", reason, "reasons" if judge == card.by else judge, indent=0)


def compose_heat(card: OutputCard, *, by_piece: bool) -> Iterator[CardElement]:
    """An output with its words by how unlikely they are, in order."""
    yield TextLine("title", f"{card.shown_item} · system {card.shown_system}", indent=0, unbroken=True)
    yield TextLine("value", card.shown_value, indent=0, unbroken=True)
    texts, more = card.list_readings(by_piece=by_piece)
    for text in texts:
        yield text
        worst = ", ".join(f"'{word}' {logprob}" for word, logprob, _ in text.list_worst())
        yield TextLine("judgment", f"least likely: {worst}", indent=2, unbroken=True)
    if more:
        yield TextLine("heading", more, indent=0)


# ---- Plain text


def render_plain(lines: Iterable[CardElement], width: int) -> Iterator[str]:
    """Errors are underlined with their numbers on lines below; unlikely words stand in brackets."""
    for line in lines:
        indent = _indent(line)
        if isinstance(line, ReadText):
            yield f"{escape_controls(line.name)}:"
            shown = iter(["".join(map(_bracket, line.pieces()))])
        elif isinstance(line, MarkedText):
            if line.name:
                yield f"   {line.name}:"
            shown = _underline(line, width - indent)
        else:
            number = f"{line.error[0]}. " if line.error else ""
            text = f"{number}{f'{line.name}: ' if line.name else ''}{line.text}"
            shown = iter([escape_controls(text)]) if line.unbroken else mark_lines(text, (), width - indent)
        yield from (f"{' ' * indent}{drawn}".rstrip() for drawn in shown)


def _indent(line: CardElement) -> int:
    """A text stands below its name, or without one a little to the right."""
    if isinstance(line, TextLine):
        return line.indent
    return 5 if isinstance(line, MarkedText) and line.name else 2


def _bracket(piece: Piece) -> str:
    if piece.step < MARKED_STEP or piece.logprob is None:
        return piece.text
    number = format_number(piece.logprob, 1)
    return f"[{piece.text} {number}]" if piece.text.strip() else f"{piece.text}[{SPACE} {number}]"


def _underline(marked: MarkedText, width: int) -> Iterator[str]:
    """Lines of the text, each with the marks of its errors below."""
    spans = [(e.start or 0, e.end or 0, f"{n}", MARKS[rank_severity(e)]) for n, e in marked.errors]
    for part in split_text(marked.text, [span[:2] for span in spans], longest=marked.longest, context=marked.context):
        if not part.shown:
            yield part.placeholder
            continue
        inside = [(s - part.start, e - part.start, n, m) for s, e, n, m in spans if part.start <= s <= part.end]
        yield from mark_lines(marked.text[part.start : part.end], inside, width)


# ---- Terminal


def render_rich(lines: Iterable[CardElement]) -> RenderResult:
    """Texts in the styles of their worst errors, with numbers after them; words in the colours of their steps."""
    from rich.padding import Padding
    from rich.text import Text

    # Text objects, not strings: rich would interpret a name such as [red] as markup.
    styles = {"title": "bold", "system": "bold", "scores": "cyan", "judgment": "dim", "heading": "italic"}
    for line in lines:
        drawing = Text()
        if isinstance(line, ReadText):
            yield Text(f"{escape_controls(line.name)}:")
            for piece in line.pieces():
                drawing.append(piece.text, style="" if piece.logprob is None else STEPS[piece.step].style)
        elif isinstance(line, MarkedText):
            if line.name:
                yield Text(f"   {line.name}:", style="italic dim")
            ends = {number: STYLES[severity_of(error)] for number, error in line.errors}
            for piece in line.pieces():
                gap = f"\n{piece.text}\n" if piece.gap else clean_text(piece.text)
                drawing.append(gap, style="dim italic" if piece.gap else STYLES.get(piece.severity, ""))
                for number in piece.ends:
                    drawing.append(f"[{number}]", style=ends[number].replace("underline ", ""))
        else:
            if line.error:
                style = STYLES[severity_of(line.error[1])].replace("underline ", "")
                drawing.append(f"{line.error[0]}. ", style=style)
            if line.name:
                drawing.append(f"{escape_controls(line.name)}: ", style="bold")
            drawing.append(clean_text(line.text), style=styles.get(line.kind, ""))
        yield Padding(drawing, (0, 0, 0, _indent(line))) if _indent(line) else drawing


# ---- Markdown


def render_markdown(lines: Iterable[CardElement]) -> Iterator[str]:
    """Texts are quotations, with errors in bold and their numbers after them."""
    forms = {"title": "### {}", "system": "**{}**"}
    for line in lines:
        if not isinstance(line, TextLine):
            yield _quote(line)
        elif line.error:
            yield f"- [{line.error[0]}] {markdown_text(line.text)}"
        else:
            text = markdown_text(" ".join(line.text.split()))
            name = f"*{markdown_text(line.name)}*: " if line.name else ""
            yield name + forms.get(line.kind, "{}").format(text)


def markdown_text(text: str) -> str:
    return escape_markdown(escape_controls(text))


def _quote(marked: MarkedText | ReadText) -> str:
    shown = ""
    for piece in marked.pieces():
        text = "\n".join(map(markdown_text, piece.text.split("\n")))
        # A space at the edge or a line break inside would end the bold text.
        bold = piece.severity and text and text.strip() == text and "\n" not in text
        shown += f"\n{text}\n" if piece.gap else f"**{text}**" if bold else text
        shown += "".join(f" [{number}]" for number in piece.ends)
    # Two spaces at the end of a line keep the line break.
    return "\n".join([f"> *{marked.name}*  ", *(f"> {line}  " if line else ">" for line in shown.split("\n"))])


# ---- Marks below lines


class _Glyph(NamedTuple):
    """A character as it is shown, with its place in the text."""

    place: int
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
        shown = "" if character == "\n" else " " if character == "\t" else escape_controls(character)
        line.append(_Glyph(index, shown, text_width(shown)))
        used += line[-1].columns
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


def _draw_marks(line: Sequence[_Glyph], spans: Sequence[Span], length: int) -> Iterator[str]:
    rows: list[str] = []
    for start, end, label, mark in sorted(spans):
        inside = [n for n, glyph in enumerate(line) if start <= glyph.place < max(end, start + 1)]
        if inside:
            column = sum(glyph.columns for glyph in line[: inside[0]])
            width = max(sum(line[n].columns for n in inside), 1)
        elif line and start >= length == line[-1].place + 1:  # An empty span at the end of the text.
            column, width = sum(glyph.columns for glyph in line), 1
        else:
            continue
        begins_here = not line or line[0].place <= start
        marks = label + mark * (width - len(label)) if begins_here else mark * width
        # Use the first row of marks with room before this column.
        row = next((n for n, row in enumerate(rows) if len(row) <= column - bool(row)), len(rows))
        if row == len(rows):
            rows.append("")
        rows[row] = rows[row].ljust(column) + marks
    yield from rows
