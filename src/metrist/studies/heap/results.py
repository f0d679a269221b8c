"""Accuracy and Spearman of trainings that differ only in their seed, with their uncertainty.

The standard deviation over seeds measures the randomness of training, the interval over pairs that of the choice of
test pairs. Pairs of one context are resampled together, also across criteria that share contexts. Answers without a
context are resampled themselves: a few texts compared in many pairs are still a few texts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from metrist.criteria import Suite
from metrist.errors import InputError, RunError
from metrist.stats.measures import measure
from metrist.stats.resampling import interval, resample_counts
from metrist.studies.heap.jobs import NO_CONTEXT, RESULTS, SPLITS, CriterionScores, Result, SetupName, SplitName

Floats = NDArray[np.float64]
DRAWS = 2_000
_CONFIDENCE = 0.95
#: How many weights are in memory at once.
_CHUNK = 1 << 22
#: What is resampled: a context, or an answer that has none.
_Unit = tuple[str, str]
#: Takes the place of a second unit; every draw has it once.
_ALWAYS: _Unit = ("", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedSummary:
    """A mean over seeds, their standard deviation (n - 1; NaN for one seed) and the 95 % interval over test pairs."""

    mean: float
    sd: float = math.nan
    low: float = math.nan
    high: float = math.nan
    seeds: int = 1


def accuracy(seeds: Sequence[CriterionScores], draws: int = DRAWS) -> SeedSummary:
    """Return the share of pairs whose good answer scores strictly higher."""
    return macro_accuracy({"": seeds}, draws)


def macro_accuracy(criteria: Mapping[str, Sequence[CriterionScores]], draws: int = DRAWS) -> SeedSummary:
    """Return the mean of several criteria's accuracies, with equal weights; all must have the same seeds."""
    if not criteria or len({len(seeds) for seeds in criteria.values()}) != 1:
        raise RunError("a mean over criteria needs the same number of seeds of each", code="invalid_value")
    for first, *others in criteria.values():
        for other in others:
            if list(other.good_answer) != list(first.good_answer) or list(other.bad_answer) != list(first.bad_answer):
                raise RunError(
                    "two seeds of one training were tested on different pairs; remove the older results", code="changed"
                )
    per_seed = np.mean([[scores.accuracy for scores in seeds] for seeds in criteria.values()], axis=0)
    summary = _summarize(per_seed.tolist())
    low, high = _compute_interval(criteria, draws, summary.mean)
    return replace(summary, low=low, high=high)


def spearman(seeds: Sequence[CriterionScores], pooled: bool = False) -> SeedSummary | None:
    """Return the rank correlation of scores with human ratings over the distinct answers of the pairs, or if `pooled`
    over both answers of each pair, all contexts together. None if there are no ratings, or only one."""
    rated = [scores.rated_pairs() if pooled else scores.rated_answers() for scores in seeds]
    values = [measure("spearman").value(*columns) for columns in rated if len(columns[0]) > 1]
    return None if not values or np.isnan(values).any() else _summarize(values)


def _summarize(values: Sequence[float]) -> SeedSummary:
    sd = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    return SeedSummary(mean=float(np.mean(values)), sd=sd, seeds=len(values))


