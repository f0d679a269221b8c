"""Is one metric better than another, or is it luck? All pairs of metrics of one table.

auto          exchange what is resampled where the exchanged rows add up (macro averages over the very items or systems,
              Pearson's correlation of all outputs), else the paired bootstrap
permutation   paired permutation tests, by whole items, systems, or single outputs
bootstrap     the paired bootstrap, by Student's t with the spread of the resamples
sign          mt-metrics-eval's test of pairs of outputs as if they were independent, computed exactly
williams      Williams' test of two Pearson correlations
none          no tests

Two metrics are compared on the outputs that both scored. Their difference there, which is what a p-value is about, may
differ in size and even in sign from that of their figures, each of which is about all that its metric scored.
"""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import numpy as np

from metrist.errors import RunError
from metrist.evaluate.meta.dataset import taken
from metrist.evaluate.meta.estimates import CALIBRATED, Laid, Work
from metrist.evaluate.meta.results import Plan, Tests
from metrist.evaluate.meta.slices import group_codes
from metrist.stats import Floats
from metrist.stats.analytic_tests import pair_wins, sign_test, williams_of
from metrist.stats.bootstrap import bootstrap_gaps, bootstrap_p_values
from metrist.stats.grouping import estimate
from metrist.stats.permutation import PermutationTest, exchange_p_values, permutation_tests
from metrist.stats.samples import Pairs, Panel, batches, grouped
from metrist.stats.significance import adjust

_UNITS = {"items": "item", "systems": "system"}


class _Found(NamedTuple):
    """What the tests of some pairs of metrics say: by which test, the differences (first less second), and p."""

    how: str
    differences: Floats
    p: Floats


def check_test(plan: Plan, name: str) -> None:
    """Refuse a test that is not one of this measure under this grouping."""
    if plan.test == "sign":
        if name != CALIBRATED:
            raise RunError(f"the sign test is of pairwise accuracy with ties (acc_eq), not of {name}")
        if plan.group == "system-level":
            raise RunError(
                "the sign test is of pairs of outputs, and --group system-level compares the means of systems: "
                "try --test bootstrap"
            )
        if plan.group_average == "micro":
            raise RunError(
                "the sign test weighs groups alike, and --group-average micro weighs them by their pairs: "
                "try --group-average macro, or --test bootstrap"
            )
    if plan.test == "williams" and (name != "pearson" or plan.group != "none"):
        raise RunError("Williams' test is of Pearson correlations over all outputs: --measure pearson --group none")


def tests_between(work: Work, laid: Laid, values: Floats) -> Tests:
    """p-values of all pairs of metrics, as computed and adjusted for their number."""
    pairs = list(combinations(range(len(values)), 2))
    known = [pair for pair in pairs if not np.isnan(values[list(pair)]).any()]
    found = _found(work, laid, known) if known and work.plan.draws else _Found("no tests", *np.empty((2, 0)))
    tested = known if len(found.p) else []
    return Tests(
        aspect=work.aspect,
        measure=laid.measure,
        slice=laid.slice.name,
        metrics=tuple(metric.name for metric in work.metrics),
        values=values,
        differences=pair_table(len(values), tested, found.differences, -found.differences),
        raw=pair_table(len(values), tested, found.p, found.p),
        adjusted=pair_table(len(values), tested, *[adjust(found.p, work.plan.correction)] * 2),
        how=found.how,
    )


def pair_table(size: int, pairs: Pairs, there: Floats, back: Floats) -> Floats:
    """(size, size): what each pair has, in its own order and in the other; NaN elsewhere."""
    table = np.full((size, size), np.nan)
    first, second = np.array(pairs, dtype=np.intp).reshape(-1, 2).T
    table[first, second], table[second, first] = there, back
    return table


