"""The figures of one rated aspect: values, intervals and ranks on each slice, means over slices, the human ceiling; and
the tests between metrics that rank them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from types import MappingProxyType
from typing import Any, NamedTuple, cast, get_args

import numpy as np

from metrist.errors import RunError, SpecError
from metrist.evaluate.meta.dataset import MetricScores, Slice, group_codes, select_sample
from metrist.evaluate.meta.estimates import (
    CALIBRATED,
    AspectData,
    MeasuredSample,
    ResampledValue,
    Scorer,
    SlicePanel,
    average_values,
    make_scorer,
    measure_pool,
    measure_slice,
    resample_together,
)
from metrist.evaluate.meta.notes import data_notes, few_notes, system_notes
from metrist.evaluate.meta.results import HUMANS, MEAN, NO_TESTS, Figure, Tests
from metrist.evaluate.plans import MetaPlan
from metrist.spec import parse
from metrist.stats import Codes, Floats, ties
from metrist.stats.analytic_tests import pair_wins, sign_test, williams_from_values
from metrist.stats.estimation import (
    BootstrapInterval,
    bootstrap,
    bootstrap_gaps,
    bootstrap_p_values,
    estimate,
    system_scores,
)
from metrist.stats.gold import GOLDS
from metrist.stats.measures import mean_of_known
from metrist.stats.permutation import TieCount, exchange_p_values, permutation_tests, soft_pairwise_accuracy
from metrist.stats.resampling import Alternative
from metrist.stats.samples import Pairs, Sample, batch_by_outputs, take_grouping
from metrist.stats.significance import adjust, clusters, marks
from metrist.stats.tie_thresholds import calibrated_interval

#: The measure that says in which direction a metric orders outputs.
_ORDER = "kendall_b"
#: Measures that a tie lowers as much as an order against people.
_TIES_MISS = ("pair_accuracy", "darr_wmt17")
#: Soft pairwise accuracy compares systems and is computed from p-values, so it has no rows to resample.
SOFT = "spa"


def soft_ties(text: str) -> TieCount | None:
    """Return how `spa` or `spa(ties='strict')` counts ties of permutations; None for another measure."""
    spec = parse(text)
    if spec.name != SOFT:
        return None
    if unknown := spec.settings.keys() - {"ties"}:
        raise SpecError(f"{SOFT} has no setting {min(unknown)!r}", code="unknown_name")
    for known in get_args(TieCount):
        if spec.settings.get("ties", "mid") == known:
            return cast(TieCount, known)
    raise SpecError(f"{text}: expected ties='mid' or ties='strict', got {spec.settings['ties']!r}")


class RatingAspect(AspectData):
    """Evaluates metrics by the ratings of one aspect (see `preferences.PreferenceAspect` for preferences)."""

    @property
    def steps(self) -> int:
        """The steps of a slice that are reported: of each metric the tie threshold, if it has one, and the figure."""
        return 2 * len(self.metrics)

    def evaluate_slice(
        self, part: Slice, measure: str, report: Callable[[int], None]
    ) -> tuple[list[Figure], Tests | None]:
        """Return the figures of all metrics on one slice, ranked, the human ceiling, and the tests. `report` is called
        with the steps done."""
        plan = self.plan
        if soft_ties(measure):
            return [_soft_figure(self, part, metric, measure) for metric in self.metrics], None
        panel = self.panel(part, measure, report)
        intervals = bootstrap(
            panel.measures,
            panel.panel,
            panel.grouping,
            plan.group_average,
            over=plan.resample,
            draws=plan.draws,
            rng=plan.rng(),
            confidence=plan.confidence,
        )
        tests = compare_metrics(self, panel, np.array([interval.value for interval in intervals]))
        figures = []
        for number, interval in enumerate(intervals):
            figures.append(_metric_figure(self, panel, number, interval))
            report(len(self.metrics) + number + 1)
        figures = [_mark_against(self, part, figure) for figure in rank_figures(plan, figures, tests)]
        if scorers := self._raters():
            raters = [measure_slice(self, scorer, part, measure) for scorer in scorers]
            values = resample_together(self, raters, part.outputs)
            figures.append(_human_figure(self, measure, part.name, values, part.outputs))
        return figures, tests

    def average_slices(self, slices: Sequence[Slice], measure: str, figures: Sequence[Figure]) -> list[Figure]:
        """Average each metric, and the raters, over the slices of one column, whose figures are given.

        Macro: the mean of the slices' values. Micro: the groups of all slices in one pool; without groups, or with
        pooled pairs (`--group-average micro`), all their pairs in one pool. Outputs of different slices are never
        paired. Systems' means have no pool: micro is macro there.
        """
        if soft_ties(measure):
            return []
        outputs = np.unique(np.concatenate([part.outputs for part in slices]))
        name = f"{slices[0].column}: {self.plan.average} mean"
        rated = sum(int(np.isfinite(self.gold[part.outputs]).sum()) for part in slices)
        averages = []
        for metric in self.metrics:
            samples = samples_to_average(self, make_scorer(self, metric), slices, measure)
            mean = average_values(resample_together(self, samples, outputs))
            own = [figure for figure in figures if figure.metric == metric.name]
            baselines = [sample.baselines() for sample in samples]
            averages.append(figure_of_mean(own, mean, self, outputs, rated, baselines, slice=name))
        if scorers := self._raters():
            raters = [
                average_values(resample_together(self, samples_to_average(self, rater, slices, measure), outputs))
                for rater in scorers
            ]
            averages.append(_human_figure(self, measure, name, raters, outputs))
        return averages

    def notes(self, figures: Sequence[Figure]) -> list[str]:
        """What a reader must know about the ratings and scores of this aspect."""
        return [
            *self.chosen_slices.notes,
            *few_notes(self, self.slices),
            *system_notes(self, figures),
            *data_notes(self, figures),
            *self.dataset.notes,
        ]

    def _raters(self) -> list[Scorer]:
        """Each rater as if it were a metric, with the gold of the others; none if raters cannot be compared with each
        other: they are not named, or the gold is not made of all of them."""
        scorers: list[Scorer] = []
        if self.plan.gold not in GOLDS or not self.dataset.ratings[self.aspect].are_named():
            return scorers
        for rater in self.left_out:
            human, values = np.full((2, len(self.dataset)), np.nan)
            human[rater.outputs], values[rater.outputs] = rater.sample.human, rater.sample.metric
            scorers.append(Scorer(name=f"{HUMANS} {rater.rater}", human=human, values=values))
        return scorers


def _mark_against(data: AspectData, part: Slice, figure: Figure) -> Figure:
    """Mark a figure whose interval lies below what chance reaches. A calibrated accuracy (with ε) and measures that
    count ties as misses hide the order of outputs behind ties: there Kendall's τ-b under the same grouping shows it."""
    behind_ties = not math.isnan(figure.epsilon) or figure.measure in _TIES_MISS
    if behind_ties or data.is_calibrated(figure.measure):
        metric = next(metric for metric in data.metrics if metric.name == figure.metric)
        sample = measure_slice(data, make_scorer(data, metric), part, _ORDER)
        # Few metrics are below 0: only those are resampled.
        if data.plan.draws and sample.value() < 0:
            (order,) = resample_together(data, [sample], part.outputs)
            low, high, _ = order.limits(data, part.outputs)
            if high < 0:
                return replace(figure, against=f"{_ORDER} {order.value:.3f} [{low:.3f}, {high:.3f}]")
    if behind_ties or not figure.high < figure.chance:
        return figure
    chance = f", chance {figure.chance:.3f}" if figure.chance else ""
    return replace(figure, against=f"{figure.measure} {figure.value:.3f} [{figure.low:.3f}, {figure.high:.3f}]{chance}")


