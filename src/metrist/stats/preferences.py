"""Preferences: win rates, confusion tables of choices, Bradley-Terry strengths, and standings by them. A tie is half a
win for both."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metrist.errors import RunError, format_count
from metrist.stats import Codes, Floats
from metrist.stats.measures import divide
from metrist.stats.resampling import CHUNK, bootstrap_scores, interval, pool_rows, resample_counts
from metrist.stats.samples import number_groups

FIRST, SECOND, TIE = 1, -1, 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Preferences:
    """One entry per preference: the item, the codes of both systems, and the choice (1 first, -1 second, 0 tie).

    A choice between these numbers is graded: 0.5 counts as three quarters of a win and one quarter of a loss. Raters do
    not matter here. `weight` is how often each preference counts, with a mean of 1; None if all count alike.
    """

    item: Codes
    first: Codes
    second: Codes
    choice: Floats
    items: int
    systems: int
    weight: Floats | None = None

    @staticmethod
    def of(
        item: ArrayLike,
        first: ArrayLike,
        second: ArrayLike,
        choice: ArrayLike,
        systems: int,
        weight: Floats | None = None,
    ) -> Preferences:
        """Make preferences from long columns."""
        items, firsts, seconds = (np.asarray(column, dtype=np.intp) for column in (item, first, second))
        if itself := int(np.count_nonzero(firsts == seconds)):
            raise RunError(f"{format_count(itself, 'preference compares', 'preferences compare')} a system with itself")
        return Preferences(
            item=items,
            first=firsts,
            second=seconds,
            choice=np.asarray(choice, dtype=np.float64),
            items=int(items.max(initial=-1)) + 1,
            systems=systems,
            weight=None if weight is None else weight / weight.mean(),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WinRates:
    """Per system the share of its preferences that it won, with its bootstrap interval over items; NaN for a system
    that was never compared. `games` counts its preferences."""

    value: Floats
    low: Floats
    high: Floats
    games: Codes


def orient_choices(first: Sequence[str], second: Sequence[str], choice: ArrayLike) -> Floats:
    """Return the choices (1 first, -1 second, 0 tie) as if each pair had been named in the order of its systems' names.

    Chance-corrected agreement takes first and second as two values, so that it depends on which output of a pair is
    the first: that must not follow the order of a file's rows.
    """
    choices = np.asarray(choice, np.float64)
    return np.where(np.asarray(first, np.str_) > np.asarray(second, np.str_), -choices, choices)


def shares_won(
    first: ArrayLike, second: ArrayLike, choice: ArrayLike, size: int, weight: Floats | None = None
) -> Floats:
    """Return the share of its preferences that each side won, by code (of systems, or of outputs); NaN without
    preferences."""
    sides = np.concatenate([np.asarray(first, dtype=np.intp), np.asarray(second, dtype=np.intp)])
    points = (1 + np.asarray(choice, dtype=np.float64)) / 2
    weights = np.ones(len(points)) if weight is None else weight
    won = np.bincount(sides, weights=np.concatenate([weights * points, weights * (1 - points)]), minlength=size)
    return divide(won, np.bincount(sides, weights=np.tile(weights, 2), minlength=size))


def win_rates(preferences: Preferences, draws: int, rng: np.random.Generator, confidence: float = 0.95) -> WinRates:
    """Return the systems' win rates with intervals over resamples of the items."""
    # For each system and item, the points won and the number of preferences.
    rows = np.zeros((preferences.systems, preferences.items, 2))
    points = (1 + preferences.choice) / 2
    weight = np.ones_like(points) if preferences.weight is None else preferences.weight
    for side, won in ((preferences.first, points), (preferences.second, 1 - points)):
        np.add.at(rows, (side, preferences.item), np.stack([weight * won, weight], axis=1))

    def win_rate(sums: Floats) -> Floats:
        return divide(sums[..., 0], sums[..., 1])

    # Item codes without a preference do not count as items.
    rows = rows[:, rows[..., 1].any(axis=0)]
    resampled = bootstrap_scores(rows, win_rate, draws, rng)
    rates = pool_rows(rows, win_rate)
    limits = [interval(resampled[:, s], confidence, rows.shape[1], float(rate)) for s, rate in enumerate(rates)]
    low, high = np.array(limits, dtype=np.float64).reshape(-1, 2).T
    sides = np.concatenate([preferences.first, preferences.second])
    games: Codes = np.bincount(sides, minlength=preferences.systems)
    return WinRates(value=rates, low=low, high=high, games=games)


