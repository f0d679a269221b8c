"""Does one metric agree with humans better than another? Paired permutation tests (Deutsch, Dror and Roth 2021).

Were two metrics interchangeable, exchanging their values by the toss of a coin would change nothing but chance. Values
are standardised first, for metrics live on different scales. What is exchanged together is what the finding shall hold
for: "items" (PERM-INPUTS: all outputs of an item), "systems" (PERM-SYSTEMS: all of a system), or "both" (PERM-BOTH, as
in mt-metrics-eval: each output by itself).

Wherever an exchange moves rows that add up, all pairs of metrics share one matrix product: Pearson's correlation over
all outputs, and macro averages over the very groups that are exchanged. Else the two metrics are laid side by side and
an exchange is a weighting of that doubled sample, zeros and ones: nothing is copied, and each column is sorted once.

There, a test stops early (Besag and Clifford 1991) once it has seen so many draws as extreme as what was observed that
it cannot become significant; p is then that number over the draws made, which is as valid as a p-value from all draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrist.errors import RunError, did_you_mean
from metrist.stats import Codes, Floats, resampling
from metrist.stats.grouping import estimate
from metrist.stats.measures import Measure
from metrist.stats.resampling import (
    Alternative,
    coin_tosses,
    count_extreme,
    exchanged_differences,
    p_values,
    pooled,
    slack_of,
)
from metrist.stats.samples import Average, Grouping, Pairs, Panel, Sample, batches, grouped, one_each
from metrist.stats.significance import normal_tail

Exchange = Literal["items", "systems", "both"]
EXCHANGES: tuple[Exchange, ...] = ("items", "systems", "both")
#: Draws looked at before a test is asked whether it may stop; where it stops does not depend on it.
_BLOCK = 128
#: How far beyond the bound of significance a test must be before it stops: leaves p with 10 % error at 1,000 draws.
_MARGIN = 2


class PermutationTest(NamedTuple):
    """The difference (first less second) on the `outputs` that both scored, its p-value, and the draws it took.

    Where exchanged rows add up, `spread` is the standard deviation of the differences after an exchange, and
    `differing` counts the rows by which the two metrics differ."""

    difference: float
    p: float
    draws: int
    outputs: int
    spread: float = math.nan
    differing: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    average: Average
    exchange: Exchange
    draws: int
    alternative: Alternative
    enough: int


def permutation_tests(
    measures: Measure | Sequence[Measure],
    panel: Panel,
    pairs: Pairs,
    grouping: Grouping | Codes = "none",
    average: Average = "macro",
    *,
    exchange: Exchange = "both",
    draws: int = 1000,
    rng: np.random.Generator,
    alternative: Alternative = "two-sided",
    alpha: float | None = 0.05,
) -> list[PermutationTest]:
    """Test each pair of metrics. The draws are common to all, so a pair's numbers do not depend on the others.

    A test that cannot reach `alpha` any more may stop early; None makes all draws for every pair. Whether p is at most
    alpha is the same either way. Metrics may have measures of their own only where whole groups are exchanged.
    """
    _check(exchange, draws)
    enough = draws + 1 if alpha is None else math.ceil(_MARGIN * alpha * (draws + 1))
    plan = _Plan(average=average, exchange=exchange, draws=draws, alternative=alternative, enough=enough)
    own = one_each(measures, panel)
    (source,) = rng.spawn(1)
    found: dict[int, PermutationTest] = {}
    for batch in batches(panel, pairs):
        groups, chosen = grouped(grouping, batch.outputs), [own[metric] for metric in batch.metrics]
        tests = _batch(plan, chosen, batch.panel, batch.pairs, groups, deepcopy(source))
        found.update(zip(batch.positions, tests, strict=True))
    return [found[position] for position in range(len(pairs))]


def _check(exchange: Exchange, draws: int) -> None:
    if exchange not in EXCHANGES:
        known = ", ".join(EXCHANGES)
        raise RunError(f"no exchange of {exchange!r}; known are {known}{did_you_mean(exchange, EXCHANGES)}")
    if draws < 1:
        raise RunError(f"draws must be at least 1, got {draws}")


def _batch(
    plan: _Plan,
    own: Sequence[Measure],
    panel: Panel,
    pairs: Pairs,
    grouping: Grouping | Codes,
    rng: np.random.Generator,
) -> list[PermutationTest]:
    """Pairs of metrics that have all scored every output of the panel."""
    units, unit_of = _units(panel, plan.exchange)
    outputs = len(panel.human)
    if units < 2:
        values = [estimate(m, panel.sample(i), grouping, average=plan.average).values[0] for i, m in enumerate(own)]
        return [PermutationTest(float(values[a] - values[b]), math.nan, 0, outputs) for a, b in pairs]
    if _moves_whole_groups(plan, grouping):
        return _linear(plan, _group_rows(own, panel, unit_of, units), _mean, pairs, outputs, rng)
    measure, panel = _shared(own), _standardised(panel)
    if isinstance(grouping, str) and grouping == "none" and measure.name == "pearson":
        return _linear(plan, _pearson_rows(panel, unit_of, units), _pearson_pool(panel.human), pairs, outputs, rng)
    return _sequential(plan, measure, panel, pairs, grouping, unit_of, units, rng)


def _linear(
    plan: _Plan, rows: Floats, pool: resampling.Pool, pairs: Pairs, outputs: int, rng: np.random.Generator
) -> list[PermutationTest]:
    return exchange_rows(rows, pool, pairs, draws=plan.draws, rng=rng, alternative=plan.alternative, outputs=outputs)


def _moves_whole_groups(plan: _Plan, grouping: Grouping | Codes) -> bool:
    same = {"items": "item", "systems": "system"}.get(plan.exchange)
    return isinstance(grouping, str) and grouping == same and plan.average == "macro"


def _shared(own: Sequence[Measure]) -> Measure:
    """The measure of all metrics, of which nothing may depend on a metric's scale."""
    for measure in own:
        if measure.name != own[0].name or "epsilon" in measure.name:
            raise RunError(
                f"{measure.name}: a tie threshold in a metric's own units does not survive the exchange of "
                "standardised values; exchange whole groups (items by item, systems by system, macro), or use the "
                "sign test of pairs (--test sign)"
            )
    return own[0]


