"""Measure how well a preference model agrees with people on data sets that choose between trainings: it is neither
trained nor tested on them.

    python preference_choice.py MODEL ...      folders of preference models

Prints Spearman's correlation: the mean over items if an item has many outputs, else over all outputs. The second figure
is the partial correlation given the outputs' lengths, and it decides: on SummEval-OP length alone reaches .6 to .9, and
a model that only prefers long texts would win.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from agreement import Row, mean_rating, rows, spearman

from metrist import criteria
from metrist.models import loading
from metrist.models.devices import Options
from metrist.models.protocols import RewardScorer
from metrist.models.reward_layout import RewardInput


class ChosenAspect(NamedTuple):
    """An aspect of a data set and the criterion to score it by; `context` is the row's field that is shown."""

    data: str
    aspect: str
    criterion: str
    context: str = ""


CHOICE = (
    ChosenAspect("fed", "Engaging", "engagingness", "source"),
    ChosenAspect("fed", "Relevant", "relevance", "source"),
    ChosenAspect("fed", "Semantically appropriate", "coherence", "source"),
    ChosenAspect("fed", "Specific", "informativeness", "source"),
    ChosenAspect("fed", "Fluent", "fluency"),
    ChosenAspect("fed", "Overall", "overall", "source"),
    ChosenAspect("summeval-op", "fl", "fluency"),
    ChosenAspect("summeval-op", "co", "coherence", "source"),
    ChosenAspect("summeval-op", "re", "relevance", "source"),
    ChosenAspect("summeval-op", "fa", "consistency", "source"),
    ChosenAspect("summeval-op", "ac", "coverage", "source"),
    ChosenAspect("webnlg2020.en", "Fluency", "fluency"),
    ChosenAspect("webnlg2020.en", "TextStructure", "grammaticality"),
    ChosenAspect("wmt22.zh-en", "mqm", "correctness", "reference"),
    ChosenAspect("wmt22.zh-en", "mqm", "fluency"),
    ChosenAspect("judgebench-meta_evaluation_recipes", "grammar", "grammaticality"),
    ChosenAspect("judgebench-meta_evaluation_recipes", "structure", "coherence"),
    ChosenAspect("judgebench-meta_evaluation_recipes", "overall", "overall"),
)
_MANY = ("summeval-op", "webnlg2020.en", "wmt22.zh-en")
#: Use every n-th item of large data sets.
_EVERY = {"wmt22.zh-en": 12}
_SPEAKER = re.compile(r"^(?:User|System): ?", re.MULTILINE)


class AspectAgreement(NamedTuple):
    """Agreement with people, and the part that length does not explain."""

    aspect: ChosenAspect
    plain: float
    beyond_length: float


def figures(model: str) -> Iterator[AspectAgreement]:
    """Yield two correlations per aspect."""
    network = loading.load_reward(Options(model=model))
    sets = {name: _read(name) for name in dict.fromkeys(aspect.data for aspect in CHOICE)}
    for aspect in CHOICE:
        data = [
            row for row in sets[aspect.data] if np.isfinite(mean_rating(row, aspect.aspect)) and row["output"].strip()
        ]
        items = [row["item"] if aspect.data in _MANY else "" for row in data]
        people = [mean_rating(row, aspect.aspect) for row in data]
        lengths = [float(len(row["output"])) for row in data]
        plain, partial = _agreement(items, people, _rewards(network, aspect, data), lengths)
        yield AspectAgreement(aspect, plain, partial)


def _agreement(
    items: Sequence[str], people: Sequence[float], rewards: Sequence[float], lengths: Sequence[float]
) -> tuple[float, float]:
    """Return the means over items, without items where all values are equal."""
    groups: dict[str, list[tuple[float, float, float]]] = {}
    for item, *three in zip(items, people, rewards, lengths, strict=True):
        groups.setdefault(item, []).append((three[0], three[1], three[2]))
    plain, partial = [], []
    for group in groups.values():
        human, ours, sizes = zip(*group, strict=True)
        r, with_human, with_ours = spearman(human, ours), spearman(human, sizes), spearman(ours, sizes)
        rest = (1 - with_human**2) * (1 - with_ours**2)
        plain.append(r)
        partial.append((r - with_human * with_ours) / rest**0.5 if rest > 0 else np.nan)
    return float(np.nanmean(plain)), float(np.nanmean(partial))


def _read(name: str) -> list[Row]:
    """Read a data set's rows without the names of speakers; add the first reference as a field."""
    results = rows(name)
    items = list(dict.fromkeys(row["item"] for row in results))
    selected = set(items[:: _EVERY.get(name, 1)])
    return [
        {
            **row,
            "source": _SPEAKER.sub("", row.get("source") or ""),
            "output": _SPEAKER.sub("", row["output"]),
            "reference": (row.get("references") or [""])[0],
        }
        for row in results
        if row["item"] in selected
    ]


def _rewards(network: RewardScorer, aspect: ChosenAspect, data: Sequence[Row]) -> Sequence[float]:
    instruction = network.settings.criteria.get(aspect.criterion) or criteria.find(aspect.criterion).instruction
    shown = [((aspect.context, row[aspect.context]),) if aspect.context else () for row in data]
    inputs = [
        RewardInput(instruction, (*fields, ("output", row["output"]))) for fields, row in zip(shown, data, strict=True)
    ]
    return [float(value) for value in network.rewards(inputs).values]


def overall(results: Sequence[AspectAgreement]) -> float:
    """Return the mean over data sets of the mean partial correlation over their aspects."""
    by_set: dict[str, list[float]] = {}
    for result in results:
        by_set.setdefault(result.aspect.data, []).append(result.beyond_length)
    return float(np.mean([np.mean(figures) for figures in by_set.values()]))


def main() -> None:
    for model in sys.argv[1:]:
        results = list(figures(model))
        print(model)
        for (data, aspect, criterion, _), plain, partial in results:
            print(f"  {data:36} {aspect:26} {criterion:16} {plain:6.3f} {partial:6.3f}")
        print(f"  mean over sets, beyond length {overall(results):.3f}", flush=True)


if __name__ == "__main__":
    main()
