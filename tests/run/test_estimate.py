"""Estimates of what a run would take: LLM requests, a prompt, and times by a clock that the metrics set."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from error_codes import raises_code
from metrist.errors import ModelError, RunError
from metrist.llm.replay import FakeLLM
from metrist.metrics.base import Metric, Shard
from metrist.metrics.llm_metric import LLMMetric
from metrist.records import Record
from metrist.run import score
from metrist.run.estimate import GROUP_SIZE, GROUPS, _estimate_rate, _MetricWork, estimate_run
from metrist.runtime import Runtime
from metrist.scores import Score, Scores

#: The time by the clock of these tests.
NOW = [0.0]


def clock() -> float:
    return NOW[0]


@dataclass(frozen=True)
class Slow(Metric):
    """Takes some seconds per character, a second for the model, and notes what it was given."""

    per_character: float = 0.001
    jitter: float = 0.0
    needs_source: bool = False

    @property
    def needs(self) -> Any:
        return ("source",) if self.needs_source else ()

    def score(self, shard: Shard) -> Scores:
        if not SEEN:
            NOW[0] += 1.0
        SEEN.append(shard)
        factor = 1 + self.jitter * (len(SEEN) % 2)
        NOW[0] += factor * self.per_character * sum(1 + len(record.output) for record in shard.records)
        return Scores.of([Score(value=1.0)] * len(shard))


SEEN: list[Shard] = []


@pytest.fixture(autouse=True)
def start() -> None:
    NOW[0] = 0.0
    SEEN.clear()


def make_records(count: int, seed: int = 0) -> list[Record]:
    lengths = np.random.default_rng(seed).integers(10, 200, count).tolist()
    return [Record(item=str(n), system="a", output="x" * length) for n, length in enumerate(lengths)]


def test_time_is_scaled_by_the_length_of_all_texts() -> None:
    records = make_records(1000)
    (time,) = estimate_run(records, [Slow(per_character=1e-4)], clock=clock).times
    truth = 1e-4 * sum(1 + len(record.output) for record in records)
    assert time.seconds == pytest.approx(truth)
    assert (time.low, time.high) == pytest.approx((0.75 * truth, 1.25 * truth))
    assert (time.records, time.sample) == (1000, (GROUPS - 1) * GROUP_SIZE)
    assert time.seconds_per_record == pytest.approx(truth / 1000)
    assert time.loading > 1.0


def test_the_range_comes_from_the_spread_of_the_sample() -> None:
    groups = [(1.0, 100), (1.4, 100), (0.9, 100)]
    low, rate, high = _estimate_rate(groups)
    # By hand: equal lengths, so the rate is the mean, and the interval that of a mean: t(0.975, 2) = 4.30.
    values = np.array([s / c for s, c in groups])
    half = 4.30 * values.std(ddof=1) / math.sqrt(3)
    assert (low, rate, high) == pytest.approx((values.mean() - half, values.mean(), values.mean() + half))
    assert _estimate_rate([(2.0, 100)]) == pytest.approx((0.02 / 3, 0.02, 0.06))


def test_the_truth_is_within_the_range_of_an_uneven_metric() -> None:
    records = make_records(500)
    (time,) = estimate_run(records, [Slow(jitter=0.5)], clock=clock).times
    truth = 0.001 * 1.25 * sum(1 + len(record.output) for record in records)
    assert time.low < truth < time.high


def test_a_slow_metric_is_timed_on_few_records() -> None:
    records = make_records(100)
    (time,) = estimate_run(records, [Slow(per_character=1.0)], clock=clock).times
    # The first record loads the model; one more is beyond the limit.
    assert [len(shard) for shard in SEEN] == [1, 1]
    assert time.sample == 1
    assert time.groups == 1
    assert time.high == pytest.approx(9 * time.low)
    SEEN.clear()
    (time,) = estimate_run(records, [Slow(per_character=0.01)], clock=clock).times
    assert 1 < time.sample < GROUPS * GROUP_SIZE
    assert NOW[0] < 1000


def test_a_metric_that_takes_three_seconds_a_record_is_timed_more_than_once() -> None:
    records = [replace(record, output="x" * 29) for record in make_records(100)]
    (time,) = estimate_run(records, [Slow(per_character=0.1)], clock=clock).times
    assert (time.groups, time.sample) == (2, 2)  # with the one that sets their size, 9 s


def test_one_record_is_enough() -> None:
    (time,) = estimate_run(make_records(1), [Slow()], clock=clock).times
    assert (time.records, time.sample) == (1, 1)
    assert time.seconds == pytest.approx(0.001 * (1 + len(make_records(1)[0].output)))


def test_groups_are_sampled_with_equal_probability() -> None:
    records = [Record(item=str(n), system="a", output="x") for n in range(GROUP_SIZE * 40)]
    counts = np.zeros(40)
    for seed in range(400):
        work = _MetricWork()
        work._random.seed(seed)
        for start in range(0, len(records), 64):
            work.add(records[start : start + 64])
        for group in work.sample:
            counts[int(group[0].item) // GROUP_SIZE] += 1
        assert len(work.sample) == GROUPS
    # 400 draws of 7 of 40 groups: 70 each, with a standard deviation of 7.6.
    assert counts.sum() == 400 * GROUPS
    assert abs(counts - 70).max() < 5 * 7.6


def test_records_that_cannot_be_scored_take_no_time() -> None:
    records = make_records(20)
    with_source = [Record(item="s", system="a", output="x" * 9, source="y" * 10)]
    (time,) = estimate_run([*records, *with_source], [Slow(needs_source=True)], clock=clock).times
    assert time.records == 1


@dataclass(frozen=True)
class Missing(Metric):
    """Its model is not there."""

    def score(self, _: Shard) -> Scores:
        raise ModelError("the model is not on this machine")


def test_a_metric_that_cannot_be_timed_says_why() -> None:
    missing, slow = estimate_run(make_records(3), [Missing(), Slow()], clock=clock).times
    assert (missing.reason, missing.records, missing.sample) == ("the model is not on this machine", 3, 0)
    assert math.isnan(missing.seconds)
    assert slow.sample == 3


@dataclass(frozen=True)
class Tone(LLMMetric):
    """Asks for a grade."""

    def prompt(self, record: Record) -> str:
        return f"Grade this:\n{record.output}"

    def parse(self, text: str) -> Score:
        return Score(value=float(text))


def test_one_prompt_per_metric_is_shown_and_nothing_is_asked() -> None:
    llm = FakeLLM(answers="4")
    result = estimate_run(make_records(5), [Tone(llm=llm), Slow()], clock=clock)
    assert result.records == 5
    ((metric, name),) = result.calls.prompts
    assert metric == Tone(llm=llm).label
    assert name.startswith("fake")
    (conversation,) = result.calls.prompts.values()
    assert [(m.role, m.text) for m in conversation] == [("user", f"Grade this:\n{make_records(5)[0].output}")]
    assert [time.metric for time in result.times] == [Slow().label]


def test_models_write_no_cache(tmp_path: Path) -> None:
    estimate_run(make_records(3), [Slow()], runtime=Runtime(cache=tmp_path / "kept"), clock=clock)
    assert all(shard.runtime.cache is None for shard in SEEN)
    assert not (tmp_path / "kept").exists()


def test_metrics_are_announced() -> None:
    announced: list[str] = []
    estimate_run(make_records(3), [Slow(), "length"], on_metric=announced.append)
    assert announced == [Slow().label, "length"]


def test_scores_that_the_run_folder_holds_are_counted_and_left_out(tmp_path: Path) -> None:
    records = make_records(40)
    tone = Tone(llm=FakeLLM(answers="4"))
    score(records[:30], [Slow(), tone], out=tmp_path / "run")
    before = sorted(path.name for path in tmp_path.rglob("*"))
    changed = [*records[:10], replace(records[10], output="other"), *records[11:]]
    result = estimate_run(changed, [Slow(), tone, "length"], out=tmp_path / "run", clock=clock)
    assert result.stored == {Slow().label: 29, tone.label: 29, "length": 0}
    assert [time.records for time in result.times] == [11, 40]
    assert sum(calls.calls for calls in result.calls.by_llm.values()) == 11
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_scores_that_a_run_would_compute_again_are_not_left_out(tmp_path: Path) -> None:
    records = make_records(20)
    unreadable = {record.output for record in records[:3]}
    llm = FakeLLM(lambda messages, _: "no" if messages[-1].text.partition("\n")[2] in unreadable else "4")
    tone, out = Tone(llm=llm), tmp_path / "run"
    assert len(score(records, [tone, "length"], out=out).scores[tone.label].failures) == 3

    def count(**options: Any) -> tuple[int, int, int]:
        result = estimate_run(records, [tone, "length"], out=out, runtime=Runtime().override(**options), clock=clock)
        calls = result.calls.by_llm.values()
        return sum(llm.calls for llm in calls), result.stored.get(tone.label, 0), result.stored["length"]

    assert count() == (0, 20, 20)
    assert count(retry_failed=True) == (3, 17, 20)
    assert count(fresh=True) == (20, 0, 20)


def test_a_destination_that_a_run_would_refuse_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with raises_code(RunError, "invalid_value", "notes.txt"):
        estimate_run(make_records(2), ["length"], out=tmp_path)
