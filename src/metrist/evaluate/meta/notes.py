"""What a reader of the figures must know: how they were made, what was left out, what to be wary of, and what to use.

The advice names a metric for each slice by these rules:

* If guessing, or calling everything a tie, does as well as the best metric, no metric can be trusted on the slice.
* If the best metric stays below a floor (.6 for accuracies, .3 for correlations), no metric reaches it.
* Two metrics are on a par if the test between them, on the outputs that both scored, finds no difference, and their
  intervals overlap: on few items no test finds any. A metric that a test ranks below another is not the best, even if
  its value (on other outputs) is the largest.
* Of the metrics on a par with the best that are reliably better than guessing, the fastest is named, with what it
  saves, if runs recorded time and cost.
* A metric that runs against people (see `Figure.against`) is named as not to be used.
* A slice of fewer than 30 groups (items, for example) is called small.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from metrist.errors import agree, format_count
from metrist.evaluate.meta.dataset import JudgedDataset, MetricScores, Slice
from metrist.evaluate.meta.estimates import CALIBRATED, AspectData
from metrist.evaluate.meta.join import suggests_lower_is_better
from metrist.evaluate.meta.results import HUMANS, MEAN, NO_TESTS, Figure, MetaEvaluation, Tests
from metrist.evaluate.plans import MetaPlan
from metrist.evaluate.selection import list_some
from metrist.io.fields import SAMPLING_WEIGHT
from metrist.report.tables import Number, PValue, Table, format_number, name_columns
from metrist.stats.estimation import FEW_UNITS
from metrist.stats.significance import wins

#: With fewer systems, their order says little.
FEW_SYSTEMS = 8
#: If calling everything a tie is right this often, accuracies say little about a metric.
_SKEWED = 0.75
_MAX_LISTED = 5
_MAX_THRESHOLDS = 30
_CORRECTIONS = {
    "holm": "Holm-corrected",
    "benjamini-hochberg": "Benjamini-Hochberg-corrected",
    "none": "not corrected",
}


def plan_notes(
    plan: MetaPlan, figures: Sequence[Figure], tests: Sequence[Tests], epsilon_column: str = ""
) -> list[str]:
    """Explain how intervals, thresholds and ranks were computed; thresholds are best for the slices of a column."""
    notes = []
    if any(not math.isnan(figure.low) for figure in figures):
        notes.append(
            f"{plan.confidence:.0%} intervals: {plan.draws:,} bootstrap resamples of {plan.resample_name}, "
            f"seed {plan.seed}."
        )
    calibrated = [f for f in figures if f.measure == CALIBRATED and f.group != "system-level"]
    # Stored choices between two outputs have no threshold.
    names = dict.fromkeys(f.metric for f in calibrated if f.group != "pairs" or not math.isnan(f.epsilon))
    given = [name for name in names if name in plan.epsilon]
    chosen = [name for name in names if name not in plan.epsilon]
    if given:
        notes.append(f"ε of {list_some(given)}: given." if chosen else "ε: given.")
    if chosen:
        notes.append(f"ε{f' of {list_some(chosen)}' if given else ''}: {_describe_choice(plan, epsilon_column)}")
    if any(figure.measure.startswith("spa") for figure in figures):
        notes.append("spa is computed from p-values: it has no interval, no test and no mean over slices.")
    reasons: dict[str, list[str]] = {}
    several = len({figure.slice for figure in figures}) > 1
    for figure in figures:
        if figure.reason:
            place = f" ({figure.slice})" if several else ""
            reasons.setdefault(figure.reason, []).append(f"{figure.metric} {figure.measure}{place}")
    notes += [f"No interval for {list_some(names)}: {reason}." for reason, names in list(reasons.items())[:_MAX_LISTED]]
    methods = Counter(
        f"{table.how}, {table.draws:,} draws" if table.draws else table.how for table in tests if table.how != NO_TESTS
    )
    if methods:
        notes.append(
            f"Rank: significance clusters at {plan.alpha:g}; {' or '.join(methods)}, "
            f"{_CORRECTIONS[plan.correction]} over all {'ordered ' * plan.one_sided}pairs of metrics."
        )
    untested = list(dict.fromkeys(text for table in tests for text in table.untested))
    if untested:
        notes.append(f"Not tested, because the test is undefined: {list_some(untested)}.")
    notes += _draws_notes(plan, tests)
    if any(figure.mark for figure in figures):
        notes.append("†: significantly better than every metric of another family; ‡: than every other metric.")
    if any(figure.metric == HUMANS for figure in figures):
        notes.append(f"{HUMANS}: each rater compared with the gold of the others; the mean over raters.")
    return notes


def _describe_choice(plan: MetaPlan, column: str) -> str:
    """Say on what thresholds were chosen."""
    best = f", best for the mean over {column}" if column else ""
    match plan.epsilon_over:
        case "all":
            what = f"one per metric{best}, on" if column else "the metric's best tie threshold, chosen on"
            return f"{what} the same outputs: accuracies are a little too high, intervals account for it."
        case "slice":
            return (
                "the metric's best tie threshold on each slice, chosen on the same outputs: accuracies are too "
                "high, intervals account for it."
            )
        case "crossfit":
            return f"chosen on other items than those it is evaluated on (5 folds){best}."
    return f"each metric's best tie threshold per {plan.epsilon_over}{best}."


def _draws_notes(plan: MetaPlan, tests: Sequence[Tests]) -> list[str]:
    """Say where there are too few draws, and name the pairs whose p-value other draws could move across alpha."""
    notes, close = [], []
    for table in tests:
        pairs = len(table.metrics) * (len(table.metrics) - 1) // 2
        # Exchanges of whole units extrapolate beyond their draws by the draws' own spread (see stats.permutation).
        counted = table.draws and "whole" not in table.how
        if counted and plan.correction == "holm" and pairs / (table.draws + 1) > plan.alpha:
            notes.append(
                f"With {pairs:,} pairs of metrics, {table.draws:,} draws cannot reach {plan.alpha:g}: use more draws."
            )
        for i, j in zip(*np.triu_indices(len(table.metrics), 1), strict=True) if table.draws else ():
            p, adjusted = table.raw[i, j], table.adjusted[i, j]
            if p > 0:
                error = adjusted / p * math.sqrt(p * (1 - p) / table.draws)
                if abs(adjusted - plan.alpha) < 2 * error:
                    place = "" if table.slice == "all" else f", {table.slice}"
                    close.append(f"{table.metrics[i]} and {table.metrics[j]} ({PValue(float(adjusted))}{place})")
    if close:
        listed = list_some(close, noun="pairs")
        notes.append(f"Near {plan.alpha:g}: {listed}. Another seed could decide otherwise: use more draws.")
    return notes


def weight_notes(dataset: JudgedDataset, plan: MetaPlan) -> list[str]:
    """Say that outputs or pairs count by their sampling weights."""
    if plan.preferences:
        weights = [choices.weight for choices in dataset.preferences.values() if choices.weight is not None]
    else:
        weights = [] if dataset.weight is None else [dataset.weight]
    if not weights:
        return []
    ratio = max(float(weight.max() / weight.min()) for weight in weights)
    what = "Pairs" if plan.preferences else "Outputs"
    return [
        f"{what} count by their {SAMPLING_WEIGHT}, up to {ratio:.1f} times each other; `weighted=False`: all alike."
    ]


def opposition_notes(
    figures: Sequence[Figure], metrics: Sequence[MetricScores], reversed_aspects: Collection[str] = ()
) -> list[str]:
    """Warn about metrics that run against people, with the evidence, and how to reverse one whose direction is not
    known, or a rating that all of them run against."""
    assumed = {metric.name for metric in metrics if metric.higher_is_better is None}
    evidence: dict[str, list[str]] = {}
    for figure in figures:
        if figure.against:
            place = "" if figure.slice == "all" else f" on {figure.slice}"
            evidence.setdefault(figure.metric, []).append(f"{figure.aspect}{place}: {figure.against}")
    notes = []
    for metric, places in list(evidence.items())[:_MAX_LISTED]:
        reverse = f", or reverse it if lower is better: `lower_is_better={[metric]}`" if metric in assumed else ""
        notes.append(
            f"Warning: {metric} runs against people (↓): {list_some(places)}. Do not use it on such data{reverse}."
        )
    if rest := list(evidence)[_MAX_LISTED:]:
        notes.append(f"Warning: {len(rest)} more metrics run against people (↓): {list_some(rest)}.")
    for aspect in dict.fromkeys(figure.aspect for figure in figures):
        own = [f for f in figures if f.aspect == aspect and f.slice == "all" and f.metric != HUMANS]
        if len(own) > 1 and all(figure.against for figure in own) and aspect not in reversed_aspects:
            notes.append(
                f"Warning: all metrics run against {aspect}. If lower {aspect} is better: `lower_is_better={[aspect]}`."
            )
    return notes


def reversal_notes(tests: Sequence[Tests], alpha: float) -> list[str]:
    """List pairs of metrics where the one with the smaller figure is significantly better on their shared outputs."""
    reversals = []
    for table in tests:
        better = wins(table.values, table.adjusted, alpha, table.differences)
        with np.errstate(invalid="ignore"):
            reversed_order = (table.values[:, None] < table.values[None, :]) & better
        for first, second in np.argwhere(reversed_order):
            reversals.append(f"{table.metrics[first]} over {table.metrics[second]} ({table.slice})")
    if not reversals:
        return []
    return [f"Ranks use the outputs that both metrics scored. There the order is reversed for {list_some(reversals)}."]


def few_notes(data: AspectData, slices: Sequence[Slice]) -> list[str]:
    """Warn about slices with so few items or systems to resample that intervals and tests are rough."""
    codes = {"items": data.dataset.items.codes, "systems": data.dataset.systems.codes}
    resampled = [unit for unit in codes if data.plan.resample in (unit, "both")]
    counts = []
    for part in slices:
        rated = part.outputs[np.isfinite(data.gold[part.outputs])]
        counts.append((*min((len(np.unique(codes[unit][rated])), unit) for unit in resampled), part.name))
    return few_units_notes(data.plan, counts)


def few_units_notes(plan: MetaPlan, counts: Sequence[tuple[int, str, str]]) -> list[str]:
    """Warn about too few resampled units: their count, "items" or "systems", and where."""
    few = [f"{n} {unit if n != 1 else unit[:-1]} ({place})" for n, unit, place in counts if n < FEW_UNITS]
    if not few or not plan.draws:
        return []
    return [
        f"Warning: resampled from only {list_some(few)}: with fewer than {FEW_UNITS}, intervals are too narrow and "
        "tests have little power."
    ]


def system_notes(data: AspectData, figures: Sequence[Figure]) -> list[str]:
    """Say what the scores of systems are, and warn if they are few."""
    compared = [figure for figure in figures if figure.systems]
    if not compared:
        return []
    notes = []
    few = dict.fromkeys(f"{format_count(f.systems, 'system')} ({f.slice})" for f in compared if f.systems < FEW_SYSTEMS)
    if few:
        notes.append(
            f"Warning: only {list_some(few)}: agreement between so few scores says little, and intervals over "
            "items do not show it."
        )
    pooled = [metric.name for metric in data.metrics if data.corpus(metric)]
    means = [metric.name for metric in data.metrics if not data.corpus(metric)]
    if pooled:
        others = f"; means of output scores for {list_some(means)}" if means else ""
        notes.append(f"System scores: corpus scores, as `metrist score` pools them, for {list_some(pooled)}{others}.")
    elif any(metric.corpus for metric in data.metrics) and data.plan.group == "system-level":
        notes.append("System scores: means of output scores, also for metrics that `metrist score` pools.")
    if any(metric.corpus for metric in data.metrics) and any(f.measure.startswith("spa") for f in compared):
        notes.append("spa exchanges the scores of outputs, also of metrics that `metrist score` pools.")
    return notes


def epsilon_notes(data: AspectData) -> list[str]:
    """List the thresholds of each metric where it has several."""
    over, parts = data.plan.epsilon_over, [part for part in data.slices if part.column]
    if over == "all" or CALIBRATED not in data.plan.measures or not data.is_calibrated(CALIBRATED):
        return []
    listed = []
    for metric in data.metrics:
        by_slice = [data.thresholds(metric.name, data.gold, metric.signed(), part) for part in parts or data.slices]
        if over == "slice":
            named = {part.name: own.epsilon[0] for part, own in zip(parts, by_slice, strict=False)}
        else:
            named = {name: by_slice[0].epsilon[code] for code, name in data.part_names().items()}
        if len(named) > 1:
            values = [f"{name} {format_number(float(epsilon), 4)}" for name, epsilon in named.items()]
            listed.append(f"{metric.name} {list_some(values, _MAX_THRESHOLDS)}")
    return [f"ε for {data.aspect} by {'fold' if over == 'crossfit' else over}: {'; '.join(listed)}."] if listed else []


def data_notes(data: AspectData, figures: Sequence[Figure]) -> list[str]:
    """Say which outputs are not rated, and warn if ratings are nearly constant, or a measure is undefined."""
    notes = []
    values = data.gold[data.outputs]
    rated = values[np.isfinite(values)]
    if unrated := len(values) - len(rated):
        notes.append(
            f"{unrated:,} of {format_count(len(values), 'output')} {agree(unrated, 'has', 'have')} no {data.aspect} "
            f"rating and {agree(unrated, 'is', 'are')} left out."
        )
    if data.plan.epsilon_over != "slice":  # There the rows show them.
        notes += epsilon_notes(data)
    distinct, counts = np.unique(rated, return_counts=True)
    if len(distinct) == 1:
        notes.append(f"Warning: humans give all outputs the same {data.aspect}, {distinct[0]:g}.")
    elif counts.max() >= 0.9 * len(rated):
        notes.append(
            f"Warning: {data.aspect} is nearly constant: {counts.max() / len(rated):.0%} of the outputs have "
            f"{distinct[np.argmax(counts)]:g}."
        )
    ties = {f.slice: f"{f.slice} ({f.all_ties:.1%})" for f in figures if f.all_ties >= _SKEWED and f.metric != HUMANS}
    if ties:
        notes.append(
            f"Warning: calling every pair a tie is right for most pairs on {list_some(ties.values())}: compare "
            "accuracies with that."
        )
    undefined = []
    for figure in figures:
        parts = "slices" if figure.slice.endswith(" mean") else "groups"
        # Micro averages pool these groups with the others.
        left_out = (data.plan.average if parts == "slices" else data.plan.group_average) == "macro"
        if figure.undefined and left_out and figure.metric != HUMANS and figure.group != "system-level":
            total = figure.undefined + figure.groups
            undefined.append(
                f"{figure.measure} in {figure.undefined} of {total} {parts} ({figure.slice}, {figure.metric})"
            )
    if undefined:
        notes.append(
            f"Undefined (one output, or the same value for all), and left out of the mean: {list_some(undefined)}."
        )
    return notes


def direction_notes(metrics: Sequence[MetricScores]) -> list[str]:
    """Say for which metrics "higher is better" is assumed, and where a name suggests the opposite."""
    assumed = {metric.name for metric in metrics if metric.higher_is_better is None}
    notes = []
    if assumed:
        notes.append(
            f"Higher is assumed to be better for {format_count(len(assumed), 'metric')} without a stated "
            "direction (`lower_is_better` reverses one)."
        )
    suspicious = sorted(name for name in assumed if suggests_lower_is_better(name))
    if suspicious:
        listed = ", ".join(suspicious[:_MAX_LISTED])
        notes.append(f"The name suggests that lower is better: {listed}. If so: `lower_is_better={suspicious[:1]}`.")
    return notes


# ---- Advice

_ACCURACIES = ("acc_eq", "pair_accuracy", "concordance", "accuracy", "f1", "spa")
_ACCURACY_FLOOR, _CORRELATION_FLOOR = 0.6, 0.3
_SMALL_SLICE = 30
_MAX_NAMED = 4


@dataclass(frozen=True, slots=True)
class FigureGroup:
    """The figures of one aspect, measure and slice."""

    key: tuple[str, str, str]
    metrics: Sequence[Figure]
    human: Figure | None
    tests: Tests | None

    @property
    def best(self) -> Figure | None:
        """The largest value of those that no test ranks below others; without tests, of all."""
        return min(self.metrics, key=lambda figure: (figure.rank or math.inf, -figure.value), default=None)

    def find_equals(self, alpha: float) -> list[Figure]:
        """The metrics on a par with the best, from the largest value down."""
        best, tests = self.best, self.tests
        if best is None or tests is None or best.metric not in tests.metrics:
            return []
        equals = [
            figure
            for figure in self.metrics
            if figure is not best
            and tests.compare(best.metric, figure.metric)[1] > alpha
            # Comparisons with NaN are false: without intervals, the test decides alone.
            and not (figure.high < best.low or best.high < figure.low)
        ]
        return sorted(equals, key=lambda figure: -figure.value)


def group_figures(evaluation: MetaEvaluation) -> list[FigureGroup]:
    """Return the figures by aspect, measure and slice, without means over slices or aspects."""
    tests = {table.key: table for table in evaluation.tests}
    groups = []
    own = [f for f in evaluation.figures if not f.slice.endswith(" mean") and f.aspect != MEAN]
    for key in dict.fromkeys(figure.key for figure in own):
        figures = [figure for figure in evaluation.figures if figure.key == key]
        metrics = [figure for figure in figures if figure.metric != HUMANS and not math.isnan(figure.value)]
        human = next((figure for figure in figures if figure.metric == HUMANS), None)
        groups.append(FigureGroup(key, metrics, human, tests.get(key)))
    return groups


def advice(evaluation: MetaEvaluation) -> list[str]:
    """Return the advice for each aspect, measure and slice, a sentence or more each."""
    groups = group_figures(evaluation)
    several = len({group.key[:2] for group in groups}) > 1
    return [(f"{', '.join(group.key[:2])}: " if several else "") + _advise(evaluation, group) for group in groups]


def advice_tables(evaluation: MetaEvaluation) -> list[Table]:
    """Return the best metric of each aspect, measure and slice, with the advice as notes."""
    rows = [
        [*group.key, group.best.metric if group.best else None, Number(group.best.value if group.best else math.nan)]
        for group in group_figures(evaluation)
    ]
    head = name_columns("aspect", "measure", "slice", "best metric", right=["value"])
    return [Table(title="which metric to trust", columns=head, rows=rows, notes=advice(evaluation))]


def _advise(evaluation: MetaEvaluation, group: FigureGroup) -> str:
    place = "On all outputs" if group.key[2] == "all" else f"On {group.key[2]}"
    best = group.best
    if best is None:
        return f"{place} the measure is undefined for every metric."
    value = format_number(best.value, 3)
    name, baseline = best.baseline
    floor = _ACCURACY_FLOOR if best.measure.partition("(")[0] in _ACCURACIES else _CORRELATION_FLOOR
    if not _is_reliable(best):
        sentences = (
            f"{place} no metric is reliably better than {name} ({format_number(baseline, 3)}); the best is "
            f"{best.metric} with {value}."
        )
    elif round(best.value, 3) < floor:  # As it is shown.
        least = format_number(floor, 1).lstrip("0")
        sentences = f"{place} no metric reaches {least}: the best is {best.metric} with {value}."
    else:
        sentences = f"{place} {best.metric} is best with {value}."
    sentences += _name_equals(evaluation, best, group)
    if group.human is not None and not math.isnan(group.human.value):
        order = "above" if best.value >= group.human.value else "below"
        human = format_number(group.human.value, 3)
        sentences += f" One rater against the others reaches {human}: the best metric is {order} that."
    if against := [figure.metric for figure in group.metrics if figure.against]:
        runs = "they run" if len(against) > 1 else "it runs"
        sentences += f" Do not use {list_some(against, _MAX_NAMED)}: {runs} against people."
    if 0 < best.groups < _SMALL_SLICE and best.group == "item":
        sentences += f" The slice is small ({format_count(best.groups, 'group')})."
    return sentences


def _is_reliable(figure: Figure) -> bool:
    """Whether a metric is better than guessing, and than calling everything a tie, by all of its interval."""
    return not (figure.value if math.isnan(figure.low) else figure.low) <= figure.baseline[1]


def _name_equals(evaluation: MetaEvaluation, best: Figure, group: FigureGroup) -> str:
    """Name the metrics that nothing distinguishes from the best, or say that it is better than all others."""
    tests, alpha = group.tests, evaluation.plan.alpha
    if tests is None or np.isnan(tests.adjusted).all():
        return ""
    compared = {f.metric: tests.compare(best.metric, f.metric) for f in group.metrics if f is not best}
    known = {metric: difference for metric, (difference, p) in compared.items() if not math.isnan(p)}
    different = {metric: difference for metric, difference in known.items() if compared[metric][1] <= alpha}
    better = [metric for metric, difference in different.items() if difference <= 0]
    sentences = ""
    if equals := group.find_equals(alpha):
        quick = [best, *filter(_is_reliable, equals)]
        seconds = [evaluation.seconds_per_output(figure.metric) for figure in quick]
        fastest = best if np.isnan(seconds).all() else quick[int(np.nanargmin(seconds))]
        less, more = evaluation.seconds_per_output(fastest.metric), evaluation.seconds_per_output(best.metric)
        if fastest is not best and less > 0 and more >= 2 * less:  # Also false where a time is unknown.
            ratio = more / less
            digits = 10 ** max(0, math.floor(math.log10(ratio)) - 1)
            savings = f"1/{round(ratio / digits) * digits:g} of its time"
            saved = evaluation.money_per_output(best.metric) - evaluation.money_per_output(fastest.metric)
            if saved > 0:
                savings += f" and {saved:.2g} less per output"
            sentences = f" {fastest.metric} ({format_number(fastest.value, 3)}) is on a par with it at {savings}."
        else:
            names = [f"{figure.metric} ({format_number(figure.value, 3)})" for figure in equals]
            sentences = f" On a par with it: {list_some(names, _MAX_NAMED)}."
    elif different and not better and len(different) == len(known):
        others = "all others that could be tested" if len(known) < len(compared) else "all others"
        sentences = f" It is significantly better than {others}."
    return sentences + "".join(f" However, {name} is better on the outputs that both scored." for name in better)
