"""What an error analyst learns from each part of its data: one training per channel or task, and one on everything, all
evaluated on the same held-out data (TIGERScore paper, Figure 3 and Table 6)."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Literal

from metrist.errors import InputError, RunError, format_count
from metrist.io.writer import atomic_write
from metrist.report.tables import Table, name_columns
from metrist.train.distributed import is_first_process
from metrist.train.error_analysis import TRAINED, ErrorAnalysisTask
from metrist.train.fit import fit
from metrist.train.task import NoCallback, TrainingCallback

Part = Literal["channel", "task"]
#: The training on everything.
ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A training on some of the data; `values` are its channels or tasks (none: everything)."""

    name: str
    values: tuple[str, ...]
    analyses: int


def plan_ablation(task: ErrorAnalysisTask, part: Part) -> list[Variant]:
    """One training per channel or task of the data, and one on everything. Values without a single error are no
    trainings of their own: they would teach to find none."""
    if task.evaluate is None:
        raise RunError("an ablation compares figures on held-out data: leave out `eval_outputs=0`", code="conflict")
    data = task.load_data()
    find_value = attrgetter(part)
    counts = Counter(map(find_value, data.train))
    with_errors = {find_value(analysis) for analysis in data.train if "\n" in analysis.completion}
    chosen = [value for value, _ in counts.most_common() if value in with_errors and value is not None]
    if len(chosen) < 2:
        raise InputError(
            f"the training data has {format_count(len(chosen), part)} with errors ({', '.join(chosen) or 'none'}); an "
            f"ablation by {part} needs at least two",
            code="too_little_data",
        )
    for value in chosen:
        if value in (ALL, ".", "..") or set(value) & set("/\\\0"):
            raise InputError(f"the {part} {value!r} cannot be the name of a folder; rename it in the data")
    variants = [Variant(name=value, values=(value,), analyses=counts[value]) for value in chosen]
    return [*variants, Variant(name=ALL, values=(), analyses=len(data.train))]


def run_ablation(
    task: ErrorAnalysisTask,
    part: Part,
    progress: Callable[[Variant], AbstractContextManager[TrainingCallback]] | None = None,
) -> Table:
    """Run or resume the trainings, each in a folder of its own under that of the task, and return the table of their
    figures, which is also written as `ablation.md` and `ablation.json`. `progress` opens a callback per training."""
    if (task.out / "training.json").is_file():
        raise RunError(f"{task.out} holds a single training; give another `out` for the ablation", code="cannot_write")
    variants = plan_ablation(task, part)
    cards: dict[str, Mapping[str, Any]] = {}
    for variant in variants:
        selection: Mapping[str, Any] = {"channels" if part == "channel" else "tasks": variant.values}
        own = replace(task, out=task.out / variant.name, **selection)
        with progress(variant) if progress else nullcontext(NoCallback()) as callback:
            cards[variant.name] = fit(own, callback)
    table = make_table(variants, cards, part)
    if is_first_process():
        with atomic_write(task.out / "ablation.md") as file:
            file.write(table.render("markdown") + "\n")
        with atomic_write(task.out / "ablation.json") as file:
            file.write(json.dumps(table.to_dict(), indent=2) + "\n")
    return table


def make_table(variants: Sequence[Variant], cards: Mapping[str, Mapping[str, Any]], part: Part) -> Table:
    """One row per training: how much it learned from, how many answers can be read, F1 of the errors, and Spearman's
    correlation by task with its mean. An ablation by task ends with the paper's comparison: each task's own training
    against the one on everything."""
    figures = {variant.name: _collect(cards[variant.name]) for variant in variants}
    tasks = list(dict.fromkeys(task for one in figures.values() for task in one["tasks"]))
    rows: list[list[Any]] = []
    for variant in variants:
        own = figures[variant.name]
        values = [own["tasks"].get(task) for task in tasks]
        rows.append([variant.name, variant.analyses, own["read"], own["f1"], *values, _mean(values)])
    notes = [
        f"Spearman's correlation by task: the mean over ratings and sets, all trainings on the same held-out data. A "
        f"training by {part} also has fewer analyses than one on everything."
    ]
    if part == "task":
        single = [figures[task]["tasks"].get(task) if task in figures else None for task in tasks]
        multi = [figures[ALL]["tasks"].get(task) for task in tasks]
        rows.append(["single task", None, None, None, *single, _mean(single)])
        rows.append(["multi task", None, None, None, *multi, _mean(multi)])
        change = [_relative(*pair) for pair in zip(multi, single, strict=True)]
        rows.append(["change, %", None, None, None, *change, _relative(_mean(multi), _mean(single))])
        notes.append("single task: each task judged by the training on it alone (TIGERScore paper, Table 6).")
    return Table(
        title=f"Error analysts by {part} of their training data",
        columns=name_columns(part, right=("analyses", "read", "F1", *(f"{task} ρ" for task in tasks), "mean ρ")),
        rows=[[round(cell, 3) if isinstance(cell, float) else cell for cell in row] for row in rows],
        notes=notes,
    )


def _collect(card: Mapping[str, Any]) -> dict[str, Any]:
    results = card.get("evaluation", {}).get("models", {}).get(TRAINED, ())
    tasks: dict[str, list[float]] = {}
    for result in results:
        for task, own in result["by_task"].items():
            if own["spearman"] is not None:
                tasks.setdefault(task, []).append(own["spearman"])
    return {
        "read": _mean([result["parse_rate"] for result in results]),
        "f1": _mean([result["spans"]["f1"] for result in results if result["spans"]]),
        "tasks": {task: _mean(values) for task, values in tasks.items()},
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _relative(value: float | None, base: float | None) -> float | None:
    return None if value is None or not base else 100 * (value - base) / abs(base)
