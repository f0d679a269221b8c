"""The outputs that `worst` selects, with texts, scores and reasons: as text, Markdown, JSON or HTML, and on a terminal.

Texts are shown whole or without their middle, errors are marked in them, and markup inside a text is never interpreted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from metrist.errors import RunError, did_you_mean, format_count, label_item
from metrist.ratings import Error
from metrist.records import Record
from metrist.report.errors import (
    LEGEND,
    MARKS,
    STYLES,
    NumberedError,
    TextPart,
    describe_error,
    draw_errors,
    error_row,
    locate_errors,
    mark_lines,
    rank_severity,
    split_text,
)
from metrist.report.tables import (
    escape_controls,
    escape_markdown,
    format_number,
    or_none,
    wrap_page,
)
from metrist.scores import Score

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

#: The name of people where metrics are named.
PEOPLE = "people"
FORMATS = ("text", "markdown", "json", "html")
_WIDTH = 96
#: In a short form, characters shown at either end of a stretch without errors, and the longest middle shown as well.
_CONTEXT, _LONGEST = 160, 160
#: The same for what a metric says about an output.
_REMARK_CONTEXT = 400
#: References shown in a short form.
_MAX_REFERENCES = 2
_SEVERITY_CLASSES = ("major", "major", "minor", "other")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredOutput:
    """One output with all that is known about it. `record` is None where its texts could not be read.

    `percentiles` are its ranks by the metrics, and by people, that it was selected for. `ratings` are the mean and the
    number of people's ratings by aspect, `errors` those that people marked. `run` names the run where there are two.
    `number` is the position of the item among those of its run, counted from 1.
    """

    item: str
    system: str
    scores: Mapping[str, Score]
    record: Record | None = None
    percentiles: Mapping[str, float] = field(default_factory=dict)
    ratings: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    errors: tuple[Error, ...] = ()
    run: str | None = None
    number: int | None = None

    @property
    def shown_item(self) -> str:
        return f"item {label_item(self.item, self.number)}"

    @property
    def shown_system(self) -> str:
        """The system, and the run where there are two."""
        return self.system if self.run is None else f"{self.system} · {self.run}"

    def number_errors(self) -> tuple[list[NumberedError], dict[int, str]]:
        """The errors of all metrics and of people, counted through, and who found each."""
        found = [(name, error) for name, score in self.scores.items() for error in score.errors]
        found += [(PEOPLE, error) for error in self.errors]
        numbered = [(number, error) for number, (_, error) in enumerate(found, 1)]
        return numbered, {number: name for number, (name, _) in enumerate(found, 1)}

    def describe_failure(self) -> str:
        """Why metrics have no score of the output."""
        reasons = "; ".join(f"{name}: {score.failure}" for name, score in self.scores.items() if score.failure)
        return f"{self.shown_item} · system {self.shown_system}: {reasons}"

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain data; NaN is None."""
        record = self.record
        texts = (
            {}
            if record is None
            else {
                "instruction": record.instruction,
                "source": record.source,
                "references": list(record.references),
                "output": record.output,
            }
        )
        failures = {name: score.failure for name, score in self.scores.items() if score.failure}
        errors = {name: score.errors for name, score in self.scores.items() if score.errors}
        if self.errors:
            errors[PEOPLE] = self.errors
        return {
            "item": self.item,
            "system": self.system,
            **({"run": self.run} if self.run is not None else {}),
            "scores": {name: or_none(score.value) for name, score in self.scores.items()},
            **({"failures": failures} if failures else {}),
            **({"percentiles": dict(self.percentiles)} if self.percentiles else {}),
            **({"ratings": {name: mean for name, (mean, _) in self.ratings.items()}} if self.ratings else {}),
            "explanations": {name: score.explanation for name, score in self.scores.items() if score.explanation},
            "errors": {name: [error_row(error) for error in listed] for name, listed in errors.items()},
            **{name: text for name, text in texts.items() if text is not None},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstEntry:
    """One output, or two of the same item, and what it was ranked by: `value`, and `reason` in words."""

    outputs: tuple[ScoredOutput, ...]
    value: float
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorstOutputs:
    """What `worst` selected, the first being the worst. `failures` are outputs that could not be ranked because the
    metric has no score of them; `decimals` says how precisely a metric's scores are shown."""

    title: str
    entries: Sequence[WorstEntry]
    failures: Sequence[ScoredOutput] = ()
    notes: Sequence[str] = ()
    decimals: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[WorstEntry]:
        return iter(self.entries)

    def __repr__(self) -> str:
        return f"WorstOutputs({self.title!r}, {len(self)} shown)"

    def render(self, form: str = "text", *, full: bool = False) -> str:
        """The outputs in one of the `FORMATS`; texts are shortened unless `full`, except in JSON."""
        match form:
            case "text":
                return _render_text(self, _WIDTH, full=full)
            case "markdown":
                return _render_markdown(self, full=full)
            case "json":
                return json.dumps(self.to_dict(), indent=2, ensure_ascii=False)
            case "html":
                return wrap_page(_html(self.title), "metrist-worst", _STYLE, _render_body(self, full=full))
        raise RunError(f"no format {form!r}; known are {', '.join(FORMATS)}{did_you_mean(form, FORMATS)}")

    def text(self, width: int = _WIDTH, *, full: bool = False) -> str:
        """Plain text: each error is underlined on a line below, beginning with its number."""
        return _render_text(self, width, full=full)

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain data, with whole texts."""
        return {
            "title": self.title,
            "entries": [
                {
                    "value": or_none(entry.value),
                    **({"reason": entry.reason} if entry.reason else {}),
                    "outputs": [output.to_dict() for output in entry.outputs],
                }
                for entry in self.entries
            ],
            "failures": [output.to_dict() for output in self.failures],
            "notes": list(self.notes),
        }

    def rows(self) -> Iterator[dict[str, Any]]:
        """One plain row per output, with its rank and texts."""
        for rank, entry in enumerate(self.entries, 1):
            for output in entry.outputs:
                yield {"rank": rank, "value": or_none(entry.value), **output.to_dict()}

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return f'<style>{_STYLE}</style>\n<div class="metrist-worst">\n{_render_body(self, full=False)}</div>\n'

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        return _render_rich(self, full=False)


@dataclass(frozen=True, slots=True, eq=False)
class TerminalPage:
    """The outputs as rich draws them, with whole texts if `full`."""

    worst: WorstOutputs
    full: bool

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        return _render_rich(self.worst, full=self.full)

    def text(self) -> str:
        return self.worst.text(full=self.full)


# ---- What every form shows


@dataclass(frozen=True, slots=True)
class _NamedText:
    """A text under a heading, with the errors to mark in it."""

    name: str
    text: str
    errors: Sequence[NumberedError] = ()

    def parts(self, *, full: bool) -> Iterator[TextPart]:
        """The parts to show, and what is left out between them."""
        spans = [(error.start or 0, error.end or 0) for _, error in self.errors]
        return split_text(self.text, spans, longest=None if full else _LONGEST, context=_CONTEXT)

    def pieces(self, *, full: bool) -> Iterator[tuple[str, list[int], int | None]]:
        """The text cut where errors begin and end: each piece, the numbers of the errors that end there, and the rank
        of the worst severity in it."""
        borders = {i for _, error in self.errors for i in (error.start or 0, error.end or 0)}
        for part in self.parts(full=full):
            if not part.shown:
                yield f"\n{_describe_gap(part)}\n", [], None
                continue
            cuts = sorted({part.start, part.end, *(i for i in borders if part.start < i < part.end)})
            for start, end in pairwise(cuts):
                ends = [n for n, e in self.errors if (e.end or 0) == end]
                ranks = [rank_severity(e) for _, e in self.errors if (e.start or 0) <= start < end <= (e.end or 0)]
                yield self.text[start:end], ends, min(ranks, default=None)


@dataclass(frozen=True, slots=True)
class _Line:
    """One thing to show, which each form draws in its own way: `kind` is entry, reason, system, scores, error or remark
    (`name` says it)."""

    kind: str
    text: str
    name: str = ""
    error: NumberedError | None = None


def _compose(rank: int, entry: WorstEntry, decimals: Mapping[str, int], *, full: bool) -> Iterator[_Line | _NamedText]:
    """All that is shown of an entry, in order."""
    first, *others = entry.outputs
    system = "" if others else f" · system {first.shown_system}"
    yield _Line("entry", f"{rank}. {first.shown_item}{system}")
    if entry.reason:
        yield _Line("reason", entry.reason)
    # Two outputs of an item usually have the same source and references, which are shown once.
    shared = bool(others) and all(_context_of(first) == _context_of(other) is not None for other in others)
    if shared:
        yield from _list_context(first)
    for output in entry.outputs:
        if others:
            yield _Line("system", f"system {output.shown_system}")
        yield _Line("scores", " · ".join(f"{name} {value}" for name, value in _list_scores(output, decimals)))
        if not shared:
            yield from _list_context(output)
        errors, names = output.number_errors()
        if output.record:
            yield _NamedText("output", output.record.output, locate_errors(errors, "output"))
        for number, error in errors:
            yield _Line("error", f"{describe_error(error)} ({escape_controls(names[number])})", error=(number, error))
        for name, score in output.scores.items():
            if score.failure:
                yield _Line("remark", f"no score: {score.failure}", name)
            if score.explanation:
                yield _Line("remark", _shorten(score.explanation, full=full), name)
        if not shared:
            yield from _list_references(output, full=full)
    if shared:
        yield from _list_references(first, full=full)


def _describe_gap(part: TextPart) -> str:
    return f"… {part.end - part.start:,} characters …"


def _context_of(output: ScoredOutput) -> tuple[Any, ...] | None:
    record = output.record
    return (record.instruction, record.source, record.references) if record else None


def _list_context(output: ScoredOutput) -> Iterator[_NamedText]:
    """What the output answers."""
    record = output.record
    if record and record.instruction:
        yield _NamedText("instruction", record.instruction)
    if record and record.source:
        yield _NamedText("source", record.source, locate_errors(output.number_errors()[0], "source"))


def _list_references(output: ScoredOutput, *, full: bool) -> Iterator[_Line | _NamedText]:
    """The references, which may be many: the first ones, and how many are left out."""
    references = output.record.references if output.record else ()
    shown = len(references) if full else min(len(references), _MAX_REFERENCES)
    for number, reference in enumerate(references[:shown], 1):
        yield _NamedText("reference" if len(references) == 1 else f"reference {number}", reference)
    if shown < len(references):
        yield _Line("remark", f"… and {format_count(len(references) - shown, 'more reference')} (--full)")


def _list_scores(output: ScoredOutput, decimals: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Each metric's score with the percentile that matters here, then people's mean ratings."""
    for name, score in output.scores.items():
        value = format_number(score.value, decimals.get(name, 3))
        percentile = f" (percentile {output.percentiles[name]:.0f})" if name in output.percentiles else ""
        yield name, f"{value}{percentile}"
    for aspect, (mean, count) in output.ratings.items():
        yield f"{PEOPLE}: {aspect}", f"{mean:.3g} ({format_count(count, 'rating')})"
    if PEOPLE in output.percentiles:
        yield PEOPLE, f"(percentile {output.percentiles[PEOPLE]:.0f})"


def _shorten(text: str, *, full: bool) -> str:
    """A remark without its middle where that is long."""
    parts = split_text(text, (), longest=None if full else _LONGEST, context=_REMARK_CONTEXT)
    return "\n".join(text[part.start : part.end] if part.shown else _describe_gap(part) for part in parts)


# ---- Plain text


def _render_text(worst: WorstOutputs, width: int, *, full: bool) -> str:
    blocks = [[escape_controls(worst.title)]]
    marked = False
    for rank, entry in enumerate(worst.entries, 1):
        lines: list[str] = []
        for line in _compose(rank, entry, worst.decimals, full=full):
            if isinstance(line, _NamedText):
                lines += [f"   {line.name}:", *_render_named_text(line, width, full=full)]
                marked = marked or bool(line.errors)
            elif line.kind == "entry":
                lines.append(escape_controls(line.text))
            else:
                number = f"{line.error[0]}. " if line.error else ""
                text = f"{number}{f'{line.name}: ' if line.name else ''}{line.text}"
                lines += (f"   {wrapped}" for wrapped in mark_lines(text, (), width - 3))
        blocks.append(lines)
    if worst.failures:
        blocks.append(["Not scored:", *(f"  {escape_controls(one.describe_failure())}" for one in worst.failures)])
    blocks.append([*map(escape_controls, worst.notes), *([LEGEND] if marked else [])])
    return "\n\n".join("\n".join(lines) for lines in blocks if lines)


def _render_named_text(named: _NamedText, width: int, *, full: bool) -> Iterator[str]:
    spans = [(e.start or 0, e.end or 0, f"{n}", MARKS[rank_severity(e)]) for n, e in named.errors]
    for part in named.parts(full=full):
        if not part.shown:
            yield f"     {_describe_gap(part)}"
            continue
        inside = [(s - part.start, e - part.start, n, m) for s, e, n, m in spans if part.start <= s <= part.end]
        for line in mark_lines(named.text[part.start : part.end], inside, width - 5):
            yield f"     {line}".rstrip()


# ---- Terminal


def _render_rich(worst: WorstOutputs, *, full: bool) -> RenderResult:
    from rich.padding import Padding
    from rich.text import Text

    # Text objects, not strings: rich would interpret a name such as [red] as markup.
    styles = {"entry": "bold", "system": "bold", "scores": "cyan"}
    yield Text(f"{escape_controls(worst.title)}\n", style="bold")
    for rank, entry in enumerate(worst.entries, 1):
        for line in _compose(rank, entry, worst.decimals, full=full):
            if isinstance(line, _NamedText):
                longest = None if full else _LONGEST
                yield Text(f"   {line.name}:", style="italic dim")
                yield Padding(draw_errors(line.text, line.errors, longest=longest, context=_CONTEXT), (0, 0, 0, 5))
                continue
            drawing = Text()
            if line.error:
                style = STYLES[rank_severity(line.error[1])].replace("underline ", "")
                drawing.append(f"{line.error[0]}. ", style=style)
            if line.name:
                drawing.append(f"{escape_controls(line.name)}: ", style="bold")
            drawing.append("\n".join(map(escape_controls, line.text.split("\n"))), style=styles.get(line.kind, ""))
            yield drawing if line.kind == "entry" else Padding(drawing, (0, 0, 0, 3))
        yield Text("")
    if worst.failures:
        yield Text("Not scored:", style="bold")
        for failed in worst.failures:
            yield Text(f"  {escape_controls(failed.describe_failure())}")
        yield Text("")
    if worst.notes:
        yield Text("\n".join(map(escape_controls, worst.notes)), style="dim")


# ---- Markdown


def _render_markdown(worst: WorstOutputs, *, full: bool) -> str:
    forms = {"entry": "### {}", "system": "**{}**"}
    blocks = [f"## {markdown_text(worst.title)}"]
    for rank, entry in enumerate(worst.entries, 1):
        for line in _compose(rank, entry, worst.decimals, full=full):
            if isinstance(line, _NamedText):
                blocks.append(_quote(line, full=full))
            elif line.error:
                blocks.append(f"- [{line.error[0]}] {markdown_text(line.text)}")
            else:
                text = markdown_text(" ".join(line.text.split()))
                name = f"*{markdown_text(line.name)}*: " if line.name else ""
                blocks.append(name + forms.get(line.kind, "{}").format(text))
    if worst.failures:
        blocks += ["### Not scored", *(f"- {markdown_text(failed.describe_failure())}" for failed in worst.failures)]
    return "\n\n".join([*blocks, *map(markdown_text, worst.notes)])


def markdown_text(text: str) -> str:
    return escape_markdown(escape_controls(text))


def _quote(named: _NamedText, *, full: bool) -> str:
    """A text as a quotation, with errors in bold and their numbers after them."""
    shown = ""
    for piece, numbers, severity in named.pieces(full=full):
        text = "\n".join(map(markdown_text, piece.split("\n")))
        # A space at the edge or a line break inside would end the bold text.
        bold = severity is not None and text and text.strip() == text and "\n" not in text
        shown += f"**{text}**" if bold else text
        shown += "".join(f" [{number}]" for number in numbers)
    # Two spaces at the end of a line keep the line break.
    return "\n".join([f"> *{named.name}*  ", *(f"> {line}  " if line else ">" for line in shown.split("\n"))])


# ---- HTML. No script, nothing loaded from elsewhere, light or dark as the browser prefers.

_STYLE = """
.metrist-worst { --ink: #1c1c1e; --paper: #fff; --soft: #5b5b60; --rule: #d9d9de; --major: #ffd9d6; --minor: #fff3c4;
  --other: #d9ebff; color: var(--ink); background: var(--paper); font: 1rem/1.6 system-ui, sans-serif; }
@media (prefers-color-scheme: dark) { .metrist-worst { --ink: #ececf0; --paper: #17171a; --soft: #a5a5ad;
  --rule: #3a3a40; --major: #6b1f1a; --minor: #4d430f; --other: #17395c; } }
.metrist-worst h1 { font-size: 1.5rem; margin: 0 0 .5rem; overflow-wrap: anywhere; }
.metrist-worst h2 { font-size: 1.05rem; margin: 0; overflow-wrap: anywhere; }
.metrist-worst h3 { font-size: 1rem; margin: .8rem 0 0; overflow-wrap: anywhere; }
.metrist-worst article { border-top: 1px solid var(--rule); padding: 1rem 0; }
.metrist-worst p, .metrist-worst ol, .metrist-worst ul { margin: .3rem 0; overflow-wrap: anywhere; }
.metrist-worst .soft { color: var(--soft); font-size: .9rem; }
.metrist-worst dl { display: grid; grid-template-columns: 6rem 1fr; gap: .2rem 1rem; margin: .5rem 0; }
.metrist-worst dt { color: var(--soft); }
.metrist-worst dd { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; min-width: 0; }
.metrist-worst mark { color: inherit; border-radius: 3px; }
.metrist-worst mark.major { background: var(--major); border-bottom: 2px solid; }
.metrist-worst mark.minor { background: var(--minor); border-bottom: 2px dotted; }
.metrist-worst mark.other { background: var(--other); border-bottom: 1px dashed; }
"""


def _html(text: str) -> str:
    return "<br>".join(escape(escape_controls(line)) for line in text.split("\n"))


def _render_body(worst: WorstOutputs, *, full: bool) -> str:
    forms = {"entry": "<h2>{}</h2>", "system": "<h3>{}</h3>", "scores": '<p class="scores">{}</p>'}
    parts = [f"<h1>{_html(worst.title)}</h1>", *(f'<p class="soft">{_html(note)}</p>' for note in worst.notes)]
    for rank, entry in enumerate(worst.entries, 1):
        parts.append("<article>")
        for line in _compose(rank, entry, worst.decimals, full=full):
            if isinstance(line, _NamedText):
                parts.append(_render_html_text(line, full=full))
            elif line.error:
                parts.append(f"<p>[{line.error[0]}] {_html(line.text)}</p>")
            else:
                name = f'<span class="soft">{_html(line.name)}:</span> ' if line.name else ""
                parts.append(forms.get(line.kind, "<p>{}</p>").format(name + _html(line.text)))
        parts.append("</article>")
    if worst.failures:
        listed = "".join(f"<li>{_html(failed.describe_failure())}</li>" for failed in worst.failures)
        parts.append(f"<article><h2>Not scored</h2><ul>{listed}</ul></article>")
    return "\n".join([*parts, ""])


def _render_html_text(named: _NamedText, *, full: bool) -> str:
    shown = ""
    for piece, numbers, severity in named.pieces(full=full):
        text = _html(piece)
        shown += text if severity is None else f'<mark class="{_SEVERITY_CLASSES[severity]}">{text}</mark>'
        shown += "".join(f"<sup>[{number}]</sup>" for number in numbers)
    # dir="auto" lets the browser set each text in its own direction.
    return f'<dl><dt>{named.name}</dt><dd dir="auto">{shown}</dd></dl>'
