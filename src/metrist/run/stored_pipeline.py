"""The pipeline of a run with a folder: what it holds of a record is read back instead of computed, unless it failed for
a reason that may have passed.

The inputs are read into tables first, so that whatever is wrong with them is known before anything is scored. Cheap
metrics go over the records before those with a model do, and those before LLMs.
"""

from __future__ import annotations

import gc
import shlex
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby
from operator import itemgetter
from time import monotonic
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from metrist.errors import RunError
from metrist.io import Reader
from metrist.metrics.base import Metric, calls_llm
from metrist.records import HASH_BYTES, Hashes, RecordColumns, Unit, hash_units
from metrist.run.ingest import Ingest
from metrist.run.manifest import Damaged, Manifest, Part, Rows, StoredMetric, Version, folder_name
from metrist.run.pipeline import MetricCost, Pipeline
from metrist.run.run import Run
from metrist.run.score_tables import (
    HashIndex,
    find_rows,
    find_unsettled,
    judgments_table,
    read_judgments_table,
    scores_table,
)
from metrist.run.store import Store
from metrist.run.stored_scores import ScoreReader, StoredScores
from metrist.run.tables import read_hashes, read_records_table, release_memory
from metrist.run.tasks import (
    SHARD_SIZE,
    SHARD_SIZE_WITH_MODEL,
    Block,
    Executor,
    NeedsCheck,
    SliceSize,
    Task,
    TaskResult,
    TaskSize,
    cut_columns,
    join_blocks,
    read_shards,
)
from metrist.runtime import Runtime
from metrist.scores import Scores

#: Results go into a part after this many seconds, or this share of the seconds that the run has taken, or `SAVE_ROWS`.
SAVE_SECONDS = 1.0
_SAVE_SHARE = 0.05
#: Results that took so many seconds are logged at once, and need not be in a part soon.
_COSTLY_SECONDS = 0.1
_LOGGED_SECONDS = 60.0
#: Parts of a metric with fewer rows than this are small; merged ones have about `SAVE_ROWS` rows.
SMALL_PART = 1 << 13
SAVE_ROWS = 1 << 18
#: Small parts of a metric are merged if there are more than so many.
_FEW_PARTS = 4
#: Records of the first task of metrics that are not from the catalog.
_FIRST_RECORDS = 16


@dataclass(eq=False)
class _MetricWriter:
    """One metric's results on their way into the store."""

    metric: StoredMetric
    signature: str
    #: Which records the store has settled scores of.
    index: HashIndex
    hashes: list[Hashes] = field(default_factory=list)
    units: list[Sequence[Unit]] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    rows: int = 0
    seconds: float = 0.0
    #: Since when results are in neither a part nor the log; None: all are.
    since: float | None = None
    logged_since: float | None = None
    usages: dict[bytes, Any] = field(default_factory=dict)


