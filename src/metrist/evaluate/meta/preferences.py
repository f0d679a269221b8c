"""Preferences: pairs of outputs that humans chose between, and what each metric chose, by its scores or as stored.

Every measure is pooled from one confusion table per item, humans by metric:

accuracy   the share of pairs where the metric chooses what humans chose; equal scores are a tie
f1         the mean F1 of the choices first, second and tie, over those that occur
acc_eq     accuracy at the metric's best tie threshold (stored choices have none)

and every pairwise measure (`darr_wmt14`, `darr_wmt17`, `gamma`, `pair_accuracy`, `concordance`, `kendall_a`). Items
with all their pairs are resampled, and exchanged between metrics.

Preferences also give a gold value for metrics' scores:

win-rate        the share of an output's preferences that it won, a tie being half a win; a system's is the mean over
                its outputs
bradley-terry   a system's strength by the Bradley-Terry model with ties; useful between systems only

Where people chose nothing, or with `win-rate:NAME`, they are made of the choices of a comparator (`metrist prefer`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from metrist.errors import RunError, SpecError, did_you_mean, format_count
from metrist.evaluate.meta.dataset import (
    Choices,
    JudgedDataset,
    Slice,
    check_names,
    describe_unknown,
    make_slices,
    select_outputs,
)
from metrist.evaluate.meta.estimates import ChosenSlices, limit_slices
from metrist.evaluate.meta.figures import UNTESTED, PairResults, average_figure, make_tests, rank_figures
from metrist.evaluate.meta.notes import few_units_notes
from metrist.evaluate.meta.results import Figure, Tests
from metrist.evaluate.plans import MetaPlan
from metrist.stats import Codes, Floats, Mask, Pool
from metrist.stats import preferences as tables
from metrist.stats.gold import UNKNOWN, Ratings
from metrist.stats.measures import MEASURES, divide, mean_of_known
from metrist.stats.permutation import exchange_p_values, exchange_rows
from metrist.stats.resampling import bootstrap_scores, explain_missing_interval, interval, pool_rows
from metrist.stats.significance import best_first, coin_tail

_TESTS = ("auto", "permutation", "none")
_CELLS = 9
#: A metric that ties this share of the pairs gets a note.
_MANY_TIES = 0.1


# ---- Choices of humans


def preference_aspects(dataset: JudgedDataset, names: Sequence[str]) -> list[str]:
    """Return the named aspects of preferences, or all."""
    known = list(dataset.preferences)
    if not known:
        raise RunError(
            "the data hold no preferences: rows with 'systems' and 'outputs' of two, and 'ratings' of 1, 2 or 0",
            code="no_data",
        )
    return check_names("aspect of preferences", names, known) if names else known


def select_choices(dataset: JudgedDataset, plan: MetaPlan, aspect: str) -> Choices:
    """Return the readable choices between outputs of the systems that take part; if the gold names a rater, that
    rater's."""
    choices = dataset.preferences[aspect]
    selected = ~np.isnan(choices.choice)
    if plan.gold in dataset.raters:
        selected &= choices.rater == dataset.raters.index(plan.gold)
    participates = np.zeros(len(dataset), dtype=np.bool_)
    participates[select_outputs(dataset, systems=plan.systems, exclude_systems=plan.exclude_systems)] = True
    selected &= participates[choices.first] & participates[choices.second]
    if not selected.any():
        raise RunError(f"no pair with a choice of {aspect!r} is left for the selected systems")
    choices = choices.take(selected)
    if plan.top_k is None:
        return choices
    best = _are_between(dataset, choices, _best_systems(dataset, choices, plan.top_k))
    if not best.any():
        raise RunError(f"`top_k={plan.top_k}`: there are no preferences between outputs of these systems")
    return choices.take(best)


def _rank_systems(dataset: JudgedDataset, choices: Choices) -> list[int]:
    """Return the systems by win rate, best first (of equal systems, the first)."""
    codes = dataset.systems.codes
    rates = tables.shares_won(codes[choices.first], codes[choices.second], choices.choice, len(dataset.systems.names))
    return best_first(rates)


