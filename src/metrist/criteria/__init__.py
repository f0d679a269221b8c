"""Criteria by name, each with its instruction, and suites of criteria with published results.

criteria.find("grammaticality").instruction        a criterion for any task
criteria.find("CNG").fields                        a criterion of a suite, by its code or its name
criteria.suite("heap").accuracy["multi"]["CNG"]    the figure of the suite's paper
"""

from __future__ import annotations

from metrist.criteria.criterion import (
    ChosenSettings,
    CriteriaGroup,
    Criterion,
    Figure,
    SettingsGrid,
    Suite,
    find,
    general,
    known,
    names,
    suite,
    suites,
)

__all__ = [
    "ChosenSettings",
    "CriteriaGroup",
    "Criterion",
    "Figure",
    "SettingsGrid",
    "Suite",
    "find",
    "general",
    "known",
    "names",
    "suite",
    "suites",
]
