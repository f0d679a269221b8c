"""How far the raters agree with each other: what can be asked of a metric at most."""

from __future__ import annotations

from typing import Any

import numpy as np

from metrist.errors import RunError
from metrist.meta.agreement import COEFFICIENTS, agreement, needs_names
from metrist.meta.raters import UNKNOWN, Ratings
from metrist.report.cells import Count, Estimate
from metrist.report.tables import Column, Table
from metrist.studies.meta.judged import Codes
from metrist.studies.meta.result import MetaEvaluation

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


def agreement_tables(evaluation: MetaEvaluation) -> list[Table]:
    """Rater agreement per aspect, with intervals over items."""
    rows: list[list[Any]] = []
    notes: list[str] = []
    for aspect in evaluation.golds:
        if aspect not in evaluation.judged.ratings:
            continue
        made, why = _rows(evaluation, aspect)
        rows, notes = rows + made, notes + why
    if not rows:
        raise RunError("rater agreement needs ratings by two or more raters; there are none")
    head = [Column("aspect"), Column("agreement"), *(Column(name, "right") for name in ("value", "outputs", "raters"))]
    return [Table(title="agreement among raters", columns=head, rows=rows, notes=list(dict.fromkeys(notes)))]


def _rows(evaluation: MetaEvaluation, aspect: str) -> tuple[list[list[Any]], list[str]]:
    ratings = _of_outputs(evaluation.judged.ratings[aspect], evaluation.outputs[aspect])
    names, notes = list(COEFFICIENTS), []
    try:
        ratings.check_named("agreement between raters")
    except RunError as refusal:
        names = [name for name in names if not needs_names(name)]
        notes.append(f"{aspect}: {refusal}")
    found = agreement(
        ratings,
        names,
        evaluation.plan.draws,
        np.random.default_rng(evaluation.plan.seed),
        cluster=evaluation.judged.items.codes,
        confidence=evaluation.plan.confidence,
    )
    rows = [
        [
            aspect,
            _WORDS.get(one.name, one.name),
            one.failure or Estimate(one.value, one.low, one.high),
            Count(one.outputs),
            Count(one.raters) if one.raters else "unnamed",
        ]
        for one in found
    ]
    return rows, notes


def _of_outputs(ratings: Ratings, outputs: Codes) -> Ratings:
    return ratings.chosen(np.isin(ratings.output, outputs))


def are_named(ratings: Ratings) -> bool:
    """Whether each rating says who gave it, once per output, and there are at least two raters."""
    named = bool(len(ratings.rater)) and not (ratings.rater == UNKNOWN).any() and len(ratings.raters) >= 2
    pairs = np.unique(np.stack([ratings.output, ratings.rater]), axis=1)
    return named and pairs.shape[1] == len(ratings.rater)