def _best_systems(dataset: JudgedDataset, choices: Choices, count: int) -> list[int]:
    ranked = _rank_systems(dataset, choices)
    if not 2 <= count <= len(ranked):
        raise RunError(f"`top_k={count}`: expected 2 to {len(ranked)} systems", code="invalid_value")
    return ranked[:count]


def _are_between(dataset: JudgedDataset, choices: Choices, systems: Sequence[int]) -> Mask:
    """Whether both outputs of each choice are of these systems."""
    among = np.isin(dataset.systems.codes, systems)
    between: Mask = among[choices.first] & among[choices.second]
    return between


def compute_gold_pairs(dataset: JudgedDataset, plan: MetaPlan, aspect: str) -> Choices:
    """Return the humans' choice on each pair: the raters' majority, or one rater's."""
    if plan.gold not in ("mean", "majority", *dataset.raters):
        raise RunError(
            describe_unknown("gold of preferences", plan.gold, ["majority", *dataset.raters]), code="unknown_name"
        )
    return vote(select_choices(dataset, plan, aspect))


def vote(choices: Choices) -> Choices:
    """Return one choice per pair, of no rater: that of most raters, a tie if they are undecided."""
    pairs, pair_of, choice = distinct_pairs(choices)
    votes = np.zeros((pairs.shape[1], 3))
    np.add.at(votes, (pair_of, choice.astype(np.intp) + 1), 1.0)
    decided = (votes == votes.max(axis=1, keepdims=True)).sum(axis=1) == 1
    human = np.where(decided, votes.argmax(axis=1) - 1.0, 0.0)
    weight = None
    if choices.weight is not None:
        weight = np.zeros(pairs.shape[1])
        np.maximum.at(weight, pair_of, choices.weight)
    unnamed = np.full(len(human), UNKNOWN)
    return Choices(first=pairs[0], second=pairs[1], rater=unnamed, choice=human, weight=weight)


def distinct_pairs(choices: Choices) -> tuple[Codes, Codes, Floats]:
    """Return the pairs (2, pairs) with the lower output number first, the pair of each choice, and the choice in that
    order: a pair shown in either order is the same pair."""
    low, high, choice = _sort_pairs(choices)
    pairs, pair_of = np.unique(np.stack([low, high]), axis=1, return_inverse=True)
    return pairs, pair_of.reshape(-1), choice


def _sort_pairs(choices: Choices) -> tuple[Codes, Codes, Floats]:
    swapped = choices.first > choices.second
    low = np.minimum(choices.first, choices.second)
    high = np.maximum(choices.first, choices.second)
    return low, high, np.where(swapped, -choices.choice, choices.choice)


def compare_systems(dataset: JudgedDataset, choices: Choices) -> tuple[tables.Preferences, Codes]:
    """Return the choices as preferences between renumbered systems, and each system's code in the data."""
    both = dataset.systems.codes[np.stack([choices.first, choices.second])]
    systems, inverse = np.unique(both, return_inverse=True)
    first, second = inverse.reshape(both.shape)
    items = dataset.items.codes[choices.first]
    choice = choices.choice.astype(np.intp)
    return tables.Preferences.of(items, first, second, choice, len(systems), choices.weight), systems


# ---- Gold values from preferences

#: Per gold from preferences, the note that explains it.
PREFERENCE_GOLDS: Mapping[str, str] = MappingProxyType(
    {
        "win-rate": "Gold: the share of its preferences that an output won, a tie being half a win; a system's is the "
        "mean over its outputs.",
        "bradley-terry": "Gold: each system's Bradley-Terry strength with ties, from all its preferences; intervals "
        "and tests keep it fixed.",
    }
)


def split_gold(gold: str) -> tuple[str, str]:
    """Return a gold from preferences and the comparator whose choices it is made of; empty where it is none."""
    name, _, comparator = gold.partition(":")
    return (name, comparator) if name in PREFERENCE_GOLDS else ("", "")