def _units(panel: Panel, exchange: Exchange) -> tuple[int, Codes]:
    """How many coins are tossed, and which one decides about each output."""
    if exchange == "both":
        return len(panel.human), np.arange(len(panel.human))
    present, unit_of = np.unique(panel.item if exchange == "items" else panel.system, return_inverse=True)
    return len(present), unit_of.reshape(-1)


def _standardised(panel: Panel) -> Panel:
    if not panel.metrics.size:
        return panel
    # Brought to the size of 1 first: squares of very large or small values would not be finite, or not above 0.
    scaled = panel.metrics / np.maximum(np.abs(panel.metrics).max(axis=1, keepdims=True), np.finfo(np.float64).tiny)
    centred = scaled - scaled.mean(axis=1, keepdims=True)
    spread = np.sqrt((centred**2).mean(axis=1, keepdims=True))
    constant = (panel.metrics == panel.metrics[:, :1]).all(axis=1, keepdims=True)
    # A constant metric stays constant: rounding must not make an order of it.
    metrics = np.where(constant, 0.0, centred / np.where(constant, 1.0, spread))
    return Panel(human=panel.human, metrics=metrics, item=panel.item, system=panel.system)


# Where exchanged rows add up


def exchange_rows(
    rows: Floats,
    pool: resampling.Pool,
    pairs: Pairs,
    *,
    draws: int,
    rng: np.random.Generator,
    alternative: Alternative = "two-sided",
    outputs: int = 0,
) -> list[PermutationTest]:
    """Rows (metrics, units, k) change hands between the two metrics of each pair, unit by unit."""
    first, second = np.array(pairs, dtype=np.intp).reshape(-1, 2).T
    values = pooled(rows, pool)
    observed, slack = values[first] - values[second], slack_of(values[first], values[second])
    extreme, squares = np.zeros(len(pairs), dtype=np.intp), np.zeros(len(pairs))
    for null in exchanged_differences(rows, pairs, pool, draws, rng):
        extreme += count_extreme(null, observed, alternative, slack)
        # One after the other: the last digit of a sum would tell the size of the chunk.
        for square in np.nan_to_num(null) ** 2:
            squares += square
    p = p_values(extreme, draws, observed, rows.shape[1])
    spread = np.sqrt(squares / draws)
    differing = (rows[first] != rows[second]).any(axis=-1).sum(axis=1)
    return [
        PermutationTest(float(observed[i]), float(p[i]), draws, outputs, float(spread[i]), int(differing[i]))
        for i in range(len(pairs))
    ]


def _pearson_rows(panel: Panel, unit_of: Codes, units: int) -> Floats:
    """(metrics, units, 3): sums of z, z squared and z times the human value."""
    human = panel.human - panel.human.mean()
    columns = np.stack([panel.metrics, panel.metrics**2, panel.metrics * human], axis=-1)
    order = np.argsort(unit_of, kind="stable")
    starts = np.searchsorted(unit_of[order], np.arange(units))
    return np.add.reduceat(columns[:, order], starts, axis=1)


def _pearson_pool(human: Floats) -> resampling.Pool:
    centred = human - human.mean()
    outputs, human_sum, human_squares = len(human), float(centred.sum()), float((centred**2).sum())
    constant = bool((human == human[0]).all())

    def pool(sums: Floats) -> Floats:
        z, squares, products = np.moveaxis(sums, -1, 0)
        spread = squares - z * z / outputs
        # Standardised values have squares that sum to n: what is far below that is a constant, rounded.
        varies = (spread > 1e-9) & (not constant)
        product = products - z * human_sum / outputs
        return np.where(varies, product / np.sqrt(np.where(varies, spread, 1.0) * (human_squares or 1.0)), np.nan)

    return pool


