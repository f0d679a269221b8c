"""Preferences, further: which choices a metric confuses, and how strong the systems are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from metrist.errors import RunError
from metrist.evaluate.meta.judged import Compared, Judged
from metrist.evaluate.meta.pairs import (
    aspects_of_preferences,
    between_systems,
    choosers,
    gold_pairs,
    taken_choices,
    voted,
)
from metrist.evaluate.meta.plan import Plan
from metrist.evaluate.meta.preference_measures import choice_table
from metrist.evaluate.meta.preferred_gold import PREFERRED_GOLDS
from metrist.evaluate.meta.result import MetaEvaluation
from metrist.report.cells import Count, Estimate
from metrist.report.tables import Column, Table
from metrist.stats.bradley_terry import bootstrap_strengths, bradley_terry
from metrist.stats.preferences import Preferences, win_rates
from metrist.stats.raters import UNKNOWN
from metrist.stats.resample import interval

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
