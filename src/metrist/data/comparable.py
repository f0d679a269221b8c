"""Whether two outputs can be compared at all, whatever people said of them."""

from __future__ import annotations

from metrist.data import account as reasons
from metrist.data.good_bad import Fields
from metrist.data.rules import Rules


def unfit(first: Fields | None, second: Fields | None, rules: Rules) -> str | None:
    """Why two outputs make no pair, or None where they may. Fields are None without their context."""
    if first is None or second is None:
        return reasons.NO_CONTEXT
    if not (first[-1][1].strip() and second[-1][1].strip()):
        return reasons.EMPTY_TEXT
    if first[:-1] != second[:-1]:
        return reasons.OTHER_CONTEXT if rules.within == "item" else None
    return reasons.SAME_TEXT if first[-1] == second[-1] else None