class StoredPipeline(Pipeline):
    """Metrics over records, or comparators over pairs, into a run folder."""

    def __init__(
        self, metrics: Sequence[Metric], runtime: Runtime, store: Store, *, texts: bool = True, **options: Any
    ) -> None:
        by_cost = ([metric for metric in metrics if MetricCost.of(metric) is cost] for cost in MetricCost)
        super().__init__(metrics, runtime, phases=[phase for phase in by_cost if phase], **options)
        self._store, self._texts = store, texts
        # Answers of LLMs may be requested again, all or those that failed: stored scores are then computed again.
        asking = {metric.text for metric in metrics if calls_llm(metric)}
        self._fresh = asking if runtime.fresh is not None else set[str]()
        self._retried = asking if runtime.retry_failed is not None else set[str]()
        self._writers: dict[str, _MetricWriter] = {}
        self._began = monotonic()
        with_models = [metric for metric in metrics if MetricCost.of(metric) is MetricCost.model]
        self._model_task_size = TaskSize(references=any("references" in metric.needs for metric in with_models))
        # A metric of one's own may be slow, however cheap it looks.
        is_own = any(metric.catalog_name is None for metric in metrics)
        self._task_size = SliceSize(rows=_FIRST_RECORDS if is_own else SHARD_SIZE, limit=SHARD_SIZE)
        self._pending: deque[tuple[MetricCost, Sequence[Unit], Hashes]] = deque()
        #: The records that were read, where they cannot be read from the store.
        self._kept: list[tuple[Sequence[Unit], Hashes]] | None = None
        self._own_inputs: list[int] = []
        self._own_hashes: list[Hashes] = []

    def run(self, units: Reader | Iterable[Unit]) -> dict[str, Any]:
        """The scores of all records of the folder, or the judgments of the input's pairs, by the metric's text."""
        with self._store.write():
            self._score_units(units)
        return self._collect_pairs() if not isinstance(units, Reader) else self._collect()

    def _score_units(self, units: Reader | Iterable[Unit]) -> None:
        """Store records and what the metrics give them, while this process is a writer of the folder."""
        if isinstance(units, Reader):
            self._ingest(units)
        else:
            shards = [shard for _, shard in read_shards(self._metrics, units, SHARD_SIZE)]
            self._own_hashes = list(map(hash_units, shards))
            self._kept = list(zip(shards, self._own_hashes, strict=True))
            self._count = sum(map(len, self._own_hashes))
            manifest = self._store.update(lambda latest: self._store.require_texts(latest, self._texts))
            self._run = Run(self._store, manifest)
            self._texts = manifest.texts
        self._total = self._count
        self._open_metrics()
        for metrics, executor in self._phases:
            self._begin_phase(metrics)
            try:
                self._score_phase(metrics, executor)
            except BaseException:
                self._pending.clear()
                with suppress(RunError):  # The first error is the one to report.
                    self._save(is_last=True)
                raise
            self._save(is_last=True)
            for metric in metrics:
                self._finish(metric)

    def _score_phase(self, metrics: Sequence[Metric], executor: Executor) -> None:
        for result in self._execute(metrics, executor, self._plan(metrics)):
            self._take(result)

    # ---- Reading

    def _ingest(self, reader: Reader) -> None:
        is_new = self._store.read_manifest() is None
        ingest = Ingest(self._store, reader, texts=self._texts)
        self._texts = ingest.texts
        if ingest.is_stored:
            manifest = ingest.manifest
        elif self._read_in_workers(ingest):
            manifest = ingest.finish()
        else:
            needs = NeedsCheck(self._metrics)
            # Rows that can be read neither from the store nor again from where they came.
            keeps = not reader.names or not (reader.is_repeatable or self._texts)
            kept = list[tuple[Sequence[Unit], Hashes]]()
            source = None
            # Reading leaves no cycles, and looking for them takes a tenth of the time.
            was_enabled = gc.isenabled()
            gc.disable()
            try:
                for batch in reader.batches():
                    if batch.source != source:
                        self._warn(0, batch.records, batch.source)
                        source = batch.source
                    needs.add(batch.records)
                    ingest.add(batch)
                    if keeps:
                        kept.append((batch.records, batch.hashes))
            finally:
                if was_enabled:
                    gc.enable()
            needs.finish()
            manifest = ingest.finish()
            self._kept = kept if keeps else None
        if is_new and self._texts and reader.announce:
            reader.announce(f"{self._store.name}/ stores the texts of the records: `texts=False` leaves them out")
        self._own_inputs = ingest.numbers
        self.notes += ingest.notes
        self._run = Run(self._store, manifest)
        own_inputs = [one for one in manifest.inputs if one.number in self._own_inputs]
        self._count = sum(one.records for one in own_inputs)
        if self._kept is not None:
            self._own_hashes = [hashes for _, hashes in self._kept]
            self._count = sum(map(len, self._own_hashes)) or self._count
        elif not self._texts or len(own_inputs) > 1:
            self._own_hashes = [read_hashes(table["record"]) for _, _, table in self._read_own_parts(["record"])]
        if ingest.is_stored:
            inputs = groupby(self._read_records(), key=itemgetter(0))
            self._check_needs((number, (records for _, (records, _) in blocks)) for number, blocks in inputs)

    def _read_in_workers(self, ingest: Ingest) -> bool:  # noqa: ARG002
        """Have workers read the inputs; False if this process has to."""
        return False

    def _check_needs(self, inputs: Iterable[tuple[int, Iterable[Sequence[Any]]]]) -> None:
        """Look at stored records, by the numbers of their inputs, as if they were read now."""
        needs = NeedsCheck(self._metrics)
        for number, blocks in inputs:
            for n, records in enumerate(blocks):
                if n == 0:
                    self._warn(0, RecordColumns.of(records), number)
                if needs.add(records):
                    break
        needs.finish()

    def _read_records(self) -> Iterator[tuple[int, tuple[Sequence[Unit], Hashes]]]:
        """The records of this command with their hashes: as they were read, from the store, or from the inputs."""
        if self._kept is not None:
            yield from ((0, pair) for pair in self._kept)
        elif self._texts:
            for number, _, table in self._read_own_parts():
                for start in range(0, len(table), 1 << 13):
                    block = table.slice(start, 1 << 13)
                    yield number, (read_records_table(block), read_hashes(block["record"]))
        else:
            assert self._reader is not None
            known = HashIndex(np.concatenate(self._own_hashes))
            for batch in self._reader.batches(judgments=False):
                if (known.find(batch.hashes) < 0).any():
                    name = self._reader.sources[batch.source].name or "the input"
                    raise RunError(f"{name} changed while it was scored: run the same command again", code="changed")
                yield batch.source, (batch.records, batch.hashes)

    def _read_own_parts(self, columns: Sequence[str] | None = None) -> Iterator[tuple[int, Part, pa.Table]]:
        """The records of the inputs of this command, part by part, with the numbers of the inputs."""
        for one, part in self._run.list_parts("records"):
            if one.number in self._own_inputs:
                yield one.number, part, self._run.read_part("records", part, columns)

    # ---- Scoring

    def _open_metrics(self) -> None:
        """List the metrics in the manifest, and find out what the store has of them. Damaged parts are dropped."""
        index = HashIndex(np.empty((0, HASH_BYTES), np.uint8))
        for metric in self._metrics:
            text, signature = metric.text, self.signatures[metric.text]
            stored = self._run.manifest.metric(text) or StoredMetric(text=text, folder=folder_name(text))
            stored = msgspec.structs.replace(
                stored, name=metric.short_name, higher_is_better=metric.higher_is_better, compares=self._reader is None
            )
            damaged: dict[Part, str] = {}
            hashes = np.empty((0, HASH_BYTES), np.uint8)
            if text not in self._fresh:
                hashes = self._run.read_settled(
                    text, signature, tokens=self._tokens, retry_failed=text in self._retried, damaged=damaged
                )
            if damaged:
                self.notes += [f"{reason}: it was set aside and scored again" for reason in damaged.values()]
                self._store.drop_parts(text, list(damaged))
            if not np.array_equal(hashes, index.hashes):  # Most metrics have scored the same records as the one before.
                index = HashIndex(hashes)
            self._writers[text] = _MetricWriter(stored, signature, index)
        rows = [Rows(metric=writer.metric, signature=writer.signature) for writer in self._writers.values()]
        self._store.add_results(rows)

    def _plan(self, metrics: Sequence[Metric]) -> Iterator[Task]:
        kind, done = MetricCost.of(metrics[0]), 0
        is_first = self._find_first()
        for _, (units, hashes) in self._read_records():
            first = None if is_first is None else is_first[done : done + len(units)]
            for texts, rows in self._find_missing(metrics, hashes, first):
                for chosen, part in self._cut(kind, units, rows):
                    self._pending.append((kind, part, hashes[chosen]))
                    yield Task(start=done, units=part, metrics=texts, tokens=self._tokens, runtime=self._runtime)
            done += len(units)

    def _find_missing(
        self, metrics: Sequence[Metric], hashes: Hashes, is_first: NDArray[np.bool_] | None
    ) -> list[tuple[tuple[str, ...], NDArray[np.int64]]]:
        """The rows that metrics have not scored, with those metrics."""
        by_missing: dict[bytes, list[str]] = {}
        for metric in metrics:
            missing = self._writers[metric.text].index.find(hashes) < 0
            if is_first is not None:
                missing &= is_first
            by_missing.setdefault(missing.tobytes(), []).append(metric.text)
        found = [(tuple(texts), np.flatnonzero(np.frombuffer(mask, np.bool_))) for mask, texts in by_missing.items()]
        if stored := len(hashes) * len(metrics) - sum(len(texts) * len(rows) for texts, rows in found):
            self._report(stored, stored)
        return found

    def _find_first(self) -> NDArray[np.bool_] | None:
        """Which records of this command have not occurred before in it, where inputs may share some; None: all."""
        if len(self._own_inputs) < 2:
            return None
        hashes = np.concatenate(self._own_hashes)
        is_first: NDArray[np.bool_] = HashIndex(hashes[::-1]).find(hashes) == np.arange(len(hashes))[::-1]
        return is_first

    def _cut(
        self, kind: MetricCost, units: Sequence[Unit], rows: NDArray[np.int64]
    ) -> Iterator[tuple[NDArray[np.int64], Sequence[Unit]]]:
        """The units at some rows in the portions in which they are scored."""
        if not len(rows):
            return
        chosen: Any = units
        if len(rows) < len(units):
            listed = rows.tolist()
            chosen = units.take(listed) if isinstance(units, RecordColumns) else [units[row] for row in listed]
        start = 0
        sizes = {MetricCost.cheap: SHARD_SIZE, MetricCost.program: SHARD_SIZE, MetricCost.llm: SHARD_SIZE_WITH_MODEL}
        while start < len(rows):
            if kind is MetricCost.cheap and isinstance(chosen, RecordColumns):
                sizes[kind] = self._task_size.rows
            rest = chosen[start : start + (self._shard_size or sizes.get(kind, SHARD_SIZE))]
            if self._shard_size is None and kind is MetricCost.model:
                rest = rest[: self._model_task_size.cut(rest)]
            if isinstance(rest, RecordColumns):
                rest = next(cut_columns(rest, len(rest)))
            yield rows[start : start + len(rest)], rest
            start += len(rest)

    # ---- Storing

    def _take(self, result: TaskResult) -> None:
        """Keep a result until it goes into a part; that of a costly metric is logged at once."""
        # Executors yield results in the order of the tasks.
        kind, units, hashes = self._pending.popleft()
        seconds = sum(outcome.seconds for outcome in result.outcomes.values())
        loading = sum(outcome.loading for outcome in result.outcomes.values())
        if kind is MetricCost.model:
            self._model_task_size.measure(units, seconds - loading)
        elif kind is MetricCost.cheap:
            self._task_size.measure(len(units), seconds)
        for text, outcome in result.outcomes.items():
            writer = self._writers[text]
            writer.hashes.append(hashes)
            writer.blocks.append(outcome.block)
            if writer.metric.compares:
                writer.units.append(units)
            writer.rows += len(units)
            writer.seconds += outcome.seconds
            block = outcome.block
            usages = block.usages if isinstance(block, Scores) else {n: j.usage for n, j in enumerate(block) if j.usage}
            writer.usages |= {hashes[row].tobytes(): usage for row, usage in usages.items()}
            if outcome.seconds < _COSTLY_SECONDS:
                writer.since = writer.since or monotonic()
            else:
                writer.logged_since = writer.logged_since or monotonic()
                self._store.add_to_log(self._make_rows(writer, hashes, units, outcome.block, outcome.seconds))
        self._report(len(units) * len(result.outcomes))
        self._save()

    def _save(self, *, is_last: bool = False) -> None:
        """Put results into parts: all of them, or those of metrics that have many or have waited long."""
        now = monotonic()
        seconds = max(SAVE_SECONDS, _SAVE_SHARE * (now - self._began))
        ready = list[_MetricWriter]()
        for writer in self._writers.values():
            waits = now - (writer.since or now) >= seconds or now - (writer.logged_since or now) >= _LOGGED_SECONDS
            if writer.rows and (is_last or writer.rows >= SAVE_ROWS or waits):
                ready.append(writer)
        if not ready:
            return
        rows = []
        for writer in ready:
            units = [unit for units in writer.units for unit in units]
            block = join_blocks(writer.blocks)
            rows.append(self._make_rows(writer, np.concatenate(writer.hashes), units, block, writer.seconds))
        self._store.add_results(rows)
        for writer in ready:
            new = _MetricWriter(writer.metric, writer.signature, writer.index, usages=writer.usages)
            self._writers[writer.metric.text] = new
        if not any(writer.rows for writer in self._writers.values()):
            self._store.clear_log()

    def _make_rows(
        self, writer: _MetricWriter, hashes: Hashes, units: Sequence[Any], block: Block, seconds: float
    ) -> Rows:
        text = writer.metric.text
        return Rows(
            metric=writer.metric,
            signature=writer.signature,
            table=scores_table(text, hashes, block, self._texts)
            if isinstance(block, Scores)
            else judgments_table(text, hashes, units, block, self._texts),
            facts={"seconds": round(seconds, 6), "records": len(block)},
            tokens=self._tokens,
        )

    # ---- Finishing

    def _finish(self, metric: Metric) -> None:
        """Record that a metric is finished, and merge its small parts."""
        writer = self._writers[metric.text]
        manifest = self._store.read_manifest() or Manifest()
        stored = manifest.metric(metric.text) or writer.metric
        version = stored.version(writer.signature)
        has_all = set(self._own_inputs) == {one.number for one in manifest.inputs}
        earlier = version.notes if version and not has_all else ()
        notes = tuple(dict.fromkeys([*earlier, *self._misuse.get(metric.text, ())]))
        before = stored.finished
        rows = Rows(metric=writer.metric, signature=writer.signature, notes=notes)
        manifest = self._store.add_results([rows], finish=True)
        is_alone = self._store.is_alone()
        scored = sum(part.rows for part in version.parts) if version else 0
        if version and is_alone and (writer.metric.compares or scored > sum(one.records for one in manifest.inputs)):
            _drop_superseded_rows(self._store, writer.metric, version)
            stored = (self._store.read_manifest() or manifest).metric(metric.text) or stored
            version = stored.version(writer.signature)
        if version and is_alone:
            _merge_small_parts(self._store, writer.metric, version)
        older = sum(part.rows for v in stored.versions if v.signature != writer.signature for part in v.parts)
        if older and before and before.signature != writer.signature:
            what = "1 score by another version was" if older == 1 else f"{older:,} scores by other versions were"
            folder = shlex.quote(f"{self._store.name}/")
            self.notes.append(f"{metric.label}: {what} set aside; `metrist remove {folder} --unused` deletes them")

    def _collect(self) -> dict[str, Any]:
        run = self.stored_run = Run.open(self._store)
        view = run.view
        self.items, self.systems, self.sources = view.items, view.systems, run.sources
        self.reference_counts = set(run.reference_counts)
        self.notes += [note for note in view.notes if note not in self.notes]
        own = np.isin(view.inputs, self._own_inputs)
        blocks: dict[str, Any] = {}
        hashes = run.read_hashes()
        release_memory()
        for metric in self._metrics:
            stored = run.manifest.metric(metric.text)
            assert stored is not None
            reader, usages = ScoreReader(run, stored, hashes), None
            missing = reader.missing
            self.notes += run.describe_missing(stored, missing) if len(missing) else ()
            version = stored.finished
            if not own.all() and version:
                self.notes += [note for note in version.notes if note not in self.notes]
            if own_usages := self._writers[metric.text].usages:
                at = HashIndex(hashes).find(np.array([np.frombuffer(key, np.uint8) for key in own_usages]))
                placed = zip(at.tolist(), own_usages.values(), strict=True)
                usages = {row: usage for row, usage in placed if row >= 0}
            scores = StoredScores(reader, usages)
            if not own.all() and np.isnan(scores.values[own]).all():
                self.own_blocks[metric.text] = scores.take(np.flatnonzero(own).tolist())
            blocks[metric.text] = scores
        return blocks

    def _collect_pairs(self) -> dict[str, Any]:
        """The judgments of the pairs of this command, in their order."""
        run = Run.open(self._store)
        wanted = np.concatenate(self._own_hashes)
        blocks: dict[str, Any] = {}
        for metric in self._metrics:
            stored = run.manifest.metric(metric.text)
            assert stored is not None
            version = stored.finished
            assert version is not None
            tables = [run.read_part(stored.place, part) for part in version.parts]
            table = pa.concat_tables(tables, promote_options="default")
            rows = find_rows(wanted, read_hashes(table["pair"]), find_unsettled(table))
            judgments = read_judgments_table(table.take(pa.array(rows)))
            usages = self._writers[metric.text].usages
            blocks[metric.text] = [
                replace(judgment, usage=usages.get(wanted[n].tobytes())) for n, judgment in enumerate(judgments)
            ]
        return blocks


