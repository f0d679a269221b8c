"""How far a trained model's values agree with what people or a judge say, and whether the length of outputs agrees as
well."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from metrist.stats.measures import measure

Floats = NDArray[np.float64]


def correlate(first: Floats, second: Floats, name: str = "spearman") -> float | None:
    """The correlation of the values known on both sides; None if it is not defined."""
    known = ~(np.isnan(first) | np.isnan(second))
    return none_if_nan(measure(name).value(first[known], second[known])) if known.sum() > 1 else None


def none_if_nan(value: float) -> float | None:
    """JSON has no NaN."""
    return None if math.isnan(value) else float(value)


def group_places(keys: Sequence[Hashable]) -> list[NDArray[np.int64]]:
    """The places of equal keys."""
    places: dict[Hashable, list[int]] = {}
    for place, key in enumerate(keys):
        places.setdefault(key, []).append(place)
    return [np.array(own, np.int64) for own in places.values()]


def resample_groups(groups: Sequence[NDArray[np.int64]], draws: int) -> Iterator[NDArray[np.int64]]:
    """Yield the places of as many groups as there are, drawn with replacement."""
    rng = np.random.default_rng(0)
    for _ in range(draws):
        yield np.concatenate([groups[at] for at in rng.integers(len(groups), size=len(groups))])


def describe_length(
    agreement: str,
    ours: float,
    length: float,
    figures: str,
    *,
    shorter: bool,
    is_certain: bool,
    interval: tuple[float, float],
    remedy: str,
) -> str | None:
    """Say that output length agrees as well as the model does, or that there is too little data to tell; None if the
    model is clearly better. `agreement` is such as 'this metric agrees with the judge', `interval` that of the
    difference."""
    if ours > length and is_certain:
        return None
    rival = f"output length alone ({'the shorter' if shorter else 'the longer'} one is better)"
    low, high = interval
    shown = "" if math.isnan(low) else f" (95 % interval of the difference {low:.3f} to {high:.3f})"
    few = "" if is_certain else f"; that is too few to tell{shown}: {remedy}"
    if ours <= length:
        return f"warning: {agreement} no better than {rival}: {figures}{few}"
    return f"it is not certain that {agreement} more than {rival}: {figures}{few}"
