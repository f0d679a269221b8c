"""What `explain` shows: outputs with their errors underlined and the reasons below, and as rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from metrist.report.card_text import LEGEND, WIDTH, compose_explained, render_plain, render_rich
from metrist.report.output_card import OutputCard, error_row

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult


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
        """One plain row per output, with offsets."""
        return map(_make_row, self.outputs)

    def __str__(self) -> str:
        return self.text()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        for card in self.outputs:
            yield from render_rich(compose_explained(card))
            yield Text("")
        if self.notes:
            yield Text("\n".join(self.notes), style="dim")


def _make_row(card: OutputCard) -> dict[str, Any]:
    """A plain row, which metrist reads as a record with errors."""
    record, score = card.record, card.scores[card.by] if card.by is not None else None
    texts = {name: getattr(record, name, None) for name in ("source", "output", "task", "language")}
    answer = {"failure": card.failure, "note": card.note, "raw": score.raw if score else None}
    return {
        "item": card.item,
        "system": card.system,
        **{name: text for name, text in {**texts, **answer}.items() if text is not None},
        **({"scores": {card.by: score.value}} if score and not math.isnan(score.value) else {}),
        **({"reasons": card.reasons} if card.reasons else {}),
        "errors": [error_row(error) for error in card.errors],
    }
