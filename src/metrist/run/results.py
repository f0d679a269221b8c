"""Results of a run: each record's scores, and each system's with intervals and coverage."""

from __future__ import annotations

import importlib
import math
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrist.errors import MetristError, RunError, agree, did_you_mean, format_count, label_item
from metrist.grid import Grid
from metrist.io import Reader, read_records
from metrist.metrics.base import PART, Metric, PartMetric
from metrist.names import NameColumn, encode_names, split_positions
from metrist.report.heat import Heat, HeatOutput, Reading
from metrist.report.tables import Better, Column, Count, Estimate, Share, Shares, Signature, Table, decimals_for
from metrist.run.flat_file import Flat, encodable, write_flat
from metrist.run.inputs import read_inputs
from metrist.scores import FailureKind, Score, Scores, take_stats
from metrist.stats.resampling import CHUNK, ExactSums, draw_sums, interval, narrow_numbers, resample_counts

if TYPE_CHECKING:
    from metrist.run.run import Run

DRAWS = 1000
#: Bytes of statistics up to which metrics and systems share resamples.
_MAX_BYTES = 1 << 27
#: Rows of statistics that are read at a time.
_BLOCK_ROWS = 1 << 18
#: Characters of an answer that a message quotes.
_MAX_QUOTE = 200
#: In the remark of a metric on how many of its outputs were scored.
_COVERED = "outputs were scored"
#: Fields of records that `Results.wide` shows.
_TEXT_FIELDS = ("source", "instruction", "output", "references", "task", "language")
_READING_FIELDS = ("condition", "target", "pieces", "logprobs")


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
        raise RunError(f"this run has no metric {text!r}; it has {', '.join(by_label)}{did_you_mean(text, by_label)}")

    def _part(self, metric: Metric, part: str) -> PartMetric:
        if part not in (known := self.scores[metric.label].parts):
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise RunError(f"the scores of {metric.label} have no part {part!r}; {has}{did_you_mean(part, known)}")
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
                f"expected draws of at least 0 and a confidence between 0 and 1, got {draws} and {confidence}"
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

    def _split_by_system(self) -> dict[str, NDArray[np.intp]]:
        """The positions of each system's outputs, systems in the order of their first use."""
        column = encode_names(self.systems)
        return dict(zip(column.names, split_positions(column), strict=True))

    def table(self, draws: int = DRAWS, seed: int = 0, confidence: float = 0.95) -> Table:
        """System scores, one row per system and one column per metric, with intervals. Coverage is the least of the
        system's metrics; where they differ, another column has that of each."""
        rows = self.system_scores(draws, seed, confidence)
        about = f"{confidence:.0%} intervals: {draws:,} bootstrap resamples of the items, seed {seed}"
        items = encode_names(self.items).codes
        first, *others = (np.unique(items[at]) for at in self._split_by_system().values())
        different = "The systems have outputs for different items: `metrist compare` compares them on shared ones"
        notes = (*([different] if any(not np.array_equal(other, first) for other in others) else []), *self.notes)
        decimals: dict[str, int] = {}
        columns = self.columns
        for metric in columns:
            # By the metric's bounds, or by its scores where it declares none.
            values = [row.value for row in rows if row.metric == metric.label and np.isfinite(row.value)]
            low, high = metric.bounds
            if not np.isfinite(metric.bounds).all():
                low, high = min(values, default=0.0), max(values, default=0.0)
            decimals[metric.label] = decimals_for(low, high)
        by_system: dict[str, list[SystemScore]] = {}
        for row in rows:
            by_system.setdefault(row.system, []).append(row)
        headers = self._headers(columns) if len(columns) > len(self.metrics) else list(decimals)
        differ = any(row.n != group[0].n for group in by_system.values() for row in group)
        lines: list[list[object]] = []
        for system, group in by_system.items():
            least = min(group, key=lambda row: row.coverage)
            estimates = [Estimate(row.value, row.low, row.high, decimals[row.metric]) for row in group]
            shares = dict(zip(headers, (row.coverage for row in group), strict=True))
            lines.append(
                [system, *estimates, Count(least.n), Share(least.coverage), *([Shares(shares)] if differ else [])]
            )
        lower = [metric.label for metric in self.metrics if metric.higher_is_better is False]
        return Table(
            title="System scores",
            columns=[
                Column("system"),
                *map(score_column, columns, headers),
                Column("scored", "right"),
                Column("coverage", "right"),
                *([Column("coverage of")] if differ else []),
            ],
            rows=lines,
            notes=(*([f"Lower is better: {', '.join(lower)}"] if lower else []), about),
            remarks=(
                *notes,
                *(
                    f"{label}: {len(reasons):,} of {format_count(len(block) - block.pending, 'output')} not scored, "
                    f"{summarize_reasons(reasons)}"
                    for label, block in self.scores.items()
                    # Metrics that ask an LLM say it in a remark of their own.
                    if (reasons := _reasons(block))
                    and not any(note.startswith(f"{label}: ") and _COVERED in note for note in notes)
                ),
            ),
            signatures=sign_metrics(self.metrics, self.signatures, self.reference_counts),
        )

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

    def write(self, path: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None) -> None:
        """Write a flat .jsonl (.gz, .xz, .zst), .csv or .parquet file, whole or not at all. `progress` is called with
        the number of records written and of all."""
        write_flat(Path(path), self._flat(progress))

    def to_pandas(self) -> Any:
        """The rows as a pandas DataFrame."""
        try:
            import pandas
        except ImportError:
            raise RunError("to_pandas() needs pandas: pip install pandas") from None
        return pandas.DataFrame(list(self._flat().unicode_rows()))

    def to_polars(self) -> Any:
        """The rows as a polars DataFrame; `parts` is a struct with the parts of all metrics."""
        try:
            import polars
        except ImportError:
            raise RunError("to_polars() needs polars: pip install polars") from None
        return polars.DataFrame(list(self._flat().unicode_rows()), infer_schema_length=None)

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
        for header, metric in zip(self._headers(metrics), metrics, strict=True):
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
                "pass the records"
            )
        return self.inputs

    def worst(self, n: int = 10, metric: str | Sequence[str] | None = None, **options: Any) -> Any:
        """The `n` outputs to look at first, with texts, scores and reasons: `metrist.worst(results, n, metric, …)`."""
        # Evaluation is a layer above runs, so that it is found through the package.
        return importlib.import_module("metrist").worst(self, n, metric, **options)

    def plot(
        self,
        metrics: str | Metric | Sequence[str | Metric] | None = None,
        *,
        draws: int = DRAWS,
        seed: int = 0,
        confidence: float = 0.95,
    ) -> Any:
        """The system scores with their intervals as an altair chart: a panel for each of the metrics, by default for
        each metric and aspect."""
        from metrist.report.charts import plot_scores

        named = [metrics] if isinstance(metrics, str | Metric) else metrics
        chosen = self.columns if named is None else tuple(map(self.metric, named))
        headers = {metric.label: header for metric, header in zip(chosen, self._headers(chosen), strict=True)}
        better = {headers[metric.label]: metric.higher_is_better for metric in chosen}
        scores = self.system_scores(draws, seed, confidence, chosen)
        rows = [row._replace(metric=headers[row.metric]) for row in scores]
        return plot_scores([row._asdict() for row in rows], better, f"{confidence:.0%} bootstrap intervals")

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()

    def __getstate__(self) -> list[Any]:
        # Records in memory are the caller's and not pickled with the results.
        inputs = None if isinstance(self.inputs, Reader) else self.inputs
        return [inputs if field.name == "inputs" else getattr(self, field.name) for field in fields(self)]

    def _text_columns(self, reader: Reader) -> dict[str, list[Any]]:
        """Fields and further columns of the records by position; those that no record has are left out."""
        positions = {key: i for i, key in enumerate(zip(self.items, self.systems, strict=True))}
        columns: dict[str, list[Any]] = {name: [None] * len(self) for name in _TEXT_FIELDS}
        taken = {"item", "system", *_TEXT_FIELDS}
        matched = 0
        for record in reader:
            if (position := positions.get((record.item, record.system))) is None:
                continue
            matched += 1
            for name in _TEXT_FIELDS:
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
                f"no record of {', '.join(reader.names) or 'the input'} has an item and a system of these results"
            )
        if matched < len(self):
            warnings.warn(
                f"{len(self) - matched:,} of {format_count(len(self), 'output')} "
                f"{agree(len(self) - matched, 'has', 'have')} no texts in the records",
                stacklevel=3,
            )
        return {name: column for name, column in columns.items() if any(value is not None for value in column)}

    def _headers(self, columns: Sequence[Metric]) -> list[str]:
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
        yield _SystemSums(system, metric, ExactSums(rows[None]), len(rows) / count)


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


def score_column(metric: Metric, header: str | None = None) -> Column:
    """The column of a metric's scores, with what a table for a paper must know of the metric. By default, its label is
    the header."""

    def name_in_papers() -> str:
        from metrist.metrics.cards import display_name

        if isinstance(metric, PartMetric):
            return f"{metric.metric.short_name or display_name(metric.metric)} {metric.part}"
        return metric.short_name or display_name(metric)

    better: dict[bool | None, Better] = {True: "higher", False: "lower", None: "neither"}
    return Column(header or metric.label, "right", better[metric.higher_is_better], name_in_papers)


def sign_metrics(
    metrics: Sequence[Metric], signatures: Mapping[str, str], reference_counts: Sequence[int]
) -> list[Signature]:
    """The block of signatures at the foot of a table. A run that does not know how many references its records have
    says `?` in sacreBLEU's form."""
    references = str(reference_counts[0]) if len(reference_counts) == 1 else "var" if reference_counts else "?"
    return [Signature(metric.label, signatures[metric.label], metric.peer_signature(references)) for metric in metrics]


# ---- Failures in words ----


def describe_total_failure(text: str, scores: Scores) -> str | None:
    """The message about a metric that scored none of its records; None if it scored some, or if it was asked for none
    of them yet."""
    if len(scores.failures) < len(scores) or not len(scores):
        return None
    if scores.pending == len(scores):
        return None
    return describe_failures(text, "records", _reasons(scores), [scores.raws[i] for i in sorted(scores.raws)])


