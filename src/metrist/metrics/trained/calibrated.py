"""Scores of another metric as percentiles among reference outputs, and the file with their distributions."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from metrist.documents import read_json
from metrist.errors import InputError, RunError, format_count
from metrist.metrics.base import Metric, Shard, hash_file
from metrist.records import TAG_FIELDS, Need, Record
from metrist.scores import Column, Failure, Scores

FORMAT = "metrist calibration 1"
#: Percentiles among fewer values are too coarse.
MIN_VALUES = 30
#: Up to this many values are stored as they are; of more, this many order statistics at equal steps.
MAX_STORED = 1001

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Distribution:
    """Sorted values, all of them or `MAX_STORED` at equal steps of rank, and a summary of all of them."""

    values: Values
    count: int
    mean: float
    sd: float

    @staticmethod
    def of(values: Values) -> Distribution:
        ordered = np.sort(values)
        if len(ordered) > MAX_STORED:
            ordered = ordered[np.round(np.linspace(0, len(ordered) - 1, MAX_STORED)).astype(np.intp)]
        with np.errstate(over="ignore", invalid="ignore"):
            mean, sd = float(np.mean(values)), float(np.std(values))
        if len(values) and np.isfinite(values).all() and not math.isfinite(sd):
            raise RunError(
                f"values of up to {np.abs(values).max():.3g} have no spread, because no number is above 1.8e+308: give "
                "the metric a smaller unit",
                code="invalid_value",
            )
        return Distribution(values=ordered, count=len(values), mean=mean, sd=sd)

    def percentiles(self, values: Values) -> Values:
        """100 × (share of the reference values below + half the share of those equal), for each value; NaN for NaN.

        Exact if all values are stored. Between two order statistics the rank is interpolated, which is right to 0.1.
        """
        below = np.searchsorted(self.values, values, side="left")
        upto = np.searchsorted(self.values, values, side="right")
        if self.count == len(self.values):
            percentiles = np.asarray(50.0 * (below + upto) / self.count)
        else:
            last = len(self.values) - 1
            left, right = self.values[np.clip(below - 1, 0, last)], self.values[np.clip(below, 0, last)]
            with np.errstate(invalid="ignore", divide="ignore"):
                between = below - 1 + (values - left) / (right - left)
            # A value that is stored itself lies in the middle of its ranks.
            rank = np.where(upto > below, (below + upto - 1) / 2, between)
            rank = np.where(below > last, last, np.where(upto == 0, 0, rank))
            percentiles = np.clip(rank, 0, last) * (100.0 / last)
        return np.where(np.isnan(values), np.nan, percentiles)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Calibration:
    """Reference distributions of a metric's values: one, named '', or one per value of the column `grouped_by`.

    `data` is a hash of the items, systems and values that it was fitted on.
    """

    metric: str
    signature: str
    higher_is_better: bool | None
    data: str
    groups: Mapping[str, Distribution]
    grouped_by: str | None = None

    def percentiles(self, values: Values, groups: Sequence[str | None]) -> Values:
        """The percentile of each value within its group; NaN if there is no such group. Higher is better, unless the
        metric only describes."""
        percentiles = np.full(len(values), np.nan)
        for name, distribution in self.groups.items():
            members = np.array([group == name for group in groups], dtype=np.bool_)
            percentiles[members] = distribution.percentiles(values[members])
        return 100.0 - percentiles if self.higher_is_better is False else percentiles

    def group_of(self, record: Record) -> str | None:
        return "" if self.grouped_by is None else read_column(record, self.grouped_by)

    def check(self, signature: str, path: str) -> None:
        """Refuse values with another signature than the calibration's."""
        if signature != self.signature:
            both = f"its signature is {self.signature!r}, that of the metric is {signature!r}"
            raise RunError(f"{path} was fitted on other numbers: {both}; fit it again with `metrist calibrate`")

    def to_json(self) -> str:
        """The file's text; equal calibrations give equal text."""
        groups = {
            name: {"count": group.count, "mean": group.mean, "sd": group.sd, "values": group.values.tolist()}
            for name, group in self.groups.items()
        }
        content = {
            "format": FORMAT,
            "metric": self.metric,
            "signature": self.signature,
            "higher_is_better": self.higher_is_better,
            "data": self.data,
            "grouped_by": self.grouped_by,
            "groups": groups,
        }
        return json.dumps(content) + "\n"


