"""The pipeline that `score` and `prefer` share: read, shard, look up stored results, execute, store, collect.

A run folder makes a run resumable: a shard whose content and metric have not changed is read back instead of computed,
unless some of its scores failed for a reason that may have passed.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import platform
import re
from collections.abc import Generator, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from metrist._version import __version__
from metrist.errors import NeedsError, RunError, SpecError
from metrist.io import Reader, read_records
from metrist.io.fields import guess_column, quote_flag
from metrist.io.reader import check_keywords
from metrist.io.writer import check_distinct
from metrist.metrics.base import Metric, calls_llm, is_resident
from metrist.metrics.registry import MetricList, build_all
from metrist.records import Pair, Record, records_from_lists
from metrist.report.progress import shows_progress
from metrist.run.executors import choose_executor
from metrist.run.flat_file import check_writable, flat_suffix
from metrist.run.results import NothingScored, Results, describe_total_failure
from metrist.run.run_folder import Listed, Manifest, MetricFolder, RunFolder, folder_name, write_object
from metrist.run.shard_file import Header, InputHash, Unit
from metrist.run.tasks import Block, Executor, Task, TaskResult, describe_missing, find_scorable
from metrist.runtime import Runtime
from metrist.scores import FailureKind, Scores

SHARD_SIZE = 1024
#: Where a metric holds a model: what is lost when a run is killed, and what a progress bar waits for, takes longer.
SHARD_SIZE_WITH_MODEL = 256
#: A shard is closed early when its texts exceed this many characters, so that long texts do not fill the memory.
MAX_TEXT = 8 << 20
#: Records whose characters are counted at once.
_STEP = 64
#: Records that are searched for one that a metric can score; fewer where their texts exceed `MAX_TEXT` characters. Both
#: are independent of the shard size, so that the same input is refused or scored whatever that is.
LOOK_AHEAD = 10_000


class Progress(Protocol):
    """Called with the number of records (or pairs) done, and of all of them where that is known or can be estimated.

    A callback with a keyword parameter `metric` is told more: which metrics are under way, as one text, and that they
    begin, by a first call with 0 records done. The count starts again at 0 when other metrics come, since cheap metrics
    go over the whole input before those with a model do.
    """

    def __call__(self, done: int, total: int | None) -> None: ...


class _ProgressReport:
    """Tells a callback as much as it can take."""

    def __init__(self, progress: Progress | bool | None) -> None:
        self._progress: Any = progress
        self._takes_metric = False
        if callable(progress):
            try:
                parameters = inspect.signature(progress).parameters.values()
            except (TypeError, ValueError):  # A builtin without a signature.
                parameters = ()  # type: ignore[assignment]
            self._takes_metric = any(
                parameter.kind is parameter.VAR_KEYWORD
                or (parameter.name == "metric" and parameter.kind is not parameter.POSITIONAL_ONLY)
                for parameter in parameters
            )
        self._metric = ""

    def begin(self, metrics: Iterable[Metric], total: int | None) -> None:
        """Metrics begin to go over the input."""
        self._metric = ", ".join(metric.label for metric in metrics)
        if self._takes_metric:
            self(0, total)

    def __call__(self, done: int, total: int | None) -> None:
        if self._takes_metric:
            self._progress(done, total, metric=self._metric)
        elif self._progress:
            self._progress(done, total)


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
    `fields={"output": "prediction"}`. `executor` is 'serial', 'processes' or an object; by default the faster of the
    two is used. `out` is a run folder, which a second call resumes, or a .jsonl, .csv or .parquet file, which is
    written whole or not at all. `tokens` asks metrics for scores of single tokens.

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
    destination = resolve_destination(out)
    if destination.folder:
        built = destination.folder.name_metrics(built)
    if predictions is not None or references is not None or sources is not None:
        if records is not None or predictions is None:
            raise RunError("expected records, or predictions with their references and sources; not a mixture")
        records = records_from_lists(predictions, references, sources, system=reading.pop("system", None))
    elif records is None:
        raise RunError("nothing to score: give records (a file, rows or a frame), or predictions=[…]")
    reader = read_records(records, **reading)
    if destination.file:
        check_distinct(destination.file, reader.names)
    pipeline = Pipeline(
        built,
        runtime,
        executor=executor,
        folder=destination.folder,
        inputs=reader.names,
        shard_size=shard_size,
        tokens=tokens,
        progress=progress,
        reader=reader,
        total=len(records) if isinstance(records, Sized) and not reader.names else None,
    )
    blocks = pipeline.run(reader)
    scores = {metric.label: Scores.join(blocks[metric.text]) for metric in built}
    remarks = (remark for metric in built for remark in metric.remarks(scores[metric.label]))
    notes = (*reader.remarks, *pipeline.notes, *remarks)
    results = Results(
        items=pipeline.items,
        systems=pipeline.systems,
        metrics=built,
        scores=scores,
        signatures={metric.label: pipeline.signatures[metric.text] for metric in built},
        notes=notes,
        inputs=reader if reader.is_repeatable else None,
        reference_counts=tuple(sorted(pipeline.reference_counts)),
    )
    if destination.file:
        results.write(destination.file)
    # A metric that scored nothing is a fault of the run. What there is has been written: it shows the reasons.
    for label, block in scores.items():
        if block.failures and len(block) > 1 and (message := describe_total_failure(label, block)):
            written = destination.file or (destination.folder.path if destination.folder else None)
            raise NothingScored(f"{message}{f' (all of it is in {written})' if written else ''}", results)
    return results


@dataclass(frozen=True, slots=True)
class Destination:
    """A flat file to write at the end, or a run folder to write into all along; at most one of them."""

    file: Path | None = None
    folder: RunFolder | None = None


def resolve_destination(out: str | os.PathLike[str] | None) -> Destination:
    """What a path asks for. What could not be written at the end is refused now; nothing is written yet."""
    if out is None:
        return Destination()
    path = Path(out)
    if path.suffix and flat_suffix(path):
        check_writable(path)
        return Destination(file=path)
    named_as_folder = os.fspath(out).endswith(("/", os.sep)) or path.is_dir()
    if not named_as_folder and re.fullmatch(r"\.[A-Za-z]\w*", path.suffix):
        raise RunError(
            f"cannot tell what to write to {path}: expected a folder (end it with '/'), or a file that ends in "
            ".jsonl, .csv or .parquet"
        )
    return Destination(folder=RunFolder(path))


class Pipeline:
    """One pass of metrics over records, or of comparators over pairs."""

    def __init__(
        self,
        metrics: Sequence[Metric],
        runtime: Runtime,
        *,
        executor: str | Executor | None = None,
        folder: RunFolder | None = None,
        inputs: tuple[str, ...] = (),
        shard_size: int | None = None,
        tokens: bool = False,
        progress: Progress | bool | None = None,
        reader: Reader | None = None,
        total: int | None = None,
    ) -> None:
        if shard_size is not None and shard_size < 1:
            raise RunError(f"shard_size must be at least 1, got {shard_size}")
        self.signatures = {metric.text: metric.signature for metric in metrics}
        self.items: list[str] = []
        self.systems: list[str] = []
        #: The different numbers of references that records have, records without any aside.
        self.reference_counts: set[int] = set()
        self._executor, self.notes = choose_executor(executor, metrics, runtime)
        self._metrics = metrics
        # Answers of LLMs may be requested again, all or those that failed: stored scores are then computed again.
        self._asks_again = (runtime.fresh is not None, runtime.retry_failed is not None)
        self._asking = {metric.text for metric in metrics if calls_llm(metric)} if any(self._asks_again) else set()
        self._runtime = runtime
        self._folder = folder
        self._parts = {text: MetricFolder(folder.path, folder_name(text)) for text in self.signatures} if folder else {}
        self._inputs = inputs
        # That of the folder's last run, so that no metric in it is scored again for being cut differently. An external
        # program loads its model again for each shard, so it gets large ones.
        small = any(map(is_resident, metrics)) and not any(metric.programs for metric in metrics)
        manifest = folder.manifest if folder else None
        default = manifest.shard_size if manifest else SHARD_SIZE_WITH_MODEL if small else SHARD_SIZE
        self._shard_size = shard_size or default
        self._tokens = tokens
        self._progress, self._reader, self._total = _ProgressReport(progress), reader, total
        self._names: dict[str, str] = {}
        self._blocks: dict[str, dict[int, Block]] = {text: {} for text in self.signatures}
        self._hash = InputHash()
        self._count = self._done = self._computed = 0
        self._began = datetime.now(UTC)

    def run(self, units: Iterable[Unit]) -> dict[str, list[Any]]:
        """The blocks of each metric in the input's order, by the metric's text."""
        self._progress.begin(self._metrics, self._total)
        results = self._executor.map(self._metrics, self._tasks(units))
        try:
            for result in results:
                self._store(result)
        finally:
            if isinstance(results, Generator):
                results.close()  # Stops the workers.
        self.notes += [note for part in self._parts.values() for note in part.damaged]
        for metric in self._metrics if self._folder else ():
            self._parts[metric.text].close(
                metric.text,
                self.signatures[metric.text],
                metric.higher_is_better,
                records=self._count,
                content=self._hash.total.hexdigest(),
                references=tuple(sorted(self.reference_counts)),
            )
        if self._folder and self._computed:
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
        return {text: [blocks[start] for start in sorted(blocks)] for text, blocks in self._blocks.items()}

    def _tasks(self, units: Iterable[Unit]) -> Iterator[Task]:
        """The shards that need work. What the folder holds already is collected on the way."""
        for start, shard in cut_shards(check_needs(self._metrics, units), self._shard_size):
            if start == 0 and self._folder:
                listed = (
                    Listed(
                        text=metric.text,
                        signature=self.signatures[metric.text],
                        folder=folder_name(metric.text),
                        name=metric.short_name,
                    )
                    for metric in self._metrics
                )
                self._folder.begin(Manifest(shard_size=self._shard_size, metrics=tuple(listed), input=self._inputs))
            self._count += len(shard)
            if isinstance(shard[0], Record):
                intern = self._names.setdefault  # Names repeat: each is kept once.
                items, systems = [record.item for record in shard], [record.system for record in shard]  # type: ignore[union-attr]
                self.items += map(intern, items, items)
                self.systems += map(intern, systems, systems)
                self.reference_counts |= {len(record.references) for record in shard if record.references}  # type: ignore[union-attr]
            missing: dict[str, Header | None] = dict.fromkeys(self.signatures)
            content = self._hash.add(shard) if self._folder else ""
            for text, part in self._parts.items():
                signature = self.signatures[text]
                digest = part.expect(start, content, signature, tokens=self._tokens)
                file = part.find(start)
                fresh, retry_failed = self._asks_again if text in self._asking else (False, False)
                if file and not fresh and is_final(file.block, retry_failed=retry_failed):
                    self._blocks[text][start] = file.block
                    del missing[text]
                else:
                    missing[text] = Header(
                        metric=text, signature=signature, start=start, count=len(shard), digest=digest
                    )
            if missing:
                yield Task(start=start, units=shard, headers=missing, tokens=self._tokens, runtime=self._runtime)
            else:
                self._report(len(shard))

    def _store(self, result: TaskResult) -> None:
        for text, outcome in result.outcomes.items():
            block = outcome.block
            self._blocks[text][result.start] = block
            if outcome.file is not None:
                usages: dict[int, Any] = (
                    dict(block.usages)
                    if isinstance(block, Scores)
                    else {i: judgment.usage for i, judgment in enumerate(block) if judgment.usage}
                )
                timing: dict[str, Any] = {"seconds": round(outcome.seconds, 6), "records": len(block)}
                self._parts[text].write(result.start, outcome.file, timing | ({"usage": usages} if usages else {}))
        count = max(len(outcome.block) for outcome in result.outcomes.values())
        self._computed += count
        self._report(count)

    def _report(self, count: int) -> None:
        """Report that these records are done. How many a file holds is estimated from the share of it read so far."""
        self._done += count
        share = self._reader.share_read if self._reader else None
        self._progress(self._done, self._total or (round(self._count / share) if share else None))


def is_final(block: Block, *, retry_failed: bool = False) -> bool:
    """Whether a stored block can be used as it is.

    Where a request failed for a reason that may have passed, or where nothing at all succeeded, it is computed again;
    earlier answers are in the LLM cache, so only what is missing is requested again. With `retry_failed`, any failure
    but a missing input counts as one that may have passed.
    """
    if isinstance(block, Scores):
        failures, incomplete = list(block.failures.values()), bool(block.incomplete)
    else:
        failures = [judgment.failure for judgment in block if judgment.failure is not None]
        incomplete = any(judgment.incomplete for judgment in block)
    if incomplete or any(failure.kind.is_retryable for failure in failures):
        return False
    if retry_failed and any(failure.kind is not FailureKind.missing_input for failure in failures):
        return False
    return len(failures) < len(block) or not failures


def cut_shards(units: Iterable[Unit], size: int) -> Iterator[tuple[int, tuple[Unit, ...]]]:
    """Consecutive records or pairs, each group with the position of its first, the same whenever the same input is
    read. The pairs of an item stay together, since they share outputs."""
    remaining = iter(units)
    first = list(islice(remaining, 1))
    remaining = chain(first, remaining)
    by_item = groupby(remaining, key=_item) if first and isinstance(first[0], Pair) else None
    start, text = 0, 0
    shard: list[Unit] = []
    while True:
        # Counting the characters of a few records at once is much faster than of one at a time.
        few = next(by_item, ("", ()))[1] if by_item else islice(remaining, min(_STEP, size - len(shard)))
        block = list(few)
        if not block:
            break
        parts = [(block, _count_characters(block))]
        if text + parts[0][1] > MAX_TEXT and not by_item:
            parts = [([record], _count_characters([record])) for record in block]
        for part, count in parts:
            shard += part
            text += count
            if len(shard) >= size or text > MAX_TEXT:
                yield start, tuple(shard)
                start, text, shard = start + len(shard), 0, []
    if shard:
        yield start, tuple(shard)


def _item(unit: Unit) -> str:
    return unit.first.item if isinstance(unit, Pair) else unit.item


def _count_characters(units: Sequence[Unit]) -> int:
    records: Sequence[Any] = units
    if units and isinstance(units[0], Pair):
        records = [record for pair in units for record in (pair.first, pair.second)]  # type: ignore[union-attr]
    total = sum(map(len, [record.output for record in records]))
    total += sum(map(len, chain.from_iterable([record.references for record in records])))
    total += sum(map(len, filter(None, [record.source for record in records])))
    return total + sum(map(len, filter(None, [record.instruction for record in records])))


def _suggest_column(metric: Metric, unit: Unit) -> str:
    """Suggest the column that may hold what a metric needs and a record lacks."""
    record = unit.first if isinstance(unit, Pair) else unit
    need = next((need for need in metric.needs if record.lacks(need)), None)
    column = guess_column(need, record.extra) if need and record.extra else None
    return f"; use --field {quote_flag(need, column)} if {column!r} holds that" if need and column else ""


def check_needs(metrics: Iterable[Metric], units: Iterable[Unit]) -> Iterator[Unit]:
    """The same records or pairs. A metric that can score none of the first ones is refused; mostly a look at one
    record decides, and no more are held than were looked at."""
    remaining, seen, text = iter(units), list[Unit](), 0
    unserved = [metric for metric in metrics if metric.needs]
    fields = {field.name for field in dataclasses.fields(Record)}
    for metric in unserved:
        needs: Any = metric.needs
        if isinstance(needs, str) or not fields.issuperset(needs):
            raise SpecError(
                f"{metric.text}: needs must be a tuple of fields of a record, such as ('references',), got {needs!r}"
            )
    while unserved and len(seen) < LOOK_AHEAD and text <= MAX_TEXT and (unit := next(remaining, None)):
        seen.append(unit)
        text += _count_characters([unit])
        unserved = [metric for metric in unserved if not find_scorable(metric, [unit])]
    if unserved and seen:
        what = "pairs" if isinstance(seen[0], Pair) else "records"
        others = f"; none of the first {len(seen):,} {what} can be scored by it" if len(seen) > 1 else ""
        raise NeedsError(f"{describe_missing(unserved[0], seen[0])}{others}{_suggest_column(unserved[0], seen[0])}")
    return chain(seen, remaining)
