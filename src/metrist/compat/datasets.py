"""Scores as columns of Hugging Face data sets: `dataset.map(ScoreColumns("rougeL", "chrf"), batched=True)`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from metrist.metrics.registry import MetricLike, build_all
from metrist.run import score

#: A column with the number of each row, so that each is an item of its own.
_NUMBER = "metrist row"


class ScoreColumns:
    """A function for `map(…, batched=True)` of a `Dataset` or an `IterableDataset` that adds a column of scores per
    metric, named by its label; None where there is no score. `reading` are options of `read_records`, such as
    `fields={"output": "prediction"}`."""

    def __init__(self, *metrics: MetricLike, **reading: Any) -> None:
        self.metrics = build_all(metrics)
        #: Data sets keep what a function with the same content returned.
        self.signatures = [metric.signature for metric in self.metrics]
        self.reading = {**reading, "fields": {**reading.get("fields", {}), "item": _NUMBER}}

    def __call__(self, batch: Mapping[str, Sequence[Any]]) -> dict[str, list[float | None]]:
        values = zip(*batch.values(), strict=True)
        rows = [dict(zip(batch, row, strict=True)) | {_NUMBER: str(number)} for number, row in enumerate(values)]
        results = score(rows, self.metrics, executor="serial", progress=False, **self.reading)
        columns: dict[str, list[float | None]] = {metric.label: [None] * len(rows) for metric in self.metrics}
        for metric in self.metrics:
            for item, value in zip(results.items, results.scores[metric.label].values.tolist(), strict=True):
                columns[metric.label][int(item)] = None if value != value else value
        return columns
