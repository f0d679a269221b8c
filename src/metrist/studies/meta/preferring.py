"""Meta-evaluation on preferences: does a metric choose as people do between two outputs?

accuracy   the share of pairs where the metric chooses what humans chose; equal scores are a tie
f1         the mean F1 of the choices first, second and tie, of those that were made
acc_eq     accuracy at the metric's best tie threshold (stored choices have none)
and every pairwise measure (`darr_wmt14`, `darr_wmt17`, `gamma`, `pair_accuracy`, `concordance`) on the same counts.

What is resampled, and exchanged between metrics, are items with all their pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from metrist.errors import RunError, SpecError, did_you_mean
from metrist.meta import choices
from metrist.meta.measures import MEASURES
from metrist.meta.multiple import adjust
from metrist.meta.ranking import clusters
from metrist.meta.resample import bootstrap_scores, interval, pooled
from metrist.studies.meta.judged import Codes, Floats, Judged, chosen
from metrist.studies.meta.notes import direction_notes, plan_notes
from metrist.studies.meta.pairs import Chooser, ChosenPairs, choosers, gold_pairs
from metrist.studies.meta.plan import Plan
from metrist.studies.meta.result import Figure, MetaEvaluation, Tests
from metrist.studies.meta.slices import Slice, slices_of
from metrist.studies.meta.tail_p_values import exchange_p_values

Pool = Callable[[Floats], Floats]
_CELLS = 9


@dataclass(frozen=True, slots=True)
class _Measure:
    """Values, chance level and all-ties baseline, each out of summed confusion tables (..., 9)."""

    pool: Pool
    chance: Pool
    all_ties: Pool


def _tabled(pool: Pool) -> Pool:
    return lambda sums: pool(sums.reshape(*sums.shape[:-1], 3, 3))


def _tie_share(tables: Floats) -> Floats:
    total = tables.sum(axis=(-2, -1))
    part = tables[..., choices.TIE, :].sum(axis=-1)
    shares: Floats = np.divide(part, total, out=np.full(np.shape(total), np.nan), where=total > 0)
    return shares


def _pairwise(name: str) -> _Measure:
    made = MEASURES[name]

    def of_counts(pool: Pool) -> Pool:
        return _tabled(lambda tables: pool(choices.pair_counts(tables)))

    return _Measure(of_counts(made.pool), of_counts(made.chance), of_counts(made.all_ties or made.chance))


def _nothing(tables: Floats) -> Floats:
    return np.full(tables.shape[:-2], np.nan)


_ACCURACY = _Measure(_tabled(choices.accuracy), _tabled(choices.chance_accuracy), _tabled(_tie_share))
_PAIRWISE = ("gamma", "kendall_a", "darr_wmt14", "darr_wmt17", "concordance", "pair_accuracy")
PREFERENCE_MEASURES: Mapping[str, _Measure] = {
    "accuracy": _ACCURACY,
    "f1": _Measure(_tabled(choices.macro_f1), _tabled(_nothing), _tabled(_nothing)),
    "acc_eq": _ACCURACY,
    **{name: _pairwise(name) for name in _PAIRWISE},
}


def evaluate_preferences(judged: Judged, plan: Plan) -> MetaEvaluation:
    """Figures for every aspect that people were asked to choose by."""
    for name in plan.measures:
        if name not in PREFERENCE_MEASURES:
            known = ", ".join(PREFERENCE_MEASURES)
            raise SpecError(
                f"no measure of preferences {name!r}{did_you_mean(name, PREFERENCE_MEASURES)} (known: {known})"
            )
    if plan.epsilon_over not in ("all", "slice"):
        raise RunError(
            f"on preferences a tie threshold is chosen over all or per slice, not over {plan.epsilon_over!r}"
        )
    aspects = _aspects(judged, plan)
    figures: list[Figure] = []
    tests: list[Tests] = []
    notes: list[str] = []
    for aspect in aspects:
        pairs = gold_pairs(judged, plan, aspect)
        if not len(pairs.human):
            raise RunError(f"none of the pairs that were judged by {aspect!r} is left after the choice of systems")
        found = choosers(judged, pairs, plan.metrics)
        for one in _slices(judged, plan, pairs):
            for name in plan.measures:
                made, tested = _figures(judged, plan, aspect, pairs, found, one, name)
                figures, tests = figures + made, [*tests, tested]
        notes += _notes(pairs, found, aspect)
    about = [*plan_notes(plan, figures, tests), *notes, *direction_notes(list(judged.scores.values()))]
    return MetaEvaluation(
        judged=judged,
        plan=plan,
        figures=tuple(figures),
        tests=tuple(tests),
        notes=(*dict.fromkeys(about), *judged.notes),
    )


def choice_table(human: Floats, leaning: Floats, epsilon: float = 0.0) -> Floats:
    """The confusion table (3, 3), humans by metric in the order first, second, tie, of pairs where both chose."""
    known = ~np.isnan(leaning)
    table: Floats = choices.confusion(_codes(human[known]), choices.chosen(leaning[known], epsilon))[0]
    return table


def best_epsilon(human: Floats, leaning: Floats) -> float:
    """The tie threshold of the greatest accuracy, the smallest of equals."""
    known = ~np.isnan(leaning)
    gaps, order = np.unique(np.abs(leaning[known]), return_inverse=True)
    if not len(gaps):
        return math.nan
    # Raising the threshold over a gap makes its human ties right, and its rightly ordered pairs wrong.
    tied = (human[known] == 0).astype(np.float64)
    ordered = ((np.sign(leaning[known]) == human[known]) & (human[known] != 0)).astype(np.float64)
    gained = np.bincount(order.reshape(-1), weights=tied - ordered, minlength=len(gaps))
    right = ordered.sum() + np.cumsum(gained)
    best = int(np.argmax(right))
    return 0.0 if gaps[0] > 0 and right[best] <= ordered.sum() else float(gaps[best])


def _aspects(judged: Judged, plan: Plan) -> list[str]:
    known = list(judged.preferences)
    if not known:
        raise RunError(
            "the data hold no preferences: rows with 'systems' and 'outputs' of two, and 'ratings' of 1, 2 or 0"
        )
    return chosen("aspect of preferences", plan.aspects, known) if plan.aspects else known


def _slices(judged: Judged, plan: Plan, pairs: ChosenPairs) -> list[Slice]:
    """Slices of pairs, by what both outputs share; `outputs` of such a slice are the pairs' numbers."""
    everyone = np.unique(np.concatenate([pairs.first, pairs.second]))
    made = []
    for one in slices_of(judged, plan.slices, everyone):
        inside = np.zeros(len(judged), dtype=np.bool_)
        inside[one.outputs] = True
        kept = np.flatnonzero(inside[pairs.first] & inside[pairs.second])
        if len(kept):
            made.append(replace(one, outputs=kept))
    return made


