"""Fit how the head `support` of an exported text encoder is used, and report what that changes.

    python calibrate_support.py MODEL DATA [--sentences 12] [--window 512] [--write] [--most 150] [--seed 0]

DATA is the support.json of `english_support.py`, of which the rows of `dev` are used, or a file .jsonl with lines {set,
source, output, label}, label from 0 (unsupported) to 1; sources that no training saw. --sentences and --window say what
the rows of the training had: sentences read together, and tokens. Rows about one source are read together, as sentences
of an output are. Fitted are

- the probability of a sentence that the source has word for word: the share of these that people call supported, over
  all rows; without at least 20 of them, the model reads copied sentences too;
- the scale a and shift b of the logits of other sentences, at most --most of a set: z becomes a z + b, with the least
  cross-entropy, all families of human labels weighing the same. Sets with common sources are one family.

Each family is also judged by numbers that were fitted on the others only. --write puts the numbers into support.json of
the model's folder; the weights stay as they are, so that another run replaces them.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.stats import rankdata

from metrist.metrics.trained.support import SETTINGS, Support, SupportReader, SupportSettings
from metrist.models.loading import load_text_encoder

Floats = NDArray[np.float64]
#: Sets of made-up faults, which are easier than those of people.
MADE = ("made", "news", "long")
#: Sets that share sources.
FAMILIES = {
    "dialogue": ("begin", "faithdial-audit", "q2-wow", "dialfact-small", "alexa", "alexa-factual-dialogs"),
    "wice": ("wice-claims", "wice-tokens"),
}
BINS = 10
LEAST_COPIES = 20
#: Between rows that are read together.
SEPARATOR = "\n\n"
#: Stands for any probability: which sentences are copied is what matters.
COPIED = 0.75


class Scores(NamedTuple):
    """Rows of a set: the raw logit of the lowest sentence, whether the source has all sentences word for word, and the
    label. `copies` are the labels of all rows of the set that are copied."""

    logits: Floats
    copied: NDArray[np.bool_]
    labels: Floats
    copies: Floats


class Fit(NamedTuple):
    scale: float
    shift: float
    copied: float | None

    def apply(self, scores: Scores) -> Floats:
        """The calibrated logits."""
        moved = self.scale * scores.logits + self.shift
        return moved if self.copied is None else np.where(scores.copied, logit(self.copied), moved)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--sentences", type=int)
    parser.add_argument("--window", type=int)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--most", type=int, default=150, help="rows of a set")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    layout = {name: value for name in ("sentences", "window") if (value := getattr(arguments, name)) is not None}
    settings = replace(SupportSettings.read(arguments.model), **layout)
    rows = read_rows(arguments.data)
    reader = SupportReader(
        load_text_encoder(str(arguments.model)), threshold=0.5, override=replace(settings, scale=1.0, shift=0.0)
    )
    rng = random.Random(arguments.seed)
    scores = {name: score(reader, own, arguments.most, rng) for name, own in rows.items()}
    human = {name: own for name, own in scores.items() if not name.startswith(MADE)}
    if not human:
        parser.error(f"{arguments.data}: has no set with labels of people")
    result = fit(human)
    report(scores, human, result)
    if arguments.write:
        fitted = {name: None if value is None else round(value, 4) for name, value in result._asdict().items()}
        replace(settings, **fitted).write(arguments.model)
        print(f"wrote {arguments.model / SETTINGS}")


def read_rows(path: Path) -> dict[str, list[dict[str, Any]]]:
    sets: dict[str, list[dict[str, Any]]] = defaultdict(list)
    with path.open(encoding="utf-8") as file:
        if path.suffix == ".json":
            stored = json.load(file)
            rows = [
                {"set": name, "source": stored["passages"][passage], "output": text, "label": label}
                for passage, sentences, name in stored["dev"]
                for text, label, _ in sentences
            ]
        else:
            rows = [json.loads(line) for line in file]
    for row in rows:
        sets[row["set"]].append(row)
    return dict(sorted(sets.items()))


def score(reader: SupportReader, rows: list[dict[str, Any]], most: int, rng: random.Random) -> Scores:
    """Find the copied ones among all rows, and score about `most` of them with the model."""
    pairs = [(row["source"], row["output"]) for row in rows]
    labels = np.array([row["label"] for row in rows], np.float64)
    marked = replace(reader, encoder=NoModel(reader.encoder), override=replace(reader.settings, copied=COPIED))
    copied = np.array([is_supported(result) for result in marked.read(pairs)], bool)
    outputs = join_rows(rows, reader.settings.sentences, rng)
    rng.shuffle(outputs)
    chosen: list[tuple[str, str, list[int]]] = []
    while outputs and sum(len(numbers) for _, _, numbers in chosen) < most:
        chosen.append(outputs.pop())
    plain = replace(reader, override=replace(reader.settings, copied=None))
    lowest: dict[int, float] = {}
    for (_, output, numbers), result in zip(chosen, plain.read([pair[:2] for pair in chosen]), strict=True):
        ends = np.cumsum([len(part) + len(SEPARATOR) for part in output.split(SEPARATOR)])
        for number in numbers:
            lowest[number] = 0.5
        if isinstance(result, Support):
            owners = np.searchsorted(ends, [start for start, _ in result.spans], side="right")
            for at in np.unique(owners):
                lowest[numbers[at]] = float(result.probabilities[owners == at].min())
    at = sorted(lowest)
    logits = logit(np.clip([lowest[number] for number in at], 1e-9, 1 - 1e-9))
    return Scores(logits, copied[at], labels[at], labels[copied])


def join_rows(rows: list[dict[str, Any]], most: int, rng: random.Random) -> list[tuple[str, str, list[int]]]:
    """Put rows about one source together: source, output, and the numbers of the rows. Half of them stand alone, the
    others are two to `most`."""
    sources: dict[str, list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        sources[row["source"]].append(number)
    joined = []
    for source, numbers in sources.items():
        rng.shuffle(numbers)
        while numbers:
            size = 1 if most == 1 or rng.random() < 0.5 else rng.randint(2, most)
            part, numbers = numbers[:size], numbers[size:]
            joined.append((source, SEPARATOR.join(" ".join(rows[i]["output"].split()) for i in part), part))
    return joined


def is_supported(result: Any) -> bool:
    return isinstance(result, Support) and float(result.probabilities.min()) == COPIED


class NoModel:
    """An encoder that supports nothing, at no cost: a sentence has another probability than 0 only if it is copied."""

    def __init__(self, encoder: Any) -> None:
        self._encoder = encoder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)

    def score_spans(self, head: str, sequences: Any, spans: Any) -> list[Floats]:  # noqa: ARG002
        return [np.full((len(own), 1), -60.0) for own in spans]


def report(scores: dict[str, Scores], human: dict[str, Scores], result: Fit) -> None:
    copied = "not fitted" if result.copied is None else f"{result.copied:.4f}"
    print(f"scale {result.scale:.4f}, shift {result.shift:.4f}, copied {copied}")
    without: dict[str, Fit] = {}
    for name in human:
        family = find_family(name)
        if family not in without:
            others = {other: own for other, own in human.items() if find_family(other) != family}
            without[family] = fit(others) if others else result
    table = []
    for name, own in scores.items():
        moved = without.get(find_family(name), result).apply(own)
        aucs = auc(own.logits, own.labels), auc(moved, own.labels)
        errors = tuple(calibration_error(expit(z), own.labels) for z in (own.logits, moved))
        supported = own.copies.mean() if len(own.copies) else float("nan")
        print(
            f"{name:22} {len(own.labels):5} AUC {aucs[0]:.3f} -> {aucs[1]:.3f} ECE {errors[0]:.3f} -> {errors[1]:.3f} "
            f"copied {len(own.copies):4} supported {supported:.3f}"
        )
        if name in human:
            table.append((*aucs, *errors))
    means = np.nanmean(np.array(table), axis=0)
    labels = np.concatenate([own.labels for own in human.values()])
    pooled = [
        calibration_error(np.concatenate(list(values)), labels)
        for values in (
            (expit(own.logits) for own in human.values()),
            (expit(without[find_family(name)].apply(own)) for name, own in human.items()),
            (expit(result.apply(own)) for own in human.values()),
        )
    ]
    print(
        f"human sets, each family by a fit on the others: mean AUC {means[0]:.3f} -> {means[1]:.3f}, ECE of all "
        f"together {pooled[0]:.3f} -> {pooled[1]:.3f} (fitted on all: {pooled[2]:.3f})"
    )


def find_family(name: str) -> str:
    return next((family for family, sets in FAMILIES.items() if name in sets), name)


def fit(sets: dict[str, Scores]) -> Fit:
    """Scale and shift of the least cross-entropy, averaged over the families and over the sets of each; the share of
    copied sentences that are supported, one supported and one unsupported added."""
    families: dict[str, list[tuple[Floats, Floats]]] = defaultdict(list)
    for name, own in sets.items():
        read = ~own.copied
        if read.any():
            families[find_family(name)].append((own.logits[read], own.labels[read]))

    def loss(values: Floats) -> float:
        means = []
        for own in families.values():
            moved = [(values[0] * logits + values[1], labels) for logits, labels in own]
            means.append(np.mean([np.mean(np.logaddexp(0, z) - labels * z) for z, labels in moved]))
        return float(np.mean(means))

    result = minimize(loss, np.array([1.0, 0.0]), method="Nelder-Mead")
    copies = np.concatenate([own.copies for own in sets.values()])
    share = (copies.sum() + 1) / (len(copies) + 2) if len(copies) >= LEAST_COPIES else None
    return Fit(float(result.x[0]), float(result.x[1]), None if share is None else float(share))


def logit(probabilities: Any) -> Any:
    return np.log(probabilities / (1 - probabilities))


def expit(logits: Floats) -> Floats:
    return 1 / (1 + np.exp(-logits))


def auc(scores: Floats, labels: Floats) -> float:
    """The share of pairs of a supported and an unsupported row that are in the right order."""
    right = labels > 0.5
    if right.all() or not right.any():
        return float("nan")
    ranks = rankdata(scores)
    count = int(right.sum())
    return float((ranks[right].sum() - count * (count + 1) / 2) / (count * (~right).sum()))


def calibration_error(probabilities: Floats, labels: Floats) -> float:
    """The mean distance of probability and share of support over ten bins of equal width."""
    bins = np.minimum((probabilities * BINS).astype(int), BINS - 1)
    total = 0.0
    for number in range(BINS):
        inside = bins == number
        if inside.any():
            total += inside.mean() * abs(probabilities[inside].mean() - labels[inside].mean())
    return float(total)


if __name__ == "__main__":
    main()
