"""How far the raters agree with each other: what can be asked of a metric at most."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from metrist.errors import RunError
from metrist.evaluate.meta.dataset import Compared, Judged, Spans
from metrist.evaluate.meta.preferences import (
    PREFERRED_GOLDS,
    aspects_of_preferences,
    between_systems,
    choice_table,
    choosers,
    distinct_pairs,
    gold_pairs,
    taken_choices,
    voted,
)
from metrist.evaluate.meta.results import MetaEvaluation, Plan
from metrist.evaluate.meta.slices import chosen_outputs
from metrist.report.cells import Count, Estimate, Share
from metrist.report.tables import Column, Table
from metrist.stats import Codes
from metrist.stats.agreement import COEFFICIENTS, agreement, needs_names
from metrist.stats.error_spans import UNSTATED, ErrorAgreement, Errors, Figures, error_agreement, reduction_shares
from metrist.stats.gold import UNKNOWN, Ratings
from metrist.stats.preferences import Preferences, bootstrap_strengths, bradley_terry, win_rates
from metrist.stats.resampling import interval

_WORDS = {
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


#: Coefficients of choices between two outputs, of which there are three: those that need a scale would say little.
_OF_CHOICES = ("alpha_nominal", "alpha_ordinal", "fleiss_kappa", "cohen_kappa")


def agreement_tables(evaluation: MetaEvaluation) -> list[Table]:
    """Rater agreement per aspect, with intervals over items; on preferences, agreement on the choice."""
    rows: list[list[Any]] = []
    # The main table tells of doubled ratings and the like; where there is none, this one has to.
    notes = [] if evaluation.figures else list(evaluation.notes)
    choices = evaluation.plan.preferences
    refusals: dict[str, list[str]] = {}
    for one in _choices_of(evaluation) if choices else _ratings_of(evaluation):
        wanted, refusal = _possible(one, _OF_CHOICES if choices else tuple(COEFFICIENTS))
        refusals.setdefault(refusal, []).append(one.aspect)
        rows += _rows(evaluation, one, wanted)
    notes += [f"{', '.join(aspects)}: {refusal}" for refusal, aspects in refusals.items() if refusal]
    if not rows:
        raise RunError("rater agreement needs ratings by two or more raters; there are none")
    judged = "pairs" if choices else "outputs"
    head = [Column("aspect"), Column("agreement"), *(Column(name, "right") for name in ("value", judged, "raters"))]
    return [Table(title="agreement among raters", columns=head, rows=rows, notes=list(dict.fromkeys(notes)))]


class _Given(NamedTuple):
    """What raters said under one aspect, of outputs or of pairs, and the item that each of these belongs to."""

    aspect: str
    ratings: Ratings
    item: Codes


def _ratings_of(evaluation: MetaEvaluation) -> Iterator[_Given]:
    judged = evaluation.judged
    for aspect, outputs in evaluation.outputs.items():
        ratings = judged.ratings[aspect]
        yield _Given(aspect, ratings.chosen(np.isin(ratings.output, outputs)), judged.items.codes)


def _choices_of(evaluation: MetaEvaluation) -> Iterator[_Given]:
    """Choices as ratings of pairs: second, tie and first are levels in this order. All raters', whatever the gold."""
    judged, plan = evaluation.judged, replace(evaluation.plan, gold="majority")
    for aspect in aspects_of_preferences(judged, plan.aspects):
        compared = taken_choices(judged, plan, aspect)
        pairs, at, choice = distinct_pairs(compared)
        yield _Given(aspect, Ratings.of(at, compared.rater, choice, pairs.shape[1]), judged.items.codes[pairs[0]])


def _possible(given: _Given, wanted: Sequence[str]) -> tuple[list[str], str]:
    """The coefficients that these ratings allow, and why not the rest."""
    try:
        given.ratings.check_named("agreement between raters")
    except RunError as refusal:
        lost = "; ".join(_WORDS[name] for name in wanted if needs_names(name))
        return [name for name in wanted if not needs_names(name)], f"{refusal}. Left out: {lost}."
    return list(wanted), ""


def _rows(evaluation: MetaEvaluation, given: _Given, names: Sequence[str]) -> list[list[Any]]:
    found = agreement(
        given.ratings,
        names,
        evaluation.plan.draws,
        np.random.default_rng(evaluation.plan.seed),
        cluster=given.item,
        confidence=evaluation.plan.confidence,
    )
    return [
        [
            given.aspect,
            _WORDS[one.name],
            one.failure or Estimate(one.value, one.low, one.high),
            Count(one.outputs),
            Count(one.raters) if one.raters else "unnamed",
        ]
        for one in found
    ]


# Preferences, further: which choices a metric confuses, and how strong the systems are.


_CHOICES = ("first", "second", "tie")


