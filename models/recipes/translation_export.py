"""Fit the combination of translation_quality's numbers and export a training to metrist's own format.

    python translation_export.py BASE TRAINED.pt NUMBERS.npz OUT

BASE is written by translation_pieces.py, the other two by translation_train.py. The weights of the combination are
those of a logistic regression on pairs of outputs of one held-out source, weighted by the difference of their ratings. They are
fitted on training families only, for each mode (source, both, reference); the constant puts the median of the
held-out outputs at .5.

Word pieces keep the 4 bits of the base, exactly; matrices get 7 bits.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from scipy.optimize import minimize  # type: ignore[import-untyped]
from translation_train import HEADS, LAYERS, POSITIONS, WIDTH, load_base

from metrist.models.numpy_inference.export import export_text_encoder
from metrist.models.numpy_inference.storage import SCALE, WEIGHTS, pack_bits

Floats = NDArray[np.float64]
#: Which numbers of translation_train.py a mode is fitted on.
KINDS = {"source": ("source", "joined source"), "both": ("both", "joined both"), "reference": ("reference",)}
FAMILIES = ("wmt22", "wmt-qe23-mqm", "bio-mqm")
FEATURES = ("quality", "ranking", "marked", "chrf")
#: Differences of ratings below this are ties.
TIE, RIDGE = 0.05, 1e-3
#: The threshold of the tags with the best F1 on held-out sources; see LOG-translation.md.
THRESHOLD = 0.4
LANGUAGES = ["as", "de", "en", "es", "fr", "gu", "hi", "kk", "kn", "mai", "ml", "mr", "pa", "ru", "ta", "zh"]
#: Scales are stored in units of 2^-10.
UNITS = 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", type=Path)
    parser.add_argument("state", type=Path)
    parser.add_argument("numbers", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    stored = np.load(arguments.numbers)
    weights = {mode: fit_mode({name: stored[name] for name in stored.files}, mode) for mode in KINDS}
    print(json.dumps(weights, indent=1))
    export(arguments.base, arguments.state, weights, arguments.out)


def fit_mode(numbers: dict[str, Floats], mode: str) -> dict[str, float]:
    chosen = [
        rows
        for name, rows in numbers.items()
        if name.startswith(FAMILIES) and name.partition(" ")[2] in KINDS[mode] and len(rows)
    ]
    used = [number for number, name in enumerate(FEATURES) if name != "chrf" or mode != "source"]
    leads, shares = map(np.concatenate, zip(*(pair for rows in chosen for pair in list_pairs(rows)), strict=True))
    spread = leads.std(0)
    scaled, shares = leads[:, used] / spread[used], shares / shares.sum()

    def loss(weights: Floats) -> tuple[float, Floats]:
        margins = scaled @ weights
        slopes = -(shares / (1 + np.exp(margins))) @ scaled + 2 * RIDGE * weights
        return float((shares * np.logaddexp(0, -margins)).sum() + RIDGE * weights @ weights), slopes

    result = np.zeros(len(FEATURES))
    result[used] = minimize(loss, np.zeros(len(used)), jac=True).x / spread[used]
    totals = np.concatenate([read_features(rows) @ result for rows in chosen])
    named = {name: round(float(weight), 5) for name, weight in zip(FEATURES, result, strict=True)}
    return {"constant": round(-float(np.median(totals)), 5), **named}


def read_features(rows: Floats) -> Floats:
    """Return the features of rows with quality, ranking, penalty, value, overlap, group and output."""
    return np.column_stack((rows[:, 0], rows[:, 1], np.log1p(rows[:, 2]), np.nan_to_num(rows[:, 4])))


def list_pairs(rows: Floats) -> Iterator[tuple[Floats, Floats]]:
    """Yield, for each source, the differences of better and worse outputs, and their weights."""
    features, values, groups = read_features(rows), rows[:, 3], rows[:, 5]
    for group in np.unique(groups):
        own = np.flatnonzero(groups == group)
        first, second = np.triu_indices(len(own), 1)
        lead = values[own[first]] - values[own[second]]
        clear = np.abs(lead) > TIE
        if clear.any():
            difference = (features[own[first]] - features[own[second]])[clear] * np.sign(lead[clear])[:, None]
            weights = np.minimum(np.abs(lead[clear]), 2.0)
            yield difference, weights / weights.sum()


def export(base: Path, state: Path, weights: dict[str, dict[str, float]], out: Path) -> None:
    """Write the folder; the four heads become one with four outputs, so that one pass has them all."""
    trained = {name: array.float().numpy() for name, array in torch.load(state, weights_only=True).items()}
    arrays: dict[str, Any] = {name: array for name, array in trained.items() if not name.startswith("heads.")}
    arrays["words.weight"] = load_base(base / "base.npz")["words.weight"].numpy()
    for kind in ("weight", "bias"):
        arrays[f"heads.translation.{kind}"] = np.concatenate([trained[f"heads.{name}.{kind}"] for name in HEADS])
    config = {
        "kind": "bert",
        "hidden": WIDTH,
        "inner": len(trained["blocks.0.up.bias"]),
        "attention_heads": 12,
        "layers": LAYERS,
        "positions": POSITIONS,
        "max_tokens": POSITIONS,
        "epsilon": 1e-12,
        "begin_token": 0,
        "end_token": 2,
        "translation": {"weights": weights, "threshold": THRESHOLD, "languages": LANGUAGES},
    }
    export_text_encoder(arrays, config, base / "tokenizer.json", out, bits=7, word_bits=4, word_group=32)
    blocks = np.load(base / "base.npz")["q4/words.weight"]
    flat = blocks.reshape(-1, blocks.shape[-1])
    integers = np.concatenate((flat[:, 2:] & 15, flat[:, 2:] >> 4), 1).astype(np.int8) - 8
    stored = load_file(str(out / WEIGHTS))
    stored["words.weight"] = pack_bits(integers.reshape(len(blocks), WIDTH).astype(np.int8), 4)
    scales = flat[:, :2].copy().view("<f2").astype(np.float32).reshape(len(blocks), -1)
    stored[f"words.weight{SCALE}"] = (scales * UNITS).astype(np.float16)
    save_file(stored, str(out / WEIGHTS))
    (out / WEIGHTS).chmod(0o644)  # safetensors creates files that only their owner can read.


if __name__ == "__main__":
    main()
