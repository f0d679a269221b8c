"""How well a likelihood agrees with people: the sets that the paper on BARTScore uses, measured as it does.

python agreement.py MODEL_FOLDER [SET ...]      a folder in metrist's own form
"""

from __future__ import annotations

import json
import lzma
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

DATA = Path(os.environ.get("METRIST_TEST_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
Row = dict[str, Any]
#: Mean log-probability of each (condition, target).
Likelihood = Callable[[Sequence[tuple[str, str]]], Sequence[float]]


def rows(name: str) -> list[Row]:
    """A data set's rows."""
    with lzma.open(DATA / f"{name}.jsonl.xz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def rated(row: Row, aspect: str) -> float:
    """The raters' mean."""
    values = row["ratings"].get(aspect) or [np.nan]
    return float(np.mean([value for value in values if value is not None]))


def ranks(values: Sequence[float]) -> NDArray[np.float64]:
    """Ranks, equal values sharing theirs."""
    _, place, times = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    shared: NDArray[np.float64] = (np.cumsum(times) - (times - 1) / 2)[place]
    return shared


def spearman(human: Sequence[float], metric: Sequence[float]) -> float:
    """Spearman's correlation; NaN where either side is constant."""
    if len(set(human)) < 2 or len(set(metric)) < 2:
        return float("nan")
    return float(np.corrcoef(ranks(human), ranks(metric))[0, 1])


def by_item(data: list[Row], values: Sequence[float], aspect: str) -> float:
    """Spearman's correlation over the systems of each item, averaged; items where either side is constant left out."""
    groups: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row, value in zip(data, values, strict=True):
        groups[row["item"]].append((rated(row, aspect), value))
    found = [spearman(*zip(*group, strict=True)) for group in groups.values()]
    return float(np.nanmean(found))


def over_all(data: list[Row], values: Sequence[float], aspect: str) -> float:
    """Spearman's correlation over all outputs."""
    return spearman([rated(row, aspect) for row in data], values)


def forward(data: list[Row], likelihood: Likelihood) -> list[float]:
    """source -> output"""
    return list(likelihood([(row["source"], row["output"]) for row in data]))


def both_ways(data: list[Row], likelihood: Likelihood) -> list[float]:
    """The mean of reference -> output and output -> reference, and the best over references."""
    pairs = [(r, row["output"]) for row in data for r in row["references"]]
    pairs += [(output, reference) for reference, output in pairs]
    scores = np.asarray(likelihood(pairs)).reshape(2, -1).mean(0)
    ends = np.cumsum([len(row["references"]) for row in data])
    return [float(part.max()) for part in np.split(scores, ends[:-1])]


def recall(data: list[Row], likelihood: Likelihood) -> list[float]:
    """output -> reference"""
    return list(likelihood([(row["output"], row["references"][0]) for row in data]))


def summeval(likelihood: Likelihood) -> dict[str, float]:
    data = rows("summeval")
    values = forward(data, likelihood)
    return {a: by_item(data, values, a) for a in ("coherence", "consistency", "fluency", "relevance")}


def ner18(likelihood: Likelihood) -> dict[str, float]:
    data = rows("newsroom")
    values = forward(data, likelihood)
    return {a: by_item(data, values, a) for a in ("coherence", "fluency", "informativeness", "relevance")}


def realsumm(likelihood: Likelihood) -> dict[str, float]:
    data = rows("realsumm")
    found = {}
    for direction, values in (("recall", recall(data, likelihood)), ("f", both_ways(data, likelihood))):
        found[f"litepyramid ({direction})"] = by_item(data, values, "litepyramid_recall")
    return found


def qags(likelihood: Likelihood) -> dict[str, float]:
    found = {}
    for name in ("qags-cnn", "qags-xsum"):
        data = rows(name)
        values = forward(data, likelihood)
        found[name] = float(np.corrcoef([rated(row, "fact") for row in data], values)[0, 1])
    return found


def rank19(likelihood: Likelihood) -> dict[str, float]:
    data = rows("rank19")
    values = forward(data, likelihood)
    groups: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row, value in zip(data, values, strict=True):
        groups[row["item"]].append((rated(row, "fact"), value))
    right = [max(group)[1] > min(group)[1] for group in groups.values()]
    return {"accuracy": float(np.mean(right))}


def data_to_text(likelihood: Likelihood) -> dict[str, float]:
    found = {}
    for name in ("bagel", "sfres", "sfhot"):
        data = rows(name)
        found[name] = over_all(data, both_ways(data, likelihood), "informativeness")
    return found


def summeval_op(likelihood: Likelihood) -> dict[str, float]:
    return _forward_by_item("summeval-op", likelihood)


def simplification(likelihood: Likelihood) -> dict[str, float]:
    return _forward_by_item("simpeval_past", likelihood)


def dialogue(likelihood: Likelihood) -> dict[str, float]:
    return _forward_by_item("topical-chat-usr", likelihood)


def stories(likelihood: Likelihood) -> dict[str, float]:
    return _forward_by_item("openmeva-roc", likelihood)


def translation(likelihood: Likelihood) -> dict[str, float]:
    """reference -> output, on the items that training leaves out."""
    data = [row for row in rows("wmt22.zh-en") if held_out(row["item"])]
    values = likelihood([(row["references"][0], row["output"]) for row in data])
    return {"mqm": by_item(data, values, "mqm")}


def held_out(item: str) -> bool:
    """Whether an item of wmt22.zh-en belongs to the development set: every ninth."""
    return int(item) % 9 == 0


def _forward_by_item(name: str, likelihood: Likelihood) -> dict[str, float]:
    data = rows(name)
    values = forward(data, likelihood)
    aspects = dict.fromkeys(aspect for row in data for aspect in row["ratings"])
    return {aspect: by_item(data, values, aspect) for aspect in aspects}


#: Sets by which a variant is chosen; none of them trains one, and none of them is of a judged family.
DEVELOPMENT: dict[str, Callable[[Likelihood], dict[str, float]]] = {
    "summeval_op": summeval_op,
    "simplification": simplification,
    "dialogue": dialogue,
    "stories": stories,
    "translation": translation,
}

SETS: dict[str, Callable[[Likelihood], dict[str, float]]] = {
    "summeval": summeval,
    "ner18": ner18,
    "realsumm": realsumm,
    "qags": qags,
    "rank19": rank19,
    "data_to_text": data_to_text,
}


def of_folder(folder: Path, max_tokens: int | None = None) -> Likelihood:
    """The likelihood of a folder in metrist's own form."""
    from metrist.models.numpy_inference.scorers import NumpySeq2Seq
    from metrist.models.weights import Weights

    model = NumpySeq2Seq(Weights(name=folder.name, folder=folder, fingerprint=""))

    def likelihood(pairs: Sequence[tuple[str, str]]) -> list[float]:
        found = model.log_probs(pairs, max_tokens)
        return [float(found.of(number).mean()) for number in range(len(found))]

    return likelihood


def main() -> None:
    folder, *chosen = sys.argv[1:]
    limit = os.environ.get("MAX_TOKENS")
    likelihood = of_folder(Path(folder), int(limit) if limit else None)
    for name in chosen or SETS:
        found = {**SETS, **DEVELOPMENT}[name](likelihood)
        shown = "  ".join(f"{aspect} {value:.3f}" for aspect, value in found.items())
        print(f"{name:14} mean {np.mean(list(found.values())):.3f}  {shown}", flush=True)


if __name__ == "__main__":
    main()