def confusion_tables(evaluation: MetaEvaluation) -> list[Table]:
    """Per aspect and metric: what humans chose, by what the metric chose."""
    judged, plan = evaluation.judged, evaluation.plan
    if not judged.preferences:
        raise RunError("the data hold no preferences: a confusion table is of choices between two outputs")
    rows: list[list[Any]] = []
    for aspect in aspects_of_preferences(judged, plan.aspects):
        pairs = gold_pairs(judged, plan, aspect)
        for chooser in choosers(judged, pairs, plan.metrics):
            table = choice_table(pairs.human, chooser.leaning)
            rows += [
                [aspect, chooser.name, name, *(Count(int(count)) for count in table[i])]
                for i, name in enumerate(_CHOICES)
            ]
    head = [Column("aspect"), Column("metric"), Column("humans chose")]
    head += [Column(f"metric {name}", "right") for name in _CHOICES]
    return [Table(title="choices of humans and metrics", columns=head, rows=rows)]


def strength_tables(evaluation: MetaEvaluation) -> list[Table]:
    """Per aspect: each system's win rate, and its strength by Bradley and Terry's model with ties."""
    judged, plan = evaluation.judged, evaluation.plan
    if not judged.preferences:
        raise RunError("the data hold no preferences: win rates are of choices between two outputs")
    named = plan.aspects if plan.preferences or plan.gold in PREFERRED_GOLDS else ()
    return [_strengths(judged, plan, aspect) for aspect in aspects_of_preferences(judged, named)]


def _strengths(judged: Judged, plan: Plan, aspect: str) -> Table:
    compared = taken_choices(judged, plan, aspect)
    found, systems = between_systems(judged, _one_per_pair(compared) if plan.gold == "majority" else compared)
    names = [judged.systems.names[code] for code in systems]
    rates = win_rates(found, plan.draws, np.random.default_rng(plan.seed), plan.confidence)
    strengths, why = _bradley_terry(found, names, plan)
    rows = [
        [
            names[place],
            Count(int(rates.games[place])),
            Estimate(rates.value[place], rates.low[place], rates.high[place]),
            strengths[place],
        ]
        for place in np.argsort(-rates.value, kind="stable")
    ]
    head = [Column("system"), *(Column(name, "right") for name in ("preferences", "win rate", "log strength"))]
    return Table(title=f"systems by {aspect}", columns=head, rows=rows, notes=[_whose(plan, judged), *why])


def _whose(plan: Plan, judged: Judged) -> str:
    if plan.gold in judged.raters:
        return f"Counted: the choices of {plan.gold}."
    if plan.gold == "majority":
        return "Counted: one choice per pair, that of most raters, a tie where they are undecided."
    return "Counted: every rater's choice; a tie is half a win for both."


def _one_per_pair(compared: Compared) -> Compared:
    pairs = voted(compared)
    return Compared(
        first=pairs.first, second=pairs.second, rater=np.full(len(pairs.human), UNKNOWN), choice=pairs.human
    )


def _bradley_terry(found: Preferences, names: Sequence[str], plan: Plan) -> tuple[list[Estimate], list[str]]:
    """Each system's strength with its interval over items; a reason where the preferences do not determine them."""
    try:
        fitted = bradley_terry(found, names=names)
    except RunError as refusal:
        return [Estimate(math.nan, math.nan, math.nan, 2)] * len(names), [str(refusal)]
    drawn = bootstrap_strengths(found, plan.draws, np.random.default_rng(plan.seed))
    items = len(np.unique(found.item))
    lost = np.isnan(drawn).any(axis=1).mean() if len(drawn) else 0.0
    estimates = [
        Estimate(float(strength), *interval(drawn[:, place], plan.confidence, items), 2)
        for place, strength in enumerate(fitted.strength)
    ]
    why = f"{lost:.1%} of the resamples do not determine the strengths"
    without = math.isnan(estimates[0].low) and plan.draws > 0
    return estimates, [f"Log strengths have no interval: {why}."] if without and lost else []


# Do a metric's errors lie where humans mark theirs? And what does it take off outputs that are right?


#: From mild to grave; a severity of another name counts as unstated.
SEVERITIES = ("neutral", "minor", "major", "critical")


def error_tables(evaluation: MetaEvaluation) -> list[Table]:
    """Precision, recall and F1 by characters of each metric's errors against the humans', overall and by severity."""
    judged = evaluation.judged
    if judged.errors is None:
        raise RunError("the data hold no human 'errors' to agree with")
    if not judged.metric_errors:
        raise RunError("no metric reports errors: give the run folder of a metric that does")
    outputs = _taking_part(evaluation)
    kept = {name: _looked_at(judged, name, outputs) for name in judged.metric_errors}
    found = {name: _agreement(evaluation, spans, kept[name]) for name, spans in judged.metric_errors.items()}
    rows = [row for name, one in found.items() for row in _rows_errors(name, one, len(kept[name]))]
    head = [
        Column("metric"),
        Column("severity"),
        *(Column(n, "right") for n in ("precision", "recall", "F1", "outputs")),
    ]
    notes = [
        "By characters of the output, over all outputs that the metric scored and humans looked at (they marked an "
        "error in it or rated it); a character of another severity earns half.",
        *(note for name, one in found.items() for note in _unplaced(name, one)),
    ]
    return [Table(title="agreement on errors", columns=head, rows=rows, notes=notes)]


