"""The outputs that `worst` selects, with texts, scores and reasons, in every form."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from metrist.errors import RunError, did_you_mean, escape_controls
from metrist.report.card_text import (
    LEGEND,
    WIDTH,
    Lines,
    compose_entry,
    markdown_text,
    render_markdown,
    render_plain,
    render_rich,
    share_context,
)
from metrist.report.cells import or_none
from metrist.report.html import render_fragment, render_page
from metrist.report.output_card import MarkedText, OutputCard, find_changes

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

    def list_contexts(self) -> Sequence[OutputCard]:
        """The outputs whose source and references are shown: the first alone where they share them."""
        first, *others = self.outputs
        return [first, *(other for other in others if other.record and not share_context(first, other))]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorstOutputs:
    """What `worst` selected, the first being the worst. `failures` are outputs that could not be ranked because the
    metric has no score of them; `decimals` says how precisely a metric's scores are shown."""

    title: str
    entries: Sequence[WorstEntry]
    failures: Sequence[OutputCard] = ()
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
                return self.text(full=full)
            case "markdown":
                return self._markdown(full=full)
            case "json":
                return json.dumps(self.to_dict(), indent=2, ensure_ascii=False)
            case "html":
                return render_page("worst.html", title=self.title, worst=self, full=full)
        raise RunError(f"no format {form!r}; known are {', '.join(FORMATS)}{did_you_mean(form, FORMATS)}")

    def text(self, width: int = WIDTH, *, full: bool = False) -> str:
        """Plain text: each error is underlined on a line below, beginning with its number."""
        blocks, marked = [[escape_controls(self.title)]], False
        for lines in self._compose(full=full):
            shown = list(lines)
            marked = marked or any(isinstance(line, MarkedText) and line.errors for line in shown)
            blocks.append(list(render_plain(shown, width)))
        if self.failures:
            blocks.append(["Not scored:", *(f"  {escape_controls(card.describe_failure())}" for card in self.failures)])
        blocks.append([*map(escape_controls, self.notes), *([LEGEND] if marked else [])])
        return "\n\n".join("\n".join(lines) for lines in blocks if lines)

    def _markdown(self, *, full: bool) -> str:
        blocks = [f"## {markdown_text(self.title)}"]
        for lines in self._compose(full=full):
            blocks += render_markdown(lines)
        if self.failures:
            blocks += ["### Not scored", *(f"- {markdown_text(card.describe_failure())}" for card in self.failures)]
        return "\n\n".join([*blocks, *map(markdown_text, self.notes)])

    def _compose(self, *, full: bool) -> Iterator[Lines]:
        for rank, entry in enumerate(self.entries, 1):
            yield compose_entry(rank, entry.outputs, entry.reason, self.decimals, full=full)

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
        return render_fragment("worst.html", worst=self, full=False)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        return TerminalPage(self, full=False).__rich_console__(console, options)


@dataclass(frozen=True, slots=True, eq=False)
class TerminalPage:
    """The outputs as rich draws them, with whole texts if `full`."""

    worst: WorstOutputs
    full: bool

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        worst = self.worst
        yield Text(f"{escape_controls(worst.title)}\n", style="bold")
        for lines in worst._compose(full=self.full):
            yield from render_rich(lines)
            yield Text("")
        if worst.failures:
            yield Text("Not scored:", style="bold")
            for card in worst.failures:
                yield Text(f"  {escape_controls(card.describe_failure())}")
            yield Text("")
        if worst.notes:
            yield Text("\n".join(map(escape_controls, worst.notes)), style="dim")

    def text(self) -> str:
        return self.worst.text(full=self.full)
