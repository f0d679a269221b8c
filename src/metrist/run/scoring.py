"""`score`: score records with metrics, into memory, a flat file or a run folder."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass, field, replace
from functools import wraps
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from metrist.errors import InputError, RunError, agree
from metrist.io import ParsedRow, Reader, read_records
from metrist.io.batches import BATCH_RECORDS, Batch
from metrist.io.reader import RowProgress, check_keywords
from metrist.io.remote import is_remote, local_path, put_file
from metrist.io.row_model import Location
from metrist.io.writer import check_distinct
from metrist.metrics.base import Metric
from metrist.metrics.registry import MetricList, build_all
from metrist.records import Record, RecordColumns, records_from_lists
from metrist.report.progress import Progress, shows_progress
from metrist.report.scores import describe_total_failure
from metrist.run.flat_file import check_replaceable, check_writable, flat_suffix
from metrist.run.pipeline import Pipeline
from metrist.run.ray import Ray
from metrist.run.results import NothingScored, Results
from metrist.run.tasks import Executor
from metrist.runtime import Runtime
from metrist.scores import Scores
from metrist.settings import LLMSettings, ModelSettings, check_types, select_arguments

if TYPE_CHECKING:
    from metrist.run.store import Store


_P = ParamSpec("_P")
_T = TypeVar("_T")


def writes_remotely(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorate a function with an argument `out`, so that it can also be the URL of a flat file: it is written here
    and then uploaded."""

    @wraps(function)
    def call(*arguments: _P.args, **keywords: _P.kwargs) -> _T:
        out = keywords.get("out")
        if not isinstance(out, str) or not is_remote(out) or not flat_suffix(Path(out)):
            return function(*arguments, **keywords)
        target = local_path(out)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot write {target}: {error.strerror}", code="cannot_write") from error
        keywords["out"] = target
        result = function(*arguments, **keywords)
        try:
            put_file(target, out)
        except RunError as error:
            raise RunError(f"{error}: all results are in {target}") from error
        return result

    return call


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
    check_types(score, {name: value for name, value in locals().items() if name not in ("metrics", "reading")})
    if reading:
        check_keywords(score, reading)
    runtime = (runtime or Runtime.current()).override(
        **select_arguments(ModelSettings, locals()), **select_arguments(LLMSettings, locals())
    )
    built = build_all(metrics)
    if not built:
        raise RunError("no metric was requested: name at least one, such as 'chrf'", code="missing_value")
    file, store = resolve_destination(out)
    if store:
        built = _name_metrics(store, built)
    if predictions is not None or references is not None or sources is not None:
        if records is not None or predictions is None:
            raise RunError(
                "expected records, or predictions with their references and sources; not a mixture",
                code="invalid_value",
            )
        records = records_from_lists(predictions, references, sources, system=reading.pop("system", None))
    elif records is None:
        raise RunError("nothing to score: give records (a file, rows or a frame), or predictions=[…]", code="no_data")
    reader = read_records(records, **reading)
    if file:
        check_distinct(file, reader.names)
    pipeline = open_pipeline(
        built,
        runtime,
        store,
        texts=texts,
        executor=executor,
        shard_size=shard_size,
        tokens=tokens,
        progress=progress,
        reader=reader,
        total=len(records) if isinstance(records, Sized) and not reader.names else None,
    )
    scored = None if store else ScoredInput(sources=reader.sources, input=reader)
    blocks = pipeline.run(scored if scored and not reader.names else reader)
    scores: dict[str, Scores] = {metric.label: blocks[metric.text] for metric in built}
    remarks = (remark for metric in built for remark in metric.remarks(scores[metric.label]))
    # A folder has a remark of its own on sources, which is about all of its records.
    about_input = [remark for remark in reader.remarks if not (store and remark in reader.source_remarks)]
    notes = (*about_input, *reader.skipped.describe(), *pipeline.notes, *remarks)
    results = Results(
        items=pipeline.items,
        systems=pipeline.systems,
        sources=pipeline.sources,
        metrics=built,
        scores=scores,
        signatures={metric.label: pipeline.signatures[metric.text] for metric in built},
        notes=notes,
        inputs=pipeline.stored_run or (scored if reader.is_repeatable else None),
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


def _name_metrics(store: Store, metrics: Sequence[Metric]) -> tuple[Metric, ...]:
    """The metrics, those without a short name under the one that an earlier run here gave them. A name that another
    metric of the folder has is refused."""
    manifest = store.read_manifest()
    listed = manifest.metrics if manifest else ()
    new = {metric.short_name for metric in metrics}
    names = {metric.text: metric.name for metric in listed if metric.name not in new}
    renamed = tuple(
        metric.named(names[metric.text]) if names.get(metric.text) and not metric.short_name else metric
        for metric in metrics
    )
    texts = {metric.text for metric in renamed}
    others = {metric.label: metric.text for metric in listed if metric.text not in texts}
    for metric in renamed:
        if metric.label in others:
            raise RunError(
                f"{store.name} already has a metric called {metric.label!r}, {others[metric.label]}: give "
                f"{metric.text} another name",
                code="conflict",
            )
    return renamed


def open_pipeline(
    metrics: Sequence[Metric], runtime: Runtime, store: Store | None, *, texts: bool, **options: Any
) -> Pipeline:
    """The pipeline into memory, or into the store."""
    if store is None:
        return Pipeline(metrics, runtime, **options)
    executor = options.get("executor")
    if isinstance(executor, Ray) or (isinstance(executor, str) and executor.partition(":")[0] == "ray"):
        from metrist.run.cluster import ClusterPipeline

        return ClusterPipeline(metrics, runtime, store, texts=texts, **options)
    from metrist.run.stored_pipeline import StoredPipeline

    return StoredPipeline(metrics, runtime, store, texts=texts, **options)


def resolve_destination(
    out: str | os.PathLike[str] | None, formats: Sequence[str] = (".jsonl", ".csv", ".parquet")
) -> tuple[Path | None, Store | None]:
    """The flat file, in one of these formats, or the run folder that a path asks for. What could not be written at the
    end is refused now; nothing is written yet."""
    if out is None:
        return None, None
    from metrist.run.stored_run import open_store

    path = Path(out)
    suffix = flat_suffix(path) if path.suffix else None
    if suffix in formats:
        check_writable(path)
        check_replaceable(path)
        return path, None
    is_url = isinstance(out, str) and is_remote(out)
    named_as_folder = is_url or os.fspath(out).endswith(("/", os.sep)) or path.is_dir()
    if suffix or (not named_as_folder and re.fullmatch(r"\.[A-Za-z]\w*", path.suffix)):
        raise RunError(
            f"cannot tell what to write to {path}: expected a folder (end it with '/'), or a file that ends in "
            f"{' or '.join(formats)}",
            code="invalid_value",
        )
    store = open_store(out if is_url else path)
    store.check()
    return None, store


@dataclass(eq=False, kw_only=True)
class ScoredInput(Reader):
    """The input of a run without a folder, with the texts that were scored.

    `batches` reads the input and, where it is in memory, keeps its records, because the caller may change frames and
    lists. From then on the records are those, and judgments come from rows whose texts are still the same. A file
    is read again, unless it has changed since.
    """

    input: Reader
    _records: list[RecordColumns] | None = field(default=None, init=False)
    _stamps: dict[str, tuple[int, int] | None] = field(init=False)
    _changed: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._stamps = {source.path: _stamp(source.path) for source in self.sources if source.path is not None}

    @property
    def remarks(self) -> list[str]:
        count = agree(
            self._changed, "a row has changed since it was", f"{self._changed:,} rows have changed since they were"
        )
        changed = f"{count} scored: the texts are those of then"
        return [*self.input.remarks, *([changed] if self._changed else [])]

    def __iter__(self) -> Iterator[Record]:
        self._check_files()
        return chain.from_iterable(self._records) if self._records is not None else iter(self.input)

    def batches(self, size: int = BATCH_RECORDS, *, judgments: bool = True) -> Iterator[Batch]:
        self._check_files()
        records = list[RecordColumns]()
        for batch in self.input.batches(size, judgments=judgments):
            records.append(batch.records)
            yield batch
        self._records = None if self.names or not self.is_repeatable else records

    def entries(self, progress: RowProgress | None = None) -> Iterator[ParsedRow]:
        self._check_files()
        if self._records is None:
            yield from self.input.entries(progress)
            return
        records = {(record.item, record.system): record for record in chain.from_iterable(self._records)}
        for number, (key, record) in enumerate(records.items(), 1):
            yield ParsedRow(location=Location(None, number), keys=(key,), records=(record,), new=(record,))
        self._changed = 0
        rows = self.input.entries(progress)
        while True:
            try:
                entry = next(rows, None)
            except InputError:  # The input can no longer be read, but its texts are known.
                self._changed += 1
                return
            if entry is None:
                return
            if all(records.get((record.item, record.system)) == record for record in entry.records):
                yield replace(entry, records=(), new=())
            else:
                self._changed += 1

    def _check_files(self) -> None:
        for path, stamp in self._stamps.items():
            if _stamp(path) != stamp:
                raise RunError(
                    f"{path} has changed since it was scored: pass the records that were scored", code="changed"
                )


def _stamp(path: str) -> tuple[int, int] | None:
    """A cheap fingerprint that changes when the file is written again; None if it is gone."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns
