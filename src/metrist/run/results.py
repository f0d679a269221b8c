"""Systems' scores out of records' statistics, and the table that shows them."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrist.errors import MetristError, RunError, did_you_mean
from metrist.grid import Grid
from metrist.metrics.base import Metric
from metrist.metrics.registry import build
from metrist.report.cells import Count, Estimate, Share, decimals_for
from metrist.report.heat import Heat, Output, Reading
from metrist.report.tables import Column, Table
from metrist.run.flat_file import Flat, write_flat
from metrist.scores import Scores
from metrist.stats.resampling import CHUNK, ExactSums, interval, resample_counts

DRAWS = 1000
#: Characters of an answer that a message quotes.
_SHOWN = 200


class SystemScore(NamedTuple):
    """One system's score by one metric: pooled over the `n` outputs that could be scored, `coverage` of all."""

    system: str
    metric: str
    value: float
    low: float
    high: float
    n: int
    coverage: float


def system_scores(
    systems: Sequence[str],
    metrics: Sequence[Metric],
    scores: Mapping[str, Scores],
    draws: int,
    seed: int,
    confidence: float,
) -> list[SystemScore]:
    """All systems by all metrics, in the order in which they appear."""
    if draws < 0 or not 0 < confidence < 1:
        raise RunError(f"wanted draws of at least 0 and a confidence between 0 and 1, got {draws} and {confidence}")
    rows = []
    for system, at in positions(systems).items():
        found = _by_metric(at, metrics, scores, draws, seed, confidence)
        rows += [SystemScore(system, metric.text, *found[metric.text]) for metric in metrics]
    return rows


def positions(systems: Sequence[str]) -> dict[str, NDArray[np.intp]]:
    """Where each system's records stand."""
    number = {name: i for i, name in enumerate(dict.fromkeys(systems))}
    numbers = np.fromiter((number[name] for name in systems), dtype=np.intp, count=len(systems))
    order = np.argsort(numbers, kind="stable")
    parts = np.split(order, np.searchsorted(numbers[order], np.arange(1, len(number))))
    return dict(zip(number, parts, strict=True))


_Row = tuple[float, float, float, int, float]


def _by_metric(
    at: NDArray[np.intp],
    metrics: Sequence[Metric],
    scores: Mapping[str, Scores],
    draws: int,
    seed: int,
    confidence: float,
) -> dict[str, _Row]:
    """One system's value, interval, number and coverage, by the metric's text."""
    alike: dict[bytes, list[Metric]] = {}
    for metric in metrics:
        alike.setdefault(np.isnan(scores[metric.text].values[at]).tobytes(), []).append(metric)
    found: dict[str, _Row] = {}
    for failed, group in alike.items():
        scored = at[~np.frombuffer(failed, dtype=np.bool_)]
        estimates = _estimates(scored, group, scores, draws, seed, confidence)
        for metric, estimate in zip(group, estimates, strict=True):
            found[metric.text] = (*estimate, len(scored), len(scored) / len(at))
    return found