def _group_rows(own: Sequence[Measure], panel: Panel, unit_of: Codes, units: int) -> Floats:
    """(metrics, groups, 2): a group's value and 1, or twice 0 where the measure is not defined in it."""
    order = np.argsort(unit_of, kind="stable")
    starts = np.searchsorted(unit_of[order], np.arange(units + 1))
    once = np.ones((1, len(order)))
    values = [
        measure.pool(measure.grouped_rows(panel.human[order], metric[order], once, starts))[0]
        for measure, metric in zip(own, panel.metrics, strict=True)
    ]
    known = ~np.isnan(values)
    return np.stack([np.where(known, values, 0.0), known.astype(np.float64)], axis=-1)


def _mean(sums: Floats) -> Floats:
    total, count = np.moveaxis(sums, -1, 0)
    return np.where(count > 0, total / np.maximum(count, 1.0), np.nan)


# Where each exchange must be measured anew


@dataclass(slots=True)
class _Race:
    """One pair of metrics on its way through the draws."""

    doubled: Sample
    observed: float
    slack: float
    extreme: int = 0
    made: int = 0
    stopped: bool = False

    def watch(self, null: Floats, plan: _Plan) -> None:
        """Count a block of draws, up to the one that is enough."""
        observed, slack = np.array([self.observed]), np.array([self.slack])
        reached = _reached(null, observed, plan.alternative, slack)
        total = self.extreme + np.cumsum(reached)
        self.stopped = bool(len(total) and total[-1] >= plan.enough)
        used = int(np.argmax(total >= plan.enough)) + 1 if self.stopped else len(null)
        self.made += used
        self.extreme = int(total[used - 1])

    def p(self) -> float:
        if math.isnan(self.observed):
            return math.nan
        return self.extreme / self.made if self.stopped else (self.extreme + 1) / (self.made + 1)


def _reached(null: Floats, observed: Floats, alternative: Alternative, slack: Floats) -> NDArray[np.intp]:
    """1 for each draw at least as extreme as what was observed, else 0."""
    return count_extreme(null[None, :], np.repeat(observed, len(null)), alternative, slack)


def _sequential(
    plan: _Plan,
    measure: Measure,
    panel: Panel,
    pairs: Pairs,
    grouping: Grouping | Codes,
    unit_of: Codes,
    units: int,
    rng: np.random.Generator,
) -> list[PermutationTest]:
    races = [_race(plan, measure, panel, pair, grouping) for pair in pairs]
    doubled = grouping if isinstance(grouping, str) else np.concatenate([grouping, grouping])
    rows = min(_BLOCK, max(1, resampling.CHUNK // (4 * len(panel.human))))
    for tosses in coin_tosses(units, plan.draws, rng, rows):
        running = [race for race in races if not race.stopped and not math.isnan(race.observed)]
        if not running:
            break
        weights = _exchanged(tosses.take(unit_of, axis=1))
        for race in running:
            values = estimate(measure, race.doubled, doubled, weights, plan.average).values
            race.watch(values[: len(tosses)] - values[len(tosses) :], plan)
    return [PermutationTest(race.observed, race.p(), race.made, len(panel.human)) for race in races]


def _race(plan: _Plan, measure: Measure, panel: Panel, pair: tuple[int, int], grouping: Grouping | Codes) -> _Race:
    first, second = (
        np.array([estimate(measure, panel.sample(metric), grouping, average=plan.average).values[0]]) for metric in pair
    )
    twice = Sample(
        human=np.concatenate([panel.human, panel.human]),
        metric=np.concatenate([panel.metrics[pair[0]], panel.metrics[pair[1]]]),
        item=np.concatenate([panel.item, panel.item]),
        system=np.concatenate([panel.system, panel.system]),
    )
    return _Race(twice, float(first[0] - second[0]), float(slack_of(first, second)[0]))


def _exchanged(swapped: Floats) -> Floats:
    """Weights (2 draws, 2 outputs) of the doubled sample: the first metric after the exchange, then the second."""
    kept = 1.0 - swapped
    return np.block([[kept, swapped], [swapped, kept]])


_FEW = 10


def exchange_p_values(tests: Sequence[PermutationTest]) -> Floats:
    """Two-sided p-values of exchanges of rows that add up."""
    return np.array([_exchange_p_value(test) for test in tests], dtype=np.float64)


def _exchange_p_value(test: PermutationTest) -> float:
    most = _FEW / (test.draws + 1)
    # What was not tested (NaN), or has no spread, stays as it was counted.
    if not test.p <= most or not test.spread > 0:
        return test.p
    tail = 2 * normal_tail(abs(test.difference) / test.spread)
    return min(max(tail, 2.0 ** (1 - test.differing)), most)
