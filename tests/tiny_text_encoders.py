"""Small text encoders in metrist's own format, with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from metrist.models.numpy_inference.export import export_text_encoder

_TEXT = (
    "the a dog cat sat ran on under mat tree house red blue big small old new and not is was has one two three four "
    "five john mary paris london rain sun river . , ! ? ( ) 1 мама раму 我 猫 x & שלום"
)
WORDS = _TEXT.split()


def write_tokenizer(path: Path) -> Path:
    """A word-piece tokenizer that knows `WORDS` and single letters."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS, *letters, *(f"##{letter}" for letter in letters)]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    tokenizer.save(str(path))
    return path


def write_text_encoder(
    folder: Path,
    *,
    kind: str = "bert",
    heads: tuple[str, ...] = ("support", "fluency"),
    tokens: int = 160,
    seed: int = 0,
    scale: float = 0.2,
) -> Path:
    """Write a random encoder of two layers; `scale` is the spread of its weights."""
    hidden, inner = 64, 64
    folder.parent.mkdir(parents=True, exist_ok=True)
    tokenizer = folder.parent / "tokenizer.json"
    write_tokenizer(tokenizer)
    rng = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {"words.weight": (160, hidden), "types.weight": (2, hidden)}
    shapes |= {"places.weight": (tokens, hidden)} if kind == "bert" else {}
    for number in range(2):
        name = f"blocks.{number}."
        shapes |= {f"{name}qkv.weight": (3 * hidden, hidden), f"{name}out.weight": (hidden, hidden)}
        shapes |= {f"{name}up.weight": (inner, hidden), f"{name}down.weight": (hidden, inner)}
        shapes |= {} if kind == "bert" else {f"{name}gate.weight": (inner, hidden)}
    arrays: dict[str, Any] = {name: rng.normal(0, scale, shape) for name, shape in shapes.items()}
    if kind == "bert":
        linear = [name for name in arrays if name.startswith("blocks.")]
        arrays |= {f"{n.removesuffix('weight')}bias": rng.normal(0, 0.1, len(arrays[n])) for n in linear}
    for norm in ("norm", *(f"blocks.{number}.norm{which}" for number in range(2) for which in (1, 2))):
        arrays |= {f"{norm}.weight": rng.normal(1, 0.1, hidden), f"{norm}.bias": rng.normal(0, 0.1, hidden)}
    for head in heads:
        arrays |= {f"heads.{head}.weight": rng.normal(0, 1, (1, hidden)), f"heads.{head}.bias": rng.normal(0, 1, 1)}
    config = {
        "kind": kind,
        "hidden": hidden,
        "inner": inner,
        "attention_heads": 2,
        "layers": 2,
        "positions": tokens,
        "max_tokens": tokens,
        "epsilon": 1e-12,
        "begin_token": 2,
        "end_token": 3,
    }
    export_text_encoder({n: a.astype(np.float32) for n, a in arrays.items()}, config, tokenizer, folder)
    return folder
