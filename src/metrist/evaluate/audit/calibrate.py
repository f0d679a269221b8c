"""`calibrate`: fit a metric's reference distribution on known outputs, and give percentiles of other scores in it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from metrist.errors import RunError, format_count
from metrist.evaluate.selection import choose_decimals, find_metric, find_signature, holds_results, open_run
from metrist.io import read_records
from metrist.io.remote import is_remote
from metrist.metrics.base import Metric
from metrist.metrics.trained.calibrated import (
    Calibration,
    fit_calibration,
    format_groups,
    hash_data,
    read_calibration,
    read_column,
)
from metrist.records import TAG_FIELDS, Record
from metrist.report.tables import Count, Number, Table, decimals_for, name_columns, or_none
from metrist.stats import Floats

if TYPE_CHECKING:
    from metrist.run.results import Results

#: A run (results or their path), records in any form that `read_records` takes, or a list of a run and its records.
Source = Any


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FittedCalibration:
    """A calibration with notes for its user."""

    calibration: Calibration
    notes: tuple[str, ...] = ()

    def table(self) -> Table:
        """One row per group: the number, mean and spread of its reference values, and some percentiles."""
        calibration, shares = self.calibration, (5, 25, 50, 75, 95)
        ends = [end for group in calibration.groups.values() for end in (group.values[0], group.values[-1])]
        decimals = decimals_for(min(ends), max(ends))
        grouped = [calibration.grouped_by] if calibration.grouped_by else []
        rows = []
        for name, group in calibration.groups.items():
            numbers = (group.mean, group.sd, *np.percentile(group.values, shares))
            cells = [Count(group.count), *(Number(float(number), decimals) for number in numbers)]
            rows.append([name, *cells] if grouped else cells)
        numbered = ("values", "mean", "sd", *(f"{share} %" for share in shares))
        return Table(
            title=f"Reference values of {calibration.metric}",
            columns=name_columns(*grouped, right=numbered),
            rows=rows,
            notes=[*self.notes, "Below each percentage lies that share of the reference values."],
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScorePercentiles:
    """A run's scores with their percentiles. `groups` names the reference group of each output."""

    results: Results
    metric: Metric
    calibration: Calibration
    groups: Sequence[str | None]
    percentiles: Floats

    def table(self) -> Table:
        """One row per system: its raw score and mean percentile."""
        metric, calibration, percentiles = self.metric, self.calibration, self.percentiles
        has_score, has_percentile = ~np.isnan(self.results[metric].values), ~np.isnan(percentiles)
        systems = np.array(self.results.systems, dtype=object)
        rows = []
        for pooled in self.results.system_scores(draws=0, metrics=[metric]):
            own = systems == pooled.system
            known = own & has_percentile
            mean = float(percentiles[known].mean()) if known.any() else np.nan
            score = Number(pooled.value, choose_decimals(metric, pooled.value))
            rows.append([pooled.system, score, Number(mean, 1), Count(int(known.sum())), Count(int(own.sum()))])
        count = sum(group.count for group in calibration.groups.values())
        groups = f", in groups by {calibration.grouped_by}" if calibration.grouped_by else ""
        worse = {True: "worse, that is lower", False: "worse, that is higher", None: "lower"}[
            calibration.higher_is_better
        ]
        notes = [
            f"A percentile is the share of the {count:,} reference values{groups} that are {worse}; equal ones count "
            "half."
        ]
        if ungrouped := int((has_score & ~has_percentile).sum()):
            known_groups = format_groups(calibration.groups)
            notes.append(
                f"{format_count(ungrouped, 'output belongs', 'outputs belong')} to no group of the "
                f"calibration, which has {known_groups}"
            )
        return Table(
            title="Systems among reference values",
            columns=name_columns("system", right=(metric.label, "mean percentile", "placed", "of")),
            rows=rows,
            notes=notes,
        )

    def rows(self) -> Iterator[dict[str, Any]]:
        """One plain row per output; NaN is None."""
        values = self.results[self.metric].values
        columns = zip(self.results.items, self.results.systems, values, self.percentiles, strict=True)
        for item, system, value, percentile in columns:
            yield {
                "item": item,
                "system": system,
                "metric": self.metric.label,
                "value": or_none(float(value)),
                "percentile": or_none(float(percentile)),
            }


