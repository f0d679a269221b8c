"""Lists of outputs as `worst`, `explain` and `heat` show them, in every form."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from metrist.errors import RunError, did_you_mean, escape_controls, label_item
from metrist.records import TAG_FIELDS
from metrist.report.card_text import (
    LEGEND,
    WIDTH,
    CardElement,
    compose_entry,
    compose_explained,
    compose_heat,
    markdown_text,
    render_markdown,
    render_plain,
    render_rich,
    share_context,
)
from metrist.report.cells import or_none
from metrist.report.heat import READING_FIELDS, STEPS, ColourStep, Reading
from metrist.report.html import render_fragment, render_page
from metrist.report.output_card import MarkedText, OutputCard, error_row, find_changes
from metrist.scores import Score, Scores

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

FORMATS = ("text", "markdown", "json", "html")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstEntry:
    """One output, or two of the same item, and what it was ranked by: `value`, and `reason` in words."""

    outputs: tuple[OutputCard, ...]
    value: float
    reason: str = ""

    def compare_outputs(self) -> list[tuple[OutputCard, Sequence[tuple[int, int]]]]:
        """Each output with the stretches that the other one does not have; none where there is one, or a third."""
        changes: Sequence[Sequence[tuple[int, int]]] = [() for _ in self.outputs]
        texts = [card.output for card in self.outputs]
        if len(texts) == 2 and texts[0] is not None and texts[1] is not None:
            changes = find_changes(texts[0], texts[1])
        return list(zip(self.outputs, changes, strict=True))

    def list_questions(self, **cut: Any) -> list[MarkedText]:
        """The instructions of the outputs, each once."""
        texts = (card.mark_text("instruction", **cut) for card in self.outputs)
        return list({text.text: text for text in texts if text}.values())

    def list_contexts(self) -> Sequence[OutputCard]:
        """The outputs whose source and references are shown: the first alone where they share them."""
        first, *others = self.outputs
        return [first, *(other for other in others if other.record and not share_context(first, other))]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorstOutputs:
    """What `worst` selected, the first being the worst. `failures` are outputs that could not be ranked because the
    metric has no score of them; `decimals` says how precisely a metric's scores are shown. Texts are shortened unless
    `full`, except in JSON; `how_full` is what readers are told to set for that."""

    title: str
    entries: Sequence[WorstEntry]
    failures: Sequence[OutputCard] = ()
    notes: Sequence[str] = ()
    decimals: Mapping[str, int] = field(default_factory=dict)
    full: bool = False
    how_full: str = "full=True"

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[WorstEntry]:
        return iter(self.entries)

    def __repr__(self) -> str:
        return f"WorstOutputs({self.title!r}, {len(self)} shown)"

    def render(self, form: str = "text", *, full: bool = False) -> str:
        """The outputs in one of the `FORMATS`, with whole texts if `full`."""
        if full and not self.full:
            return replace(self, full=True).render(form)
        match form:
            case "text":
                return self.text()
            case "markdown":
                blocks = [f"## {markdown_text(self.title)}"]
                for lines in self._compose():
                    blocks += render_markdown(lines)
                if self.failures:
                    blocks.append("### Not scored")
                blocks += [f"- {markdown_text(card.describe_failure())}" for card in self.failures]
                return "\n\n".join([*blocks, *map(markdown_text, self.notes)])
            case "json":
                return json.dumps(self.to_dict(), indent=2, ensure_ascii=False)
            case "html":
                return render_page("worst.html", title=self.title, worst=self)
        hint = did_you_mean(form, FORMATS)
        raise RunError(f"no format {form!r}; known are {', '.join(FORMATS)}{hint}", code="unknown_name")

    def text(self, width: int = WIDTH, *, full: bool = False) -> str:
        """Plain text: each error is underlined on a line below, beginning with its number."""
        if full and not self.full:
            return replace(self, full=True).text(width)
        blocks, marked = [[escape_controls(self.title)]], False
        for lines in self._compose():
            shown = list(lines)
            marked = marked or any(isinstance(line, MarkedText) and line.errors for line in shown)
            blocks.append(list(render_plain(shown, width)))
        if self.failures:
            blocks.append(["Not scored:", *(f"  {escape_controls(card.describe_failure())}" for card in self.failures)])
        blocks.append([*map(escape_controls, self.notes), *([LEGEND] if marked else [])])
        return "\n\n".join("\n".join(lines) for lines in blocks if lines)

    def _compose(self) -> Iterator[Iterator[CardElement]]:
        for rank, entry in enumerate(self.entries, 1):
            yield compose_entry(
                rank, entry.outputs, entry.reason, self.decimals, full=self.full, how_full=self.how_full
            )

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
        return render_fragment("worst.html", worst=self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        yield Text(f"{escape_controls(self.title)}\n", style="bold")
        for lines in self._compose():
            yield from render_rich(lines)
            yield Text("")
        if self.failures:
            yield Text("Not scored:", style="bold")
            for card in self.failures:
                yield Text(f"  {escape_controls(card.describe_failure())}")
            yield Text("")
        if self.notes:
            yield Text("\n".join(map(escape_controls, self.notes)), style="dim")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Explanations:
    """Explained outputs, with notes on what is shown."""

    outputs: Sequence[OutputCard]
    notes: Sequence[str] = ()

    def text(self, width: int = WIDTH) -> str:
        """Plain text: each error is underlined on a line below, beginning with its number."""
        blocks = ["\n".join(render_plain(compose_explained(card), width)) for card in self.outputs]
        marked = any(card.errors for card in self.outputs) or not any(card.reasons for card in self.outputs)
        return "\n\n".join([*blocks, "\n".join([*self.notes, *([LEGEND] if marked else [])])]).rstrip()

    def rows(self) -> Iterator[dict[str, Any]]:
        """One plain row per output, with offsets, which metrist reads as a record with errors."""
        for card in self.outputs:
            score = card.scores[card.by] if card.by is not None else None
            facts = {name: getattr(card.record, name, None) for name in ("source", "output", *TAG_FIELDS)}
            facts |= {"failure": card.failure, "note": card.note, "raw": score.raw if score else None}
            yield {
                "item": card.item,
                "system": card.system,
                **{name: text for name, text in facts.items() if text is not None},
                **({"scores": {card.by: score.value}} if score and not math.isnan(score.value) else {}),
                **({"reasons": card.reasons} if card.reasons else {}),
                "errors": [error_row(error) for error in card.errors],
            }

    def __str__(self) -> str:
        return self.text()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        for card in self.outputs:
            yield from render_rich(compose_explained(card))
            yield Text("")
        if self.notes:
            yield Text("\n".join(self.notes), style="dim")


_WORD_LEGEND = (
    "In brackets: words with a probability below .01, and their log-probability: the sum over the pieces that the "
    "model reads."
)
_PIECE_LEGEND = "In brackets: pieces with a probability below .01, and their log-probability."


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Heat:
    """Outputs with the probabilities of their words, or of their pieces as the model reads them; and notes."""

    outputs: Sequence[OutputCard]
    notes: Sequence[str] = ()
    pieces: bool = False

    #: The scale of the colours.
    steps: ClassVar[Sequence[ColourStep]] = STEPS

    def text(self) -> str:
        """Plain text: a word below .01 stands in brackets, with its log-probability."""
        outputs = ("\n".join(render_plain(compose_heat(card, by_piece=self.pieces), WIDTH)) for card in self.outputs)
        return "\n\n".join([*outputs, "\n".join([*self.notes, _PIECE_LEGEND if self.pieces else _WORD_LEGEND])])

    def page(self) -> str:
        """One self-contained HTML page."""
        return render_page("heat.html", title=f"{self.unit.title()}s by how unlikely they are", heat=self)

    @property
    def unit(self) -> str:
        return "piece" if self.pieces else "word"

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return render_fragment("heat.html", heat=self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        legend = Text()
        for step in STEPS:
            legend.append(f" {step.label} ", style=step.style)
            legend.append("  ")
        yield legend
        for card in self.outputs:
            yield Text("")
            yield from render_rich(compose_heat(card, by_piece=self.pieces))
        yield Text("\n" + "\n".join(self.notes))


def build_heat(
    items: Sequence[str],
    systems: Sequence[str],
    columns: Sequence[tuple[Any, Scores]],
    *,
    item: str | None,
    system: str | None,
    limit: int,
    pieces: bool = False,
) -> Heat:
    """The outputs with scores of single tokens, the worst of each metric first."""
    with_tokens = [(metric, scores) for metric, scores in columns if scores.tokens]
    if not with_tokens:
        texts = ", ".join(metric.label for metric, _ in columns)
        remedy = "score it again with --tokens (tokens=True), by a metric such as likelihood or bartscore"
        raise RunError(f"this run has no scores of single tokens by {texts}: {remedy}", code="no_data")
    for what, name, known in (("item", item, items), ("system", system, systems)):
        if name is not None and name not in known:
            hint = did_you_mean(name, dict.fromkeys(known))
            raise RunError(f"this run has no {what} {name!r}{hint}", code="unknown_name")
    outputs, notes = list[OutputCard](), list[str]()
    for metric, scores in with_tokens:
        chosen = [n for n in scores.tokens if item in (None, items[n]) and system in (None, systems[n])]
        sign = -1 if metric.higher_is_better is False else 1
        # A failed output may have readings too, but no value to be sorted by.
        chosen.sort(key=lambda n: (n in scores.failures, sign * scores.values[n]))
        for n in chosen[:limit]:
            try:
                readings = tuple(map(Reading.of, scores.tokens[n]))
            except (TypeError, KeyError, ValueError, AttributeError):
                place = f"{metric.label}, item {label_item(items[n])!r} of system {systems[n]!r}"
                expected = f"a list of readings, each with {', '.join(READING_FIELDS)}"
                raise RunError(f"{place}: scores of tokens must be {expected}", code="invalid_value") from None
            own = {metric.label: Score(value=float(scores.values[n]))}
            outputs.append(OutputCard(item=items[n], system=systems[n], by=metric.label, scores=own, readings=readings))
        if len(chosen) > limit:
            notes.append(f"{metric.label}: {limit:,} of {len(chosen):,} outputs, the worst first")
    return Heat(outputs=outputs, notes=notes, pieces=pieces)
