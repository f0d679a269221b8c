"""Minimum Bayes risk: an output is as good as it is close to the other outputs of its item.

Kumar and Byrne (2004); with samples as outputs, Eikema and Aziz (2020). A reference-based metric is the utility. The
value of an output is the mean of its scores against all outputs of the item as reference, itself included, as in the
package mbrs. Equal outputs are scored once and count as often as they occur.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from metrist.errors import SpecError
from metrist.metrics.base import Metric, Pairs, Shard
from metrist.metrics.lexical.chrf import Chrf
from metrist.records import Need, Record, RecordColumns
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
            for group in _group_outputs(records):
                values[group.positions] = self._score_against_mean(group, shard)[group.numbers]
            return Scores(values=values)
        for groups in _gather(_group_outputs(records)):
            scores = self.metric.score(_pair_outputs(records, groups, shard))
            start = 0
            for group in groups:
                table = scores.values[start : start + group.size**2].reshape(group.size, group.size).T
                means = _mean_rows(table, group.counts)
                values[group.positions] = means[group.numbers]
                for number in np.flatnonzero(np.isnan(means)).tolist():
                    failure = scores.failures[start + number]
                    failures |= dict.fromkeys(group.positions[group.numbers == number].tolist(), failure)
                start += group.size**2
        return Scores(values=values, failures=failures)

    def _score_against_mean(self, group: _Group, shard: Shard) -> Column:
        assert isinstance(self.metric, Chrf)
        texts = [Record(item="", system="", output=text, references=(text,)) for text in group.texts]
        return self.metric.score_against_mean(shard.part(texts), group.counts)


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """The outputs of an item: their positions in the shard, and for each the number of its distinct text."""

    positions: Positions
    texts: list[str]
    numbers: Positions

    @property
    def size(self) -> int:
        return len(self.texts)

    @property
    def counts(self) -> Column:
        return np.bincount(self.numbers, minlength=self.size).astype(np.float64)


def _group_outputs(records: RecordColumns) -> Iterator[_Group]:
    by_item: dict[str, list[int]] = {}
    for position, item in enumerate(records.items):
        by_item.setdefault(item, []).append(position)
    for positions in by_item.values():
        outputs = [records.outputs[position] for position in positions]
        number = {text: n for n, text in enumerate(dict.fromkeys(outputs))}
        numbers = np.array([number[output] for output in outputs], np.intp)
        yield _Group(np.array(positions, np.intp), list(number), numbers)


def _gather(groups: Iterator[_Group]) -> Iterator[list[_Group]]:
    """Yield groups together until their pairs are many."""
    gathered, pairs = list[_Group](), 0
    for group in groups:
        gathered.append(group)
        pairs += group.size**2
        if pairs >= _PAIRS_AT_ONCE:
            yield gathered
            gathered, pairs = [], 0
    if gathered:
        yield gathered


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


def _mean_rows(table: Column, counts: Column) -> Column:
    """The weighted mean of each row's numbers, NaN where there is none."""
    weights = np.where(np.isnan(table), 0.0, counts)
    with np.errstate(invalid="ignore"):
        means: Column = (np.nan_to_num(table) * weights).sum(axis=1) / weights.sum(axis=1)
    return means