# ---- Choices between two outputs: first, second or tie.
#
# Everything pools a confusion table (3, 3) of counts: rows are what humans chose, columns what the metric chose, both
# in the order of `CHOICES`. Tables add up, and a resample is a weighted table.


FIRST_CODE, SECOND_CODE, TIE_CODE = 0, 1, 2
CHOICES: Final = ("first", "second", "tie")


def choose(differences: Floats, threshold: float = 0.0) -> Codes:
    """Return what a metric chooses, given its score of the first minus that of the second output: a tie if they differ
    by at most the threshold."""
    if not threshold >= 0:
        raise RunError(f"a tie threshold must be 0 or more, got {threshold}", code="invalid_value")
    if np.isnan(differences).any():
        raise RunError(
            f"{np.isnan(differences).sum()} of {len(differences)} score differences are NaN: leave such pairs out"
        )
    return np.where(differences > threshold, FIRST_CODE, np.where(differences < -threshold, SECOND_CODE, TIE_CODE))


def confusion(human: Codes, metric: Codes) -> Floats:
    """Return the table (3, 3) of two columns of choices."""
    return np.bincount(human * 3 + metric, minlength=9).reshape(3, 3).astype(np.float64)


def accuracy(tables: Floats) -> Floats:
    """The share of pairs where the metric chose as humans did."""
    return divide(np.trace(tables, axis1=-2, axis2=-1), tables.sum(axis=(-2, -1)))


def macro_f1(tables: Floats) -> Floats:
    """The mean F1 of the choices that humans or the metric made."""
    right = np.diagonal(tables, axis1=-2, axis2=-1)
    scores = divide(2 * right, tables.sum(axis=-1) + tables.sum(axis=-2))
    occurring = ~np.isnan(scores)
    return divide(np.where(occurring, scores, 0.0).sum(axis=-1), occurring.sum(axis=-1).astype(np.float64))


def chance_accuracy(tables: Floats) -> Floats:
    """The accuracy of choosing first or second at random."""
    by_human = tables.sum(axis=-1)
    return divide((by_human[..., FIRST_CODE] + by_human[..., SECOND_CODE]) / 2, by_human.sum(axis=-1))


def pair_counts(tables: Floats) -> Floats:
    """Return rows (..., 5) for the pairwise measures: chosen alike, chosen the other way round, tied by humans only, by
    the metric only, by both. With these, `darr_wmt17` and its like apply to preferences."""
    human_tied = tables[..., TIE_CODE, FIRST_CODE] + tables[..., TIE_CODE, SECOND_CODE]
    metric_tied = tables[..., FIRST_CODE, TIE_CODE] + tables[..., SECOND_CODE, TIE_CODE]
    alike = tables[..., FIRST_CODE, FIRST_CODE] + tables[..., SECOND_CODE, SECOND_CODE]
    opposed = tables[..., FIRST_CODE, SECOND_CODE] + tables[..., SECOND_CODE, FIRST_CODE]
    return np.stack([alike, opposed, human_tied, metric_tied, tables[..., TIE_CODE, TIE_CODE]], axis=-1)


