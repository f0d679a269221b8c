"""Figures on preferences: each metric's on one slice, and the mean over slices, with intervals and tests.

What is resampled, and exchanged between metrics, are items with all their pairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from metrist.evaluate.meta.judged import Codes, Floats, Judged
from metrist.evaluate.meta.pairs import Chooser, ChosenPairs
from metrist.evaluate.meta.plan import Plan
from metrist.evaluate.meta.preference_measures import (
    CELLS,
    PREFERENCE_MEASURES,
    Pool,
    PreferenceMeasure,
    best_epsilon,
    choice_rows,
)
from metrist.evaluate.meta.result import Figure, Tests
from metrist.evaluate.meta.slices import Slice
from metrist.evaluate.meta.testing import pair_table
from metrist.stats.between import PermutationTest, exchange_rows
from metrist.stats.multiple import adjust
from metrist.stats.ranking import clusters, marks
from metrist.stats.resample import bootstrap_scores, interval, pooled
from metrist.stats.tail_p_values import exchange_p_values

GROUP = "pairs"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreferenceWork:
    """What all figures of one aspect share; the `outputs` of its slices are numbers of pairs."""

    judged: Judged
    plan: Plan
    aspect: str
    pairs: ChosenPairs
    choosers: Sequence[Chooser]

    def epsilon(self, chooser: Chooser, one: Slice, name: str) -> float:
        """The metric's tie threshold under a measure, 0 where it has none."""
        if name != "acc_eq" or chooser.stored:
            return 0.0
        here = one.outputs if self.plan.epsilon_over == "slice" else np.arange(len(self.pairs.human))
        found = best_epsilon(self.pairs.human[here], chooser.leaning[here])
        return 0.0 if math.isnan(found) else found

    def rows(self, one: Slice, epsilons: Sequence[float], items: Codes) -> Floats:
        """(metrics, items, 9): the confusion tables of these items' pairs within a slice."""
        item = np.searchsorted(items, self.judged.items.codes[self.pairs.first[one.outputs]])
        human = self.pairs.human[one.outputs]
        made = [
            choice_rows(human, chooser.leaning[one.outputs], epsilon, item, len(items))
            for chooser, epsilon in zip(self.choosers, epsilons, strict=True)
        ]
        return np.stack(made)

    def items(self, slices: Sequence[Slice]) -> Codes:
        """The items that these slices have pairs of, ascending."""
        pairs = np.concatenate([one.outputs for one in slices])
        return np.unique(self.judged.items.codes[self.pairs.first[pairs]])


def preference_figures(work: PreferenceWork, one: Slice, name: str) -> tuple[list[Figure], Tests]:
    """The figures of all metrics on one slice, ranked, and the tests behind the ranks."""
    plan, measure, items = work.plan, PREFERENCE_MEASURES[name], work.items([one])
    epsilons = [work.epsilon(chooser, one, name) for chooser in work.choosers]
    stats = work.rows(one, epsilons, items)
    values = pooled(stats, measure.pool)
    limits = _limits(plan, stats, measure.pool, values)
    tests = _tests(work, one, name, stats, values)
    rank = clusters(values, tests.adjusted, plan.alpha, tests.differences) * bool(np.isfinite(tests.adjusted).any())
    mark = marks(values, tests.adjusted, _families(work), plan.marked, plan.alpha, tests.differences)
    figures = []
    for number, chooser in enumerate(work.choosers):
        sums = stats[number].sum(axis=0)
        figures.append(
            Figure(
                metric=chooser.name,
                aspect=work.aspect,
                measure=name,
                group=GROUP,
                slice=one.name,
                value=float(values[number]),
                low=limits[number][0],
                high=limits[number][1],
                n=int(sums.sum()),
                coverage=float(sums.sum()) / len(one.outputs),
                epsilon=epsilons[number] if name == "acc_eq" and not chooser.stored else math.nan,
                chance=float(measure.chance(sums)),
                all_ties=float(measure.all_ties(sums)),
                rank=int(rank[number]),
                mark=mark[number],
                groups=len(items),
            )
        )
    return figures, tests


