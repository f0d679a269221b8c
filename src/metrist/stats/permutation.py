"""Does one metric agree with humans better than another? Paired permutation tests (Deutsch, Dror and Roth 2021).

If two metrics were interchangeable, exchanging their values at random would change nothing but chance. Values are
standardised first, because metrics have different scales. Exchange together what the finding should generalise to:
"items" (PERM-INPUTS: all outputs of an item), "systems" (PERM-SYSTEMS: all outputs of a system), or "both" (PERM-BOTH,
as in mt-metrics-eval: each output by itself).

Where an exchange moves rows that add up, all pairs of metrics share one matrix product: Pearson's correlation over all
outputs, and macro averages over the very groups that are exchanged, those in which both metrics of a pair are defined.
Otherwise the two metrics are concatenated, and an
exchange is a weighting of that doubled sample by zeros and ones: nothing is copied, and each column is sorted once.

There, a test stops early (Besag and Clifford 1991) once it has seen so many extreme draws that it cannot become
significant; p is then that number over the draws made, which is as valid as a p-value from all draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrist.errors import RunError
from metrist.stats import Codes, Floats, Pool, resampling
from metrist.stats.estimation import MIN_EXTREME, estimate
from metrist.stats.measures import Measure
from metrist.stats.resampling import (
    Over,
    coin_tosses,
    count_extreme,
    exchanged_differences,
    p_values,
    pool_rows,
    rounding_slack,
)
from metrist.stats.samples import (
    Average,
    Grouping,
    Pairs,
    Sample,
    ScorePanel,
    batch_by_outputs,
    match_measures,
    number_groups,
    sort_codes,
    take_grouping,
    take_order,
)
from metrist.stats.significance import normal_tail

#: Draws between checks whether a test may stop; where it stops does not depend on it.
_BLOCK = 128
#: How far beyond the bound of significance a test must be before it stops; p then has 10 % error at 1,000 draws.
_MARGIN = 2


class PermutationTest(NamedTuple):
    """The difference (first minus second) on the outputs that both scored, its p-value, and the number of draws.

    Where exchanged rows add up, `spread` is the standard deviation of the differences after an exchange, and
    `differing` counts the rows in which the two metrics differ.
    """

    difference: float
    p: float
    draws: int
    spread: float = math.nan
    differing: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _TestPlan:
    average: Average
    exchange: Over
    draws: int
    enough: int


def permutation_tests(
    measures: Measure | Sequence[Measure],
    panel: ScorePanel,
    pairs: Pairs,
    grouping: Grouping | Codes = "none",
    average: Average = "macro",
    *,
    exchange: Over = "both",
    draws: int = 1000,
    rng: np.random.Generator,
    alpha: float | None = 0.05,
) -> list[PermutationTest]:
    """Test each pair of metrics. All pairs share the draws, so that a pair's numbers do not depend on the others.

    A test that cannot reach `alpha` any more may stop early; None makes all draws for every pair. Whether p is at most
    alpha is the same either way. Metrics may have measures of their own only if whole groups are exchanged.
    """
    enough = draws + 1 if alpha is None else math.ceil(_MARGIN * alpha * (draws + 1))
    plan = _TestPlan(average=average, exchange=exchange, draws=draws, enough=enough)
    own = match_measures(measures, panel)
    (source,) = rng.spawn(1)
    results: dict[int, PermutationTest] = {}
    for batch in batch_by_outputs(panel, pairs):
        groups, batch_measures = take_grouping(grouping, batch.outputs), [own[metric] for metric in batch.metrics]
        tests = _batch(plan, batch_measures, batch.panel, batch.pairs, groups, deepcopy(source))
        results.update(zip(batch.positions, tests, strict=True))
    return [results[position] for position in range(len(pairs))]


def _batch(
    plan: _TestPlan,
    own: Sequence[Measure],
    panel: ScorePanel,
    pairs: Pairs,
    grouping: Grouping | Codes,
    rng: np.random.Generator,
) -> list[PermutationTest]:
    """Test pairs of metrics that all scored every output of the panel."""
    outputs = len(panel.human)
    # The number of coins to toss, and the coin that decides about each output.
    if plan.exchange == "both":
        units, unit_of = outputs, np.arange(outputs)
    else:
        units, unit_of = number_groups(panel.item if plan.exchange == "items" else panel.system)
    if units < 2:
        values = [estimate(m, panel.sample(i), grouping, average=plan.average).values[0] for i, m in enumerate(own)]
        return [PermutationTest(float(values[a] - values[b]), math.nan, 0) for a, b in pairs]
    exchange = partial(exchange_rows, draws=plan.draws, rng=rng)
    grouping_of_units = {"items": "item", "systems": "system"}.get(plan.exchange)
    if isinstance(grouping, str) and grouping == grouping_of_units and plan.average == "macro":
        rows, pairs = _group_rows(own, panel, unit_of, units, pairs)
        return exchange(rows, _mean, pairs)
    if any(panel.corpus):
        raise RunError(
            "a permutation test exchanges the scores of outputs, and the scores of systems are pooled from statistics "
            "instead: try `test='bootstrap'`, or `system_score='mean'`"
        )
    for measure in own:
        if measure.name != own[0].name or "epsilon" in measure.name:  # It depends on a metric's scale.
            raise RunError(
                f"{measure.name}: a threshold needs exchanges of whole groups, or `test='sign'`", code="conflict"
            )
    panel = _standardised(panel)
    if isinstance(grouping, str) and grouping == "none" and own[0].name == "pearson":
        return exchange(*_pearson_rows(panel, unit_of, units), pairs)
    return _test_sequentially(plan, own[0], panel, pairs, grouping, unit_of, units, rng)


def _standardised(panel: ScorePanel) -> ScorePanel:
    rows = np.array(panel.metrics)
    if not rows.size:
        return panel
    # Scale to 1 first: squares of very large values would overflow, of very small ones vanish.
    scaled = rows / np.maximum(np.abs(rows).max(axis=1, keepdims=True), np.finfo(np.float64).tiny)
    centred = scaled - scaled.mean(axis=1, keepdims=True)
    spread = np.sqrt((centred**2).mean(axis=1, keepdims=True))
    constant = (rows == rows[:, :1]).all(axis=1, keepdims=True)
    # A constant metric stays constant: rounding must not order it.
    metrics = np.where(constant, 0.0, centred / np.where(constant, 1.0, spread))
    return ScorePanel(human=panel.human, metrics=list(metrics), item=panel.item, system=panel.system)


# ---- Exchanged rows that add up


def exchange_rows(
    rows: Floats,
    pool: Pool,
    pairs: Pairs,
    *,
    draws: int,
    rng: np.random.Generator,
) -> list[PermutationTest]:
    """Exchange rows (metrics, units, k) between the two metrics of each pair, unit by unit."""
    first, second = np.array(pairs, dtype=np.intp).reshape(-1, 2).T
    values = pool_rows(rows, pool)
    observed, slack = values[first] - values[second], rounding_slack(values[first], values[second])
    extreme, squares = np.zeros(len(pairs), dtype=np.intp), np.zeros(len(pairs))
    for null in exchanged_differences(rows, pairs, pool, draws, rng):
        extreme += count_extreme(null, observed, "two-sided", slack)
        # Add one by one: otherwise the last digit of the sum depends on the size of the chunk.
        for square in np.nan_to_num(null) ** 2:
            squares += square
    p = p_values(extreme, draws, observed, rows.shape[1])
    spread = np.sqrt(squares / draws)
    differing = [int((rows[a] != rows[b]).any(axis=-1).sum()) for a, b in pairs]
    return [
        PermutationTest(float(observed[i]), float(p[i]), draws, float(spread[i]), differing[i])
        for i in range(len(pairs))
    ]


def _pearson_rows(panel: ScorePanel, unit_of: Codes, units: int) -> tuple[Floats, Pool]:
    """Return sums (metrics, units, 3) of z, z squared and z times the human value, and how they are pooled."""
    human, values = panel.human - panel.human.mean(), np.array(panel.metrics)
    columns = np.stack([values, values**2, values * human], axis=-1)
    order = np.argsort(unit_of, kind="stable")
    starts = np.searchsorted(unit_of[order], np.arange(units))
    outputs, human_sum, human_squares = len(human), float(human.sum()), float((human**2).sum())
    constant = bool((panel.human == panel.human[0]).all())

    def pool(sums: Floats) -> Floats:
        z, squares, products = np.moveaxis(sums, -1, 0)
        spread = squares - z * z / outputs
        # Squares of standardised values sum to n; far less means a constant with rounding errors.
        varies = (spread > 1e-9) & (not constant)
        product = products - z * human_sum / outputs
        return np.where(varies, product / np.sqrt(np.where(varies, spread, 1.0) * (human_squares or 1.0)), np.nan)

    return np.add.reduceat(columns[:, order], starts, axis=1), pool


def _group_rows(
    own: Sequence[Measure], panel: ScorePanel, unit_of: Codes, units: int, pairs: Pairs
) -> tuple[Floats, Pairs]:
    """Return rows (metrics, groups, 2), a group's value and 1, or two zeros if the measure is undefined in it; and the
    pairs of these rows. Where metrics are defined in different groups, each pair has rows of its own."""
    order = sort_codes(unit_of)
    starts = np.searchsorted(take_order(unit_of, order), np.arange(units + 1))
    human, once = take_order(panel.human, order), np.broadcast_to(1.0, (1, len(unit_of)))
    values = []
    for measure, metric in zip(own, panel.metrics, strict=True):
        values.append(measure.pool(measure.grouped_rows(human, take_order(metric, order), once, starts))[0])
    known = ~np.isnan(values)
    rows = np.stack([np.where(known, values, 0.0), known.astype(np.float64)], axis=-1)
    if not pairs or (known == known[0]).all():
        return rows, pairs
    # An exchange would move a group that only one of the two has a value in from one mean to the other, and with it
    # what all metrics find easy or hard there.
    first, second = np.array(pairs, dtype=np.intp).T
    shared = (known[first] & known[second])[..., None]
    own_rows = np.concatenate([np.where(shared, rows[first], 0.0), np.where(shared, rows[second], 0.0)])
    return own_rows, [(n, len(pairs) + n) for n in range(len(pairs))]


def _mean(sums: Floats) -> Floats:
    total, count = np.moveaxis(sums, -1, 0)
    return np.where(count > 0, total / np.maximum(count, 1.0), np.nan)


# ---- Exchanges that must be measured one by one


@dataclass(slots=True)
class _SequentialTest:
    doubled: Sample
    observed: float
    slack: float
    extreme: int = 0
    draws_used: int = 0
    stopped: bool = False

    def add_block(self, null: Floats, plan: _TestPlan) -> None:
        """Count a block of draws, up to the one that is enough."""
        observed, slack = np.repeat(self.observed, len(null)), np.array([self.slack])
        reached = count_extreme(null[None, :], observed, "two-sided", slack)  # 1 or 0 for each draw.
        total = self.extreme + np.cumsum(reached)
        self.stopped = bool(len(total) and total[-1] >= plan.enough)
        used = int(np.argmax(total >= plan.enough)) + 1 if self.stopped else len(null)
        self.draws_used += used
        self.extreme = int(total[used - 1])

    def p(self) -> float:
        if math.isnan(self.observed):
            return math.nan
        return self.extreme / self.draws_used if self.stopped else (self.extreme + 1) / (self.draws_used + 1)


def _test_sequentially(
    plan: _TestPlan,
    measure: Measure,
    panel: ScorePanel,
    pairs: Pairs,
    grouping: Grouping | Codes,
    unit_of: Codes,
    units: int,
    rng: np.random.Generator,
) -> list[PermutationTest]:
    tests = []
    for pair in pairs:
        samples = [panel.sample(metric) for metric in pair]
        first, second = (estimate(measure, own, grouping, average=plan.average).values[:1] for own in samples)
        twice = Sample(
            human=np.concatenate([panel.human, panel.human]),
            metric=np.concatenate([own.metric for own in samples]),
            item=np.concatenate([panel.item, panel.item]),
            system=np.concatenate([panel.system, panel.system]),
        )
        tests.append(_SequentialTest(twice, float(first[0] - second[0]), float(rounding_slack(first, second)[0])))
    doubled = grouping if isinstance(grouping, str) else np.concatenate([grouping, grouping])
    rows = min(_BLOCK, max(1, resampling.CHUNK // (4 * len(panel.human))))
    for tosses in coin_tosses(units, plan.draws, rng, rows):
        running = [test for test in tests if not test.stopped and not math.isnan(test.observed)]
        if not running:
            break
        # Weights (2 draws, 2 outputs) of the doubled sample for the first, then the second metric.
        swapped = tosses.take(unit_of, axis=1)
        weights = np.block([[1.0 - swapped, swapped], [swapped, 1.0 - swapped]])
        for test in running:
            values = estimate(measure, test.doubled, doubled, weights, plan.average).values
            test.add_block(values[: len(tosses)] - values[len(tosses) :], plan)
    return [PermutationTest(test.observed, test.p(), test.draws_used) for test in tests]


def exchange_p_values(tests: Sequence[PermutationTest]) -> Floats:
    """Return two-sided p-values of exchanges of rows that add up.

    A correction for hundreds of pairs needs p-values that a thousand draws cannot give. If fewer than ten draws are as
    extreme as what was observed, p is the tail of a normal distribution with the spread of the draws, which sums over
    many units approach. It is never below what the number of exchanges could give, nor above what ten draws would.
    """
    p = np.array([test.p for test in tests], dtype=np.float64)
    for number, test in enumerate(tests):
        most = MIN_EXTREME / (test.draws + 1)
        # Keep the counted p if the pair was not tested (NaN) or has no spread.
        if test.p <= most and test.spread > 0:
            tail = 2 * normal_tail(abs(test.difference) / test.spread)
            p[number] = min(max(tail, 2.0 ** (1 - test.differing)), most)
    return p


# ---- Soft pairwise accuracy: do humans and metric agree on how certain it is that one system beats another?


#: Relative rounding error of sums that were added in different orders.
_SLACK: Final = 1e-12
_CHUNK: Final = 1 << 21
#: How a permutation that leaves the observed difference counts: half, or fully.
TieCount = Literal["mid", "strict"]


class SoftAccuracy(NamedTuple):
    """Soft pairwise accuracy, and the value that a metric reaches that cannot distinguish any two systems."""

    value: float
    chance: float


def soft_pairwise_accuracy(
    sample: Sample, draws: int, rng: np.random.Generator, ties: TieCount = "mid"
) -> SoftAccuracy:
    """Measure whether humans and metric agree on how certain it is that one system beats another (Thompson et al.
    2024).

    Both sides use the same exchanges of outputs. `ties` says how an exchange counts that leaves the observed
    difference, see `superiority_p_values`.
    """
    tosses = np.concatenate(list(coin_tosses(len(np.unique(sample.item)), draws, rng, draws or 1)))
    human_p = superiority_p_values(system_by_item(sample, sample.human), tosses, ties)
    metric_p = superiority_p_values(system_by_item(sample, sample.metric), tosses, ties)
    return SoftAccuracy(soft_agreement(human_p, metric_p), soft_agreement(human_p, np.full_like(human_p, 0.5)))


def soft_agreement(human_p: Floats, metric_p: Floats) -> float:
    """Return one minus the mean difference between two tables of p-values, over all pairs of systems that have both."""
    upper = np.triu_indices(len(human_p), 1)
    gaps = np.abs(human_p - metric_p)[upper]
    known = ~np.isnan(gaps)
    return float(1.0 - gaps[known].mean()) if known.any() else float("nan")


def system_by_item(sample: Sample, values: Floats) -> Floats:
    """Arrange a column of a sample as (systems, items), NaN for missing outputs; unused numbers are left out."""
    systems, row = np.unique(sample.system, return_inverse=True)
    items, column = np.unique(sample.item, return_inverse=True)
    cells = row * len(items) + column
    if len(np.unique(cells)) < len(cells):
        raise RunError("a paired test needs one output per system and item, but some item has two of one system")
    grid = np.full((len(systems), len(items)), np.nan)
    grid.ravel()[cells] = values
    return grid


def superiority_p_values(values: Floats, tosses: Floats, ties: TieCount = "mid") -> Floats:
    """Return how certainly each system (row) beats each other (column): the one-sided p-value of a paired permutation
    test on the items that both have. Small if the row's system is better; NaN if two share no item.

    `tosses` (draws, items) are zeros and ones: where 1, the two systems' outputs are exchanged. A draw whose difference
    equals the observed one counts half ("mid"), so that p[a, b] + p[b, a] = 1 and the order of systems does not matter,
    or fully ("strict"), as in mt-metrics-eval, where the earlier system of a pair is the row.
    """
    share = 0.5 if ties == "mid" else 1.0
    present = ~np.isnan(values)
    filled = np.where(present, values, 0.0)
    # A power of two, so that no sum overflows.
    filled = np.ldexp(filled, -np.frexp(np.abs(filled).max(initial=0.0))[1])
    counts = np.zeros((len(values), len(values)))
    observed = _differences(np.ones((1, values.shape[1])), filled, present)[0]
    size = np.abs(filled) @ present.T
    slack = _SLACK * (size + size.T)
    rows = max(1, _CHUNK // max(1, len(values) ** 2))
    for start in range(0, len(tosses), rows):
        gap = _differences(1.0 - 2.0 * tosses[start : start + rows], filled, present) - observed
        counts += (gap > slack).sum(axis=0) + share * (np.abs(gap) <= slack).sum(axis=0)
    shared = present.astype(np.float64) @ present.T.astype(np.float64) > 0
    return np.where(shared & ~np.eye(len(values), dtype=bool), counts / max(len(tosses), 1), np.nan)


def _differences(signs: Floats, filled: Floats, present: NDArray[np.bool_]) -> Floats:
    """Sum sign times difference over shared items: (draws, systems, systems)."""
    if present.all():
        sums = signs @ filled.T
        return sums[:, :, None] - sums[:, None, :]
    shared = np.stack([signs @ (row[:, None] * present.T) for row in filled], axis=1)
    differences: Floats = shared - shared.transpose(0, 2, 1)
    return differences