def describe_failures(text: str, what: str, reasons: Sequence[str], raws: Iterable[str]) -> str:
    """That a metric failed on everything, why, and the beginning of the first answer."""
    why = f": {reasons[0]}" if len(set(reasons)) == 1 else f", {summarize_reasons(reasons)}"
    return f"{text} failed on all {len(reasons):,} {what}{why}{quote_first_answer(raws)}"


def _reasons(scores: Scores) -> list[str]:
    """Why outputs have no score. Those that the metric was not asked for yet are told by notes of the run."""
    failures = (scores.failures[i] for i in sorted(scores.failures))
    return [failure for failure in failures if failure.kind is not FailureKind.pending]


def summarize_reasons(reasons: Sequence[str]) -> str:
    """The most frequent of some failures' reasons."""
    reason, times = Counter(reasons).most_common(1)[0]
    return f"most often ({times:,}): {reason}" if times > 1 else f"such as: {reason}"


def quote_first_answer(raws: Iterable[str]) -> str:
    """The beginning of the first answer that is not blank, as the end of a message; empty if there is none."""
    line = next((" ".join(raw.split()) for raw in raws if raw.strip()), "")
    shown = line if len(line) <= _MAX_QUOTE else f"{line[:_MAX_QUOTE]}…"
    return f"; the first answer: {shown!r}" if line else ""


# ---- Heat maps ----


def build_heat(
    items: Sequence[str],
    systems: Sequence[str],
    columns: Sequence[tuple[Metric, Scores]],
    *,
    item: str | None,
    system: str | None,
    limit: int,
    pieces: bool = False,
) -> Heat:
    """The outputs with scores of single tokens, the worst of each metric first."""
    with_tokens = [(metric, scores) for metric, scores in columns if scores.tokens]
    if not with_tokens:
        texts = ", ".join(metric.label for metric, _ in columns)
        raise RunError(
            f"this run has no scores of single tokens by {texts}: score it again with `metrist score --tokens` (in "
            "Python tokens=True), by a metric that gives them, such as likelihood or bartscore"
        )
    for what, name, known in (("item", item, items), ("system", system, systems)):
        if name is not None and name not in known:
            raise RunError(f"this run has no {what} {name!r}{did_you_mean(name, dict.fromkeys(known))}")
    outputs, notes = list[HeatOutput](), list[str]()
    for metric, scores in with_tokens:
        chosen = [n for n in scores.tokens if item in (None, items[n]) and system in (None, systems[n])]
        sign = -1 if metric.higher_is_better is False else 1
        # A failed output may have readings too, but no value to be sorted by.
        chosen.sort(key=lambda n: (n in scores.failures, sign * scores.values[n]))
        outputs += [_heat_output(items[n], systems[n], metric, scores, n) for n in chosen[:limit]]
        if len(chosen) > limit:
            notes.append(f"{metric.label}: {limit:,} of {len(chosen):,} outputs, the worst first")
    return Heat(outputs=outputs, notes=notes, pieces=pieces)


def _heat_output(item: str, system: str, metric: Metric, scores: Scores, position: int) -> HeatOutput:
    try:
        readings = tuple(map(_heat_reading, scores.tokens[position]))
    except (TypeError, KeyError, ValueError, AttributeError):
        raise RunError(
            f"the token scores of {metric.label} for item {label_item(item)!r} of system {system!r} cannot be drawn: "
            f"expected a list of readings, each with {', '.join(_READING_FIELDS)}"
        ) from None
    value = float(scores.values[position])
    return HeatOutput(item=item, system=system, metric=metric.label, value=value, readings=readings)


def _heat_reading(row: Mapping[str, Any]) -> Reading:
    logprobs = tuple(math.nan if number is None else float(number) for number in row["logprobs"])
    pieces = tuple(map(str, row["pieces"]))
    if len(pieces) != len(logprobs):
        raise ValueError("as many pieces as numbers")
    # Whatever else a metric notes of a reading, such as the prompt, distinguishes it from others.
    extra = [f"{key}: {value}" for key, value in row.items() if key not in _READING_FIELDS and value is not None]
    label = f"{row['target']}, given {row['condition']}" if row["condition"] else str(row["target"])
    return Reading(label="; ".join([label, *extra]), pieces=pieces, logprobs=logprobs)
