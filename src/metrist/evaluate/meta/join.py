"""Join record files with judgments and scores, run folders and result files by item and system."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrist.errors import InputError, RunError, label_item
from metrist.evaluate.meta.dataset import (
    Cost,
    ErrorSpans,
    JudgedDataset,
    Labels,
    MetricScores,
    check_names,
)
from metrist.evaluate.meta.sources import OutputNames, SourceTables, build_dataset
from metrist.evaluate.selection import holds_results, pools_to_mean
from metrist.io import Reader, read_records
from metrist.metrics.base import PART
from metrist.ratings import Error
from metrist.records import Pair, Record
from metrist.report.scores import sign_metrics
from metrist.run import Results, load, read_inputs
from metrist.run.inputs import PASSING_OPTIONS, StoredReader, read_files
from metrist.run.loading import fetch_flat, load_run
from metrist.run.manifest import StoredMetric
from metrist.run.prefer import PreferenceResults
from metrist.run.run import Run, is_run, open_run
from metrist.scores import Scores, take_stats
from metrist.stats import Codes, Floats
from metrist.stats.samples import CorpusStats

#: Words in a metric's name that suggest "lower is better"; they only cause a note.
_LOWER_WORDS = frozenset(
    {"ter", "wer", "cer", "hter", "perplexity", "ppl", "loss", "error", "errors", "distance", "edits"}
)


def join(
    data: Any,
    *,
    parts: Sequence[str] = (),
    metrics: Sequence[str] = (),
    lower_is_better: Sequence[str] = (),
    lengths: Sequence[str] = (),
    progress: Callable[..., None] | None = None,
    **reading: Any,
) -> JudgedDataset:
    """Return everything that the sources hold about each output.

    A source is a path (records with `ratings`, `scores`, `errors`; a run folder; a .jsonl file that `metrist score`
    wrote, or the choices that `metrist prefer` wrote) or a URL of one, a `Results` or `PreferenceResults`, or whatever
    `read_records` takes. If there are only runs, ratings are those
    that they have stored, or those of the rows that results in memory were made from.

    `parts` uses these parts of the runs' scores (`recall`) instead of their values. Parts that `metrics` name in full
    (`judge:fluency`) are added, whatever else it names. `lower_is_better` names the
    aspects and metrics whose larger values are worse, if the data do not say so. `lengths` are units of lengths besides
    characters. `progress` is called with the rows
    read so far and about how many there are, None if that is unknown.
    """
    if isinstance(data, JudgedDataset):
        return _apply_directions(data, lower_is_better)
    records, runs, choices = _split_sources(data)
    folders = [scored.run for scored in runs if scored.run]
    readers = [] if records else list(_input_readers(runs, **reading))
    # One reader for all files checks rows across them. Files that a run read are read as it did.
    paths = [os.fspath(source) for source in records if isinstance(source, str | os.PathLike)]
    if paths:
        readers.append(read_files(paths, folders, **reading) if folders else read_records(paths, **reading))
    others = [source for source in records if not isinstance(source, str | os.PathLike)]
    readers += [read_records(source, **reading) for source in others]
    readers += map(read_records, choices)
    tables, notes = SourceTables(lengths), list[str]()
    if not records and (files := dict.fromkeys(name for reader in readers for name in reader.names)):
        stores = any(isinstance(reader, StoredReader) for reader in readers)
        origin = "that the run stores, from" if stores else "of the files that the run read:"
        notes.append(f"Ratings are those {origin} {', '.join(files)}.")
    for reader in readers:
        tables.add(reader, progress)
        notes += [*reader.remarks, *reader.skipped.describe()]
    scored_outputs = [(None if scored.results else scored.run, scored.list_names) for scored in runs]
    dataset, numbers = build_dataset(tables, scored_outputs)
    # Tables are gone before scores are read.
    results = [(scored.name, scored.load()) for scored in runs]
    scores, errors = _read_runs(results, numbers, len(dataset), parts, metrics)
    if case := describe_case(dataset.systems.names):
        notes.append(f"Warning{case.replace(';', ':', 1)}.")
    run_notes = (note for _, run in results for note in run.notes)
    reading_notes = tuple(dict.fromkeys([*notes, *dataset.notes, *run_notes]))
    results.clear()
    for run in folders:
        run.release()
    dataset = replace(
        dataset,
        scores=_merge([*dataset.scores.values(), *scores], dataset),
        metric_errors=errors,
        fields_by_column={column: name for reader in readers for column, name in reader.fields_by_column.items()},
        notes=reading_notes,
        reading_notes=reading_notes,
    )
    return _apply_directions(dataset, lower_is_better)


def describe_case(systems: Iterable[str]) -> str:
    """Say which systems differ only in case, as the end of a sentence; empty if none do."""
    spellings: dict[str, list[str]] = {}
    for system in systems:
        spellings.setdefault(system.casefold(), []).append(system)
    alike = [" and ".join(map(repr, names)) for names in spellings.values() if len(names) > 1]
    return f"; systems that differ only in case are not joined: {', '.join(alike[:3])}" if alike else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ScoredSource:
    """Results, or a run whose scores are read later. `name` is for messages."""

    name: str
    run: Run | None = None
    results: Results | None = None

    def list_names(self) -> OutputNames:
        """The item and the system of each output."""
        if self.results is not None:
            return self.results.items, self.results.systems
        assert self.run is not None
        return self.run.view.items, self.run.view.systems

    def load(self) -> Results:
        if self.results is not None:
            return self.results
        assert self.run is not None
        return load_run(self.run)


def _split_sources(data: Any) -> tuple[list[Any], list[_ScoredSource], list[list[Any]]]:
    """Return the sources of records, those of scores, and the rows of comparators' choices."""
    data = fetch_flat(data)
    # A list of rows is one source; a list of anything else is a list of sources.
    is_list = isinstance(data, list | tuple) and bool(data)
    is_rows = not is_list or any(isinstance(row, Mapping | Record | Pair) for row in data)
    records: list[Any] = []
    runs: list[_ScoredSource] = []
    choices: list[list[Any]] = []
    for source in [data] if is_rows else map(fetch_flat, data):
        if isinstance(source, Results):
            run = source.inputs if isinstance(source.inputs, Run) else None
            runs.append(_ScoredSource(name=f"the results {len(runs) + 1}", run=run, results=source))
        elif isinstance(source, PreferenceResults):
            choices.append(list(source.rows()))
        elif is_run(source):
            run = open_run(source)
            compared = [metric.export for metric in run.manifest.metrics if metric.compares]
            exports = [data for export in compared if (data := run.store.read_bytes(export))]
            choices += [[json.loads(line) for line in data.splitlines()] for data in exports]
            if not exports or len(compared) < len(run.manifest.metrics):
                runs.append(_ScoredSource(name=str(source), run=run))
        elif holds_results(source):
            runs.append(_ScoredSource(name=str(source), results=load(source)))
        else:
            records.append(source)
    return records, runs, choices


