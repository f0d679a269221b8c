"""How well a preference model agrees with people on sets that it neither learned from nor is judged by: what trainings
are chosen by.

    python preference_choice.py MODEL ...      folders of preference models

Spearman's correlation: among the outputs of an item, averaged, where an item has many; over all outputs elsewhere. The
second figure is what remains of it once the outputs' lengths are known (partial correlation), and it counts: on
SummEval-OP length alone reaches .6 to .9, and a model that only likes long texts would be chosen for it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from agreement import Row, rated, rows, spearman

from metrist import criteria
from metrist.models import loading
from metrist.models.devices import Options
from metrist.models.protocols import RewardScorer
from metrist.models.reward_layout import RewardInput


class Asked(NamedTuple):
    """An aspect of a set and the criterion that it is asked as; `context` is the row's field that is shown."""

    data: str
    aspect: str
    criterion: str
    context: str = ""


CHOICE = (
    Asked("fed", "Engaging", "engagingness", "source"),
    Asked("fed", "Relevant", "relevance", "source"),
    Asked("fed", "Semantically appropriate", "coherence", "source"),
    Asked("fed", "Specific", "informativeness", "source"),
    Asked("fed", "Fluent", "fluency"),
    Asked("fed", "Overall", "overall", "source"),
    Asked("summeval-op", "fl", "fluency"),
    Asked("summeval-op", "co", "coherence", "source"),
    Asked("summeval-op", "re", "relevance", "source"),
    Asked("summeval-op", "fa", "consistency", "source"),
    Asked("summeval-op", "ac", "coverage", "source"),
    Asked("webnlg2020.en", "Fluency", "fluency"),
    Asked("webnlg2020.en", "TextStructure", "grammaticality"),
    Asked("wmt22.zh-en", "mqm", "correctness", "reference"),
    Asked("wmt22.zh-en", "mqm", "fluency"),
    Asked("judgebench-meta_evaluation_recipes", "grammar", "grammaticality"),
    Asked("judgebench-meta_evaluation_recipes", "structure", "coherence"),
    Asked("judgebench-meta_evaluation_recipes", "overall", "overall"),
)
_MANY = ("summeval-op", "webnlg2020.en", "wmt22.zh-en")
#: Every so many items of a large set are enough.
_EVERY = {"wmt22.zh-en": 12}
_SPEAKER = re.compile(r"^(?:User|System): ?", re.MULTILINE)


class Found(NamedTuple):
    """Agreement with people, and what of it length does not explain."""

    asked: Asked
    plain: float
    beyond_length: float


def figures(model: str) -> Iterator[Found]:
    """Two correlations for each aspect."""
    network = loading.load_reward(Options(model=model))
    sets = {name: _read(name) for name in dict.fromkeys(asked.data for asked in CHOICE)}
    for asked in CHOICE:
        data = [row for row in sets[asked.data] if np.isfinite(rated(row, asked.aspect)) and row["output"].strip()]
        items = [row["item"] if asked.data in _MANY else "" for row in data]
        people = [rated(row, asked.aspect) for row in data]
        lengths = [float(len(row["output"])) for row in data]
        plain, partial = _agreement(items, people, _rewards(network, asked, data), lengths)
        yield Found(asked, plain, partial)


def _agreement(
    items: Sequence[str], people: Sequence[float], rewards: Sequence[float], lengths: Sequence[float]
) -> tuple[float, float]:
    """The mean over items, without those where somebody says the same of all."""
    groups: dict[str, list[tuple[float, float, float]]] = {}
    for item, *three in zip(items, people, rewards, lengths, strict=True):
        groups.setdefault(item, []).append((three[0], three[1], three[2]))
    plain, partial = [], []
    for group in groups.values():
        human, ours, long = zip(*group, strict=True)
        r, with_human, with_ours = spearman(human, ours), spearman(human, long), spearman(ours, long)
        rest = (1 - with_human**2) * (1 - with_ours**2)
        plain.append(r)
        partial.append((r - with_human * with_ours) / rest**0.5 if rest > 0 else np.nan)
    return float(np.nanmean(plain)), float(np.nanmean(partial))


def _read(name: str) -> list[Row]:
    """A set's rows, without the names of speakers; the first reference by its own name."""
    found = rows(name)
    items = list(dict.fromkeys(row["item"] for row in found))
    kept = set(items[:: _EVERY.get(name, 1)])
    return [
        {
            **row,
            "source": _SPEAKER.sub("", row.get("source") or ""),
            "output": _SPEAKER.sub("", row["output"]),
            "reference": (row.get("references") or [""])[0],
        }
        for row in found
        if row["item"] in kept
    ]


def _rewards(network: RewardScorer, asked: Asked, data: Sequence[Row]) -> Sequence[float]:
    instruction = network.settings.criteria.get(asked.criterion) or criteria.find(asked.criterion).instruction
    shown = [((asked.context, row[asked.context]),) if asked.context else () for row in data]
    judged = [
        RewardInput(instruction, (*fields, ("output", row["output"]))) for fields, row in zip(shown, data, strict=True)
    ]
    return [float(value) for value in network.rewards(judged).values]


def overall(found: Sequence[Found]) -> float:
    """The mean over sets of the mean over their aspects, beyond length: one set, one voice."""
    by_set: dict[str, list[float]] = {}
    for one in found:
        by_set.setdefault(one.asked.data, []).append(one.beyond_length)
    return float(np.mean([np.mean(figures) for figures in by_set.values()]))


def main() -> None:
    for model in sys.argv[1:]:
        found = list(figures(model))
        print(model)
        for (data, aspect, criterion, _), plain, partial in found:
            print(f"  {data:36} {aspect:26} {criterion:16} {plain:6.3f} {partial:6.3f}")
        print(f"  mean over sets, beyond length {overall(found):.3f}", flush=True)


if __name__ == "__main__":
    main()
