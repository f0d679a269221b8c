"""Analyses by name: what `--show NAME` adds to the main table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from types import MappingProxyType

from metrist.errors import RunError, did_you_mean
from metrist.evaluate.meta.people import OF_PEOPLE
from metrist.evaluate.meta.result import MetaEvaluation
from metrist.report.tables import Table

_HOME = "metrist.evaluate.meta"
#: Per name, the function that makes its tables and what they show in a few words.
SHOWS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "matrix": ("analyses.between_metrics:matrix_tables", "metric by slice, with mean ranks"),
        "tests": ("analyses.between_metrics:tested_tables", "every pair of metrics with its p-values"),
        "power": ("analyses.between_metrics:power_tables", "how many more items would separate neighbours"),
        "top-k": ("analyses.between_metrics:top_k_tables", "agreement on ever fewer, ever better systems"),
        "metrics": ("analyses.between_metrics:correlation_tables", "correlation between metrics"),
        "bias": ("analyses.systems:bias_tables", "rank by humans minus rank by the metric, per system and group"),
        "systems": ("analyses.systems:level_tables", "mean level per system, human beside metric, with the gap"),
        "levels": ("analyses.levels:level_agreement_tables", "agreement at each human level"),
        "inflation": ("analyses.levels:inflation_tables", "what the outputs that humans rate lowest earn"),
        "label-space": ("analyses.label_space:label_space_tables", "what wrong answers of a closed set earn"),
        "ties": ("analyses.ties:tie_tables", "how often humans and metrics tie"),
        "curve": ("analyses.ties:curve_tables", "accuracy by tie threshold"),
        "agreement": ("analyses.raters:agreement_tables", "agreement among raters"),
        "errors": ("analyses.errors:error_tables", "do metrics' errors lie where humans mark theirs"),
        "reductions": ("analyses.errors:reduction_tables", "how much is taken off, per system"),
        "confusion": ("analyses.preferred:confusion_tables", "preferences: choices of humans by choices of metrics"),
        "strengths": ("analyses.preferred:strength_tables", "preferences: win rates and Bradley-Terry strengths"),
        "cost": ("analyses.cost:cost_tables", "agreement beside seconds and money per output"),
        "advice": ("recommend:advice_tables", "which metric to trust where, in words"),
    }
)


#: What can be shown of an evaluation on preferences.
OF_PREFERENCES = ("matrix", "tests", "agreement", "errors", "confusion", "strengths", "cost", "advice")
#: Analyses whose intervals are over items whatever else is resampled.
_OVER_ITEMS = ("levels", "agreement", "errors", "strengths")


def shown(name: str, evaluation: MetaEvaluation) -> list[Table]:
    """The tables of one analysis."""
    if name not in SHOWS:
        raise RunError(f"nothing to show named {name!r}; known are {', '.join(SHOWS)}{did_you_mean(name, SHOWS)}")
    if not evaluation.figures and name not in OF_PEOPLE:
        raise RunError(f"{name} is of metrics, and there are none; without them: {' and '.join(OF_PEOPLE)}")
    if evaluation.plan.preferences and name not in OF_PREFERENCES:
        raise RunError(
            f"{name} is of ratings, and this evaluation is of preferences: try one of {', '.join(OF_PREFERENCES)}"
        )
    module, _, function = SHOWS[name][0].partition(":")
    tables: list[Table] = getattr(import_module(f"{_HOME}.{module}"), function)(evaluation)
    if name in _OVER_ITEMS and evaluation.plan.resample != "items" and evaluation.plan.draws:
        return [
            replace(table, notes=[*table.notes, "Intervals of this table: resamples of items."]) for table in tables
        ]
    return tables
