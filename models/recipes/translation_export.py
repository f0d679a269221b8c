"""Export a training of translation_quality to metrist's own format, with the combination of its numbers.

    python translation_export.py BASE TRAINED.pt COMBINATION.json OUT

BASE is written by translation_pieces.py, TRAINED.pt by translation_train.py, COMBINATION.json by translation_fit.py.
Word pieces keep the 4 bits of the base, exactly; matrices get 7 bits.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from translation_train import HEADS, LAYERS, POSITIONS, WIDTH, load_base

from metrist.models.numpy_inference.export import export_text_encoder
from metrist.models.numpy_inference.storage import SCALE, WEIGHTS, pack_bits

#: Heads become one, and scales of the loss are not needed any more.
OMITTED = ("heads.", "alignments")
#: Scales are stored in units of 2^-10.
UNITS = 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", type=Path)
    parser.add_argument("state", type=Path)
    parser.add_argument("combination", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    combination = json.loads(arguments.combination.read_text())["combination"]
    export(arguments.base, arguments.state, combination, arguments.out)


def export(base: Path, state: Path, combination: dict[str, Any], out: Path) -> None:
    """Write the folder; the four heads become one with four outputs, so that one pass has them all."""
    trained = {name: array.float().numpy() for name, array in torch.load(state, weights_only=True).items()}
    arrays: dict[str, Any] = {name: array for name, array in trained.items() if not name.startswith(OMITTED)}
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
        "translation": combination,
    }
    export_text_encoder(arrays, config, base / "tokenizer.json", out, bits=7, word_bits=4, word_group=32)
    blocks = np.load(base / "base.npz")["q4/words.weight"]
    if len(blocks) != len(arrays["words.weight"]):
        raise SystemExit(
            f"{base}: expected the blocks of {len(arrays['words.weight']):,} pieces, found {len(blocks):,}"
        )
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
