"""What a measure looks at: the outputs that humans and one scorer both judged, and resamples of them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metrist.errors import RunError

Floats = NDArray[np.float64]
Codes = NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """One entry per output that has both a human and a metric value, larger being better for both. Items and systems
    are numbers from 0 up; those of other outputs may lie between them."""

    human: Floats
    metric: Floats
    item: Codes
    system: Codes

    def __post_init__(self) -> None:
        lengths = {name: len(getattr(self, name)) for name in ("human", "metric", "item", "system")}
        if len(set(lengths.values())) > 1:
            raise RunError(f"a sample needs one entry per output in each column, got {lengths}")
        for name in ("human", "metric"):
            _check_finite(name, getattr(self, name))
        for name in ("item", "system"):
            if len(self) and getattr(self, name).min() < 0:
                raise RunError(f"a sample's {name} numbers start at 0, got {getattr(self, name).min()}")

    def __len__(self) -> int:
        return len(self.human)

    @staticmethod
    def of(human: ArrayLike, metric: ArrayLike, item: Sequence[Hashable], system: Sequence[Hashable]) -> Sample:
        """A sample from names of items and systems."""
        return Sample(
            human=np.asarray(human, np.float64),
            metric=np.asarray(metric, np.float64),
            item=codes(item),
            system=codes(system),
        )

    def take(self, chosen: NDArray[np.intp] | NDArray[np.bool_]) -> Sample:
        """Some of the outputs, by position or by mask; numbers of items and systems stay what they are."""
        return Sample(
            human=self.human[chosen], metric=self.metric[chosen], item=self.item[chosen], system=self.system[chosen]
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Draws:
    """Resamples: how often each draw picked each item (draws, items), each system (draws, systems), or both. None
    where that side was not resampled. Columns are the numbers that a sample's outputs carry."""

    items: Floats | None = None
    systems: Floats | None = None

    def __post_init__(self) -> None:
        if self.items is None and self.systems is None:
            raise RunError("draws must resample items, systems or both")
        if self.items is not None and self.systems is not None and len(self.items) != len(self.systems):
            raise RunError(f"as many draws of items as of systems, got {len(self.items)} and {len(self.systems)}")

    def items_at(self, sample: Sample) -> Codes:
        """The column of `items` that weighs each output."""
        _check_reach(self.items, sample.item, "item")
        return sample.item

    def of_items(self, sample: Sample) -> Floats:
        """How often each output's item was drawn, (draws, outputs); one row of ones where items were kept."""
        return _picked(self.items, sample.item, "item")

    def of_systems(self, sample: Sample) -> Floats:
        """How often each output's system was drawn, (draws, outputs); one row of ones where systems were kept."""
        return _picked(self.systems, sample.system, "system")

    def of_outputs(self, sample: Sample) -> Floats:
        """How often each output was drawn, (draws, outputs)."""
        if self.items is None:
            return self.of_systems(sample)
        if self.systems is None:
            return self.of_items(sample)
        return self.of_items(sample) * self.of_systems(sample)


def codes(names: Sequence[Hashable]) -> Codes:
    """Numbers for names, from 0 up in the order in which they first appear."""
    number_of = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return np.fromiter((number_of[name] for name in names), dtype=np.intp, count=len(names))


def _picked(counts: Floats | None, numbers: Codes, what: str) -> Floats:
    if counts is None:
        return np.ones((1, len(numbers)))
    _check_reach(counts, numbers, what)
    # A row of indices into each draw is several times faster through take than through counts[:, numbers].
    return counts.take(numbers, axis=1)


def _check_reach(counts: Floats | None, numbers: Codes, what: str) -> None:
    if counts is not None and len(numbers) and numbers.max() >= counts.shape[1]:
        raise RunError(f"draws of {counts.shape[1]} {what}s do not reach {what} number {numbers.max()}")


def _check_finite(name: str, values: Floats) -> None:
    if values.ndim != 1:
        raise RunError(f"a sample's {name} values are a plain column, got an array of {values.ndim} dimensions")
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        raise RunError(
            f"output {bad[0]}: the {name} value is {values[bad[0]]}, wanted a finite number "
            f"({len(bad)} such of {len(values)}); leave such outputs out, and count them"
        )
