"""Pairs of outputs between which humans chose, and what each metric chose: from its scores, or as it was stored."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from types import MappingProxyType

import numpy as np

from metrist.errors import RunError, SpecError, did_you_mean
from metrist.evaluate.meta.dataset import Compared, Judged, chosen, unknown
from metrist.evaluate.meta.metric_tests import pair_table
from metrist.evaluate.meta.notes import direction_notes, plan_notes, reversal_notes
from metrist.evaluate.meta.results import Figure, MetaEvaluation, Plan, Tests
from metrist.evaluate.meta.slices import Slice, chosen_outputs, slices_of
from metrist.stats import Codes, Floats, Mask, preferences
from metrist.stats.bootstrap import FEW_UNITS
from metrist.stats.gold import UNKNOWN, Ratings
from metrist.stats.measures import MEASURES
from metrist.stats.permutation import PermutationTest, exchange_p_values, exchange_rows
from metrist.stats.preferences import Preferences, bradley_terry, shares_won
from metrist.stats.resampling import bootstrap_scores, interval, pooled
from metrist.stats.significance import adjust, clusters, marks


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


# Measures of choices between two outputs, all out of one confusion table of humans' and a metric's choices.
#
# accuracy   the share of pairs where the metric chooses what humans chose; equal scores are a tie
# f1         the mean F1 of the choices first, second and tie, of those that were made
# acc_eq     accuracy at the metric's best tie threshold (stored choices have none)
# and every pairwise measure (`darr_wmt14`, `darr_wmt17`, `gamma`, `pair_accuracy`, `concordance`) on the same counts.


Pool = Callable[[Floats], Floats]
CELLS = 9


@dataclass(frozen=True, slots=True)
class PreferenceMeasure:
    """Values, chance level and all-ties baseline, each out of summed confusion tables (..., 9)."""

    pool: Pool
    chance: Pool
    all_ties: Pool


def _tabled(pool: Pool) -> Pool:
    return lambda sums: pool(sums.reshape(*sums.shape[:-1], 3, 3))


def _tie_share(tables: Floats) -> Floats:
    total = tables.sum(axis=(-2, -1))
    part = tables[..., preferences.TIE_CHOICES, :].sum(axis=-1)
    shares: Floats = np.divide(part, total, out=np.full(np.shape(total), np.nan), where=total > 0)
    return shares


def _pairwise(name: str) -> PreferenceMeasure:
    made = MEASURES[name]

    def of_counts(pool: Pool) -> Pool:
        return _tabled(lambda tables: pool(preferences.pair_counts(tables)))

    return PreferenceMeasure(of_counts(made.pool), of_counts(made.chance), of_counts(made.all_ties or made.chance))


def _nothing(tables: Floats) -> Floats:
    return np.full(tables.shape[:-2], np.nan)


_ACCURACY = PreferenceMeasure(_tabled(preferences.accuracy), _tabled(preferences.chance_accuracy), _tabled(_tie_share))
_PAIRWISE = ("gamma", "kendall_a", "darr_wmt14", "darr_wmt17", "concordance", "pair_accuracy")
PREFERENCE_MEASURES: Mapping[str, PreferenceMeasure] = MappingProxyType(
    {
        "accuracy": _ACCURACY,
        "f1": PreferenceMeasure(_tabled(preferences.macro_f1), _tabled(_nothing), _tabled(_nothing)),
        "acc_eq": _ACCURACY,
        **{name: _pairwise(name) for name in _PAIRWISE},
    }
)


def choice_table(human: Floats, leaning: Floats, epsilon: float = 0.0) -> Floats:
    """The confusion table (3, 3), humans by metric in the order first, second, tie, of pairs where both chose."""
    known = ~np.isnan(leaning)
    table: Floats = preferences.confusion(_codes(human[known]), preferences.chosen(leaning[known], epsilon))[0]
    return table


def choice_rows(human: Floats, leaning: Floats, epsilon: float, item: Codes, items: int) -> Floats:
    """(items, 9): each item's confusion table, laid flat."""
    known = ~np.isnan(leaning)
    cell = _codes(human[known]) * 3 + preferences.chosen(leaning[known], epsilon)
    rows = np.zeros((items, CELLS))
    np.add.at(rows, (item[known], cell), 1.0)
    return rows


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


