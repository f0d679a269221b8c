"""Pairs from the scores or choices of a judge, and the agreement on held-out items."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm, spearmanr
from toy_training import StopAt

import metrist
from error_codes import raises_code
from metrist.errors import InputError, SpecError
from metrist.models.devices import Options
from metrist.records import Record
from metrist.train.distillation import (
    JUDGE,
    LENGTH,
    THIS_METRIC,
    DistillationTask,
    JudgedOutputs,
    compare_with_length,
    make_pairs,
    measure_agreement,
)
from metrist.train.fit import fit
from metrist.train.recipe import Recipe
from tiny_models import WORDS
from tiny_text_encoders import write_text_encoder


def make_records(items: int, systems: str = "ab", seed: int = 0) -> dict[tuple[str, str], Record]:
    rng = random.Random(seed)

    def text(length: int) -> str:
        return " ".join(rng.choices(WORDS[:30], k=length))

    records = {}
    for number in range(items):
        source, start = text(12), text(4)
        for system in systems:
            ending = "good" if system == systems[0] else "bad"
            record = Record(item=f"i{number}", system=system, source=source, output=f"{start} {ending} {system}")
            records[record.item, system] = record
    return records


def make_outputs(items: int = 40, systems: str = "ab", **facts: Any) -> JudgedOutputs:
    """The first system is the best one, by one point each."""
    records = make_records(items, systems)
    values = {key: float(-systems.index(key[1])) for key in records}
    return JudgedOutputs(**{"name": "judge", "records": records, "values": values, "instruction": "which ?", **facts})


def test_the_certainty_grows_with_the_difference() -> None:
    """By definition, the root mean square of the differences has certainty .9 of a normal distribution."""
    records = make_records(30, "abc")
    values = {key: {"a": 4.0, "b": 3.0, "c": 1.0}[key[1]] for key in records}
    data = make_pairs(make_outputs(records=records, values=values), None, seed=0)
    assert data.dev == []
    assert data.held_out is None
    certainties = {tuple(pair.systems or ()): pair.certainty for pair in data.train}
    deviation = ((1 + 4 + 9) / 3) ** 0.5 / norm.ppf(0.9)
    expected = {("a", "b"): 1, ("b", "c"): 2, ("a", "c"): 3}
    assert certainties == pytest.approx({pair: norm.cdf(gap / deviation) for pair, gap in expected.items()})


def test_spreads_lower_the_certainty() -> None:
    outputs = make_outputs(30)
    spreads = {key: 2.0 if key[0] == "i0" else 0.0 for key in outputs.records}
    data = make_pairs(make_outputs(30, spreads=spreads), None, seed=0)
    by_item = {pair.item: pair.certainty for pair in data.train}
    assert by_item["i1"] == pytest.approx(0.9)
    assert by_item["i0"] == pytest.approx(norm.cdf(1 / (1 / norm.ppf(0.9) ** 2 + 8) ** 0.5))


def test_equal_scores_are_ties() -> None:
    outputs = make_outputs(30)
    # The rounding of means is no difference.
    values = {**outputs.values, ("i0", "a"): 0.1 + 0.2, ("i0", "b"): 0.3}
    pairs = make_pairs(make_outputs(30, values=values), None, seed=0).train
    assert [pair.certainty == 0.5 for pair in pairs] == [pair.item == "i0" for pair in pairs]


def test_no_item_and_no_text_is_on_both_sides() -> None:
    outputs = make_outputs(60)
    # Two items have the same source.
    shared = "one text that two different items have in common"
    records = {
        key: Record(item=key[0], system=key[1], source=shared, output=record.output)
        if key[0] in ("i3", "i4")
        else record
        for key, record in outputs.records.items()
    }
    sides = []
    for seed in range(8):
        data = make_pairs(make_outputs(records=records, values=outputs.values), "0.25", seed=seed)
        items = [{pair.item for pair in pairs} for pairs in (data.train, data.dev)]
        assert not items[0] & items[1]
        assert sorted(map(len, items)) == [15, 45]
        assert {"i3", "i4"} <= items[0] or {"i3", "i4"} <= items[1]
        assert data.held_out is not None
        assert set(data.held_out.items) == items[1]
        sides.append("i3" in items[1])
    assert set(sides) == {True, False}


def test_choices_are_pairs_as_they_are() -> None:
    records = make_records(30)
    choices = {(f"i{n}", "a", "b"): float(n % 3 - 1) for n in range(30)}
    data = make_pairs(make_outputs(records=records, values={}, choices=choices), None, seed=0)
    assert {(pair.item, pair.systems, pair.certainty) for pair in data.train} == {
        (f"i{n}", ("b", "a") if n % 3 == 0 else ("a", "b"), 0.5 if n % 3 == 1 else 1.0) for n in range(30)
    }


def test_the_context_is_what_the_judge_saw() -> None:
    records = {key: replace(record, references=("a reference",)) for key, record in make_records(30).items()}
    for references, labels in ((False, ("source", "output")), (True, ("source", "reference", "output"))):
        pairs = make_pairs(make_outputs(records=records, references=references), None, seed=0).train
        assert {tuple(label for label, _ in pair.good) for pair in pairs} == {labels}
        assert {pair.instruction for pair in pairs} == {"which ?"}


def test_few_items_are_refused() -> None:
    with raises_code(InputError, "unreadable", "19", "20"):
        make_pairs(make_outputs(19), "0.2", seed=0)
    assert make_pairs(make_outputs(20), "0.2", seed=0).dev
    with raises_code(SpecError, "invalid_value", "`dev`"):
        make_pairs(make_outputs(), "dev.jsonl", seed=0)


def test_items_with_one_output_are_compared_across_on_request() -> None:
    records = make_records(50, "a")
    values = {key: float(number % 5) for number, key in enumerate(records)}
    outputs = make_outputs(records=records, values=values)
    with raises_code(InputError, "no_data"):
        make_pairs(outputs, "0.2", seed=0)
    data = make_pairs(outputs, "0.2", seed=0, across=True)
    assert any("which items score high" in note for note in data.notes)
    assert data.held_out is not None
    held_out = {record.output for record in data.held_out.records.values()}
    assert len(held_out) == 10
    assert all(not held_out & set(pair.answers) for pair in data.train)
    assert all(held_out >= set(pair.answers) for pair in data.dev)
    with raises_code(SpecError, "conflict"):
        make_pairs(make_outputs(), "0.2", seed=0, across=True)


def test_agreement_is_that_of_brute_force() -> None:
    rng = random.Random(4)
    records = make_records(25, "abcd")
    values, ratings, scores = ({key: float(rng.randint(1, most)) for key in records} for most in (3, 4, 50))
    del scores["i0", "a"]  # Failed: left out for all scorers.
    constant = dict.fromkeys(records, 1.0)
    outputs = make_outputs(records=records, values=values, ratings={"overall": ratings})
    rows = {
        (row.target, row.scorer): row for row in measure_agreement(outputs, {THIS_METRIC: scores, "length": constant})
    }
    cases = {
        ("judge", THIS_METRIC): (values, scores),
        ("judge", "length"): (values, constant),
        ("people: overall", JUDGE): (ratings, values),
        ("people: overall", THIS_METRIC): (ratings, scores),
        ("people: overall", "length"): (ratings, constant),
    }
    assert set(rows) == set(cases)
    for case, (target, scorer) in cases.items():
        points, correlations = [], []
        for number in range(25):
            keys = [key for key in records if key[0] == f"i{number}" and key in scores]
            for one, other in itertools.combinations(keys, 2):
                if target[one] != target[other]:
                    product = (target[one] - target[other]) * (scorer[one] - scorer[other])
                    points.append(1.0 if product > 0 else 0.5 if product == 0 else 0.0)
            if len({target[key] for key in keys}) > 1:
                flat = len({scorer[key] for key in keys}) == 1
                columns = [[side[key] for key in keys] for side in (target, scorer)]
                correlations.append(0.0 if flat else spearmanr(*columns).statistic)
        row = rows[case]
        assert (row.pairs, row.items) == (len(points), len(correlations))
        assert row.accuracy == pytest.approx(sum(points) / len(points))
        assert row.spearman == pytest.approx(sum(correlations) / len(correlations))
        assert row.accuracy_low <= row.accuracy <= row.accuracy_high
    assert rows["judge", "length"].accuracy == 0.5


def rank(records: Any, right: int) -> dict[tuple[str, str], float]:
    """Scores that put the first of two systems first in the first `right` items."""
    return {(item, system): float((system == "a") == (int(item[1:]) < right)) for item, system in records}


@pytest.mark.parametrize(
    ("items", "metric", "length", "expected"),
    [
        # Length has 45 of 60 pairs right, or with the signs turned: the interval of the difference is below 0.
        (60, 30, 45, "no better than output length alone (the longer one is better): "
         "0.500 of 60 pairs of 60 items in the right order against 0.750"),
        (60, 30, 15, "no better than output length alone (the shorter one is better):"
         " 0.500 of 60 pairs of 60 items in the right order against 0.750"),
        (15, 8, 9, "too few to tell"),
        (60, 40, 40, "warning: this metric agrees with judge no better than"),
        (60, 42, 40, "it is not certain that this metric agrees with judge more than output length"),
        (5, 5, 3, "too few to tell"),
        (60, 60, 40, None),
    ],
)  # fmt: skip
def test_a_metric_that_agrees_no_better_than_length_is_reported(
    items: int, metric: int, length: int, expected: str | None
) -> None:
    outputs = make_outputs(items)
    scorers = {THIS_METRIC: rank(outputs.records, metric), LENGTH: rank(outputs.records, length)}
    remarks = compare_with_length(outputs, scorers)
    if expected is None:
        assert remarks == []
        return
    (remark,) = remarks
    assert expected in remark
    # 30 of 60 against 45 of 60, the same items right: a difference of .25 with a standard error of .056.
    assert ("too few" in remark) == ((items, metric, length) not in {(60, 30, 45), (60, 30, 15)})


def test_length_is_compared_for_people_too_and_across_items() -> None:
    outputs = make_outputs(40)
    ratings = {key: -value for key, value in outputs.values.items()}
    outputs = replace(outputs, ratings={"quality": ratings})
    scorers = {THIS_METRIC: rank(outputs.records, 40), LENGTH: rank(outputs.records, 10)}
    (remark,) = compare_with_length(outputs, scorers)
    assert "agrees with people: quality no better than output length alone (the longer one is better)" in remark
    assert "0.000 of 40 pairs of 40 items in the right order against 0.750" in remark
    (across,) = compare_with_length(outputs, scorers, across=True)
    assert "people: quality" in across
    assert "too few" not in across


def test_agreement_with_choices_uses_the_choices() -> None:
    records = make_records(20, "abc")
    choices = {(f"i{n}", *pair): 1.0 for n in range(20) for pair in (("a", "b"), ("b", "c"), ("a", "c"))}
    choices["i0", "a", "c"] = -1.0  # A judge may go round in a circle.
    people = {(f"i{n}", "a", "c"): 1.0 for n in range(20)}
    outputs = make_outputs(records=records, values={}, choices=choices, preferences={"preference": people})
    scores = {key: -float(ord(key[1])) for key in records}
    rows = {(row.target, row.scorer): row for row in measure_agreement(outputs, {THIS_METRIC: scores})}
    assert rows["judge", THIS_METRIC].accuracy == pytest.approx(59 / 60)
    assert rows["people: preference", JUDGE].accuracy == pytest.approx(19 / 20)
    assert rows["people: preference", THIS_METRIC].accuracy == 1
    assert rows["judge", THIS_METRIC].spearman == pytest.approx(
        1
    )  # The circle makes three equal outputs, which have no order.
    assert rows["judge", THIS_METRIC].items == 19


def make_task(
    base: Path, out: Path, outputs: JudgedOutputs, *, across: bool = False, checkpoint_every: int = 100
) -> DistillationTask:
    data = make_pairs(outputs, "0.25", seed=0, across=across)
    return DistillationTask(
        train=data.train,
        dev=data.dev,
        held_out=data.held_out,
        across=across,
        data=data.facts,
        base=Options(model=str(base)),
        out=out,
        recipe=Recipe(epochs=8, batch=8, lr=3e-3, dtype="float32"),
        checkpoint_every=checkpoint_every,
    )


def test_a_card_says_how_far_the_metric_agrees(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    """The better output ends in `good`, which a tiny model learns from 60 pairs; a stop changes nothing."""
    outputs = make_outputs(
        80,
        ratings={"quality": {key: 5.0 if key[1] == "a" else 2.0 for key in make_records(80)}},
        cost={"judge_us_dollars_per_1000_outputs": 12.5, "judge_seconds_per_1000_outputs": None},
    )
    card = fit(make_task(tiny("bert"), tmp_path / "whole", outputs))
    agreement = card["agreement"]
    assert (agreement["items"], agreement["outputs"], agreement["not_scored"]) == (20, 40, 0)
    rows = {(row["target"], row["scorer"]): row for row in agreement["rows"]}
    assert rows["judge", THIS_METRIC]["accuracy"] == card["figures"]["after"] == 1
    assert rows["people: quality", JUDGE]["accuracy"] == rows["people: quality", THIS_METRIC]["accuracy"] == 1
    # A random model that is no preference model has nothing to say.
    assert {scorer for _, scorer in rows} == {JUDGE, THIS_METRIC, "length"}
    assert agreement["cost"]["judge_us_dollars_per_1000_outputs"] == 12.5
    page = (tmp_path / "whole" / "card.md").read_text()
    assert "## Agreement on held-out items" in page
    assert "| this metric | 20 | 1.000 [1.000, 1.000] | 1.000 [1.000, 1.000] |" in page
    assert "| judge us dollars per 1000 outputs | 12.5 |" in page
    assert "| judge seconds per 1000 outputs | unknown |" in page
    with pytest.raises(RuntimeError, match="killed"):
        fit(make_task(tiny("bert"), tmp_path / "stopped", outputs, checkpoint_every=2), StopAt(5))
    assert agreement["remarks"] == []
    resumed = fit(make_task(tiny("bert"), tmp_path / "stopped", outputs, checkpoint_every=2))
    assert resumed["fingerprint"] == card["fingerprint"]
    assert resumed["agreement"]["rows"] == agreement["rows"]


def test_a_text_encoder_learns_from_a_judge(tmp_path: Path) -> None:
    """The agreement in the card is that of brute force over the scores of the written metric."""
    base = write_text_encoder(tmp_path / "base" / "model", kind="nomic", heads=("support",), scale=0.1)
    outputs = make_outputs(80, "abc")
    task = make_task(base, tmp_path / "out", outputs)
    card = fit(task)
    rows = {row["scorer"]: row for row in card["agreement"]["rows"]}
    assert set(rows) == {THIS_METRIC, "length"}
    assert task.held_out is not None
    records = [task.held_out.records[key] for key in sorted(task.held_out.judged)]
    scorers = {THIS_METRIC: card["metric"], "length": "length"}
    for name, metric in scorers.items():
        scores = next(iter(metrist.score(records, metric).scores.values())).values
        by_key = {(record.item, record.system): score for record, score in zip(records, scores, strict=True)}
        right = [
            0.5 + 0.5 * np.sign(by_key[item, first] - by_key[item, second])
            for item in {record.item for record in records}
            for first, second in itertools.combinations("abc", 2)
        ]
        assert rows[name]["pairs"] == len(right)
        assert rows[name]["accuracy"] == pytest.approx(np.mean(right))
    assert rows[THIS_METRIC]["accuracy"] > 0.6
    page = (tmp_path / "out" / "card.md").read_text()
    assert all(f"{remark[1:]}." in page for remark in card["agreement"]["remarks"])
    assert card["recipe"]["left_out_heads"] == "support"


def test_a_metric_is_learned_across_items(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    records = {key: record for n, (key, record) in enumerate(make_records(80).items()) if n % 4 in (0, 3)}
    values = {key: 1.0 if key[1] == "a" else 0.0 for key in records}
    outputs = make_outputs(records=records, values=values)
    card = fit(make_task(tiny("bert"), tmp_path / "out", outputs, across=True))
    row = next(row for row in card["agreement"]["rows"] if row["scorer"] == THIS_METRIC)
    assert row["accuracy"] > 0.9
    assert row["accuracy_low"] is None
    assert "compare outputs of different items" in (tmp_path / "out" / "card.md").read_text()
    assert row["items"] == 20
