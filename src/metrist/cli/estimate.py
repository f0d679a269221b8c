"""How a dry run is told: by every verb that asks LLMs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from metrist.llm.budget import Estimate, LLMEstimate
from metrist.report.cells import Count
from metrist.report.tables import Column, Table


@dataclass(frozen=True, slots=True)
class Dollars:
    """An amount of US dollars: `$0.0132`; None where no price is known."""

    value: float | None

    def __str__(self) -> str:
        if self.value is None:
            return "unknown"
        return f"${self.value:,.2f}" if self.value >= 1 or self.value == 0 else f"${self.value:.4f}"

    def plain(self) -> float | None:
        return self.value


def estimate_table(estimate: Estimate) -> Table:
    """One row per LLM."""
    names = ["LLM", "questions", "answered", "prompt tokens", "answer tokens", "cost from", "to"]
    return Table(
        title="Dry run: nothing was sent",
        columns=[Column(name, "right" if n else "left") for n, name in enumerate(names)],
        rows=[_row(asked) for asked in estimate.by_llm.values()],
        notes=list(_notes(estimate)),
    )


def _row(asked: LLMEstimate) -> list[object]:
    counts = (asked.calls, asked.answered, asked.prompt_tokens, asked.most_completion_tokens)
    return [asked.llm, *map(Count, counts), Dollars(asked.least_cost), Dollars(asked.most_cost)]


def _notes(estimate: Estimate) -> Iterator[str]:
    if not estimate.by_llm:
        yield "no metric asks an LLM"
        return
    yield (
        "answered: in the cache already, not asked again. Tokens and costs are of the rest: prompts about (4 bytes a "
        "token), answers at most; costs from the prompts alone to what --max-cost would never stop"
    )
    yield "questions that depend on answers to come (a second look at what was found) are not counted"
    for asked in estimate.by_llm.values():
        if asked.price is None:
            yield f"{asked.llm}: no price is known; a file named by METRIST_PRICES gives it (see docs/llm.md)"
        elif asked.price.seen:
            yield f"{asked.llm}: by the list price of {asked.price.seen}"
