"""Survey sampling: means of groups from a sample with known probabilities, and what to sample next.

The means are regression estimates: what scores that are known of everything predict, plus the weighted mean of what the
sample shows beyond that (Särndal, Swensson and Wretman, Model Assisted Survey Sampling, 1992, chapters 6 and 7). They
stay right, and are only less precise, where the scores say nothing about the values. A weight is how many entries of
the population one of the sample stands for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from metrist.stats import Codes, Floats
from metrist.stats.significance import student_t_tail

#: The smallest size as a share of the mean one: what is hardly ever sampled has a large weight when it is.
_SMALLEST = 1 / 3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Design:
    """The weights of a sample, and how much the square of an entry's deviation adds to the variance of a total: by the
    choice of the population from a larger one (`drawn`), and by the choice of the sample from the population."""

    weight: Floats
    variance: Floats
    drawn: Floats

    @staticmethod
    def of(weight: Floats, variance: Floats, before: Floats) -> Design:
        """Return the design of a sample from a population that was itself drawn with the weights `before`."""
        return Design(weight=before * weight, variance=before**2 * variance, drawn=weight * (before**2 - before))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Means:
    """Estimated means of groups with their intervals, and how many entries of a plain random sample would give an
    interval as wide; NaN where there are too few values."""

    value: Floats
    low: Floats
    high: Floats
    worth: Floats


def estimate_means(
    values: Floats, group: Codes, design: Design, scores: Floats, population: Floats, confidence: float = 0.95
) -> Means:
    """Return the mean of each group of a population from a sample of it.

    `scores` (sample, k) are standard scores; those of the population have the means `population` (groups, k).
    """
    groups = len(population)
    totals = np.bincount(group, design.weight, groups)
    counts = np.bincount(group, minlength=groups)

    def sum_groups(columns: Floats) -> Floats:
        sums = np.zeros((groups, columns.shape[1]))
        np.add.at(sums, group, columns)
        return sums

    with np.errstate(divide="ignore", invalid="ignore"):
        columns = np.column_stack([values, scores])
        means = sum_groups(design.weight[:, None] * columns) / totals[:, None]
        centred = columns - means[group]
        deviations = centred[:, 0]
        slopes, freedom = _fit_slopes(centred[:, 1:], deviations, design.weight)
        residuals = deviations - centred[:, 1:] @ slopes
        value = means[:, 0] + (population - means[:, 1:]) @ slopes
        shares = design.variance + design.drawn
        squares, spread, sizes, squared_sizes = sum_groups(
            np.column_stack(
                [
                    design.variance * residuals**2 + design.drawn * deviations**2,
                    design.weight * deviations**2,
                    shares,
                    shares**2,
                ]
            )
        ).T
        # Residuals are smaller than errors: each group's mean and the slopes are fitted to them.
        of_mean = counts / (counts - 1)
        variance = of_mean * len(values) / max(1.0, len(values) - freedom) * squares / totals**2
        # Of a plain sample of n of N, it is the variance of the values times 1 / n - 1 / N.
        worth = of_mean * spread / totals / (variance + of_mean * spread / totals**2)
        effective = np.where(sizes > 0, sizes**2 / squared_sizes, counts)
    quantiles = [
        _student_t_quantile((1 + confidence) / 2, size - 1) if size > 1 else math.nan for size in effective.tolist()
    ]
    half = np.sqrt(variance) * np.array(quantiles)
    return Means(value=value, low=value - half, high=value + half, worth=worth)


def _fit_slopes(scores: Floats, values: Floats, weight: Floats) -> tuple[Floats, float]:
    """Return the slopes of centred values on centred scores by ridge regression, and how many values they use up. The
    penalty is small beside hundreds of values, and keeps tens of them from following many scores."""
    size = scores.shape[1]
    if not size or not len(values):
        return np.zeros(size), 0.0
    shares = weight / weight.mean()
    products = (scores * shares[:, None]).T @ scores
    inverse = np.linalg.inv(products + 2 * size * np.eye(size))
    return inverse @ (scores.T @ (shares * values)), float(np.trace(inverse @ products))


def _student_t_quantile(probability: float, freedom: float) -> float:
    """Return the quantile by Newton's method, which comes from the normal one, below it, without overshooting."""
    log_scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(freedom * math.pi) / 2
    quantile, step = NormalDist().inv_cdf(probability), 1.0
    while step > 1e-9 * quantile:
        density = math.exp(log_scale - (freedom + 1) / 2 * math.log1p(quantile**2 / freedom))
        step = (student_t_tail(quantile, freedom) - 1 + probability) / density
        quantile += step
    return quantile


