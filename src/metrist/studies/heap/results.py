"""Accuracy and Spearman of trainings that differ by their seed alone, with what is known of their certainty.

The spread over seeds says how far chance in training goes; the interval over pairs how far the choice of test pairs
goes. Pairs of one context are resampled together, and criteria that share contexts together too. Where answers have no
context, the answers are what is resampled: few texts that meet each other in many pairs are no more than few texts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrist.criteria import Suite
from metrist.errors import InputError, RunError
from metrist.stats.measures import measure
from metrist.stats.resampling import interval, resample_counts
from metrist.studies.heap.jobs import NO_CONTEXT, RESULTS, SPLITS, Answers, Result, SetupName, SplitName

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


# What the finished trainings of a folder found, by setup, split and criterion.


#: How many unfinished trainings are told by name.
_NAMED = 10
_Key = tuple[SetupName, SplitName, str, str | None]


class StudyResults:
    """Results ready for tables. `chosen` says in words which settings were chosen for what, `left_out` which trainings
    are in no table and why."""

    def __init__(
        self,
        suite: Suite,
        results: Sequence[Result],
        *,
        chosen: Mapping[str, str] | None = None,
        left_out: Sequence[str] = (),
        draws: int = DRAWS,
    ) -> None:
        self.suite = suite
        self.results = tuple(results)
        self.chosen = dict(chosen or {})
        self.left_out = tuple(left_out)
        self._draws = draws
        self._seeds = _by_seed(results)

    @cached_property
    def splits(self) -> tuple[SplitName, ...]:
        """The splits that any training used, the authors' first."""
        there = {result.job.split for result in self.results}
        return tuple(split for split in SPLITS if split in there)

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """All pairs of each criterion."""
        return {code: size for result in self.results for code, size in result.sizes.items()}

    def codes(self, setup: SetupName, split: SplitName, cluster: str | None = None) -> tuple[str, ...]:
        """The criteria that a setup was judged on, in the suite's order."""
        there = {key[2] for key in self._seeds if key[:2] == (setup, split) and key[3] == cluster}
        return tuple(code for code in self.suite.codes if code in there)

    def compared(self, setup: SetupName, split: SplitName) -> tuple[str, ...]:
        """Those of them whose figures can stand beside the paper's."""
        printed = self.suite.accuracy.get(setup, {})
        there = self.codes(setup, split)
        return tuple(code for code in there if self.suite.criterion(code).comparable and code in printed)

    def pairs(self, code: str, split: SplitName) -> int | None:
        """How many test pairs a criterion has."""
        every = (seeds for key, seeds in self._seeds.items() if key[1:3] == (split, code))
        return next((len(answers) for seeds in every for answers in seeds.values()), None)

    def accuracy(self, setup: SetupName, split: SplitName, code: str, cluster: str | None = None) -> Figure | None:
        seeds = self._seeds.get((setup, split, code, cluster))
        return accuracy([*seeds.values()], self._draws) if seeds else None

    def spearman(self, setup: SetupName, split: SplitName, code: str) -> Figure | None:
        seeds = self._seeds.get((setup, split, code, None))
        return spearman([*seeds.values()]) if seeds else None

    def average(self, setup: SetupName, split: SplitName) -> Figure | None:
        """The mean over comparable criteria; None as long as there are none."""
        return self.mean_over(setup, split, self.compared(setup, split))

    def mean_over(
        self, setup: SetupName, split: SplitName, codes: Sequence[str], cluster: str | None = None
    ) -> Figure | None:
        """The mean over some criteria, of the seeds that all of them have."""
        seeds = {code: self._seeds[setup, split, code, cluster] for code in codes}
        shared = sorted(set.intersection(*map(set, seeds.values()))) if seeds else []
        if not shared:
            return None
        return macro_accuracy({code: [one[seed] for seed in shared] for code, one in seeds.items()}, self._draws)

    def ties(self) -> tuple[int, int]:
        """Pairs with two equal scores among all that were judged."""
        every = [answers for seeds in self._seeds.values() for answers in seeds.values()]
        return sum(one.ties for one in every), sum(len(one) for one in every)


class Readings(NamedTuple):
    """What the trainings of a folder said, and in words which of them could not be heard."""

    results: Sequence[Result]
    left_out: Sequence[str]


def read_results(folder: Path) -> list[Result]:
    """The results of all finished trainings of a study's folder."""
    return [*readings(folder).results]


def readings(folder: Path) -> Readings:
    """The results of all finished trainings of a study's folder, and what is to be known of the others."""
    rooms = sorted(path for path in (folder / "trainings").glob("*") if path.is_dir())
    paths = [room / RESULTS for room in rooms if (room / RESULTS).is_file()]
    if not paths:
        raise InputError(f"{folder} holds no finished training; run the study with --suite and -o {folder} first")
    results, faults = [], []
    for path in paths:
        try:
            results.append(Result.read(path))
        except InputError as fault:
            faults.append(fault)
    if not results:
        raise faults[0]
    return Readings(results, [*(f"Left out: {fault}." for fault in faults), *_unfinished(rooms)])


def _unfinished(rooms: Sequence[Path]) -> list[str]:
    names = [room.name for room in rooms if not (room / RESULTS).is_file()]
    shown = [*names[:_NAMED], *([f"{len(names) - _NAMED:,} more"] if len(names) > _NAMED else [])]
    return [f"Not finished, and in no table: {', '.join(shown)}."] if names else []


def _by_seed(results: Sequence[Result]) -> dict[_Key, dict[int, Answers]]:
    found: dict[_Key, dict[int, Answers]] = {}
    for result in sorted(results, key=lambda one: one.job.seed):
        job = result.job
        for code, answers in result.answers.items():
            found.setdefault((job.setup, job.split, code, job.cluster), {})[job.seed] = answers
    return found