def _codes(choice: Floats) -> Codes:
    return np.where(
        choice > 0, preferences.FIRST_CHOICES, np.where(choice < 0, preferences.SECOND_CHOICES, preferences.TIE_CHOICES)
    ).astype(np.intp)


# Gold from preferences: a value per output, or per system, that metrics' scores can be set beside.
#
# win-rate        the share of an output's preferences that it won, a tie being half a win; a system's is the mean over
#                 its outputs
# bradley-terry   a system's strength by Bradley and Terry's model with ties, out of all its preferences; of use between
#                 systems only


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


# Figures on preferences: each metric's on one slice, and the mean over slices, with intervals and tests.
#
# What is resampled, and exchanged between metrics, are items with all their pairs.


GROUP = "pairs"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreferenceWork:
    """What all figures of one aspect share; the `outputs` of its slices are numbers of pairs."""

    judged: Judged
    plan: Plan
    aspect: str
    pairs: ChosenPairs
    choosers: Sequence[Chooser]

    def epsilon(self, chooser: Chooser, one: Slice, name: str) -> float:
        """The metric's tie threshold under a measure, 0 where it has none."""
        if name != "acc_eq" or chooser.stored:
            return 0.0
        here = one.outputs if self.plan.epsilon_over == "slice" else np.arange(len(self.pairs.human))
        found = best_epsilon(self.pairs.human[here], chooser.leaning[here])
        return 0.0 if math.isnan(found) else found

    def rows(self, one: Slice, epsilons: Sequence[float], items: Codes) -> Floats:
        """(metrics, items, 9): the confusion tables of these items' pairs within a slice."""
        item = np.searchsorted(items, self.judged.items.codes[self.pairs.first[one.outputs]])
        human = self.pairs.human[one.outputs]
        made = [
            choice_rows(human, chooser.leaning[one.outputs], epsilon, item, len(items))
            for chooser, epsilon in zip(self.choosers, epsilons, strict=True)
        ]
        return np.stack(made)

    def items(self, slices: Sequence[Slice]) -> Codes:
        """The items that these slices have pairs of, ascending."""
        pairs = np.concatenate([one.outputs for one in slices])
        return np.unique(self.judged.items.codes[self.pairs.first[pairs]])


def preference_figures(work: PreferenceWork, one: Slice, name: str) -> tuple[list[Figure], Tests]:
    """The figures of all metrics on one slice, ranked, and the tests behind the ranks."""
    plan, measure, items = work.plan, PREFERENCE_MEASURES[name], work.items([one])
    epsilons = [work.epsilon(chooser, one, name) for chooser in work.choosers]
    stats = work.rows(one, epsilons, items)
    values = pooled(stats, measure.pool)
    limits = _limits(plan, stats, measure.pool, values)
    tests = _tests(work, one, name, stats, values)
    rank = clusters(values, tests.adjusted, plan.alpha, tests.differences) * bool(np.isfinite(tests.adjusted).any())
    mark = marks(values, tests.adjusted, _families(work), plan.marked, plan.alpha, tests.differences)
    figures = []
    for number, chooser in enumerate(work.choosers):
        sums = stats[number].sum(axis=0)
        figures.append(
            Figure(
                metric=chooser.name,
                aspect=work.aspect,
                measure=name,
                group=GROUP,
                slice=one.name,
                value=float(values[number]),
                low=limits[number][0],
                high=limits[number][1],
                n=int(sums.sum()),
                coverage=float(sums.sum()) / len(one.outputs),
                epsilon=epsilons[number] if name == "acc_eq" and not chooser.stored else math.nan,
                chance=float(measure.chance(sums)),
                all_ties=float(measure.all_ties(sums)),
                rank=int(rank[number]),
                mark=mark[number],
                groups=len(items),
            )
        )
    return figures, tests


