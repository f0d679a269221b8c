"""Preferences, further: which choices a metric confuses, and how strong the systems are."""

from __future__ import annotations

from typing import Any

import numpy as np

from metrist.errors import RunError
from metrist.meta.bradley_terry import bradley_terry
from metrist.meta.preferences import Preferences, win_rates
from metrist.report.cells import Count, Estimate, Number
from metrist.report.tables import Column, Table
from metrist.studies.meta.judged import Floats, Judged
from metrist.studies.meta.pairs import choosers, gold_pairs
from metrist.studies.meta.preferring import choice_table
from metrist.studies.meta.result import MetaEvaluation

_CHOICES = ("first", "second", "tie")


def confusion_tables(evaluation: MetaEvaluation) -> list[Table]:
    """Per aspect and metric: what humans chose, by what the metric chose."""
    judged, plan = evaluation.judged, evaluation.plan
    if not judged.preferences:
        raise RunError("the data hold no preferences: a confusion table is of choices between two outputs")
    rows: list[list[Any]] = []
    for aspect in plan.aspects or judged.preferences:
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
    return [_strengths(judged, aspect, plan.draws, plan.seed) for aspect in plan.aspects or judged.preferences]


def _strengths(judged: Judged, aspect: str, draws: int, seed: int) -> Table:
    compared, systems = judged.preferences[aspect], judged.systems
    found = Preferences.of(
        judged.items.codes[compared.first],
        systems.codes[compared.first],
        systems.codes[compared.second],
        compared.choice.astype(np.intp),
        len(systems.names),
    )
    rates = win_rates(found, draws, np.random.default_rng(seed))
    strengths, why = _bradley_terry(found, systems.names)
    order = [code for code in np.argsort(-rates.value, kind="stable") if rates.games[code]]
    rows = [
        [
            systems.names[code],
            Count(int(rates.games[code])),
            Estimate(rates.value[code], rates.low[code], rates.high[code]),
            Number(strengths[code], 2),
        ]
        for code in order
    ]
    head = [Column("system"), *(Column(name, "right") for name in ("preferences", "win rate", "log strength"))]
    return Table(title=f"systems by {aspect}", columns=head, rows=rows, notes=why)


def _bradley_terry(found: Preferences, names: tuple[str, ...]) -> tuple[Floats, list[str]]:
    try:
        return bradley_terry(found, names=names).strength, []
    except RunError as refusal:
        return np.full(len(names), np.nan), [str(refusal)]