def has_runs(data: Any) -> bool:
    """Whether a source, or one of several, has the scores of a run, or is joined already."""
    return isinstance(data, JudgedDataset) or bool(_split_sources(data)[1])


def _input_readers(runs: Sequence[_ScoredSource], **options: Any) -> Iterator[Reader]:
    """Yield readers of what these runs were made from, each file once: of the tables of a run folder, and of the files
    or rows that results in memory were made from."""
    seen: set[str] = set()
    given = {name: value for name, value in options.items() if value}
    for scored in runs:
        if scored.run is not None and not given.keys() - PASSING_OPTIONS:
            # Its ratings are there even if its texts are not.
            reader: Reader = StoredReader(sources=(), run=scored.run)
        elif scored.results is not None and scored.results.inputs is not None:
            reader = scored.results.read_inputs(**given)
        elif scored.run is not None:
            reader = read_inputs(scored.run, **given)
        else:
            continue
        sources = tuple(source for source in reader.sources if source.name is None or source.name not in seen)
        seen.update(source.name for source in reader.sources if source.name is not None)
        if len(sources) == len(reader.sources):
            yield reader
        elif sources:
            yield replace(reader, sources=sources)


def _read_runs(
    runs: Sequence[tuple[str, Results]],
    numbers: Sequence[Codes | None],
    size: int,
    parts: Sequence[str],
    metrics: Sequence[str],
) -> tuple[list[MetricScores], dict[str, ErrorSpans]]:
    """Return the scores of runs; `numbers` are those of their outputs, None where these are all in order."""
    if parts and not runs:
        raise RunError("only runs have parts: give a run folder, or a .jsonl file that `metrist score` wrote")
    if parts:
        known = dict.fromkeys(part for _, run in runs for scores in run.scores.values() for part in scores.parts)
        check_names("part", parts, list(known))
    scores: list[MetricScores] = []
    errors: dict[str, ErrorSpans] = {}
    for (name, results), at in zip(runs, numbers, strict=True):
        costs = read_costs(results)
        signatures = sign_metrics(results.metrics, results.signatures, results.reference_counts)
        for metric, signature in zip(results.metrics, signatures, strict=True):
            block = results.scores[metric.label]
            for label, values in _select_parts(metric.label, block.values, block.parts, parts, metrics):
                column = values
                if at is not None:
                    column = np.full(size, np.nan)
                    column[at] = values
                corpus = None
                if label == metric.label and not pools_to_mean(metric):
                    stats: Any = _StatisticsRows(block)
                    if at is not None:
                        stats = np.zeros((size, block.width))
                        stats[at] = block.stats
                    corpus = CorpusStats(rows=stats, pool=metric.pool)
                scores.append(
                    MetricScores(
                        name=label,
                        values=column,
                        higher_is_better=metric.higher_is_better,
                        origin=name,
                        cost=costs.get(metric.text, Cost()),
                        text=metric.text,
                        signature=signature.text,
                        peer_signature=signature.peer,
                        corpus=corpus,
                    )
                )
            if block.errors:
                pairs = (
                    (row if at is None else int(at[row]), error)
                    for row, listed in block.errors.items()
                    for error in listed
                )
                errors[metric.label] = _collect_error_spans(pairs)
    return scores, errors


