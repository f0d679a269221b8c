"""The pipeline that `score` and `prefer` share: read, shard, look up stored results, execute, store, collect.

A run folder makes a run resumable, and runs add to it: what it holds of a record is read back instead of computed,
unless it failed for a reason that may have passed.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import sys
import tempfile
import weakref
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import Enum
from itertools import groupby, tee
from operator import itemgetter
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrist._version import __version__
from metrist.columns import HashColumn
from metrist.errors import RunError
from metrist.io import Reader, read_records
from metrist.io.dedup import digest_source
from metrist.io.reader import check_keywords
from metrist.io.writer import check_distinct
from metrist.metrics.base import Metric, calls_llm, is_resident
from metrist.metrics.registry import MetricList, build_all
from metrist.records import Record, records_from_lists
from metrist.report.progress import Progress, find_progress_keywords, shows_progress
from metrist.run import columns
from metrist.run.columns import to_keys, to_rows
from metrist.run.executors import Ray, choose_executor
from metrist.run.flat_file import check_writable, flat_suffix
from metrist.run.inputs import ScoredInput
from metrist.run.remote_folder import check_writer, writes_remotely
from metrist.run.results import NothingScored, Results, describe_total_failure
from metrist.run.run_folder import (
    Listed,
    Manifest,
    MetricFolder,
    Piece,
    RunFolder,
    folder_name,
    write_object,
)
from metrist.run.shard_file import (
    Block,
    Header,
    ShardFile,
    Unit,
    digest_of,
    encode,
    hash_units,
    join_blocks,
    take_rows,
)
from metrist.run.tasks import (
    SHARD_SIZE,
    SHARD_SIZE_WITH_MODEL,
    Executor,
    Outcome,
    Pace,
    Task,
    TaskResult,
    check_needs,
    cut_shards,
)
from metrist.run.view import Draft, View, ViewUpdate
from metrist.runtime import Runtime
from metrist.scores import Scores

#: Seconds after which results of a group that is not complete yet are stored.
SAVE_SECONDS = 1.0


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
    URLs (s3://…). `tokens` asks metrics for scores of single tokens.

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
    file, folder = resolve_destination(out)
    if folder:
        built = folder.name_metrics(built)
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
    pipeline = StoredPipeline(built, runtime, folder, **options) if folder else Pipeline(built, runtime, **options)
    scored = ScoredInput(sources=reader.sources, input=reader)
    blocks = pipeline.run(reader if reader.names else scored)
    scores: dict[str, Scores] = {metric.label: blocks[metric.text] for metric in built}
    remarks = (remark for metric in built for remark in metric.remarks(scores[metric.label]))
    skipped = () if reader.announce else reader.skipped.describe()  # The command line tells more of them.
    # A folder has a remark of its own on sources, which is about all of its records.
    about_input = [remark for remark in reader.remarks if not (folder and remark in reader.source_remarks)]
    notes = (*about_input, *skipped, *pipeline.notes, *remarks)
    results = Results(
        items=pipeline.items,
        systems=pipeline.systems,
        sources=pipeline.sources,
        metrics=built,
        scores=scores,
        signatures={metric.label: pipeline.signatures[metric.text] for metric in built},
        notes=notes,
        inputs=scored if reader.is_repeatable and pipeline.has_all_records else folder.path if folder else None,
        reference_counts=tuple(sorted(pipeline.reference_counts)),
    )
    if file:
        results.write(file)
    # A metric that scored nothing is a fault of the run. What there is has been written: it shows the reasons.
    for metric in built:
        own: Scores = pipeline.own_blocks.get(metric.text, scores[metric.label])
        if own.failures and len(own) > 1 and (message := describe_total_failure(metric.label, own)):
            written = file or (folder.path if folder else None)
            raise NothingScored(f"{message}{f' (all of it is in {written})' if written else ''}", results)
    return results


def resolve_destination(out: str | os.PathLike[str] | None) -> tuple[Path | None, RunFolder | None]:
    """The flat file or the run folder that a path asks for. What could not be written at the end is refused now;
    nothing is written yet."""
    if out is None:
        return None, None
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
    return None, RunFolder(path)


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
        #: Whether `run` returned scores of this run's own records only; if not, these are theirs by the metric's text.
        self.has_all_records = True
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

    def _warn(self, start: int, records: Sequence[Record]) -> None:
        """Note which metrics are not made for an input, which its first records show."""
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

    def run(self, units: Iterable[Unit]) -> dict[str, Any]:
        """The scores or judgments of the units in their order, by the metric's text."""
        names: dict[str, str] = {}
        all_items, all_systems, all_sources = list[str](), list[str](), list[str]()
        self.items, self.systems, self.sources = all_items, all_systems, all_sources
        blocks: dict[str, list[Block]] = {text: [] for text in self.signatures}
        # An external program loads its model again for each shard, so it gets large ones.
        small = any(map(is_resident, self._metrics)) and not any(metric.programs for metric in self._metrics)
        size = self._shard_size or (SHARD_SIZE_WITH_MODEL if small else SHARD_SIZE)

        def tasks() -> Iterator[Task]:
            for start, shard in cut_shards(check_needs(self._metrics, units), size):
                self._count += len(shard)
                if isinstance(shard[0], Record):
                    records: Any = shard
                    self._warn(start, records)
                    intern = names.setdefault  # Names repeat: each is kept once.
                    items, systems = [record.item for record in records], [record.system for record in records]
                    all_items.extend(map(intern, items, items))
                    all_systems.extend(map(intern, systems, systems))
                    sources = [digest_source(record.source) for record in records]
                    all_sources.extend(map(intern, sources, sources))
                    self.reference_counts |= {len(record.references) for record in records if record.references}
                if not (start or self._total) and "metric" in self._progress_keywords:
                    self._report(0)  # How many there are is known before the first is scored.
                headers = dict.fromkeys(self.signatures)
                yield Task(start=start, units=shard, headers=headers, tokens=self._tokens, runtime=self._runtime)

        ((metrics, executor),) = self._phases
        self._begin_phase(metrics)
        for result in self._execute(metrics, executor, tasks()):
            for text, outcome in result.outcomes.items():
                blocks[text].append(outcome.block)
            self._report(max(len(outcome.block) for outcome in result.outcomes.values()))
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