# ---- Strengths of systems from preferences with ties: the Bradley-Terry model as Davidson (1970) extends it.
#
# With strengths s (on the log scale) and a tie parameter v, a preference between i and j is won by i, tied, or won by j
# in the ratio exp(s_i) : v exp((s_i + s_j) / 2) : exp(s_j). A tie thus counts as half a win for each side, as in a win
# rate; without ties v is 0 and the model is that of Bradley and Terry. The likelihood is concave in (s, log v), so that
# Newton's method finds its only maximum, if there is one. There is none
#
# * if systems fall into groups such that no member of one ever won or tied against a member of the other, or they were
#   never compared: the strengths of one group may grow without limit;
# * if strength alone separates ties from wins (for example, neighbours always tie and others never do): then all
#   strengths and v may grow together;
# * if every preference is a tie.
#
# All three are detected before fitting (the second by searching for a loop of preferences with more wins than ties).


#: Newton steps double the correct digits: after a step of this length, or less, the rest is rounding; and a fit that
#: has not converged by then never will.
_CONVERGED = 1e-7
_STEPS = 100
#: A step that needs no check.
_SHORT = 0.1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BradleyTerry:
    """Log strengths with mean 0, their standard errors and covariance (from the information matrix), and the tie
    parameter: 0 if nothing ties; between two systems of equal strength a tie has probability tie / (2 + tie)."""

    strength: Floats
    error: Floats
    covariance: Floats
    tie: float


def bradley_terry(preferences: Preferences, names: Sequence[str] = ()) -> BradleyTerry:
    """Return the maximum-likelihood strengths; `names` of the systems are used in messages only."""
    counts = _Cells.of(preferences).count_all()
    problem = _find_problem(counts[0], names)
    if problem:
        raise RunError(f"Bradley-Terry strengths are not determined: {problem}")
    strengths, log_tie = _fit(counts)
    if np.isnan(strengths).any():
        raise RunError("Bradley-Terry strengths did not converge")
    # Of strengths with mean 0; the tie parameter is estimated too.
    size = preferences.systems
    centre = np.eye(size) - 1 / size
    inverse = np.linalg.inv(_derivatives(counts, strengths, log_tie)[1])[:, :size, :size]
    covariance: Floats = (centre @ inverse @ centre)[0]
    return BradleyTerry(
        strength=strengths[0],
        error=np.sqrt(np.diagonal(covariance)),
        covariance=covariance,
        tie=math.exp(log_tie[0]),
    )


def bootstrap_standings(
    preferences: Preferences, draws: int, rng: np.random.Generator, progress: Callable[[int], None] | None = None
) -> tuple[Floats, Floats]:
    """Return strengths and win rates (draws, systems) on the same resamples of the items. `progress` is called with the
    draws done."""
    cells = _Cells.of(preferences)
    whole = cells.count_all()
    start = None if _find_problem(whole[0], ()) else _fit(whole)
    chunks = [np.empty((2, 0, preferences.systems))]
    for counts in cells.resample(draws, rng):
        determined = np.array([not _find_problem(draw, ()) for draw in counts], dtype=np.bool_)
        strengths = np.full((len(counts), preferences.systems), np.nan)
        if determined.any():
            strengths[determined] = _fit(counts[determined], start)[0]
        wins, ties = counts[:, 0], counts[:, 1].sum(axis=2)
        points = wins.sum(axis=2) + ties / 2
        chunks.append(np.stack([strengths, divide(points, points + wins.sum(axis=1) + ties / 2)]))
        if progress:
            progress(len(counts))
    strengths, rates = np.concatenate(chunks, axis=1)
    return strengths, rates


