"""Metrics of an output among the other outputs of its item: minimum Bayes risk, and comparisons.

Minimum Bayes risk: an output is as good as it is close to the other outputs of its item. Kumar and Byrne (2004); with
samples as outputs, Eikema and Aziz (2020). A reference-based metric is the utility. The value of an output is the mean
of its scores against all outputs of the item as reference, itself included, as in the package mbrs. Equal outputs are
scored once and count as often as they occur.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from metrist.errors import SpecError
from metrist.evaluate.plans import Pairing
from metrist.evaluate.rerank.items import gather
from metrist.metrics.base import Metric, Pairs, PairShard, Shard
from metrist.metrics.comparator import Comparator
from metrist.metrics.lexical.chrf import Chrf
from metrist.metrics.llm_metric import merge_usage
from metrist.records import Need, Pair, Record, RecordColumns
from metrist.run.tasks import judge_shard
from metrist.scores import Column, Failure, Scores

Positions = NDArray[np.intp]
#: Pairs of outputs that the utility scores at once: enough for a model's batches, few enough for the cache.
_PAIRS_AT_ONCE = 1 << 13


@dataclass(frozen=True)
class MinimumBayesRisk(Metric):
    """The mean score of an output by a metric, with all outputs of its item in the shard as references."""

    metric: Metric
    #: Against the mean n-gram counts of all outputs instead of each of them: linear in the outputs, and not the same.
    aggregate: bool = False

    catalog_name: ClassVar[str | None] = "mbr"

    def __post_init__(self) -> None:
        super().__post_init__()
        utility = self.metric
        if "references" not in utility.needs:
            raise SpecError(f"mbr: {utility.text} compares with no reference, so that it cannot be a utility")
        if self.aggregate and not isinstance(utility, Chrf):
            raise SpecError(f"mbr: only chrf has a mean of references, not {utility.text}", code="unsupported")
        for name in ("higher_is_better", "bounds", "extra", "resident"):
            object.__setattr__(self, name, getattr(utility, name))

    @property
    def needs(self) -> tuple[Need, ...]:
        return tuple(need for need in self.metric.needs if need != "references")

    def facts(self) -> Mapping[str, str]:
        return self.metric.facts()

    def _code(self) -> Mapping[str, str]:
        return self.metric._code()

    def score(self, shard: Shard) -> Scores:
        records = RecordColumns.of(shard.records)
        values = np.empty(len(records))
        failures: dict[int, Failure] = {}
        if self.aggregate:
            assert isinstance(self.metric, Chrf)
            for group in _group_outputs(records):
                texts = [Record(item="", system="", output=text, references=(text,)) for text in group.texts]
                means = self.metric.score_against_mean(shard.part(texts), group.counts)
                values[group.positions] = means[group.numbers]
            return Scores(values=values)
        for groups in gather(_group_outputs(records), lambda group: group.size**2, _PAIRS_AT_ONCE):
            scores = self.metric.score(_pair_outputs(records, groups, shard))
            start = 0
            for group in groups:
                table = scores.values[start : start + group.size**2].reshape(group.size, group.size).T
                # The weighted mean of each output's scores, NaN where there is none.
                weights = np.where(np.isnan(table), 0.0, group.counts)
                with np.errstate(invalid="ignore"):
                    means = (np.nan_to_num(table) * weights).sum(axis=1) / weights.sum(axis=1)
                values[group.positions] = means[group.numbers]
                for number in np.flatnonzero(np.isnan(means)).tolist():
                    failure = scores.failures[start + number]
                    failures |= dict.fromkeys(group.positions[group.numbers == number].tolist(), failure)
                start += group.size**2
        return Scores(values=values, failures=failures)


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """The outputs of an item: their positions in the shard, for each the number of its distinct text, and how often
    each text occurs."""

    positions: Positions
    texts: list[str]
    numbers: Positions
    counts: Column

    @property
    def size(self) -> int:
        return len(self.texts)


def _list_items(records: RecordColumns) -> list[list[int]]:
    """The positions of the outputs of each item."""
    by_item: dict[str, list[int]] = {}
    for position, item in enumerate(records.items):
        by_item.setdefault(item, []).append(position)
    return list(by_item.values())


def _group_outputs(records: RecordColumns) -> Iterator[_Group]:
    for positions in _list_items(records):
        outputs = [records.outputs[position] for position in positions]
        number = {text: n for n, text in enumerate(dict.fromkeys(outputs))}
        numbers = np.array([number[output] for output in outputs], np.intp)
        counts = np.bincount(numbers, minlength=len(number)).astype(np.float64)
        yield _Group(np.array(positions, np.intp), list(number), numbers, counts)


def _pair_outputs(records: RecordColumns, groups: Sequence[_Group], shard: Shard) -> Shard:
    """A shard of each distinct output of a group with each of the group's as its reference, row by row."""
    columns: dict[str, list[Any]] = {field.name: [] for field in dataclasses.fields(RecordColumns)}
    number: dict[str, int] = {}
    outputs, references = [], []
    for group in groups:
        size, first = group.size, int(group.positions[0])
        for name, column in columns.items():
            if name not in ("outputs", "references"):
                source = getattr(records, name)
                column += [source[first] if source else None] * size**2
        columns["outputs"] += group.texts * size
        for text in group.texts:
            columns["references"] += [(text,)] * size
        own = np.array([number.setdefault(text, len(number)) for text in group.texts], np.int32)
        outputs.append(np.tile(own, size))
        references.append(np.repeat(own, size))
    extras = columns.pop("extras")
    paired = shard.part(RecordColumns(**columns, extras=extras if records.extras else None))
    starts = np.arange(len(paired) + 1, dtype=np.int64)
    # Metrics that number the texts find them numbered.
    paired.once("pairs", lambda: Pairs(list(number), np.concatenate(outputs), np.concatenate(references), starts))
    return paired


# ---- Comparisons

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
        items = _list_items(games.records)
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
            if judgment is None:  # Equal texts tie unasked.
                yield couple, 0.5
                continue
            if judgment.usage:
                self.usages.setdefault(couple[0], []).append(judgment.usage)
            if judgment.incomplete or (judgment.failure is not None and judgment.failure.kind.is_retryable):
                self.incomplete.update(couple)
            if judgment.preference is None:
                for position in couple:
                    self.failures.setdefault(position, Failure.of(judgment.failure or ""))
            yield couple, None if judgment.preference is None else _POINTS[judgment.preference]
