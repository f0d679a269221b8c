"""What one can ask of a text: criteria by name, each with its instruction, and suites of them with published results.

criteria.find("grammaticality").instruction        a criterion for any task
criteria.find("CNG").fields                        one of a suite's, by its code or its name
criteria.suite("heap").accuracy["multi"]["CNG"]    what its paper reports
"""

from __future__ import annotations

from metrist.criteria.criterion import (
    Chosen,
    Circle,
    Criterion,
    Figure,
    Grid,
    Suite,
    find,
    general,
    known,
    names,
    suite,
    suites,
)

__all__ = [
    "Chosen",
    "Circle",
    "Criterion",
    "Figure",
    "Grid",
    "Suite",
    "find",
    "general",
    "known",
    "names",
    "suite",
    "suites",
]
