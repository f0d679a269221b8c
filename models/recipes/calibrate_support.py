"""Calibrate the head `support` of an exported text encoder on judged sentences, and report what that changes.

    python calibrate_support.py MODEL dev.jsonl [--write] [--most 150] [--seed 0]
    python calibrate_support.py MODEL --scale A --shift B      # write known figures

dev.jsonl has rows {set, source, output, label}, label from 0 (unsupported) to 1, of sources that no training saw. The
logit z becomes a z + b, with a and b of the least cross-entropy, all sets of human labels weighing the same. --write
puts a and b into the weights of the head, so that its output is a calibrated logit; without, nothing is changed.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from scipy.optimize import minimize
from scipy.stats import rankdata

from metrist.metrics.support import HEAD, Support, SupportReader
from metrist.models.loading import load_text_encoder
from metrist.models.numpy_inference.storage import WEIGHTS

Floats = NDArray[np.float64]
#: Sets of made-up faults, which are easier than those of people.
MADE = ("made", "news", "long")
BINS = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--scale", type=float)
    parser.add_argument("--shift", type=float)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--most", type=int, default=150, help="rows of a set")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.scale is not None and arguments.shift is not None:
        write(arguments.model, arguments.scale, arguments.shift)
        return
    if arguments.data is None:
        parser.error("give judged sentences, or --scale and --shift")
    rows = read_rows(arguments.data, arguments.most, arguments.seed)
    logits = {name: score(arguments.model, own) for name, own in rows.items()}
    labels = {name: np.array([row["label"] for row in own]) for name, own in rows.items()}
    human = [name for name in rows if not name.startswith(MADE)]
    scale, shift = fit([logits[name] for name in human], [labels[name] for name in human])
    print(f"scale {scale:.4f}, shift {shift:.4f}")
    for name in rows:
        before, after = (
            calibration_error(expit(z), labels[name]) for z in (logits[name], scale * logits[name] + shift)
        )
        print(
            f"{name:22} {len(rows[name]):5} AUC {auc(logits[name], labels[name]):.3f} ECE {before:.3f} -> {after:.3f}"
        )
    joined = np.concatenate([logits[name] for name in human]), np.concatenate([labels[name] for name in human])
    ends = [calibration_error(expit(z), joined[1]) for z in (joined[0], scale * joined[0] + shift)]
    mean = np.nanmean([auc(logits[name], labels[name]) for name in human])
    print(f"human sets: mean AUC {mean:.3f}, ECE of all together {ends[0]:.3f} -> {ends[1]:.3f}")
    if arguments.write:
        write(arguments.model, scale, shift)


def read_rows(path: Path, most: int, seed: int) -> dict[str, list[dict[str, Any]]]:
    sets: dict[str, list[dict[str, Any]]] = defaultdict(list)
    with path.open(encoding="utf-8") as file:
        for row in map(json.loads, file):
            sets[row["set"]].append(row)
    rng = random.Random(seed)
    return {name: rng.sample(own, most) if len(own) > most else own for name, own in sorted(sets.items())}


def score(model: Path, rows: list[dict[str, Any]]) -> Floats:
    """The logit of each row's sentence; the lowest if there are several."""
    reader = SupportReader(load_text_encoder(str(model)), window=512, threshold=0.5)
    results = reader.read([(row["source"], row["output"]) for row in rows])
    lowest = [float(result.probabilities.min()) if isinstance(result, Support) else 0.5 for result in results]
    probabilities = np.clip(lowest, 1e-9, 1 - 1e-9)
    return np.log(probabilities / (1 - probabilities))


def expit(logits: Floats) -> Floats:
    return 1 / (1 + np.exp(-logits))


def fit(logits: list[Floats], labels: list[Floats]) -> tuple[float, float]:
    """Scale and shift of the least cross-entropy, averaged over sets."""

    def loss(values: Floats) -> float:
        losses = []
        for z, y in zip(logits, labels, strict=True):
            moved = values[0] * z + values[1]
            losses.append(np.mean(np.logaddexp(0, moved) - y * moved))
        return float(np.mean(losses))

    result = minimize(loss, np.array([1.0, 0.0]), method="Nelder-Mead")
    return float(result.x[0]), float(result.x[1])


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


def write(model: Path, scale: float, shift: float) -> None:
    """Move the scale and shift into the head: it stays linear."""
    path = model / WEIGHTS
    arrays = load_file(str(path))
    weight, bias = f"heads.{HEAD}.weight", f"heads.{HEAD}.bias"
    arrays[weight] = (arrays[weight] * scale).astype(np.float32)
    arrays[bias] = (arrays[bias] * scale + shift).astype(np.float32)
    save_file(arrays, str(path))
    path.chmod(0o644)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