def average_figure(figures: Sequence[Figure], **values: object) -> Figure:
    """Return a metric's mean over slices from its figures on them; a threshold is kept if all slices share it."""
    shared = len({figure.epsilon for figure in figures}) == 1
    undefined = sum(math.isnan(figure.value) for figure in figures)
    mean = replace(
        figures[0],
        epsilon=figures[0].epsilon if shared else math.nan,
        rank=0,
        systems=0,
        mark="",
        against="",
        groups=len(figures) - undefined,
        undefined=undefined,
        reason="",
    )
    return replace(mean, **values)  # type: ignore[arg-type]


def figure_of_mean(
    figures: Sequence[Figure],
    mean: ResampledValue,
    data: AspectData,
    outputs: Codes,
    rated: float,
    baselines: Sequence[Any],
    **place: str,
) -> Figure:
    """Return the figure of a mean over a metric's figures, of whose `rated` outputs these were resampled. `baselines`
    are the chance and the share of ties of what is averaged."""
    low, high, reason = mean.limits(data, outputs)
    chance, all_ties = mean_of_known(np.array(baselines).T)
    return average_figure(
        figures,
        value=mean.value,
        low=low,
        high=high,
        n=mean.n,
        coverage=mean.n / rated if rated else math.nan,
        chance=float(chance),
        all_ties=float(all_ties),
        reason=reason,
        **place,
    )


