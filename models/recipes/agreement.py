"""Measure how well a likelihood agrees with people, on the data sets of the BARTScore paper and in its way.

python agreement.py MODEL_FOLDER [SET ...]      a folder in metrist's own format
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
    """Read the rows of a data set."""
    with lzma.open(DATA / f"{name}.jsonl.xz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def mean_rating(row: Row, aspect: str) -> float:
    """Return the mean of the raters."""
    values = row["ratings"].get(aspect) or [np.nan]
    return float(np.mean([value for value in values if value is not None]))


def ranks(values: Sequence[float]) -> NDArray[np.float64]:
    """Return ranks; equal values share their mean rank."""
    _, place, times = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    shared: NDArray[np.float64] = (np.cumsum(times) - (times - 1) / 2)[place]
    return shared


def spearman(human: Sequence[float], metric: Sequence[float]) -> float:
    """Return Spearman's correlation; NaN if either side is constant."""
    if len(set(human)) < 2 or len(set(metric)) < 2:
        return float("nan")
    return float(np.corrcoef(ranks(human), ranks(metric))[0, 1])


def correlate_by_item(data: list[Row], values: Sequence[float], aspect: str) -> float:
    """Return the mean over items of Spearman's correlation over systems, without items where a side is constant."""
    groups: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row, value in zip(data, values, strict=True):
        groups[row["item"]].append((mean_rating(row, aspect), value))
    correlations = [spearman(*zip(*group, strict=True)) for group in groups.values()]
    return float(np.nanmean(correlations))


def correlate_all(data: list[Row], values: Sequence[float], aspect: str) -> float:
    """Return Spearman's correlation over all outputs."""
    return spearman([mean_rating(row, aspect) for row in data], values)


def score_forward(data: list[Row], likelihood: Likelihood) -> list[float]:
    """source -> output"""
    return list(likelihood([(row["source"], row["output"]) for row in data]))


def score_both_ways(data: list[Row], likelihood: Likelihood) -> list[float]:
    """Return the mean of reference -> output and output -> reference, and of references the best."""
    pairs = [(r, row["output"]) for row in data for r in row["references"]]
    pairs += [(output, reference) for reference, output in pairs]
    scores = np.asarray(likelihood(pairs)).reshape(2, -1).mean(0)
    ends = np.cumsum([len(row["references"]) for row in data])
    return [float(part.max()) for part in np.split(scores, ends[:-1])]


def score_recall(data: list[Row], likelihood: Likelihood) -> list[float]:
    """output -> reference"""
    return list(likelihood([(row["output"], row["references"][0]) for row in data]))


def summeval(likelihood: Likelihood) -> dict[str, float]:
    data = rows("summeval")
    values = score_forward(data, likelihood)
    return {a: correlate_by_item(data, values, a) for a in ("coherence", "consistency", "fluency", "relevance")}


def ner18(likelihood: Likelihood) -> dict[str, float]:
    data = rows("newsroom")
    values = score_forward(data, likelihood)
    return {a: correlate_by_item(data, values, a) for a in ("coherence", "fluency", "informativeness", "relevance")}


def realsumm(likelihood: Likelihood) -> dict[str, float]:
    data = rows("realsumm")
    figures = {}
    for direction, values in (("recall", score_recall(data, likelihood)), ("f", score_both_ways(data, likelihood))):
        figures[f"litepyramid ({direction})"] = correlate_by_item(data, values, "litepyramid_recall")
    return figures


def qags(likelihood: Likelihood) -> dict[str, float]:
    figures = {}
    for name in ("qags-cnn", "qags-xsum"):
        data = rows(name)
        values = score_forward(data, likelihood)
        figures[name] = float(np.corrcoef([mean_rating(row, "fact") for row in data], values)[0, 1])
    return figures


def rank19(likelihood: Likelihood) -> dict[str, float]:
    data = rows("rank19")
    values = score_forward(data, likelihood)
    groups: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row, value in zip(data, values, strict=True):
        groups[row["item"]].append((mean_rating(row, "fact"), value))
    right = [max(group)[1] > min(group)[1] for group in groups.values()]
    return {"accuracy": float(np.mean(right))}


def data_to_text(likelihood: Likelihood) -> dict[str, float]:
    figures = {}
    for name in ("bagel", "sfres", "sfhot"):
        data = rows(name)
        figures[name] = correlate_all(data, score_both_ways(data, likelihood), "informativeness")
    return figures


def summeval_op(likelihood: Likelihood) -> dict[str, float]:
    return _forward_by_item("summeval-op", likelihood)


def simplification(likelihood: Likelihood) -> dict[str, float]:
    return _forward_by_item("simpeval_past", likelihood)


def dialogue(likelihood: Likelihood) -> dict[str, float]:
    return _forward_by_item("topical-chat-usr", likelihood)


def stories(likelihood: Likelihood) -> dict[str, float]:
    return _forward_by_item("openmeva-roc", likelihood)


def translation(likelihood: Likelihood) -> dict[str, float]:
    """reference -> output, on the items that are not used for training."""
    data = [row for row in rows("wmt22.zh-en") if is_held_out(row["item"])]
    values = likelihood([(row["references"][0], row["output"]) for row in data])
    return {"mqm": correlate_by_item(data, values, "mqm")}


def is_held_out(item: str) -> bool:
    """Whether an item of wmt22.zh-en belongs to the development set, every ninth item."""
    return int(item) % 9 == 0


def _forward_by_item(name: str, likelihood: Likelihood) -> dict[str, float]:
    data = rows(name)
    values = score_forward(data, likelihood)
    aspects = dict.fromkeys(aspect for row in data for aspect in row["ratings"])
    return {aspect: correlate_by_item(data, values, aspect) for aspect in aspects}


#: Data sets that choose a variant: none is used for training, and none belongs to a test family.
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


def load_likelihood(folder: Path, max_tokens: int | None = None) -> Likelihood:
    """Load the model of a folder in metrist's own formatat."""
    from metrist.models.numpy_inference.scorers import NumpySeq2Seq
    from metrist.models.weights import Weights

    model = NumpySeq2Seq(Weights(name=folder.name, folder=folder, fingerprint=""))

    def likelihood(pairs: Sequence[tuple[str, str]]) -> list[float]:
        likelihoods = model.log_probs(pairs, max_tokens)
        return [float(likelihoods.of(number).mean()) for number in range(len(likelihoods))]

    return likelihood


def main() -> None:
    folder, *chosen = sys.argv[1:]
    limit = os.environ.get("MAX_TOKENS")
    likelihood = load_likelihood(Path(folder), int(limit) if limit else None)
    for name in chosen or SETS:
        figures = {**SETS, **DEVELOPMENT}[name](likelihood)
        shown = "  ".join(f"{aspect} {value:.3f}" for aspect, value in figures.items())
        print(f"{name:14} mean {np.mean(list(figures.values())):.3f}  {shown}", flush=True)


if __name__ == "__main__":
    main()