# ---- Compaction of the parts of a finished metric ----


def _drop_superseded_rows(store: Store, metric: StoredMetric, version: Version) -> None:
    """Write parts again without rows that others supersede: those of records that were scored again, or by two
    processes at once."""
    key = "pair" if metric.compares else "record"
    for tokens in (False, True):
        parts = [part for part in version.parts if part.tokens is tokens]
        try:
            tables = [store.read_part(metric.place, part, [key, "failure_kind", "incomplete"]) for part in parts]
        except Damaged:
            return
        if not tables:
            continue
        table = pa.concat_tables(tables, promote_options="default")
        hashes = read_hashes(table[key])
        kept = find_rows(hashes, hashes, find_unsettled(table)) == np.arange(len(hashes))
        start = 0
        for part in parts:
            kept_in_part = kept[start : start + part.rows]
            start += part.rows
            if not kept_in_part.all():
                rest = store.read_part(metric.place, part).filter(pa.array(kept_in_part))
                facts = store.read_facts(metric.place, part)
                added = [store.write_part(metric.place, rest, facts, tokens=tokens)] if len(rest) else []
                store.drop_parts(metric.text, [part], added)


def _merge_small_parts(store: Store, metric: StoredMetric, version: Version) -> None:
    """Merge neighbouring small parts if there are more than a few: of several rows of a record the last one counts."""
    if sum(part.rows < SMALL_PART for part in version.parts) <= _FEW_PARTS:
        return
    ends = dict(zip(version.parts, accumulate(part.rows for part in version.parts), strict=True))
    groups = groupby(version.parts, key=lambda part: (part.rows < SMALL_PART, part.tokens, ends[part] // SAVE_ROWS))
    for (is_small, tokens, _), group in groups:
        parts = list(group)
        if not is_small or len(parts) < 2:
            continue
        try:
            facts = [store.read_facts(metric.place, part) for part in parts]
            tables = [store.read_part(metric.place, part).replace_schema_metadata() for part in parts]
        except Damaged:  # Another process may have merged them.
            continue
        total: dict[str, Any] = {name: sum(fact.get(name, 0) for fact in facts) for name in ("seconds", "records")}
        total["signature"] = version.signature
        merged = pa.concat_tables(tables, promote_options="default")
        store.drop_parts(metric.text, parts, [store.write_part(metric.place, merged, total, tokens=tokens)])