# ---- Runs with a folder ----


class _Kind(Enum):
    """How costly a metric is, in the order in which they are computed."""

    cheap = 1
    #: It holds a model: tasks take a few seconds each.
    model = 2
    #: It starts a program, which loads its model again for each task: tasks are large.
    program = 3
    #: It asks an LLM. Answers are stored as they come, and many are asked for at once: tasks are large.
    llm = 4

    @classmethod
    def of(cls, metric: Metric) -> _Kind:
        if calls_llm(metric):
            return cls.llm
        if metric.programs:
            return cls.program
        return cls.model if is_resident(metric) else cls.cheap


@dataclass(eq=False, slots=True)
class _Group:
    """Consecutive units of one input, which share a shard file. `start` is the position of the first in its input."""

    number: int
    start: int
    units: tuple[Unit, ...]
    hashes: tuple[str, ...]
    parts: list[_Part] = field(default_factory=list)
    reported: int = 0


class _GroupList:
    """Position and hashes of each group of an input. Those of a long input go to disk."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._hashes = tempfile.SpooledTemporaryFile(max_size=16 * columns.MAX_IN_MEMORY)  # noqa: SIM115
        weakref.finalize(self, self._hashes.close)

    def __len__(self) -> int:
        return len(self._starts)

    def append(self, start: int, hashes: Sequence[str]) -> None:
        self._starts.append(start)
        self._ends.append(len(hashes) + (self._ends[-1] if self._ends else 0))
        self._hashes.seek(0, os.SEEK_END)
        self._hashes.write(bytes.fromhex("".join(hashes)))

    def count(self, number: int) -> int:
        """How many units a group has."""
        return self._ends[number] - (self._ends[number - 1] if number else 0)

    def read(self, number: int) -> tuple[int, tuple[str, ...]]:
        """The position and the hashes of a group."""
        count = self.count(number)
        self._hashes.seek(16 * (self._ends[number] - count))
        return self._starts[number], tuple(HashColumn(self._rows(count)))

    def has(self, number: int, start: int, hashes: tuple[str, ...]) -> bool:
        """Whether this is what a group was when it was first read."""
        return number < len(self) and self.read(number) == (start, hashes)

    def all_rows(self) -> NDArray[np.uint8]:
        """The hashes of all groups as rows of bytes."""
        self._hashes.seek(0)
        return self._rows(self._ends[-1] if self._ends else 0)

    def _rows(self, count: int) -> NDArray[np.uint8]:
        return np.frombuffer(self._hashes.read(16 * count), np.uint8).reshape(-1, 16)


@dataclass(eq=False, slots=True)
class _Finished:
    """The file of a finished group. `block` is what it holds, None in a large run; `usages` are what it cost."""

    name: str
    count: int
    tokens: bool
    block: Block | None
    usages: Mapping[int, Any] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class _Part:
    """What one metric has of a group so far."""

    group: _Group
    #: Of the file that the group will have.
    header: Header
    pieces: list[Piece]
    #: How many units the folder had before, and how many are scored now.
    stored: int
    count: int
    #: Pieces that are in no file yet, and since when; the files of the others.
    unsaved: list[Piece] = field(default_factory=list)
    unsaved_since: float = 0.0
    partial_files: list[str] = field(default_factory=list)
    timing: dict[str, Any] | None = None


class StoredPipeline(Pipeline):
    """Metrics over records, or comparators over pairs, into a folder.

    Each score is stored under the hash of its record, so that none is computed twice. Where the input can be read more
    than once, cheap metrics go over all of it before those with a model do. In the end each group of consecutive
    records has one file per metric; until it is complete, what there is of it is stored every few seconds.
    """

    def __init__(self, metrics: Sequence[Metric], runtime: Runtime, folder: RunFolder, **options: Any) -> None:
        super().__init__(metrics, runtime, **options)
        folder.check_format()
        manifest = folder.manifest
        self._size = self._shard_size or (manifest.shard_size if manifest else SHARD_SIZE)
        self._folder = folder
        # Answers of LLMs may be requested again, all or those that failed: stored scores are then computed again.
        asking = {metric.text for metric in metrics if calls_llm(metric)}
        self._fresh = asking if runtime.fresh is not None else set()
        retried = asking if runtime.retry_failed is not None else set()
        self._stores = {
            text: MetricFolder(folder.path, folder_name(text), retry_failed=text in retried) for text in self.signatures
        }
        self._update: ViewUpdate | None = None
        if self._reader:
            drafts = [
                Draft(name=source.name, path=source.path, options=self._reader.source_options(n) if source.path else {})
                for n, source in enumerate(self._reader.sources)
            ]
            self._update = ViewUpdate.open(folder.path, drafts)
        self._view: View | None = None
        self._covers_folder = False
        #: Position and hashes of each group, once the input has been read.
        self._groups = _GroupList()
        #: The file of each finished group, by the metric's text and the number of the group.
        self._files: dict[str, dict[int, _Finished]] = {text: {} for text in self.signatures}
        #: The metrics that have scored a unit of this run.
        self._scored: set[str] = set()
        readers = {_Kind.of(metric) for metric in metrics if "references" in metric.needs}
        self._paces = {kind: Pace(references=kind in readers) for kind in _Kind}
        self._pending: deque[tuple[_Kind, _Group, tuple[int, ...], list[_Part]]] = deque()
        self._open: dict[int, _Part] = {}
        self._computed = 0
        self._began = datetime.now(UTC)

    def _order_metrics(self) -> list[Sequence[Metric]]:
        if not self._can_repeat:
            return [sorted(self._metrics, key=lambda metric: _Kind.of(metric).value)]
        by_kind = ([metric for metric in self._metrics if _Kind.of(metric) is kind] for kind in _Kind)
        return [phase for phase in by_kind if phase]

    def run(self, units: Iterable[Unit]) -> dict[str, Any]:
        """The scores of all records of the folder, or the judgments of the input's pairs, by the metric's text."""
        first, _ = self._phases[0]
        self._begin_phase(first)
        added_to = self._update is not None and bool(self._update.view.inputs)
        if self._can_repeat and (added_to or _Kind.of(first[0]) is not _Kind.cheap):
            # Whatever is wrong with the input is known before anything is scored.
            for _ in self._read_groups(units):
                pass
        for metrics, executor in self._phases:
            if metrics is not first:
                self._begin_phase(metrics)
            self._run_phase(metrics, executor, units)
            self._finish_view()
            for metric in metrics:
                self._close(metric)
        self.notes += [note for store in self._stores.values() for note in store.damaged]
        if self._computed:
            self._write_machine()
        return {text: self._collect(text) for text in self.signatures}

    # ---- Reading ----

    def _read_groups(self, units: Iterable[Unit]) -> Iterator[_Group]:
        """The groups of the input. When it is first read, its records are noted; later they are checked."""
        number, is_first, reader = 0, not len(self._groups), self._reader
        # Each unit with the number of the source that it comes from.
        tagged: Iterator[tuple[int, Unit]] = ((reader.source_number if reader else 0, unit) for unit in units)
        if is_first:
            tagged, ahead = tee(tagged)
            check_needs(self._metrics, map(itemgetter(1), ahead))
            del ahead  # Otherwise `tee` would keep all units for it.
        for source, members in groupby(tagged, key=itemgetter(0)):
            for start, shard in cut_shards(map(itemgetter(1), members), self._size):
                hashes = hash_units(shard)
                if is_first:
                    if self._update:
                        records: Any = shard
                        self._warn(start, records)
                        self._update.add(self._update.drafts[source], records, hashes)
                    self._groups.append(start, hashes)
                    self._count += len(shard)
                    if self._is_large:
                        self._drop_blocks()
                elif not self._groups.has(number, start, hashes):
                    raise RunError(self._describe_change(source))
                yield _Group(number, start, shard, hashes)
                number += 1
        if number != len(self._groups):
            raise RunError(self._describe_change(0))
        self._total = self._count

    def _describe_change(self, source: int) -> str:
        names = self._reader.names if self._reader else ()
        name = names[source] if source < len(names) else "the input"
        return f"{name} changed while it was scored: run the same command again; the scores so far are kept"

    def _finish_view(self) -> None:
        """Write the lists of records, once all of them have been read."""
        if self._update and self._view is None:
            self._view = self._update.finish()
            own = self._groups.all_rows()
            self.has_all_records = bool(np.array_equal(to_rows(self._view.hashes, 16), own))
            self._covers_folder = self.has_all_records or bool(
                np.isin(to_keys(to_rows(self._view.hashes, 16)), to_keys(own)).all()
            )
            self.items, self.systems, self.sources = self._view.items, self._view.systems, self._view.sources
            self.reference_counts = set(self._view.references)
            self.notes += [*self._update.notes, *self._view.notes]

    # ---- Scoring ----

    def _run_phase(self, metrics: Sequence[Metric], executor: Executor, units: Iterable[Unit]) -> None:
        waiting: set[int] | None = None
        if len(self._groups):
            self._begin(metrics)
            waiting = set()
            for group in range(len(self._groups)):
                start, hashes = self._groups.read(group)
                for metric in metrics:
                    if self._restore(metric.text, group, start, hashes) is not None:
                        waiting.add(group)
            if waiting:
                self._finish_view()  # What is stored from now on has its records listed, should the run be killed.
            restored = sum(self._groups.count(group) for group in range(len(self._groups)) if group not in waiting)
            if restored:
                self._report(restored, restored)
            if not waiting:
                return
        try:
            for result in self._execute(metrics, executor, self._plan(units, metrics, waiting)):
                self._store(result)
        finally:
            self._save_all()

    def _plan(self, units: Iterable[Unit], metrics: Sequence[Metric], waiting: set[int] | None) -> Iterator[Task]:
        """The tasks for what is missing. What the folder holds already is collected on the way."""
        for group in self._read_groups(units):
            if waiting is None and group.number == 0:
                self._begin(metrics)
            if waiting is None or group.number in waiting:
                for kind, members in groupby(metrics, key=_Kind.of):
                    yield from self._plan_group(group, kind, list(members))
                self._report_group(group)

    def _begin(self, metrics: Sequence[Metric]) -> None:
        listed = tuple(
            Listed(text=m.text, signature=self.signatures[m.text], folder=folder_name(m.text), name=m.short_name)
            for m in self._metrics
        )
        names = self._reader.names if self._reader else ()
        self._folder.begin(Manifest(shard_size=self._size, metrics=listed, input=names))
        for metric in metrics:
            self._stores[metric.text].open(self.signatures[metric.text])

    def _restore(self, text: str, number: int, start: int, hashes: tuple[str, ...]) -> list[Piece] | None:
        """Take a group's scores from its own file. Where there is none, return what other files hold of them."""
        if number in self._files[text]:
            return None
        if text in self._fresh:
            return []
        pieces, is_whole = self._stores[text].find(start, hashes, self.signatures[text], tokens=self._tokens)
        if not is_whole:
            return pieces
        ((_, block, tokens),) = pieces
        self._keep(text, number, self._header(text, start, hashes, tokens=tokens), block)
        return None

    @property
    def _is_large(self) -> bool:
        """Whether the run has so many records that their scores are read back from columns in the end."""
        return self._update is not None and self._count > columns.MAX_IN_MEMORY

    def _keep(self, text: str, number: int, header: Header, block: Block) -> None:
        """Note the file of a finished group, with its scores as long as there are few."""
        if text not in self._scored and len(block) > _count_failures(block):
            self._scored.add(text)
        usages = block.usages if isinstance(block, Scores) and self._is_large else {}
        kept = None if self._is_large else block
        self._files[text][number] = _Finished(header.file_name, len(block), header.tokens, kept, usages)

    def _drop_blocks(self) -> None:
        """Forget scores that are in files, once there are too many of them."""
        for files in self._files.values():
            for file in reversed(files.values()):
                if file.block is None:
                    break
                file.usages, file.block = file.block.usages if isinstance(file.block, Scores) else {}, None

    def _plan_group(self, group: _Group, kind: _Kind, metrics: Sequence[Metric]) -> Iterator[Task]:
        by_missing: dict[tuple[int, ...], list[_Part]] = {}
        for text in (metric.text for metric in metrics):
            pieces = self._restore(text, group.number, group.start, group.hashes)
            if pieces is None:
                continue
            header = self._header(text, group.start, group.hashes, tokens=self._tokens)
            scored = {position for positions, _, _ in pieces for position in positions}
            part = _Part(group, header, pieces, stored=len(scored), count=len(scored))
            if missing := tuple(n for n in range(len(group.hashes)) if n not in scored):
                by_missing.setdefault(missing, []).append(part)
                group.parts.append(part)
            else:
                self._finish(part)
        if self._can_repeat:  # All metrics of the phase are of this kind: what is stored counts before the rest begins.
            self._report_group(group)
        for rest, parts in by_missing.items():
            self._open |= {id(part): part for part in parts}
            while rest:
                units = tuple(group.units[n] for n in rest)
                size = len(units)
                if self._shard_size is None and kind is not _Kind.program:
                    size = min(size, SHARD_SIZE_WITH_MODEL) if kind is _Kind.llm else self._paces[kind].cut(units)
                chosen, rest = rest[:size], rest[size:]
                is_whole = len(chosen) == len(group.units)
                headers = {part.header.metric: part.header if is_whole else None for part in parts}
                self._pending.append((kind, group, chosen, parts))
                start = group.start + chosen[0]
                yield Task(start=start, units=units[:size], headers=headers, tokens=self._tokens, runtime=self._runtime)

    def _header(self, text: str, start: int, hashes: tuple[str, ...], *, tokens: bool) -> Header:
        signature = self.signatures[text]
        digest = digest_of(hashes, signature, tokens=tokens)
        return Header(
            metric=text,
            signature=signature,
            start=start,
            count=len(hashes),
            digest=digest,
            hashes=hashes,
            tokens=tokens,
        )

    # ---- Storing ----

    def _store(self, result: TaskResult) -> None:
        check_writer(self._folder.path)
        # Executors yield results in the order of the tasks.
        kind, group, positions, parts = self._pending.popleft()
        seconds = sum(outcome.seconds for outcome in result.outcomes.values())
        loading = sum(outcome.loading for outcome in result.outcomes.values())
        self._paces[kind].measure([group.units[n] for n in positions], seconds - loading)
        self._computed += len(positions)
        for part in parts:
            outcome = result.outcomes[part.header.metric]
            piece = positions, outcome.block, self._tokens
            part.pieces.append(piece)
            part.count += len(positions)
            if not part.unsaved:
                part.unsaved_since = monotonic() - seconds
            part.unsaved.append(piece)
            self._add_timing(part, positions, outcome)
            if part.count == len(group.units):
                self._finish(part, outcome.file)
            elif monotonic() - part.unsaved_since >= SAVE_SECONDS:
                self._save(part)
        self._report_group(group)

    def _add_timing(self, part: _Part, positions: Sequence[int], outcome: Outcome) -> None:
        block = outcome.block
        usages: dict[int, Any] = (
            dict(block.usages)
            if isinstance(block, Scores)
            else {n: judgment.usage for n, judgment in enumerate(block) if judgment.usage}
        )
        if part.timing is None:
            part.timing = self._stores[part.header.metric].read_timing(part.header.file_name)
        part.timing["seconds"] = round(part.timing["seconds"] + outcome.seconds, 6)
        part.timing["records"] += len(block)
        part.timing["usage"] |= {str(positions[n]): usage for n, usage in usages.items()}

    def _save(self, part: _Part) -> None:
        """Store what a part has in a file of its own, until its group is complete."""
        group = part.group
        positions = [position for places, _, _ in part.unsaved for position in places]
        block = join_blocks([block for _, block, _ in part.unsaved])
        hashes = tuple(group.hashes[n] for n in positions)
        header = self._header(part.header.metric, group.start + positions[0], hashes, tokens=self._tokens)
        store = self._stores[header.metric]
        write_object(store.results / header.file_name, encode(header, [group.units[n] for n in positions], block))
        store.write_timing(part.header.file_name, part.timing or {})
        part.partial_files.append(header.file_name)
        part.unsaved = []

    def _save_all(self) -> None:
        """Store what is in no file yet, however the run ends."""
        is_failing = sys.exception() is not None
        for part in self._open.values():
            try:
                if part.unsaved:
                    self._save(part)
            except RunError:
                if not is_failing:  # Otherwise the first error is the one to report.
                    raise
        self._open.clear()
        self._pending.clear()

    def _finish(self, part: _Part, data: bytes | None = None) -> None:
        """Store a complete group in one file, then remove the files of its pieces."""
        group, header = part.group, part.header
        places = [position for positions, _, _ in part.pieces for position in positions]
        block = join_blocks([block for _, block, _ in part.pieces]) if len(part.pieces) > 1 else part.pieces[0][1]
        if places != list(range(len(places))):
            row_of = {position: row for row, position in enumerate(places)}
            block = take_rows(block, [row_of[n] for n in range(len(places))])
        if not self._tokens and all(tokens for *_, tokens in part.pieces):
            header = self._header(header.metric, group.start, group.hashes, tokens=True)
        name, store = header.file_name, self._stores[header.metric]
        write_object(store.results / name, data or encode(header, group.units, block))
        if part.timing:
            store.write_timing(name, part.timing)
        store.remove(file for file in part.partial_files if file != name)
        self._keep(header.metric, group.number, header, block)
        self._open.pop(id(part), None)

    def _report_group(self, group: _Group) -> None:
        """Report the units that all metrics have scored."""
        done = min((part.count for part in group.parts), default=len(group.units))
        if done > group.reported:
            stored = min((part.stored for part in group.parts), default=len(group.units)) if not group.reported else 0
            self._report(done - group.reported, stored)
            group.reported = done

    # ---- Finishing ----

    def _close(self, metric: Metric) -> None:
        """Record that a metric is finished."""
        store = self._stores[metric.text]
        files = {file.name: file.count for file in self._files[metric.text].values()}
        older = store.close(
            metric.text,
            self.signatures[metric.text],
            metric.higher_is_better,
            files,
            self._view.hashes if self._view else (),
            self._misuse.get(metric.text, ()),
            has_all_records=self._view is None or self._covers_folder,
        )
        if older:
            removal = f"`metrist remove {shlex.quote(f'{self._folder.path}/')} --unused` deletes them"
            what = "1 score by another version was" if older == 1 else f"{older:,} scores by other versions were"
            self.notes.append(f"{metric.label}: {what} set aside; {removal}")

    def _collect(self, text: str) -> Any:
        files = [file for _, file in sorted(self._files[text].items())]
        store = self._stores[text]
        is_mapped = self._view is not None and isinstance(self._view.hashes, HashColumn)
        own: Any = None
        if not is_mapped or (text not in self._scored and not self.has_all_records):
            own = join_blocks([file.block if file.block is not None else store.read_block(file.name) for file in files])
        if self._view is None or (self.has_all_records and not is_mapped):
            return own
        page = store.complete()
        if page is None:
            raise RunError(f"{store.results} was removed while it was scored: run the same command again")
        if own is not None:
            self.own_blocks[text] = own
        if not self.has_all_records:
            self.notes += [note for note in page.notes if note not in self.notes]
        scores, missing = store.arrange(page, self._view, {} if is_mapped else self._list_files(text))
        if is_mapped and self.has_all_records:
            starts = np.cumsum([0, *(file.count for file in files)]).tolist()
            usages = {start + n: u for start, file in zip(starts, files, strict=False) for n, u in file.usages.items()}
            scores = replace(scores, usages=usages) if usages else scores
        name = next((metric.short_name for metric in self._metrics if metric.text == text), None)
        self.notes += self._view.describe_missing(text, name, missing) if len(missing) else ()
        return scores

    def _list_files(self, text: str) -> dict[str, ShardFile]:
        """The files of this run whose scores are at hand."""
        files = {}
        for number, file in self._files[text].items():
            if file.block is not None:
                start, hashes = self._groups.read(number)
                header = self._header(text, start, hashes, tokens=file.tokens)
                files[file.name] = ShardFile(header=header, block=file.block)
        return files

    def _write_machine(self) -> None:
        machine = {
            "began": self._began.isoformat(timespec="seconds"),
            "seconds": round((datetime.now(UTC) - self._began).total_seconds(), 3),
            "records": self._computed,
            "metrist": __version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "platform": platform.platform(),
        }
        write_object(self._folder.path / "timings" / "machine.json", f"{json.dumps(machine, indent=2)}\n".encode())


def _count_failures(block: Block) -> int:
    if isinstance(block, Scores):
        return len(block.failures)
    return sum(judgment.failure is not None for judgment in block)
