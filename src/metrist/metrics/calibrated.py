"""Another metric's scores, told as percentiles among outputs that are known."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from metrist.errors import InputError, RunError
from metrist.metrics.base import Metric, check_choice
from metrist.metrics.shard import Shard
from metrist.records import Need, Record
from metrist.scores import Column, Failure, Scores

FORMAT = "metrist calibration 1"
#: Fewer values say too little about where another one stands among them.
MIN_VALUES = 30
#: Up to this many values are kept as they are; of more, as many order statistics at equal steps.
MAX_STORED = 1001

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Distribution:
    """Sorted values, all of them or `KEPT` at equal steps of rank, and what they were taken from."""

    values: Values
    count: int
    mean: float
    sd: float

    @staticmethod
    def of(values: Values) -> Distribution:
        """The distribution of these values."""
        ordered = np.sort(values)
        if len(ordered) > MAX_STORED:
            ordered = ordered[np.round(np.linspace(0, len(ordered) - 1, MAX_STORED)).astype(np.intp)]
        return Distribution(values=ordered, count=len(values), mean=float(np.mean(values)), sd=float(np.std(values)))

    def percentiles(self, values: Values) -> Values:
        """100 × (share of the reference values below + half the share of those equal), for each value; NaN for NaN.

        Exact where all values were kept. Of order statistics, a value between two of them is placed between their ranks
        in proportion, which is right to 0.1.
        """
        below = np.searchsorted(self.values, values, side="left")
        upto = np.searchsorted(self.values, values, side="right")
        found = self._exact(below, upto) if self.count == len(self.values) else self._between(values, below, upto)
        return np.where(np.isnan(values), np.nan, found)

    def _exact(self, below: NDArray[np.intp], upto: NDArray[np.intp]) -> Values:
        return np.asarray(50.0 * (below + upto) / self.count)

    def _between(self, values: Values, below: NDArray[np.intp], upto: NDArray[np.intp]) -> Values:
        last = len(self.values) - 1
        left, right = self.values[np.clip(below - 1, 0, last)], self.values[np.clip(below, 0, last)]
        with np.errstate(invalid="ignore", divide="ignore"):
            inside = below - 1 + (values - left) / (right - left)
        # A value that was met lies in the middle of the ranks that it holds.
        rank = np.where(upto > below, (below + upto - 1) / 2, inside)
        return np.clip(np.where(below > last, last, np.where(upto == 0, 0, rank)), 0, last) * (100.0 / last)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Calibration:
    """Reference distributions of one metric's values: one, under the name '', or one per value of the column that
    `grouped_by` names. `data` is a hash of the outputs' names and values that it was fitted on."""

    metric: str
    signature: str
    higher_is_better: bool | None
    data: str
    groups: Mapping[str, Distribution]
    grouped_by: str | None = None

    def percentiles(self, values: Values, groups: Sequence[str | None]) -> Values:
        """Where each value stands among those of its group; NaN where there is no such group. A higher percentile is
        always better, unless the metric only describes."""
        found = np.full(len(values), np.nan)
        for name, distribution in self.groups.items():
            mine = np.array([group == name for group in groups], dtype=np.bool_)
            found[mine] = distribution.percentiles(values[mine])
        return 100.0 - found if self.higher_is_better is False else found

    def group_of(self, record: Record) -> str | None:
        """The name of the group that a record belongs to."""
        return "" if self.grouped_by is None else read_column(record, self.grouped_by)

    def check(self, signature: str, place: str) -> None:
        """Refuse values that were not computed as those of the calibration."""
        if signature != self.signature:
            raise RunError(
                f"{place} was fitted on other numbers: it has the signature {self.signature!r}, these are "
                f"{signature!r}; fit it again with `metrist calibrate`"
            )

    def to_json(self) -> str:
        """The file's text; equal calibrations give equal text."""
        groups = {
            name: {"count": one.count, "mean": one.mean, "sd": one.sd, "values": one.values.tolist()}
            for name, one in self.groups.items()
        }
        facts = {"metric": self.metric, "signature": self.signature, "higher_is_better": self.higher_is_better}
        more = {"data": self.data, "grouped_by": self.grouped_by, "groups": groups}
        return json.dumps({"format": FORMAT, **facts, **more}) + "\n"


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
    """A calibration, and notes on groups that are left out because they have too few values."""
    scored = ~np.isnan(values)
    names = np.array(["" if group is None else group for group in groups], dtype=object)
    found: dict[str, Distribution] = {}
    small: list[str] = []
    for name in sorted({group for group in groups if group is not None}):
        mine = values[scored & (names == name)]
        if len(mine) >= MIN_VALUES:
            found[name] = Distribution.of(mine)
        else:
            small.append(f"{grouped_by} {name!r} has only {len(mine)} values")
    if not found:
        why = f" ({'; '.join(small[:3])})" if grouped_by else ""
        raise RunError(
            f"{metric}: a reference distribution needs at least {MIN_VALUES} values, got {int(scored.sum())}{why}"
        )
    made = Calibration(
        metric=metric,
        signature=signature,
        higher_is_better=higher_is_better,
        data=data,
        groups=found,
        grouped_by=grouped_by,
    )
    return made, [f"{one}, fewer than {MIN_VALUES}, and is left out" for one in small]


