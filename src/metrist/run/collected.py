"""What a run has so far: names and columns of numbers, never the texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from metrist.records import Record
from metrist.scores import Scores


class Collected:
    """Gathers shards in whatever order they arrive, and puts them in order in the end."""

    def __init__(self, metrics: Iterable[str]) -> None:
        self.items: list[str] = []
        self.systems: list[str] = []
        self._names: dict[str, str] = {}
        self._blocks: dict[str, dict[int, Scores]] = {metric: {} for metric in metrics}

    def add_records(self, records: Sequence[Record]) -> None:
        """Note the next records' names; equal names are kept once."""
        keep = self._names.setdefault
        self.items += [keep(record.item, record.item) for record in records]
        self.systems += [keep(record.system, record.system) for record in records]

    def add_scores(self, metric: str, start: int, scores: Scores) -> None:
        """Keep one metric's scores of the shard at this position."""
        self._blocks[metric][start] = scores

    def joined(self) -> dict[str, Scores]:
        """Each metric's scores in the input's order. Gives its blocks away: no number is held twice for long."""
        whole = {}
        for metric in list(self._blocks):
            blocks = self._blocks.pop(metric)
            whole[metric] = Scores.join([blocks[start] for start in sorted(blocks)])
        return whole
