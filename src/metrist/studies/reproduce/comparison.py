"""Several metrics' agreement with people on the same outputs of a data set, with intervals."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from metrist.evaluate.meta.dataset import Choices, JudgedDataset, Labels, MetricScores, compute_gold, select_sample
from metrist.evaluate.meta.evaluate import meta_evaluate
from metrist.evaluate.meta.preferences import vote
from metrist.evaluate.meta.results import Figure
from metrist.evaluate.meta.slices import ALL, select_outputs
from metrist.stats import Floats
from metrist.stats.grouping import estimate
from metrist.stats.measures import measure
from metrist.stats.preferences import choose, confusion, pair_counts
from metrist.studies.reproduce.dataset import Material
from metrist.studies.reproduce.published import MEAN, Block

_FAMILY, _SUBSET = "family", "subset"


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """All metrics' figures on one part of a data set (empty: the whole)."""

    part: str
    figures: Mapping[str, Figure]

    @property
    def n(self) -> int:
        return max(figure.n for figure in self.figures.values())

    @property
    def chance(self) -> float:
        return next(iter(self.figures.values())).chance


def agreements(
    judged: JudgedDataset, aspect: str, measure: str, scores: Mapping[str, Floats], *, subsets: str = "", draws: int
) -> list[Agreement]:
    """The whole data set, then its parts. The column `subsets` names them by paths (task/Adversarial/Manual); those
    of a family also stand together where it has several."""
    compared = aspect in judged.preferences
    scored = replace(_decided(judged, aspect) if compared else judged, scores=_on_the_same(scores))
    slices: tuple[str, ...] = ()
    if subsets:
        scored, slices = replace(scored, columns=_parts(judged.column(subsets))), (_FAMILY, _SUBSET)
    found = meta_evaluate(
        scored,
        aspect,
        measure,
        slices=slices,
        preferences=compared,
        draws=draws,
        test="none",
        metrics=list(scores),
    )
    return list(_by_part(found.figures))


def _on_the_same(scores: Mapping[str, Floats]) -> dict[str, MetricScores]:
    """Scores of the outputs that every metric has one for."""
    shared = np.logical_and.reduce([np.isfinite(values) for values in scores.values()])
    return {
        name: MetricScores(name=name, values=np.where(shared, values, np.nan), higher_is_better=True)
        for name, values in scores.items()
    }


def _decided(judged: JudgedDataset, aspect: str) -> JudgedDataset:
    """The data with one choice for each pair, that of most raters; without pairs where they tie or are undecided."""
    pairs = vote(judged.preferences[aspect])
    kept = pairs.take(np.flatnonzero(pairs.human))
    raters = np.zeros(len(kept.human), dtype=np.intp)
    choices = Choices(first=kept.first, second=kept.second, rater=raters, choice=kept.human)
    return replace(judged, preferences={aspect: choices}, choices={})


def _parts(paths: Labels) -> dict[str, Labels]:
    """Two columns out of one of paths: without their first step, and only the step after it."""
    steps = [name.split("/")[1:] for name in paths.names]
    return {
        _FAMILY: Labels.of(steps[code][0] for code in paths.codes),
        _SUBSET: Labels.of("/".join(steps[code]) for code in paths.codes),
    }


def _by_part(figures: tuple[Figure, ...]) -> Iterator[Agreement]:
    """The whole first, then each family before its parts; a family of one part is that part."""
    parts: dict[str, dict[str, Figure]] = {}
    for figure in figures:
        column, equals, name = figure.slice.partition("=")
        if figure.slice == ALL or (equals and column in (_FAMILY, _SUBSET)):
            parts.setdefault(name, {})[figure.metric] = figure
    for name in sorted(parts):
        if sum(other.startswith(f"{name}/") for other in parts) != 1:
            yield Agreement(part=name, figures=parts[name])


# Our figure beside each printed one.


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


def _of_outputs(judged: JudgedDataset, values: Floats, aspect: str, name: str, block: Block) -> tuple[float, int]:
    outputs = select_outputs(judged, exclude_systems=block.exclude)
    sample = select_sample(judged, compute_gold(judged, aspect, "mean"), values, outputs).sample
    return float(estimate(measure(name), sample, block.group).values[0]), len(sample)


def _of_pairs(judged: JudgedDataset, values: Floats, aspect: str, name: str) -> tuple[float, int]:
    compared = judged.preferences[aspect]
    gaps = values[compared.first] - values[compared.second]
    counts = pair_counts(confusion(choose(compared.choice), choose(gaps)))
    return float(measure(name).pool(counts)[0]), len(gaps)
