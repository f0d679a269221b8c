"""What other meta-evaluation tools do, implemented plainly from their published procedures, for comparison.

mt-metrics-eval is not on PyPI, so its two procedures are spelled out here: what is timed is the procedure, a loop over
objects as there, and not that package itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(slots=True)
class _Counts:
    right: int = 0
    pairs: int = 0

    def accuracy(self) -> float:
        return self.right / self.pairs


@dataclass(slots=True)
class _Pair:
    gap: float
    right: bool
    right_if_tied: bool


def calibrated_pair_by_pair(human: Floats, metric: Floats) -> tuple[float, float]:
    """Accuracy and ε by mt-metrics-eval's tau_optimization at sample_rate 1: an object for every pair, all
    sorted by their gap, and the accuracy updated after each."""
    pairs = _all_pairs(human.tolist(), metric.tolist())
    counts = _Counts(sum(pair.right for pair in pairs), len(pairs))
    thresholds, accuracies = [0.0], [counts.accuracy()]
    for pair in sorted(pairs, key=lambda pair: pair.gap):
        counts.right += pair.right_if_tied - pair.right
        if thresholds[-1] == pair.gap:
            accuracies[-1] = counts.accuracy()
        else:
            thresholds.append(pair.gap)
            accuracies.append(counts.accuracy())
    best = int(np.argmax(accuracies))
    return accuracies[best], thresholds[best]


def _all_pairs(human: list[float], metric: list[float]) -> list[_Pair]:
    pairs = []
    for i in range(len(human)):
        for j in range(i + 1, len(human)):
            gap, tied = abs(metric[i] - metric[j]), human[i] == human[j]
            agrees = (metric[i] - metric[j]) * (human[i] - human[j]) > 0
            pairs.append(_Pair(gap, agrees or (tied and gap == 0), tied))
    return pairs


def kendall_peer() -> str:
    installed = find_spec("scipy") is not None
    return "scipy.stats.kendalltau in a loop" if installed else "numpy over all pairs (scipy is not installed)"


def kendall() -> Callable[[Floats, Floats], float]:
    """Return scipy's Kendall τ-b if scipy is installed, else the definition over all pairs at once."""
    try:
        from scipy.stats import kendalltau
    except ImportError:
        return _kendall_by_definition
    return lambda human, metric: float(kendalltau(human, metric).statistic)


def _kendall_by_definition(human: Floats, metric: Floats) -> float:
    a, b = (np.sign(np.subtract.outer(values, values)) for values in (human, metric))
    return float((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()))


def exchanged_one_by_one(human: Floats, first: Floats, second: Floats, draws: int, rng: np.random.Generator) -> int:
    """PERM-BOTH of two metrics as mt-metrics-eval does it: standardised values are exchanged output by output, and
    both correlations are recomputed in every draw. Return the number of draws that reach the observed difference."""
    first, second = ((values - values.mean()) / values.std() for values in (first, second))
    observed = abs(_pearson(human, first) - _pearson(human, second))
    reached = 0
    for _ in range(draws):
        keep = rng.random(len(human)) < 0.5
        new_first, new_second = np.where(keep, first, second), np.where(keep, second, first)
        reached += abs(_pearson(human, new_first) - _pearson(human, new_second)) >= observed
    return reached


def _pearson(first: Floats, second: Floats) -> float:
    return float(np.corrcoef(first, second)[0, 1])