def fit_calibration(
    values: Values,
    groups: Sequence[str | None],
    *,
    metric: str,
    signature: str,
    higher_is_better: bool | None,
    data: str,
    grouped_by: str | None = None,
) -> tuple[Calibration, list[str]]:
    """A calibration, and notes on groups that are omitted because they have too few values."""
    scored = ~np.isnan(values)
    names = np.array(["" if group is None else group for group in groups], dtype=object)
    distributions: dict[str, Distribution] = {}
    too_small: list[str] = []
    for name in sorted({group for group in groups if group is not None}):
        members = values[scored & (names == name)]
        if len(members) >= MIN_VALUES:
            distributions[name] = Distribution.of(members)
        else:
            too_small.append(f"{grouped_by} {name!r} has only {format_count(len(members), 'value')}")
    if not distributions:
        details = f" ({'; '.join(too_small[:3])})" if grouped_by else ""
        raise RunError(
            f"{metric}: a reference distribution needs at least {MIN_VALUES} values, got {int(scored.sum())}{details}",
            code="too_little_data",
        )
    calibration = Calibration(
        metric=metric,
        signature=signature,
        higher_is_better=higher_is_better,
        data=data,
        groups=distributions,
        grouped_by=grouped_by,
    )
    return calibration, [f"{reason}, fewer than {MIN_VALUES}, and is left out" for reason in too_small]


def read_column(record: Record, column: str) -> str | None:
    """The record's value in a column, as text: one of its own fields or an extra one."""
    value = getattr(record, column) if column in ("item", "system", *TAG_FIELDS) else record.extra.get(column)
    return None if value is None else str(value)


def hash_data(items: Sequence[str], systems: Sequence[str], values: Values) -> str:
    """A hash of the scored outputs' names and of their values."""
    text = json.dumps([list(items), list(systems), values.tolist()])
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:16]


def read_calibration(path: str | os.PathLike[str]) -> Calibration:
    file = Path(path)
    try:
        status = file.stat()
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror}); expected a file that `metrist calibrate` wrote"
        ) from None
    return _parse_file(file, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=8)
