"""How well a preference model agrees with people on sets that it neither learned from nor is judged by: what trainings
are chosen by.

    python preference_choice.py MODEL ...      folders of preference models

Spearman's correlation: among the outputs of an item, averaged, where an item has many; over all outputs elsewhere.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from agreement import Row, by_item, over_all, rated, rows

from metrist import criteria
from metrist.models import reward
from metrist.models.options import Options
from metrist.models.reward_layout import Judged


class Asked(NamedTuple):
    """An aspect of a set and the criterion that it is asked as; `context` is the row's field that is shown."""

    data: str
    aspect: str
    criterion: str
    context: str = ""


CHOICE = (
    Asked("summeval-op", "fl", "fluency"),
    Asked("summeval-op", "co", "coherence", "source"),
    Asked("summeval-op", "re", "relevance", "source"),
    Asked("summeval-op", "fa", "consistency", "source"),
    Asked("summeval-op", "ac", "coverage", "source"),
    Asked("webnlg2020.en", "Fluency", "fluency"),
    Asked("webnlg2020.en", "TextStructure", "grammaticality"),
    Asked("simplicity-da", "fluency", "fluency"),
    Asked("simplicity-da", "meaning", "consistency", "source"),
    Asked("simplicity-da", "simplicity", "overall", "source"),
    Asked("judgebench-meta_evaluation_recipes", "grammar", "grammaticality"),
    Asked("judgebench-meta_evaluation_recipes", "structure", "coherence"),
    Asked("judgebench-meta_evaluation_recipes", "overall", "overall"),
)
_MANY = ("summeval-op", "webnlg2020.en")


def figures(model: str) -> Iterator[tuple[Asked, float]]:
    """One correlation for each aspect."""
    network = reward.load(Options(model=model))
    for asked in CHOICE:
        data = [row for row in rows(asked.data) if np.isfinite(rated(row, asked.aspect)) and row["output"].strip()]
        measure = by_item if asked.data in _MANY else over_all
        yield asked, measure(data, _rewards(network, asked, data), asked.aspect)


def _rewards(network: reward.Reward, asked: Asked, data: Sequence[Row]) -> Sequence[float]:
    instruction = network.settings.criteria.get(asked.criterion) or criteria.find(asked.criterion).instruction
    shown = [((asked.context, row[asked.context]),) if asked.context else () for row in data]
    judged = [
        Judged(instruction, (*fields, ("output", row["output"]))) for fields, row in zip(shown, data, strict=True)
    ]
    return [float(value) for value in network.rewards(judged).values]


def main() -> None:
    for model in sys.argv[1:]:
        found = list(figures(model))
        print(model)
        for asked, figure in found:
            print(f"  {asked.data:36} {asked.aspect:14} {asked.criterion:16} {figure:6.3f}")
        print(f"  mean {np.mean([figure for _, figure in found]):.3f}", flush=True)


if __name__ == "__main__":
    main()
