"""Our figure beside each printed one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from metrist.evaluate.meta.dataset import Judged, gold_of, taken
from metrist.evaluate.meta.slices import chosen_outputs
from metrist.stats import Floats
from metrist.stats.grouping import estimate
from metrist.stats.measures import measure
from metrist.stats.preferences import chosen, confusion, pair_counts
from metrist.studies.reproduce.material import Material
from metrist.studies.reproduce.printed import MEAN, Block


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduced:
    """A printed number and ours, both times `scale`. NaN: the paper prints none, or the data is not at hand. `n` counts
    outputs, or pairs that people compared."""

    block: Block
    data: str
    aspect: str
    measure: str
    printed: float
    ours: float
    n: int
    scale: float

    @property
    def at_hand(self) -> bool:
        return self.n > 0

    @property
    def difference(self) -> float:
        return self.ours - self.printed


def reproduced(block: Block, material: Material, scale: float = 1.0) -> Iterator[Reproduced]:
    """All figures of a block."""
    for data, aspects in block.printed.items():
        for aspect, numbers in aspects.items():
            for name, number in zip(block.measures, numbers, strict=True):
                ours, n = _figure(block, material, data, aspect, name) if material.has(data) else (math.nan, 0)
                yield Reproduced(
                    block=block,
                    data=data,
                    aspect=aspect,
                    measure=name,
                    printed=number,
                    ours=scale * ours,
                    n=n,
                    scale=scale,
                )


def _figure(block: Block, material: Material, data: str, aspect: str, name: str) -> tuple[float, int]:
    """The measure's value, and on how many outputs (or pairs of them) it rests."""
    judged, values = material.judged(data), material.values(data, block)
    if aspect in judged.preferences:
        return _of_pairs(judged, values, aspect, name)
    if aspect != MEAN:
        return _of_outputs(judged, values, aspect, name, block)
    found = [_of_outputs(judged, values, each, name, block) for each in judged.ratings]
    return float(np.mean([value for value, _ in found])), min(n for _, n in found)


def _of_outputs(judged: Judged, values: Floats, aspect: str, name: str, block: Block) -> tuple[float, int]:
    outputs = chosen_outputs(judged, exclude_systems=block.exclude)
    sample = taken(judged, gold_of(judged, aspect, "mean"), values, outputs).sample
    return float(estimate(measure(name), sample, block.group).values[0]), len(sample)


def _of_pairs(judged: Judged, values: Floats, aspect: str, name: str) -> tuple[float, int]:
    compared = judged.preferences[aspect]
    gaps = values[compared.first] - values[compared.second]
    counts = pair_counts(confusion(chosen(compared.choice), chosen(gaps)))
    return float(measure(name).pool(counts)[0]), len(gaps)
