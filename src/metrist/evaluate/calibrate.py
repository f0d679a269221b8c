"""What does a score mean? Fit a metric's values on known outputs, and say where others stand among them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from metrist.errors import RunError
from metrist.evaluate.selection import choose_decimals, find_metric, open_run
from metrist.io import read_records, read_rows
from metrist.metrics.base import Metric
from metrist.metrics.calibrated import (
    Calibration,
    fit_calibration,
    format_groups,
    hash_data,
    read_calibration,
    read_column,
)
from metrist.records import Record
from metrist.report.cells import Count, Number, decimals_for
from metrist.report.tables import Column, Table
from metrist.stats.resampling import pool_rows

if TYPE_CHECKING:
    from metrist.run.results import Results

Source = Any  # A run (results, or their place), or records in any form that `read_records` takes.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fitted:
    """A calibration, and what its user should know of it."""

    calibration: Calibration
    notes: tuple[str, ...] = ()

    def table(self) -> Table:
        """What the reference values are, and some of the values that percentiles stand for."""
        of = self.calibration
        shares = (5, 25, 50, 75, 95)
        ends = [end for one in of.groups.values() for end in (one.values[0], one.values[-1])]
        decimals = decimals_for(min(ends), max(ends))
        grouped = [Column(of.grouped_by)] if of.grouped_by else []
        columns = [Column(name, "right") for name in ("values", "mean", "sd", *(f"{share} %" for share in shares))]
        return Table(
            title=f"Reference values of {of.metric}",
            columns=[*grouped, *columns],
            rows=[
                [
                    *([name] if grouped else []),
                    Count(one.count),
                    *(Number(float(x), decimals) for x in (one.mean, one.sd, *np.percentile(one.values, shares))),
                ]
                for name, one in of.groups.items()
            ],
            notes=[*self.notes, "Below each percentage lies that share of the reference values."],
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CalibratedScores:
    """A run's scores beside their percentiles. `groups` has the name of the reference group of each output."""

    results: Results
    metric: Metric
    calibration: Calibration
    groups: Sequence[str | None]
    percentiles: np.ndarray[Any, np.dtype[np.float64]]

    def table(self) -> Table:
        """Systems with their raw scores and mean percentiles."""
        of, text = self.calibration, self.metric.text
        count = sum(one.count for one in of.groups.values())
        groups = f", in groups by {of.grouped_by}" if of.grouped_by else ""
        than = {True: "worse, that is lower", False: "worse, that is higher", None: "lower"}[of.higher_is_better]
        return Table(
            title="Systems among reference values",
            columns=[Column("system"), *(Column(name, "right") for name in (text, "mean percentile", "placed", "of"))],
            rows=list(self._rows()),
            notes=[
                f"A percentile is the share of the {count:,} reference values{groups} that are {than}; equal ones "
                "count half.",
                *self._lost(),
            ],
        )

    def rows(self) -> Iterator[dict[str, Any]]:
        """One plain row per output."""
        values = self.results.scores[self.metric.text].values
        columns = zip(self.results.items, self.results.systems, values, self.percentiles, strict=True)
        for item, system, value, percentile in columns:
            numbers = {"value": _plain(value), "percentile": _plain(percentile)}
            yield {"item": item, "system": system, "metric": self.metric.text, **numbers}

    def _rows(self) -> Iterator[list[Any]]:
        scores, systems = self.results.scores[self.metric.text], np.array(self.results.systems, dtype=object)
        for system in dict.fromkeys(self.results.systems):
            mine = systems == system
            scored = mine & ~np.isnan(scores.values)
            raw = float(pool_rows(scores.stats[scored][None], self.metric.pool)[0]) if scored.any() else np.nan
            found = self.percentiles[mine & ~np.isnan(self.percentiles)]
            mean = float(found.mean()) if len(found) else np.nan
            decimals = choose_decimals(self.metric, raw)
            yield [system, Number(raw, decimals), Number(mean, 1), Count(len(found)), Count(int(mine.sum()))]

    def _lost(self) -> list[str]:
        """How many outputs have a score and no reference values to be placed among."""
        scored = ~np.isnan(self.results.scores[self.metric.text].values)
        lost = int((scored & np.isnan(self.percentiles)).sum())
        known = format_groups(self.calibration.groups)
        return [f"{lost:,} outputs belong to no group of the calibration, which has {known}"] if lost else []


def calibrate(source: Source, metric: str | None = None, by: str | None = None) -> Fitted:
    """Fit the reference distribution of a metric's values in a run; records are scored first. `by` makes one
    distribution per system, or per value of another column where records are given."""
    results, records, chosen = _scored(source, metric)
    values = results.scores[chosen.text].values
    calibration, notes = fit_calibration(
        values,
        _groups(results, records, by),
        metric=chosen.text,
        signature=results.signatures[chosen.text],
        higher_is_better=chosen.higher_is_better,
        data=hash_data(results.items, results.systems, values),
        grouped_by=by,
    )
    return Fitted(calibration=calibration, notes=tuple(notes))


def place(source: Source, calibration: Calibration | str | os.PathLike[str]) -> CalibratedScores:
    """Where the scores of a run stand among those of a calibration, without scoring anything again; records are scored
    with the calibration's metric first."""
    known = calibration if isinstance(calibration, Calibration) else read_calibration(calibration)
    results, records, metric = _scored(source, known.metric)
    name = "the calibration" if isinstance(calibration, Calibration) else str(calibration)
    known.check(results.signatures[metric.text], name)
    groups = _groups(results, records, known.grouped_by)
    percentiles = known.percentiles(results.scores[metric.text].values, groups)
    return CalibratedScores(results=results, metric=metric, calibration=known, groups=groups, percentiles=percentiles)


def _scored(source: Source, metric: str | None) -> tuple[Results, list[Record] | None, Metric]:
    """The scores, the records where these were given and scored now, and the metric."""
    if not _is_run(source):
        if metric is None:
            raise RunError("records are scored first: name the metric, such as -m rougeL")
        from metrist.run import score

        records = list(read_records(source))
        results = score(records, metric)
        return results, records, results.metrics[0]
    results = open_run(source, [metric] if metric else ())
    if metric is not None:
        return results, None, find_metric(results.metrics, metric)
    if len(results.metrics) > 1:
        raise RunError(f"the run has several metrics: say which, such as -m {results.metrics[0].text!r}")
    return results, None, results.metrics[0]


def _is_run(source: Source) -> bool:
    """Whether there are scores already: a run folder, or a file whose first line `metrist score` wrote."""
    from metrist.run.results import Results

    if isinstance(source, Results):
        return True
    if not isinstance(source, str | os.PathLike) or os.fspath(source) == "-":
        return False
    if Path(source).is_dir() or not Path(source).exists():
        return True  # What is not there is missed by the loader, in its own words.
    _, first = next(iter(read_rows(source)), (None, {}))
    return isinstance(first, dict) and {"metric", "signature", "stats"} <= first.keys()


def _groups(results: Results, records: list[Record] | None, by: str | None) -> list[str | None]:
    if by is None:
        return [""] * len(results)
    if by == "system":
        return list(results.systems)
    if records is None:
        raise RunError(f"a run does not keep the records' {by!r}: give the file of records, and they are scored anew")
    groups = [read_column(record, by) for record in records]
    if not any(group is not None for group in groups):
        raise RunError(f"no record has {by!r}: it must be task, language, system or another column of the records")
    return groups


def _plain(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
