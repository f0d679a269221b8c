"""Results of a run: each record's scores, and each system's with intervals and coverage."""

from __future__ import annotations

import importlib
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrist.errors import MetristError, RunError, agree, did_you_mean, format_count
from metrist.grid import Grid
from metrist.io import Reader, read_records
from metrist.io.writer import encodable
from metrist.metrics.base import PART, Metric, PartMetric
from metrist.names import NameColumn, encode_names, split_positions
from metrist.records import CONTEXT_FIELDS, TAG_FIELDS
from metrist.report.outputs import Heat, build_heat
from metrist.report.scores import build_score_table
from metrist.report.tables import Table
from metrist.run.flat_file import Flat, write_flat
from metrist.run.inputs import read_inputs
from metrist.scores import Score, Scores, take_stats
from metrist.settings import checks_types
from metrist.stats.resampling import CHUNK, ExactSums, draw_sums, interval, narrow_numbers, resample_counts

if TYPE_CHECKING:
    from metrist.run.run import Run

DRAWS = 1000
#: Bytes of statistics up to which metrics and systems share resamples.
_MAX_BYTES = 1 << 27
#: Rows of statistics that are read at a time.
_BLOCK_ROWS = 1 << 18
#: Fields of records that `Results.wide` shows.
_SHOWN_FIELDS = (*CONTEXT_FIELDS, "output", "references", *TAG_FIELDS)


class SystemScore(NamedTuple):
    """One system's score by one metric: pooled over the `n` outputs that could be scored, `coverage` of all."""

    system: str
    metric: str
    value: float
    low: float
    high: float
    n: int
    coverage: float


