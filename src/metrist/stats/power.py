"""How many more items (or systems) would separate two metrics: the power of a paired comparison.

A normal approximation. The standard error of a difference shrinks with the square root of what is resampled; a
two-sided test at alpha finds a true difference d with probability `power` once d is (z[1 - alpha/2] + z[power])
standard errors. What was observed is taken for the truth, so the number is a guide to the next study and no part of a
test: an observed difference that is too large by luck asks for too few items.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from metrist.errors import RunError
from metrist.stats.certainty import Over
from metrist.stats.multiple import Correction
from metrist.stats.tails import normal_quantile

#: A difference this many times smaller than its standard error would take a million times the units.
_HOPELESS = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """`needed` units in all would separate the two; None: no number of them would, or nothing is known. Units are what
    the standard error is over; of both items and systems, as many times more of either as of the fewer."""

    difference: float
    standard_error: float
    units: int
    over: Over
    needed: int | None
    alpha: float
    power: float
    reason: str = ""

    @property
    def more(self) -> int | None:
        """How many units beyond those at hand; 0 where they should be enough."""
        return None if self.needed is None else max(0, self.needed - self.units)

    def __str__(self) -> str:
        if self.needed is None:
            return self.reason
        if self.over == "both":
            times = math.ceil(10 * self.needed / self.units) / 10
            enough = "the items and systems are enough to separate these two"
            return f"about {times:g} times the items and the systems would separate these two" if self.more else enough
        if not self.more:
            return f"the {self.units:,} {self.over} are enough to separate these two"
        return f"about {_round(self.more):,} more {self.over} would separate these two"


def power_of(
    difference: float,
    standard_error: float,
    units: int,
    alpha: float = 0.05,
    power: float = 0.8,
    *,
    over: Over = "items",
) -> Power:
    """From a difference and its standard error over so many items, systems, or (the fewer of) both."""
    if not (0 < alpha < 1 and 0 < power < 1):
        raise RunError(f"alpha and power must lie between 0 and 1, got {alpha} and {power}")
    needed, reason = _needed(difference, standard_error, units, alpha, power, _NAMES[over])
    return Power(
        difference=difference,
        standard_error=standard_error,
        units=units,
        over=over,
        needed=needed,
        alpha=alpha,
        power=power,
        reason=reason,
    )


def strictest_level(alpha: float, tests: int, correction: Correction) -> float:
    """The level that one of so many tests must reach at worst to be significant at alpha after the correction: the
    first step of Holm's and of Benjamini and Hochberg's ladder."""
    return alpha if correction == "none" else alpha / max(1, tests)


_NAMES = {"items": "items", "systems": "systems", "both": "items and systems"}


def _needed(
    difference: float, standard_error: float, units: int, alpha: float, power: float, name: str
) -> tuple[int | None, str]:
    if math.isnan(difference) or math.isnan(standard_error):
        return None, f"too little is known of the difference to say how many {name} would separate these two"
    if difference == 0:
        return None, f"no number of {name} would separate these two: the difference seen is 0"
    reach = normal_quantile(1 - alpha / 2) + normal_quantile(power)
    ratio = reach * standard_error / abs(difference)
    if ratio > _HOPELESS:
        return None, f"no number of {name} within reach would separate these two: the difference seen is too near 0"
    # Below two units there is no test at all.
    return max(2, math.ceil(units * ratio**2)), ""


def _round(count: int) -> int:
    """Two digits: more would promise what an approximation cannot keep."""
    size = int("1".ljust(len(str(count)) - 1, "0"))
    return math.ceil(count / size) * size
