"""What a reader of the figures must know: what was left out, what the numbers rest on, and what to be wary of."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from shlex import quote

import numpy as np

from metrist.evaluate.meta.join import looks_lower
from metrist.evaluate.meta.judged import Scored
from metrist.evaluate.meta.plan import Plan
from metrist.evaluate.meta.result import HUMANS, Figure, Tests
from metrist.evaluate.meta.samples import taken
from metrist.evaluate.meta.slices import Slice
from metrist.evaluate.meta.work import Work
from metrist.stats.measures import measure
from metrist.stats.ranking import wins
from metrist.stats.tail_p_values import FEW_UNITS

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
