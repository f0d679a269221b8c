"""Numbers with intervals for the card: Wilson's for shares, since few or no cases must not look certain; the bootstrap
over items for means and correlations."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from metrist.evaluate.audit.judge import Finding, Verdict
from metrist.stats.resampling import pooled_interval

Floats = NDArray[np.float64]
#: The standard normal's 97.5 % point.
_Z = 1.959963984540054
DRAWS = 1000
SEED = 0
_ROUNDING = 1e-9
#: Fewer cases than this show nothing.
FEWEST = 5


def wilson(hits: int, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    if not n:
        return math.nan, math.nan
    share, shrink = hits / n, 1 + _Z**2 / n
    middle = (share + _Z**2 / (2 * n)) / shrink
    reach = _Z * math.sqrt(share * (1 - share) / n + _Z**2 / (4 * n**2)) / shrink
    # Rounding must not put the interval beyond what a share can be.
    return max(0.0, middle - reach), min(1.0, middle + reach)


def share(
    part: str,
    name: str,
    hits: int,
    n: int,
    unit: str,
    *,
    above: float | None = None,
    below: float | None = None,
    fewest: int = FEWEST,
    details: Mapping[str, object] | None = None,
) -> Finding:
    """A share with its interval; found where all of it lies above, or below, a limit."""
    if n < fewest:
        return unmeasured(part, name, f"only {n} {unit}, wanted {fewest} or more")
    low, high = wilson(hits, n)
    beyond = (above is not None and low > above) or (below is not None and high < below)
    limits = ("> ", above), ("< ", below)
    limit = " or ".join(f"{sign}{number:g}" for sign, number in limits if number is not None)
    verdict: Verdict = "told" if not limit else "found" if beyond else "not found"
    return Finding(
        part=part,
        name=name,
        value=hits / n,
        low=low,
        high=high,
        n=n,
        unit=unit,
        verdict=verdict,
        limit=limit,
        details=details or {},
    )


def unmeasured(part: str, name: str, reason: str) -> Finding:
    """A finding that could not be made, and why."""
    return Finding(part=part, name=name, verdict="not measured", reason=reason)


def mean_by_item(values: Floats, items: Sequence[str]) -> tuple[float, float, float]:
    """The mean with its interval over resamples of the items; NaN are left out."""
    return by_item(np.stack([values, np.ones_like(values)], axis=1)[~np.isnan(values)], _kept(values, items), _mean)


def correlation_by_item(first: Floats, second: Floats, items: Sequence[str]) -> tuple[float, float, float]:
    """Pearson's correlation of what is left of both within an item, its items' means taken away."""
    known = ~(np.isnan(first) | np.isnan(second))
    codes = _codes(_kept(np.where(known, 0.0, math.nan), items))
    x, y = within(first[known], codes), within(second[known], codes)
    rows = np.stack([x * x, y * y, x * y], axis=1)
    return by_item(rows, [str(code) for code in codes], _pearson)


def within(values: Floats, codes: NDArray[np.intp]) -> Floats:
    """Each value less the mean of its item."""
    counts = np.bincount(codes)
    means = np.bincount(codes, weights=values) / np.maximum(counts, 1)
    left: Floats = values - means[codes]
    return left


def partial(first: Floats, second: Floats, fixed: Floats, items: Sequence[str]) -> tuple[float, float, float]:
    """The correlation of two things within items with a third held fixed."""
    known = ~(np.isnan(first) | np.isnan(second) | np.isnan(fixed))
    codes = _codes(_kept(np.where(known, 0.0, math.nan), items))
    x, y, z = (within(one[known], codes) for one in (first, second, fixed))
    rows = np.stack([x * x, y * y, x * y, x * z, y * z, z * z], axis=1)
    return by_item(rows, [str(code) for code in codes], _partial)


def by_item(rows: Floats, items: Sequence[str], pool: Callable[[Floats], Floats]) -> tuple[float, float, float]:
    """What rows pool to, with its interval; the rows of an item are drawn together."""
    if not len(rows):
        return math.nan, math.nan, math.nan
    codes = _codes(items)
    summed = np.zeros((int(codes.max()) + 1, rows.shape[1]))
    np.add.at(summed, codes, rows)
    low, high = pooled_interval(summed, pool, DRAWS, np.random.default_rng(SEED))
    return float(pool(summed.sum(axis=0))), low, high


def _codes(items: Sequence[str]) -> NDArray[np.intp]:
    number = {item: i for i, item in enumerate(dict.fromkeys(items))}
    return np.array([number[item] for item in items], dtype=np.intp)


def _kept(values: Floats, items: Sequence[str]) -> list[str]:
    return [item for item, value in zip(items, values, strict=True) if not math.isnan(value)]


def _mean(sums: Floats) -> Floats:
    return _ratio(sums[..., 0], sums[..., 1])


def _pearson(sums: Floats) -> Floats:
    return _ratio(sums[..., 2], np.sqrt(sums[..., 0] * sums[..., 1]))


def _partial(sums: Floats) -> Floats:
    xx, yy, xy, xz, yz, zz = np.moveaxis(sums, -1, 0)
    # What is left of x and y after the line through z.
    slope = np.divide(1.0, zz, out=np.zeros_like(zz), where=zz > 0)
    left_x, left_y, left_xy = xx - xz * xz * slope, yy - yz * yz * slope, xy - xz * yz * slope
    # Grades that follow the third exactly leave nothing to correlate with: rounding must not be taken for it.
    nothing = (left_x <= _ROUNDING * xx) | (left_y <= _ROUNDING * yy)
    return np.where(nothing, 0.0, _ratio(left_xy, np.sqrt(np.where(nothing, 1.0, left_x * left_y))))


def _ratio(part: Floats, whole: Floats) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        found: Floats = np.where(whole > 0, part / whole, math.nan)
    return found
