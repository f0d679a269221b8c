"""Estimate a run before it starts: LLM requests with one prompt in full, and the time of local metrics, which
are timed on a few of the records."""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metrist.errors import MetristError
from metrist.io import read_records
from metrist.io.remote import is_remote, local_path
from metrist.llm.estimate import CallEstimate, estimate_calls
from metrist.metrics.base import Metric, Shard, calls_llm
from metrist.metrics.registry import MetricList, build_all
from metrist.models.devices import no_downloads
from metrist.records import Record, hash_units
from metrist.run.flat_file import flat_suffix
from metrist.run.scoring import resolve_destination
from metrist.run.tasks import SHARD_SIZE_WITH_MODEL, count_characters, find_scorable, read_shards, score_shard
from metrist.runtime import Runtime

if TYPE_CHECKING:
    from metrist.run.run import Run

#: Groups of consecutive records, which may share a source, that are timed at most; records in a group; and seconds
#: after which no more are timed.
GROUPS, GROUP_SIZE, MAX_SECONDS = 7, 8, 10.0
#: The range of a time is at least this share on either side: larger batches make a run faster, other programs slower.
MIN_SPREAD = 0.25
#: Two-sided 95 % quantiles of Student's t with 1 to 5 degrees of freedom.
_T95 = (12.71, 4.30, 3.18, 2.78, 2.57)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeEstimate:
    """The time of one metric: `seconds` for the `records` that are left to score, from `low` to `high`.

    `sample` is how many of them were timed, in so many `groups`, after `loading` seconds for the model and the first
    record. Where nothing was timed, `reason` says why and the numbers are NaN.
    """

    metric: str
    records: int
    sample: int = 0
    groups: int = 0
    loading: float = math.nan
    seconds: float = math.nan
    low: float = math.nan
    high: float = math.nan
    reason: str = ""

    @property
    def seconds_per_record(self) -> float:
        return self.seconds / self.records if self.records else math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEstimate:
    """What a run of so many records would take: LLM calls, and the time of the metrics that call none."""

    records: int
    calls: CallEstimate
    times: tuple[TimeEstimate, ...]
    #: How many scores of each metric the run folder holds already; they are not in the calls and times.
    stored: Mapping[str, int] = field(default_factory=dict)
    #: On records that a metric is not made for.
    notes: tuple[str, ...] = ()


def estimate(records: Any, metrics: MetricList, **reading: Any) -> CallEstimate:
    """The LLM requests that `score` with the same arguments would make. Nothing is sent and nothing written; metrics
    that call no LLM are left out."""
    return estimate_run(records, [metric for metric in build_all(metrics) if calls_llm(metric)], **reading).calls


def estimate_run(
    records: Any,
    metrics: MetricList,
    *,
    out: str | os.PathLike[str] | None = None,
    tokens: bool = False,
    runtime: Runtime | None = None,
    on_metric: Callable[[str], None] = lambda _: None,
    clock: Callable[[], float] = time.perf_counter,
    **reading: Any,
) -> RunEstimate:
    """What `score` with the same arguments would take. Nothing is sent or written, and no model is downloaded.

    Metrics that call no LLM are timed on a random sample of the records, for a few seconds each, and the time is scaled
    by the length of all texts; `on_metric` is called with the label of each before. Scores that the run folder `out`
    holds already are counted and left out of everything else; a folder in a store is copied first.
    """
    built = build_all(metrics)
    runtime = runtime or Runtime.current()
    judges = [metric for metric in built if calls_llm(metric)]
    work = [(metric, _MetricWork()) for metric in built if not calls_llm(metric)]
    notes: dict[str, None] = {}
    run = _open_run(out, notes)
    settled = _read_settled(built, run, tokens=tokens, runtime=runtime) if run else {}
    stored = dict.fromkeys(settled, 0)
    count, source = 0, 0
    reader = read_records(records, **reading)
    with runtime.activate(), estimate_calls() as calls:
        for start, shard in read_shards(built, reader, SHARD_SIZE_WITH_MODEL):
            count += len(shard)
            if not start or reader.source_number != source:
                source = reader.source_number
                notes |= dict.fromkeys(note for metric in built for note in metric.describe_misuse(shard))
            left: dict[str, Sequence[Record]] = {metric.label: shard for metric in built}
            hashes = [digest.tobytes() for digest in hash_units(shard)] if settled else []
            for label, known in settled.items():
                left[label] = [record for record, digest in zip(shard, hashes, strict=True) if digest not in known]
                stored[label] += len(shard) - len(left[label])
            for metric, part in work:
                records_left = left[metric.label]
                part.add([records_left[i] for i in find_scorable(metric, records_left)])
            for metric in judges:
                calls.metric = metric.label
                if left[metric.label]:
                    score_shard(metric, Shard(left[metric.label], runtime=runtime))
        without_cache = replace(runtime, cache=None)  # It would be written to, and make the sample look fast.
        times = []
        for metric, part in work:
            on_metric(metric.label)
            times.append(_time_metric(metric, part, tokens, without_cache, clock))
    return RunEstimate(records=count, calls=calls, times=tuple(times), stored=stored, notes=tuple(notes))