def standardize_columns(scores: Floats, *, signed: bool = False) -> Floats:
    """Return standard scores of each column, 0 where a score is missing. Differences between two outputs (`signed`)
    keep their signs: they are not centred."""
    known = np.isfinite(scores)
    filled = np.where(known, scores, 0.0)
    counts = np.maximum(1, known.sum(axis=0))
    centred = filled if signed else np.where(known, filled - filled.sum(axis=0) / counts, 0.0)
    spread = np.sqrt((centred**2).sum(axis=0) / counts)
    return centred / np.where(spread > 0, spread, 1.0)


# ---- What to sample next


def predict_residuals(values: Floats, scores: Floats, *, signed: bool = False) -> Floats:
    """Return sizes in proportion to how far each entry's value may lie from what its scores predict.

    Values are NaN where they are not known yet. The size is linear in the prediction: low ratings, say, may spread more
    than high ones. Of choices (`signed`) it is the distance from a tie, linear in that of the prediction, since shares
    of votes, which are estimated from them, do not use the scores.
    """
    known = np.isfinite(values)
    centre = 0.0 if signed else values[known].mean()
    slopes, _ = _fit_slopes(scores[known], values[known] - centre, np.ones(int(known.sum())))
    predicted = scores @ slopes
    residuals = np.abs(values[known]) if signed else np.abs(values[known] - centre - predicted[known])
    predictor = np.abs(predicted) if signed else predicted
    deviations = predictor - predictor[known].mean()
    squares = (deviations[known] ** 2).sum()
    mean = residuals.mean()
    if not squares > 0 or not mean > 0:
        return np.ones(len(values))
    slope = (deviations[known] * residuals).sum() / squares
    sizes: Floats = np.clip(1 + slope / mean * deviations, _SMALLEST, 1 / _SMALLEST)
    return sizes


def draw_priorities(sizes: Floats, rng: np.random.Generator) -> Floats:
    """Return numbers by which entries are ordered, the smallest first: a random one over the size.

    Whatever place the order is left at, given the priority of the next entry each one before it is there with a known
    probability (`probabilities_before`), and estimates weighted by that are unbiased (Duffield, Lund and Thorup,
    Priority sampling for estimation of arbitrary subset sums, 2007).
    """
    return rng.random(len(sizes)) / sizes


def probabilities_before(priority: float, sizes: Floats) -> Floats:
    """Return the probabilities that entries of these sizes come before this priority."""
    return np.minimum(1.0, sizes * priority)


def weigh_phases(population: int, first: int, probability: Floats) -> tuple[tuple[float, float], tuple[Floats, Floats]]:
    """Return weights and variances (see `Design`) of the entries of a plain random sample of so many, and of those that
    were then drawn from the rest with these probabilities.

    Both phases give an unbiased estimate of the total, the second one with the first sample known. The weights are
    those of the mean of the two that would be best if all probabilities were equal: a mean that depended on the
    probabilities drawn would be biased.
    """
    share, rest, second = first / population, population - first, len(probability)
    if not second:
        return (1 / share, (1 - share) / share**2), (probability, probability)
    by_first, by_second = population * (population / first - 1), rest * (rest / second - 1)
    portion = by_second / (by_first + by_second)
    of_first = portion / share + 1 - portion, portion**2 * (1 - share) / share**2
    return of_first, ((1 - portion) / probability, (1 - portion) ** 2 * (1 - probability) / probability**2)