def _compute_interval(
    criteria: Mapping[str, Sequence[CriterionScores]], draws: int, value: float
) -> tuple[float, float]:
    """Resample contexts, and answers without one. A pair of two such answers counts as often as both are drawn."""
    # What is drawn together with each pair: its context, or else its two answers.
    groups: dict[str, list[tuple[_Unit, _Unit]]] = {}
    for name, (scores, *_) in criteria.items():
        groups[name] = [
            (("answer", good), ("answer", bad)) if context == NO_CONTEXT else (("context", context), _ALWAYS)
            for context, good, bad in zip(scores.context, scores.good_answer, scores.bad_answer, strict=True)
        ]
    rows = {group: row for row, group in enumerate(sorted({group for own in groups.values() for group in own}))}
    # The number of right pairs and of all pairs of each criterion, over all seeds. The numbers are whole, so their sums
    # are exact in any order.
    counts = np.zeros((len(rows), 2 * len(criteria)))
    for column, (name, seeds) in enumerate(criteria.items()):
        own = [rows[group] for group in groups[name]]
        np.add.at(counts[:, 2 * column], own, np.sum([scores.right for scores in seeds], axis=0))
        np.add.at(counts[:, 2 * column + 1], own, float(len(seeds)))
    units = sorted({unit for group in rows for unit in group if unit != _ALWAYS})
    columns = {unit: column for column, unit in enumerate([*units, _ALWAYS])}
    first, second = np.array([[columns[unit] for unit in group] for group in rows]).T
    means = []
    for drawn in resample_counts(len(units), draws, np.random.default_rng(0), max(1, _CHUNK // len(rows))):
        weights = np.column_stack([drawn, np.ones(len(drawn))])
        sums = (weights[:, first] * weights[:, second]) @ counts
        right, count = sums[:, 0::2], sums[:, 1::2]
        # A criterion that has no pair in a draw is not counted there.
        used = count > 0
        shares = np.where(used, right / np.where(used, count, 1.0), 0.0)
        means.append(shares.sum(axis=1) / np.where(used.any(axis=1), used.sum(axis=1), np.nan))
    return interval(np.concatenate(means), _CONFIDENCE, len(units), value)


#: How many unfinished trainings are listed by name.
_MAX_LISTED = 10
_Key = tuple[SetupName, SplitName, str, str | None]


class StudyResults:
    """The results of the finished trainings by setup, split and criterion. `chosen` describes the settings chosen for
    each subject, `left_out` the trainings that are in no table."""

    def __init__(
        self,
        suite: Suite,
        results: Sequence[Result],
        *,
        chosen: Mapping[str, str] | None = None,
        left_out: Sequence[str] = (),
    ) -> None:
        self.suite = suite
        self.results = tuple(results)
        self.chosen = dict(chosen or {})
        self.left_out = tuple(left_out)
        self._seeds: dict[_Key, dict[int, CriterionScores]] = {}
        for result in sorted(results, key=lambda result: result.job.seed):
            job = result.job
            for code, scores in result.scores.items():
                self._seeds.setdefault((job.setup, job.split, code, job.cluster), {})[job.seed] = scores

    @cached_property
    def splits(self) -> tuple[SplitName, ...]:
        """The splits of the trainings, the authors' first."""
        used = {result.job.split for result in self.results}
        return tuple(split for split in SPLITS if split in used)

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """The number of pairs of each criterion."""
        return {code: size for result in self.results for code, size in result.sizes.items()}

    def codes(self, setup: SetupName, split: SplitName, cluster: str | None = None) -> tuple[str, ...]:
        """Return the criteria that a setup was tested on, in the suite's order."""
        tested = {key[2] for key in self._seeds if key[:2] == (setup, split) and key[3] == cluster}
        return tuple(code for code in self.suite.codes if code in tested)

    def comparable_codes(self, setup: SetupName, split: SplitName) -> tuple[str, ...]:
        """Return those of them whose figures can be compared with the paper's."""
        published = self.suite.accuracy.get(setup, {})
        codes = self.codes(setup, split)
        return tuple(code for code in codes if self.suite.criterion(code).comparable and code in published)

    def count_pairs(self, code: str, split: SplitName) -> int | None:
        """Return the number of a criterion's test pairs."""
        matching = (seeds for key, seeds in self._seeds.items() if key[1:3] == (split, code))
        return next((len(scores) for seeds in matching for scores in seeds.values()), None)

    def accuracy(self, setup: SetupName, split: SplitName, code: str, cluster: str | None = None) -> SeedSummary | None:
        seeds = self._seeds.get((setup, split, code, cluster))
        return accuracy([*seeds.values()]) if seeds else None

    def spearman(self, setup: SetupName, split: SplitName, code: str, pooled: bool = False) -> SeedSummary | None:
        seeds = self._seeds.get((setup, split, code, None))
        return spearman([*seeds.values()], pooled) if seeds else None

    def average(self, setup: SetupName, split: SplitName) -> SeedSummary | None:
        """Return the mean over comparable criteria, None if there are none."""
        return self.mean_over(setup, split, self.comparable_codes(setup, split))

    def mean_over(
        self, setup: SetupName, split: SplitName, codes: Sequence[str], cluster: str | None = None
    ) -> SeedSummary | None:
        """Return the mean over some criteria, of the seeds that all of them have."""
        by_code = {code: self._seeds[setup, split, code, cluster] for code in codes}
        shared = sorted(set.intersection(*map(set, by_code.values()))) if by_code else []
        if not shared:
            return None
        return macro_accuracy({code: [seeds[seed] for seed in shared] for code, seeds in by_code.items()})

    def count_ties(self) -> tuple[int, int]:
        """Return the number of pairs with two equal scores, and of all scored pairs."""
        every = [scores for seeds in self._seeds.values() for scores in seeds.values()]
        return sum(scores.ties for scores in every), sum(len(scores) for scores in every)


def read_results(folder: Path) -> tuple[list[Result], list[str]]:
    """Read the results of all finished trainings of a study's folder, and describe unfinished trainings and results
    that cannot be read."""
    folders = sorted(path for path in (folder / "trainings").glob("*") if path.is_dir())
    paths = [path / RESULTS for path in folders if (path / RESULTS).is_file()]
    if not paths:
        raise InputError(
            f"{folder} has no finished training: run `metrist train preference --suite heap -o {folder}` first",
            code="no_data",
        )
    results, errors = [], []
    for path in paths:
        try:
            results.append(Result.read(path))
        except InputError as error:
            errors.append(error)
    if not results:
        raise errors[0]
    left_out = [f"Left out: {error}." for error in errors]
    unfinished = [path.name for path in folders if not (path / RESULTS).is_file()]
    if unfinished:
        shown = unfinished[:_MAX_LISTED]
        if len(unfinished) > _MAX_LISTED:
            shown.append(f"{len(unfinished) - _MAX_LISTED:,} more")
        left_out.append(f"Not finished, and in no table: {', '.join(shown)}.")
    return results, left_out