def _figures(
    judged: Judged, plan: Plan, aspect: str, pairs: ChosenPairs, found: Sequence[Chooser], one: Slice, name: str
) -> tuple[list[Figure], Tests]:
    measure, here = PREFERENCE_MEASURES[name], pairs.take(one.outputs)
    items, item = np.unique(judged.items.codes[here.first], return_inverse=True)
    epsilons = [_epsilon(plan, pairs, chooser, one, name) for chooser in found]
    stats = np.stack(
        [
            _rows(here.human, chooser.leaning[one.outputs], epsilon, item.reshape(-1), len(items))
            for chooser, epsilon in zip(found, epsilons, strict=True)
        ]
    )
    values = pooled(stats, measure.pool)
    resampled = bootstrap_scores(stats, measure.pool, plan.draws, np.random.default_rng(plan.seed))
    tests = _tests(plan, aspect, one, name, found, stats, values)
    rank = clusters(values, tests.adjusted, plan.alpha) * bool(np.isfinite(tests.adjusted).any())
    figures = []
    for number, chooser in enumerate(found):
        low, high = interval(resampled[:, number], plan.confidence, len(items))
        sums = stats[number].sum(axis=0)
        figures.append(
            Figure(
                metric=chooser.name,
                aspect=aspect,
                measure=name,
                group="pairs",
                slice=one.name,
                value=float(values[number]),
                low=low if not math.isnan(values[number]) else math.nan,
                high=high if not math.isnan(values[number]) else math.nan,
                n=int(sums.sum()),
                coverage=float(sums.sum()) / len(here.human),
                epsilon=epsilons[number] if name == "acc_eq" and not chooser.stored else math.nan,
                chance=float(measure.chance(sums)),
                all_ties=float(measure.all_ties(sums)),
                rank=int(rank[number]),
                groups=len(items),
            )
        )
    return figures, tests