def samples_to_average(data: AspectData, scorer: Scorer, slices: Sequence[Slice], measure: str) -> list[MeasuredSample]:
    """Return a sample for each slice, or the one pool of all."""
    if data.plan.average == "micro" and data.plan.group != "system-level":
        return [measure_pool(data, scorer, slices, measure)]
    return [measure_slice(data, scorer, part, measure) for part in slices]


def _metric_figure(data: AspectData, panel: SlicePanel, number: int, estimated: BootstrapInterval) -> Figure:
    metric = data.metrics[number]
    sample = measure_slice(data, make_scorer(data, metric), panel.slice, panel.measure)
    low, high = estimated.low, estimated.high
    if sample.thresholds is not None:
        low, high = calibrated_interval(
            estimated.value,
            low,
            high,
            optimism=sample.optimism(data.plan),
            units=data.count_units(sample.selected.outputs),
            confidence=data.plan.confidence,
        )
    chance, all_ties = sample.baselines()
    return Figure(
        metric=metric.name,
        aspect=data.aspect,
        measure=panel.measure,
        group=data.plan.group,
        slice=panel.slice.name,
        value=estimated.value,
        low=low,
        high=high,
        n=estimated.outputs,
        systems=_count_systems(sample.sample) if data.plan.group == "system-level" else 0,
        coverage=estimated.outputs / len(panel.outputs) if len(panel.outputs) else math.nan,
        epsilon=float(panel.epsilons[number]),
        chance=chance,
        all_ties=all_ties,
        groups=estimated.groups,
        undefined=estimated.undefined,
        reason=estimated.reason,
    )


def _count_systems(sample: Sample) -> int:
    return int(np.count_nonzero(system_scores(sample)[2])) if len(sample) else 0


def _human_figure(
    data: AspectData, measure: str, slice_name: str, raters: Sequence[ResampledValue], outputs: Codes
) -> Figure:
    """Return the mean over raters, each compared with the gold of the others, if these outputs were resampled."""
    mean = average_values(raters)
    low, high, reason = mean.limits(data, outputs)
    undefined = sum(math.isnan(rater.value) for rater in raters)
    return Figure(
        metric=HUMANS,
        aspect=data.aspect,
        measure=measure,
        group=data.plan.group,
        slice=slice_name,
        value=mean.value,
        low=low,
        high=high,
        n=mean.n,
        groups=len(raters) - undefined,
        undefined=undefined,
        reason=reason,
    )


def _soft_figure(data: AspectData, part: Slice, metric: MetricScores, name: str) -> Figure:
    if data.dataset.weight is not None:
        raise RunError(f"{name} has no form for sampling weights: use `weighted=False`", code="conflict")
    selected = select_sample(data.dataset, data.gold, metric.signed(), part.outputs)
    draws = data.plan.draws or 1000
    sample, counted = selected.sample, soft_ties(name) or "mid"
    soft = soft_pairwise_accuracy(sample, draws, data.plan.rng(), counted) if len(sample) else None
    return Figure(
        metric=metric.name,
        aspect=data.aspect,
        measure=name,
        group="system-level",
        slice=part.name,
        value=soft.value if soft else math.nan,
        n=len(selected.outputs),
        systems=_count_systems(sample),
        coverage=selected.coverage,
        chance=soft.chance if soft else math.nan,
    )


# ---- The mean of each metric over the aspects


def average_aspects(
    aspects: Sequence[RatingAspect], measures: Sequence[str], figures: Sequence[Figure]
) -> list[Figure]:
    """Average each metric over the aspects, on each slice and on the mean over a column's slices, whose figures are
    given. Intervals come from common resamples of the outputs of all aspects. An aspect without the slice, or
    without a value there, is left out and counted."""
    if len(aspects) < 2:
        raise RunError("`mean_over='aspect'` needs two aspects: name more with `aspects`", code="too_little_data")
    data = aspects[0]
    averages = []
    for measure in [measure for measure in measures if not soft_ties(measure)]:
        for name in dict.fromkeys(figure.slice for figure in figures if figure.measure == measure):
            for metric in data.metrics:
                samples, outputs = _collect_samples(aspects, metric.name, measure, name)
                values = iter(resample_together(data, [sample for own in samples for sample in own], outputs))
                mean = average_values([average_values([next(values) for _ in own]) for own in samples])
                baselines = [mean_of_known(np.array([sample.baselines() for sample in own]).T) for own in samples]
                same = [f for f in figures if (f.metric, f.measure, f.slice) == (metric.name, measure, name)]
                rated = sum(figure.n / figure.coverage for figure in same if figure.coverage > 0)
                averages.append(figure_of_mean(same, mean, data, outputs, rated, baselines, aspect=MEAN))
    return averages


