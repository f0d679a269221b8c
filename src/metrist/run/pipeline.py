"""`score`, and the pipeline that it shares with `prefer`: read, cut into tasks, execute, collect.

`stored_pipeline` adds a run folder, which makes a run resumable.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterable, Iterator, Sequence, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metrist.errors import RunError
from metrist.io import Reader, read_records
from metrist.io.dedup import digest_source
from metrist.io.reader import check_keywords
from metrist.io.remote import is_remote
from metrist.io.writer import check_distinct
from metrist.metrics.base import Metric, is_resident
from metrist.metrics.registry import MetricList, build_all
from metrist.records import Record, RecordColumns, Unit, records_from_lists
from metrist.report.progress import Progress, find_progress_keywords, shows_progress
from metrist.run.executors import Ray, choose_executor
from metrist.run.flat_file import check_writable, flat_suffix, writes_remotely
from metrist.run.inputs import ScoredInput
from metrist.run.results import NothingScored, Results, describe_total_failure
from metrist.run.tasks import (
    SHARD_SIZE,
    SHARD_SIZE_WITH_MODEL,
    Block,
    Executor,
    NeedsCheck,
    Task,
    TaskResult,
    check_needs,
    cut_columns,
    cut_shards,
    join_blocks,
)
from metrist.runtime import Runtime
from metrist.scores import Scores

if TYPE_CHECKING:
    from metrist.run.store import Store


@writes_remotely
@shows_progress("scoring", "records")
def score(
    records: Any = None,
    metrics: MetricList = (),
    *,
    predictions: Any = None,
    references: Any = None,
    sources: Any = None,
    executor: str | Executor | None = None,
    out: str | os.PathLike[str] | None = None,
    progress: Progress | bool | None = None,
    shard_size: int | None = None,
    tokens: bool = False,
    texts: bool = True,
    runtime: Runtime | None = None,
    device: str | None = None,
    batch_tokens: int | None = None,
    cache: str | os.PathLike[str] | None = None,
    max_cost: float | None = None,
    concurrency: int | None = None,
    rpm: int | None = None,
    tpm: int | None = None,
    fresh: bool = False,
    retry_failed: bool = False,
    **reading: Any,
) -> Results:
    """Score records with metrics.

    `records` is anything that `read_records` accepts, or a reader that it returned; `reading` are its options, such as
    `fields={"output": "prediction"}`. `executor` is 'serial', 'processes', 'ray', 'ray:ADDRESS' or an object; by
    default the faster of the first two is used. `out` is a run folder, to which every call adds (the results are then
    those of the whole folder), or a .jsonl, .csv or .parquet file, which is written whole or not at all; both can be
    URLs (s3://…). A run folder stores the texts, unless `texts` is False. `tokens` asks metrics for scores of single
    tokens.

    Instead of `records`, lists can be given: the `predictions` of one system, or a mapping from systems to theirs, with
    `references` (a text or a list of texts for each) and `sources`.

    `progress` is called with the records done, or says whether to show a line of progress, as notebooks do by default.

    The remaining arguments change no score. `runtime` holds them all; each can also be given alone: where models run
    (`device`), tokens per batch (`batch_tokens`), the folder in which models keep what they computed (`cache`), US
    dollars that LLMs may cost (`max_cost`), LLM requests at once (`concurrency`), and requests and tokens per minute
    (`rpm`, `tpm`). `fresh` requests all LLM answers again that are stored already, `retry_failed` those that failed or
    could not be read.
    """
    if reading:
        check_keywords(score, reading)
    runtime = (runtime or Runtime.current()).override(
        device=device,
        batch_tokens=batch_tokens,
        cache=cache,
        max_cost=max_cost,
        concurrency=concurrency,
        rpm=rpm,
        tpm=tpm,
        fresh=fresh,
        retry_failed=retry_failed,
    )
    built = build_all(metrics)
    if not built:
        raise RunError("no metric was requested: name at least one, such as 'chrf'")
    file, store = resolve_destination(out)
    if store:
        from metrist.run.stored_pipeline import name_metrics

        built = name_metrics(store, built)
    if predictions is not None or references is not None or sources is not None:
        if records is not None or predictions is None:
            raise RunError("expected records, or predictions with their references and sources; not a mixture")
        records = records_from_lists(predictions, references, sources, system=reading.pop("system", None))
    elif records is None:
        raise RunError("nothing to score: give records (a file, rows or a frame), or predictions=[…]")
    reader = read_records(records, **reading)
    if file:
        check_distinct(file, reader.names)
    options: dict[str, Any] = {
        "executor": executor,
        "shard_size": shard_size,
        "tokens": tokens,
        "progress": progress,
        "reader": reader,
        "total": len(records) if isinstance(records, Sized) and not reader.names else None,
    }
    scored = ScoredInput(sources=reader.sources, input=reader)
    pipeline = Pipeline(built, runtime, **options)
    if store:
        from metrist.run.stored_pipeline import StoredPipeline

        pipeline = StoredPipeline(built, runtime, store, texts=texts, **options)
    blocks = pipeline.run(reader if reader.names or store else scored)
    scores: dict[str, Scores] = {metric.label: blocks[metric.text] for metric in built}
    remarks = (remark for metric in built for remark in metric.remarks(scores[metric.label]))
    skipped = () if reader.announce else reader.skipped.describe()  # The command line tells more of them.
    # A folder has a remark of its own on sources, which is about all of its records.
    about_input = [remark for remark in reader.remarks if not (store and remark in reader.source_remarks)]
    notes = (*about_input, *skipped, *pipeline.notes, *remarks)
    results = Results(
        items=pipeline.items,
        systems=pipeline.systems,
        sources=pipeline.sources,
        metrics=built,
        scores=scores,
        signatures={metric.label: pipeline.signatures[metric.text] for metric in built},
        notes=notes,
        inputs=store.open_run() if store else scored if reader.is_repeatable else None,
        reference_counts=tuple(sorted(pipeline.reference_counts)),
    )
    if file:
        results.write(file)
    # A metric that scored nothing is a fault of the run. What there is has been written: it shows the reasons.
    for metric in built:
        own: Scores = pipeline.own_blocks.get(metric.text, scores[metric.label])
        if own.failures and len(own) > 1 and (message := describe_total_failure(metric.label, own)):
            written = file or (store.path if store else None)
            raise NothingScored(f"{message}{f' (all of it is in {written})' if written else ''}", results)
    return results


def resolve_destination(out: str | os.PathLike[str] | None) -> tuple[Path | None, Store | None]:
    """The flat file or the run folder that a path asks for. What could not be written at the end is refused now;
    nothing is written yet."""
    if out is None:
        return None, None
    from metrist.run.store import open_store

    if isinstance(out, str) and is_remote(out) and not flat_suffix(Path(out)):
        store = open_store(out)
        store.check()
        return None, store
    path = Path(out)
    if path.suffix and flat_suffix(path):
        check_writable(path)
        return path, None
    named_as_folder = os.fspath(out).endswith(("/", os.sep)) or path.is_dir()
    if not named_as_folder and re.fullmatch(r"\.[A-Za-z]\w*", path.suffix):
        raise RunError(
            f"cannot tell what to write to {path}: expected a folder (end it with '/'), or a file that ends in "
            ".jsonl, .csv or .parquet"
        )
    store = open_store(path)
    store.check()
    return None, store


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
    ) -> None:
        if shard_size is not None and shard_size < 1:
            raise RunError(f"shard_size must be at least 1, got {shard_size}")
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
        #: By the metric's text, the scores of this run's own records, where `run` returned those of others too.
        self.own_blocks: dict[str, Any] = {}
        self._metrics = metrics
        self._runtime = runtime
        self._shard_size = shard_size
        self._tokens = tokens
        self._reader, self._total = reader, total
        self._progress: Any = progress
        self._progress_keywords, self._progress_label = find_progress_keywords(progress), ""
        self._can_repeat = reader is None or reader.is_repeatable
        self._count = self._done = self._done_before = 0
        #: Metrics that go over the input together, in the order in which they do, and the executor of each group.
        self._phases = list[tuple[Sequence[Metric], Executor]]()
        for phase in self._order_metrics():
            chosen, notes = choose_executor(executor, phase, runtime)
            self._phases.append((phase, chosen))
            self.notes += [note for note in notes if note not in self.notes]

    def _order_metrics(self) -> list[Sequence[Metric]]:
        return [self._metrics]

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
            for start, shard in self._read_shards(units, size):
                self._count += len(shard)
                if isinstance(shard[0], Record):
                    records = RecordColumns.of(shard)  # type: ignore[arg-type]
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
            self._report(max(len(outcome.block) for outcome in result.outcomes.values()))
        return {text: join_blocks(parts) for text, parts in blocks.items()}

    def _read_shards(self, units: Reader | Iterable[Unit], size: int) -> Iterator[tuple[int, Sequence[Unit]]]:
        """Consecutive units with the position of the first. Files are read as columns."""
        if not (isinstance(units, Reader) and units.names):
            yield from cut_shards(check_needs(self._metrics, units), size)
            return
        needs, start = NeedsCheck(self._metrics), 0
        waiting = list[RecordColumns]()
        for batch in units.batches(judgments=False):
            waiting.append(batch.records)
            if not needs.add(batch.records):  # More records decide whether a metric can score any.
                continue
            for records in waiting:
                for shard in cut_columns(records, size):
                    yield start, shard
                    start += len(shard)
            waiting.clear()
        needs.finish()

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
        self._progress_label = ", ".join(metric.label for metric in metrics)
        if "metric" in self._progress_keywords:
            self._report(0)

    def _report(self, count: int, stored: int = 0) -> None:
        """Report that these records are done, some of which were stored already. How many a file holds is estimated
        from the share of it read so far."""
        self._done += count
        self._done_before += stored
        if not self._progress:
            return
        share = self._reader.share_read if self._reader and self._count and not self._total else None
        total = self._total or (round(self._count / share) if share else None)
        more = {"metric": self._progress_label, "stored": self._done_before}
        self._progress(self._done, total, **{name: more[name] for name in self._progress_keywords})