def _parse_file(path: Path, _size: int, _changed: int) -> Calibration:
    try:
        content = read_json(path, InputError)
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {content['format']!r}, not {FORMAT!r}")
        groups: dict[str, Distribution] = {}
        for name, group in content["groups"].items():
            values = np.array(group["values"], dtype=np.float64)
            count = group["count"]
            if not len(values) or not np.isfinite(values).all() or (np.diff(values) < 0).any():
                raise ValueError("its values are not sorted numbers")
            if len(values) != min(count, MAX_STORED):
                raise ValueError(f"it has {format_count(len(values), 'value')} for a count of {count}")
            groups[name] = Distribution(
                values=values, count=int(count), mean=float(group["mean"]), sd=float(group["sd"])
            )
        return Calibration(
            metric=content["metric"],
            signature=content["signature"],
            higher_is_better=content["higher_is_better"],
            data=content["data"],
            groups=groups,
            grouped_by=content["grouped_by"],
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise InputError(
            f"{path}: not a calibration as `metrist calibrate RUN -m METRIC -o FILE` writes it: {reason}"
        ) from None


def format_groups(names: Iterable[str]) -> str:
    """The groups of a calibration, for messages."""
    shown = list(names)
    return ", ".join(map(repr, shown[:5])) + (f" and {len(shown) - 5} more" if len(shown) > 5 else "")


PERCENTILE = "percentile"
RAW = "raw"


@dataclass(frozen=True, kw_only=True)
class Calibrated(Metric):
    """A metric together with the percentile of its value among those of a calibration file. Needs, direction and range
    are those of the inner metric."""

    catalog_name: ClassVar[str | None] = "calibrated"
    catalog_example: ClassVar[str | None] = "calibrated(metric=chrf, by='calibration.json')"

    metric: Metric
    #: The file that `metrist calibrate` wrote.
    by: str
    #: Which of the two is the value, and thereby the system's score; the other is a part.
    show: Literal["raw", "percentile"] = "raw"

    def __post_init__(self) -> None:
        super().__post_init__()
        inner = self.metric
        bounds, higher_is_better = inner.bounds, inner.higher_is_better
        if self.show == PERCENTILE:
            # Percentiles are oriented so that higher is better, unless the metric only describes.
            bounds = (0.0, 100.0)
            higher_is_better = None if higher_is_better is None else True
        attributes = {"extra": inner.extra, "resident": inner.resident, "bounds": bounds}
        for name, value in {**attributes, "higher_is_better": higher_is_better}.items():
            object.__setattr__(self, name, value)

    @property
    def aspect_parts(self) -> Mapping[str, tuple[float, float]]:
        """Those of the inner metric; none beside percentiles, which are on another scale."""
        return self.metric.aspect_parts if self.show == RAW else {}

    @property
    def needs(self) -> tuple[Need, ...]:
        return self.metric.needs

    def facts(self) -> Mapping[str, str]:
        """The facts of the inner metric and the hash of the calibration file. A calibration of other numbers is refused
        here, before anything is scored."""
        self._read_calibration()
        return {**self.metric.facts(), "calibration": hash_file(self.by)}

    def score(self, shard: Shard) -> Scores:
        calibration = self._read_calibration()
        scores = self.metric.score(shard)
        groups = [calibration.group_of(record) for record in shard.records]
        percentiles = calibration.percentiles(np.asarray(scores.values, dtype=np.float64), groups)
        if self.show == RAW:
            return dataclasses.replace(scores, parts={**scores.parts, PERCENTILE: percentiles})
        failures = dict(scores.failures)
        for i in np.flatnonzero(np.isnan(percentiles) & ~np.isnan(scores.values)).tolist():
            failures[i] = Failure.of(
                f"{self.by} has no reference values for {calibration.grouped_by} {groups[i]!r}; it has "
                + format_groups(calibration.groups)
            )
        return dataclasses.replace(
            scores,
            values=percentiles,
            parts={**scores.parts, RAW: scores.values},
            stats=np.empty((0, 0)),
            failures=failures,
        )

    def pool(self, sums: Column) -> Column:
        return self.metric.pool(sums) if self.show == RAW else super().pool(sums)

    def describe_misuse(self, records: Sequence[Record]) -> list[str]:
        return self.metric.describe_misuse(records)

    def remarks(self, scores: Scores) -> list[str]:
        remarks = self.metric.remarks(scores)
        # If no output could be scored, there are no parts either.
        percentiles = scores.parts.get(PERCENTILE, np.full(len(scores), np.nan)) if self.show == RAW else scores.values
        known = percentiles[~np.isnan(percentiles)]
        if len(known) and self.show == RAW:
            mean = f"the mean percentile is {known.mean():.1f} (show='percentile' gives each system's own)"
            remarks = [*remarks, f"{self.label}: {mean}"]
        without_group = len(scores) - len(known) - len(scores.failures)
        if without_group > 0:
            outputs = format_count(without_group, "output belongs", "outputs belong")
            remarks = [*remarks, f"{self.label}: {outputs} to no group of {self.by}"]
        return remarks

    def _read_calibration(self) -> Calibration:
        calibration = read_calibration(self.by)
        calibration.check(self.metric.signature, self.by)
        return calibration

    def _code(self) -> Mapping[str, str]:
        return self.metric._code()
