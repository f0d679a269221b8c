from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_builder import METRICS, make_run, noisy

import metrist
from error_codes import raises_code
from metrist.errors import ErrorCode, MetristError, RunError
from metrist.evaluate.compare.check import CheckReport, Verdict, check
from metrist.evaluate.selection import warn_off_scale
from metrist.scores import Failure, FailureKind
from metrist.stats.significance import holm
from paired_tests import paired_randomisation

GOOD, BAD = noisy(0.6, 1), noisy(0.5, 2)


def list_verdicts(report: CheckReport) -> list[tuple[str, str, bool]]:
    return [(verdict.system, verdict.metric, verdict.passed) for verdict in report.verdicts]


# Floors, ceilings and coverage


def test_a_floor_passes_the_systems_above_it_and_fails_the_others() -> None:
    report = check(make_run(quality={"a": GOOD, "b": BAD}), minimum={"quality": 0.55})
    assert list_verdicts(report) == [("a", "quality", True), ("b", "quality", False)]
    assert not report.passed
    (failure,) = report.failures
    assert failure.why == f"{np.mean(BAD):.3f} is {0.55 - np.mean(BAD):.3g} below the minimum 0.55"
    assert report.summary == "2 checks, 1 failed"


def test_a_ceiling_fails_the_systems_above_it() -> None:
    report = check(make_run(errors={"a": [40.0, 60.0], "b": [70.0, 80.0]}), maximum={"errors": 60})
    assert list_verdicts(report) == [("a", "errors", True), ("b", "errors", False)]
    assert report.failures[0].why == "75.0 is 15 above the maximum 60"


def test_a_threshold_that_is_met_exactly_passes() -> None:
    run = make_run(quality={"a": [0.25, 0.75]})
    assert check(run, minimum={"quality": 0.5}, maximum={"quality": 0.5}).passed


def test_no_score_never_passes() -> None:
    run = make_run(quality={"a": [None, None], "b": [0.5, 0.5]})
    report = check(run, minimum={"quality": 0.0}, maximum={"quality": 1.0}, min_coverage=0.0, systems=["a"])
    assert [verdict.passed for verdict in report.verdicts] == [False, False, False]
    assert {verdict.why for verdict in report.verdicts} == {
        "no output has a score",
        "only 0.0 % of the outputs have a score",
    }
    assert all(verdict.to_dict()["value"] in (None, 0.0) for verdict in report.verdicts)


def test_low_coverage_fails() -> None:
    run = make_run(quality={"a": [0.5, 0.5, 0.5, None], "b": [0.5] * 4})
    report = check(run, min_coverage=0.9)
    assert list_verdicts(report) == [("a", "quality", False), ("b", "quality", True)]
    assert report.failures[0].why == "only 75.0 % of the outputs have a score"
    assert report.failures[0].requirement == ">= 90 % scored"


def test_every_output_needs_a_score_by_what_is_checked_unless_a_coverage_is_given() -> None:
    run = make_run(quality={"a": [0.5, None], "b": [0.5, 0.5]}, errors={"a": [9.0, 9.0], "b": [9.0, None]})
    (failure,) = check(run, minimum={"quality": 0.1}).failures
    assert (failure.kind, failure.system, failure.metric) == ("coverage", "a", "quality")
    assert failure.why == "only 50.0 % of the outputs have a score"
    assert "`min_coverage` allows less" in check(run, minimum={"quality": 0.1}).notes[0]
    assert failure.requirement == ">= 100 % scored"
    assert check(run, minimum={"quality": 0.1}, min_coverage=0.5).passed
    # Outputs that failed by a metric which is not checked do not matter.
    assert check(run, minimum={"quality": 0.1}, systems=["b"]).passed
    assert not check(run, against=run, systems=["b"], draws=50).passed


