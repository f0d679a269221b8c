"""Train a preference metric from what an expensive judge said: its scores or choices become pairs, and held-out items
show how far the metric agrees with the judge, and both of them with people."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from metrist.data.build import build_pairs, subtract
from metrist.data.judgments import JudgedRecords
from metrist.data.pairs import GoodBad, Shape
from metrist.data.rules import Aim, Rules
from metrist.data.splits import assign_sides, parse_share
from metrist.data.text_overlap import SplitUnit
from metrist.errors import InputError, SpecError, agree, format_count
from metrist.metrics.base import Metric, Shard
from metrist.metrics.registry import build
from metrist.models.weights import Weights, find_weights
from metrist.records import Record
from metrist.stats.resampling import pooled_interval
from metrist.train.agreement import Floats, correlate, describe_length, group_places, none_if_nan
from metrist.train.folder import TrainingFolder
from metrist.train.preference import PreferencePairs, PreferencePlan, PreferenceTask, is_preference_model

if TYPE_CHECKING:
    from metrist.train.loop import Trainer

#: (item, system)
Key = tuple[str, str]
#: (item, first system, second system), the systems sorted by name.
PairKey = tuple[str, str, str]

#: Fewer items are too few to learn from and to measure agreement on.
MIN_ITEMS = 20
#: How certain a difference is that is as large as the root mean square of all differences.
_USUAL_CERTAINTY = 0.9
#: Pairs that an item takes part in if outputs of different items are compared.
_PAIRS_ACROSS = 10
_DRAWS = 1000
#: An interval over fewer items is too narrow to be trusted.
_FEW_ITEMS = 10
#: The names of the judge, of the trained metric and of its simplest rival in tables of agreement.
JUDGE, THIS_METRIC, LENGTH = "the judge", "this metric", "length"


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedOutputs:
    """Outputs with what a judge said about them: `values` of single outputs, larger being better, or `choices` between
    two outputs (1: the first is better, -1: the second, 0: a tie).

    `spreads` are standard deviations of values, where the judge stored them. `ratings` and `preferences` are those of
    people, by aspect. `judge` and `cost` are facts for the card; `left_out` counts scores and choices that are not
    used, by reason.
    """

    name: str
    records: Mapping[Key, Record]
    values: Mapping[Key, float] = field(default_factory=dict)
    spreads: Mapping[Key, float] = field(default_factory=dict)
    choices: Mapping[PairKey, float] = field(default_factory=dict)
    ratings: Mapping[str, Mapping[Key, float]] = field(default_factory=dict)
    preferences: Mapping[str, Mapping[PairKey, float]] = field(default_factory=dict)
    criterion: str = "overall"
    instruction: str = ""
    #: Whether the judge was shown references.
    references: bool = False
    judge: Mapping[str, Any] = field(default_factory=dict)
    cost: Mapping[str, float | None] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def judged(self) -> set[Key]:
        """The outputs that the judge scored, or chose between."""
        return {*self.values, *((item, system) for item, *both in self.choices for system in both)}

    @property
    def items(self) -> list[str]:
        """The items with judged outputs, in the order of the records."""
        judged = self.judged
        return list(dict.fromkeys(item for item, system in self.records if (item, system) in judged))

    def select(self, items: Iterable[str]) -> JudgedOutputs:
        chosen = set(items)

        def keep(values: Mapping[Any, float]) -> dict[Any, float]:
            return {key: value for key, value in values.items() if key[0] in chosen}

        return replace(
            self,
            records={key: record for key, record in self.records.items() if key[0] in chosen},
            values=keep(self.values),
            spreads=keep(self.spreads),
            choices=keep(self.choices),
            ratings={aspect: keep(values) for aspect, values in self.ratings.items()},
            preferences={aspect: keep(values) for aspect, values in self.preferences.items()},
        )

    def find_context(self) -> tuple[str, ...]:
        """Return the fields that most judged outputs have and the judge saw."""
        records = [self.records[key] for key in self.judged if key in self.records]
        names = ("instruction", "source", *(("references",) if self.references else ()))
        return tuple(name for name in names if 2 * sum(bool(getattr(one, name)) for one in records) > len(records))

    def output_values(self) -> dict[Key, float]:
        """Return one value per output; of choices, the mean of what the output won (1) and lost (-1)."""
        if self.values:
            return dict(self.values)
        results: dict[Key, list[float]] = {}
        for (item, first, second), choice in self.choices.items():
            results.setdefault((item, first), []).append(choice)
            results.setdefault((item, second), []).append(-choice)
        return {key: math.fsum(values) / len(values) for key, values in results.items()}

    def differences(self) -> dict[PairKey, float]:
        """Return by how much the judge prefers the first of two outputs of an item, for all pairs that it judged."""
        return dict(self.choices) if self.choices else _differences(self.values)


def _differences(values: Mapping[Key, float]) -> dict[PairKey, float]:
    """Return the differences between all pairs of outputs of an item."""
    by_item: dict[str, list[str]] = {}
    for item, system in sorted(values):
        by_item.setdefault(item, []).append(system)
    return {
        (item, first, second): subtract(values[item, first], values[item, second])
        for item, systems in by_item.items()
        for first, second in combinations(systems, 2)
    }


# ---- Pairs


class DistillationData(NamedTuple):
    """Training and development pairs, what was judged of the held-out items, and remarks for the user."""

    train: list[GoodBad]
    dev: list[GoodBad]
    held_out: JudgedOutputs | None
    notes: list[str]
    facts: dict[str, Any]


def make_pairs(outputs: JudgedOutputs, dev: str | None, *, seed: int, across: bool = False) -> DistillationData:
    """Make pairs of what a judge said. A share `dev` of the items is held out so that no item and no text is on both
    sides; None holds out nothing.

    Outputs of one item are compared, or with `across` those of different items. The certainty of a pair grows with the
    difference of its scores and falls with their spreads; ties have certainty .5.
    """
    items = _check_items(outputs, across)
    share = parse_share(dev)
    if dev is not None and share is None:
        raise SpecError(
            f"a training from a run holds out a share of its items: `dev` must be a share such as 0.2, got {dev!r}"
        )
    sides = _split_items(outputs, items, share, seed)
    rules = Rules(within="all" if across else "item", ties="soft", cap=_PAIRS_ACROSS if across else None, seed=seed)
    notes, counts = list(outputs.notes), Counter[str]()
    by_side: dict[str, tuple[JudgedOutputs, list[GoodBad]]] = {}
    for name in ("train", "dev"):
        side = outputs.select(item for item in items if sides[item] == name)
        pairs, dropped = _pair_outputs(side, outputs.find_context(), rules, name) if side.judged else ([], Counter())
        by_side[name], counts = (side, pairs), counts + dropped
    gaps = [_gap(pair) for pair in by_side["train"][1] if pair.certainty != 0.5]
    unit = math.sqrt(math.fsum(gap * gap for gap in gaps) / len(gaps)) if gaps else math.nan  # NaN for choices.
    learning, train_pairs = by_side["train"]
    checking, dev_pairs = by_side["dev"]
    train = [_soften(pair, unit, learning.spreads) for pair in train_pairs]
    development = [_soften(pair, unit, checking.spreads) for pair in dev_pairs]
    straddling = sum(side is None for side in sides.values())
    context = outputs.find_context()
    notes += [f"{outputs.name}: {count:,} {reason} left out" for reason, count in outputs.left_out.items()]
    if straddling:
        notes.append(
            f"{format_count(straddling, 'item shares', 'items share')} texts with both training and held-out items and "
            f"{agree(straddling, 'is', 'are')} left out"
        )
    if counts:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in counts.most_common())
        notes.append(f"pairs of outputs that are no training data: {reasons}")
    if across:
        notes.append("outputs of different items are compared, so the metric also learns which items score high")
    notes.append(
        f"{outputs.name}: {format_count(len(train), 'pair')} of {format_count(len(learning.items), 'item')} to learn "
        f"from, {len(development):,} of {format_count(len(checking.items), 'item')} held out; context: "
        f"{' and '.join(context) or 'none'}; instruction: {outputs.instruction!r}"
    )
    facts = {
        **outputs.judge,
        **{f"{reason.rstrip(',')}": count for reason, count in outputs.left_out.items()},
        "training_items": len(learning.items),
        "held_out_items": len(checking.items),
        "items_on_both_sides_left_out": straddling,
        "compared": "outputs of different items" if across else "outputs of one item",
    }
    return DistillationData(train, development, checking if development else None, notes, facts)


def _check_items(outputs: JudgedOutputs, across: bool) -> list[str]:
    """Return the items to learn from; raise an error if they are too few or cannot be compared."""
    items = outputs.items
    judged = Counter(item for item, _ in outputs.judged)
    comparable = [item for item in items if judged[item] > 1]
    if across and len(comparable) >= MIN_ITEMS:
        raise SpecError(
            f"`across=True` is for items with one output each, and {len(comparable):,} have more: leave it out",
            code="conflict",
        )
    if not across and items and not comparable:
        raise InputError(
            f"each of {format_count(len(items), 'item')} has one output judged by {outputs.name}: score outputs of "
            "another system, or compare outputs of different items with `across=True`",
            code="no_data",
        )
    chosen = items if across else comparable
    if len(chosen) < MIN_ITEMS:
        what = "a judged output" if across else "two judged outputs"
        raise InputError(
            f"{format_count(len(chosen), 'item has', 'items have')} {what} by {outputs.name}; at least {MIN_ITEMS} are "
            "needed, to learn from and to measure the agreement on: score more items"
        )
    return chosen


def _split_items(outputs: JudgedOutputs, items: Sequence[str], share: float | None, seed: int) -> dict[str, str | None]:
    """Return the side of each item; None for one whose texts are on both."""
    if share is None:
        return dict.fromkeys(items, "train")
    shape = Shape(context=outputs.find_context())
    texts: dict[str, list[Record]] = {}
    for key, record in outputs.records.items():
        if key in outputs.judged:
            texts.setdefault(record.item, []).append(record)
    units = []
    for item in items:
        rows = [fields for record in texts[item] if (fields := shape.lay_out(record))]
        contexts = dict.fromkeys(tuple(text for _, text in fields[:-1]) for fields in rows)
        units.append(SplitUnit(outputs.criterion, tuple(contexts), tuple(one.output for one in texts[item]), item))
    try:
        sides = assign_sides(units, (1 - share, share, 0.0), seed=seed)
    except InputError as fault:
        raise InputError(
            f"cannot hold out {share:g} of {len(items):,} items: too many share texts; give another share as `dev`",
            code="too_little_data",
        ) from fault
    return dict(zip(items, sides, strict=True))


def _pair_outputs(
    outputs: JudgedOutputs, context: tuple[str, ...], rules: Rules, side: str
) -> tuple[list[GoodBad], Counter[str]]:
    name = outputs.name
    judgments = JudgedRecords(records=dict(outputs.records))
    if outputs.choices:
        judgments.preferences[name] = {key: [(None, sign)] for key, sign in outputs.choices.items()}
    else:
        judgments.ratings[name] = {key: [(None, value)] for key, value in outputs.values.items()}
    aim = Aim(aspect=name, criterion=outputs.criterion, instruction=outputs.instruction)
    result = build_pairs(judgments, [aim], rules, Shape(context=context))
    return [replace(pair, split=side) for pair in result.pairs], result.accounts[0].dropped


def _gap(pair: GoodBad) -> float:
    if pair.good_rating is None or pair.bad_rating is None:
        return math.nan
    return pair.good_rating - pair.bad_rating


def _soften(pair: GoodBad, unit: float, spreads: Mapping[Key, float]) -> GoodBad:
    """Set the certainty by the difference: the probability that a normal variable with this mean is above 0. Its
    deviation is such that the usual difference has the usual certainty, and spreads of the two scores add to it."""
    gap = _gap(pair)
    if pair.certainty == 0.5 or math.isnan(gap) or not unit > 0:
        return pair
    own = [spreads.get((pair.item, system), 0.0) for system in pair.systems or ()]
    deviation = math.hypot(unit / NormalDist().inv_cdf(_USUAL_CERTAINTY), *own)
    return replace(pair, certainty=NormalDist().cdf(gap / deviation))


# ---- Agreement on held-out items


class JudgeAgreement(NamedTuple):
    """How far a scorer agrees with the judge or with people: the share of pairs in the same order, equal scores being
    half right, and Spearman's correlation within items, equal scores of all outputs being 0; with 95 % intervals over
    items. NaN where there is nothing to measure."""

    target: str
    scorer: str
    pairs: int
    accuracy: float
    accuracy_low: float
    accuracy_high: float
    items: int
    spearman: float
    spearman_low: float
    spearman_high: float


def measure_agreement(
    outputs: JudgedOutputs, scorers: Mapping[str, Mapping[Key, float]], *, across: bool = False
) -> list[JudgeAgreement]:
    """Measure the agreement of scorers with the judge, and of the judge and the scorers with people. All of them are
    compared on the same pairs and outputs: those that each of them scored. Pairs that the target calls equal are left
    out."""
    common, (judge, *people) = _find_targets(outputs, scorers)
    rows = []
    gaps = {name: _differences(_restrict(values, common)) for name, values in scorers.items()}
    for target in (judge, *people):
        everyone = scorers if target is judge else {JUDGE: judge.values, **scorers}
        for name, values in everyone.items():
            if across:
                rows.append(_agree_across(target, name, values))
            else:
                rows.append(_agree(target, name, judge.gaps if name == JUDGE else gaps[name], values))
    return [row for row in rows if row.pairs]


class _Target(NamedTuple):
    """What agreement is measured with: differences between two outputs of an item, and values of outputs."""

    name: str
    gaps: Mapping[PairKey, float]
    values: Mapping[Key, float]


def _find_targets(outputs: JudgedOutputs, scorers: Mapping[str, Mapping[Key, float]]) -> tuple[set[Key], list[_Target]]:
    """Return the outputs that every scorer scored, and what the judge and then people said about them."""
    common = set.intersection(outputs.judged, *(set(values) for values in scorers.values()))
    known = {
        pair: gap for pair, gap in outputs.differences().items() if {(pair[0], pair[1]), (pair[0], pair[2])} <= common
    }
    targets = [_Target(outputs.name, known, _restrict(outputs.output_values(), common))]
    for aspect in dict.fromkeys([*outputs.ratings, *outputs.preferences]):
        ratings = _restrict(outputs.ratings.get(aspect, {}), common)
        gaps = {**_differences(ratings), **outputs.preferences.get(aspect, {})}
        gaps = {pair: gap for pair, gap in gaps.items() if pair in known}
        targets.append(_Target(f"people: {aspect}", gaps, ratings))
    return common, targets


def compare_with_length(
    outputs: JudgedOutputs, scorers: Mapping[str, Mapping[Key, float]], *, across: bool = False
) -> list[str]:
    """Return what the user should know about each target, the judge or people, with which the length of outputs agrees
    as well as the trained metric, or which has too few pairs to tell. Length counts in the direction that agrees
    better. Within items, the difference of the two accuracies has a 95 % interval over items."""
    common, targets = _find_targets(outputs, scorers)
    rivals = [_restrict(scorers[name], common) for name in (THIS_METRIC, LENGTH)]
    messages: list[str] = []
    for target in targets:
        if across:
            figures = [_agree_across(target, "", side) for side in rivals]
            shares = [np.array([[row.accuracy * row.pairs, row.pairs]]) for row in figures if row.pairs]
        else:
            shares = [_count_right(target.gaps, _differences(side)) for side in rivals]
        if len(shares) < len(rivals) or not len(shares[0]):
            continue
        # Rows of the right pairs and of all pairs of items.
        metric, length = shares
        shorter = bool(2 * length[:, 0].sum() < length[:, 1].sum())
        points = length[:, 1] - length[:, 0] if shorter else length[:, 0]
        pairs = int(metric[:, 1].sum())
        ours, rival = metric[:, 0].sum() / pairs, points.sum() / pairs
        value, low, high = _estimate(np.stack([metric[:, 0] - points, metric[:, 1]], axis=1))
        sizes = format_count(pairs, "pair") + ("" if across else f" of {format_count(len(metric), 'item')}")
        message = describe_length(
            f"this metric agrees with {target.name}",
            ours,
            rival,
            f"{ours:.3f} of {sizes} in the right order against {rival:.3f}",
            shorter=shorter,
            is_certain=across or not (len(metric) < _FEW_ITEMS or value * low <= 0 or value * high <= 0),
            interval=(low, high),
            remedy="judge more items, or hold out more (`dev`)",
        )
        messages += [message] if message else []
    return messages


def _restrict(values: Mapping[Key, float], keys: set[Key]) -> dict[Key, float]:
    return {key: value for key, value in values.items() if key in keys}


def _agree(target: _Target, scorer: str, gaps: Mapping[PairKey, float], values: Mapping[Key, float]) -> JudgeAgreement:
    accuracy = _count_right(target.gaps, gaps)
    expected = np.array(list(target.values.values()), np.float64)
    actual = np.array([values[key] for key in target.values], np.float64)
    items = group_places([item for item, _ in target.values])
    # Equal scores of all outputs of an item are no agreement.
    correlations = [correlate(expected[at], actual[at]) or 0.0 for at in items if np.ptp(expected[at]) > 0]
    spearman = np.array([[value, 1.0] for value in correlations], np.float64).reshape(-1, 2)
    pairs = int(accuracy[:, 1].sum())
    return JudgeAgreement(target.name, scorer, pairs, *_estimate(accuracy), len(correlations), *_estimate(spearman))


def _count_right(expected: Mapping[PairKey, float], actual: Mapping[PairKey, float]) -> Floats:
    """Return the right pairs of each item, equal scores being half right, and all its pairs that the target orders."""
    right: dict[str, list[float]] = {}
    for pair, gap in expected.items():
        if gap:
            sign = np.sign(gap) * np.sign(actual[pair])
            right.setdefault(pair[0], []).append((1 + float(sign)) / 2)
    return np.array([[sum(points), len(points)] for points in right.values()], np.float64).reshape(-1, 2)


def _agree_across(target: _Target, scorer: str, values: Mapping[Key, float]) -> JudgeAgreement:
    """The agreement on all outputs, whatever their items. Pairs are not independent, so there are no intervals."""
    first = np.array(list(target.values.values()), np.float64)
    second = np.array([values[key] for key in target.values], np.float64)
    at, other = np.triu_indices(len(first), 1)
    signs = np.sign(first[at] - first[other])
    decided = signs != 0
    points = (1 + signs[decided] * np.sign(second[at] - second[other])[decided]) / 2
    accuracy = float(points.mean()) if len(points) else math.nan
    nan = math.nan
    spearman = (correlate(first, second) or 0.0) if decided.any() else nan
    return JudgeAgreement(target.name, scorer, int(decided.sum()), accuracy, nan, nan, len(first), spearman, nan, nan)


def _estimate(rows: Floats) -> tuple[float, float, float]:
    if not len(rows):
        return math.nan, math.nan, math.nan

    def share(sums: Floats) -> Floats:
        return np.divide(sums[..., 0], sums[..., 1])

    value = float(rows[:, 0].sum() / rows[:, 1].sum())
    return value, *pooled_interval(rows, share, _DRAWS, np.random.default_rng(0))


# ---- The task


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillationTask(PreferenceTask):
    """A preference training whose pairs come from a judge. The card has the agreement on held-out items with the judge
    and with people, and what the judge cost."""

    held_out: JudgedOutputs | None = None
    across: bool = False

    def publish(
        self, weights: Weights, data: PreferencePairs, plan: PreferencePlan, trainer: Trainer, folder: TrainingFolder
    ) -> dict[str, Any]:
        facts = PreferenceTask.publish(self, weights, data, plan, trainer, folder)
        if self.held_out is None:
            return facts
        judged = self.held_out.judged
        records = {key: record for key, record in self.held_out.records.items() if key in judged}
        trained = build(facts["metric"])
        _score(trained, dict(list(records.items())[:1]))  # Loads the model, which is not a cost of each output.
        began = time.perf_counter()
        scorers = {THIS_METRIC: _score(trained, records)}
        seconds = time.perf_counter() - began
        if is_preference_model(find_weights(self.base)):
            scorers[self.base.model] = _score(build(f"preference(model={self.base.model!r})"), records)
        scorers[LENGTH] = _score(build("length"), records)
        rows = measure_agreement(self.held_out, scorers, across=self.across)
        facts["agreement"] = {
            "judge": self.held_out.name,
            "across_items": self.across,
            "items": len(self.held_out.items),
            "outputs": len(records),
            "not_scored": len(records) - len(scorers[THIS_METRIC]),
            "rows": [
                {name: none_if_nan(value) if isinstance(value, float) else value for name, value in fields.items()}
                for fields in (row._asdict() for row in rows)
            ],
            "remarks": compare_with_length(self.held_out, scorers, across=self.across),
            "cost": {
                **self.held_out.cost,
                "metric_us_dollars_per_1000_outputs": 0.0,
                "metric_seconds_per_1000_outputs": round(1000 * seconds / len(records), 3),
            },
        }
        return facts


def _score(metric: Metric, records: Mapping[Key, Record]) -> dict[Key, float]:
    """Return the scores of these records, without those that failed."""
    values = metric.score(Shard(list(records.values()))).values.tolist()
    return {key: value for key, value in zip(records, values, strict=True) if not math.isnan(value)}