def preference_means(work: PreferenceWork, slices: Sequence[Slice], name: str) -> list[Figure]:
    """Per metric the average over the slices of one column. Macro: the mean of the slices' values. Micro: the measure
    of all their pairs together, each at its own slice's threshold."""
    plan, measure, items = work.plan, PREFERENCE_MEASURES[name], work.items(slices)
    epsilons = [[work.epsilon(chooser, one, name) for chooser in work.choosers] for one in slices]
    stats = np.concatenate([work.rows(one, own, items) for one, own in zip(slices, epsilons, strict=True)], axis=2)
    averaged = PreferenceMeasure(
        *(_averaged(pool, len(slices), plan.average) for pool in (measure.pool, measure.chance, measure.all_ties))
    )
    values = pooled(stats, averaged.pool)
    limits = _limits(plan, stats, averaged.pool, values)
    total = sum(len(one.outputs) for one in slices)
    figures = []
    for number, chooser in enumerate(work.choosers):
        sums = stats[number].sum(axis=0)
        parts = measure.pool(sums.reshape(len(slices), CELLS))
        used = {own[number] for own in epsilons}
        figures.append(
            Figure(
                metric=chooser.name,
                aspect=work.aspect,
                measure=name,
                group=GROUP,
                slice=f"{slices[0].column}: {plan.average} mean",
                value=float(values[number]),
                low=limits[number][0],
                high=limits[number][1],
                n=int(sums.sum()),
                coverage=float(sums.sum()) / total,
                epsilon=used.pop() if name == "acc_eq" and not chooser.stored and len(used) == 1 else math.nan,
                chance=float(averaged.chance(sums)),
                all_ties=float(averaged.all_ties(sums)),
                groups=int(np.count_nonzero(~np.isnan(parts))),
                undefined=int(np.count_nonzero(np.isnan(parts))),
            )
        )
    return figures


def _averaged(pool: Pool, slices: int, average: str) -> Pool:
    """The measure of tables (..., slices · 9), averaged over slices; one that is undefined is left out."""

    def micro(sums: Floats) -> Floats:
        return pool(sums.reshape(*sums.shape[:-1], slices, CELLS).sum(axis=-2))

    def macro(sums: Floats) -> Floats:
        values = pool(sums.reshape(*sums.shape[:-1], slices, CELLS))
        known = (~np.isnan(values)).sum(axis=-1)
        total = np.nan_to_num(values).sum(axis=-1)
        means: Floats = np.divide(total, known, out=np.full(np.shape(total), np.nan), where=known > 0)
        return means

    return micro if average == "micro" else macro


def _limits(plan: Plan, stats: Floats, pool: Pool, values: Floats) -> list[tuple[float, float]]:
    """Each metric's bootstrap interval over items."""
    resampled = bootstrap_scores(stats, pool, plan.draws, np.random.default_rng(plan.seed))
    return [
        (math.nan, math.nan) if math.isnan(value) else interval(resampled[:, number], plan.confidence, stats.shape[1])
        for number, value in enumerate(values)
    ]


def _families(work: PreferenceWork) -> list[str]:
    marked = work.plan.marked
    return [next((f for f in marked if chooser.name.startswith(f)), chooser.name) for chooser in work.choosers]


def _tests(work: PreferenceWork, one: Slice, name: str, stats: Floats, values: Floats) -> Tests:
    """Items change hands between two metrics; an item that one of them did not judge takes part for neither."""
    plan, size = work.plan, len(work.choosers)
    pairs = list(combinations(range(size), 2)) if plan.draws and plan.test != "none" else []
    pool = PREFERENCE_MEASURES[name].pool
    found = [_exchanged(stats[[first, second]], pool, plan) for first, second in pairs]
    gaps, p = np.array([test.difference for test in found]), exchange_p_values(found)
    return Tests(
        aspect=work.aspect,
        measure=name,
        slice=one.name,
        metrics=tuple(chooser.name for chooser in work.choosers),
        values=values,
        differences=pair_table(size, pairs, gaps, -gaps),
        raw=pair_table(size, pairs, p, p),
        adjusted=pair_table(size, pairs, *[adjust(p, plan.correction)] * 2),
        how="permutation of whole items (normal tails)" if pairs else "no tests",
    )