def derive_ratings(dataset: JudgedDataset, plan: MetaPlan) -> tuple[JudgedDataset, list[str]]:
    """Return the data with the plan's gold from preferences, one rating per output and aspect, as the only ratings, and
    notes on them."""
    gold, comparator = split_gold(plan.gold)
    notes = [PREFERENCE_GOLDS[gold]]
    if comparator or (dataset.choices and not dataset.preferences):
        # Named in full or without its settings; without a name, it is the only one.
        named = [label for label in dataset.choices if comparator in (label, label.partition("(")[0], "")]
        if len(named) > 1:
            listed = " or ".join(f"`gold={f'{gold}:{label}'!r}`" for label in named)
            raise RunError(f"several comparators chose: {listed}", code="missing_value")
        (comparator,) = named or check_names("comparator", [comparator], list(dataset.choices))
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
            strength[systems] = tables.bradley_terry(preferences, names=names).strength
            values = strength[dataset.systems.codes]
        else:
            values = tables.shares_won(choices.first, choices.second, choices.choice, len(dataset))
        outputs = np.unique(np.concatenate([choices.first, choices.second]))
        ratings[aspect] = Ratings.of(outputs, np.full(len(outputs), UNKNOWN), values[outputs], len(dataset))
    return replace(dataset, ratings=ratings), notes


# ---- Choices of metrics


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chooser:
    """A metric's leaning on each pair: the difference of two scores, or a stored 1, -1, 0; NaN if it gave none."""

    name: str
    leaning: Floats
    stored: bool = False


def make_choosers(dataset: JudgedDataset, pairs: Choices, names: Sequence[str] | None) -> list[Chooser]:
    """Return the choices of the named metrics, or of all, on the pairs."""
    known = [*dataset.choices, *(name for name in dataset.scores if name not in dataset.choices)]
    if not known:
        raise RunError(
            "the data hold neither scores nor choices to evaluate: give the run folder that `metrist score` wrote too "
            "(`agreement` and `show=strengths` need none)",
            code="conflict",
        )
    choosers = []
    for name in known if names is None else check_names("metric", names, known):
        if name in dataset.choices:
            low, high, choice = _sort_pairs(dataset.choices[name])
            stored = dict(zip(zip(low, high, strict=True), choice, strict=True))
            leaning = [stored.get(pair, np.nan) for pair in zip(pairs.first, pairs.second, strict=True)]
            choosers.append(Chooser(name=name, leaning=np.array(leaning, dtype=np.float64), stored=True))
        else:
            values = dataset.scores[name].signed()
            choosers.append(Chooser(name=name, leaning=values[pairs.first] - values[pairs.second]))
    return choosers


def choice_table(human: Floats, leaning: Floats, epsilon: float = 0.0) -> Floats:
    """Return the confusion table (3, 3), humans by metric in the order first, second, tie, where both chose."""
    known = ~np.isnan(leaning)
    return tables.confusion(tables.choose(human[known]), tables.choose(leaning[known], epsilon))


def choice_rows(
    human: Floats, leaning: Floats, epsilon: float, item: Codes, items: int, weight: Floats | None = None
) -> Floats:
    """Return each item's confusion table, flattened (items, 9); a pair counts as often as its weight says."""
    known = ~np.isnan(leaning)
    cell = tables.choose(human[known]) * 3 + tables.choose(leaning[known], epsilon)
    counted = None if weight is None else weight[known]
    counts = np.bincount(item[known] * _CELLS + cell, weights=counted, minlength=items * _CELLS)
    return counts.reshape(items, _CELLS).astype(np.float64)


