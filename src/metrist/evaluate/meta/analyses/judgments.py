"""Analyses of human judgments: agreement among raters, preferences, errors marked in outputs, and disputes."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import numpy as np

from metrist.errors import RunError, format_count
from metrist.evaluate.meta.dataset import ErrorSpans, JudgedDataset, make_slices, select_outputs
from metrist.evaluate.meta.preferences import (
    PREFERENCE_GOLDS,
    choice_table,
    compare_systems,
    compute_gold_pairs,
    distinct_pairs,
    make_choosers,
    preference_aspects,
    select_choices,
    vote,
)
from metrist.evaluate.meta.results import MetaEvaluation
from metrist.evaluate.plans import MetaPlan
from metrist.report.tables import Count, Estimate, Number, Share, Table, name_columns
from metrist.stats import Codes
from metrist.stats.agreement import COEFFICIENTS, agreement, needs_names
from metrist.stats.error_spans import UNSTATED, ErrorColumns, compare_marks, error_agreement, reduction_shares
from metrist.stats.gold import UNKNOWN, Ratings
from metrist.stats.preferences import (
    CHOICES,
    bootstrap_standings,
    bradley_terry,
    orient_choices,
    win_rates,
)
from metrist.stats.resampling import interval

# ---- Agreement among raters

_COEFFICIENT_NAMES = {
    "alpha_nominal": "Krippendorff's α, nominal",
    "alpha_ordinal": "Krippendorff's α, ordinal",
    "alpha_interval": "Krippendorff's α, interval",
    "fleiss_kappa": "Fleiss' κ",
    "kendall": "Kendall's τ-b, mean of rater pairs",
    "cohen_kappa": "Cohen's κ, mean of rater pairs",
    "cohen_kappa_linear": "Cohen's κ, linear weights",
    "cohen_kappa_quadratic": "Cohen's κ, quadratic weights",
    "ties": "share of pairs that a rater ties",
}
#: Coefficients for choices between two outputs; those that need a scale say little about three values.
_CHOICE_COEFFICIENTS = ("alpha_nominal", "alpha_ordinal", "fleiss_kappa", "cohen_kappa")


def agreement_tables(evaluation: MetaEvaluation) -> list[Table]:
    """Rater agreement per aspect, with intervals over items; for preferences, agreement on the choice."""
    plan, on_choices = evaluation.plan, evaluation.plan.preferences
    rows: list[list[Any]] = []
    refusals: dict[str, list[str]] = {}
    for aspect, ratings, items in _iterate_ratings(evaluation):
        names = list(_CHOICE_COEFFICIENTS if on_choices else COEFFICIENTS)
        try:
            ratings.check_named("agreement between raters")
        except RunError as error:
            omitted = "; ".join(_COEFFICIENT_NAMES[name] for name in names if needs_names(name))
            refusals.setdefault(f"{error}. Left out: {omitted}.", []).append(aspect)
            names = [name for name in names if not needs_names(name)]
        coefficients = agreement(ratings, names, plan.draws, plan.rng(), cluster=items, confidence=plan.confidence)
        rows += [
            [
                aspect,
                _COEFFICIENT_NAMES[coefficient.name],
                coefficient.failure or Estimate(coefficient.value, coefficient.low, coefficient.high),
                Count(coefficient.outputs),
                Count(coefficient.raters) if coefficient.raters else "unnamed",
            ]
            for coefficient in coefficients
        ]
    if not rows:
        raise RunError("rater agreement needs ratings by two or more raters; there are none", code="too_little_data")
    # The main table shows the notes on doubled ratings and the like; without figures there is no main table.
    notes = [] if evaluation.figures else list(evaluation.notes)
    notes += [f"{', '.join(aspects)}: {refusal}" for refusal, aspects in refusals.items()]
    unit = "pairs" if on_choices else "outputs"
    head = name_columns("aspect", "agreement", right=("value", unit, "raters"))
    return [Table(title="agreement among raters", columns=head, rows=rows, notes=list(dict.fromkeys(notes)))]


def _iterate_ratings(evaluation: MetaEvaluation) -> Iterator[tuple[str, Ratings, Codes]]:
    """Yield each aspect with its ratings of outputs and the outputs' items, and so the number of marked errors; of
    preferences, the choices of all raters as ratings of pairs, on the levels second, tie, first in the order of the
    systems' names."""
    dataset, plan = evaluation.dataset, replace(evaluation.plan, gold="majority")
    if plan.preferences:
        for aspect in preference_aspects(dataset, plan.aspects):
            choices = select_choices(dataset, plan, aspect)
            pairs, pair_of, choice = distinct_pairs(choices)
            first, second = np.array(dataset.systems.names, np.str_)[dataset.systems.codes[pairs]]
            oriented = orient_choices(first[pair_of], second[pair_of], choice)
            ratings = Ratings.of(pair_of, choices.rater, oriented, pairs.shape[1])
            yield aspect, ratings, dataset.items.codes[pairs[0]]
        return
    for aspect, outputs in evaluation.outputs.items():
        ratings = dataset.ratings[aspect]
        yield aspect, ratings.take(np.isin(ratings.output, outputs)), dataset.items.codes
    errors = dataset.errors
    if "errors" in dataset.ratings or errors is None or errors.rater is None or not (errors.rater != UNKNOWN).any():
        return
    # Ratings by the raters who marked any error, of the outputs that they rated: minus the number of their errors.
    rated = [dataset.ratings[aspect] for aspect in evaluation.outputs]
    seen = np.concatenate([np.stack([ratings.output, ratings.rater]) for ratings in rated], axis=1)
    wanted = np.isin(seen[0], np.concatenate(list(evaluation.outputs.values())))
    wanted &= np.isin(seen[1], np.unique(errors.rater)) & (seen[1] != UNKNOWN)
    output, rater = np.unique(seen[:, wanted], axis=1)
    if len(output):  # Otherwise the ratings are by other raters, or by nobody in particular.
        counts = Counter(zip(errors.output.tolist(), errors.rater.tolist(), strict=True))
        values = [-counts[pair] for pair in zip(output.tolist(), rater.tolist(), strict=True)]
        yield "errors", Ratings.of(output, rater, values, len(dataset)), dataset.items.codes


