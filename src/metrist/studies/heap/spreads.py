"""How figures are written in the tables of the study: ours with their spread, the paper's as printed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from metrist.criteria import Suite
from metrist.report.cells import fixed, or_none
from metrist.studies.heap.estimates import Figure
from metrist.studies.heap.jobs import SetupName

SPLIT_WORDS = {
    "authors": "the authors' split",
    "honest": "a split that keeps each context on one side",
}


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and standard deviation over seeds, and the interval over test pairs: `66.9 ± 1.3 [61.0, 72.5]`."""

    figure: Figure | None
    scale: float = 100.0
    decimals: int = 1

    def __str__(self) -> str:
        if self.figure is None:
            return "–"
        mean, sd, low, high = (
            fixed(self.scale * value, self.decimals)
            for value in (self.figure.mean, self.figure.sd, self.figure.low, self.figure.high)
        )
        words = mean if math.isnan(self.figure.sd) else f"{mean} ± {sd}"
        return words if math.isnan(self.figure.low) else f"{words} [{low}, {high}]"

    def plain(self) -> dict[str, float | int | None] | None:
        if self.figure is None:
            return None
        values = {name: getattr(self.figure, name) for name in ("mean", "sd", "low", "high")}
        return {**{name: or_none(self.scale * value) for name, value in values.items()}, "seeds": self.figure.seeds}


@dataclass(frozen=True, slots=True)
class Printed:
    """What the paper prints: `66.94 ± 1.27`; a dash where it prints nothing."""

    mean: float | None
    sd: float | None = None
    decimals: int = 2

    def __str__(self) -> str:
        if self.mean is None:
            return "–"
        mean = fixed(self.mean, self.decimals)
        return mean if self.sd is None else f"{mean} ± {fixed(self.sd, self.decimals)}"

    def plain(self) -> dict[str, float | None] | None:
        return None if self.mean is None else {"mean": self.mean, "sd": self.sd}


def paper_mean(suite: Suite, setup: SetupName, codes: Sequence[str]) -> float:
    """The mean of what the paper prints for these criteria."""
    return sum(suite.accuracy[setup][code].mean for code in codes) / len(codes)