def best_epsilon(human: Floats, leaning: Floats, weight: Floats | None = None) -> float:
    """Return the tie threshold of the highest accuracy, the smallest of equals; NaN without any pair."""
    known = ~np.isnan(leaning)
    gaps, order = np.unique(np.abs(leaning[known]), return_inverse=True)
    if not len(gaps):
        return math.nan
    # Raising the threshold over a gap makes human ties right, and pairs that were ordered correctly wrong.
    worth = 1.0 if weight is None else weight[known]
    tied = (human[known] == 0) * worth
    ordered = ((np.sign(leaning[known]) == human[known]) & (human[known] != 0)) * worth
    gained = np.bincount(order.reshape(-1), weights=tied - ordered, minlength=len(gaps))
    right = ordered.sum() + np.cumsum(gained)
    best = int(np.argmax(right))
    return 0.0 if gaps[0] > 0 and right[best] <= ordered.sum() else float(gaps[best])


# ---- Measures


@dataclass(frozen=True, slots=True)
class PreferenceMeasure:
    """Value, chance level and all-ties baseline, each pooled from summed confusion tables (..., 9)."""

    pool: Pool
    chance: Pool
    all_ties: Pool


def _from_tables(pool: Pool) -> Pool:
    return lambda sums: pool(sums.reshape(*sums.shape[:-1], 3, 3))


def _tie_share(sums: Floats) -> Floats:
    return divide(sums[..., tables.TIE_CODE, :].sum(axis=-1), sums.sum(axis=(-2, -1)))


def _undefined(sums: Floats) -> Floats:
    return np.full(sums.shape[:-2], np.nan)


def _count_pairs(sums: Floats) -> Floats:
    """Return the counts that pairwise measures pool (..., 5) of summed confusion tables (..., 9)."""
    return tables.pair_counts(sums.reshape(*sums.shape[:-1], 3, 3))


def _pairwise(name: str) -> PreferenceMeasure:
    def from_counts(pool: Pool) -> Pool:
        return lambda sums: pool(_count_pairs(sums))

    measure = MEASURES[name]
    return PreferenceMeasure(*map(from_counts, (measure.pool, measure.chance, measure.all_ties or measure.chance)))


_ACCURACY = PreferenceMeasure(*map(_from_tables, (tables.accuracy, tables.chance_accuracy, _tie_share)))
PREFERENCE_MEASURES: Mapping[str, PreferenceMeasure] = MappingProxyType(
    {
        "accuracy": _ACCURACY,
        "f1": PreferenceMeasure(*map(_from_tables, (tables.macro_f1, _undefined, _undefined))),
        "acc_eq": _ACCURACY,
        **{
            name: _pairwise(name)
            for name in ("gamma", "kendall_a", "darr_wmt14", "darr_wmt17", "concordance", "pair_accuracy")
        },
    }
)


def check_preferences(plan: MetaPlan) -> None:
    """Raise an error for settings that have no meaning for preferences, rather than ignore them."""
    for name in plan.measures:
        if name not in PREFERENCE_MEASURES:
            known = ", ".join(PREFERENCE_MEASURES)
            raise SpecError(
                f"no measure of preferences {name!r}{did_you_mean(name, PREFERENCE_MEASURES)} (known: {known})",
                code="unknown_name",
            )
    for option, fits, reason in (
        ("gold", not split_gold(plan.gold)[0], "it gives outputs a value to agree with: leave `preferences` out"),
        ("mean_over", not plan.mean_over, "only ratings are averaged over aspects"),
        ("epsilon_over", plan.epsilon_over in ("all", "slice"), "thresholds are chosen over all pairs or per slice"),
        ("group", plan.group == "item", "only pairs that people saw are compared: use `slices` or `gold='win-rate'`"),
        ("group_average", plan.group_average == "macro", "all pairs of a slice are pooled, there are no groups"),
        ("resample", plan.resample == "items", "items are resampled, with all their pairs"),
        ("test", plan.test in _TESTS, f"metrics are tested by exchanging whole items: use one of {', '.join(_TESTS)}"),
    ):
        if not fits:
            raise RunError(f"`{option}={getattr(plan, option)!r}` does not fit preferences: {reason}", code="conflict")