@dataclass(frozen=True, slots=True, eq=False)
class ResultColumn(Sequence[Score]):
    """One metric's scores of all records, with the item and system of each; `results["rougeL"]` returns it."""

    metric: Metric
    items: Sequence[str]
    systems: Sequence[str]
    scores: Scores

    @property
    def values(self) -> NDArray[np.float64]:
        """The values as an array; NaN where an output could not be scored."""
        return self.scores.values

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: Any) -> Any:
        return self.scores[index]

    def __repr__(self) -> str:
        failed = len(self.scores.failures) - self.scores.pending
        return f"ResultColumn({self.metric.label}, {format_count(len(self), 'score')}, {failed:,} failed)"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Results:
    """Scores of a run.

    `items` and `systems` have one entry per record; `scores` and `signatures` are by the metric's label: its short name
    or its text. `results["rougeL"]` is one metric's column, `results["judge:fluency"]` that of a part of its scores.
    `notes` are for the user, metrics' own remarks included. `unfinished` has the labels of metrics that a run folder
    has begun and not finished, by their texts. `reference_counts` are the different numbers of references that records
    have, records without any aside; empty: unknown, or none. `sources` has a digest of each record's source, empty for
    one without a source; or nothing: unknown. `inputs` is where the texts are read again: the records
    that were scored, which are not copied, or the run folder.
    """

    items: Sequence[str]
    systems: Sequence[str]
    metrics: tuple[Metric, ...]
    scores: Mapping[str, Scores]
    signatures: Mapping[str, str]
    notes: tuple[str, ...] = ()
    unfinished: Mapping[str, str] = field(default_factory=dict)
    inputs: Reader | Run | Path | None = None
    reference_counts: tuple[int, ...] = ()
    sources: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.items)

    def __repr__(self) -> str:
        return f"Results({format_count(len(self), 'record')}, metrics: {', '.join(self.scores)})"

    def __getitem__(self, metric: str | Metric) -> ResultColumn:
        chosen = self.metric(metric)
        return ResultColumn(chosen, self.items, self.systems, self._select(chosen))

    @property
    def columns(self) -> tuple[Metric, ...]:
        """The metrics, each followed by the aspects that its scores have as parts."""
        return tuple(
            column
            for metric in self.metrics
            for column in (
                metric,
                *(PartMetric(metric, name) for name in metric.aspect_parts if name in self.scores[metric.label].parts),
            )
        )

    @checks_types
    def metric(self, metric: str | Metric) -> Metric:
        """The metric of this run with that label or text; `judge:fluency` is a part of its scores."""
        if isinstance(metric, PartMetric):
            return self._part(self.metric(metric.metric), metric.part)
        text = metric if isinstance(metric, str) else metric.text
        by_text = {known.text: known for known in self.metrics}
        by_label = {known.label: known for known in self.metrics}
        if chosen := by_label.get(text) or by_text.get(text):
            return chosen
        if not isinstance(metric, str) and metric.label in by_label:
            return by_label[metric.label]
        owner, colon, part = text.rpartition(PART)
        namesakes = [known for known in self.metrics if known.name == owner]
        by_name = {owner: namesakes[0]} if len(namesakes) == 1 else {}
        if colon and (chosen := by_label.get(owner) or by_text.get(owner) or by_name.get(owner)):
            return self._part(chosen, part)
        if message := explain_unfinished(self.unfinished, text, owner):
            raise RunError(message)
        raise RunError(
            f"this run has no metric {text!r}; it has {', '.join(by_label)}{did_you_mean(text, by_label)}",
            code="unknown_name",
        )

    def _part(self, metric: Metric, part: str) -> PartMetric:
        if part not in (known := self.scores[metric.label].parts):
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise RunError(
                f"the scores of {metric.label} have no part {part!r}; {has}{did_you_mean(part, known)}",
                code="unknown_name",
            )
        return PartMetric(metric, part)

    def _select(self, metric: Metric) -> Scores:
        """The scores of a metric of this run, or of a part of one."""
        if isinstance(metric, PartMetric):
            return metric.select(self.scores[metric.metric.label])
        return self.scores[metric.label]

    def grid(self, metric: str | Metric) -> Grid:
        """One metric's values as system × item, signed so that larger is better."""
        chosen = self.metric(metric)
        return Grid.of(
            chosen.label,
            self.systems,
            self.items,
            self._select(chosen).values,
            higher_is_better=chosen.higher_is_better is not False,
        )

    @checks_types
    def system_scores(
        self,
        draws: int = DRAWS,
        seed: int = 0,
        confidence: float = 0.95,
        metrics: Sequence[str | Metric] | None = None,
    ) -> list[SystemScore]:
        """Each system's pooled score by each metric, or by these, with a percentile bootstrap interval over its items.
        The same seed gives the same intervals on every machine."""
        if draws < 0 or not 0 < confidence < 1:
            raise RunError(
                f"expected draws of at least 0 and a confidence between 0 and 1, got {draws} and {confidence}",
                code="invalid_value",
            )
        columns = self.columns if metrics is None else tuple(map(self.metric, metrics))
        estimates: dict[tuple[str, str], SystemScore] = {}
        waiting = list[_SystemSums]()

        def estimate(coming: int) -> None:
            """Estimate what is waiting, if there is no room for so many bytes more."""
            if sum(one.sums.nbytes for one in waiting) + coming > _MAX_BYTES:
                estimates.update(_estimate_together(waiting, draws, seed, confidence))
                waiting.clear()

        systems = encode_names(self.systems)
        for metric in columns:
            scores = self._select(metric)
            estimate(len(scores) * scores.width)  # Most statistics are whole numbers of one byte.
            for sums in _sum_by_system(metric, scores, systems):
                waiting.append(sums)
                estimate(0)
        estimates |= _estimate_together(waiting, draws, seed, confidence)
        return [estimates[system, metric.label] for system in systems.names for metric in columns]

    @checks_types
    def table(self, draws: int = DRAWS, seed: int = 0, confidence: float = 0.95) -> Table:
        """System scores, one row per system and one column per metric, with intervals. Coverage is the least of the
        system's metrics; where they differ, another column has that of each."""
        return build_score_table(self, draws, seed, confidence, name_in_papers)

    def heat(
        self,
        metric: str | Metric | None = None,
        *,
        item: str | None = None,
        system: str | None = None,
        limit: int = 20,
        pieces: bool = False,
    ) -> Heat:
        """Words coloured by how unlikely a model found them, for runs with `tokens=True`: the worst outputs of each
        metric, or of one, up to a limit. `pieces` shows the pieces of words that the model reads."""
        chosen = self.metrics if metric is None else (self.metric(metric),)
        columns = [(metric, self._select(metric)) for metric in chosen]
        return build_heat(self.items, self.systems, columns, item=item, system=system, limit=limit, pieces=pieces)

    def rows(self) -> Iterator[dict[str, Any]]:
        """One plain row per record and metric, in that order, as in a flat file."""
        return self._flat().rows()

    @checks_types
    def write(self, path: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None) -> None:
        """Write a flat .jsonl (.gz, .xz, .zst), .csv or .parquet file, whole or not at all. `progress` is called with
        the number of records written and of all."""
        write_flat(Path(path), self._flat(progress))

    def to_pandas(self) -> Any:
        """The rows as a pandas DataFrame."""
        return import_frames("pandas").DataFrame(list(self._flat().unicode_rows()))

    def to_polars(self) -> Any:
        """The rows as a polars DataFrame; `parts` is a struct with the parts of all metrics."""
        return import_frames("polars").DataFrame(list(self._flat().unicode_rows()), infer_schema_length=None)

    def wide(self, records: Any = None, *, texts: bool = True, **reading: Any) -> Any:
        """One row per item and system with a column per metric and aspect, as a pandas DataFrame, or as a list of dicts
        where pandas is not installed.

        The texts, and the columns that metrist does not know, come from the records that were scored, from the files
        that the run read, or from `records`, in any form that `read_records` takes (`reading` are its options). Where
        they cannot be read, a warning says why.
        """
        columns: dict[str, list[Any]] = {
            "item": list(map(encodable, self.items)),
            "system": list(map(encodable, self.systems)),
        }
        if texts:
            try:
                columns |= self._text_columns(self.read_inputs(records, **reading))
            except MetristError as error:
                if records is not None:
                    raise
                warnings.warn(f"without texts: {error}", stacklevel=2)
        metrics = self.columns
        for header, metric in zip(self.headers(metrics), metrics, strict=True):
            # A metric may have any name.
            columns[header if header not in columns else f"{header} score"] = self._select(metric).values.tolist()
        try:
            import pandas
        except ImportError:
            return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        return pandas.DataFrame(columns)

    def read_inputs(self, records: Any = None, **reading: Any) -> Reader:
        """Return a reader of the records that were scored, or of `records`: results hold no texts themselves."""
        if records is not None:
            return read_records(records, **reading)
        if not isinstance(self.inputs, Reader | None):
            return read_inputs(self.inputs, **reading)
        if self.inputs is None:
            raise RunError(
                "these results hold no texts, and their records could be read only once or were not stored with them: "
                "pass the records",
                code="no_data",
            )
        return self.inputs

    def worst(self, n: int = 10, metric: str | Sequence[str] | None = None, **options: Any) -> Any:
        """The `n` outputs to look at first, with texts, scores and reasons: `metrist.worst(results, n, metric, …)`."""
        # Evaluation is a layer above runs, so that it is found through the package.
        return importlib.import_module("metrist").worst(self, n, metric, **options)

    @checks_types
    def plot(
        self,
        metrics: str | Metric | Sequence[str | Metric] | None = None,
        *,
        draws: int = DRAWS,
        seed: int = 0,
        confidence: float = 0.95,
    ) -> Any:
        """The system scores with their intervals as a `metrist.report.svg.Drawing`: a panel for each of the metrics, by
        default for each metric and aspect. Notebooks show it; `write` makes an .svg, .pdf or .png file of it."""
        from metrist.report.figures import draw_system_scores

        named = [metrics] if isinstance(metrics, str | Metric) else metrics
        chosen = self.columns if named is None else tuple(map(self.metric, named))
        return draw_system_scores(self, chosen, draws, seed, confidence)

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()

    def __getstate__(self) -> list[Any]:
        # Records in memory are the caller's and not pickled with the results.
        inputs = None if isinstance(self.inputs, Reader) else self.inputs
        return [inputs if field.name == "inputs" else getattr(self, field.name) for field in fields(self)]

    def _text_columns(self, reader: Reader) -> dict[str, list[Any]]:
        """Fields and further columns of the records by position; those that no record has are left out."""
        positions = {key: i for i, key in enumerate(zip(self.items, self.systems, strict=True))}
        columns: dict[str, list[Any]] = {name: [None] * len(self) for name in _SHOWN_FIELDS}
        taken = {"item", "system", *_SHOWN_FIELDS}
        matched = 0
        for record in reader:
            if (position := positions.get((record.item, record.system))) is None:
                continue
            matched += 1
            for name in _SHOWN_FIELDS:
                value = getattr(record, name)
                if name == "references":
                    columns[name][position] = list(map(encodable, value)) or None
                elif value is not None:
                    columns[name][position] = encodable(value)
            for name, value in record.extra.items():
                if name not in taken:
                    columns.setdefault(name, [None] * len(self))[position] = value
        if not matched:
            raise RunError(
                f"no record of {', '.join(reader.names) or 'the input'} has an item and a system of these results",
                code="no_data",
            )
        if matched < len(self):
            warnings.warn(
                f"{len(self) - matched:,} of {format_count(len(self), 'output')} "
                f"{agree(len(self) - matched, 'has', 'have')} no texts in the records",
                stacklevel=3,
            )
        return {name: column for name, column in columns.items() if any(value is not None for value in column)}

    def headers(self, columns: Sequence[Metric]) -> list[str]:
        """The labels of the columns. An aspect of a metric with a long text goes by the metric's plain name, which
        finds it as well where no other metric has that name."""
        names = Counter(metric.name for metric in self.metrics)
        return [
            column.name
            if isinstance(column, PartMetric) and not column.metric.short_name and names[column.metric.name] == 1
            else column.label
            for column in columns
        ]

    def _flat(self, progress: Callable[[int, int], None] | None = None) -> Flat:
        columns = self.columns
        signatures = {
            column.label: self.signatures[column.metric.label if isinstance(column, PartMetric) else column.label]
            for column in columns
        }
        scores = {column.label: self._select(column) for column in columns}
        return Flat(items=self.items, systems=self.systems, scores=scores, signatures=signatures, progress=progress)


