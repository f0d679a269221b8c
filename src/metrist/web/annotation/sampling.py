"""Which outputs, or pairs of outputs, raters see as tasks, and how many others each of them stands for.

random         any of them, all equally likely
items          whole items, all equally likely, with all their outputs
system         equally many of each system (of each pair of systems)
disagreement   whole items, the likelier the more the metrics of a run disagree about them

A weight is one over the probability of being chosen, so that weighted means over the sample estimate those over
everything (Horvitz and Thompson 1952). Probabilities are exact: items are drawn without replacement by systematic
sampling in random order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from metrist.errors import InputError, RunError
from metrist.records import Record
from metrist.run.results import Results
from metrist.stats import Codes, Floats
from metrist.web.annotation.plan import Pick
from metrist.web.annotation.project import AnnotationTask

#: The part of the probability that is the same for all items, so that none is certain to be left out and no weight is
#: more than 1 / EVEN times the mean.
EVEN = 0.5


def list_units(records: Sequence[Record], *, pairs: bool) -> list[AnnotationTask]:
    """Return every output, or every pair of different outputs of an item, in the order of the records."""
    if not pairs:
        return [AnnotationTask(records=(record,)) for record in records]
    by_item: dict[str, list[Record]] = {}
    for record in records:
        by_item.setdefault(record.item, []).append(record)
    units = [
        AnnotationTask(records=pair)
        for own in by_item.values()
        for pair in combinations(sorted(own, key=lambda record: record.system), 2)
        if pair[0].output != pair[1].output
    ]
    if not units:
        raise InputError("no item has different outputs of two systems to choose between", code="too_little_data")
    return units


def sample_units(
    units: Sequence[AnnotationTask],
    count: int | None,
    pick: Pick,
    rng: np.random.Generator,
    disagreement: Mapping[str, float] | None = None,
) -> list[AnnotationTask]:
    """Return about `count` of the units with their weights (all, with weight 1, if `count` is None or too large).

    Whole items are drawn as long as they have at most `count` units on average; pairs of one item, of which there may
    be many, are drawn one per item then, if `count` allows no more. `disagreement` has a number of at least 0 per item.
    """
    if count is None or count >= len(units):
        return list(units)
    if pick == "random":
        chosen = rng.choice(len(units), size=count, replace=False)
        weighted = [(int(number), len(units) / count) for number in chosen]
    elif pick == "system":
        weighted = _sample_strata(units, count, rng)
    else:
        weighted = _sample_items(units, count, rng, disagreement if pick == "disagreement" else None)
    return [replace(units[number], weight=weight) for number, weight in sorted(weighted)]


def _sample_strata(units: Sequence[AnnotationTask], count: int, rng: np.random.Generator) -> list[tuple[int, float]]:
    """Return the numbers of equally many units of each system, or of all that there are, with their weights. Chance
    decides which systems have one more."""
    strata: dict[tuple[str, ...], list[int]] = {}
    for number, unit in enumerate(units):
        strata.setdefault(unit.systems, []).append(number)
    if count < len(strata):
        raise InputError(
            f"{count} tasks are too few for {len(strata)} systems or pairs of them", code="too_little_data"
        )
    available = [len(members) for members in strata.values()]
    sizes = [0] * len(strata)
    order = rng.permutation(len(strata))
    while (left := count - sum(sizes)) > 0:
        for number in [number for number in order if sizes[number] < available[number]][:left]:
            sizes[number] += 1
    chosen: list[tuple[int, float]] = []
    for members, size in zip(strata.values(), sizes, strict=True):
        drawn = rng.choice(members, size=size, replace=False).tolist()
        chosen += [(number, len(members) / size) for number in drawn]
    return chosen


def _sample_items(
    units: Sequence[AnnotationTask], count: int, rng: np.random.Generator, disagreement: Mapping[str, float] | None
) -> list[tuple[int, float]]:
    by_item: dict[str, list[int]] = {}
    for number, unit in enumerate(units):
        by_item.setdefault(unit.item, []).append(number)
    names = list(by_item)
    pairs = len(units[0].records) == 2
    # An item has few outputs, but 120 pairs of 16 systems: of pairs, one per item is drawn.
    per_item = 1.0 if pairs else len(units) / len(names)
    wanted = min(len(names), max(1, round(count / per_item)))
    sizes = np.ones(len(names))
    if disagreement is not None:
        values = np.array([disagreement.get(name, 0.0) for name in names], np.float64)
        mean = values.mean()
        sizes = EVEN + (1 - EVEN) * values / mean if mean > 0 else sizes
    probability = inclusion_probabilities(sizes, wanted)
    chosen: list[tuple[int, float]] = []
    remaining = count
    picked = draw_systematic(probability, rng)
    for position, number in enumerate(picked):
        members = by_item[names[number]]
        share = len(members)
        if pairs:
            # Spread what is left over the items that are left: 10 pairs of 4 items are 3, 3, 2 and 2.
            share = min(len(members), max(1, round(remaining / (len(picked) - position))))
            remaining -= share
        weight = len(members) / share / probability[number]
        own = rng.choice(members, size=share, replace=False) if share < len(members) else members
        chosen.extend((int(unit), float(weight)) for unit in own)
    return chosen


def inclusion_probabilities(sizes: Floats, count: int) -> Floats:
    """Return probabilities in proportion to these sizes that add up to `count`; none is above 1."""
    probability = np.zeros(len(sizes))
    certain = np.zeros(len(sizes), bool)
    while True:
        rest = count - certain.sum()
        probability = np.where(certain, 1.0, rest * sizes / sizes[~certain].sum() if rest else 0.0)
        above = (probability > 1.0) & ~certain
        if not above.any():
            return probability
        certain |= above


def draw_systematic(probability: Floats, rng: np.random.Generator) -> Codes:
    """Draw numbers without replacement, each with its probability: steps of 1 through their shuffled sums."""
    order = rng.permutation(len(probability))
    sums = np.cumsum(probability[order])
    count = round(float(sums[-1]))
    points = np.arange(count) + rng.random()
    # Rounding may leave the last point above the last sum.
    places = np.minimum(np.searchsorted(sums, points, side="right"), len(order) - 1)
    return np.unique(order[places])


# ---- Scores of metrics


def add_scores(
    units: Sequence[AnnotationTask], scores: Mapping[str, Mapping[tuple[str, str], float]]
) -> list[AnnotationTask]:
    """Return the units with the scores that metrics give outputs by item and system."""
    scored = []
    for unit in units:
        found: list[float | None] = []
        for column in scores.values():
            values = [column.get((unit.item, system), math.nan) for system in unit.systems]
            value = values[0] if len(values) == 1 else values[0] - values[1]
            found.append(value if math.isfinite(value) else None)
        scored.append(replace(unit, scores=tuple(found)))
    return scored


def measure_disagreement(results: Results, metrics: Sequence[str] = ()) -> dict[str, float]:
    """Return how much the metrics of a run disagree about each item.

    Where items have several outputs, it is the share of pairs of metrics and pairs of outputs that are ordered
    differently (half for a tie on one side). Where they have one, it is the standard deviation of the output's rank
    among all outputs between metrics.
    """
    labels = list(dict.fromkeys(results.metric(name).label for name in metrics)) if metrics else list(results.scores)
    if len(labels) < 2:
        raise RunError(f"the run has {', '.join(labels)} only: score with a second metric", code="too_little_data")
    signs = [-1 if results.metric(label).higher_is_better is False else 1 for label in labels]
    columns = np.stack([sign * results.scores[label].values for sign, label in zip(signs, labels, strict=True)])
    by_item: dict[str, list[int]] = {}
    for row, item in enumerate(results.items):
        by_item.setdefault(item, []).append(row)
    if max(map(len, by_item.values()), default=0) < 2:
        ranks = np.stack([_percentiles(column) for column in columns])
        spreads = {}
        for item, (row,) in by_item.items():
            known = ranks[~np.isnan(ranks[:, row]), row]
            spreads[item] = float(known.std()) if len(known) > 1 else 0.0
        return spreads
    shares = {}
    for item, rows in by_item.items():
        values = columns[:, rows]
        first, second = np.triu_indices(len(rows), 1)
        order = np.sign(values[:, first] - values[:, second])
        gaps = [np.abs(order[a] - order[b]) / 2 for a, b in combinations(range(len(columns)), 2)]
        known = np.concatenate(gaps)
        known = known[~np.isnan(known)]
        shares[item] = float(known.mean()) if len(known) else 0.0
    return shares


def _percentiles(values: Floats) -> Floats:
    """Return each value's rank from 0 to 1, the mean of equal ones; NaN stays."""
    ranks = np.full(len(values), np.nan)
    known = np.flatnonzero(~np.isnan(values))
    if len(known):
        _, place, counts = np.unique(values[known], return_inverse=True, return_counts=True)
        middle = np.cumsum(counts) - (counts + 1) / 2
        ranks[known] = middle[place.reshape(-1)] / max(1, len(known) - 1)
    return ranks