def _estimates(
    scored: NDArray[np.intp],
    metrics: Sequence[Metric],
    scores: Mapping[str, Scores],
    draws: int,
    seed: int,
    confidence: float,
) -> list[tuple[float, float, float]]:
    """Value and interval by each of the metrics that have scored the same records. They share the resamples, the
    costly part; the generator starts anew for each group, so no interval depends on what else is asked for."""
    if not len(scored):
        return [(np.nan, np.nan, np.nan)] * len(metrics)
    sums = [ExactSums(scores[metric.text].stats[scored][None]) for metric in metrics]
    once = np.ones((1, len(scored)))
    values = [float(metric.pool(total(once))[0, 0]) for metric, total in zip(metrics, sums, strict=True)]
    drawn: list[list[NDArray[np.float64]]] = [[np.empty(0)] for _ in metrics]
    for counts in resample_counts(len(scored), draws, np.random.default_rng(seed), max(1, CHUNK // len(scored))):
        for metric, total, resampled in zip(metrics, sums, drawn, strict=True):
            resampled.append(metric.pool(total(counts))[:, 0])
    intervals = [interval(np.concatenate(resampled), confidence, items=len(scored)) for resampled in drawn]
    return [(value, low, high) for value, (low, high) in zip(values, intervals, strict=True)]


def summary_table(
    rows: Sequence[SystemScore], metrics: Sequence[Metric], scores: Mapping[str, Scores], notes: Sequence[str]
) -> Table:
    """One row a system, one column a metric. Coverage is the least of the system's metrics."""
    decimals = {metric.text: _decimals(metric, rows) for metric in metrics}
    by_system: dict[str, list[SystemScore]] = {}
    for row in rows:
        by_system.setdefault(row.system, []).append(row)
    return Table(
        title="System scores",
        columns=[
            Column("system"),
            *(Column(text, "right") for text in decimals),
            Column("scored", "right"),
            Column("coverage", "right"),
        ],
        rows=[[system, *_cells(row_group, decimals)] for system, row_group in by_system.items()],
        notes=(*_directions(metrics), *notes, *_failures(scores)),
    )


def _cells(rows: Sequence[SystemScore], decimals: Mapping[str, int]) -> list[object]:
    estimates = [Estimate(row.value, row.low, row.high, decimals[row.metric]) for row in rows]
    least = min(rows, key=lambda row: row.coverage)
    return [*estimates, Count(least.n), Share(least.coverage)]


def _decimals(metric: Metric, rows: Sequence[SystemScore]) -> int:
    """By the metric's bounds, or by its scores where it declares none."""
    if np.isfinite(metric.bounds).all():
        return decimals_for(*metric.bounds)
    values = [row.value for row in rows if row.metric == metric.text and np.isfinite(row.value)]
    return decimals_for(min(values, default=0.0), max(values, default=0.0))


def _directions(metrics: Sequence[Metric]) -> list[str]:
    lower = [metric.text for metric in metrics if metric.higher_is_better is False]
    return [f"Lower is better: {', '.join(lower)}"] if lower else []


def _failures(scores: Mapping[str, Scores]) -> list[str]:
    """Why coverage is not complete, by the most frequent reason of each metric."""
    return [
        f"{text}: {len(block.failures):,} of {len(block):,} outputs not scored, {usual_reason(_reasons(block))}"
        for text, block in scores.items()
        if block.failures
    ]


def nothing_scored(text: str, scores: Scores) -> str | None:
    """What is to be said of a metric that scored none of its records; None where it scored some."""
    if len(scores.failures) < len(scores) or not len(scores):
        return None
    return failed_on_all(text, "records", _reasons(scores), [scores.raws[i] for i in sorted(scores.raws)])


def failed_on_all(text: str, what: str, reasons: Sequence[str], raws: Iterable[str]) -> str:
    """That nothing came of anything, why, and the beginning of an answer of which nothing could be made."""
    why = f": {reasons[0]}" if len(set(reasons)) == 1 else f", {usual_reason(reasons)}"
    return f"{text} failed on all {len(reasons):,} {what}{why}{first_answer(raws)}"


def _reasons(scores: Scores) -> list[str]:
    return [scores.failures[i] for i in sorted(scores.failures)]


def usual_reason(reasons: Sequence[str]) -> str:
    """The most frequent of some failures' reasons."""
    reason, times = Counter(reasons).most_common(1)[0]
    return f"most often ({times:,}): {reason}" if times > 1 else f"such as: {reason}"


def first_answer(raws: Iterable[str]) -> str:
    """The beginning of the first answer that says anything, to end a message with; nothing where there is none."""
    line = next((" ".join(raw.split()) for raw in raws if raw.strip()), "")
    shown = line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"
    return f"; the first answer: {shown!r}" if line else ""


# Which outputs of a run a heat map shows, and what its metrics said of their tokens.


_FIELDS = ("condition", "target", "pieces", "logprobs")


def heat(
    items: Sequence[str],
    systems: Sequence[str],
    metrics: Sequence[tuple[Metric, Scores]],
    *,
    item: str | None,
    system: str | None,
    limit: int,
) -> Heat:
    """The outputs that have readings, the worst of each metric first."""
    told = [(metric, scores) for metric, scores in metrics if scores.tokens]
    if not told:
        texts = ", ".join(metric.text for metric, _ in metrics)
        raise RunError(
            f"this run has no readings of single tokens by {texts}: score it again with `metrist score --tokens` (in "
            "Python tokens=True), by a metric that gives them, such as likelihood or bartscore"
        )
    _check_known("item", item, items)
    _check_known("system", system, systems)
    outputs, notes = list[Output](), list[str]()
    for metric, scores in told:
        there = [n for n in scores.tokens if item in (None, items[n]) and system in (None, systems[n])]
        places = _worst_first(there, metric, scores)
        outputs += [_output(items[n], systems[n], metric, scores, n) for n in places[:limit]]
        if len(places) > limit:
            notes.append(f"{metric.text}: {limit:,} of {len(places):,} outputs, the worst first")
    return Heat(outputs=outputs, notes=notes)


def _worst_first(places: Sequence[int], metric: Metric, scores: Scores) -> list[int]:
    sign = -1 if metric.higher_is_better is False else 1
    # A failed output may have readings too, but no value to stand before others by.
    return sorted(places, key=lambda n: (n in scores.failures, sign * scores.values[n]))


def _check_known(what: str, name: str | None, known: Sequence[str]) -> None:
    if name is not None and name not in known:
        raise RunError(f"this run has no {what} {name!r}{did_you_mean(name, dict.fromkeys(known))}")


def _output(item: str, system: str, metric: Metric, scores: Scores, place: int) -> Output:
    try:
        readings = tuple(map(_reading, scores.tokens[place]))
    except (TypeError, KeyError, ValueError, AttributeError):
        raise RunError(
            f"what {metric.text} says of the tokens of item {item!r} of system {system!r} cannot be drawn: wanted a "
            f"list of readings, each with {', '.join(_FIELDS)}"
        ) from None
    return Output(item=item, system=system, metric=metric.text, value=float(scores.values[place]), readings=readings)


def _reading(row: Mapping[str, Any]) -> Reading:
    logprobs = tuple(math.nan if number is None else float(number) for number in row["logprobs"])
    pieces = tuple(map(str, row["pieces"]))
    if len(pieces) != len(logprobs):
        raise ValueError("as many pieces as numbers")
    # What else a metric notes of a reading, such as the prompt, tells it from others.
    more = [f"{key}: {value}" for key, value in row.items() if key not in _FIELDS and value is not None]
    label = f"{row['target']}, given {row['condition']}" if row["condition"] else str(row["target"])
    return Reading(label="; ".join([label, *more]), pieces=pieces, logprobs=logprobs)


# What a run gives: each record's scores, and each system's.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Results:
    """Scores of a run. `items` and `systems` have one entry per record; `scores` and `signatures` are by the metric's
    text. The signature is the one that the scores were made under. `notes` tell what the user should know, metrics'
    own remarks on these scores among it; metrics that a run folder has begun and not finished are named in
    `unfinished`."""

    items: Sequence[str]
    systems: Sequence[str]
    metrics: tuple[Metric, ...]
    scores: Mapping[str, Scores]
    signatures: Mapping[str, str]
    notes: tuple[str, ...] = ()
    unfinished: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.items)

    def __repr__(self) -> str:
        return f"Results({len(self):,} records, metrics: {', '.join(self.scores)})"

    def metric(self, metric: str | Metric) -> Metric:
        """The metric of this run with that text."""
        text = metric if isinstance(metric, str) else metric.text
        for one in self.metrics:
            if one.text == text:
                return one
        raise RunError(
            f"this run has no metric {text!r}; it has {', '.join(self.scores)}{did_you_mean(text, self.scores)}"
        )

    def grid(self, metric: str | Metric) -> Grid:
        """One metric's values as system × item, signed so that larger is better."""
        found = self.metric(metric)
        return Grid.of(
            found.text,
            self.systems,
            self.items,
            self.scores[found.text].values,
            higher_is_better=found.higher_is_better is not False,
        )

    def system_scores(self, draws: int = DRAWS, seed: int = 0, confidence: float = 0.95) -> list[SystemScore]:
        """Each system's pooled score by each metric, with a percentile bootstrap interval over its items. The same seed
        gives the same intervals on every machine."""
        return system_scores(self.systems, self.metrics, self.scores, draws, seed, confidence)

    def table(self, draws: int = DRAWS, seed: int = 0, confidence: float = 0.95) -> Table:
        """System scores, one row a system and one column a metric, with intervals and coverage."""
        rows = self.system_scores(draws, seed, confidence)
        about = f"{confidence:.0%} intervals: {draws:,} bootstrap resamples of the items, seed {seed}"
        return summary_table(rows, self.metrics, self.scores, (about, *self._item_sets(), *self.notes))

    def heat(
        self,
        metric: str | Metric | None = None,
        *,
        item: str | None = None,
        system: str | None = None,
        limit: int = 20,
    ) -> Heat:
        """Tokens coloured by how little a model expected them, for runs that asked for `tokens`: the worst outputs of
        each metric, or of one, up to a limit."""
        chosen = self.metrics if metric is None else (self.metric(metric),)
        told = [(one, self.scores[one.text]) for one in chosen]
        return heat(self.items, self.systems, told, item=item, system=system, limit=limit)

    def _item_sets(self) -> list[str]:
        by_system: dict[str, set[str]] = {}
        for item, system in zip(self.items, self.systems, strict=True):
            by_system.setdefault(system, set()).add(item)
        first, *others = by_system.values()
        if all(other == first for other in others):
            return []
        return ["The systems have outputs for different items: `metrist compare` sets them side by side on shared ones"]

    def rows(self) -> Iterator[dict[str, Any]]:
        """One plain row per record and metric, in that order, as in a flat file."""
        return self._flat().rows()

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write a flat .jsonl (.gz, .xz, .zst), .csv or .parquet file, whole or not at all."""
        write_flat(Path(path), self._flat())

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

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()

    def _flat(self) -> Flat:
        return Flat(items=self.items, systems=self.systems, scores=self.scores, signatures=self.signatures)


class NothingScored(RunError):
    """A metric failed on every record. `results` are those of the whole run, with each record's reason and answer."""

    def __init__(self, message: str, results: Results) -> None:
        super().__init__(message)
        self.results = results


def remarks(metrics: Iterable[Metric], scores: Mapping[str, Scores]) -> list[str]:
    """What the metrics themselves remark on these scores, such as how many texts were too long for a model."""
    return [remark for metric in metrics for remark in metric.remarks(scores[metric.text])]


# A metric that a file names but that cannot be built from there: its scores are at hand, its code is not.


def metric_of(text: str, signature: str, higher_is_better: bool | None, scores: Scores) -> Metric:
    """The metric that a stored text names. Code is never imported because a file says so: in place of a metric from
    outside the catalog stands one that knows only what the file tells."""
    try:
        return build(text, allow_import=False, asks=False)
    except MetristError:
        # Direction belongs to the class, as for every metric; so each stand-in has a class of its own.
        stand_in: Any = type("StoredMetric", (StoredMetric,), {"higher_is_better": higher_is_better})
        made: Metric = stand_in(text, signature, scores)
        return made


def mean_stats(scores: Scores) -> NDArray[np.float64]:
    """The statistics that a metric has when it gives none itself."""
    return Scores(values=scores.values, failures=scores.failures).stats


class StoredMetric(Metric):
    """Stands for a metric whose code is not at hand. It pools where that needs no code: scores whose statistics are
    (value, 1) pool to their mean."""

    def __init__(self, text: str, signature: str, scores: Scores) -> None:
        self._text = text
        self._signature = signature
        self._pools_to_mean = np.array_equal(scores.stats, mean_stats(scores))

    @property
    def name(self) -> str:
        return self._text

    @property
    def text(self) -> str:
        return self._text

    @property
    def signature(self) -> str:
        return self._signature

    def pool(self, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        if not self._pools_to_mean:
            raise RunError(f"{self._text} pools its scores by its own code: {self._what_to_do()}")
        return super().pool(sums)

    def _what_to_do(self) -> str:
        return f"name it to have it imported (-m {self._text!r}, or load(path, metrics=[{self._text!r}]))"
