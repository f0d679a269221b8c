"""Export a training of translation_quality to metrist's own format, with the combination of its numbers.

    python translation_export.py BASE TRAINED.pt NUMBERS.npz OUT

BASE is written by translation_pieces.py, the other two by translation_train.py. WEIGHTS were chosen on sources held out
from the training families (LOG-translation.md has the grid); the constant of a mode puts the median of its held-out
outputs at .5. Word pieces keep the 4 bits of the base, exactly; matrices get 7 bits.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from translation_train import HEADS, LAYERS, POSITIONS, WIDTH, load_base

from metrist.models.numpy_inference.export import export_text_encoder
from metrist.models.numpy_inference.storage import SCALE, WEIGHTS, pack_bits

Floats = NDArray[np.float64]
#: The numbers of translation_train.py that place the median of a mode.
KINDS = {"source": ("source", "joined source"), "both": ("both", "joined both"), "reference": ("reference",)}
WEIGHTS_OF_MODES = {
    "source": {"quality": 1.5, "ranking": 1.5, "marked": -0.75, "chrf": 0.0},
    "both": {"quality": 1.5, "ranking": 1.5, "marked": -0.3, "chrf": 0.75},
    "reference": {"quality": 1.5, "ranking": 1.5, "marked": -0.3, "chrf": 0.75},
}
#: The threshold of the tags with the best F1 on held-out sources; see LOG-translation.md.
THRESHOLD = 0.3
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
    weights = {mode: place_median({name: stored[name] for name in stored.files}, mode) for mode in KINDS}
    print(json.dumps(weights, indent=1))
    export(arguments.base, arguments.state, weights, arguments.out)


def place_median(numbers: dict[str, Floats], mode: str) -> dict[str, float]:
    """Return the weights of a mode with its constant."""
    weights = WEIGHTS_OF_MODES[mode]
    chosen = [
        rows for name, rows in numbers.items() if name.startswith("wmt22") and name.partition(" ")[2] in KINDS[mode]
    ]
    # Columns: quality, ranking, penalty, value, overlap, group, output.
    totals = [
        weights["quality"] * rows[:, 0]
        + weights["ranking"] * rows[:, 1]
        + weights["marked"] * np.log1p(rows[:, 2])
        + weights["chrf"] * np.nan_to_num(rows[:, 4])
        for rows in chosen
    ]
    return {"constant": round(-float(np.median(np.concatenate(totals))), 4), **weights}


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
