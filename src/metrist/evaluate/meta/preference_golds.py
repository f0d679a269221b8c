"""Gold values of outputs from choices between two, of people or of a comparator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from metrist.errors import RunError
from metrist.evaluate.meta.dataset import JudgedDataset, check_names
from metrist.evaluate.meta.preferences import (
    PREFERENCE_GOLDS,
    compare_systems,
    preference_aspects,
    select_choices,
    split_gold,
)
from metrist.evaluate.plans import MetaPlan
from metrist.stats.gold import UNKNOWN, Ratings
from metrist.stats.preferences import bradley_terry, shares_won


def _choose_comparator(dataset: JudgedDataset, gold: str, name: str) -> str:
    """Return the comparator with this name, in full or without its settings; of an empty name, the only one."""
    known = list(dataset.choices)
    named = [label for label in known if name in (label, label.partition("(")[0], "")]
    if len(named) > 1:
        listed = " or ".join(f"`gold={f'{gold}:{label}'!r}`" for label in named)
        raise RunError(f"several comparators chose: {listed}", code="missing_value")
    return named[0] if named else check_names("comparator", [name], known)[0]


def derive_ratings(dataset: JudgedDataset, plan: MetaPlan) -> tuple[JudgedDataset, list[str]]:
    """Return the data with the plan's gold from preferences, one rating per output and aspect, as the only ratings, and
    notes on them."""
    gold, comparator = split_gold(plan.gold)
    notes = [PREFERENCE_GOLDS[gold]]
    if comparator or (dataset.choices and not dataset.preferences):
        comparator = _choose_comparator(dataset, gold, comparator)
        dataset = replace(dataset, preferences={comparator: dataset.choices[comparator]})
        notes.append(f"Gold: choices of {comparator}, not of people.")
    if gold == "bradley-terry" and plan.group != "system-level":
        raise RunError(
            f"`gold='bradley-terry'` gives one strength per system and cannot compare outputs by {plan.group}: use "
            "`group='system-level'`, or `gold='win-rate'`"
        )
    # `top_k` selects systems by these values later, so the choices between all systems enter them.
    all_systems = replace(plan, top_k=None)
    ratings = {}
    for aspect in preference_aspects(dataset, plan.aspects):
        choices = select_choices(dataset, all_systems, aspect)
        if gold == "bradley-terry":
            preferences, systems = compare_systems(dataset, choices)
            names = [dataset.systems.names[code] for code in systems]
            strength = np.full(len(dataset.systems.names), np.nan)
            strength[systems] = bradley_terry(preferences, names=names).strength
            values = strength[dataset.systems.codes]
        else:
            values = shares_won(choices.first, choices.second, choices.choice, len(dataset))
        outputs = np.unique(np.concatenate([choices.first, choices.second]))
        ratings[aspect] = Ratings.of(outputs, np.full(len(outputs), UNKNOWN), values[outputs], len(dataset))
    return replace(dataset, ratings=ratings), notes
