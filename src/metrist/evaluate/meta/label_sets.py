"""Tasks whose answers come from a small closed set, such as "Plausible" and "Not plausible"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from metrist.records import Record

#: A task with more distinct references, or longer ones, is no choice from a set.
MOST_LABELS = 20
_LONGEST = 100
#: How many items there must be, on average, with each label.
_ITEMS_PER_LABEL = 2


class LabelSets:
    """Gathers the references of each task as long as they can still be a closed set."""

    def __init__(self) -> None:
        self._labels: dict[str, Counter[str] | None] = {}
        self._items: set[tuple[str, str]] = set()

    def add(self, record: Record) -> None:
        """Count the record's reference, once for each item."""
        task = record.task or ""
        labels = self._labels.setdefault(task, Counter())
        if labels is None or (task, record.item) in self._items:
            return
        self._items.add((task, record.item))
        if len(record.references) != 1 or len(record.references[0]) > _LONGEST:
            self._labels[task] = None
            return
        labels[record.references[0]] += 1
        if len(labels) > MOST_LABELS:
            self._labels[task] = None

    def closed(self) -> Mapping[str, Mapping[str, int]]:
        """Per task with a closed set, its labels and how many items have each for an answer."""
        return {
            task: dict(labels)
            for task, labels in self._labels.items()
            if labels and len(labels) >= 2 and labels.total() >= _ITEMS_PER_LABEL * len(labels)
        }