def import_frames(library: str) -> Any:
    """pandas or polars."""
    try:
        return importlib.import_module(library)
    except ImportError:
        message = f"to_{library}() needs {library}: pip install {library}"
        raise RunError(message, code="missing_dependency") from None


def name_in_papers(metric: Metric) -> str:
    """The metric's name in papers, from its card."""
    from metrist.metrics import cards  # Reading the cards takes time.

    return cards.name_in_papers(metric)


def explain_unfinished(unfinished: Mapping[str, str], *names: str) -> str | None:
    """Why a run has no scores by a metric of one of these names, if it has begun that metric; None if it has not."""
    for text, label in unfinished.items():
        if not {text, label, text.partition("(")[0]}.isdisjoint(names):
            return (
                f"{label} is not finished in this run: run the same `metrist score` again to continue it (in Python, "
                "metrist.score with the same arguments and out=)"
            )
    return None


class NothingScored(RunError):
    """A metric failed on every record. `results` are those of the whole run, with each record's reason and answer."""

    code = "metric_failed"

    def __init__(self, message: str, results: Results) -> None:
        super().__init__(message)
        self.results = results


# ---- System scores ----


class _SystemSums(NamedTuple):
    system: str
    metric: Metric
    sums: ExactSums
    coverage: float


def _sum_by_system(metric: Metric, scores: Scores, systems: NameColumn) -> Iterator[_SystemSums]:
    """The statistics of each system's outputs that have a score. They are read block by block, so that those of many
    outputs are in memory once."""
    blocks: list[list[NDArray[Any]]] = [[] for _ in systems.names]
    values = scores.values
    for start in range(0, len(scores), _BLOCK_ROWS):
        part = slice(start, start + _BLOCK_ROWS)
        rows, scored = narrow_numbers(take_stats(scores, part)), ~np.isnan(values[part])
        for own, positions in zip(blocks, split_positions(NameColumn(systems.codes[part], systems.names)), strict=True):
            own.append(rows[positions[scored[positions]]])
    counts = np.bincount(systems.codes, minlength=len(systems.names))
    for system, own, count in zip(systems.names, blocks, counts.tolist(), strict=True):
        rows = np.concatenate(own)
        own.clear()
        yield _SystemSums(system, metric, ExactSums.of(rows[None]), len(rows) / count)