def test_a_metric_may_have_its_own_coverage() -> None:
    run = make_run(quality={"a": [0.5, 0.5, 0.5, None]}, errors={"a": [9.0, None, None, 9.0]}, size={"a": [1.0] * 4})
    assert check(run, minimum={"quality": 0.1}, min_coverage={"quality": 0.75}).passed
    report = check(run, min_coverage={"*": 0.9, "errors": 0.5})
    assert [(verdict.metric, verdict.requirement, verdict.passed) for verdict in report.verdicts] == [
        ("quality", ">= 90 % scored", False),
        ("errors", ">= 50 % scored", True),
        ("size", ">= 90 % scored", True),
    ]
    # The other metrics with a limit still need every score.
    assert not check(run, minimum={"quality": 0.1, "errors": 1.0}, min_coverage={"quality": 0.75}).passed
    with raises_code(RunError, "unknown_name", "qualty"):
        check(run, min_coverage={"qualty": 0.5})
    with raises_code(RunError, "invalid_value", "quality", "1.5"):
        check(run, min_coverage={"quality": 1.5})


def test_against_a_run_coverage_fails_only_where_it_falls() -> None:
    """Optional references: half of the items have none, in either run."""
    half = {"a": [value if number % 2 else None for number, value in enumerate(noisy(0.5, 1, 40))]}
    before = make_run(quality=half)
    assert check(before, against=before, draws=500).passed
    lost = make_run(quality={"a": [None, None, *half["a"][2:]]})
    (failure,) = check(lost, against=before, draws=500).failures
    assert (failure.kind, failure.metric, failure.value) == ("coverage", "quality", 19 / 20)
    # With a limit, every output needs a score.
    (failure,) = check(before, {"quality": 0.1}, against=before, draws=500).failures
    assert (failure.kind, failure.value) == ("coverage", 0.5)


def test_a_new_output_needs_a_score_if_it_has_what_the_metric_needs() -> None:
    before = make_run(quality={"a": noisy(0.5, 1, 40)})
    now = make_run(quality={"a": [*noisy(0.5, 1, 40), None]})
    for kind, passed in ((FailureKind.missing_input, True), (FailureKind.refused, False), (FailureKind.pending, False)):
        scores = replace(now.scores["quality"], failures={40: Failure(kind, "no references")})
        assert check(replace(now, scores={"quality": scores}), against=before, draws=500).passed is passed


def test_metrics_can_be_chosen() -> None:
    run = make_run(quality={"a": noisy(0.5, 1, 40)}, errors={"a": [None] * 40}, size={"a": noisy(9, 2, 40)})
    verdicts = check(run, against=run, draws=500, metrics="quality").verdicts
    assert [(verdict.metric, verdict.passed) for verdict in verdicts] == [("quality", True)]
    assert [v.metric for v in check(run, min_coverage=0.9, metrics=["quality", "size"]).verdicts] == ["quality", "size"]
    with raises_code(RunError, "conflict", "size"):
        check(run, against=run, metrics="size")
    with raises_code(RunError, "unknown_name", "qualty"):
        check(run, against=run, metrics="qualty")


def test_outputs_that_are_not_scored_yet_fail_whatever_is_checked() -> None:
    run = make_run(quality={"a": [0.5, 0.5]}, errors={"a": [9.0, None]})
    pending = {1: Failure(FailureKind.pending, "errors has not scored this output yet")}
    begun = replace(run, scores={**run.scores, "errors": replace(run.scores["errors"], failures=pending)})
    assert check(run, minimum={"quality": 0.1}).passed
    (failure,) = check(begun, minimum={"quality": 0.1}).failures
    assert failure.metric == "errors"
    assert failure.why == "only 50.0 % of the outputs have a score: 1 not scored yet, 0 failed"
    # A table cuts cells of more than 80 characters.
    assert "0 failed" in str(check(begun, minimum={"quality": 0.1}))
    assert "…" not in str(check(begun, minimum={"quality": 0.1}))


# Against a baseline


def test_systems_are_checked_against_another_of_the_same_run() -> None:
    run = make_run(quality={"old": GOOD, "worse": BAD, "same": GOOD})
    report = check(run, against="old", draws=500)
    assert list_verdicts(report) == [("worse", "quality", False), ("same", "quality", True)]
    assert any(note.startswith("Worse than old: one-sided") for note in report.notes)
    # The same numbers as with the two systems in runs of their own.
    apart = check(make_run(quality={"x": BAD}), against=make_run(quality={"x": GOOD}), draws=500)
    alone = check(run, against="old", systems=["worse"], draws=500)
    assert [(v.value, v.p) for v in alone.verdicts] == [(v.value, v.p) for v in apart.verdicts]
    with raises_code(RunError, "conflict", "'old'"):
        check(run, against="old", systems=["old"])
    with raises_code(RunError, "unknown_name", "'old'"):
        check(run, against="odl")