def examined(judged: Judged) -> Codes:
    """The outputs that humans looked at: those with an error, and those with a rating."""
    seen = np.zeros(len(judged), dtype=np.bool_)
    if judged.errors is not None:
        seen[judged.errors.output] = True
    for ratings in judged.ratings.values():
        seen[ratings.output] = True
    return np.flatnonzero(seen)


def _taking_part(evaluation: MetaEvaluation) -> Codes:
    """The outputs of any aspect, or, without aspects, those of the systems that take part."""
    plan = evaluation.plan
    if evaluation.outputs:
        return np.unique(np.concatenate(list(evaluation.outputs.values())))
    return chosen_outputs(evaluation.judged, systems=plan.systems, exclude_systems=plan.exclude_systems)


def _looked_at(judged: Judged, metric: str, outputs: Codes) -> Codes:
    """The outputs that humans and the metric both looked at."""
    scored = np.flatnonzero(np.isfinite(judged.scores[metric].values)) if metric in judged.scores else outputs
    return np.intersect1d(np.intersect1d(examined(judged), outputs), scored)


def _agreement(evaluation: MetaEvaluation, spans: Spans, kept: Codes) -> ErrorAgreement:
    judged, plan = evaluation.judged, evaluation.plan
    assert judged.errors is not None
    return error_agreement(
        _errors(judged.errors, kept, len(judged)),
        _errors(spans, kept, len(judged)),
        judged.items.codes[kept],
        plan.draws,
        np.random.default_rng(plan.seed),
        confidence=plan.confidence,
    )


def _rows_errors(metric: str, found: ErrorAgreement, outputs: int) -> list[list[Any]]:
    rows = [[metric, "all", *_cells(found.overall), Count(outputs)]]
    rows += [[metric, SEVERITIES[code], *_cells(one), Count(outputs)] for code, one in found.by_severity.items()]
    return rows


def _unplaced(metric: str, found: ErrorAgreement) -> list[str]:
    if not found.human_unplaced and not found.predicted_unplaced:
        return []
    return [
        f"{metric}: errors that say not where in the output they lie, or cover nothing, are left out: "
        f"{found.human_unplaced:,} of the humans', {found.predicted_unplaced:,} of the metric's."
    ]


def _cells(figures: Figures) -> list[Estimate]:
    return [Estimate(one.value, one.low, one.high) for one in (figures.precision, figures.recall, figures.f1)]


def _errors(spans: Spans, kept: Codes, outputs: int) -> Errors:
    """The errors on the text of these outputs, numbered as they stand in `kept`."""
    place = np.full(outputs, -1, dtype=np.intp)
    place[kept] = np.arange(len(kept))
    here = np.flatnonzero((place[spans.output] >= 0) & spans.on_output)
    code = np.array([SEVERITIES.index(n) if n in SEVERITIES else UNSTATED for n in spans.severity.names] + [UNSTATED])
    return Errors.of(
        place[spans.output[here]],
        spans.start[here],
        spans.end[here],
        code[spans.severity.codes[here]],
    )


def reduction_tables(evaluation: MetaEvaluation) -> list[Table]:
    """Per metric and system: how often nothing, less than 2, or at most 1 was taken off. Meant for outputs that are the
    references themselves (paper 001, Table 21)."""
    judged, outputs = evaluation.judged, _taking_part(evaluation)
    rows: list[list[Any]] = []
    for metric in evaluation.metrics():
        for code in np.unique(judged.systems.codes[outputs]):
            system = judged.systems.names[code]
            values = judged.scores[metric].signed()[outputs[judged.systems.codes[outputs] == code]]
            given = values[np.isfinite(values)]
            if len(given) and given.max() <= 0:
                found = reduction_shares(np.where(np.isfinite(values), values, np.nan))
                shares = (found.unreduced, found.above_minus_two, found.at_most_one)
                rows.append([metric, system, *map(Share, shares), Count(found.scored)])
    if not rows:
        raise RunError("no metric takes points off (scores of 0 and below): there are no reductions to show")
    head = [Column("metric"), Column("system")]
    head += [Column(name, "right") for name in ("nothing off", "above -2", "at most 1 off", "scored")]
    return [Table(title="score reductions", columns=head, rows=rows)]
