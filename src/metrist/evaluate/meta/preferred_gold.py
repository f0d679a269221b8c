"""Gold from preferences: a value per output, or per system, that metrics' scores can be set beside.

win-rate        the share of an output's preferences that it won, a tie being half a win; a system's is the mean over
                its outputs
bradley-terry   a system's strength by Bradley and Terry's model with ties, out of all its preferences; of use between
                systems only
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from metrist.errors import RunError
from metrist.evaluate.meta.judged import Compared, Floats, Judged
from metrist.evaluate.meta.pairs import aspects_of_preferences, between_systems, taken_choices
from metrist.evaluate.meta.plan import Plan
from metrist.stats.bradley_terry import bradley_terry
from metrist.stats.preferences import shares_won
from metrist.stats.raters import UNKNOWN, Ratings

#: Per gold from preferences, what a reader must know of it.
PREFERRED_GOLDS: Mapping[str, str] = MappingProxyType(
    {
        "win-rate": "Gold: the share of its preferences that an output won, a tie being half a win; a system's is the "
        "mean over its outputs.",
        "bradley-terry": "Gold: each system's Bradley-Terry strength with ties, from all its preferences; intervals "
        "and tests hold it fixed.",
    }
)


def with_preferred_gold(judged: Judged, plan: Plan) -> Judged:
    """The data with one rating per output and aspect of preferences, the plan's gold, in place of all ratings."""
    if plan.gold == "bradley-terry" and plan.group != "system-level":
        raise RunError(
            f"--gold bradley-terry is one strength per system, it cannot tell outputs apart by {plan.group}: "
            "--group system-level, or --gold win-rate"
        )
    # The systems that humans prefer are found from these values later: all choices between systems go into them.
    everyone = replace(plan, top_k=None)
    ratings = {}
    for aspect in aspects_of_preferences(judged, plan.aspects):
        compared = taken_choices(judged, everyone, aspect)
        made = _strengths if plan.gold == "bradley-terry" else _shares
        outputs = np.unique(np.concatenate([compared.first, compared.second]))
        ratings[aspect] = Ratings.of(
            outputs, np.full(len(outputs), UNKNOWN), made(judged, compared)[outputs], len(judged)
        )
    return replace(judged, ratings=ratings)


def _shares(judged: Judged, compared: Compared) -> Floats:
    return shares_won(compared.first, compared.second, compared.choice, len(judged))


def _strengths(judged: Judged, compared: Compared) -> Floats:
    found, systems = between_systems(judged, compared)
    names = [judged.systems.names[code] for code in systems]
    strength = np.full(len(judged.systems.names), np.nan)
    strength[systems] = bradley_terry(found, names=names).strength
    return strength[judged.systems.codes]