def calibrate(source: Source, metric: str | None = None, by: str | None = None) -> FittedCalibration:
    """Fit the reference distribution of a metric's values in a run; records are scored first. `by` fits one
    distribution per system, or, for records, per value of another column."""
    results, records, chosen = _load_scores(source, metric)
    values = results[chosen].values
    calibration, notes = fit_calibration(
        values,
        _group_outputs(results, records, by),
        metric=chosen.text,
        signature=find_signature(results, chosen),
        higher_is_better=chosen.higher_is_better,
        data=hash_data(results.items, results.systems, values),
        grouped_by=by,
    )
    return FittedCalibration(calibration=calibration, notes=tuple(notes))


def apply_calibration(source: Source, calibration: Calibration | str | os.PathLike[str]) -> ScorePercentiles:
    """Give the percentiles of a run's scores in a calibration, without scoring again; records are scored first, with
    the calibration's metric."""
    known = calibration if isinstance(calibration, Calibration) else read_calibration(calibration)
    results, records, metric = _load_scores(source, known.metric)
    name = "the calibration" if isinstance(calibration, Calibration) else str(calibration)
    known.check(find_signature(results, metric), name)
    groups = _group_outputs(results, records, known.grouped_by)
    percentiles = known.percentiles(results[metric].values, groups)
    return ScorePercentiles(results=results, metric=metric, calibration=known, groups=groups, percentiles=percentiles)


def _load_scores(source: Source, metric: str | None) -> tuple[Results, list[Record] | None, Metric]:
    """The scores, the records if they were scored now or come with a run, and the metric."""
    from metrist.run.loading import fetch_flat

    source = fetch_flat(source)
    parts = [*map(fetch_flat, source)] if isinstance(source, list | tuple) else []
    folders = [p for p in parts if not isinstance(p, str | os.PathLike) or is_remote(p) or Path(p).is_dir()]
    if any(map(_is_run, folders)):
        runs = [part for part in parts if _is_run(part)]
        if len(runs) > 1:
            raise RunError(f"a calibration is fitted on one run, got {len(runs)}", code="invalid_value")
        results, _, chosen = _load_scores(runs[0], metric)
        texts = (record for part in parts if part is not runs[0] for record in read_records(part))
        return results, _order_records(results, texts), chosen
    if not _is_run(source):
        if metric is None:
            raise RunError("records are scored first: name the metric, such as `metric=rougeL`", code="missing_value")
        from metrist.run import score

        reader = read_records(source)
        records = list(reader)
        results = score(records, metric)
        return replace(results, notes=(*reader.remarks, *results.notes)), records, results.metrics[0]
    results = open_run(source, [metric] if metric else ())
    if metric is not None:
        return results, None, find_metric(results.metrics, metric, results.unfinished)
    if len(results.metrics) > 1:
        raise RunError(
            f"the run has several metrics: choose one, such as `metric={results.metrics[0].label!r}`",
            code="missing_value",
        )
    return results, None, results.metrics[0]


def _order_records(results: Results, records: Iterable[Record]) -> list[Record]:
    by_key = {(record.item, record.system): record for record in records}
    keys = list(zip(results.items, results.systems, strict=True))
    if missing := [key for key in keys if key not in by_key]:
        raise RunError(
            f"the records lack {format_count(len(missing), 'output')} of the run, such as item {missing[0][0]!r} of "
            f"system {missing[0][1]!r}"
        )
    return [by_key[key] for key in keys]


def _is_run(source: Source) -> bool:
    """Whether the source has scores. A path that does not exist counts as one: the loader reports it."""
    is_path = isinstance(source, str | os.PathLike) and os.fspath(source) != "-" and not is_remote(source)
    return holds_results(source) or (is_path and not Path(source).exists())


def _group_outputs(results: Results, records: list[Record] | None, by: str | None) -> list[str | None]:
    if by is None:
        return [""] * len(results)
    if by == "system":
        return list(results.systems)
    if records is None:
        records = _order_records(results, results.read_inputs())
    groups = [read_column(record, by) for record in records]
    if not any(group is not None for group in groups):
        raise RunError(
            f"no record has {by!r}: it must be {', '.join(TAG_FIELDS)}, system or another column of the records",
            code="invalid_value",
        )
    return groups
