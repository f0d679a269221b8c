"""Test every pair of metrics of one table, and rank the metrics by the tests.

auto          exchange what is resampled where exchanged rows add up (macro averages over the very items or systems,
              Pearson's correlation of all outputs), else the paired bootstrap
permutation   paired permutation tests, by whole items, systems, or single outputs
bootstrap     the paired bootstrap, by Student's t with the spread of the resamples
sign          mt-metrics-eval's test, which treats pairs of outputs as independent, computed exactly
williams      Williams' test of two Pearson correlations over all outputs or systems (Graham and Baldwin 2014), or of
              correlations within groups, pooled over the groups
none          no tests

Two metrics are compared on the outputs that both scored, and where whole items or systems are exchanged, on those in
which the measure is defined for both (neither gives all outputs the same score). The difference that is tested may
therefore differ in size and even in sign from the difference of the metrics' figures, each of which uses all outputs
that its metric scored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from metrist.errors import RunError
from metrist.evaluate.meta.dataset import select_sample
from metrist.evaluate.meta.estimates import CALIBRATED, AspectData, SlicePanel
from metrist.evaluate.meta.results import NO_TESTS, Figure, Tests
from metrist.evaluate.meta.slices import group_codes
from metrist.evaluate.plans import MetaPlan
from metrist.stats import Floats, ties
from metrist.stats.analytic_tests import pair_wins, sign_test, williams_from_values
from metrist.stats.bootstrap import bootstrap_gaps, bootstrap_p_values
from metrist.stats.grouping import estimate, system_scores
from metrist.stats.permutation import exchange_p_values, permutation_tests
from metrist.stats.resampling import Alternative
from metrist.stats.samples import Pairs, batch_by_outputs, take_grouping
from metrist.stats.significance import adjust, clusters, marks

_UNITS = {"items": "item", "systems": "system"}


class PairResults(NamedTuple):
    """The tests of some pairs of metrics: the name of the test, differences (first minus second), and p-values.

    One-sided, `p` is that of the first being better and `reverse` that of the second; two-sided, there is no
    `reverse`. `reasons` says for a pair's position why it has no p-value. `draws` are those in which extreme ones were
    counted, 0 if p comes from a formula.
    """

    how: str
    differences: Floats
    p: Floats
    reverse: Floats | None = None
    reasons: Mapping[int, str] = MappingProxyType({})
    draws: int = 0


UNTESTED = PairResults(NO_TESTS, np.empty(0), np.empty(0))


def check_test(plan: MetaPlan, name: str) -> None:
    """Raise RunError for a test that does not fit the measure or the grouping."""
    if plan.test == "sign":
        if name != CALIBRATED:
            raise RunError(f"the sign test compares pairwise accuracies with ties (acc_eq), not {name}")
        if plan.group == "system-level":
            raise RunError(
                "the sign test uses pairs of outputs, and `group='system-level'` compares the means of systems: "
                "try `test='bootstrap'`"
            )
        if plan.group_average == "micro":
            raise RunError(
                "the sign test gives groups equal weight, and `group_average='micro'` weights them by their pairs: "
                "try `group_average='macro'`, or `test='bootstrap'`"
            )
    if plan.test == "williams" and name != "pearson":
        raise RunError(f"Williams' test compares Pearson correlations, not {name}: use `measures='pearson'`")
    if plan.test == "williams" and plan.group not in ("none", "system-level") and plan.group_average != "micro":
        raise RunError(
            f"Williams' test by {plan.group} compares correlations that are pooled over the groups, not their mean: "
            "`measures='pearson'`, `group_average='micro'` (`test='permutation'` tests the mean, `group='none'` all "
            "outputs)"
        )


def compare_metrics(data: AspectData, panel: SlicePanel, values: Floats) -> Tests:
    """Test all pairs of metrics that have a value."""
    pairs = [pair for pair in combinations(range(len(values)), 2) if not np.isnan(values[list(pair)]).any()]
    results = _test_pairs(data, panel, pairs) if pairs and data.plan.draws else UNTESTED
    names = [metric.name for metric in data.metrics]
    return make_tests(data.plan, (data.aspect, panel.measure, panel.slice.name), names, values, pairs, results)


def make_tests(
    plan: MetaPlan,
    key: tuple[str, str, str],
    metrics: Sequence[str],
    values: Floats,
    pairs: Pairs,
    results: PairResults,
) -> Tests:
    """Arrange the results of pairs as tables (metrics, metrics), and adjust p for their number; `key` is aspect,
    measure and slice."""
    first, second = np.array(pairs if len(results.p) else [], dtype=np.intp).reshape(-1, 2).T

    def table(upper: Floats, lower: Floats) -> Floats:
        cells = np.full((len(metrics), len(metrics)), np.nan)
        cells[first, second], cells[second, first] = upper, lower
        return cells

    reverse = results.p if results.reverse is None else results.reverse
    if results.reverse is None:
        adjusted = reverse_adjusted = adjust(results.p, plan.correction)
    else:  # Both directions are hypotheses of their own.
        both = adjust(np.concatenate([results.p, reverse]), plan.correction)
        adjusted, reverse_adjusted = both[: len(results.p)], both[len(results.p) :]
    return Tests(
        aspect=key[0],
        measure=key[1],
        slice=key[2],
        metrics=tuple(metrics),
        values=values,
        differences=table(results.differences, -results.differences),
        raw=table(results.p, reverse),
        adjusted=table(adjusted, reverse_adjusted),
        how=results.how,
        one_sided=results.reverse is not None,
        draws=results.draws,
        untested=tuple(
            f"{metrics[pairs[at][0]]} and {metrics[pairs[at][1]]}: {reason}" for at, reason in results.reasons.items()
        ),
    )


def rank_figures(plan: MetaPlan, figures: Sequence[Figure], tests: Tests) -> list[Figure]:
    """Add significance clusters, and the marks † and ‡ for the families in the plan.

    A family is all metrics whose names start alike.
    """
    tested = not np.isnan(tests.adjusted).all()
    ranks = clusters(tests.values, tests.adjusted, plan.alpha, tests.differences) * tested
    families = [next((family for family in plan.marked if name.startswith(family)), name) for name in tests.metrics]
    signs = marks(tests.values, tests.adjusted, families, plan.marked, plan.alpha, tests.differences)
    return [
        replace(figure, rank=int(rank), mark=mark) for figure, rank, mark in zip(figures, ranks, signs, strict=True)
    ]


def _test_pairs(data: AspectData, panel: SlicePanel, pairs: Pairs) -> PairResults:
    plan = data.plan
    settings = (panel.measures, panel.panel, pairs, panel.grouping, plan.group_average)
    match _test_kind(plan, panel):
        case "none":
            return UNTESTED
        case "sign":
            return _test_signs(data, panel, pairs)
        case "williams":
            return _test_williams(plan, panel, pairs)
        case "bootstrap":
            gaps = bootstrap_gaps(*settings, over=plan.resample, draws=plan.draws, rng=plan.rng())
            how = f"paired bootstrap of {plan.resample_name} (Student's t)"
            return PairResults(how, np.array([gap.value for gap in gaps]), bootstrap_p_values(gaps, plan.draws))
        case kind:
            adds_up = kind == "exchange" or _is_linear(panel)
            draws = plan.exchange_draws if adds_up else plan.draws
            tests = permutation_tests(*settings, exchange=plan.resample, draws=draws, rng=plan.rng(), alpha=plan.alpha)
            differences = np.array([test.difference for test in tests])
            if kind == "exchange":
                how = f"permutation of whole {plan.resample} (normal tails)"
                return PairResults(how, differences, exchange_p_values(tests), draws=draws)
            how = f"permutation of {plan.resample_name}"
            return PairResults(how, differences, np.array([test.p for test in tests]), draws=draws)


def _test_kind(plan: MetaPlan, panel: SlicePanel) -> str:
    if panel.panel.weight is not None and plan.test != "none":
        if plan.test not in ("auto", "bootstrap"):
            raise RunError(
                f"`test='{plan.test}'` has no form for sampling weights: try `test='bootstrap'`, or `weighted=False`"
            )
        return "bootstrap"
    whole_groups = isinstance(panel.grouping, str) and panel.grouping == _UNITS.get(plan.resample)
    if plan.test in ("auto", "permutation") and whole_groups and plan.group_average == "macro":
        return "exchange"
    if plan.test == "auto":
        return "permutation" if _is_linear(panel) else "bootstrap"
    return plan.test


def _is_linear(panel: SlicePanel) -> bool:
    """Whether single outputs that are exchanged add up."""
    return panel.measure == "pearson" and isinstance(panel.grouping, str) and panel.grouping == "none"


def _test_signs(data: AspectData, panel: SlicePanel, pairs: Pairs) -> PairResults:
    """Return the results of exact sign tests."""
    results, rng = np.full((3, len(pairs)), np.nan), data.plan.rng()
    alternative: Alternative = "greater" if data.plan.one_sided else "two-sided"
    selected = select_sample(data.dataset, data.gold, data.gold, panel.outputs)
    groups = panel.grouping
    if isinstance(groups, str):
        groups = group_codes(data.dataset, data.plan.group, selected)
    for batch in batch_by_outputs(panel.panel, pairs):
        metrics, ties = np.array(batch.panel.metrics), panel.ties[batch.metrics]
        wins = pair_wins(batch.panel.human, metrics, ties, groups[batch.outputs])
        for position, (first, second) in zip(batch.positions, batch.pairs, strict=True):
            test = sign_test(wins, first, second, rng, alternative)
            reverse = sign_test(wins, second, first, rng, alternative).p if data.plan.one_sided else math.nan
            results[:, position] = test.difference, test.p, reverse
    differences, p, reverse_p = results
    how = f"exact {'one-sided ' * data.plan.one_sided}sign test of pairs of outputs"
    return PairResults(how, differences, p, reverse_p if data.plan.one_sided else None)


def _test_williams(plan: MetaPlan, panel: SlicePanel, pairs: Pairs) -> PairResults:
    """Return the results of Williams' tests."""
    results = np.full((3, len(pairs)), np.nan)
    reasons: dict[int, str] = {}
    alternative: Alternative = "greater" if plan.one_sided else "two-sided"
    for batch in batch_by_outputs(panel.panel, pairs):
        grouping = take_grouping(panel.grouping, batch.outputs)
        samples = [batch.panel.sample(i) for i in range(len(batch.metrics))]
        values = [
            estimate(panel.measures[metric], sample, grouping, average=plan.group_average).values[0]
            for metric, sample in zip(batch.metrics, samples, strict=True)
        ]
        human, columns, groups = batch.panel.human, batch.panel.metrics, None
        if isinstance(grouping, str) and grouping == "system-level":
            scores = [system_scores(sample) for sample in samples]
            scored = np.logical_and.reduce([present[0] > 0 for _, _, present in scores])
            human, columns = scores[0][0][0][scored], [metric[0][scored] for _, metric, _ in scores]
        elif not isinstance(grouping, str) or grouping != "none":
            groups = ties.group_codes(samples[0], grouping)
        for position, (first, second) in zip(batch.positions, batch.pairs, strict=True):
            test = williams_from_values(human, columns[first], columns[second], alternative, groups)
            results[:, position] = values[first] - values[second], test.p, 1 - test.p
            if test.reason:
                reasons[position] = test.reason
    differences, p, reverse = results
    how = f"{'one-sided ' * plan.one_sided}Williams' test"
    if plan.group not in ("none", "system-level"):
        how += f" within {plan.group}s" if plan.group in ("item", "system") else f" within {plan.group}"
    return PairResults(how, differences, p, reverse if plan.one_sided else None, reasons)
