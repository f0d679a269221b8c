"""Compare a judge with humans level by level, system by system, and on wrong answers.

All after Doostmohammadi et al. (2024): how many of the humans' 1s the judge rates 1 (section 4.2), the mean rating per
system from both with the average gap (Table 2), and the score of a wrong answer if right and wrong answers share words
(Task 1615).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from metrist.errors import RunError
from metrist.stats import Codes, Floats
from metrist.stats.gold import sum_by_code
from metrist.stats.measures import divide
from metrist.stats.resampling import bootstrap_scores, interval

#: With more distinct values, agreement at each level says nothing.
MAX_LEVELS = 20


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Confusion:
    """Counts (human levels, judge levels); `agreement` is the share of each human level that the judge puts at that
    level, with its bootstrap interval."""

    human: Floats
    judge: Floats
    counts: Codes
    agreement: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SystemLevels:
    """Mean levels per system on a scale of 0 to 100 (NaN for a system without outputs). `gap` is the mean distance of
    the two over systems, `bias` by how much the judge's are higher."""

    human: Floats
    judge: Floats
    outputs: Codes
    gap: float
    bias: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LabelSpace:
    """A metric's scores on a closed set of answers: of the `right` one, of a `wrong` one on average (the score of a
    system that is always wrong), and at most; `wrong_by_label` is the mean for each right answer. `inflation` is wrong
    over right, both relative to the metric's floor: 0 if wrong answers score nothing, 1 if the metric cannot
    distinguish them."""

    right: float
    wrong: float
    highest_wrong: float
    wrong_by_label: Floats
    inflation: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WrongAnswers:
    """A metric's mean score of the outputs that humans rate lowest and highest, and their ratio, relative to the
    metric's floor."""

    lowest_level: float
    highest_level: float
    wrong: float
    right: float
    inflation: float


def confusion(
    human: Floats,
    judge: Floats,
    draws: int,
    rng: np.random.Generator,
    cluster: Codes | None = None,
    confidence: float = 0.95,
) -> Confusion:
    """Compare human levels with the judge's on outputs that have both; `cluster` (items, for example) is resampled."""
    both = ~np.isnan(human + judge)
    rows, columns = _levels(human[both], "human values"), _levels(judge[both], "judge's values")
    row, column = np.searchsorted(rows, human[both]), np.searchsorted(columns, judge[both])
    counts = np.bincount(row * len(columns) + column, minlength=len(rows) * len(columns)).reshape(len(rows), -1)
    units, unit = np.unique(np.flatnonzero(both) if cluster is None else cluster[both], return_inverse=True)
    stats = np.zeros((len(rows), len(units), 2))
    equal = (human[both] == judge[both]).astype(np.float64)
    np.add.at(stats, (row, unit.reshape(-1)), np.stack([equal, np.ones(len(row))], axis=1))
    resampled = bootstrap_scores(stats, _share, draws, rng)
    shares = _share(stats.sum(axis=1))
    limits = np.array(
        [interval(resampled[:, r], confidence, len(units), float(share)) for r, share in enumerate(shares)]
    ).reshape(-1, 2)
    return Confusion(
        human=rows,
        judge=columns,
        counts=counts,
        agreement=shares,
        low=limits[:, 0],
        high=limits[:, 1],
    )


def system_levels(human: Floats, judge: Floats, system: Codes, scale: tuple[float, float]) -> SystemLevels:
    """Return each system's mean from both sides, on outputs that have both; `scale` is the lowest and highest level."""
    low, high = scale
    if not low < high:
        raise RunError(f"a scale runs from its lowest to its highest level, got {low} and {high}")
    both = ~np.isnan(human + judge)
    size = int(system.max(initial=-1)) + 1
    outputs = np.bincount(system[both], minlength=size)
    means = [
        divide(sum_by_code((values[both] - low) * (100 / (high - low)), system[both], size), outputs)
        for values in (human, judge)
    ]
    differences = (means[1] - means[0])[outputs > 0]
    return SystemLevels(
        human=means[0],
        judge=means[1],
        outputs=outputs,
        gap=float(np.abs(differences).mean()) if len(differences) else np.nan,
        bias=float(differences.mean()) if len(differences) else np.nan,
    )


def label_space(scores: Floats, frequency: Floats | None = None, floor: float = 0.0) -> LabelSpace:
    """Compute inflation from a metric's scores (answers, right answers), each answer scored against each as the right
    one. `frequency` is how often each is right (default: equally often), `floor` the score of an answer that is
    entirely wrong."""
    size = len(scores)
    if scores.shape != (size, size) or size < 2:
        raise RunError(f"a label space needs a square table of at least two answers, got {scores.shape}")
    share = np.ones(size) if frequency is None else np.asarray(frequency, dtype=np.float64)
    wrong = np.where(np.eye(size, dtype=np.bool_), 0.0, scores).sum(axis=0) / (size - 1)
    right = float(np.average(np.diagonal(scores), weights=share))
    mean_wrong = float(np.average(wrong, weights=share))
    return LabelSpace(
        right=right,
        wrong=mean_wrong,
        highest_wrong=float(scores[~np.eye(size, dtype=np.bool_)].max()),
        wrong_by_label=wrong,
        inflation=_ratio(mean_wrong - floor, right - floor),
    )


def wrong_answers(human: Floats, metric: Floats, floor: float = 0.0) -> WrongAnswers:
    """Compare the scores of the outputs that humans rate lowest with those they rate highest."""
    both = ~np.isnan(human + metric)
    rated, scores = human[both], metric[both]
    if len(np.unique(rated)) < 2:
        raise RunError("humans give all outputs the same rating: no answers are wrong or right")
    wrong, right = float(scores[rated == rated.min()].mean()), float(scores[rated == rated.max()].mean())
    return WrongAnswers(
        lowest_level=float(rated.min()),
        highest_level=float(rated.max()),
        wrong=wrong,
        right=right,
        inflation=_ratio(wrong - floor, right - floor),
    )


def _ratio(part: float, total: float) -> float:
    return part / total if total else float("nan")


def _share(sums: Floats) -> Floats:
    return divide(sums[..., 0], sums[..., 1])


def _levels(values: Floats, side: str) -> Floats:
    levels = np.unique(values)
    if len(levels) > MAX_LEVELS:
        raise RunError(
            f"the {side} take {len(levels):,} different values; agreement at each level needs at most {MAX_LEVELS} "
            "(majority or median gold keeps the raters' levels)"
        )
    return levels