def _estimate_together(
    waiting: Sequence[_SystemSums], draws: int, seed: int, confidence: float
) -> dict[tuple[str, str], SystemScore]:
    """Value and interval of each. Those on equally many records share the resamples, the costly part. The generator
    restarts for each number of records, so that no interval depends on what else is in the run."""
    by_count: dict[int, list[_SystemSums]] = {}
    for one in waiting:
        by_count.setdefault(one.sums.items, []).append(one)
    estimates = {}
    for count, members in by_count.items():
        values, drawn = [np.nan] * len(members), [[np.empty(0)] for _ in members]
        if count:
            once = np.ones((1, count))
            values = [float(one.metric.pool(one.sums(once))[0, 0]) for one in members]
            counts = resample_counts(count, draws, np.random.default_rng(seed), max(1, CHUNK // count))
            for sums in draw_sums(counts, [one.sums for one in members]):
                for one, total, resampled in zip(members, sums, drawn, strict=True):
                    resampled.append(one.metric.pool(total)[:, 0])
        for one, value, resampled in zip(members, values, drawn, strict=True):
            low, high = interval(np.concatenate(resampled), confidence, count, value)
            estimates[one.system, one.metric.label] = SystemScore(
                one.system, one.metric.label, value, low, high, count, one.coverage
            )
    return estimates