def _collect_error_spans(errors: Iterable[tuple[int, Error]]) -> ErrorSpans:
    """Return the errors that a metric reported as columns."""
    outputs, marked = zip(*errors, strict=True)
    spans = [(-1, -1) if error.start is None or error.end is None else (error.start, error.end) for error in marked]
    start, end = np.array(spans, np.intp).T
    return ErrorSpans(
        output=np.array(outputs, np.intp),
        start=start,
        end=end,
        severity=Labels.of(error.severity for error in marked),
        on_output=np.array([error.side == "output" for error in marked]),
    )


class _StatisticsRows:
    """The rows of statistics of scores, which are read where a measure between systems asks for them."""

    def __init__(self, scores: Scores) -> None:
        self._scores = scores
        self.shape = len(scores), scores.width

    def __len__(self) -> int:
        return len(self._scores)

    def __getitem__(self, rows: NDArray[Any]) -> Floats:
        rows = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        taken: Floats = take_stats(self._scores, rows).astype(np.float64)
        return taken

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self._scores.stats.astype(dtype or np.float64, copy=bool(copy))


def _select_parts(
    label: str, values: Floats, parts: Mapping[str, Floats], names: Sequence[str], metrics: Sequence[str]
) -> Iterator[tuple[str, Floats]]:
    replacing = [part for part in names if part in parts]
    if not replacing or label in metrics:
        yield label, values
    # Parts of a run are read when they are asked for.
    added = [part for part in parts if f"{label}{PART}{part}" in metrics] if metrics else []
    for part in dict.fromkeys([*replacing, *added]):
        yield f"{label}{PART}{part}", parts[part]


