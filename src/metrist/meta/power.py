"""How many more items would separate two metrics, or two systems: the power of a paired comparison.

A normal approximation. The standard error of a difference shrinks with the square root of the items; a two-sided test
at alpha finds a true difference d with probability `power` once d is (z[1 - alpha/2] + z[power]) standard errors.
What was observed is taken for the truth, so the number is a guide to the next study and no part of a test: an observed
difference that is too large by luck asks for too few items.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from metrist.errors import RunError
from metrist.meta.resample import Floats
from metrist.meta.tails import normal_quantile, normal_tail

#: A difference this many times smaller than its standard error would take a million times the items.
_HOPELESS = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """`needed` items in all would separate the two; None: no number of them would, or nothing is known."""

    difference: float
    standard_error: float
    items: int
    needed: int | None
    alpha: float
    power: float
    reason: str = ""

    @property
    def more(self) -> int | None:
        """How many items beyond those at hand; 0 where they should be enough."""
        return None if self.needed is None else max(0, self.needed - self.items)

    def __str__(self) -> str:
        if self.more is None:
            return self.reason
        if not self.more:
            return f"the {self.items:,} items are enough to separate these two"
        return f"about {_round(self.more):,} more items would separate these two"


def power_of(difference: float, standard_error: float, items: int, alpha: float = 0.05, power: float = 0.8) -> Power:
    """From a difference and its standard error over so many items (of a bootstrap over items, say)."""
    if not (0 < alpha < 1 and 0 < power < 1):
        raise RunError(f"alpha and power must lie between 0 and 1, got {alpha} and {power}")
    needed, reason = _needed(difference, standard_error, items, alpha, power)
    return Power(
        difference=difference,
        standard_error=standard_error,
        items=items,
        needed=needed,
        alpha=alpha,
        power=power,
        reason=reason,
    )


def power_of_items(first: Floats, second: Floats, alpha: float = 0.05, power: float = 0.8) -> Power:
    """From one value per item for either side, whose means are compared; an item without both values is left out."""
    differences = (first - second)[~np.isnan(first - second)]
    items = len(differences)
    if items < 2:
        return power_of(float(differences.mean()) if items else math.nan, math.nan, items, alpha, power)
    standard_error = float(differences.std(ddof=1)) / math.sqrt(items)
    return power_of(float(differences.mean()), standard_error, items, alpha, power)


def power_of_draws(difference: float, resampled: Floats, items: int, alpha: float = 0.05, power: float = 0.8) -> Power:
    """From the differences on resamples of the items (`certainty.resampled`, first less second)."""
    known = resampled[~np.isnan(resampled)]
    standard_error = float(known.std(ddof=1)) if len(known) >= 2 else math.nan
    return power_of(difference, standard_error, items, alpha, power)


def power_at(difference: float, standard_error: float, items: int, wanted: int, alpha: float = 0.05) -> float:
    """The chance that so many items would find the difference, if it is true as observed."""
    if standard_error == 0 or math.isnan(standard_error) or math.isnan(difference):
        return math.nan
    effect = abs(difference) / (standard_error * math.sqrt(items / wanted))
    critical = normal_quantile(1 - alpha / 2)
    return normal_tail(critical - effect) + normal_tail(critical + effect)


def _needed(difference: float, standard_error: float, items: int, alpha: float, power: float) -> tuple[int | None, str]:
    if math.isnan(difference) or math.isnan(standard_error):
        return None, "too little is known of the difference to say how many items would separate these two"
    if difference == 0:
        return None, "no number of items would separate these two: the difference seen is 0"
    reach = normal_quantile(1 - alpha / 2) + normal_quantile(power)
    ratio = reach * standard_error / abs(difference)
    if ratio > _HOPELESS:
        return None, "no number of items within reach would separate these two: the difference seen is too near 0"
    # Below two items there is no test at all.
    return max(2, math.ceil(items * ratio**2)), ""


def _round(count: int) -> int:
    """Two digits: more would promise what an approximation cannot keep."""
    size = int("1".ljust(len(str(count)) - 1, "0"))
    return math.ceil(count / size) * size
