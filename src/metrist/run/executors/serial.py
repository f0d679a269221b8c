"""One shard after another, in this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from metrist.metrics.base import Metric
from metrist.run.executors.tasks import Done, Task, perform


@dataclass(frozen=True, slots=True)
class Serial:
    """Scores in this process; what a debugger wants."""

    def map(self, metrics: Sequence[Metric], tasks: Iterable[Task]) -> Iterator[Done]:
        """What was done, task by task."""
        by_text = {metric.text: metric for metric in metrics}
        for task in tasks:
            yield perform(by_text, task)
