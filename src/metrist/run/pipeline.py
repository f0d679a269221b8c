"""`score`, and the pipeline that it shares with `prefer`: read, cut into tasks, execute, collect.

`stored_pipeline` adds a run folder, which makes a run resumable.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from enum import Enum
from typing import Any

from metrist.errors import RunError
from metrist.io import Reader
from metrist.io.dedup import digest_source
from metrist.metrics.base import Metric, calls_llm, is_resident
from metrist.records import Record, RecordColumns, Unit
from metrist.report.progress import Progress, find_progress_keywords
from metrist.run.executors import Ray, choose_executor
from metrist.run.tasks import (
    SHARD_SIZE,
    SHARD_SIZE_WITH_MODEL,
    Block,
    Executor,
    Task,
    TaskResult,
    join_blocks,
    read_shards,
)
from metrist.runtime import Runtime


class MetricCost(Enum):
    """How costly a metric is, in the order in which they are computed."""

    cheap = 1
    #: It holds a model: tasks take a few seconds each.
    model = 2
    #: It starts a program, which loads its model again for each task: tasks are large.
    program = 3
    #: It asks an LLM. Answers are stored as they come, and many are asked for at once: tasks are large.
    llm = 4

    @classmethod
    def of(cls, metric: Metric) -> MetricCost:
        if calls_llm(metric):
            return cls.llm
        if metric.programs:
            return cls.program
        return cls.model if is_resident(metric) else cls.cheap


class Pipeline:
    """Metrics over records, or comparators over pairs: one pass, from which only results come."""

    def __init__(
        self,
        metrics: Sequence[Metric],
        runtime: Runtime,
        *,
        executor: str | Executor | None = None,
        shard_size: int | None = None,
        tokens: bool = False,
        progress: Progress | bool | None = None,
        reader: Reader | None = None,
        total: int | None = None,
        phases: Sequence[Sequence[Metric]] | None = None,
    ) -> None:
        if shard_size is not None and shard_size < 1:
            raise RunError(f"shard_size must be at least 1, got {shard_size}", code="invalid_value")
        self.signatures = {metric.text: metric.signature for metric in metrics}
        self.items: Sequence[str] = []
        self.systems: Sequence[str] = []
        #: Digests of the sources.
        self.sources: Sequence[str] = []
        #: The different numbers of references that records have, records without any aside.
        self.reference_counts: set[int] = set()
        self.notes: list[str] = []
        #: By the metric's text, notes on records that it is not made for.
        self._misuse: dict[str, list[str]] = {}
        self._warned_source = 0
        #: The run that holds the records, if it has a folder.
        self.stored_run: Any = None
        #: By the metric's text, the scores of this run's own records, where `run` returned those of others too.
        self.own_blocks: dict[str, Any] = {}
        self._metrics = metrics
        self._runtime = runtime
        self._shard_size = shard_size
        self._tokens = tokens
        self._reader, self._total = reader, total
        self._progress: Any = progress
        self._progress_keywords, self._progress_label = find_progress_keywords(progress), ""
        self._count = self._done = self._done_before = 0
        self._scores_per_record = 1
        #: Metrics that go over the input together, in the order in which they do, and the executor of each group.
        self._phases = list[tuple[Sequence[Metric], Executor]]()
        for phase in phases or [metrics]:
            chosen, notes = choose_executor(executor, phase, runtime)
            self._phases.append((phase, chosen))
            self.notes += [note for note in notes if note not in self.notes]

    def _warn(self, start: int, records: Sequence[Record], source: int | None = None) -> None:
        """Note which metrics are not made for an input, which its first records show."""
        if source is None:
            source = self._reader.source_number if self._reader else 0
        if start and source == self._warned_source:
            return
        self._warned_source = source
        for metric in self._metrics:
            for note in metric.describe_misuse(records):
                own = self._misuse.setdefault(metric.text, [])
                if note not in own:
                    own.append(note)
                    self.notes.append(note)
                    if self._reader and self._reader.announce:
                        self._reader.announce(note)  # Before the time is spent.

    def run(self, units: Reader | Iterable[Unit]) -> dict[str, Any]:
        """The scores or judgments of the units in their order, by the metric's text."""
        names: dict[str, str] = {}
        all_items, all_systems, all_sources = list[str](), list[str](), list[str]()
        self.items, self.systems, self.sources = all_items, all_systems, all_sources
        blocks: dict[str, list[Block]] = {text: [] for text in self.signatures}
        # An external program loads its model again for each shard, so it gets large ones.
        small = any(map(is_resident, self._metrics)) and not any(metric.programs for metric in self._metrics)
        size = self._shard_size or (SHARD_SIZE_WITH_MODEL if small else SHARD_SIZE)

        def tasks() -> Iterator[Task]:
            for start, shard in read_shards(self._metrics, units, size):
                self._count += len(shard)
                if isinstance(shard[0], Record):
                    records = RecordColumns.of(shard)
                    self._warn(start, records)
                    intern = names.setdefault  # Names repeat: each is kept once.
                    all_items.extend(map(intern, records.items, records.items))
                    all_systems.extend(map(intern, records.systems, records.systems))
                    sources = [digest_source(source) for source in records.sources]
                    all_sources.extend(map(intern, sources, sources))
                    self.reference_counts |= {len(texts) for texts in records.references if texts}
                if not (start or self._total) and "metric" in self._progress_keywords:
                    self._report(0)  # How many there are is known before the first is scored.
                metrics = tuple(self.signatures)
                yield Task(start=start, units=shard, metrics=metrics, tokens=self._tokens, runtime=self._runtime)

        ((metrics, executor),) = self._phases
        self._begin_phase(metrics)
        for result in self._execute(metrics, executor, tasks()):
            for text, outcome in result.outcomes.items():
                blocks[text].append(outcome.block)
            self._report(sum(len(outcome.block) for outcome in result.outcomes.values()))
        return {text: join_blocks(parts) for text, parts in blocks.items()}

    def _execute(self, metrics: Sequence[Metric], executor: Executor, tasks: Iterator[Task]) -> Iterator[TaskResult]:
        results = executor.map(metrics, tasks)
        try:
            yield from results
        finally:
            if isinstance(results, Generator):
                results.close()  # Stops the workers.
            if isinstance(executor, Ray):
                self.notes += executor.notes
                executor.notes.clear()

    def _begin_phase(self, metrics: Sequence[Metric]) -> None:
        """Report that these metrics begin to go over the input."""
        self._done = self._done_before = 0
        self._scores_per_record = len(metrics)
        self._progress_label = ", ".join(metric.label for metric in metrics)
        if "metric" in self._progress_keywords:
            self._report(0)

    def _report(self, count: int, stored: int = 0) -> None:
        """Report that so many scores are done, some of which were stored already, as records: a metric may have scored
        more of them than another. How many a file holds is estimated from the share of it read so far."""
        self._done += count
        self._done_before += stored
        if not self._progress:
            return
        share = self._reader.share_read if self._reader and self._count and not self._total else None
        total = self._total or (round(self._count / share) if share else None)
        done, before = self._done // self._scores_per_record, self._done_before // self._scores_per_record
        more = {"metric": self._progress_label, "stored": before}
        self._progress(done, total, **{name: more[name] for name in self._progress_keywords})
