"""Stress tests: what they say of metrics whose blindness is known by construction."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

import metrist
from error_codes import raises_code
from metrist import Metric, Record, Scores
from metrist.data.faults import HARMLESS, KINDS
from metrist.errors import InputError, SpecError
from metrist.evaluate.audit.stress import StressReport, read_examples, stress


@dataclass(frozen=True, kw_only=True)
class Constant(Metric):
    """Sees nothing."""

    def score(self, shard):
        return Scores(values=np.ones(len(shard.records)))


@dataclass(frozen=True, kw_only=True)
class Digits(Metric):
    """The share of the output's numbers that the source has; 1 without numbers."""

    def score(self, shard):
        values = []
        for record in shard.records:
            numbers = re.findall(r"\d+", record.output)
            known = re.findall(r"\d+", record.source or "")
            values.append(float(np.mean([number in known for number in numbers])) if numbers else 1.0)
        return Scores(values=np.array(values))


@dataclass(frozen=True, kw_only=True)
class Characters(Metric):
    """Longer is better, or worse."""

    higher_is_better: ClassVar[bool] = True

    def score(self, shard):
        return Scores(values=np.array([float(len(record.output)) for record in shard.records]))


@dataclass(frozen=True, kw_only=True)
class Brevity(Characters):
    """The same numbers, but fewer characters are better."""

    higher_is_better: ClassVar[bool] = False


def outcomes(report: StressReport, metric: str) -> dict[str, str]:
    return {test.test: test.outcome for test in report.tests if test.metric == metric}


def test_a_constant_is_blind_to_everything_and_no_change_harms_it() -> None:
    report = stress(Constant(), kinds=["number", "empty", "spelling", "padding"])
    found = outcomes(report, report.tests[0].metric)
    assert found["number"] == found["empty"] == "blind"
    assert found["major below minor"] == "fail"
    # No major fault moves the score, so that nothing is half as much as one.
    assert found["padding"] == "over-sensitive"
    assert all(test.same == 1 for test in report.tests if test.group == "fault")


def test_a_metric_of_numbers_sees_only_numbers() -> None:
    report = stress(Digits(), kinds=["number", "negation", "tense"])
    found = {test.test: test for test in report.tests}
    assert found["number"].outcome == "pass"
    assert found["negation"].outcome == found["tense"].outcome == "blind"
    assert found["negation"].falls == 0
    # Brute force over the same examples.
    records = read_examples()
    worse = 0
    for number, record in enumerate(records):
        perturbed = metrist.data.perturbations.perturb(
            record, ["number"], seed=0, donor=records[(number + 1) % len(records)]
        )
        assert perturbed is not None
        (error,) = perturbed.errors
        numbers = re.findall(r"\d+", record.source or "")
        worse += any(part not in numbers for part in re.findall(r"\d+", error.text))
    assert found["number"].falls == pytest.approx(worse / len(records))


def test_direction_is_that_of_the_metric() -> None:
    kinds = ["addition", "omission", "truncation", "empty"]
    longer, shorter = (stress(metric(), kinds=kinds) for metric in (Characters, Brevity))
    assert [test.outcome for test in longer.tests if test.group == "fault"] == ["rises", "pass", "pass", "pass"]
    assert [test.outcome for test in shorter.tests if test.group == "fault"] == ["pass", "rises", "rises", "rises"]
    first, second = longer.tests[1], shorter.tests[1]
    assert (first.falls, first.change) == (second.rises, -second.change)


def test_faults_are_added_one_by_one_to_the_same_text() -> None:
    report = stress("chrf", kinds=["number", "spelling", "word_order", "entity", "tense", "capitalisation"])
    (series,) = [test for test in report.tests if test.group == "series"]
    assert series.outcome == "pass"
    assert series.items >= 15


def test_every_kind_is_tried_on_the_examples_that_ship() -> None:
    report = stress("chrf")
    tested = {test.test: test.items for test in report.tests if test.group in ("fault", "harmless")}
    assert set(tested) == {name for name, kind in KINDS.items() if not kind.tasks} | set(HARMLESS)
    assert all(items >= 10 for name, items in tested.items() if name != "quotation_marks")


def test_records_of_ones_own(tmp_path) -> None:
    file = tmp_path / "good.jsonl"
    rows = [
        {"item": str(n), "system": s, "output": f"Ann has {n + 11} cats.", "reference": f"Ann owns {n + 11} cats."}
        for n in range(8)
        for s in ("a", "b")
    ]
    file.write_text("\n".join(map(json.dumps, rows)))
    report = stress(["chrf", "rougeL"], str(file), kinds=["number", "spelling"], items=6)
    assert report.items == 6
    assert {test.items for test in report.tests if test.group == "fault"} == {6}
    text = str(report.table())
    assert "chrf worse" in text
    assert json.loads(json.dumps(report.to_dict()))["items"] == 6


def test_too_few_items_and_wrong_settings_are_refused() -> None:
    few = [Record(item=str(n), system="s", output="A cat sat.") for n in range(4)]
    with raises_code(InputError, "too_little_data", 5, 4):
        stress("chrf", few)
    with raises_code(SpecError, "invalid_value", "least"):
        stress("chrf", least=0)
    with raises_code(SpecError, "unknown_name", "'nubmer'", "'number'"):
        stress("chrf", kinds=["nubmer"])


def test_required_tests_that_fail_are_found() -> None:
    report = stress(Digits(), kinds=["number", "negation", "padding"])
    assert not report.find_failures(["number"])
    assert [test.test for test in report.find_failures(["fault"])] == ["negation"]
    assert "negation" in {test.test for test in report.find_failures()}


def test_a_metric_without_better_and_worse_is_refused_before_anything_is_scored() -> None:
    with raises_code(SpecError, "invalid_value", "length"):
        stress(["rouge1", "length"], [])