# ---- Preferences


def confusion_tables(evaluation: MetaEvaluation) -> list[Table]:
    """Per aspect and metric: what humans chose, by what the metric chose."""
    dataset, plan = evaluation.dataset, evaluation.plan
    rows: list[list[Any]] = []
    for aspect in preference_aspects(dataset, plan.aspects):
        pairs = compute_gold_pairs(dataset, plan, aspect)
        for chooser in make_choosers(dataset, pairs, plan.metrics):
            counts = choice_table(pairs.choice, chooser.leaning)
            rows += [
                [aspect, chooser.name, name, *(Count(int(count)) for count in counts[i])]
                for i, name in enumerate(CHOICES)
            ]
    head = name_columns("aspect", "metric", "humans chose", right=(f"metric {name}" for name in CHOICES))
    return [Table(title="choices of humans and metrics", columns=head, rows=rows)]


def strength_tables(evaluation: MetaEvaluation) -> list[Table]:
    """Per aspect: each system's win rate, and its strength by the Bradley-Terry model with ties."""
    plan = evaluation.plan
    names = plan.aspects if plan.preferences or plan.gold in PREFERENCE_GOLDS else ()
    aspects = preference_aspects(evaluation.dataset, names)
    return [_strength_table(evaluation.dataset, plan, aspect) for aspect in aspects]


