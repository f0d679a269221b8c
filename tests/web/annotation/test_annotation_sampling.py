"""Samples of outputs and pairs: probabilities, weights, strata, and where metrics disagree."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

import metrist
from annotation_projects import make_project, make_rows
from error_codes import raises_code
from metrist.errors import InputError, RunError
from metrist.io import read_records
from metrist.web.annotation.project import AnnotationTask
from metrist.web.annotation.sampling import (
    Pick,
    draw_systematic,
    inclusion_probabilities,
    list_units,
    measure_disagreement,
    sample_units,
)


def units(items: int = 20, pairs: bool = False) -> list[AnnotationTask]:
    return list_units(list(read_records(make_rows(items))), pairs=pairs)


def test_units_are_outputs_or_pairs_of_different_outputs_of_an_item() -> None:
    assert len(units(4)) == 12
    made = units(4, pairs=True)
    assert [unit.systems for unit in made[:3]] == [("a", "b"), ("a", "c"), ("b", "c")]
    same = [{"item": "1", "system": s, "output": "equal"} for s in "ab"]
    with raises_code(InputError, "too_little_data"):
        list_units(list(read_records(same)), pairs=True)


def test_systematic_draws_have_exactly_the_probabilities() -> None:
    sizes = np.array([1.0, 2, 3, 10, 1, 4, 30, 1])
    probability = inclusion_probabilities(sizes, 4)
    assert probability.sum() == pytest.approx(4)
    assert probability.max() == 1.0
    rng = np.random.default_rng(0)
    drawn = np.zeros(len(sizes))
    for _ in range(5000):
        chosen = draw_systematic(probability, rng)
        assert len(chosen) == 4
        drawn[chosen] += 1
    # 0.03 is more than four standard errors.
    assert np.abs(drawn / 5000 - probability).max() < 0.03


@pytest.mark.parametrize("pick", ["random", "items", "system", "disagreement"])
@pytest.mark.parametrize("pairs", [False, True])
def test_weighted_totals_estimate_those_of_everything(pick: Pick, pairs: bool) -> None:
    rows = make_rows(12)[:-4]  # The systems have different numbers of outputs.
    everything = list_units(list(read_records(rows)), pairs=pairs)
    values = {id(unit.records): hash_value(unit) for unit in everything}
    disagreement = {f"i{number}": float(number % 4) for number in range(1, 13)}
    rng = np.random.default_rng(1)
    totals, counts = [], []
    for _ in range(600):
        chosen = sample_units(everything, 9, pick, rng, disagreement)
        totals.append(sum(unit.weight * values[id(unit.records)] for unit in chosen))
        counts.append(sum(unit.weight for unit in chosen))
    for estimates, truth in ((totals, sum(values.values())), (counts, len(everything))):
        error = np.std(estimates) / len(estimates) ** 0.5
        assert abs(np.mean(estimates) - truth) <= 4 * error + 1e-9


def hash_value(unit: AnnotationTask) -> float:
    return 1.0 + len(unit.item) + sum(map(ord, "".join(unit.systems))) % 7


def test_strata_are_even_and_all_is_all() -> None:
    rng = np.random.default_rng(0)
    chosen = sample_units(units(20), 12, "system", rng)
    assert Counter(unit.systems for unit in chosen) == {("a",): 4, ("b",): 4, ("c",): 4}
    assert {unit.weight for unit in chosen} == {5.0}
    assert [unit.weight for unit in sample_units(units(4), None, "random", rng)] == [1.0] * 12
    with raises_code(InputError, "too_little_data", 2, 3):
        sample_units(units(20), 2, "system", rng)


def test_disagreement_needs_a_run_and_two_metrics(tmp_path: Path) -> None:
    with raises_code(RunError, "missing_value", "`run`"):
        make_project(tmp_path, pick="disagreement")
    with raises_code(RunError, "too_little_data", "chrf"):
        measure_disagreement(metrist.score(make_rows(3), ["chrf"]))


def test_disagreement_is_the_share_of_pairs_that_metrics_order_differently() -> None:
    rows = make_rows(5)
    for row, word in zip(rows, ["A", "A reference", "for 1."] * 5, strict=True):
        row["output"] = f"{word} {row['output']}"
    results = metrist.score(rows, ["chrf", "bleu", "length"])
    columns = {label: list(results[label].values) for label in results.scores}
    disagreement = measure_disagreement(results)
    for number, item in enumerate(dict.fromkeys(results.items)):
        own = range(3 * number, 3 * number + 3)
        gaps = []
        for one, other in combinations(columns.values(), 2):
            for a, b in combinations(own, 2):
                gaps.append(abs(np.sign(one[a] - one[b]) - np.sign(other[a] - other[b])) / 2)
        assert disagreement[item] == pytest.approx(np.mean(gaps))


def test_items_with_one_output_disagree_by_rank() -> None:
    results = metrist.score(make_rows(6, systems=("a",)), ["chrf", "length"])
    disagreement = measure_disagreement(results)
    assert set(disagreement) == {f"i{number}" for number in range(1, 7)}
    assert all(value >= 0 for value in disagreement.values())