# ---- Figures


def _choose_slices(dataset: JudgedDataset, plan: MetaPlan, pairs: Choices, aspect: str) -> ChosenSlices:
    """Return slices of pairs, by what both outputs share; the best systems are those of the highest win rates."""

    def number(choices: Choices) -> Codes:
        low, high, _ = _sort_pairs(choices)
        numbers: Codes = low * len(dataset) + high
        return numbers

    slices = []
    for part in make_slices(dataset, plan.slices, np.unique(np.concatenate([pairs.first, pairs.second]))):
        mask = np.zeros(len(dataset), dtype=np.bool_)
        mask[part.outputs] = True
        members = np.flatnonzero(mask[pairs.first] & mask[pairs.second])
        if len(members):
            slices.append(replace(part, outputs=members))
    choices = select_choices(dataset, replace(plan, top_k=None), aspect)
    numbers, judged = number(pairs), number(choices)

    def rank(members: Codes) -> list[int]:
        return _rank_systems(dataset, choices.take(np.isin(judged, numbers[members])))

    def keep(members: Codes, systems: Sequence[int]) -> Codes:
        return members[_are_between(dataset, pairs.take(members), systems)]

    if plan.top_k is not None:
        if not plan.slices:
            select_choices(dataset, plan, aspect)  # Says if there are no pairs.
        slices[0] = replace(slices[0], outputs=keep(slices[0].outputs, _best_systems(dataset, choices, plan.top_k)))
    several = len(plan.aspects or dataset.preferences) > 1
    return limit_slices(plan, slices, rank, keep, len, "pairs", aspect if several else "")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreferenceAspect:
    """Evaluates metrics by the preferences of one aspect (see `figures.RatingAspect` for ratings).

    The `outputs` of its slices are numbers of pairs.
    """

    dataset: JudgedDataset
    plan: MetaPlan
    aspect: str
    #: Those of all systems, whatever `top_k` says: a slice has its own best systems.
    pairs: Choices
    choosers: Sequence[Chooser]
    chosen: ChosenSlices
    #: A slice is one step of what is reported: pairs take little time.
    steps: ClassVar[int] = 1

    @staticmethod
    def of(dataset: JudgedDataset, plan: MetaPlan, aspect: str) -> PreferenceAspect:
        pairs = compute_gold_pairs(dataset, replace(plan, top_k=None), aspect)
        return PreferenceAspect(
            dataset=dataset,
            plan=plan,
            aspect=aspect,
            pairs=pairs,
            choosers=make_choosers(dataset, pairs, plan.metrics),
            chosen=_choose_slices(dataset, plan, pairs, aspect),
        )

    @property
    def slices(self) -> list[Slice]:
        """The slices of pairs, by what both outputs share."""
        return self.chosen.slices

    def members(self) -> Codes:
        """Return the pairs of any slice."""
        return np.unique(np.concatenate([part.outputs for part in self.slices]))

    def evaluate_slice(self, part: Slice, measure: str, _: Callable[[int], None]) -> tuple[list[Figure], Tests]:
        """Return the figures of all metrics on one slice, ranked, and the tests."""
        items = self._items([part])
        epsilons = self._epsilons(part, measure)
        stats = self._rows(part, epsilons, items)
        numbers = self._pool(stats, PREFERENCE_MEASURES[measure], [part])
        figures = [
            Figure(
                metric=chooser.name,
                aspect=self.aspect,
                measure=measure,
                group="pairs",
                slice=part.name,
                epsilon=epsilon if measure == "acc_eq" and not chooser.stored else math.nan,
                groups=len(items),
                **values,
            )
            for chooser, epsilon, values in zip(self.choosers, epsilons, numbers, strict=True)
        ]
        tests = self._compare(part, measure, stats, np.array([figure.value for figure in figures]))
        return [self._mark_against(figure, part, items) for figure in rank_figures(self.plan, figures, tests)], tests

    def average_slices(self, slices: Sequence[Slice], measure: str, figures: Sequence[Figure]) -> list[Figure]:
        """Average each metric over the slices of one column, whose figures are given.

        Macro: the mean of the slices' values. Micro: the measure of all their pairs together, each at its own slice's
        threshold.
        """
        items = self._items(slices)
        definition = PREFERENCE_MEASURES[measure]
        rows = [self._rows(part, self._epsilons(part, measure), items) for part in slices]

        def average(pool: Pool) -> Pool:
            def pooled(sums: Floats) -> Floats:
                by_slice = sums.reshape(*sums.shape[:-1], len(slices), _CELLS)
                return pool(by_slice.sum(axis=-2)) if self.plan.average == "micro" else mean_of_known(pool(by_slice))

            return pooled

        averaged = PreferenceMeasure(*map(average, (definition.pool, definition.chance, definition.all_ties)))
        numbers = self._pool(np.concatenate(rows, axis=2), averaged, slices)
        name = f"{slices[0].column}: {self.plan.average} mean"
        return [
            average_figure([f for f in figures if f.metric == chooser.name], slice=name, **values)
            for chooser, values in zip(self.choosers, numbers, strict=True)
        ]

    def notes(self, _: Sequence[Figure]) -> list[str]:
        """What a reader must know about the choices of this aspect."""
        members = self.members()
        human, notes = self.pairs.choice[members], list(self.chosen.notes)
        counts = {name: np.count_nonzero(human == v) for name, v in (("first", 1), ("second", -1), ("tie", 0))}
        most, count = max(counts.items(), key=lambda entry: entry[1])
        if count >= 0.9 * len(human):
            notes.append(f"Warning: humans choose {most!r} in {count / len(human):.0%} of the pairs of {self.aspect}.")
        # Ties lower most measures without being a choice against people.
        listed = []
        for chooser in self.choosers:
            known = chooser.leaning[members]
            known = known[~np.isnan(known)]
            share = np.count_nonzero(known == 0) / len(known) if len(known) else 0.0
            if share >= _MANY_TIES:
                listed.append(f"{chooser.name} ties {100 * share:.0f} % of the pairs")
        if listed:
            more = f" and {len(listed) - 5} more metrics tie many" if len(listed) > 5 else ""
            notes.append(f"{', '.join(listed[:5])}{more}. A tie is a miss where people prefer one output.")
        items = len(np.unique(self.dataset.items.codes[self.pairs.first[members]]))
        return notes + few_units_notes(self.plan, [(items, "items", self.aspect)])

    def _epsilons(self, part: Slice, measure: str) -> list[float]:
        """Return each metric's tie threshold, 0 if it has none."""
        pairs = part.outputs if self.plan.epsilon_over == "slice" else self.members()
        own = self.pairs.take(pairs)
        epsilons = []
        for chooser in self.choosers:
            epsilon = self.plan.epsilon.get(chooser.name, 0.0)
            if measure == "acc_eq" and not chooser.stored and chooser.name not in self.plan.epsilon:
                epsilon = best_epsilon(own.choice, chooser.leaning[pairs], own.weight)
            epsilons.append(0.0 if math.isnan(epsilon) else epsilon)
        return epsilons

    def _items(self, slices: Sequence[Slice]) -> Codes:
        """Return the items that have pairs in these slices, ascending."""
        pairs = np.concatenate([part.outputs for part in slices])
        return np.unique(self.dataset.items.codes[self.pairs.first[pairs]])

    def _rows(self, part: Slice, epsilons: Sequence[float], items: Codes) -> Floats:
        """Return the confusion tables (metrics, items, 9) of the pairs of a slice."""
        item = np.searchsorted(items, self.dataset.items.codes[self.pairs.first[part.outputs]])
        own = self.pairs.take(part.outputs)
        return np.stack(
            [
                choice_rows(own.choice, chooser.leaning[part.outputs], epsilon, item, len(items), own.weight)
                for chooser, epsilon in zip(self.choosers, epsilons, strict=True)
            ]
        )

    def _pool(self, stats: Floats, measure: PreferenceMeasure, slices: Sequence[Slice]) -> list[dict[str, Any]]:
        """Return each metric's value, interval over items, number of pairs, coverage and baselines."""
        plan = self.plan
        pairs = sum(len(part.outputs) for part in slices)
        values = pool_rows(stats, measure.pool)
        resampled = bootstrap_scores(stats, measure.pool, plan.draws, plan.rng())
        numbers: list[dict[str, Any]] = []
        for metric, value in enumerate(values):
            sums = stats[metric].sum(axis=0)
            low, high = interval(resampled[:, metric], plan.confidence, stats.shape[1], float(value))
            missing = explain_missing_interval(resampled[:, metric], plan.confidence, stats.shape[1], "items")
            leaning = self.choosers[metric].leaning
            count = sum(int(np.count_nonzero(~np.isnan(leaning[part.outputs]))) for part in slices)
            numbers.append(
                {
                    "value": float(value),
                    "low": low,
                    "high": high,
                    "reason": "" if math.isnan(value) else missing,
                    "n": count,
                    "coverage": count / pairs,
                    "chance": float(measure.chance(sums)),
                    "all_ties": float(measure.all_ties(sums)),
                }
            )
        return numbers

    def _mark_against(self, figure: Figure, part: Slice, items: Codes) -> Figure:
        """Mark a metric that mostly chooses the other output than people. Only pairs that neither ties count: a tie is
        a miss, but no sign of the opposite direction. f1 is not marked."""
        chooser = next(chooser for chooser in self.choosers if chooser.name == figure.metric)
        item = np.searchsorted(items, self.dataset.items.codes[self.pairs.first[part.outputs]])
        rows = choice_rows(self.pairs.choice[part.outputs], chooser.leaning[part.outputs], 0.0, item, len(items))
        alike, opposed = map(int, _count_pairs(rows.sum(axis=0))[:2])
        plan = self.plan
        tail = (1 - plan.confidence) / 2
        # The resamples of a few pairs, all wrong, do not vary: an exact test guards against them.
        if figure.measure == "f1" or not plan.draws or not coin_tail(opposed, alike + opposed) < tail:
            return figure

        def decided_share(sums: Floats) -> Floats:
            right, wrong = np.moveaxis(_count_pairs(sums)[..., :2], -1, 0)
            return divide(right, right + wrong)

        share = alike / (alike + opposed)
        resampled = bootstrap_scores(rows[np.newaxis], decided_share, plan.draws, plan.rng())
        low, high = interval(resampled[:, 0], plan.confidence, len(items), share)
        if not high < 0.5:
            return figure
        pairs = f"the {format_count(alike + opposed, 'pair')} that neither ties, chance 0.500"
        return replace(figure, against=f"right in {share:.3f} [{low:.3f}, {high:.3f}] of {pairs}")

    def _compare(self, part: Slice, measure: str, stats: Floats, values: Floats) -> Tests:
        """Test metrics by exchanging whole items; an item that either of two metrics did not judge is left out."""
        plan = self.plan
        pool = PREFERENCE_MEASURES[measure].pool
        pairs = list(combinations(range(len(self.choosers)), 2)) if plan.draws and plan.test != "none" else []
        results = UNTESTED
        if pairs:
            tests = []
            for first, second in pairs:
                rows = stats[[first, second]]
                shared = rows[:, (rows.sum(axis=-1) > 0).all(axis=0)]
                tests += exchange_rows(shared, pool, [(0, 1)], draws=plan.exchange_draws, rng=plan.rng())
            differences = np.array([test.difference for test in tests])
            how = "permutation of whole items (normal tails)"
            results = PairResults(how, differences, exchange_p_values(tests), draws=plan.exchange_draws)
        names = [chooser.name for chooser in self.choosers]
        return make_tests(plan, (self.aspect, measure, part.name), names, values, pairs, results)