def _strength_table(dataset: JudgedDataset, plan: MetaPlan, aspect: str) -> Table:
    choices = select_choices(dataset, plan, aspect)
    notes = ["Counted: every rater's choice; a tie is half a win for both."]
    if plan.gold in dataset.raters:
        notes = [f"Counted: the choices of {plan.gold}."]
    elif plan.gold == "majority":
        notes = ["Counted: one choice per pair, that of most raters, a tie if they are undecided."]
        choices = vote(choices)
    preferences, systems = compare_systems(dataset, choices)
    names = [dataset.systems.names[code] for code in systems]
    strengths = [Estimate(math.nan, math.nan, math.nan, 2)] * len(names)
    try:
        fitted = bradley_terry(preferences, names=names)
    except RunError as error:
        notes.append(str(error))
    else:
        resampled, _ = bootstrap_standings(preferences, plan.draws, plan.rng())
        items = len(np.unique(preferences.item))
        strengths = [
            Estimate(float(strength), *interval(resampled[:, i], plan.confidence, items, float(strength)), 2)
            for i, strength in enumerate(fitted.strength)
        ]
        undetermined = np.isnan(resampled).any(axis=1).mean() if len(resampled) else 0.0
        if undetermined and math.isnan(strengths[0].low):
            reason = f"{undetermined:.1%} of the resamples do not determine the strengths"
            notes.append(f"Log strengths have no interval: {reason}.")
    rates = win_rates(preferences, plan.draws, plan.rng(), plan.confidence)
    rows = [
        [names[i], Count(int(rates.games[i])), Estimate(rates.value[i], rates.low[i], rates.high[i]), strengths[i]]
        for i in np.argsort(-rates.value, kind="stable")
    ]
    head = name_columns("system", right=("preferences", "win rate", "log strength"))
    return Table(title=f"systems by {aspect}", columns=head, rows=rows, notes=notes)


# ---- Errors

#: From mild to grave; a severity with another name counts as unstated.
SEVERITIES = ("neutral", "minor", "major", "critical")


def error_tables(evaluation: MetaEvaluation) -> list[Table]:
    """Precision, recall and F1 by characters of each metric's errors against the humans', overall and by severity; or,
    without metrics that report errors, how raters agree with each other on the characters that they mark."""
    dataset, plan = evaluation.dataset, evaluation.plan
    if dataset.errors is None:
        raise RunError("the data hold no human 'errors' to agree with")
    if not dataset.metric_errors:
        return [_marks_table(evaluation)]
    # Humans examined the outputs with an error, and those with a rating.
    judged = [dataset.errors.output, *(ratings.output for ratings in dataset.ratings.values())]
    examined = np.intersect1d(np.concatenate(judged), _participating_outputs(evaluation))
    rows: list[list[Any]] = []
    notes = [
        "By characters of the output, over all outputs that the metric scored and humans examined (marked an error in, "
        "or rated); a character with another severity counts half."
    ]
    for name, spans in dataset.metric_errors.items():
        outputs = examined
        if name in dataset.scores:
            outputs = np.intersect1d(outputs, np.flatnonzero(np.isfinite(dataset.scores[name].values)))
        result = error_agreement(
            _errors_within(dataset.errors, outputs, len(dataset)),
            _errors_within(spans, outputs, len(dataset)),
            dataset.items.codes[outputs],
            plan.draws,
            plan.rng(),
            confidence=plan.confidence,
        )
        figures = {"all": result.overall, **{SEVERITIES[code]: f for code, f in result.by_severity.items()}}
        for severity, values in figures.items():
            estimates = (Estimate(f.value, f.low, f.high) for f in (values.precision, values.recall, values.f1))
            rows.append([name, severity, *estimates, Count(len(outputs))])
        if result.human_unplaced or result.predicted_unplaced:
            notes.append(
                f"{name}: errors without a position in the output, or with an empty one, are left out: "
                f"{result.human_unplaced:,} of the humans', {result.predicted_unplaced:,} of the metric's."
            )
    head = name_columns("metric", "severity", right=("precision", "recall", "F1", "outputs"))
    return [Table(title="agreement on errors", columns=head, rows=rows, notes=notes)]


def _participating_outputs(evaluation: MetaEvaluation) -> Codes:
    """Return the outputs of any aspect, or, without aspects, those of the systems that take part."""
    plan = evaluation.plan
    if evaluation.outputs:
        return np.unique(np.concatenate(list(evaluation.outputs.values())))
    return select_outputs(evaluation.dataset, systems=plan.systems, exclude_systems=plan.exclude_systems)


