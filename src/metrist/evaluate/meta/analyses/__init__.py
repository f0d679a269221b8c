"""Analyses by name: what `metrist meta --show NAME` adds to the main table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from metrist.errors import RunError, unknown_name
from metrist.evaluate.meta.analyses import judgments, metrics, systems
from metrist.evaluate.meta.evaluate import RATERS_ONLY
from metrist.evaluate.meta.notes import advice_tables
from metrist.evaluate.meta.results import MetaEvaluation
from metrist.report.tables import Table

_Analysis = Callable[[MetaEvaluation], list[Table]]


def _each_aspect(make_table: Callable[[MetaEvaluation, str], Table]) -> _Analysis:
    return lambda evaluation: [make_table(evaluation, aspect) for aspect in evaluation.golds]


#: The function that makes the tables of each analysis.
ANALYSES: Mapping[str, _Analysis] = MappingProxyType(
    {
        "matrix": metrics.matrix_tables,
        "tests": metrics.tested_tables,
        "power": metrics.power_tables,
        "top-k": metrics.top_k_tables,
        "metrics": metrics.correlation_tables,
        "bias": _each_aspect(systems.bias_table),
        "systems": _each_aspect(systems.mean_level_table),
        "ratings": systems.rating_tables,
        "levels": systems.level_agreement_tables,
        "inflation": _each_aspect(systems.inflation_table),
        "label-space": systems.label_space_tables,
        "ties": _each_aspect(metrics.tie_table),
        "curve": _each_aspect(metrics.curve_table),
        "agreement": judgments.agreement_tables,
        "disputes": judgments.dispute_tables,
        "errors": judgments.error_tables,
        "reductions": judgments.reduction_tables,
        "confusion": judgments.confusion_tables,
        "strengths": judgments.strength_tables,
        "cost": metrics.cost_tables,
        "advice": advice_tables,
    }
)
#: The analyses that an evaluation on preferences supports.
PREFERENCE_ANALYSES = ("matrix", "tests", "agreement", "errors", "confusion", "strengths", "cost", "advice")
#: Analyses whose intervals come from resampled items, whatever `--resample` says.
_ITEM_INTERVALS = ("ratings", "levels", "agreement", "errors", "strengths")


def analyse(evaluation: MetaEvaluation, name: str) -> list[Table]:
    """Return the tables of one analysis."""
    if name not in ANALYSES:
        raise unknown_name("analysis", name, ANALYSES)
    if not evaluation.figures and name not in RATERS_ONLY:
        raise RunError(f"{name} analyses metrics, and there are none; without metrics: {', '.join(RATERS_ONLY)}")
    if evaluation.plan.preferences and name not in PREFERENCE_ANALYSES:
        raise RunError(
            f"{name} analyses ratings, and this evaluation uses preferences; try one of "
            f"{', '.join(PREFERENCE_ANALYSES)}"
        )
    tables = ANALYSES[name](evaluation)
    if name in _ITEM_INTERVALS and evaluation.plan.resample != "items" and evaluation.plan.draws:
        note = "The intervals of this table come from resampled items."
        return [replace(table, notes=[*table.notes, note]) for table in tables]
    return tables