def preference_means(work: PreferenceWork, slices: Sequence[Slice], name: str) -> list[Figure]:
    """Per metric the average over the slices of one column. Macro: the mean of the slices' values. Micro: the measure
    of all their pairs together, each at its own slice's threshold."""
    plan, measure, items = work.plan, PREFERENCE_MEASURES[name], work.items(slices)
    epsilons = [[work.epsilon(chooser, one, name) for chooser in work.choosers] for one in slices]
    stats = np.concatenate([work.rows(one, own, items) for one, own in zip(slices, epsilons, strict=True)], axis=2)
    averaged = PreferenceMeasure(
        *(_averaged(pool, len(slices), plan.average) for pool in (measure.pool, measure.chance, measure.all_ties))
    )
    values = pooled(stats, averaged.pool)
    limits = _limits(plan, stats, averaged.pool, values)
    total = sum(len(one.outputs) for one in slices)
    figures = []
    for number, chooser in enumerate(work.choosers):
        sums = stats[number].sum(axis=0)
        parts = measure.pool(sums.reshape(len(slices), CELLS))
        used = {own[number] for own in epsilons}
        figures.append(
            Figure(
                metric=chooser.name,
                aspect=work.aspect,
                measure=name,
                group=GROUP,
                slice=f"{slices[0].column}: {plan.average} mean",
                value=float(values[number]),
                low=limits[number][0],
                high=limits[number][1],
                n=int(sums.sum()),
                coverage=float(sums.sum()) / total,
                epsilon=used.pop() if name == "acc_eq" and not chooser.stored and len(used) == 1 else math.nan,
                chance=float(averaged.chance(sums)),
                all_ties=float(averaged.all_ties(sums)),
                groups=int(np.count_nonzero(~np.isnan(parts))),
                undefined=int(np.count_nonzero(np.isnan(parts))),
            )
        )
    return figures


def _averaged(pool: Pool, slices: int, average: str) -> Pool:
    """The measure of tables (..., slices · 9), averaged over slices; one that is undefined is left out."""

    def micro(sums: Floats) -> Floats:
        return pool(sums.reshape(*sums.shape[:-1], slices, CELLS).sum(axis=-2))

    def macro(sums: Floats) -> Floats:
        values = pool(sums.reshape(*sums.shape[:-1], slices, CELLS))
        known = (~np.isnan(values)).sum(axis=-1)
        total = np.nan_to_num(values).sum(axis=-1)
        means: Floats = np.divide(total, known, out=np.full(np.shape(total), np.nan), where=known > 0)
        return means

    return micro if average == "micro" else macro


def _limits(plan: Plan, stats: Floats, pool: Pool, values: Floats) -> list[tuple[float, float]]:
    """Each metric's bootstrap interval over items."""
    resampled = bootstrap_scores(stats, pool, plan.draws, np.random.default_rng(plan.seed))
    return [
        (math.nan, math.nan) if math.isnan(value) else interval(resampled[:, number], plan.confidence, stats.shape[1])
        for number, value in enumerate(values)
    ]


def _families(work: PreferenceWork) -> list[str]:
    marked = work.plan.marked
    return [next((f for f in marked if chooser.name.startswith(f)), chooser.name) for chooser in work.choosers]


def _tests(work: PreferenceWork, one: Slice, name: str, stats: Floats, values: Floats) -> Tests:
    """Items change hands between two metrics; an item that one of them did not judge takes part for neither."""
    plan, size = work.plan, len(work.choosers)
    pairs = list(combinations(range(size), 2)) if plan.draws and plan.test != "none" else []
    pool = PREFERENCE_MEASURES[name].pool
    found = [_exchanged(stats[[first, second]], pool, plan) for first, second in pairs]
    gaps, p = np.array([test.difference for test in found]), exchange_p_values(found)
    return Tests(
        aspect=work.aspect,
        measure=name,
        slice=one.name,
        metrics=tuple(chooser.name for chooser in work.choosers),
        values=values,
        differences=pair_table(size, pairs, gaps, -gaps),
        raw=pair_table(size, pairs, p, p),
        adjusted=pair_table(size, pairs, *[adjust(p, plan.correction)] * 2),
        how="permutation of whole items (normal tails)" if pairs else "no tests",
    )


def _exchanged(rows: Floats, pool: Pool, plan: Plan) -> PermutationTest:
    shared = rows[:, (rows.sum(axis=-1) > 0).all(axis=0)]
    return exchange_rows(shared, pool, [(0, 1)], draws=plan.draws, rng=np.random.default_rng(plan.seed))[0]