def _collect_samples(
    aspects: Sequence[RatingAspect], metric: str, measure: str, name: str
) -> tuple[list[list[MeasuredSample]], Codes]:
    """Return each aspect's samples of a metric on a slice, or on all slices of a column, and the outputs of all."""
    samples, members = [], []
    for data in aspects:
        scorer = next(make_scorer(data, own) for own in data.metrics if own.name == metric)
        by_column = [part for part in data.slices if name == f"{part.column}: {data.plan.average} mean"]
        parts = by_column or [part for part in data.slices if part.name == name]
        members += [part.outputs for part in parts]
        if parts:
            averaged = samples_to_average(data, scorer, parts, measure)
            samples.append(averaged if by_column else [measure_slice(data, scorer, parts[0], measure)])
    return samples, np.unique(np.concatenate(members))


# ---- Tests of every pair of metrics of one table, and ranks by them
#
# auto          exchange what is resampled where exchanged rows add up (macro averages over the very items or systems,
#               Pearson's correlation of all outputs), else the paired bootstrap
# permutation   paired permutation tests, by whole items, systems, or single outputs
# bootstrap     the paired bootstrap, by Student's t with the spread of the resamples
# sign          mt-metrics-eval's test, which treats pairs of outputs as independent, computed exactly
# williams      Williams' test of two Pearson correlations over all outputs or systems (Graham and Baldwin 2014), or of
#               correlations within groups, pooled over the groups
# none          no tests
#
# Two metrics are compared on the outputs that both scored, and where whole items or systems are exchanged, on those in
# which the measure is defined for both (neither gives all outputs the same score). The difference that is tested may
# therefore differ in size and even in sign from the difference of the metrics' figures, each of which uses all outputs
# that its metric scored.


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
    problem = ""
    if plan.test == "sign":
        if name != CALIBRATED:
            problem = f"compares pairwise accuracies with ties (acc_eq), not {name}"
        elif plan.group == "system-level":
            problem = "uses pairs of outputs, not the scores of systems: use `test='bootstrap'`"
        elif plan.group_average == "micro":
            problem = "gives groups equal weight: use `group_average='macro'` or `test='bootstrap'`"
    elif plan.test == "williams":
        if name != "pearson":
            problem = f"compares Pearson correlations, not {name}: use `measures='pearson'`"
        elif plan.group not in ("none", "system-level") and plan.group_average != "micro":
            problem = (
                f"by {plan.group} compares correlations that are pooled over the groups, not their mean: use "
                "`group_average='micro'`, or `test='permutation'` for the mean"
            )
    if problem:
        raise RunError(f"`test='{plan.test}'` {problem}", code="conflict")


def compare_metrics(data: AspectData, panel: SlicePanel, values: Floats) -> Tests:
    """Test all pairs of metrics that have a value."""
    pairs = [pair for pair in combinations(range(len(values)), 2) if not np.isnan(values[list(pair)]).any()]
    results = _test_pairs(data, panel, pairs) if pairs and data.plan.draws else UNTESTED
    names = [metric.name for metric in data.metrics]
    return make_tests(data.plan, (data.aspect, panel.measure, panel.slice.name), names, values, pairs, results)


def _test_pairs(data: AspectData, panel: SlicePanel, pairs: Pairs) -> PairResults:
    plan = data.plan
    settings = (panel.measures, panel.panel, pairs, panel.grouping, plan.group_average)
    match _choose_test(plan, panel):
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


def _choose_test(plan: MetaPlan, panel: SlicePanel) -> str:
    if panel.panel.weight is not None and plan.test != "none":
        if plan.test not in ("auto", "bootstrap"):
            raise RunError(
                f"`test='{plan.test}'` has no form for sampling weights: use `test='bootstrap'` or `weighted=False`",
                code="conflict",
            )
        return "bootstrap"
    whole_groups = isinstance(panel.grouping, str) and panel.grouping == _UNITS.get(plan.resample)
    if plan.test in ("auto", "permutation") and whole_groups and plan.group_average == "macro":
        return "exchange"
    if plan.test == "auto":
        return "permutation" if _is_linear(panel) else "bootstrap"
    return plan.test


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
        metrics = np.array(batch.panel.metrics)
        wins = pair_wins(batch.panel.human, metrics, panel.ties[batch.metrics], groups[batch.outputs])
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
            human = scores[0][0][0][scored]
            columns = [metric[0][scored] for _, metric, _ in scores]
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