def _errors_within(spans: ErrorSpans, outputs: Codes, size: int) -> ErrorColumns:
    """Return the errors in the texts of these outputs, renumbered by position in `outputs`."""
    position = np.full(size, -1, dtype=np.intp)
    position[outputs] = np.arange(len(outputs))
    inside = np.flatnonzero((position[spans.output] >= 0) & spans.on_output)
    code = np.array([SEVERITIES.index(n) if n in SEVERITIES else UNSTATED for n in spans.severity.names] + [UNSTATED])
    return ErrorColumns.of(
        position[spans.output[inside]],
        spans.start[inside],
        spans.end[inside],
        code[spans.severity.codes[inside]],
    )


def _marks_table(evaluation: MetaEvaluation) -> Table:
    """How raters agree with each other on the characters that they mark."""
    distances: dict[tuple[int, int], list[float]] = defaultdict(list)
    for marks in _collect_marks(evaluation).values():
        # Where neither marks anything, there is nothing to agree on.
        for first, second in ((a, b) for a, b in combinations(sorted(marks), 2) if marks[a] or marks[b]):
            distances[first, second].append(compare_marks(marks[first], marks[second]))
    if not distances:
        raise RunError(
            "no metric reports errors, and no two named raters marked the same output: give the run folder of a metric "
            "that does, or say who marked what",
            code="no_data",
        )
    names = evaluation.dataset.raters
    rows: list[list[Any]] = [
        [f"{names[first]} and {names[second]}", Number(1 - float(np.mean(own)), 3), Count(len(own))]
        for (first, second), own in distances.items()
    ]
    every = [1 - distance for own in distances.values() for distance in own]
    if len(rows) > 1:
        rows.append(["all pairs", Number(float(np.mean(every)), 3), Count(len(every))])
    note = (
        "Dice: twice the characters that both raters mark in an output, as a share of those that either marks, summed; "
        "the mean over outputs that both looked at and one of them marked."
    )
    head = name_columns("raters", right=("Dice", "outputs"))
    return Table(title="agreement of raters on marked characters", columns=head, rows=rows, notes=[note])


def reduction_tables(evaluation: MetaEvaluation) -> list[Table]:
    """Per metric and system: how often nothing, less than 2, or at most 1 was deducted. Meant for outputs that are the
    references themselves (TIGERScore paper, Table 21: its header says > -2, its caption "less than -2")."""
    dataset, columns = evaluation.dataset, evaluation.plan.slices
    rows: list[list[Any]] = []
    for metric, part in product(
        evaluation.metrics(), make_slices(dataset, columns, _participating_outputs(evaluation))
    ):
        for code in np.unique(dataset.systems.codes[part.outputs]):
            values = dataset.scores[metric].signed()[part.outputs[dataset.systems.codes[part.outputs] == code]]
            values = np.where(np.isfinite(values), values, np.nan)
            if np.isnan(values).all() or np.nanmax(values) > 0:
                continue
            result = reduction_shares(values)
            shares = (result.unreduced, result.above_minus_two, result.at_most_one)
            names = [metric, *([part.name] if columns else []), dataset.systems.names[code]]
            rows.append([*names, *map(Share, shares), Count(result.scored)])
    if not rows:
        raise RunError("no metric deducts points (scores of 0 and below): there are no reductions to show")
    first = ("metric", *(["slice"] if columns else []), "system")
    head = name_columns(*first, right=("nothing off", "above -2", "at most 1 off", "scored"))
    return [Table(title="score reductions", columns=head, rows=rows)]


# ---- Disputes of raters

#: Outputs in the list of disputes.
_MAX_DISPUTES = 50
#: What raters are said to disagree about where they marked errors: the aspect of their sums of penalties.
MARKED = "errors"
#: The characters that each rater of an output marks; raters who looked and marked nothing have none.
_MarksByRater = dict[int, Counter[Hashable]]


