"""Measures of agreement between humans and a metric, by name: rows of statistics first, then a pool of summed rows.

A row comes from outputs with whole weights, where a weight of 2 means that the output is there twice: the weighted
value equals, for correlations up to rounding, the plain one on the repeated data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from metrist import kernels
from metrist.errors import SpecError, did_you_mean
from metrist.kernels.arranging import Floats, Places
from metrist.spec import Spec, parse
from metrist.stats import pair_measures as pairs
from metrist.stats.moments import comoments, correlation

Pool = Callable[[Floats], Floats]
Rows = Callable[[Floats, Floats, Floats, Places], Floats]


@dataclass(frozen=True, slots=True)
class Measure:
    """How well a metric agrees with humans; its name is its identity.

    `grouped_rows(human (n,), metric (n,), weights (B, n), starts (G + 1,))` gives statistics (B, G, k) of outputs that
    lie group after group; `pool` turns (..., k) into values (...), NaN where undefined. Measures with the same
    `grouped_rows` can share its result. `chance` and `all_ties` pool the same rows into what a metric would reach that
    orders at random without ties, and one that ties everything; None where the latter has no meaning.
    """

    name: str
    grouped_rows: Rows
    pool: Pool
    bounds: tuple[float, float]
    chance: Pool
    all_ties: Pool | None = None
    higher_is_better: bool = True

    def rows(self, human: ArrayLike, metric: ArrayLike, weights: ArrayLike) -> Floats:
        """Statistics (B, k) of one group of outputs."""
        human, metric = np.asarray(human, np.float64), np.asarray(metric, np.float64)
        starts = np.array([0, len(human)])
        return self.grouped_rows(human, metric, np.asarray(weights, np.float64), starts)[:, 0]

    def value(self, human: ArrayLike, metric: ArrayLike) -> float:
        """The measure of one group of outputs, each there once."""
        return float(self.pool(self.rows(human, metric, np.ones((1, np.size(human)))))[0])

    def at_chance(self) -> Measure:
        """A measure whose value is this one's chance level."""
        return replace(self, name=f"{self.name} at chance", pool=self.chance)

    def at_all_ties(self) -> Measure:
        """A measure whose value is what a metric that ties all outputs reaches in this one."""
        if self.all_ties is None:
            raise SpecError(f"{self.name} says nothing of a metric that ties all outputs")
        return replace(self, name=f"{self.name} of all ties", pool=self.all_ties)


def acc_eq(epsilon: float = 0.0) -> Measure:
    """Pairwise accuracy with ties at a fixed threshold: the metric ties what differs by at most `epsilon`."""
    if not (isinstance(epsilon, int | float) and 0 <= epsilon < np.inf):
        raise SpecError(f"acc_eq: epsilon must be a finite number, 0 or more, got {epsilon!r}")
    name = str(Spec("acc_eq", {"epsilon": float(epsilon)} if epsilon else {}))
    return _pairwise(name, pairs.acc_eq, (0.0, 1.0), pairs.counted(float(epsilon)))


def measure(text: str) -> Measure:
    """The measure that a text such as `kendall_b` or `acc_eq(epsilon=0.1)` names."""
    spec = parse(text)
    if spec.name not in MEASURES:
        known = ", ".join(MEASURES)
        raise SpecError(f"no measure named {spec.name!r}{did_you_mean(spec.name, MEASURES)} (known are {known})")
    takes = {"epsilon"} if spec.name == "acc_eq" else set()
    if unknown := spec.settings.keys() - takes:
        raise SpecError(f"{spec.name} has no setting {min(unknown)!r}")
    return acc_eq(**spec.settings) if spec.settings else MEASURES[spec.name]


def _rank_comoments(human: Floats, metric: Floats, weights: Floats, starts: Places) -> Floats:
    return kernels.rank_comoments_grouped(human, metric, weights, starts)[..., :3]


def _pairwise(name: str, pool: Pool, bounds: tuple[float, float], rows: Rows) -> Measure:
    return Measure(
        name,
        rows,
        pool,
        bounds,
        chance=lambda counts: pool(pairs.at_random(counts)),
        all_ties=lambda counts: pool(pairs.all_tied(counts)),
    )


def _uncorrelated(pool: Pool) -> Pool:
    """No correlation, wherever there is one to be had."""
    return lambda stats: pool(stats) * 0.0


def _correlation(name: str, rows: Rows, pool: Pool) -> Measure:
    return Measure(name, rows, pool, (-1.0, 1.0), chance=_uncorrelated(pool))


_COUNTED: Final = pairs.counted()

#: Every measure that needs no setting, by name.
MEASURES: Final[Mapping[str, Measure]] = MappingProxyType(
    {
        made.name: made
        for made in (
            _correlation("pearson", comoments, correlation),
            _correlation("spearman", _rank_comoments, correlation),
            _pairwise("kendall_a", pairs.kendall_a, (-1.0, 1.0), _COUNTED),
            _pairwise("kendall_b", pairs.kendall_b, (-1.0, 1.0), _COUNTED),
            _correlation("kendall_c", pairs.stuart_rows, pairs.kendall_c),
            _pairwise("gamma", pairs.gamma, (-1.0, 1.0), _COUNTED),
            _pairwise("darr_wmt14", pairs.darr_wmt14, (-1.0, 1.0), _COUNTED),
            _pairwise("darr_wmt17", pairs.darr_wmt17, (-1.0, 1.0), _COUNTED),
            _pairwise("concordance", pairs.concordance, (0.0, 1.0), _COUNTED),
            _pairwise("pair_accuracy", pairs.pair_accuracy, (0.0, 1.0), _COUNTED),
            _pairwise("acc_eq", pairs.acc_eq, (0.0, 1.0), _COUNTED),
        )
    }
)