def _found(work: Work, laid: Laid, pairs: Pairs) -> _Found:
    plan, rng = work.plan, np.random.default_rng(work.plan.seed)
    match _kind(plan, laid):
        case "none":
            return _Found("no tests", *np.empty((2, 0)))
        case "sign":
            return _Found("exact sign test of pairs of outputs", *_signs(work, laid, pairs, rng))
        case "williams":
            p = np.array([_williams(laid.panel, a, b) for a, b in pairs])
            return _Found("Williams' test", _shared_differences(plan, laid, pairs), p)
        case "bootstrap":
            return _bootstrap(plan, laid, pairs, rng)
        case "exchange":
            tests = _permutation(plan, laid, pairs, rng)
            how = f"permutation of whole {plan.resample} (normal tails)"
            return _Found(how, _differences(tests), exchange_p_values(tests))
    tests = _permutation(plan, laid, pairs, rng)
    return _Found(f"permutation of {_drawn(plan.resample)}", _differences(tests), np.array([test.p for test in tests]))


def _kind(plan: Plan, laid: Laid) -> str:
    whole = isinstance(laid.grouping, str) and laid.grouping == _UNITS.get(plan.resample)
    if plan.test in ("auto", "permutation") and whole and plan.group_average == "macro":
        return "exchange"
    if plan.test == "auto":
        linear = laid.measure == "pearson" and isinstance(laid.grouping, str) and laid.grouping == "none"
        return "permutation" if linear else "bootstrap"
    return plan.test


def _bootstrap(plan: Plan, laid: Laid, pairs: Pairs, rng: np.random.Generator) -> _Found:
    gaps = bootstrap_gaps(
        laid.measures,
        laid.panel,
        pairs,
        laid.grouping,
        plan.group_average,
        over=plan.resample,
        draws=plan.draws,
        rng=rng,
    )
    how = f"paired bootstrap of {_drawn(plan.resample)} (Student's t)"
    return _Found(how, np.array([gap.value for gap in gaps]), bootstrap_p_values(gaps, plan.draws))


def _permutation(plan: Plan, laid: Laid, pairs: Pairs, rng: np.random.Generator) -> list[PermutationTest]:
    return permutation_tests(
        laid.measures,
        laid.panel,
        pairs,
        laid.grouping,
        plan.group_average,
        exchange=plan.resample,
        draws=plan.draws,
        rng=rng,
        alpha=plan.alpha,
    )


def _differences(tests: list[PermutationTest]) -> Floats:
    return np.array([test.difference for test in tests])


def _shared_differences(plan: Plan, laid: Laid, pairs: Pairs) -> Floats:
    """The difference of each pair's measures on the outputs that both scored."""
    found = np.full(len(pairs), np.nan)
    for batch in batches(laid.panel, pairs):
        groups = grouped(laid.grouping, batch.outputs)
        values = [
            estimate(laid.measures[metric], batch.panel.sample(place), groups, average=plan.group_average).values[0]
            for place, metric in enumerate(batch.metrics)
        ]
        found[batch.positions] = [values[first] - values[second] for first, second in batch.pairs]
    return found


def _signs(work: Work, laid: Laid, pairs: Pairs, rng: np.random.Generator) -> Floats:
    """(2, pairs): differences and p-values."""
    found = np.full((2, len(pairs)), np.nan)
    part = taken(work.judged, work.gold, work.gold, laid.outputs)
    groups = group_codes(work.judged, work.plan.group, part) if isinstance(laid.grouping, str) else laid.grouping
    for batch in batches(laid.panel, pairs):
        wins = pair_wins(batch.panel.human, batch.panel.metrics, laid.ties[batch.metrics], groups[batch.outputs])
        for position, (first, second) in zip(batch.positions, batch.pairs, strict=True):
            test = sign_test(wins, first, second, rng)
            found[:, position] = test.difference, test.p
    return found


def _williams(panel: Panel, first: int, second: int) -> float:
    scored = panel.take(panel.scored((first, second)), [first, second])
    return williams_of(scored.human, scored.metrics[0], scored.metrics[1]).p


def _drawn(what: str) -> str:
    return "items and systems" if what == "both" else what
