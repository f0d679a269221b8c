"""Analyses by name: what `metrist meta --show NAME` adds to the main table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from metrist.errors import RunError, did_you_mean
from metrist.evaluate.meta.analyses.judgments import (
    agreement_tables,
    confusion_tables,
    error_tables,
    reduction_tables,
    strength_tables,
)
from metrist.evaluate.meta.analyses.metrics import (
    correlation_tables,
    cost_tables,
    curve_tables,
    matrix_tables,
    power_tables,
    tested_tables,
    tie_tables,
    top_k_tables,
)
from metrist.evaluate.meta.analyses.systems import (
    bias_tables,
    inflation_tables,
    label_space_tables,
    level_agreement_tables,
    level_tables,
    rating_tables,
)
from metrist.evaluate.meta.evaluate import RATERS_ONLY
from metrist.evaluate.meta.notes import advice_tables
from metrist.evaluate.meta.results import MetaEvaluation
from metrist.report.tables import Table

#: The function that makes the tables of each analysis.
ANALYSES: Mapping[str, Callable[[MetaEvaluation], list[Table]]] = MappingProxyType(
    {
        "matrix": matrix_tables,
        "tests": tested_tables,
        "power": power_tables,
        "top-k": top_k_tables,
        "metrics": correlation_tables,
        "bias": bias_tables,
        "systems": level_tables,
        "ratings": rating_tables,
        "levels": level_agreement_tables,
        "inflation": inflation_tables,
        "label-space": label_space_tables,
        "ties": tie_tables,
        "curve": curve_tables,
        "agreement": agreement_tables,
        "errors": error_tables,
        "reductions": reduction_tables,
        "confusion": confusion_tables,
        "strengths": strength_tables,
        "cost": cost_tables,
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
        raise RunError(
            f"unknown analysis {name!r}; known are {', '.join(ANALYSES)}{did_you_mean(name, ANALYSES)}",
            code="unknown_name",
        )
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
