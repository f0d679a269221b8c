"""Strengths and win rates of systems at equal covariates, such as the length of their outputs.

To the difference of the strengths of two systems in Davidson's model (`metrist.stats.preferences`), a vote adds

* for each covariate, a coefficient times tanh(difference of the two outputs / the root of its mean square over the
  votes);
* where one system is on a side of every vote, as the baseline of AlpacaEval 2 is, the ease of its item: how much the
  baseline's opponents gain on that item. Eases have a standard normal prior, all other parameters a flat one.

The win rate of a system at equal covariates is the mean, over its votes, of the points that the model expects where
the covariates do not differ. Variances are those of the sandwich estimator, clustered by item, since votes on an item
are not independent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from metrist.errors import RunError
from metrist.stats import Codes, Floats
from metrist.stats.preferences import TIE, BradleyTerry, Preferences, bradley_terry
from metrist.stats.resampling import CHUNK
from metrist.stats.samples import number_groups

#: Newton steps double the correct digits. Coefficients that grow without limit do not converge, and those that cannot
#: be told apart leave an information matrix that is singular.
_CONVERGED, _STEPS, _SINGULAR = 1e-7, 50, 1e10


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ControlledFit:
    """Strengths and win rates at equal covariates; the coefficient of each covariate, and the root of the mean square
    of its differences. `covariance` is that of strengths, win rates and coefficients between resamples of the items."""

    fitted: BradleyTerry
    win_rates: Floats
    coefficients: Floats
    scales: Floats
    covariance: Floats

    def resample(self, draws: int, rng: np.random.Generator) -> tuple[Floats, Floats, Floats]:
        """Return strengths, win rates and coefficients (draws, …) as they vary between resamples of the items."""
        size = len(self.win_rates)
        values, vectors = np.linalg.eigh(self.covariance)
        # This root does not depend on the signs of the vectors, which differ between machines.
        root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
        drawn = np.concatenate([self.fitted.strength, self.win_rates, self.coefficients])
        drawn = drawn + rng.standard_normal((draws, len(root))) @ root
        return drawn[:, :size], drawn[:, size : 2 * size].clip(0.0, 1.0), drawn[:, 2 * size :]


def fit_controlled(preferences: Preferences, covariates: Floats, names: Sequence[str] = ()) -> ControlledFit:
    """Return the maximum of the likelihood; `covariates` (votes, covariates) are differences between the first and the
    second output. `names` of the systems are used in messages only."""
    uncontrolled = bradley_terry(preferences, names)
    weight = np.ones(len(covariates)) if preferences.weight is None else preferences.weight
    # Not the standard deviation, which would depend on which side is the first.
    scales: Floats = np.sqrt(np.average(covariates**2, axis=0, weights=weight))
    if not scales.all():
        raise RunError("what is controlled for does not differ in any vote: leave it out")
    model = _Model.of(preferences, np.tanh(covariates / scales), weight)
    parameters, eases = model.fit(uncontrolled)
    size, controls = preferences.systems, len(scales)
    win_rates, inverse, covariance = model.estimate_covariance(parameters, eases)
    # Of strengths with mean 0, which win rates and coefficients do not depend on; the tie parameter is left out.
    centre = np.eye(size) - 1 / size
    kept = np.r_[:size, size + controls + 1 : len(covariance), size : size + controls]
    covariance = covariance[np.ix_(kept, kept)]
    covariance[:size] = centre @ covariance[:size]
    covariance[:, :size] = covariance[:, :size] @ centre
    of_model: Floats = centre @ inverse[:size, :size] @ centre
    return ControlledFit(
        fitted=BradleyTerry(
            strength=parameters[:size] - parameters[:size].mean(),
            error=np.sqrt(np.diagonal(of_model)),
            covariance=of_model,
            tie=math.exp(parameters[-1]),
        ),
        win_rates=win_rates,
        coefficients=parameters[size:-1],
        scales=scales,
        covariance=covariance,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Expected:
    """What the model expects of each vote: the points of the first system and the chance of a tie; times its weight,
    the variances of these, and their covariance."""

    points: Floats
    tie: Floats
    variance: Floats
    tie_variance: Floats
    joint: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Model:
    """The votes as the rows of a sparse matrix, with the numbers and the values of its entries. Its columns are the
    strengths and the coefficients; the last parameter is the logarithm of the tie parameter."""

    systems: int
    size: int
    columns: Codes
    values: Floats
    choice: Floats
    weight: Floats
    item: Codes
    items: int
    #: The ease of an item counts by 1 or -1 for the first system. Without a baseline there is one ease, which is 0.
    ease: Codes
    eases: int
    sign: Floats

    @staticmethod
    def of(preferences: Preferences, covariates: Floats, weight: Floats) -> _Model:
        votes, controls = covariates.shape
        sides = np.stack([preferences.first, preferences.second], axis=1)
        numbers = np.broadcast_to(preferences.systems + np.arange(controls), (votes, controls))
        items, item = number_groups(preferences.item)
        in_all = np.bincount(sides.ravel(), minlength=preferences.systems) == votes
        baseline = int(np.argmax(in_all)) if in_all.any() and preferences.systems > 2 else None
        return _Model(
            systems=preferences.systems,
            size=preferences.systems + controls + 1,
            columns=np.concatenate([sides, numbers], axis=1),
            values=np.concatenate([np.tile([1.0, -1.0], (votes, 1)), covariates], axis=1),
            choice=preferences.choice,
            weight=weight,
            item=item,
            items=items,
            ease=item if baseline is not None else np.zeros(votes, np.intp),
            eases=items if baseline is not None else 1,
            sign=np.zeros(votes) if baseline is None else np.where(preferences.second == baseline, 1.0, -1.0),
        )

    def fit(self, start: BradleyTerry) -> tuple[Floats, Floats]:
        """Return the parameters and the eases at the maximum by Newton's method."""
        parameters = np.zeros(self.size)
        parameters[: self.systems] = start.strength
        parameters[-1] = math.log(start.tie) if start.tie else -math.inf
        eases = np.zeros(self.eases)
        value = self._likelihood(parameters, eases)
        for _ in range(_STEPS):
            expected = self._expect(parameters, eases)
            surprise, tie_surprise = self._subtract(expected)
            gradient = self._sum(surprise, tie_surprise)
            of_eases = np.bincount(self.ease, self.sign * surprise, self.eases) - eases
            information, cross, own = self._inform(expected)
            if np.linalg.cond(information) > _SINGULAR:
                break
            step = np.linalg.solve(information, gradient - cross.T @ (of_eases / own))
            ease_step = (of_eases - cross @ step) / own
            size = 1.0
            while (reached := self._likelihood(parameters + size * step, eases + size * ease_step)) < value:
                if value - reached <= 1e-9 * abs(value):
                    break
                size /= 2
            parameters, eases, value = parameters + size * step, eases + size * ease_step, reached
            if np.abs(step).max() < _CONVERGED:
                return parameters, eases
        raise RunError("the effect of what is controlled for is not determined: leave a control out")

    def estimate_covariance(self, parameters: Floats, eases: Floats) -> tuple[Floats, Floats, Floats]:
        """Return the win rates at equal covariates, the inverse of the information, and the covariance of parameters
        and win rates by the sandwich estimator."""
        expected = self._expect(parameters, eases)
        information, cross, own = self._inform(expected)
        inverse: Floats = np.linalg.inv(information).astype(np.float64)
        equal = parameters.copy()
        equal[self.systems : -1] = 0.0
        there = self._expect(equal, eases)
        sides = self.columns[:, :2]
        points = np.stack([there.points, 1 - there.points], axis=1)
        weights = np.repeat(self.weight, 2).reshape(-1, 2)
        votes = np.bincount(sides.ravel(), weights.ravel(), self.systems)
        win_rates = np.bincount(sides.ravel(), (weights * points).ravel(), self.systems) / votes
        # How the sum of a system's points at equal covariates changes with the parameters, eases following them.
        slopes: Floats = np.zeros((self.systems, self.size))
        by_ease: Floats = np.zeros((self.systems, self.eases))
        for system, turn in ((sides[:, 0], 1.0), (sides[:, 1], -1.0)):
            np.add.at(slopes, (system, sides[:, 0]), turn * there.variance)
            np.add.at(slopes, (system, sides[:, 1]), -turn * there.variance)
            slopes[:, -1] += np.bincount(system, turn * there.joint, self.systems)
            np.add.at(by_ease, (system, self.ease), turn * self.sign * there.variance)
        through_eases: Floats = by_ease @ (cross / own[:, None])
        slopes = slopes - through_eases
        bread = np.block(
            [
                [inverse, np.zeros((self.size, self.systems))],
                [slopes @ inverse / votes[:, None], np.diag(1 / votes)],
            ]
        )
        surprise, tie_surprise = self._subtract(expected)
        entries = np.column_stack(
            [self.values * surprise[:, None], tie_surprise, weights * (points - win_rates[sides])]
        )
        ties = np.full((len(sides), 1), self.size - 1)
        meat = self._multiply(np.concatenate([self.columns, ties, self.size + sides], axis=1), entries, len(bread))
        return win_rates, inverse, bread @ meat @ bread.T

    def _multiply(self, columns: Codes, entries: Floats, size: int) -> Floats:
        """Return the sum, over the items, of the outer products of what the rows of an item add up to."""
        order = np.argsort(self.item, kind="stable")
        item, columns, entries = self.item[order], columns[order], entries[order]
        total, rows = np.zeros((size, size)), min(self.items, max(1, CHUNK // size))
        for start in range(0, self.items, rows):
            votes = slice(*np.searchsorted(item, [start, start + rows]))
            cells = (item[votes, None] - start) * size + columns[votes]
            sums = np.bincount(cells.ravel(), entries[votes].ravel(), rows * size).reshape(rows, size)
            total += sums.T @ sums
        return total

    def _expect(self, parameters: Floats, eases: Floats) -> _Expected:
        half, log_tie = self._halve(parameters, eases), parameters[-1]
        top = np.maximum(np.abs(half), log_tie)
        win, lose, tie = np.exp(half - top), np.exp(-half - top), np.exp(log_tie - top)
        total = win + lose + tie
        win, tie = win / total, tie / total
        points = win + tie / 2
        return _Expected(
            points=points,
            tie=tie,
            variance=self.weight * (win + tie / 4 - points**2),
            tie_variance=self.weight * tie * (1 - tie),
            joint=self.weight * tie * (0.5 - points),
        )

    def _halve(self, parameters: Floats, eases: Floats) -> Floats:
        """Half the difference of the two sides of each vote."""
        halves: Floats = ((self.values * parameters[self.columns]).sum(axis=1) + self.sign * eases[self.ease]) / 2
        return halves

    def _likelihood(self, parameters: Floats, eases: Floats) -> float:
        half, log_tie = self._halve(parameters, eases), parameters[-1]
        ties = self.weight[self.choice == TIE].sum()
        logs = self.choice * half - np.logaddexp(np.logaddexp(half, -half), log_tie)
        return float(self.weight @ logs + (ties * log_tie if ties else 0.0) - eases @ eases / 2)

    def _subtract(self, expected: _Expected) -> tuple[Floats, Floats]:
        """Return what each vote has in points, and as a tie, above what the model expects, times its weight."""
        surprise = self.weight * ((1 + self.choice) / 2 - expected.points)
        return surprise, self.weight * ((self.choice == TIE) - expected.tie)

    def _sum(self, weights: Floats, tied: Floats) -> Floats:
        """Return the columns of the matrix, weighted by vote and summed, and the sum for the tie parameter."""
        weighted = (self.values * weights[:, None]).ravel()
        sums: Floats = np.bincount(self.columns.ravel(), weighted, self.size).astype(np.float64)
        sums[-1] = tied.sum()
        return sums

    def _inform(self, expected: _Expected) -> tuple[Floats, Floats, Floats]:
        """Return the information on the parameters where the eases are not known, what they share with the eases, and
        that on the eases."""
        flat, flat_cross = np.zeros(self.size * self.size), np.zeros(self.eases * self.size)
        for column, value in zip(self.columns.T, self.values.T, strict=True):
            for other, factor in zip(self.columns.T, self.values.T, strict=True):
                weights = value * factor * expected.variance
                flat += np.bincount(column * self.size + other, weights, len(flat))
            weights = value * self.sign * expected.variance
            flat_cross += np.bincount(self.ease * self.size + column, weights, len(flat_cross))
        information: Floats = flat.reshape(self.size, self.size)
        cross: Floats = flat_cross.reshape(self.eases, self.size)
        cross[:, -1] = np.bincount(self.ease, self.sign * expected.joint, self.eases)
        information[-1] = information[:, -1] = self._sum(expected.joint, expected.tie_variance)
        if not expected.tie.any():
            information[-1, -1] = 1.0
        # Strengths are determined up to a shift, which this fixes.
        information[: self.systems, : self.systems] += 1.0
        own: Floats = 1.0 + np.bincount(self.ease, self.sign**2 * expected.variance, self.eases).astype(np.float64)
        return information - cross.T @ (cross / own[:, None]), cross, own