def _open_run(out: str | os.PathLike[str] | None, notes: dict[str, None]) -> Run | None:
    """The run that may hold scores. A store that cannot be reached is noted."""
    if isinstance(out, str) and is_remote(out):
        local_path(out)  # Refuses what `score` refuses.
        if flat_suffix(Path(out)):
            return None
    from metrist.run.run import Run

    try:
        _, store = resolve_destination(out)
        manifest = store.read_manifest() if store else None
    except MetristError as error:
        if not (isinstance(out, str) and is_remote(out)):
            raise
        notes[f"scores that {out} may hold are not counted: {error}"] = None
        return None
    return Run.open(store) if store and manifest else None


def _read_settled(
    metrics: Sequence[Metric], run: Run, *, tokens: bool, runtime: Runtime
) -> dict[str, frozenset[bytes]]:
    """The hashes of the records that a run has scored and would not score again, by metric."""
    settled = {}
    for metric in metrics:
        if not (runtime.fresh is not None and calls_llm(metric)):
            retried = runtime.retry_failed is not None and calls_llm(metric)
            hashes = run.read_settled(metric.text, metric.signature, tokens=tokens, retry_failed=retried)
            settled[metric.label] = frozenset(digest.tobytes() for digest in hashes)
    return settled


@dataclass(slots=True)
class _MetricWork:
    """The records that a metric has to score: how many, how many characters, and random groups of them."""

    records: int = 0
    characters: int = 0
    sample: list[Sequence[Record]] = field(default_factory=list)
    _groups: int = 0
    _random: random.Random = field(default_factory=lambda: random.Random(0))

    def add(self, records: Sequence[Record]) -> None:
        self.records += len(records)
        self.characters += _count_characters(records)
        for start in range(0, len(records), GROUP_SIZE):
            self._groups += 1
            # Each group is in the sample with the same probability, however many come.
            place = len(self.sample) if len(self.sample) < GROUPS else self._random.randrange(self._groups)
            self.sample[place : place + 1] = [records[start : start + GROUP_SIZE]] if place < GROUPS else []


def _count_characters(records: Sequence[Record]) -> int:
    """With one more for each record, which may be empty."""
    return len(records) + count_characters(records)


def _time_metric(
    metric: Metric, work: _MetricWork, tokens: bool, runtime: Runtime, clock: Callable[[], float]
) -> TimeEstimate:
    if not work.records:
        return TimeEstimate(metric=metric.label, records=0, reason="it has no record left to score")
    if metric.programs:
        return TimeEstimate(metric=metric.label, records=work.records, reason="it runs a program of its own")

    def measure(records: Sequence[Record]) -> float:
        began = clock()
        score_shard(metric, Shard(records, tokens=tokens, runtime=runtime))
        return clock() - began

    first, *rest = work.sample
    groups = rest or [first]
    timed: list[tuple[float, int, int]] = []  # Seconds, characters and records of each group.
    try:
        with no_downloads(), runtime.activate():
            loading = measure(first[:1])
            single = spent = measure(groups[0][:1])
            # A slow metric gets smaller groups, so that a dry run does not take long.
            size = max(1, min(GROUP_SIZE, int(MAX_SECONDS / 4 / max(single, 1e-9))))
            for group in (group[:size] for group in groups):
                if spent + single > MAX_SECONDS:
                    break
                timed.append((measure(group), _count_characters(group), len(group)))
                spent += timed[-1][0]
    except MetristError as error:
        return TimeEstimate(metric=metric.label, records=work.records, reason=str(error))
    timed = timed or [(single, _count_characters(groups[0][:1]), 1)]
    low, rate, high = _estimate_rate([(seconds, characters) for seconds, characters, _ in timed])
    return TimeEstimate(
        metric=metric.label,
        records=work.records,
        sample=sum(count for _, _, count in timed),
        groups=len(timed),
        loading=loading,
        seconds=rate * work.characters,
        low=low * work.characters,
        high=high * work.characters,
    )


def _estimate_rate(groups: Sequence[tuple[float, int]]) -> tuple[float, float, float]:
    """Seconds per character, with a 95 % interval from the spread of the groups; a third to threefold for one group."""
    seconds, characters = sum(s for s, _ in groups), sum(c for _, c in groups)
    rate, number = seconds / characters, len(groups)
    if number == 1:
        return rate / 3, rate, rate * 3
    # The standard error of a ratio of two sums.
    squares = sum((s - rate * c) ** 2 for s, c in groups)
    error = math.sqrt(squares / (number * (number - 1))) / (characters / number)
    spread = max(_T95[min(number - 1, len(_T95)) - 1] * error, MIN_SPREAD * rate)
    return max(rate - spread, 0.0), rate, rate + spread