def _merge(columns: Sequence[MetricScores], dataset: JudgedDataset) -> dict[str, MetricScores]:
    """Return one column per metric. Two sources may score the same output only if the scores are equal."""
    merged: dict[str, MetricScores] = {}
    for column in columns:
        if column.name not in merged:
            merged[column.name] = column
            continue
        earlier = merged[column.name]
        both = ~np.isnan(column.values) & ~np.isnan(earlier.values)
        differ = np.flatnonzero(both & (column.values != earlier.values))
        if len(differ):
            item, system = (labels.names[labels.codes[differ[0]]] for labels in (dataset.items, dataset.systems))
            raise InputError(
                f"{column.name} is in {earlier.origin} and in {column.origin} with different scores: item "
                f"{label_item(item)!r} of system {system!r} has {earlier.values[differ[0]]:g} and "
                f"{column.values[differ[0]]:g}; leave one of the two out"
            )
        direction = earlier.higher_is_better if column.higher_is_better is None else column.higher_is_better
        values = np.where(np.isnan(earlier.values), column.values, earlier.values)
        # The statistics of all outputs that either column has a score for; None if those of some are unknown.
        added = ~np.isnan(column.values) & np.isnan(earlier.values)
        corpus = None if added.any() else earlier.corpus
        if earlier.corpus and column.corpus and earlier.text == column.text:
            rows = np.where(added[:, None], column.corpus.rows, earlier.corpus.rows)
            corpus = replace(column.corpus, rows=rows)
        elif column.corpus and not (np.isnan(column.values) & ~np.isnan(earlier.values)).any():
            corpus = column.corpus
        merged[column.name] = replace(column, values=values, higher_is_better=direction, corpus=corpus)
    return merged


def _apply_directions(dataset: JudgedDataset, lower_is_better: Sequence[str]) -> JudgedDataset:
    """Mark the named metrics and negate the named aspects, so that larger is better everywhere."""
    check_names("aspect or metric", lower_is_better, [*dataset.ratings, *dataset.scores])
    ratings = {
        aspect: replace(column, value=-column.value) if aspect in lower_is_better else column
        for aspect, column in dataset.ratings.items()
    }
    scores = {
        name: replace(column, higher_is_better=False) if name in lower_is_better else column
        for name, column in dataset.scores.items()
    }
    named = set(lower_is_better) & set(ratings)
    reversed_aspects = tuple(aspect for aspect in ratings if (aspect in named) != (aspect in dataset.reversed_aspects))
    return replace(dataset, ratings=ratings, scores=scores, reversed_aspects=reversed_aspects)


def suggests_lower_is_better(name: str) -> bool:
    """Whether a metric's name suggests that lower is better (`TER`, `sentence-WER`, `perplexity`)."""
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
    return any(word.lower() in _LOWER_WORDS or word == "PER" for word in words)


class Timing(NamedTuple):
    """What all scores of a metric took; `usages` are those of its requests."""

    seconds: float
    records: int
    usages: list[dict[str, Any]]


def read_timing(run: Run, metric: StoredMetric) -> Timing:
    """Return what the finished scores or judgments of a metric took."""
    seconds, records, usages = 0.0, 0, list[dict[str, Any]]()
    for part in metric.finished.parts if metric.finished else ():
        facts = run.store.read_facts(metric.place, part)
        seconds, records = seconds + facts.get("seconds", 0.0), records + facts.get("records", 0)
        texts = run.read_part(metric.place, part, ["usage"])["usage"].drop_null().to_pylist()
        usages += [usage for usage in map(json.loads, texts) if isinstance(usage, dict)]
    return Timing(seconds, records, usages)


def read_costs(results: Results) -> dict[str, Cost]:
    """Return what each metric of a run cost per output, by its text; empty where that is not stored."""
    run, costs = results.inputs, dict[str, Cost]()
    if not isinstance(run, Run):
        return costs
    for metric in run.finished_metrics():
        timing = read_timing(run, metric)
        spent = [usage["cost"] for usage in timing.usages if "cost" in usage]
        if timing.records:
            money = sum(spent) / timing.records if spent else np.nan
            costs[metric.text] = Cost(seconds=timing.seconds / timing.records, money=money)
    return costs