def test_a_system_with_the_name_of_a_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old").mkdir()
    with raises_code(RunError, "conflict", "folder"):
        check(make_run(quality={"old": GOOD, "new": BAD}), against="old")


def test_a_system_that_got_worse_fails_and_one_that_got_better_passes() -> None:
    before = make_run(quality={"a": GOOD, "b": BAD})
    now = make_run(quality={"a": BAD, "b": GOOD})
    report = check(now, against=before, draws=500)
    assert list_verdicts(report) == [("a", "quality", False), ("b", "quality", True)]
    assert report.failures[0].why == "got worse: p .004 on 80 shared items"
    assert report.failures[0].value == pytest.approx(np.mean(BAD) - np.mean(GOOD))


def test_lower_is_worse_only_where_higher_is_better() -> None:
    before, now = make_run(errors={"a": noisy(50, 1)}), make_run(errors={"a": noisy(55, 2)})
    assert not check(now, against=before, draws=500).passed
    assert check(before, against=now, draws=500).passed


def test_p_values_are_one_sided_and_corrected_over_all_tests() -> None:
    before = make_run(quality={"a": GOOD, "b": BAD}, errors={"a": GOOD, "b": BAD})
    now = make_run(quality={"a": noisy(0.58, 5), "b": noisy(0.49, 6)}, errors={"a": noisy(0.62, 7), "b": noisy(0.5, 8)})
    report = check(now, against=before, draws=400, seed=3)
    raw = []
    for text, side in (("quality", "less"), ("errors", "greater")):
        for system in ("a", "b"):
            first, second = (
                run.scores[text].stats[[i for i, name in enumerate(run.systems) if name == system]]
                for run in (now, before)
            )
            tosses = np.random.default_rng(3).spawn(2)[1]
            raw.append(paired_randomisation(first, second, METRICS[text].pool, 400, tosses, side))
    assert [verdict.p for verdict in report.verdicts] == holm(raw).tolist()
    assert any("Holm-corrected over 4 tests, alpha 0.05." in note for note in report.notes)


def test_single_systems_are_paired_under_any_names() -> None:
    report = check(make_run(quality={"new": BAD}), against=make_run(quality={"old": GOOD}), draws=500)
    assert list_verdicts(report) == [("new", "quality", False)]


def test_only_shared_items_are_tested_and_the_rest_is_counted() -> None:
    before = make_run(quality={"a": [0.9, 0.9, 0.1, 0.2, 0.3]}, items=["x", "y", "1", "2", "3"])
    now = make_run(quality={"a": [0.0, 0.1, 0.2, None]}, items=["z", "1", "2", "3"])
    verdict, _ = check(now, against=before, draws=50).verdicts
    assert verdict.value == 0.0
    assert verdict.p == 1.0
    assert verdict.why == "too few to find any loss: 2 shared items (4 left out), at least 8 needed"
    assert verdict.coverage == pytest.approx(2 / 6)


def test_a_system_that_cannot_be_tested_does_not_pass() -> None:
    before = make_run(quality={"a": [0.9, 0.9]}, items=["x", "y"])
    (verdict,) = check(make_run(quality={"a": [0.9, 0.9]}), against=before, draws=50).verdicts
    assert not verdict.passed
    assert verdict.why == "cannot be tested on 0 shared items (4 left out)"


def test_systems_and_metrics_missing_from_the_baseline_are_noted() -> None:
    before = make_run(quality={"a": GOOD})
    now = make_run(quality={"a": GOOD, "c": GOOD}, errors={"a": GOOD, "c": GOOD}, size={"a": GOOD, "c": GOOD})
    report = check(now, against=before, draws=50)
    assert list_verdicts(report) == [("a", "quality", True)]
    assert "Not in the baseline, so not tested against it: c." in report.notes
    assert "Not scored in the baseline, so not tested against it: errors." in report.notes


