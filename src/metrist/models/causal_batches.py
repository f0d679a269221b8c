"""In what order and how much at once a causal model's rows are computed.

Rows that begin alike go through the model after their common beginning, which is read once; the others are read whole.
Both are sorted by length and cut by a budget of tokens, which is halved when memory runs out. No number depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from metrist.models.batching import Budget, MemoryIsShort, halving, longest_first
from metrist.models.causal_passes import Floats, Passes, Row

#: A token of a beginning beside a row costs the memory of one layer's keys and values and no computing: so many of them
#: count as one token.
_KEPT_PER_TOKEN = 8


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows (by number) with a common beginning."""

    beginning: tuple[int, ...]
    members: list[int]


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """A model's passes with the budget that they have to keep to."""

    passes: Passes
    budget: Budget
    free: Callable[[], None]

    def log_probs(self, rows: Sequence[Row]) -> tuple[list[Floats | None], dict[int, str]]:
        """Each row's log-probabilities, and why there are none of a row that does not fit into memory."""
        found: list[Floats | None] = [None] * len(rows)
        alone, groups = self._divided(rows)
        failures = self._read_whole(rows, alone, found)
        failures |= self._read_in_groups(rows, groups, found)
        return found, failures

    def _divided(self, rows: Sequence[Row]) -> tuple[list[int], list[_Group]]:
        by_beginning: dict[tuple[int, ...], list[int]] = {}
        for number, row in enumerate(rows):
            by_beginning.setdefault(row.beginning, []).append(number)
        groups = [_Group(*one) for one in by_beginning.items()]
        shared = [group for group in groups if self.passes.can.shares and group.beginning and len(group.members) > 1]
        kept = {number for group in shared for number in group.members}
        return [number for number in range(len(rows)) if number not in kept], shared

    def _read_whole(self, rows: Sequence[Row], numbers: Sequence[int], found: list[Floats | None]) -> dict[int, str]:
        lengths = [len(rows[n].beginning) + len(rows[n].rest) for n in numbers]
        order = longest_first(lengths)

        def work(batch: list[int]) -> None:
            at = [numbers[order[i]] for i in batch]
            _put(found, at, self.passes.read([rows[n] for n in at]))

        failed = halving([lengths[i] for i in order], self.budget, work, self.free)
        return {numbers[order[i]]: why for i, why in failed.items()}

    def _read_in_groups(
        self, rows: Sequence[Row], groups: Sequence[_Group], found: list[Floats | None]
    ) -> dict[int, str]:
        lengths = [len(group.beginning) for group in groups]
        order = longest_first(lengths)
        failures: dict[int, str] = {}

        def work(batch: list[int]) -> None:
            failures.update(self._go_on(rows, [groups[order[i]] for i in batch], found))

        failed = halving([lengths[i] for i in order], self.budget, work, self.free)
        return failures | {n: why for i, why in failed.items() for n in groups[order[i]].members}

    def _go_on(self, rows: Sequence[Row], groups: Sequence[_Group], found: list[Floats | None]) -> dict[int, str]:
        begun = self.passes.begin([group.beginning for group in groups])
        numbers = [(n, which) for which, group in enumerate(groups) for n in group.members]
        beside = len(groups[0].beginning) // _KEPT_PER_TOKEN
        lengths = [len(rows[n].rest) + beside for n, _ in numbers]
        order = longest_first(lengths)

        def work(batch: list[int]) -> None:
            at = [numbers[order[i]] for i in batch]
            _put(found, [n for n, _ in at], self.passes.go_on(begun, [rows[n] for n, _ in at], [w for _, w in at]))

        failed = halving([lengths[i] for i in order], self.budget, work, self.free)
        if failed and len(groups) > 1:
            raise MemoryIsShort
        return {numbers[order[i]][0]: why for i, why in failed.items()}


def _put(found: list[Floats | None], at: Sequence[int], results: Sequence[Floats]) -> None:
    for number, result in zip(at, results, strict=True):
        found[number] = result
