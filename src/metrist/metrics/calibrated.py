"""Another metric's scores, told as percentiles among outputs that are known."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from metrist.metrics.base import Metric, check_choice
from metrist.metrics.calibration import Calibration, file_hash, groups_named, read_calibration
from metrist.metrics.shard import Shard
from metrist.records import Need, Record
from metrist.scores import Column, Scores

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
        return {**self.metric.facts(), "calibration": file_hash(self.by)}

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
        failures = {i: self._no_group(shard.records[i], calibration) for i in lost}
        return dataclasses.replace(
            scores,
            values=percentiles,
            parts={**scores.parts, RAW: scores.values},
            stats=np.empty((0, 0)),
            failures={**scores.failures, **failures},
        )

    def _no_group(self, record: Record, calibration: Calibration) -> str:
        column, known = calibration.grouped_by, groups_named(calibration.groups)
        return f"{self.by} has no reference values for {column} {calibration.group_of(record)!r}; it has {known}"

    def _calibration(self) -> Calibration:
        calibration = read_calibration(self.by)
        calibration.check(self.metric.signature, self.by)
        return calibration

    def _code(self) -> Mapping[str, str]:
        return self.metric._code()
