"""Outputs in the order in which a comparator prefers them: the share of its comparisons that an output wins, or how far
it comes in a knockout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import ClassVar

import numpy as np

from metrist.evaluate.plans import Pairing
from metrist.metrics.base import Metric, PairShard, Shard
from metrist.metrics.comparator import Comparator, Judgment
from metrist.metrics.llm_metric import merge_usage
from metrist.records import Need, Pair, RecordColumns
from metrist.run.tasks import judge_shard
from metrist.scores import Column, Failure, Scores

#: What the first output of a pair gets; the second gets the rest of 1.
_POINTS = {"first": 1.0, "tie": 0.5, "second": 0.0}
#: Two positions in a shard.
_Couple = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class ComparisonWins(Metric):
    """How an output fares in comparisons with the other outputs of its item in the shard. A tie is half a win; outputs
    with the same text tie unasked.

    With `pairing='all'` the value is the share of the comparisons that it wins. In a knockout it is the number of
    rounds that it stays in; a tie or a failed comparison leaves the earlier output in.
    """

    comparator: Comparator
    pairing: Pairing = "all"

    bounds: ClassVar[tuple[float, float]] = (0.0, np.inf)
    catalog_name: ClassVar[str | None] = "wins"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("extra", "resident"):
            object.__setattr__(self, name, getattr(self.comparator, name))

    @property
    def needs(self) -> tuple[Need, ...]:
        return self.comparator.needs

    def facts(self) -> Mapping[str, str]:
        return self.comparator.facts()

    def _code(self) -> Mapping[str, str]:
        return self.comparator._code()

    def score(self, shard: Shard) -> Scores:
        games = _Games(self.comparator, shard)
        by_item: dict[str, list[int]] = {}
        for position, item in enumerate(games.records.items):
            by_item.setdefault(item, []).append(position)
        items = list(by_item.values())
        values = games.share_wins(items) if self.pairing == "all" else games.knock_out(items)
        usages = {position: merge_usage(own) for position, own in games.usages.items()}
        failures = {position: games.failures[position] for position in np.flatnonzero(np.isnan(values)).tolist()}
        return Scores(values=values, failures=failures, usages=usages, incomplete=frozenset(games.incomplete))


@dataclass(slots=True)
class _Games:
    """The comparisons of a shard's outputs."""

    comparator: Comparator
    shard: Shard
    usages: dict[int, list[Mapping[str, float]]] = field(default_factory=dict)
    failures: dict[int, Failure] = field(default_factory=dict)
    incomplete: set[int] = field(default_factory=set)

    @property
    def records(self) -> RecordColumns:
        return RecordColumns.of(self.shard.records)

    def share_wins(self, items: Sequence[Sequence[int]]) -> Column:
        """Each output's share of its judged comparisons; NaN where none is. One that has no other wins."""
        points, games = np.zeros((2, len(self.shard)))
        for positions in items:
            if len(positions) == 1:
                points[positions] = games[positions] = 1
        for (first, second), result in self._play([couple for each in items for couple in combinations(each, 2)]):
            if result is not None:
                points[first] += result
                points[second] += 1 - result
                games[[first, second]] += 1
        with np.errstate(invalid="ignore"):
            shares: Column = points / games
        return shares

    def knock_out(self, items: Sequence[Sequence[int]]) -> Column:
        """The number of rounds that each output stays in. Neighbours play; the last of an odd number has no game."""
        rounds = np.zeros(len(self.shard))
        playing = [list(positions) for positions in items if len(positions) > 1]
        while playing:
            couples = [couple for each in playing for couple in zip(each[::2], each[1::2], strict=False)]
            results = self._play(couples)
            lost = {first if result is not None and result < 0.5 else second for (first, second), result in results}
            left = [[position for position in each if position not in lost] for each in playing]
            for each in left:
                rounds[each] += 1
            playing = [each for each in left if len(each) > 1]
        return rounds

    def _play(self, couples: Sequence[_Couple]) -> Iterator[tuple[_Couple, float | None]]:
        """Yield the points of the first output of each couple; None where the comparison failed."""
        outputs = self.records.outputs
        asked = [(first, second) for first, second in couples if outputs[first] != outputs[second]]
        pairs = [Pair(first=self.records[first], second=self.records[second]) for first, second in asked]
        judgments = judge_shard(self.comparator, PairShard(pairs, runtime=self.shard.runtime)) if pairs else []
        by_couple = dict(zip(asked, judgments, strict=True))
        for couple in couples:
            judgment = by_couple.get(couple)
            yield couple, 0.5 if judgment is None else self._count(couple, judgment)

    def _count(self, couple: _Couple, judgment: Judgment) -> float | None:
        if judgment.usage:
            self.usages.setdefault(couple[0], []).append(judgment.usage)
        if judgment.incomplete or (judgment.failure is not None and judgment.failure.kind.is_retryable):
            self.incomplete.update(couple)
        if judgment.preference is None:
            for position in couple:
                self.failures.setdefault(position, Failure.of(judgment.failure or ""))
            return None
        return _POINTS[judgment.preference]
