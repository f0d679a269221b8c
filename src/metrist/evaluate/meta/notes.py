"""What a reader of the figures must know: what was left out, what the numbers rest on, and what to be wary of."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from shlex import quote

import numpy as np

from metrist.evaluate.meta.dataset import Scored, taken
from metrist.evaluate.meta.estimates import Work
from metrist.evaluate.meta.join import looks_lower
from metrist.evaluate.meta.results import HUMANS, Figure, MetaEvaluation, Plan, Tests
from metrist.evaluate.meta.slices import Slice
from metrist.report.cells import Number, fixed
from metrist.report.tables import Column, Table
from metrist.stats.bootstrap import FEW_UNITS
from metrist.stats.measures import measure
from metrist.stats.significance import wins

#: Where calling everything a tie is right this often, accuracies say little about a metric.
_SKEWED = 0.75
_LISTED = 5


def plan_notes(plan: Plan, figures: Sequence[Figure], tests: Sequence[Tests]) -> list[str]:
    """How the intervals, thresholds and ranks were made."""
    notes = []
    drawn = {"items": "items", "systems": "systems", "both": "items and systems"}[plan.resample]
    if any(not math.isnan(figure.low) for figure in figures):
        notes.append(
            f"{plan.confidence:.0%} intervals: {plan.draws:,} bootstrap resamples of {drawn}, seed {plan.seed}."
        )
    if any(figure.measure == "acc_eq" and figure.group != "system-level" for figure in figures):
        notes.append(_EPSILON.get(plan.epsilon_over, f"ε is each metric's best tie threshold per {plan.epsilon_over}."))
    if any(figure.measure == "spa" for figure in figures):
        notes.append(
            "spa has no interval, no test and no mean over slices: it is made of p-values, and those of a resample are "
            "more extreme than those of the data."
        )
    hows = Counter(made.how for made in tests if made.how != "no tests")
    if hows:
        notes.append(
            f"Rank: significance clusters at {plan.alpha:g}; {' or '.join(hows)}, "
            f"{_CORRECTIONS[plan.correction]} over all pairs of metrics."
        )
    notes += [text for word, text in _TAILS.items() if any(word in how for how in hows)]
    pairs = max((len(made.metrics) * (len(made.metrics) - 1) // 2 for made in tests), default=0)
    # Other tests reach beyond their draws by the draws' own spread (see meta.tail_p_values).
    counted = any(how.startswith("permutation of") and "whole" not in how for how in hows)
    if counted and plan.correction == "holm" and pairs / (plan.draws + 1) > plan.alpha:
        notes.append(f"With {pairs:,} pairs, {plan.draws:,} draws cannot reach {plan.alpha:g}: ask for more --draws.")
    if any(figure.mark for figure in figures):
        notes.append("†: significantly better than every metric of another family; ‡: than every other metric.")
    if any(figure.metric == HUMANS for figure in figures):
        notes.append(f"{HUMANS}: each rater in turn judged by the gold of the others; the mean over raters.")
    return notes


_EPSILON = {
    "all": "ε: the metric's best tie threshold over all outputs (chosen on what it is judged on: a little too good; "
    "intervals allow for it).",
    "slice": "ε: the metric's best tie threshold on each slice (chosen on what it is judged on: too good; intervals "
    "allow for it).",
    "crossfit": "ε: chosen on held-out items (5 folds), so that no threshold is judged on the data it was chosen on.",
}
_TAILS = {
    "normal tails": (
        "Normal tails: where fewer than 10 draws are as extreme as what was seen, p is that of a normal distribution "
        "with the spread of the draws."
    ),
    "Student's t": (
        "Student's t: the difference over its bootstrap standard error, degrees of freedom one less than what was "
        "resampled."
    ),
}
_CORRECTIONS = {
    "holm": "Holm-corrected",
    "benjamini-hochberg": "Benjamini-Hochberg-corrected",
    "none": "not corrected",
}


def reversal_notes(tests: Sequence[Tests], alpha: float) -> list[str]:
    """Pairs of metrics of which the one with the smaller figure does significantly better on the outputs they share."""
    found = []
    for made in tests:
        with np.errstate(invalid="ignore"):
            turned = (made.values[:, None] < made.values[None, :]) & wins(
                made.values, made.adjusted, alpha, made.differences
            )
        for better, worse in np.argwhere(turned):
            found.append(f"{made.metrics[better]} over {made.metrics[worse]} ({made.slice})")
    if not found:
        return []
    more = f" and {len(found) - _LISTED} more" * (len(found) > _LISTED)
    return [
        "Figures rest on all that a metric scored, ranks on what two metrics both scored. There the order is the "
        f"reverse for {', '.join(found[:_LISTED])}{more}."
    ]


def few_notes(work: Work, slices: Sequence[Slice]) -> list[str]:
    """Slices with so few items or systems to resample that intervals and tests are rough."""
    if not work.plan.draws:
        return []
    sides = {"items": work.judged.items.codes, "systems": work.judged.systems.codes}
    drawn = [name for name in sides if work.plan.resample in (name, "both")]
    few = []
    for one in slices:
        rated = one.outputs[np.isfinite(work.gold[one.outputs])]
        count, name = min((len(np.unique(sides[name][rated])), name) for name in drawn)
        if count < FEW_UNITS:
            few.append(f"{count} {name if count != 1 else name[:-1]} ({one.name})")
    if not few:
        return []
    more = f" and {len(few) - _LISTED} more" * (len(few) > _LISTED)
    return [
        f"Warning: resampled from only {', '.join(few[:_LISTED])}{more}: with fewer than {FEW_UNITS}, intervals are "
        "too narrow and tests find little."
    ]


def missing_notes(work: Work) -> list[str]:
    """How many outputs lack a rating or a score."""
    rated = np.isfinite(work.gold[work.outputs])
    notes = []
    if not rated.all():
        notes.append(
            f"{np.count_nonzero(~rated):,} of {len(rated):,} outputs have no {work.aspect} rating: they are left out."
        )
    lacking = {
        metric.name: int(np.count_nonzero(~np.isfinite(metric.values[work.outputs][rated]))) for metric in work.metrics
    }
    short = {name: count for name, count in lacking.items() if count}
    if short:
        listed = ", ".join(f"{name} {count:,}" for name, count in list(short.items())[:_LISTED])
        more = f" and {len(short) - _LISTED} more metrics" * (len(short) > _LISTED)
        notes.append(f"Rated outputs without a score, left out for that metric: {listed}{more}.")
    return notes


def skew_notes(work: Work, figures: Sequence[Figure]) -> list[str]:
    """Warnings where ratings are nearly constant, or a measure is undefined for that reason."""
    notes = []
    values = work.gold[work.outputs][np.isfinite(work.gold[work.outputs])]
    distinct, counts = np.unique(values, return_counts=True)
    if len(distinct) == 1:
        notes.append(f"Warning: humans give all {len(values):,} outputs the same {work.aspect}, {distinct[0]:g}.")
    elif counts.max() >= 0.9 * len(values):
        notes.append(
            f"Warning: {work.aspect} is nearly constant: {counts.max() / len(values):.0%} of the outputs have "
            f"{distinct[np.argmax(counts)]:g}."
        )
    ties = {
        figure.slice: figure.all_ties for figure in figures if figure.all_ties >= _SKEWED and figure.metric != HUMANS
    }
    for name, share in list(ties.items())[:_LISTED]:
        notes.append(
            f"Warning: on {name}, calling every pair a tie is right in {share:.1%} of all pairs; read accuracies "
            "beside that."
        )
    return notes + _undefined_notes(figures)


def _undefined_notes(figures: Sequence[Figure]) -> list[str]:
    notes = []
    for figure in figures:
        if figure.undefined and figure.metric != HUMANS and figure.group != "system-level":
            parts = "slices" if figure.slice.endswith(" mean") else "groups"
            notes.append(
                f"{figure.measure} is undefined in {figure.undefined} of {figure.groups + figure.undefined} {parts} "
                f"({figure.slice}, {figure.metric}: one output, or one value for all): they are left out of the mean."
            )
    return notes[:1] + [f"The same holds, in part, for {len(notes) - 1} more figures."] * (len(notes) > 1)


def direction_notes(metrics: Sequence[Scored], opposed: Sequence[str] = ()) -> list[str]:
    """Which metrics were taken as higher is better without anyone saying so, and where that looks wrong; `opposed` are
    those that go against humans."""
    unsaid = {metric.name for metric in metrics if metric.higher_is_better is None}
    notes = []
    if unsaid:
        notes.append(
            f"Higher is taken as better for {len(unsaid)} metric{'s' * (len(unsaid) != 1)} of which nobody says so "
            "(--lower-is-better NAME turns one round)."
        )
    suspicious = sorted(name for name in unsaid if looks_lower(name))
    if suspicious:
        listed = ", ".join(suspicious[:_LISTED])
        notes.append(
            f"The name suggests that lower is better: {listed}. If so: --lower-is-better {quote(suspicious[0])}."
        )
    against = [name for name in dict.fromkeys(opposed) if name in unsaid and name not in suspicious]
    if against:
        listed = ", ".join(against[:_LISTED])
        notes.append(
            f"Over all outputs, ungrouped, scores fall where ratings rise: {listed}. If lower is better, say "
            f"--lower-is-better {quote(against[0])}."
        )
    return notes


def opposed_metrics(work: Work) -> list[str]:
    """The metrics whose scores fall, beyond chance, where ratings rise: a correlation over all outputs that is
    more than three standard errors below 0."""
    found = []
    pearson = measure("pearson")
    for metric in work.metrics:
        sample = taken(work.judged, work.gold, metric.signed(), work.outputs).sample
        if len(sample) > 3 and pearson.value(sample.human, sample.metric) < -3 / math.sqrt(len(sample)):
            found.append(metric.name)
    return found


# Which metric to trust where: the figures said in words, slice by slice.
#
# Every sentence rests on a rule:
#
# * A slice on which calling everything a tie (or guessing) does as well as the best metric has no metric to trust.
# * `nothing passes` is said where the best metric stays below a floor: .6 for accuracies, .3 for correlations.
# * A metric is level with the best where the test between the two, on the outputs that both scored, finds no
# difference.
#   One that a test places below another is not the best, though it may have the largest value (on other outputs).
# * Of the metrics that are level, the quickest is named, with its share of the best one's time and what it saves, where
#   runs recorded that.
# * A slice of fewer than 30 groups (items, say) is called small.


_ACCURACIES = ("acc_eq", "pair_accuracy", "concordance", "accuracy", "f1", "spa")
_FLOORS = {True: 0.6, False: 0.3}
_FEW = 30
_NAMED = 4


def advice(evaluation: MetaEvaluation) -> list[str]:
    """A sentence or more per aspect, measure and slice."""
    places = _places(evaluation)
    several = len({place.key[:2] for place in places}) > 1
    return [(f"{', '.join(place.key[:2])}: " if several else "") + _sentence(evaluation, place) for place in places]


def advice_tables(evaluation: MetaEvaluation) -> list[Table]:
    """The best metric of each aspect, measure and slice, and below it the advice in words."""
    rows = [
        [*place.key, place.best.metric if place.best else None, Number(place.best.value if place.best else math.nan)]
        for place in _places(evaluation)
    ]
    head = [*(Column(name) for name in ("aspect", "measure", "slice", "best metric")), Column("value", "right")]
    return [Table(title="which metric to trust", columns=head, rows=rows, notes=advice(evaluation))]


@dataclass(frozen=True, slots=True)
class _Place:
    """One aspect, measure and slice, with the figures that stand there."""

    key: tuple[str, str, str]
    judged: Sequence[Figure]
    human: Figure | None
    tests: Tests | None

    @property
    def best(self) -> Figure | None:
        """The largest value of those that no test places below others; without tests, of all."""
        return min(self.judged, key=lambda figure: (figure.rank or math.inf, -figure.value), default=None)


def _places(evaluation: MetaEvaluation) -> list[_Place]:
    keys = dict.fromkeys((f.aspect, f.measure, f.slice) for f in evaluation.figures if not f.slice.endswith(" mean"))
    tests = {(made.aspect, made.measure, made.slice): made for made in evaluation.tests}
    places = []
    for key in keys:
        figures = [f for f in evaluation.figures if (f.aspect, f.measure, f.slice) == key]
        judged = [f for f in figures if f.metric != HUMANS and not math.isnan(f.value)]
        human = next((f for f in figures if f.metric == HUMANS), None)
        places.append(_Place(key, judged, human, tests.get(key)))
    return places


def _sentence(evaluation: MetaEvaluation, place: _Place) -> str:
    where = "On all outputs" if place.key[2] == "all" else f"On {place.key[2]}"
    best = place.best
    if best is None:
        return f"{where} the measure is undefined for every metric."
    level = _level(evaluation, best, place.judged, place.tests)
    return f"{_verdict(where, best)}{level}{_beside_humans(best, place.human)}{_small(best)}"


def _verdict(place: str, best: Figure) -> str:
    found = fixed(best.value, 3)
    baselines = {"guessing": best.chance, "calling every pair a tie": best.all_ties}
    known = {name: value for name, value in baselines.items() if not math.isnan(value)}
    if known:
        name, value = max(known.items(), key=lambda entry: entry[1])
        least = best.value if math.isnan(best.low) else best.low
        if least <= value:
            surely = f"{place} no metric is surely better than {name} ({fixed(value, 3)})"
            return f"{surely}; the best is {best.metric} with {found}."
    floor = _FLOORS[best.measure in _ACCURACIES]
    if best.value < floor:
        return f"{place} nothing passes {fixed(floor, 1).lstrip('0')}: the best is {best.metric} with {found}."
    return f"{place} {best.metric} is best with {found}."


def _level(evaluation: MetaEvaluation, best: Figure, judged: Sequence[Figure], tests: Tests | None) -> str:
    if tests is None or np.isnan(tests.adjusted).all():
        return ""
    top = tests.metrics.index(best.metric)
    found = zip(tests.metrics, tests.adjusted[top], tests.differences[top], strict=True)
    verdicts = {name: _verdict_between(p, difference, evaluation.plan.alpha) for name, p, difference in found}
    others = {f.metric: f for f in judged if f.metric != best.metric}
    by_verdict = {kind: [f for name, f in others.items() if verdicts[name] == kind] for kind in _VERDICTS}
    above = "".join(f" Yet {f.metric} does better on the outputs that both scored." for f in by_verdict["above"])
    level = by_verdict["level"]
    if not level:
        return (_sole(by_verdict["below"], by_verdict["untested"]) if not above else "") + above
    return _levels(evaluation, best, level) + above


_VERDICTS = ("below", "level", "above", "untested")


def _verdict_between(p: float, difference: float, alpha: float) -> str:
    """Where another metric stands beside the best, which lies above it by this difference."""
    if math.isnan(p):
        return "untested"
    if p > alpha:
        return "level"
    return "below" if difference > 0 else "above"


def _sole(below: Sequence[Figure], untested: Sequence[Figure]) -> str:
    if not below:
        return ""
    return f" It is significantly better than all others{' that could be tested' if untested else ''}."


def _levels(evaluation: MetaEvaluation, best: Figure, level: Sequence[Figure]) -> str:
    quickest = min([best, *level], key=lambda f: _seconds(evaluation, f.metric))
    share = _share(evaluation, quickest, best)
    if share:
        return f" {quickest.metric} ({fixed(quickest.value, 3)}) is level with it at {share}."
    ordered = sorted(level, key=lambda figure: -figure.value)
    names = ", ".join(f"{f.metric} ({fixed(f.value, 3)})" for f in ordered[:_NAMED])
    more = f" and {len(ordered) - _NAMED} more" if len(ordered) > _NAMED else ""
    return f" Level with it: {names}{more}."


def _seconds(evaluation: MetaEvaluation, metric: str) -> float:
    seconds = evaluation.seconds_per_output(metric)
    return math.inf if math.isnan(seconds) else seconds


def _share(evaluation: MetaEvaluation, quickest: Figure, best: Figure) -> str:
    """What one takes as a share of what the other takes: `1/1000 of its time`; empty where that is not known, or not
    much less."""
    less, more = evaluation.seconds_per_output(quickest.metric), evaluation.seconds_per_output(best.metric)
    if quickest is best or math.isnan(less + more) or less <= 0 or more < 2 * less:
        return ""
    ratio = more / less
    digits = 10 ** max(0, math.floor(math.log10(ratio)) - 1)
    time = f"1/{round(ratio / digits) * digits:g} of its time"
    saved = evaluation.money_per_output(best.metric) - evaluation.money_per_output(quickest.metric)
    return f"{time} and {saved:.2g} less per output" if saved > 0 else time


def _beside_humans(best: Figure, human: Figure | None) -> str:
    if human is None or math.isnan(human.value):
        return ""
    order = "above" if best.value >= human.value else "below"
    return f" One rater against the others reaches {fixed(human.value, 3)}: the best metric is {order} that."


def _small(best: Figure) -> str:
    return f" The slice is small ({best.groups} groups)." if 0 < best.groups < _FEW and best.group == "item" else ""