def dispute_tables(evaluation: MetaEvaluation) -> list[Table]:
    """The outputs that raters judge differently, most disputed first, with what each of them said."""
    dataset = evaluation.dataset
    found: list[tuple[float, int, str, str]] = []
    by_output = _collect_marks(evaluation)
    for aspect, outputs in evaluation.outputs.items():
        ratings = dataset.ratings[aspect]
        width = float(np.ptp(ratings.value)) if len(ratings.value) else 0.0
        sign = -1.0 if aspect in dataset.reversed_aspects else 1.0
        answers: dict[int, list[tuple[int, float]]] = defaultdict(list)
        for row in np.flatnonzero(np.isin(ratings.output, outputs)).tolist():
            answers[int(ratings.output[row])].append((int(ratings.rater[row]), sign * float(ratings.value[row])))
        for output, own in answers.items():
            if aspect == MARKED and output in by_output:
                continue  # The characters say more than their number.
            disagreement = _mean_distance([value for _, value in own], lambda one, other: abs(one - other))
            if disagreement:
                said = [(rater, f"{value:g}") for rater, value in own]
                found.append((disagreement / width, output, aspect, _describe_answers(dataset, said)))
    for output, marks in by_output.items():
        disagreement = _mean_distance([marks[rater] for rater in sorted(marks)], compare_marks)
        if disagreement:
            counts = [(rater, sum(bits.bit_count() for bits in marks[rater].values())) for rater in sorted(marks)]
            said = [(rater, format_count(count, "character")) for rater, count in counts]
            found.append((disagreement, output, MARKED, _describe_answers(dataset, said)))
    found.sort(key=lambda dispute: -dispute[0])
    rows: list[list[Any]] = [
        [
            dataset.items.names[dataset.items.codes[output]],
            dataset.systems.names[dataset.systems.codes[output]],
            aspect,
            Number(disagreement, 3),
            said,
        ]
        for disagreement, output, aspect, said in found[:_MAX_DISPUTES]
    ]
    notes = [
        "Disagreement: the mean distance of two raters' answers from 0 to 1; of grades as a share of the range that "
        "raters use, of marked errors one minus Dice's coefficient of their characters."
    ]
    if len(found) > len(rows):
        notes.append(f"The {len(rows)} most disputed of {len(found):,} answers.")
    head = [*name_columns("item", "system", "aspect", right=("disagreement",)), *name_columns("raters said")]
    return [Table(title="outputs that raters dispute", columns=head, rows=rows, notes=notes)]


def _collect_marks(evaluation: MetaEvaluation) -> dict[int, _MarksByRater]:
    """The characters that named raters mark, by output; a rater who rated an output looked at it."""
    dataset, errors = evaluation.dataset, evaluation.dataset.errors
    marks: dict[int, _MarksByRater] = defaultdict(lambda: defaultdict(Counter))
    if errors is None or errors.rater is None:
        return {}
    wanted = {int(output) for outputs in evaluation.outputs.values() for output in outputs}
    for row in np.flatnonzero((errors.rater != UNKNOWN) & (errors.start >= 0)).tolist():
        if (output := int(errors.output[row])) in wanted:
            span = (1 << int(errors.end[row])) - (1 << int(errors.start[row]))
            marks[output][int(errors.rater[row])][bool(errors.on_output[row])] |= span
    for ratings in dataset.ratings.values():
        for output, rater in zip(ratings.output.tolist(), ratings.rater.tolist(), strict=True):
            if rater != UNKNOWN and output in marks:
                _ = marks[output][rater]
    return marks


def _mean_distance(answers: Sequence[Any], distance: Callable[[Any, Any], float]) -> float:
    pairs = list(combinations(answers, 2))
    return sum(distance(one, other) for one, other in pairs) / len(pairs) if pairs else 0.0


def _describe_answers(dataset: JudgedDataset, said: Sequence[tuple[int, str]]) -> str:
    return ", ".join(answer if rater == UNKNOWN else f"{dataset.raters[rater]} {answer}" for rater, answer in said)