def read_column(record: Record, column: str) -> str | None:
    """What a record says in a column, as text: one of its own fields, or one of the extra ones."""
    own = getattr(record, column) if column in ("item", "system", "task", "language") else record.extra.get(column)
    return None if own is None else str(own)


def hash_data(items: Sequence[str], systems: Sequence[str], values: Values) -> str:
    """A hash of who was scored, and how."""
    text = json.dumps([list(items), list(systems), values.tolist()])
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:16]


def read_calibration(path: str | os.PathLike[str]) -> Calibration:
    """Read a file that `metrist calibrate` wrote."""
    return _read(Path(path), *_state(Path(path)))


def hash_file(path: str | os.PathLike[str]) -> str:
    """A hash of a calibration's file."""
    _state(Path(path))
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:12]


def _state(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError as fault:
        wanted = "wanted a file that `metrist calibrate` wrote"
        raise InputError(f"{path}: cannot be read ({fault.strerror}): {wanted}") from None
    return found.st_size, found.st_mtime_ns


@lru_cache(maxsize=8)
def _read(path: Path, _size: int, _changed: int) -> Calibration:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["format"] != FORMAT:
            raise ValueError(f"its format is {found['format']!r}, not {FORMAT!r}")
        return Calibration(
            metric=found["metric"],
            signature=found["signature"],
            higher_is_better=found["higher_is_better"],
            data=found["data"],
            groups={name: _distribution(one) for name, one in found["groups"].items()},
            grouped_by=found["grouped_by"],
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as fault:
        raise InputError(
            f"{path}: not a calibration as `metrist calibrate RUN -m METRIC -o FILE` writes: {_reason(fault)}"
        ) from None


def _distribution(found: Mapping[str, Any]) -> Distribution:
    values = np.array(found["values"], dtype=np.float64)
    if not len(values) or not np.isfinite(values).all() or (np.diff(values) < 0).any():
        raise ValueError("its values are not sorted numbers")
    if len(values) != min(found["count"], MAX_STORED):
        raise ValueError(f"it has {len(values)} values for a count of {found['count']}")
    return Distribution(values=values, count=int(found["count"]), mean=float(found["mean"]), sd=float(found["sd"]))


def _reason(fault: Exception) -> str:
    return f"{fault} is missing" if isinstance(fault, KeyError) else str(fault)


def format_groups(names: Iterable[str]) -> str:
    """The groups of a calibration, for messages."""
    shown = list(names)
    return ", ".join(map(repr, shown[:5])) + (f" and {len(shown) - 5} more" if len(shown) > 5 else "")


PERCENTILE = "percentile"
RAW = "raw"


@dataclass(frozen=True, kw_only=True)
class Calibrated(Metric):
    """A metric with its value's percentile among those of a calibration file. Needs, direction and range are those of
    the metric within."""

    catalog_name: ClassVar[str | None] = "calibrated"

    metric: Metric
    #: The file that `metrist calibrate` wrote.
    by: str
    #: What the value is, and with it the system's score; the other is among the parts.
    show: Literal["raw", "percentile"] = "raw"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "show", (RAW, PERCENTILE))
        within = self.metric
        taken: dict[str, object] = {"extra": within.extra, "resident": within.resident, "bounds": within.bounds}
        taken["higher_is_better"] = within.higher_is_better
        if self.show == PERCENTILE:
            taken["bounds"] = (0.0, 100.0)
            # Percentiles are turned so that higher is better; a metric that only describes stays as it is.
            taken["higher_is_better"] = None if within.higher_is_better is None else True
        for name, value in taken.items():
            object.__setattr__(self, name, value)

    @property
    def needs(self) -> tuple[Need, ...]:
        """What the metric within needs."""
        return self.metric.needs

    def facts(self) -> Mapping[str, str]:
        """What the metric within depends on, and the calibration's hash. A calibration of other numbers is refused
        here, before anything is scored."""
        self._calibration()
        return {**self.metric.facts(), "calibration": hash_file(self.by)}

    def score(self, shard: Shard) -> Scores:
        calibration = self._calibration()
        scores = self.metric.score(shard)
        groups = [calibration.group_of(record) for record in shard.records]
        percentiles = calibration.percentiles(np.asarray(scores.values, dtype=np.float64), groups)
        if self.show == RAW:
            return dataclasses.replace(scores, parts={**scores.parts, PERCENTILE: percentiles})
        return self._as_percentiles(shard, scores, percentiles, calibration)

    def pool(self, sums: Column) -> Column:
        """As the metric within pools its raw values; percentiles by their mean."""
        return self.metric.pool(sums) if self.show == RAW else super().pool(sums)

    def remarks(self, scores: Scores) -> list[str]:
        """What the metric within remarks, and how the outputs stand."""
        # Where no output could be scored, there are no parts either.
        percentiles = scores.parts.get(PERCENTILE, np.full(len(scores), np.nan)) if self.show == RAW else scores.values
        placed = percentiles[~np.isnan(percentiles)]
        unplaced = int(np.isnan(percentiles).sum()) - len(scores.failures)
        shown = f"{self.text}: the mean percentile is {placed.mean():.1f} (show='percentile' has systems' own)"
        mean = [shown] if len(placed) and self.show == RAW else []
        lost = [f"{self.text}: {unplaced:,} outputs belong to no group of {self.by}"] if unplaced > 0 else []
        return [*self.metric.remarks(scores), *mean, *lost]

    def _as_percentiles(self, shard: Shard, scores: Scores, percentiles: Column, calibration: Calibration) -> Scores:
        lost = np.flatnonzero(np.isnan(percentiles) & ~np.isnan(scores.values)).tolist()
        failures = {i: Failure.of(self._no_group(shard.records[i], calibration)) for i in lost}
        return dataclasses.replace(
            scores,
            values=percentiles,
            parts={**scores.parts, RAW: scores.values},
            stats=np.empty((0, 0)),
            failures={**scores.failures, **failures},
        )

    def _no_group(self, record: Record, calibration: Calibration) -> str:
        column, known = calibration.grouped_by, format_groups(calibration.groups)
        return f"{self.by} has no reference values for {column} {calibration.group_of(record)!r}; it has {known}"

    def _calibration(self) -> Calibration:
        calibration = read_calibration(self.by)
        calibration.check(self.metric.signature, self.by)
        return calibration

    def _code(self) -> Mapping[str, str]:
        return self.metric._code()