def test_a_system_missing_from_the_run_fails() -> None:
    before = make_run(quality={"a": GOOD, "b": GOOD}, errors={"a": GOOD, "b": GOOD}, size={"a": GOOD, "b": GOOD})
    now = make_run(quality={"a": GOOD}, errors={"a": GOOD}, size={"a": GOOD})
    report = check(now, against=before, draws=50)
    assert not report.passed
    assert [(lost.kind, lost.system, lost.metric) for lost in report.failures] == [
        ("missing", "b", "quality"),
        ("missing", "b", "errors"),
    ]
    assert report.failures[0].why.startswith("lost since the baseline")
    assert report.to_dict()["verdicts"][-1]["value"] is None
    assert 'failures="2"' in report.junit()
    assert check(now, against=before, draws=50, systems=["a"]).passed


def test_a_metric_that_the_run_was_not_scored_by_is_noted() -> None:
    before = make_run(quality={"a": GOOD}, errors={"a": GOOD}, size={"a": GOOD})
    report = check(make_run(quality={"a": GOOD}), against=before, draws=50)
    assert report.passed
    assert "NOT CHECKED: errors; only the baseline has these scores." in report.notes


def test_a_metric_that_the_run_has_not_finished_fails() -> None:
    before = make_run(quality={"a": GOOD}, errors={"a": GOOD})
    now = replace(make_run(quality={"a": GOOD}), unfinished={"errors": "errors"}, notes=("errors is left out",))
    for options in (
        {"minimum": {"quality": 0.1}},
        {"against": before, "draws": 50},
        {"min_coverage": 0.9},
        {"against": before, "min_coverage": 0.9},
    ):
        report = check(now, **options)
        (failure,) = report.failures
        assert (failure.kind, failure.system, failure.metric) == ("missing", "a", "errors")
        assert failure.why == "not finished: run the same `metrist score` again"
        assert "errors is left out" in report.notes
        assert not any("NOT CHECKED" in note for note in report.notes)
    with raises_code(RunError, "unfinished", "`metrist score`"):
        check(now, minimum={"errors": 1})


def test_too_few_draws_fail() -> None:
    run = make_run(quality={"a": GOOD})
    report = check(run, against=run, draws=9)
    assert "With 1 test, 9 draws cannot reach 0.05: use more draws." in report.notes
    assert report.failures[0].why == "no loss can be found with so few draws: p 1.000 on 80 shared items"


def enumerate_p(now: list[float], before: list[float]) -> float:
    """The exact one-sided p of randomisation: brute force over all exchanges of items."""
    differences = [a - b for a, b in zip(now, before, strict=True)]
    sums = [sum(s * d for s, d in zip(signs, differences, strict=True)) for signs in product((1, -1), repeat=len(now))]
    return float(np.mean([total <= sum(differences) + 1e-9 for total in sums]))


@pytest.mark.parametrize("tests", [1, 2, 3, 4])
def test_a_check_that_cannot_fail_does_not_pass(tests: int) -> None:
    names = ["quality", "errors", "strict", "scaled"][:tests]
    for items in range(2, 10):
        good, bad = [0.9 - 0.01 * i for i in range(items)], [0.0] * items
        can_fail = tests * enumerate_p(bad, good) <= 0.05
        worst = {name: {"a": good if name == "errors" else bad} for name in names}
        best = {name: {"a": bad if name == "errors" else good} for name in names}
        # A total loss never passes, and neither does a run that did not change if no loss could be found.
        assert not check(make_run(**worst), against=make_run(**best), draws=2000).passed
        same = check(make_run(**best), against=make_run(**best), draws=2000)
        assert can_fail or not same.passed
        if not same.passed:
            assert all(verdict.why.startswith("too few to find any loss: ") for verdict in same.failures)
            assert any("set limits" in note for note in same.notes)
    assert same.passed


def test_the_number_of_items_that_is_needed_is_told() -> None:
    # 1/16 > .05 >= 1/32, and with two tests 2/32 > .05 >= 2/64.
    four, five, six = (make_run(quality={"a": [0.5] * n, "b": [0.1] * n}) for n in (4, 5, 6))
    (verdict,) = check(four, against="a").verdicts
    assert verdict.why == "too few to find any loss: 4 shared items, at least 5 needed"
    assert check(five, against="a").failures[0].why.startswith("worse than a: p .0")
    both = check(five, against=five).verdicts
    assert [verdict.why for verdict in both] == ["too few to find any loss: 5 shared items, at least 6 needed"] * 2
    assert check(six, against=six).passed


