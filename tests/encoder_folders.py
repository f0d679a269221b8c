"""Tiny random text encoders in metrist's own format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from metrist.models.numpy_inference.export import export_text_encoder

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefgh", "the", "cat", "sat", "on", "mat", "##s", "two", ".", "[", "]"]
CONFIG: dict[str, Any] = {
    "hidden": 64,
    "inner": 128,
    "attention_heads": 2,
    "layers": 2,
    "positions": 48,
    "max_tokens": 48,
    "epsilon": 1e-12,
    "begin_token": 2,
    "end_token": 3,
}


#: The heads of a random model, with the number of their outputs.
HEADS = {"support": 1, "tags": 3}


def make_arrays(kind: str, seed: int = 0, layers: int = 2, heads: Mapping[str, int] = HEADS) -> dict[str, Any]:
    """Random weights."""
    rng = np.random.default_rng(seed)

    def draw(*shape: int, scale: float = 0.1) -> Any:
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    arrays = {"words.weight": draw(len(WORDS), 64, scale=1), "types.weight": draw(2, 64)}
    arrays |= {"norm.weight": 1 + draw(64), "norm.bias": draw(64)}
    if kind == "bert":
        arrays["places.weight"] = draw(48, 64)
    for name in (f"blocks.{number}." for number in range(layers)):
        shapes = {"qkv": (192, 64), "out": (64, 64), "up": (128, 64), "down": (64, 128)}
        shapes |= {"gate": (128, 64)} if kind == "nomic" else {}
        for part, shape in shapes.items():
            arrays[f"{name}{part}.weight"] = draw(*shape)
            if kind == "bert":
                arrays[f"{name}{part}.bias"] = draw(shape[0])
        for norm in ("norm1", "norm2"):
            arrays |= {f"{name}{norm}.weight": 1 + draw(64), f"{name}{norm}.bias": draw(64)}
    for head, outputs in heads.items():
        arrays |= {f"heads.{head}.weight": draw(outputs, 64), f"heads.{head}.bias": draw(outputs)}
    return arrays


def write_tokenizer(path: Path) -> Path:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    tokenizer = Tokenizer(models.WordPiece({word: at for at, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    tokenizer.save(str(path))
    return path


def export_random(folder: Path, kind: str, heads: Mapping[str, int] = HEADS, **settings: Any) -> Path:
    folder.parent.mkdir(parents=True, exist_ok=True)
    tokenizer = write_tokenizer(folder.parent / "tokenizer.json")
    return export_text_encoder(make_arrays(kind, heads=heads), {"kind": kind, **CONFIG}, tokenizer, folder, **settings)