def _epsilon(plan: Plan, pairs: ChosenPairs, chooser: Chooser, one: Slice, name: str) -> float:
    if name != "acc_eq" or chooser.stored:
        return 0.0
    if plan.epsilon_over == "slice":
        found = best_epsilon(pairs.human[one.outputs], chooser.leaning[one.outputs])
    else:
        found = best_epsilon(pairs.human, chooser.leaning)
    return 0.0 if math.isnan(found) else found


def _rows(human: Floats, leaning: Floats, epsilon: float, item: Codes, items: int) -> Floats:
    """(items, 9): each item's confusion table, laid flat."""
    known = ~np.isnan(leaning)
    cell = _codes(human[known]) * 3 + choices.chosen(leaning[known], epsilon)
    rows = np.zeros((items, _CELLS))
    np.add.at(rows, (item[known], cell), 1.0)
    return rows


def _codes(choice: Floats) -> Codes:
    return np.where(choice > 0, choices.FIRST, np.where(choice < 0, choices.SECOND, choices.TIE)).astype(np.intp)


def _tests(
    plan: Plan, aspect: str, one: Slice, name: str, found: Sequence[Chooser], stats: Floats, values: Floats
) -> Tests:
    """Items change hands between two metrics; an item that one of them did not judge takes part for neither."""
    pairs = list(combinations(range(len(found)), 2)) if plan.draws and plan.test != "none" else []
    raw, adjusted = (np.full((len(found), len(found)), np.nan) for _ in range(2))
    measure = PREFERENCE_MEASURES[name]
    p = np.array([_exchange(stats[[a, b]], measure.pool, plan) for a, b in pairs])
    if pairs:
        first, second = np.array(pairs, dtype=np.intp).T
        raw[first, second] = raw[second, first] = p
        adjusted[first, second] = adjusted[second, first] = adjust(p, plan.correction)
    return Tests(
        aspect=aspect,
        measure=name,
        slice=one.name,
        metrics=tuple(chooser.name for chooser in found),
        values=values,
        raw=raw,
        adjusted=adjusted,
        how="permutation of whole items" if pairs else "no tests",
    )


def _exchange(rows: Floats, pool: Pool, plan: Plan) -> float:
    judged_by_both = (rows.sum(axis=-1) > 0).all(axis=0)
    rng = np.random.default_rng(plan.seed)
    return float(exchange_p_values(rows[:, judged_by_both], [(0, 1)], pool, plan.draws, rng)[0])


def _notes(pairs: ChosenPairs, found: Sequence[Chooser], aspect: str) -> list[str]:
    share = {name: np.count_nonzero(pairs.human == value) for name, value in (("first", 1), ("second", -1), ("tie", 0))}
    total = len(pairs.human)
    most, count = max(share.items(), key=lambda entry: entry[1])
    notes = [f"{aspect}: humans prefer one output in {total - share['tie']:,} of {total:,} pairs and tie the rest."]
    if count >= 0.9 * total:
        notes.append(f"Warning: humans choose {most!r} in {count / total:.0%} of the pairs of {aspect}.")
    missing = {chooser.name: int(np.isnan(chooser.leaning).sum()) for chooser in found}
    short = ", ".join(f"{name} {count:,}" for name, count in list(missing.items())[:5] if count)
    return notes + (
        [f"Pairs without a choice or without both scores, left out for that metric: {short}."] if short else []
    )
