"""Pairs of outputs between which humans chose, and what each metric chose: from its scores, or as it was stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from metrist.errors import RunError
from metrist.studies.meta.judged import Codes, Compared, Floats, Judged, chosen, unknown
from metrist.studies.meta.plan import Plan
from metrist.studies.meta.slices import chosen_outputs


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChosenPairs:
    """One entry per pair: its outputs, and what humans chose (1 first, -1 second, 0 tie)."""

    first: Codes
    second: Codes
    human: Floats

    def take(self, mask: Codes) -> ChosenPairs:
        return ChosenPairs(first=self.first[mask], second=self.second[mask], human=self.human[mask])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chooser:
    """A metric's leaning on each pair: the difference of two scores, or 1, -1, 0 as stored (`stored`); NaN where it
    gave none."""

    name: str
    leaning: Floats
    stored: bool = False


def gold_pairs(judged: Judged, plan: Plan, aspect: str) -> ChosenPairs:
    """The humans' choice on each pair: the majority of the raters, a tie where they are undecided; or one rater's."""
    compared = judged.preferences[aspect]
    if plan.gold in judged.raters:
        compared = _of_rater(compared, judged.raters.index(plan.gold))
    elif plan.gold not in ("mean", "majority"):
        raise RunError(unknown("gold of preferences", plan.gold, ["majority", *judged.raters]))
    low, high, choice = _ordered(compared)
    pairs, at = np.unique(np.stack([low, high]), axis=1, return_inverse=True)
    votes = np.zeros((pairs.shape[1], 3))
    np.add.at(votes, (at.reshape(-1), choice.astype(np.intp) + 1), 1.0)
    most = votes.max(axis=1, keepdims=True)
    decided = (votes == most).sum(axis=1) == 1
    human = np.where(decided, votes.argmax(axis=1) - 1.0, 0.0)
    found = ChosenPairs(first=pairs[0], second=pairs[1], human=human)
    kept = np.zeros(len(judged), dtype=np.bool_)
    kept[chosen_outputs(judged, systems=plan.systems, exclude_systems=plan.exclude_systems)] = True
    return found.take(np.flatnonzero(kept[found.first] & kept[found.second]))


def choosers(judged: Judged, pairs: ChosenPairs, wanted: Sequence[str] | None) -> list[Chooser]:
    """What the metrics asked for (or all) say of the pairs."""
    known = [*judged.choices, *(name for name in judged.scores if name not in judged.choices)]
    if not known:
        raise RunError(
            "the data hold neither scores nor choices to judge: give the run folder that `metrist score` wrote too"
        )
    return [_chooser(judged, pairs, name) for name in (known if wanted is None else chosen("metric", wanted, known))]


def _chooser(judged: Judged, pairs: ChosenPairs, name: str) -> Chooser:
    if name not in judged.choices:
        values = judged.scores[name].signed()
        return Chooser(name=name, leaning=values[pairs.first] - values[pairs.second])
    low, high, choice = _ordered(judged.choices[name])
    given = {pair: value for *pair_, value in zip(low, high, choice, strict=True) for pair in [tuple(pair_)]}
    leaning = [given.get(pair, np.nan) for pair in zip(pairs.first, pairs.second, strict=True)]
    return Chooser(name=name, leaning=np.array(leaning, dtype=np.float64), stored=True)


def _of_rater(compared: Compared, rater: int) -> Compared:
    mask = compared.rater == rater
    return Compared(
        first=compared.first[mask],
        second=compared.second[mask],
        rater=compared.rater[mask],
        choice=compared.choice[mask],
    )


def _ordered(compared: Compared) -> tuple[Codes, Codes, Floats]:
    """Pairs with the lower output number first, so that a pair shown in either order is one pair."""
    swapped = compared.first > compared.second
    low, high = np.minimum(compared.first, compared.second), np.maximum(compared.first, compared.second)
    return low, high, np.where(swapped, -compared.choice, compared.choice)