def _exchanged(rows: Floats, pool: Pool, plan: Plan) -> PermutationTest:
    shared = rows[:, (rows.sum(axis=-1) > 0).all(axis=0)]
    return exchange_rows(shared, pool, [(0, 1)], draws=plan.draws, rng=np.random.default_rng(plan.seed))[0]


# Meta-evaluation on preferences: does a metric choose as people do between two outputs?


_TESTS = ("auto", "permutation", "none")


def evaluate_preferences(judged: Judged, plan: Plan) -> MetaEvaluation:
    """Figures for every aspect that people were asked to choose by."""
    check_preferences(plan)
    figures: list[Figure] = []
    tests: list[Tests] = []
    notes: list[str] = []
    for aspect in aspects_of_preferences(judged, plan.aspects):
        pairs = gold_pairs(judged, plan, aspect)
        found = choosers(judged, pairs, plan.metrics)
        work = PreferenceWork(judged=judged, plan=plan, aspect=aspect, pairs=pairs, choosers=found)
        made, tested = _aspect_figures(work)
        figures, tests = figures + made, tests + tested
        notes += [*_notes(pairs, found, aspect), *_few_items(work)]
    notes = [*plan_notes(plan, figures, tests), *reversal_notes(tests, plan.alpha), *notes]
    about = [*notes, *direction_notes(list(judged.scores.values()))]
    return MetaEvaluation(
        judged=judged,
        plan=plan,
        figures=tuple(figures),
        tests=tuple(tests),
        notes=(*dict.fromkeys(about), *judged.notes),
    )


def check_preferences(plan: Plan) -> None:
    """Refuse what has no meaning between two outputs, rather than pass over it."""
    for name in plan.measures:
        if name not in PREFERENCE_MEASURES:
            known = ", ".join(PREFERENCE_MEASURES)
            raise SpecError(
                f"no measure of preferences {name!r}{did_you_mean(name, PREFERENCE_MEASURES)} (known: {known})"
            )
    if plan.gold in PREFERRED_GOLDS:
        raise RunError(f"--gold {plan.gold} gives outputs a value to agree with: leave --preferences out")
    if plan.epsilon_over not in ("all", "slice"):
        raise RunError(
            f"on preferences a tie threshold is chosen over all or per slice, not over {plan.epsilon_over!r}"
        )
    if plan.group != "item":
        raise RunError(
            f"--group {plan.group}: on preferences the pairs that people saw are compared, and no others; leave "
            "--group out, use --slice, or agree with win rates (--gold win-rate --group system-level, without "
            "--preferences)"
        )
    if plan.group_average != "macro":
        raise RunError("--group-average: on preferences all pairs of a slice are counted together, there are no groups")
    if plan.resample != "items":
        raise RunError(f"--resample {plan.resample}: on preferences items are resampled, with all their pairs")
    if plan.test not in _TESTS:
        raise RunError(
            f"--test {plan.test}: on preferences metrics are tested by exchanging whole items; wanted one of "
            f"{', '.join(_TESTS)}"
        )


def _aspect_figures(work: PreferenceWork) -> tuple[list[Figure], list[Tests]]:
    figures: list[Figure] = []
    tests: list[Tests] = []
    slices = _slices(work.judged, work.plan, work.pairs)
    for name in work.plan.measures:
        for one in slices:
            made, tested = preference_figures(work, one, name)
            figures, tests = figures + made, [*tests, tested]
        for column in work.plan.slices:
            parts = [one for one in slices if one.column == column]
            figures += preference_means(work, parts, name) if parts else []
    return figures, tests


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


def _few_items(work: PreferenceWork) -> list[str]:
    items = len(np.unique(work.judged.items.codes[work.pairs.first]))
    if not work.plan.draws or items >= FEW_UNITS:
        return []
    return [
        f"Warning: resampled from only {items} items ({work.aspect}): with fewer than {FEW_UNITS}, intervals are too "
        "narrow and tests find little."
    ]


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
