"""How far the raters agree with each other: what can be asked of a metric at most."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from metrist.errors import RunError
from metrist.evaluate.meta.judged import Codes
from metrist.evaluate.meta.pairs import aspects_of_preferences, distinct_pairs, taken_choices
from metrist.evaluate.meta.result import MetaEvaluation
from metrist.report.cells import Count, Estimate
from metrist.report.tables import Column, Table
from metrist.stats.agreement import COEFFICIENTS, agreement, needs_names
from metrist.stats.raters import UNKNOWN, Ratings

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


def are_named(ratings: Ratings) -> bool:
    """Whether each rating says who gave it, once per output, and there are at least two raters."""
    named = bool(len(ratings.rater)) and not (ratings.rater == UNKNOWN).any() and len(ratings.raters) >= 2
    pairs = np.unique(np.stack([ratings.output, ratings.rater]), axis=1)
    return named and pairs.shape[1] == len(ratings.rater)
