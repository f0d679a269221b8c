"""Percentiles among known values: by brute force over all of them."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import metrist
from error_codes import raises_code
from metrist.errors import InputError, RunError, SpecError
from metrist.metrics.base import Shard
from metrist.metrics.registry import build
from metrist.metrics.trained.calibrated import MAX_STORED, Distribution, fit_calibration, hash_data, read_calibration
from metrist.records import Record

LENGTH = "length(unit='characters')"


def brute_force(reference: list[float], value: float) -> float:
    """The definition, word for word."""
    worse = sum(one < value for one in reference)
    equal = sum(one == value for one in reference)
    return 100 * (worse + equal / 2) / len(reference)


few_values = st.lists(st.integers(-5, 5).map(float), min_size=1, max_size=60)


@given(reference=few_values, values=few_values)
def test_a_percentile_is_the_share_below_and_half_the_share_of_equals(reference, values):
    percentiles = Distribution.of(np.array(reference)).percentiles(np.array(values))
    assert percentiles == pytest.approx([brute_force(reference, value) for value in values])


@pytest.mark.parametrize("levels", [3, 40, 10**6])
def test_of_many_values_order_statistics_are_kept_that_are_right_to_a_tenth(levels):
    rng = np.random.default_rng(levels)
    reference = np.round(rng.normal(size=20_000) ** 3 * levels) / levels
    stored = Distribution.of(reference)
    assert (len(stored.values), stored.count) == (MAX_STORED, 20_000)
    values = np.concatenate([rng.choice(reference, 300), rng.normal(size=300) * 3, [-1e9, 1e9]])
    exact = [100 * ((reference < v).mean() + (reference == v).mean() / 2) for v in values]
    assert np.abs(stored.percentiles(values) - exact).max() <= 0.1
    assert stored.percentiles(np.array([-1e9, 1e9, np.nan]))[:2].tolist() == [0, 100]
    assert np.isnan(stored.percentiles(np.array([np.nan])))


def test_values_whose_spread_is_no_number_are_refused() -> None:
    with raises_code(RunError, "invalid_value", "1e+308"):
        Distribution.of(np.array([1e308, -1e308] * 20))


def records(*outputs: str, **more: str) -> list[Record]:
    return [Record(item=str(i), system="s", output=output, **more) for i, output in enumerate(outputs)]


def write(path: Path, spec: str, outputs: list[Record], by: str | None = None) -> str:
    from metrist.evaluate.audit.calibrate import calibrate

    path.write_text(calibrate(outputs, spec, by).calibration.to_json())
    return str(path)


@pytest.fixture
def lengths(tmp_path: Path) -> str:
    """A calibration of lengths from 1 to 40."""
    return write(tmp_path / "lengths.json", LENGTH, records(*("x" * n for n in range(1, 41))))


def test_the_raw_value_stays_and_the_percentile_is_a_part(lengths):
    metric = build(f"calibrated(metric={LENGTH}, by={lengths!r})")
    scores = metric.score(Shard(records("x", "x" * 20, "x" * 99, "")))
    assert scores.values.tolist() == [1, 20, 99, 0]
    assert scores.parts["percentile"].tolist() == [1.25, 48.75, 100, 0]
    assert metric.remarks(scores) == [
        f"{metric.text}: the mean percentile is 37.5 (show='percentile' gives each system's own)"
    ]


def test_the_percentile_becomes_the_value_when_it_is_to_be_shown(lengths):
    metric = build(f"calibrated(metric={LENGTH}, by={lengths!r}, show='percentile')")
    scores = metric.score(Shard(records("x", "x" * 20)))
    assert scores.values.tolist() == [1.25, 48.75]
    assert scores.parts["raw"].tolist() == [1, 20]
    assert metric.pool(scores.stats.sum(axis=0)) == 25
    assert (metric.bounds, metric.higher_is_better) == ((0, 100), None)


def sentences(count: int) -> list[Record]:
    text = "the cat sat on the mat and looked at the small red bird in the old tree"
    words = text.split()
    rng = np.random.default_rng(5)
    outputs = (" ".join(rng.permutation(words)[: rng.integers(3, 16)]) for _ in range(count))
    return [Record(item=str(i), system="s", output=o, references=(text,)) for i, o in enumerate(outputs)]


def test_needs_direction_range_and_pool_are_those_of_the_metric_within(tmp_path):
    outputs = sentences(40)
    path = write(tmp_path / "bleu.json", "bleu", outputs)
    inner, outer = build("bleu"), build(f"calibrated(metric=bleu, by={path!r})")
    for name in ("needs", "higher_is_better", "bounds", "extra", "resident"):
        assert getattr(outer, name) == getattr(inner, name)
    results = metrist.score(outputs, [inner, outer], executor="serial")
    corpus, calibrated = (row.value for row in results.system_scores(draws=0))
    assert corpus == calibrated
    assert corpus != pytest.approx(results.scores["bleu"].values.mean())


def test_where_lower_is_better_a_higher_percentile_still_is(tmp_path):
    outputs = sentences(40)
    path = write(tmp_path / "ter.json", "ter", outputs)
    metric = build(f"calibrated(metric=ter, by={path!r}, show='percentile')")
    assert metric.higher_is_better is True
    assert build(f"calibrated(metric=ter, by={path!r})").higher_is_better is False
    scores = metric.score(Shard(outputs))
    raw = scores.parts["raw"]
    assert scores.values.tolist() == pytest.approx([100 - brute_force(raw.tolist(), value) for value in raw])
    assert scores.values[raw.argmin()] > scores.values[raw.argmax()]


def test_nested_specs_read_back_and_pickle_small(lengths):
    metric = build(f"calibrated(metric={LENGTH}, by={lengths!r})")
    assert metric.text == f"calibrated(metric={LENGTH}, by={lengths!r})"
    assert build(metric.text) == metric
    spec, *facts = metric.signature.split(" | ")
    assert spec == f"calibrated(metric=length(unit='characters', tokenizer='unicode'), by={lengths!r}, show='raw')"
    assert build(spec) == metric
    assert facts[-1].startswith("calibration ")
    assert pickle.loads(pickle.dumps(metric)) == metric
    assert len(pickle.dumps(metric)) < 1000


@pytest.mark.parametrize(
    ("text", "code", "values"),
    [
        ("calibrated(metric='chrf', by='x')", "invalid_value", ("a metric without quotes", "'chrf'")),
        ("calibrated(metric=chrff, by='x')", "unknown_name", ("'chrff'", "did you mean 'chrf'")),
        ("calibrated(metric=chrf(ordr=1), by='x')", "unknown_name", ("chrf", "'ordr'")),
        ("calibrated(metric=chrf)", "missing_value", ("calibrated", "'by'")),
        ("calibrated(by='x')", "missing_value", ("'metric'", "a metric without quotes")),
    ],
)
def test_what_is_no_metric_within_is_refused(text, code, values):
    with raises_code(SpecError, code, *values):
        build(text)


def test_a_metric_within_is_not_imported_because_a_file_says_so():
    with raises_code(SpecError, "untrusted", "'os.Metric'"):
        build("calibrated(metric=os.Metric, by='x')", allow_import=False)
    with raises_code(SpecError, "untrusted", "external"):
        build("calibrated(metric=external(command='x'), by='x')", allow_import=False)


def test_a_calibration_of_other_numbers_is_refused_with_both_signatures(lengths):
    metric = build(f"calibrated(metric=length, by={lengths!r})")
    values = "lengths.json", "length(unit='characters'", "length(unit='words'", "metrist calibrate"
    with raises_code(RunError, RunError.code, *values):
        assert metric.signature
    with raises_code(RunError, RunError.code, *values):
        metric.score(Shard(records("x")))


def test_another_calibration_is_another_metric(lengths, tmp_path):
    before = build(f"calibrated(metric={LENGTH}, by={lengths!r})").signature
    write(tmp_path / "lengths.json", LENGTH, records(*("x" * n for n in range(1, 60))))
    assert build(f"calibrated(metric={LENGTH}, by={lengths!r})").signature != before


def test_groups_have_distributions_of_their_own(tmp_path):
    short = records(*("x" * n for n in range(1, 41)), task="short")
    both = [*short, *records(*("x" * n * 10 for n in range(1, 41)))]
    outputs = [Record(item=f"{r.task}{r.item}", system="s", output=r.output, task=r.task or "long") for r in both]
    path = write(tmp_path / "by.json", LENGTH, outputs, by="task")
    new_outputs = [
        Record(item=str(i), system="s", output="x" * 20, task=t) for i, t in enumerate(["short", "long", "new", None])
    ]
    raw = build(f"calibrated(metric={LENGTH}, by={path!r})")
    scores = raw.score(Shard(new_outputs))
    assert scores.parts["percentile"][:2].tolist() == [48.75, 3.75]
    assert np.isnan(scores.parts["percentile"][2:]).all()
    assert raw.remarks(scores)[-1] == f"{raw.text}: 2 outputs belong to no group of {path}"
    shown = build(f"calibrated(metric={LENGTH}, by={path!r}, show='percentile')").score(Shard(new_outputs))
    assert shown.failures[2] == f"{path} has no reference values for task 'new'; it has 'long', 'short'"


def test_failures_of_the_metric_within_stay_failures(tmp_path):
    outputs = records(*(f"a b {n} {n}" * n for n in range(1, 41)))
    path = write(tmp_path / "distinct.json", "distinct", outputs)
    for show in ("raw", "percentile"):
        metric = build(f"calibrated(metric=distinct, by={path!r}, show={show!r})")
        scores = metric.score(Shard([*outputs, *records("one")]))
        assert list(scores.failures) == [40]
        assert len(metric.remarks(scores)) == (show == "raw")  # A failed output is not one without a group.


@pytest.mark.parametrize(
    ("change", "value"),
    [
        (lambda c: {**c, "format": "other 2"}, "'other 2'"),
        (lambda c: {k: v for k, v in c.items() if k != "signature"}, "'signature'"),
        (lambda c: [c], "metrist calibrate RUN"),
        (lambda c: {**c, "groups": {"": {**c["groups"][""], "count": 7}}}, "40 values for a count of 7"),
        (lambda c: {**c, "groups": {"": {**c["groups"][""], "values": [2, 1] * 20}}}, "sorted"),
    ],
)
def test_a_damaged_calibration_is_refused(lengths, change, value):
    path = Path(lengths)
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with raises_code(InputError, "unreadable", str(path), value):
        read_calibration(path)


def test_a_file_that_is_not_there_or_no_json_is_refused(tmp_path):
    with raises_code(InputError, "unreadable", "none.json"):
        assert build(f"calibrated(metric=chrf, by={str(tmp_path / 'none.json')!r})").signature
    (tmp_path / "text.json").write_text("hello")
    with raises_code(InputError, "unreadable", "text.json"):
        read_calibration(tmp_path / "text.json")


def test_what_was_written_reads_back_to_the_bit(tmp_path):
    values = np.random.default_rng(1).normal(size=5000)
    names = [str(i) for i in range(5000)]
    calibration, _ = fit_calibration(
        values, [""] * 5000, metric="m", signature="s", higher_is_better=True, data=hash_data(names, names, values)
    )
    (tmp_path / "c.json").write_text(calibration.to_json())
    again = read_calibration(tmp_path / "c.json")
    assert again.to_json() == calibration.to_json()
    assert again.percentiles(values, [""] * 5000).tolist() == calibration.percentiles(values, [""] * 5000).tolist()
