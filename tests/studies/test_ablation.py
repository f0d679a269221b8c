"""Ablations of an error analyst: which trainings there are, and the table of their figures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from error_codes import raises_code
from metrist.errors import InputError, RunError
from metrist.models.devices import Options
from metrist.studies.ablation import ALL, Variant, make_table, plan_ablation, run_ablation
from metrist.train.error_analysis import TRAINED, ErrorAnalysisTask
from metrist.train.recipe import Recipe
from toy_analyses import make_row, write_rows


def make_card(read: float, f1: float | None, **tasks: float | None) -> dict[str, Any]:
    names = ("f1", "f1_low", "f1_high", "precision", "recall", "whole_text_f1")
    result = {
        "set": "held-out analyses",
        "outputs": 5,
        "references": 0,
        "parse_rate": read,
        "spans": None if f1 is None else {**dict.fromkeys(names, f1), "human_errors": 3},
        "severity": None,
        "ratings": [],
        "gold": None,
        "gold_by_task": {},
        "by_task": {task: {"outputs": 5, "spearman": value} for task, value in tasks.items()},
    }
    return {"evaluation": {"models": {TRAINED: [result]}}}


def list_rows(table: Any) -> dict[str, list[Any]]:
    return {row[0]: list(row[1:]) for row in table.rows}


def test_single_tasks_are_compared_with_all_tasks() -> None:
    """The last rows of Table 6 of the TIGERScore paper: 37.75 and 40.71, a change of 7.84 %."""
    tasks = ("summ", "trans", "d2t", "lfqa", "math", "inst")
    single = (35.55, 41.65, 39.75, 41.60, 26.75, 41.19)
    multi = (36.81, 44.99, 45.88, 46.22, 23.32, 47.03)
    changes = (3.56, 8.02, 15.43, 11.09, -12.83, 14.18)
    cards = {
        task: make_card(1.0, None, **{other: value if other == task else 0.1 for other in tasks})
        for task, value in zip(tasks, single, strict=True)
    }
    cards[ALL] = make_card(0.5, 0.25, **dict(zip(tasks, multi, strict=True)))
    variants = [Variant(name=name, values=(), analyses=10) for name in cards]
    rows = list_rows(make_table(variants, cards, "task"))
    assert rows["single task"][3:] == pytest.approx([*single, 37.75], abs=0.006)
    assert rows["multi task"][3:] == pytest.approx([*multi, 40.71], abs=0.006)
    # The paper truncates the change for summarization (3.54).
    assert rows["change, %"][3:] == pytest.approx([*changes, 7.84], abs=0.03)
    assert rows[ALL][:3] == [10, 0.5, 0.25]


def test_channels_are_compared_on_the_same_data(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    rows = [
        {**make_row(number, bad=number % 2 == 0 and channel != "reference", channel=channel),
         "item": f"{channel}{number}", "source": f"{channel} {number}", "output": f"{channel} {number}", "errors": []}
        for number in range(12) for channel in ("human", "synthetic", "reference")
    ]  # fmt: skip
    data = write_rows(tmp_path / "data.jsonl", rows)
    seen: list[tuple[dict[str, str], int]] = []

    def evaluate(metrics: Any, held_out: Any) -> dict[str, Any]:
        seen.append((dict(metrics), len(held_out)))
        return make_card(1.0, 0.1 * len(seen), summarization=0.2)["evaluation"] | {"remarks": []}

    task = ErrorAnalysisTask(
        data=(data,),
        dev="0.25",
        base=Options(model=str(tiny("analyst"))),
        out=tmp_path / "out",
        recipe=Recipe(epochs=1, batch=4, lr=1e-3, dtype="float32"),
        rank=2,
        evaluate=evaluate,
    )
    variants = plan_ablation(task, "channel")
    assert {variant.name for variant in variants} == {"human", "synthetic", ALL}  # References alone teach nothing.
    assert variants[-1].analyses > sum(variant.analyses for variant in variants[:-1])
    table = run_ablation(task, "channel")
    assert {held_out for _, held_out in seen} == {9}
    assert list_rows(table)[ALL] == [variants[-1].analyses, 1.0, 0.3, 0.2, 0.2]
    assert json.loads((tmp_path / "out" / "ablation.json").read_text())
    cards = {name: json.loads((tmp_path / "out" / name / "card.json").read_text()) for name in ("human", ALL)}
    assert cards["human"]["data"]["by_channel"].startswith("human ")
    again = run_ablation(task, "channel")  # Finished trainings are not repeated.
    assert len(seen) == 3
    assert list_rows(again) == list_rows(table)
    with raises_code(InputError, "too_little_data", "summarization"):
        plan_ablation(task, "task")
    with raises_code(RunError, "conflict", "eval_outputs"):
        plan_ablation(ErrorAnalysisTask(data=(data,), base=task.base, out=tmp_path), "channel")
    (tmp_path / "out" / "training.json").write_text("{}")
    with raises_code(RunError, "cannot_write", "out"):
        run_ablation(task, "channel")
