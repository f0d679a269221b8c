"""Pairs of texts as work: equal texts and equal pairs once, in an order that keeps a condition's targets together, and
results laid out again as they were asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from metrist.models.likelihoods import Likelihoods
from metrist.models.tokenizing import Ids


class Work:
    """Distinct conditions, and for each its distinct targets. Conditions and targets are known by their number."""

    def __init__(self, pairs: Sequence[tuple[str, str]]) -> None:
        conditions: dict[str, int] = {}
        targets: dict[str, int] = {}
        distinct: dict[tuple[int, int], int] = {}
        #: For every pair asked for, the number of the distinct pair that answers it.
        self.answers = np.empty(len(pairs), dtype=np.int64)
        for at, (condition, target) in enumerate(pairs):
            key = (conditions.setdefault(condition, len(conditions)), targets.setdefault(target, len(targets)))
            self.answers[at] = distinct.setdefault(key, len(distinct))
        self.conditions, self.targets, self.pairs = list(conditions), list(targets), list(distinct)
        self._of: list[list[int]] = [[] for _ in conditions]
        for pair, (condition_number, _) in enumerate(self.pairs):
            self._of[condition_number].append(pair)

    def of(self, conditions: Sequence[int]) -> list[int]:
        """The pairs of some conditions, condition after condition."""
        return [pair for condition in conditions for pair in self._of[condition]]

    def first_needed(self, conditions: Sequence[int]) -> list[int]:
        """All targets in the order in which those conditions need them."""
        return list(dict.fromkeys(self.pairs[pair][1] for pair in self.of(conditions)))


class Answers:
    """What was found for the distinct pairs, until all of it is known."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self.labels: list[Ids] = [np.empty(0, dtype=np.int64)] * len(work.pairs)
        self.condition_cut = np.zeros(len(work.conditions), dtype=np.int64)
        self.target_cut = np.zeros(len(work.targets), dtype=np.int64)
        self.failures: dict[int, str] = {}
        #: Distinct pairs in the order in which their log-probabilities will come.
        self.order: list[int] = []

    def laid_out(self, logprobs: NDArray[np.float32]) -> Likelihoods:
        """Log-probabilities that came in `order`, as the pairs were asked for."""
        work = self._work
        lengths = np.zeros(len(work.pairs), dtype=np.int64)
        lengths[self.order] = [len(self.labels[pair]) for pair in self.order]
        begin = np.zeros(len(work.pairs), dtype=np.int64)
        begin[self.order] = np.cumsum(lengths[self.order]) - lengths[self.order]
        tokens = np.concatenate([np.empty(0, dtype=np.int64), *(self.labels[pair] for pair in self.order)])
        wanted = lengths[work.answers]
        starts = np.concatenate([[0], np.cumsum(wanted)]).astype(np.int64)
        at = np.repeat(begin[work.answers] - starts[:-1], wanted) + np.arange(starts[-1])
        both = np.array(work.pairs, dtype=np.int64).reshape(-1, 2)[work.answers]
        return Likelihoods(
            logprobs=logprobs[at],
            tokens=tokens[at],
            starts=starts,
            condition_cut=self.condition_cut[both[:, 0]],
            target_cut=self.target_cut[both[:, 1]],
            failures=self._failures(),
        )

    def _failures(self) -> Mapping[int, str]:
        if not self.failures:
            return {}
        return {at: self.failures[pair] for at, pair in enumerate(self._work.answers.tolist()) if pair in self.failures}