def test_a_loss_on_too_few_of_many_items_is_noted() -> None:
    # Sign flips of items without a difference change nothing: 1/16 on 4 of 80 items, 1/32 on 5.
    before = make_run(quality={"a": [0.9] * 80})
    four, five = (check(make_run(quality={"a": [0.0] * n + [0.9] * (80 - n)}), against=before) for n in (4, 5))
    assert four.passed
    assert four.verdicts[0].p == pytest.approx(1 / 16, abs=0.01)
    assert any(note.startswith("a by quality: only 4 of 80 items score differently, too few") for note in four.notes)
    assert not five.passed
    assert not any("score differently" in note for note in five.notes + check(before, against=before).notes)


# Inputs that have changed since


def write_rows(path: Path, output: str) -> None:
    rows = [{"item": str(i), "system": "a", "output": f"{output} {i}", "references": [f"cat {i}"]} for i in range(6)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_run_whose_input_has_changed_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_rows(Path("outputs.jsonl"), "cat")
    metrist.score("outputs.jsonl", "exact", out="run/")
    assert check("run", minimum={"exact": 0.5}).passed
    write_rows(Path("outputs.jsonl"), "garbage")
    report = check("run", minimum={"exact": 0.5})
    (failure,) = report.failures
    assert (failure.kind, failure.why) == ("input", "outputs.jsonl has changed: score it again")
    assert report.notes[0] == (
        "outputs.jsonl has changed since it was scored: 6 outputs differ; score it again with "
        "`metrist score outputs.jsonl -m exact -o run/`"
    )
    assert 'failures="1"' in report.junit()
    json.dumps(report.to_dict(), allow_nan=False)
    # An earlier run is of earlier outputs.
    metrist.score("outputs.jsonl", "exact", out="new/")
    assert not any("has changed" in note for note in check("new", against="run").notes)
    metrist.score("outputs.jsonl", "exact", out="run/")
    assert check("run", maximum={"exact": 0.5}).passed


def test_a_row_that_was_not_scored_fails_and_a_new_column_does_not(tmp_path: Path) -> None:
    path = tmp_path / "outputs.jsonl"
    write_rows(path, "cat")
    metrist.score(path, "exact", out=tmp_path / "run")
    path.write_text("".join(reversed(path.read_text().replace("}", ', "rating": 3}').splitlines(keepends=True))))
    assert check(tmp_path / "run", minimum={"exact": 0.5}).passed
    with path.open("a") as file:
        file.write('{"item": "6", "system": "a", "output": "x", "references": ["y"]}\n')
    report = check(tmp_path / "run", minimum={"exact": 0.5})
    assert not report.passed
    assert "1 output is not scored; score it again" in report.notes[0]
    path.write_text("{")
    assert "has changed since it was scored and cannot be read" in check(tmp_path / "run", min_coverage=0.5).notes[0]
    # A file that is not there says nothing about the scores.
    path.unlink()
    report = check(tmp_path / "run", minimum={"exact": 0.5})
    assert report.passed
    assert "is not where it was scored: whether it has changed since is unknown" in report.notes[0]


def test_a_baseline_with_another_signature_is_refused() -> None:
    with raises_code(
        RunError, "conflict", "this run", "'quality | version 1'", "the baseline", "'quality | version 2'"
    ):
        check(make_run(quality={"a": GOOD}), against=make_run(quality={"a": GOOD}, signature="2"))


def test_a_baseline_without_the_systems_or_the_metrics_is_refused() -> None:
    run = make_run(quality={"sys-a": GOOD, "sys-b": GOOD})
    with raises_code(RunError, "too_little_data", "'x', 'sys-A'", "did you mean 'sys-A'"):
        check(run, against=make_run(quality={"x": GOOD, "sys-A": GOOD}))
    with raises_code(RunError, "too_little_data", "baseline"):
        check(run, against=make_run(size={"sys-a": GOOD, "sys-b": GOOD}))


# Thresholds that look wrong


@pytest.mark.parametrize(
    ("kind", "text", "threshold", "note"),
    [
        ("minimum", "quality", 30, "quality ranges from 0 to 1: a minimum of 30 is never met; did you mean 0.3?"),
        ("minimum", "quality", -1, "quality ranges from 0 to 1: a minimum of -1 is always met"),
        ("maximum", "quality", 60, "quality ranges from 0 to 1: a maximum of 60 is always met; did you mean 0.6?"),
        ("maximum", "quality", -1, "quality ranges from 0 to 1: a maximum of -1 is never met"),
        (
            "minimum", "errors", 0.6,
            "errors counts in percent (here 45.0): a minimum of 0.6 means 0.6 %; did you mean 60?",
        ),
        ("minimum", "errors", 60, None),
        ("minimum", "size", 0.6, None),
        ("minimum", "quality", 0.3, None),
    ],
)  # fmt: skip
def test_a_threshold_off_the_scale_is_noted(kind: Any, text: str, threshold: float, note: str | None) -> None:
    report = check(make_run(**{text: {"a": [45.0, 45.0]}}), **{kind: {text: threshold}})
    assert list(report.notes) == ([note] if note else [])


@pytest.mark.parametrize("text", ["bleu", "chrf", "ter"])
def test_metrics_that_count_in_percent_are_recognised(text: str) -> None:
    assert "counts in percent (here 45.0)" in str(warn_off_scale(metrist.metric(text), "maximum", 0.6, 45.0))


# Options


@pytest.mark.parametrize(
    ("options", "code", "values"),
    [
        ({}, "no_data", []),
        ({"minimum": {"qualit": 0.3}}, "unknown_name", ["'qualit'", "'quality'"]),
        ({"maximum": {"quality": math.nan}}, "invalid_value", ["maximum", "quality", "nan"]),
        ({"minimum": {"quality": "x"}}, "invalid_value", ["minimum", "quality", "'x'"]),
        ({"min_coverage": 95}, "invalid_value", ["95"]),
        ({"min_coverage": 0.5, "alpha": 0}, "invalid_value", ["10000 and 0"]),
        ({"min_coverage": 0.5, "systems": ["aa"]}, "unknown_name", ["'aa'", "'a'"]),
        ({"min_coverage": 0.5, "systems": []}, "no_data", []),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], code: ErrorCode, values: list[str]) -> None:
    with raises_code(MetristError, code, *values):
        check(make_run(quality={"a": GOOD}), **options)


# Output


def test_the_table_puts_failures_first() -> None:
    report = metrist.check(make_run(quality={"a": [0.5, 0.7], "b": [0.1, 0.2]}), minimum={"quality": 0.3})
    assert str(report) == (
        "metrist check: 2 checks, 1 failed\n"
        "\n"
        "verdict  check    system  metric   wanted  found  coverage  why\n"
        "-------  -------  ------  -------  ------  -----  --------  -----------------------------------\n"
        "FAILED   minimum  b       quality  >= 0.3  0.150   100.0 %  0.150 is 0.15 below the minimum 0.3\n"
        "passed   minimum  a       quality  >= 0.3  0.600   100.0 %"
    )
    assert "<table" in report._repr_html_()


def test_plain_data_is_json_without_nan() -> None:
    run = make_run(quality={"a": [None, None]})
    data = json.loads(json.dumps(check(run, minimum={"quality": 0.3}, against=run).to_dict(), allow_nan=False))
    assert data["passed"] is False
    assert [verdict["p"] for verdict in data["verdicts"]] == [None, None]


def test_junit_has_a_case_for_each_verdict() -> None:
    run = make_run(quality={"a": GOOD, "\x1b[31m": [None]})
    root = ET.fromstring(check(run, minimum={"quality": 0.3}).junit().encode())
    cases = list(root.iter("testcase"))
    assert [case.attrib["name"] for case in cases] == ["a: quality >= 0.3", "\\x1b[31m: quality >= 0.3"]
    assert cases[1][0].attrib["message"] == "no output has a score"
    assert cases[1][0].text == "no output has a score\nwanted: >= 0.3\nfound: n/a\ncoverage: 0.0 %"


@given(st.text(st.characters()), st.text(st.characters()))
def test_any_text_gives_valid_junit(name: str, why: str) -> None:
    verdict = Verdict(
        kind="minimum", system=name, metric="m", passed=False, requirement="", observed=why, why=why, coverage=1.0
    )
    report = CheckReport(verdicts=(verdict,))
    (case,) = ET.fromstring(report.junit().encode()).iter("testcase")
    assert case[0].tag == "failure"
    if name.isascii() and name.isprintable():
        assert case.attrib["name"] == f"{name}: m "
    assert report.junit() == report.junit()
