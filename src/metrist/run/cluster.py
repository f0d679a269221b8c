"""Runs on a cluster: workers read slices of the inputs, score slices of the stored records, and write the parts.

Only what the command must know comes back: the parts, and what one slice cannot know of the others.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from time import monotonic
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from metrist.errors import MetristError, RunError
from metrist.io.reader import Findings, Reader
from metrist.io.remote import is_remote
from metrist.io.row_model import ParsedRow
from metrist.io.slices import FileSlice, WholeFile, cut_file
from metrist.metrics.base import Metric
from metrist.records import Hashes, RecordColumns, Unit
from metrist.run.ingest import Draft, Ingest, hash_names, hash_texts
from metrist.run.manifest import Damaged, Part, Rows
from metrist.run.pipeline import MetricCost
from metrist.run.ray import Ray, RayWorkers, Resources, open_workers
from metrist.run.run import Run
from metrist.run.score_tables import scores_table
from metrist.run.store import WRITERS, Store
from metrist.run.stored_pipeline import SAVE_SECONDS, SMALL_PART, StoredPipeline
from metrist.run.stored_run import open_store
from metrist.run.tables import PART_ROWS, InputTables, read_hashes, read_records_table
from metrist.run.tasks import SHARD_SIZE, Executor, SliceSize, Task, cut_columns, join_blocks, perform
from metrist.runtime import Runtime
from metrist.scores import Scores

#: Bytes of a slice of an input that a worker reads, at least and at most, and slices for each worker.
SLICE_BYTES = 1 << 20, 1 << 24
SLICES_PER_WORKER = 8
#: Rows of the first slice that a worker with a model scores.
_FIRST_ROWS = 8


@dataclass(frozen=True, slots=True)
class StorePlace:
    """Where workers find the store of a run. `stamp` tells a folder from another one of the same name on another
    machine; None for a URL."""

    address: str
    stamp: int | None

    @classmethod
    def of(cls, store: Store) -> StorePlace:
        """The place of a store that is being written."""
        if is_remote(str(store.path)):
            return cls(str(store.path), None)
        address = os.path.abspath(store.path)
        return cls(address, _read_stamp(address))

    def __str__(self) -> str:
        return self.address

    def is_visible(self) -> bool:
        return self.stamp is None or _read_stamp(self.address) == self.stamp


def _read_stamp(folder: str) -> int:
    try:
        return int(os.stat(os.path.join(folder, WRITERS)).st_mtime)
    except OSError:
        return -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SliceRead:
    """A slice of an input that is in the store. `names` are hashes of the names of its records, in their order, and of
    others that it judges."""

    tables: dict[str, list[Part]]
    hashes: Hashes
    names: NDArray[np.uint64]
    references: set[int]
    findings: Findings


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSlice:
    """Read a slice of the input with this number into the store. Where the command has to read the whole input to know
    what it holds, there is no result. `is_alone` says whether there is no other input."""

    store: StorePlace
    slice: FileSlice | WholeFile
    options: Mapping[str, Any]
    number: int
    texts: bool
    is_alone: bool

    def __str__(self) -> str:
        return str(self.slice)

    def run(self, _metrics: Mapping[str, Metric]) -> SliceRead | None:
        store = open_store(self.store.address)
        tables = InputTables(number=self.number)
        names, judged = [hash_names([])], [hash_names([])]
        checked: list[tuple[NDArray[np.uint64], ...]] = []
        try:
            reader = self.slice.open(self.options)
            for batch in reader.batches():
                tables.add(batch)
                if tables.is_full:
                    tables.write(store, self.texts)
                records = batch.records
                names.append(hash_names(zip(records.items, records.systems, strict=True)))
                # A row of ratings alone belongs to a record of the slice.
                rows = (row for row in batch.judged if isinstance(row, ParsedRow))
                judged.append(hash_names(key for row in rows for key in row.keys))
                if reader.needs_item_check or not self.is_alone:
                    # Whatever their white space; 0 for none.
                    sources = [" ".join(source.split()) if source else "" for source in records.sources]
                    has_source = np.fromiter(map(bool, sources), np.bool_, len(sources))
                    digests = hash_texts(sources) * has_source
                    checked.append((hash_texts(records.items), hash_texts(records.systems), digests))
        except MetristError:
            return None  # The command finds the same, or says what is wrong.
        findings = reader.findings
        if isinstance(self.slice, FileSlice):
            if findings.has_layout or findings.observed.skipped.count:
                return None  # Numbers of rows, and messages about bad ones, depend on the rows before.
            if not findings.items_are_named and not self.options.get("item_key") and findings.rows != self.slice.rows:
                return None  # Blank lines: the numbers of rows are not those of lines.
        tables.write(store, self.texts)
        if checked:
            items, systems, digests = map(np.concatenate, zip(*checked, strict=True))
            findings = replace(findings, items=items, systems=systems, sources=digests)
        own = np.concatenate(names)
        return SliceRead(
            tables=tables.tables,
            hashes=np.concatenate(tables.hashes),
            names=np.concatenate([own, np.setdiff1d(np.concatenate(judged), own)]),
            references=tables.references,
            findings=findings,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceResult:
    """One metric's scores of a slice, in a part. `seconds` are without the loading of a model; `usages` are by the hash
    of the record."""

    rows: Rows
    seconds: float
    usages: dict[bytes, Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoreSlice:
    """Score rows of a records part, and write a part of each metric. `results` say which metrics; `start` is the
    position of the first row in the input."""

    start: int
    store: StorePlace
    part: Part
    rows: NDArray[np.int64] | range
    results: Sequence[Rows]
    shard_size: int
    tokens: bool
    runtime: Runtime | None

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        return f"rows {self.rows[0] + 1:,} to {self.rows[-1] + 1:,} of records/{self.part.file}"

    def run(self, metrics: Mapping[str, Metric]) -> list[SliceResult]:
        table, rows = _read_records(self.store, self.part), self.rows
        chosen = table.slice(rows.start, len(rows)) if isinstance(rows, range) else table.take(pa.array(rows))
        hashes = read_hashes(chosen["record"])
        texts = tuple(result.metric.text for result in self.results)
        done = [
            perform(metrics, Task(start=0, units=units, metrics=texts, tokens=self.tokens, runtime=self.runtime))
            for units in cut_columns(read_records_table(chosen), self.shard_size)
        ]
        store, results = open_store(self.store.address), []
        for result in self.results:
            text = result.metric.text
            outcomes = [task.outcomes[text] for task in done]
            scores = join_blocks([outcome.block for outcome in outcomes])
            assert isinstance(scores, Scores)
            seconds = sum(outcome.seconds for outcome in outcomes)
            filled = msgspec.structs.replace(
                result,
                table=scores_table(text, hashes, scores),
                facts={"seconds": round(seconds, 6), "records": len(scores)},
                tokens=self.tokens,
            )
            results.append(
                SliceResult(
                    rows=msgspec.structs.replace(result, part=store.write_rows(filled)),
                    seconds=seconds - sum(outcome.loading for outcome in outcomes),
                    usages={hashes[row].tobytes(): usage for row, usage in scores.usages.items()},
                )
            )
        return results


@lru_cache(maxsize=1)
def _read_records(store: StorePlace, part: Part) -> pa.Table:
    try:
        return open_store(store.address).read_part("records", part)
    except Damaged as error:
        raise RunError(f"{error}: run the same `metrist score` again to redo it", code="damaged") from None


class ClusterPipeline(StoredPipeline):
    """The pipeline of a run whose workers on a Ray cluster read the inputs and write the scores, where they see the
    folder and the run stores texts. Else they are sent the records, as by any executor."""

    _workers: RayWorkers | None = None

    def _score_units(self, units: Reader | Iterable[Unit]) -> None:
        executor = next((executor for _, executor in self._phases if isinstance(executor, Ray)), None)
        if executor is None or not isinstance(units, Reader):
            super()._score_units(units)
            return
        try:
            with open_workers(executor, self._metrics, StorePlace.of(self._store)) as self._workers:
                super()._score_units(units)
        finally:
            self.notes += executor.notes
            executor.notes.clear()

    def _score_phase(self, metrics: Sequence[Metric], executor: Executor) -> None:
        workers = self._workers
        if workers and (groups := self._group_metrics(metrics, workers)) is not None:
            self._score_slices(groups, workers)
        else:
            super()._score_phase(metrics, workers or executor)

    # ---- Reading

    def _read_in_workers(self, ingest: Ingest) -> bool:
        workers, sources = self._workers, ingest.reader.sources
        total = sum(source.size or 0 for source in sources)
        # Without texts, workers could not score what they read.
        if workers is None or not ingest.texts or total <= SLICE_BYTES[0]:
            return False
        workers.start(Resources())  # They start while the inputs are cut.
        size = max(SLICE_BYTES[0], min(SLICE_BYTES[1], total // (SLICES_PER_WORKER * max(1, workers.count()))))
        place = StorePlace.of(self._store)
        is_alone = len(sources) == 1
        plan = list[list[ReadSlice]]()
        for source, draft in enumerate(ingest.drafts):
            # A single file that cannot be cut is read faster here than by one worker.
            slices = cut_file(ingest.reader, source, size, None if is_alone else draft.sha256)
            if not slices:
                return False
            options = ingest.reader.options
            common: dict[str, Any] = {"store": place, "options": options, "number": draft.number, "texts": ingest.texts}
            plan.append([ReadSlice(slice=one, is_alone=is_alone, **common) for one in slices])
        if not workers.see_folder():
            return False
        reads: list[list[SliceRead | None]] = [[] for _ in plan]
        numbers = [source for source, jobs in enumerate(plan) for _ in jobs]
        self._store.has_strays = True
        results = filter(None, workers.perform(job for jobs in plan for job in jobs))
        for source, (_, read) in zip(numbers, results, strict=True):
            reads[source].append(read)
            if read is None:
                break
        if not self._add_slices(ingest, reads):
            return False
        run = Run(self._store, ingest.manifest)

        def read_records(draft: Draft) -> Iterator[RecordColumns]:
            for part in draft.tables.get("records", ()):
                table = run.read_part("records", part)
                for start in range(0, len(table), SHARD_SIZE):
                    yield read_records_table(table.slice(start, SHARD_SIZE))

        self._check_needs((source, read_records(draft)) for source, draft in enumerate(ingest.drafts))
        return True

    def _add_slices(self, ingest: Ingest, slices: Sequence[Sequence[SliceRead | None]]) -> bool:
        """Add the inputs as workers have read them. Where reading the whole might find something else, they are
        discarded: the command then has to read the inputs, and says what is wrong with them."""
        found = [[read for read in reads if read] for reads in slices]
        every = [read for reads in found for read in reads]
        names = np.sort(np.concatenate([np.empty(0, np.uint64), *(read.names for read in every)]))
        if (
            list(map(len, found)) != list(map(len, slices))
            or (names[1:] == names[:-1]).any()
            or any(ingest.find_conflict(read.names[: len(read.hashes)], read.hashes) for read in every)
            or not ingest.reader.adopt([[read.findings for read in reads] for reads in found])
        ):
            tables = [table for read in every for table in read.tables.items()]
            self._store.discard(f"{name}/{part.file}" for name, parts in tables for part in parts)
            return False
        for draft, reads in zip(ingest.drafts, found, strict=True):
            for read in reads:
                draft.hashes.append(read.hashes)
                draft.records += len(read.hashes)
                draft.references |= read.references
                for name, parts in read.tables.items():
                    draft.tables.setdefault(name, []).extend(parts)
        return True

    # ---- Scoring

    def _group_metrics(
        self, metrics: Sequence[Metric], workers: RayWorkers
    ) -> list[tuple[Resources, list[Metric]]] | None:
        """The metrics with what a worker needs for them; None where workers cannot read the records and write the
        scores, so that both are sent. LLMs are asked from here."""
        if self._kept is not None or not self._texts or MetricCost.of(metrics[0]) is MetricCost.llm:
            return None
        hashes = (read_hashes(table["record"]) for _, _, table in self._read_own_parts(["record"]))
        indexes = [self._writers[metric.text].index for metric in metrics]
        if not any((index.find(own) < 0).any() for own in hashes for index in indexes):
            self._report(self._count * len(metrics), self._count * len(metrics))
            return []
        groups = workers.group_metrics(metrics, self._runtime.device)
        if workers.see_folder(groups[0][0]):
            return groups
        note = f"workers do not see {self._store.name} and were sent the records: a shared folder or a URL is faster"
        self.notes += [note] if note not in self.notes else []
        return None

    def _score_slices(self, groups: Sequence[tuple[Resources, Sequence[Metric]]], workers: RayWorkers) -> None:
        """Have workers score slices of the stored records, and list the parts that they write, as they come."""
        self._store.has_strays = True
        for needs, metrics in groups:
            self._begin_phase(metrics)
            kind = MetricCost.of(metrics[0])
            if self._shard_size or kind is MetricCost.program:
                size = SliceSize(rows=self._shard_size or SHARD_SIZE)
            elif kind is MetricCost.model:
                size = SliceSize(rows=_FIRST_ROWS, limit=PART_ROWS)
            else:
                share = self._count // (SLICES_PER_WORKER * max(1, workers.count(needs)))
                size = SliceSize(rows=2 * SMALL_PART, limit=max(2 * SMALL_PART, min(share, PART_ROWS)))
            rows, listed = list[Rows](), 0.0
            starts: dict[str, dict[Part, int]] = {metric.text: {} for metric in metrics}
            try:
                for done in workers.perform(self._plan_slices(metrics, size), metrics, needs, in_order=False):
                    if done:
                        job, results = done
                        size.measure(len(job), sum(result.seconds for result in results))
                        for result in results:
                            text = result.rows.metric.text
                            self._writers[text].usages |= result.usages
                            starts[text][result.rows.part] = job.start
                            rows.append(result.rows)
                        self._report(len(job) * len(results))
                    if rows and monotonic() - listed >= SAVE_SECONDS:
                        self._store.add_results(rows)
                        rows, listed = [], monotonic()
            finally:
                self._store.add_results(rows)
            for text, places in starts.items():
                # In the order of the records, so that nothing has to be sorted when they are read.
                parts = list(places)
                ordered = sorted(places, key=places.__getitem__)
                if parts != ordered:
                    self._store.drop_parts(text, parts, ordered)

    def _plan_slices(self, metrics: Sequence[Metric], size: SliceSize) -> Iterator[ScoreSlice]:
        place = StorePlace.of(self._store)
        is_first = self._find_first()
        done = 0
        for _, part, table in self._read_own_parts(["record", "item"]):
            first = None if is_first is None else is_first[done : done + part.rows]
            for texts, rows in self._find_missing(metrics, read_hashes(table["record"]), first):
                writers = [self._writers[text] for text in texts]
                for chosen in size.cut(rows, table["item"].to_numpy()):
                    yield ScoreSlice(
                        start=done + int(chosen[0]),
                        store=place,
                        part=part,
                        rows=chosen,
                        results=[Rows(metric=writer.metric, signature=writer.signature) for writer in writers],
                        shard_size=self._shard_size or SHARD_SIZE,
                        tokens=self._tokens,
                        runtime=self._runtime,
                    )
            done += part.rows
