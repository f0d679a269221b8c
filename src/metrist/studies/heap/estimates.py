"""Accuracy and Spearman of trainings that differ by their seed alone, with what is known of their certainty.

The spread over seeds says how far chance in training goes; the interval over pairs how far the choice of test pairs
goes. Pairs of one context are resampled together, and criteria that share contexts together too. Where answers have no
context, the answers are what is resampled: few texts that meet each other in many pairs are no more than few texts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from metrist.errors import RunError
from metrist.stats.measures import measure
from metrist.stats.resampling import interval, resample_counts
from metrist.studies.heap.answers import NO_CONTEXT, Answers

Floats = NDArray[np.float64]
DRAWS = 2_000
_CONFIDENCE = 0.95
#: How many weights are held at once.
_CHUNK = 1 << 22
#: What is resampled: contexts and answers that have none.
_Unit = tuple[str, str]
#: Stands in the place of a second unit, and is in every draw once.
_ALWAYS: _Unit = ("", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A mean over seeds, their standard deviation (n - 1; NaN for one seed) and the 95 % interval over test pairs."""

    mean: float
    sd: float = math.nan
    low: float = math.nan
    high: float = math.nan
    seeds: int = 1


def accuracy(seeds: Sequence[Answers], draws: int = DRAWS) -> Figure:
    """The share of pairs whose good answer scores strictly higher."""
    _check_same(seeds)
    return _figure([one.accuracy for one in seeds], {"": seeds}, draws)


def macro_accuracy(criteria: Mapping[str, Sequence[Answers]], draws: int = DRAWS) -> Figure:
    """The mean of several criteria's accuracies, each counting alike; all must have the same seeds."""
    if not criteria or len({len(seeds) for seeds in criteria.values()}) != 1:
        raise RunError("a mean over criteria wants the same number of seeds of each")
    for seeds in criteria.values():
        _check_same(seeds)
    per_seed = np.mean([[one.accuracy for one in seeds] for seeds in criteria.values()], axis=0)
    return _figure(per_seed.tolist(), criteria, draws)


def spearman(seeds: Sequence[Answers]) -> Figure | None:
    """The rank correlation of scores with human ratings over the distinct answers of the pairs, all contexts
    together; None where people gave no ratings, or only one."""
    values = [measure("spearman").value(*one.distinct()) for one in seeds if len(one.distinct()[0]) > 1]
    return None if not values or np.isnan(values).any() else _over_seeds(values)


def _figure(per_seed: Sequence[float], criteria: Mapping[str, Sequence[Answers]], draws: int) -> Figure:
    low, high = _interval(criteria, draws)
    return replace(_over_seeds(per_seed), low=low, high=high)


def _over_seeds(values: Sequence[float]) -> Figure:
    sd = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    return Figure(mean=float(np.mean(values)), sd=sd, seeds=len(values))


def _interval(criteria: Mapping[str, Sequence[Answers]], draws: int) -> tuple[float, float]:
    """Over resamples of contexts, and of answers without one: a pair of two such is there as often as both are."""
    groups, rows = _rows(criteria)
    units = sorted({unit for group in groups for unit in group if unit != _ALWAYS})
    places = {unit: place for place, unit in enumerate([*units, _ALWAYS])}
    first, second = np.array([[places[unit] for unit in group] for group in groups]).T
    found = []
    for counts in resample_counts(len(units), draws, np.random.default_rng(0), max(1, _CHUNK // len(groups))):
        there = np.column_stack([counts, np.ones(len(counts))])
        found.append(_mean_of_shares((there[:, first] * there[:, second]) @ rows))
    return interval(np.concatenate(found), _CONFIDENCE, items=len(units))


def _rows(criteria: Mapping[str, Sequence[Answers]]) -> tuple[list[tuple[_Unit, _Unit]], Floats]:
    """What is drawn together, and for each a row: of each criterion how many of its pairs were right and how many there
    are, over all seeds. Whole numbers, so that their sums are exact in whatever order."""
    groups = {name: _groups(seeds[0]) for name, seeds in criteria.items()}
    places = {group: at for at, group in enumerate(sorted({one for every in groups.values() for one in every}))}
    rows = np.zeros((len(places), 2 * len(criteria)))
    for column, (name, seeds) in enumerate(criteria.items()):
        at = [places[group] for group in groups[name]]
        np.add.at(rows[:, 2 * column], at, np.sum([one.right for one in seeds], axis=0))
        np.add.at(rows[:, 2 * column + 1], at, float(len(seeds)))
    return list(places), rows


def _groups(answers: Answers) -> list[tuple[_Unit, _Unit]]:
    """A pair's context, or else its two answers."""
    return [
        (("answer", good), ("answer", bad)) if context == NO_CONTEXT else (("context", context), _ALWAYS)
        for context, good, bad in zip(answers.context, answers.good_answer, answers.bad_answer, strict=True)
    ]


def _mean_of_shares(sums: Floats) -> Floats:
    """Sums (..., 2 k) to the mean of k shares; a criterion of which a draw has no pair is left out of that draw."""
    right, count = sums[..., 0::2], sums[..., 1::2]
    shares = np.where(count > 0, right / np.where(count > 0, count, 1.0), np.nan)
    there = ~np.isnan(shares)
    found: Floats = np.where(there, shares, 0.0).sum(axis=-1) / np.where(there.any(axis=-1), there.sum(axis=-1), np.nan)
    return found


def _check_same(seeds: Sequence[Answers]) -> None:
    """Seeds that were tested on other pairs cannot be averaged."""
    first = seeds[0]
    for other in seeds[1:]:
        if list(other.good_answer) != list(first.good_answer) or list(other.bad_answer) != list(first.bad_answer):
            raise RunError("two seeds of one training were tested on other pairs; remove the older results and go on")
