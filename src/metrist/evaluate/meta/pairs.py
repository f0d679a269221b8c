"""Pairs of outputs between which humans chose, and what each metric chose: from its scores, or as it was stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from metrist.errors import RunError
from metrist.evaluate.meta.judged import Codes, Compared, Floats, Judged, Mask, chosen, unknown
from metrist.evaluate.meta.plan import Plan
from metrist.evaluate.meta.slices import chosen_outputs
from metrist.stats.preferences import Preferences, shares_won


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


def aspects_of_preferences(judged: Judged, wanted: Sequence[str]) -> list[str]:
    """The aspects asked for, or all by which people chose between outputs."""
    known = list(judged.preferences)
    if not known:
        raise RunError(
            "the data hold no preferences: rows with 'systems' and 'outputs' of two, and 'ratings' of 1, 2 or 0"
        )
    return chosen("aspect of preferences", wanted, known) if wanted else known


def taken_choices(judged: Judged, plan: Plan, aspect: str) -> Compared:
    """The choices that could be read, between outputs of the systems that take part; those of one rater where the gold
    names one."""
    compared = judged.preferences[aspect]
    kept = ~np.isnan(compared.choice)
    if plan.gold in judged.raters:
        kept &= compared.rater == judged.raters.index(plan.gold)
    there = np.zeros(len(judged), dtype=np.bool_)
    there[chosen_outputs(judged, systems=plan.systems, exclude_systems=plan.exclude_systems)] = True
    kept &= there[compared.first] & there[compared.second]
    if not kept.any():
        raise RunError(f"none of the pairs that were judged by {aspect!r} is left after the choice of systems")
    taken = _chosen(compared, kept)
    return taken if plan.top_k is None else _among_the_best(judged, taken, plan.top_k)


def gold_pairs(judged: Judged, plan: Plan, aspect: str) -> ChosenPairs:
    """The humans' choice on each pair: the majority of the raters, a tie where they are undecided; or one rater's."""
    if plan.gold not in ("mean", "majority", *judged.raters):
        raise RunError(unknown("gold of preferences", plan.gold, ["majority", *judged.raters]))
    return voted(taken_choices(judged, plan, aspect))


def voted(compared: Compared) -> ChosenPairs:
    """One choice per pair: that of most raters, a tie where they are undecided."""
    pairs, at, choice = distinct_pairs(compared)
    votes = np.zeros((pairs.shape[1], 3))
    np.add.at(votes, (at, choice.astype(np.intp) + 1), 1.0)
    decided = (votes == votes.max(axis=1, keepdims=True)).sum(axis=1) == 1
    human = np.where(decided, votes.argmax(axis=1) - 1.0, 0.0)
    return ChosenPairs(first=pairs[0], second=pairs[1], human=human)


def distinct_pairs(compared: Compared) -> tuple[Codes, Codes, Floats]:
    """The pairs (2, pairs) with the lower output number first, which of them each choice is of, and the choice so
    turned: a pair shown in either order is one pair."""
    low, high, choice = _ordered(compared)
    pairs, at = np.unique(np.stack([low, high]), axis=1, return_inverse=True)
    return pairs, at.reshape(-1), choice


def between_systems(judged: Judged, compared: Compared) -> tuple[Preferences, Codes]:
    """The choices as preferences between systems, numbered anew; the code in the data of each that takes part."""
    both = judged.systems.codes[np.stack([compared.first, compared.second])]
    systems, place = np.unique(both, return_inverse=True)
    first, second = place.reshape(both.shape)
    items = judged.items.codes[compared.first]
    return Preferences.of(items, first, second, compared.choice.astype(np.intp), len(systems)), systems


def choosers(judged: Judged, pairs: ChosenPairs, wanted: Sequence[str] | None) -> list[Chooser]:
    """What the metrics asked for (or all) say of the pairs."""
    known = [*judged.choices, *(name for name in judged.scores if name not in judged.choices)]
    if not known:
        raise RunError(
            "the data hold neither scores nor choices to judge: give the run folder that `metrist score` wrote too "
            "(--agreement and --show strengths need none)"
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


def _among_the_best(judged: Judged, compared: Compared, count: int) -> Compared:
    """The choices between the `count` systems of the highest win rate (of equal ones, the first)."""
    codes = judged.systems.codes
    rates = shares_won(codes[compared.first], codes[compared.second], compared.choice, len(judged.systems.names))
    ranked = [code for code in np.argsort(-rates, kind="stable") if not np.isnan(rates[code])]
    if not 2 <= count <= len(ranked):
        raise RunError(
            f"--top-k {count}: people chose between {len(ranked)} systems; wanted a number from 2 to {len(ranked)}"
        )
    best = np.isin(codes, ranked[:count])
    kept = best[compared.first] & best[compared.second]
    if not kept.any():
        raise RunError(f"--top-k {count}: nobody chose between outputs of these systems")
    return _chosen(compared, kept)


def _chosen(compared: Compared, mask: Mask) -> Compared:
    return Compared(
        first=compared.first[mask],
        second=compared.second[mask],
        rater=compared.rater[mask],
        choice=compared.choice[mask],
    )


def _ordered(compared: Compared) -> tuple[Codes, Codes, Floats]:
    swapped = compared.first > compared.second
    low, high = np.minimum(compared.first, compared.second), np.maximum(compared.first, compared.second)
    return low, high, np.where(swapped, -compared.choice, compared.choice)
