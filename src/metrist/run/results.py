"""What a run gives: each record's scores, and each system's."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metrist.errors import RunError, did_you_mean
from metrist.grid import Grid
from metrist.metrics.base import Metric
from metrist.report.heat import Heat
from metrist.report.tables import Table
from metrist.run.heat import heat
from metrist.run.store.flat import Flat, write_flat
from metrist.run.summary import DRAWS, SystemScore, summary_table, system_scores
from metrist.scores import Scores


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