#: With more items, equal ones are drawn together; and the size of a matrix that is multiplied rather than summed.
_MANY_ITEMS, _MAX_MATRIX = 10_000, 1 << 22
#: Draws are fitted as many at once as fit into the cache: this times squares of the number of systems.
_ARRAYS = 24


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Cells:
    """How often each item has each cell that occurs, one entry each. The cells (2, systems, systems) are how often i
    beat j, and how often they tied, and `cells` are their flat numbers. Equal items are one with `times`."""

    systems: int
    cells: Codes
    item: Codes
    cell: Codes
    count: Floats
    times: Codes

    @staticmethod
    def of(preferences: Preferences) -> _Cells:
        size, choice = preferences.systems, preferences.choice
        first, second = preferences.first, preferences.second
        share = np.where(choice == TIE, 1.0, (1 + choice) / 2)
        forth, back = np.flatnonzero(share > 0), np.flatnonzero(share < 1)
        kind = (choice[forth] == TIE).astype(np.intp)
        flat = np.concatenate([(kind * size + first[forth]) * size + second[forth], second[back] * size + first[back]])
        items, item = number_groups(preferences.item)
        item = item[np.concatenate([forth, back])]
        count = np.concatenate([share[forth], 1 - share[back]])
        if preferences.weight is not None:
            count *= preferences.weight[np.concatenate([forth, back])]
        elif items > _MANY_ITEMS and len(item) == items:
            # One whole vote per item, as in an arena: those with the same outcome are alike.
            cells, cell, times = np.unique(flat, return_inverse=True, return_counts=True)
            ones, numbers = np.ones(len(cells)), np.arange(len(cells))
            return _Cells(systems=size, cells=cells, item=numbers, cell=numbers, count=ones, times=times)
        cells, cell = np.unique(flat, return_inverse=True)
        times = np.ones(items, np.intp)
        return _Cells(systems=size, cells=cells, item=item, cell=cell, count=count, times=times)

    def count_all(self) -> Floats:
        """Return the counts (1, 2, systems, systems); ties are in both triangles."""
        return self._count(self.times[None].astype(np.float64))

    def resample(self, draws: int, rng: np.random.Generator) -> Iterator[Floats]:
        """Yield the counts (some draws, 2, systems, systems) on resamples of the items."""
        items, kinds = int(self.times.sum()), len(self.times)
        rows = max(1, CHUNK // max(1, kinds, _ARRAYS * self.systems**2))
        if kinds == items:
            yield from map(self._count, resample_counts(items, draws, rng, rows))
            return
        for start in range(0, draws, rows):
            # Of so many items it does not matter that their number varies a little.
            drawn = rng.poisson(self.times, size=(min(rows, draws - start), kinds))
            yield self._count(drawn.astype(np.float64))

    def _count(self, weights: Floats) -> Floats:
        size = self.systems
        if len(self.times) * len(self.cells) <= _MAX_MATRIX:
            rows = np.zeros((len(self.times), len(self.cells)))
            np.add.at(rows, (self.item, self.cell), self.count)
            summed = weights @ rows
        else:
            sums = (np.bincount(self.cell, own[self.item] * self.count, len(self.cells)) for own in weights)
            summed = np.stack(list(sums))
        flat = np.zeros((len(weights), 2 * size * size))
        flat[:, self.cells] = summed
        counts = flat.reshape(-1, 2, size, size)
        counts[:, 1] += counts[:, 1].swapaxes(1, 2)
        return counts


def _find_problem(counts: Floats, names: Sequence[str]) -> str:
    wins, ties = counts > 0
    if not wins.any():
        return "every preference is a tie" if ties.any() else "there are no preferences"
    if not _is_connected(wins | ties):
        # The strongly connected components.
        closure = wins | ties | np.eye(len(wins), dtype=np.bool_)
        for _ in range(len(wins).bit_length()):
            closure = (closure.astype(np.float32) @ closure.astype(np.float32)) > 0
        mutual = closure & closure.T
        groups = [np.flatnonzero(row).tolist() for i, row in enumerate(mutual) if np.argmax(row) == i]
        listed = ["{" + ", ".join(names[i] if names else str(i) for i in group) + "}" for group in groups]
        hint = "; rank one group at a time, or add votes" if len(groups) < len(wins) else "; add votes"
        return (
            f"the systems fall into {len(groups)} groups without a win, or a tie, both ways: {' '.join(listed)}{hint}"
        )
    if ties.any() and not _has_loop_of_wins(wins, ties):
        return "strength alone separates ties from wins"
    return ""


def _is_connected(reaches: NDArray[np.bool_]) -> bool:
    """Whether the first leads to all others, and these to it."""
    for step in (reaches, reaches.T):
        reached = np.arange(len(step)) == 0
        while not reached.all():
            further = reached | step[reached].any(axis=0)
            if (further == reached).all():
                return False
            reached = further
    return True


def _has_loop_of_wins(wins: NDArray[np.bool_], ties: NDArray[np.bool_]) -> bool:
    """Search by Bellman and Ford for a loop of negative length, where a win is a step of -1 and a tie one of +1."""
    if (wins & wins.T).any():
        return True
    step = np.where(wins, -1.0, np.where(ties, 1.0, np.inf))
    distance = np.zeros(len(step))
    for _ in range(len(step)):
        shorter = np.minimum(distance, (distance[:, None] + step).min(axis=0))
        if np.array_equal(shorter, distance):
            return False
        distance = shorter
    return True


def _fit(counts: Floats, start: tuple[Floats, Floats] | None = None) -> tuple[Floats, Floats]:
    """Return the maximum for each draw: strengths (draws, systems) and log tie parameters (draws,), -inf if nothing
    ties. `start` is a maximum (1, systems), (1,) nearby.

    A draw that has not converged is NaN.
    """
    with_ties = counts[:, 1].any(axis=(1, 2))
    strengths, tie = np.zeros((len(counts), counts.shape[2])), 0.0
    if start is not None and np.isfinite(start[0]).all():
        strengths += start[0]
        tie = float(start[1][0]) if np.isfinite(start[1][0]) else 0.0
    log_tie = np.where(with_ties, tie, -np.inf)
    for _ in range(_STEPS):
        gradient, information = _derivatives(counts, strengths, log_tie)
        step: Floats = np.linalg.solve(information, gradient[..., None])[..., 0].astype(np.float64)
        strengths, log_tie = _step(counts, strengths, log_tie, step)
        moving = np.abs(step).max(axis=1) >= _CONVERGED
        if not moving.any():
            break
    centred = strengths - strengths.mean(axis=1, keepdims=True)
    return np.where(moving[:, None], np.nan, centred), log_tie


def _step(counts: Floats, strengths: Floats, log_tie: Floats, step: Floats) -> tuple[Floats, Floats]:
    """Take one Newton step, halved for those draws where the full step would reduce the likelihood. A short step never
    does: on its way no variance of the model changes by more than a third."""
    size = np.ones(len(counts))
    if np.abs(step).max() > _SHORT:
        value = _likelihood(counts, strengths, log_tie)
        for _ in range(_STEPS):
            reached = _likelihood(counts, strengths + size[:, None] * step[:, :-1], log_tie + size * step[:, -1])
            downhill = reached < value - 1e-9 * np.abs(value)
            if not downhill.any():
                break
            size = np.where(downhill, size / 2, size)
    return strengths + size[:, None] * step[:, :-1], log_tie + size * step[:, -1]


def _probabilities(strengths: Floats, log_tie: Floats) -> tuple[Floats, Floats]:
    """Return the probabilities (draws, systems, systems) that i beats j, and that they tie."""
    half = (strengths[:, :, None] - strengths[:, None, :]) / 2
    top = np.maximum(np.abs(half), log_tie[:, None, None])
    win, tie = np.exp(half - top), np.exp(log_tie[:, None, None] - top)
    total = win + win.swapaxes(1, 2) + tie
    return win / total, tie / total


def _likelihood(counts: Floats, strengths: Floats, log_tie: Floats) -> Floats:
    logs = []
    for count, chance in zip((counts[:, 0], counts[:, 1] / 2), _probabilities(strengths, log_tie), strict=True):
        happened = count > 0
        with np.errstate(divide="ignore"):
            logs.append(np.where(happened, count * np.log(np.where(happened, chance, 1.0)), 0.0))
    total: Floats = np.sum(logs, axis=(0, 2, 3))
    return total


def _derivatives(counts: Floats, strengths: Floats, log_tie: Floats) -> tuple[Floats, Floats]:
    """Return the gradient (draws, systems + 1) and the information matrix of strengths and log tie parameter.

    The model is an exponential family: the gradient is observed minus expected (points, and number of ties), the
    information the covariance of these. Strengths are determined up to a shift, which a constant added to their block
    fixes; if nothing ties, a 1 keeps the tie parameter where it is.
    """
    win, tie = _probabilities(strengths, log_tie)
    wins, ties = counts[:, 0], counts[:, 1]
    games = wins + wins.swapaxes(1, 2) + ties
    expected = games * (win + tie / 2)
    points = (wins + ties / 2 - expected).sum(axis=2)
    tied = (ties - games * tie).sum(axis=(1, 2)) / 2
    # For one preference, from the side of i: the variance of its points, and their covariance with being a tie.
    mean = win + tie / 2
    spread = games * (win + tie / 4 - mean**2)
    joint = (games * tie * (0.5 - mean)).sum(axis=2)
    size = counts.shape[2]
    information = np.zeros((len(counts), size + 1, size + 1))
    information[:, :size, :size] = 1 - spread
    diagonal = np.arange(size)
    information[:, diagonal, diagonal] = 1 + spread.sum(axis=2)
    information[:, :size, size] = information[:, size, :size] = joint
    information[:, size, size] = np.where(np.isinf(log_tie), 1.0, (games * tie * (1 - tie)).sum(axis=(1, 2)) / 2)
    return np.concatenate([points, tied[:, None]], axis=1), information


# ---- Standings: the range of a system's rank, and how many votes would tell two systems apart

#: Strengths that differ by less are equal but for rounding.
_EQUAL = 1e-9


def rank_ranges(resampled: Floats, confidence: float) -> Floats:
    """Return the best and the worst rank (2, systems) of each system in resamples of their strengths (draws, systems),
    between the quantiles of its ranks; NaN without resamples that determine the strengths."""
    known = resampled[~np.isnan(resampled).any(axis=1)]
    if not len(known):
        return np.full((2, resampled.shape[1]), np.nan)
    ranks = 1 + np.argsort(np.argsort(-known, axis=1, kind="stable"), axis=1)
    tail = (1 - confidence) / 2
    ranges: Floats = np.quantile(ranks, [tail, 1 - tail], axis=0, method="closest_observation").astype(np.float64)
    return ranges


def votes_needed(fitted: BradleyTerry, resampled: Floats, first: int, second: int, confidence: float) -> float:
    """Return how many more votes between two systems make the interval of the difference of their strengths exclude 0,
    if the difference stays as it is: 0 where it does so now, infinity where there is no difference.

    A vote adds the information of one choice between them. Votes on the same item repeat each other in part: by as much
    as the variance between resamples of items exceeds that of the model.
    """
    gap = float(fitted.strength[first] - fitted.strength[second])
    known = resampled[~np.isnan(resampled).any(axis=1)]
    variance = float((known[:, first] - known[:, second]).var(ddof=1)) if len(known) > 1 else math.nan
    of_model = float(fitted.covariance[[first, second], [first, second]].sum() - 2 * fitted.covariance[first, second])
    if not variance > 0 or not of_model > 0:
        return math.nan
    if abs(gap) < _EQUAL:
        return math.inf
    missing = (NormalDist().inv_cdf((1 + confidence) / 2) / gap) ** 2 - 1 / variance
    win, tie = math.exp(gap / 2), fitted.tie
    total = win + 1 / win + tie
    points = (win + tie / 2) / total
    information = (win + tie / 4) / total - points**2
    return math.ceil(max(missing, 0.0) * max(variance / of_model, 1.0) / information)
