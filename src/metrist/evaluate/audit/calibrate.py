"""`calibrate`: fit a metric's reference distribution on known outputs, and give percentiles of other scores in it; or
choose limits on it by how people rated the outputs that pass them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from metrist.errors import RunError, SpecError, format_count
from metrist.evaluate.meta.dataset import check_names
from metrist.evaluate.meta.join import has_runs, join
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
from metrist.report.tables import Count, Number, Share, Table, decimals_for, name_columns, or_none
from metrist.run import score
from metrist.stats import Floats, Mask
from metrist.stats.gold import mean_gold

if TYPE_CHECKING:
    from metrist.run.results import Results

#: A run (results or their path), records in any form that `read_records` takes, or a list of a run and its records.
Source = Any
#: Shares of passing outputs that are good, to choose limits for.
_PRECISIONS = (0.8, 0.9, 0.95, 0.99)
#: Digits of a limit: it is printed as it was tried.
_DIGITS = 4


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


# ---- Limits: `calibrate --good`


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A check such as `consistency>=0.5`. Precision is the share of the outputs that pass it which are good, recall the
    share of the good outputs that pass."""

    check: str
    purpose: str
    precision: float
    recall: float
    passed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RatedLimits:
    """Limits on a metric, from outputs that have a score and ratings."""

    metric: str
    limits: tuple[Limit, ...]
    notes: tuple[str, ...]

    def table(self) -> Table:
        return Table(
            title=f"Limits on {self.metric}",
            columns=name_columns("check", "chosen for", right=("precision", "recall", "passed")),
            rows=[
                [limit.check, limit.purpose, Share(limit.precision), Share(limit.recall), Count(limit.passed)]
                for limit in self.limits
            ],
            notes=list(self.notes),
        )


def choose_limits(data: Any, good: float, metric: str | None = None, aspect: str | None = None) -> RatedLimits:
    """Choose limits on a metric for outputs whose mean rating is at least `good`, or at most, where lower is better.
    `data` is whatever `metrist meta` reads. Records without scores of the metric are scored first."""
    dataset = join(data)
    if metric is not None and metric not in dataset.scores and not has_runs(data):
        try:
            results = score(data, metric)
        except SpecError:  # Perhaps a misspelt name of the data's own scores.
            if not dataset.scores:
                raise
        else:
            dataset, metric = join(results), results.metrics[0].label
    metric, aspect = _choose("metric", metric, list(dataset.scores)), _choose("aspect", aspect, list(dataset.ratings))
    scores, gold = dataset.scores[metric].values, mean_gold(dataset.ratings[aspect])
    weights = np.ones(len(scores)) if dataset.weight is None else dataset.weight
    known = ~(np.isnan(scores) | np.isnan(gold))
    scores, gold, weights = scores[known], gold[known], weights[known]
    is_good = gold >= (-good if aspect in dataset.reversed_aspects else good)
    count = len(scores)
    share = float(np.average(is_good, weights=weights)) if count else 0.0
    if not 0 < share < 1:
        raise RunError(
            f"{'all' if share else 'none'} of the {count:,} outputs with a score and a rating of {aspect!r} are good: "
            "limits need good ones and others; name another rating as `good`",
            code="no_data",
        )
    sign = -1 if dataset.scores[metric].higher_is_better is False else 1
    limits, missed = _find_limits(metric, sign * scores, is_good, weights, sign)
    compared = "at most" if aspect in dataset.reversed_aspects else "at least"
    notes = [
        f"{share:.0%} of {count:,} outputs are good: their mean rating of {aspect!r} is {compared} {good:g}.",
        "The figures are those of the outputs that chose the limits: try a limit on others.",
    ]
    if missed:
        notes.append(f"No limit reaches a precision of {', '.join(f'{precision:.0%}' for precision in missed)}.")
    return RatedLimits(metric=metric, limits=tuple(limits), notes=tuple(notes))


def _choose(kind: str, name: str | None, known: list[str]) -> str:
    """The name, or the only one that is known."""
    if not known:
        missing = "scores" if kind == "metric" else "ratings"
        raise RunError(f"the data hold no {missing}: limits need outputs with scores and ratings", code="no_data")
    if name is None and len(known) > 1:
        article = "an" if kind == "aspect" else "a"
        raise RunError(f"choose {article} {kind}: {', '.join(known)}", code="missing_value")
    (chosen,) = check_names(kind, known if name is None else [name], known)
    return chosen


def _find_limits(
    metric: str, scores: Floats, is_good: Mask, weights: Floats, sign: int
) -> tuple[list[Limit], list[float]]:
    """The limits that balance precision and recall, and that reach each precision with the largest recall; and the
    precisions that none reaches. Larger scores are better here."""
    candidates = np.array(sorted({float(f"{score:.{_DIGITS}g}") for score in scores.tolist()}))
    order = np.argsort(-scores, kind="stable")
    passed = np.searchsorted(-scores[order], -candidates, side="right")
    candidates, passed = candidates[passed > 0], passed[passed > 0]
    good_weights = weights * is_good
    hits = np.cumsum(good_weights[order])[passed - 1]
    total = np.cumsum(weights[order])[passed - 1]
    precision, recall = hits / total, hits / float(good_weights.sum())
    balance = 2 * precision * recall / np.maximum(precision + recall, 1e-300)

    def make(number: int, purpose: str) -> Limit:
        limit = sign * candidates[number]
        return Limit(
            check=f"{metric}{'>=' if sign > 0 else '<='}{limit:.{_DIGITS}g}",
            purpose=purpose,
            precision=float(precision[number]),
            recall=float(recall[number]),
            passed=int(passed[number]),
        )

    limits = [make(int(np.argmax(balance)), "both alike (F1)")]
    missed = []
    for least in _PRECISIONS:
        reached = np.flatnonzero((precision >= least) & (hits > 0))
        if len(reached):
            limits.append(make(int(reached[np.argmax(recall[reached])]), f"precision of {least:.0%}"))
        else:
            missed.append(least)
    return limits, missed
