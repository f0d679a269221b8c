"""Export a trained text encoder from torch to metrist's own format, and compare the two.

    python export_text_encoder.py STATE.pt tokenizer.json OUT [--bits 7] [--word-bits 6] [--group 64] [--max-tokens N]

STATE.pt is a dict of arrays, or {"state": arrays, "config": sizes}. Arrays are named `words`, `types`, `places`,
`norm`, `blocks.N.{qkv,out,up,gate,down,norm1,norm2}` and `heads.NAME`. Without a config, sizes follow from the shapes.
The largest difference of each head's output between torch in float32 and the exported model is printed, on random
tokens and on the texts of --texts, one per line.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from metrist.models.loading import load_text_encoder
from metrist.models.numpy_inference.export import export_text_encoder
from metrist.models.numpy_inference.storage import read_tokenizer
from metrist.models.text_encoder import TextEncoder

State = dict[str, torch.Tensor]
#: Names of the special tokens in BERT's and XLM-R's vocabularies.
BEGIN, END = ("[CLS]", "<s>"), ("[SEP]", "</s>")


def main() -> None:
    arguments = parse_arguments()
    state, sizes = read_state(arguments.state)
    config = make_config(state, sizes, arguments.tokenizer, arguments.max_tokens)
    # Heads of a training that this model does not ship are left out.
    dropped = tuple(f"heads.{name}." for name in arguments.drop_heads)
    arrays = {name: array.numpy() for name, array in state.items() if not name.startswith(dropped or ("?",))}
    export_text_encoder(
        arrays,
        config,
        arguments.tokenizer,
        arguments.out,
        bits=arguments.bits,
        group=arguments.group,
        word_bits=arguments.word_bits,
    )
    megabytes = sum(path.stat().st_size for path in arguments.out.iterdir()) / 1e6
    encoder = load_text_encoder(str(arguments.out))
    print(f"{arguments.out}: {megabytes:.1f} MB, heads {', '.join(encoder.heads) or 'none'}")
    report_differences(encoder, state, config, arguments.texts)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("state", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--bits", type=int, default=7)
    parser.add_argument("--word-bits", type=int, default=6)
    parser.add_argument("--group", type=int, default=64)
    parser.add_argument("--max-tokens", type=int)
    parser.add_argument("--drop-heads", nargs="*", default=[])
    parser.add_argument("--texts", type=Path)
    return parser.parse_args()


def read_state(path: Path) -> tuple[State, dict[str, Any]]:
    stored = torch.load(path, map_location="cpu", weights_only=True)
    state, sizes = (stored["state"], stored.get("config", {})) if "state" in stored else (stored, {})
    return {name: array.float() for name, array in state.items()}, sizes


def make_config(state: State, sizes: dict[str, Any], tokenizer: Path, max_tokens: int | None) -> dict[str, Any]:
    """Return the configuration of the exported model; what the sizes lack follows from the arrays."""
    kind = sizes.get("kind") or ("bert" if "places.weight" in state else "nomic")
    positions = len(state["places.weight"]) if kind == "bert" else sizes.get("positions", 2048)
    vocabulary = read_tokenizer(tokenizer.parent)
    return {
        "kind": kind,
        "hidden": state["words.weight"].shape[1],
        "inner": state["blocks.0.up.weight"].shape[0],
        "attention_heads": sizes.get("heads", 12),
        "layers": 1 + max(int(name.split(".")[1]) for name in state if name.startswith("blocks.")),
        "positions": positions,
        "max_tokens": max_tokens or positions,
        "epsilon": 1e-12,
        "begin_token": find_token(vocabulary, BEGIN),
        "end_token": find_token(vocabulary, END),
    }


def find_token(vocabulary: Any, names: tuple[str, ...]) -> int:
    numbers = [vocabulary.token_to_id(name) for name in names]
    return next(number for number in numbers if number is not None)


# ---- Comparison with torch


def report_differences(encoder: TextEncoder, state: State, config: dict[str, Any], texts: Path | None) -> None:
    rng = np.random.default_rng(0)
    words = state["words.weight"].shape[0]
    sequences = [
        encoder.join(*(rng.integers(words // 20, words, size).astype(np.int32) for size in (length, length)))
        for length in (8, 40, (config["max_tokens"] - 3) // 2)
    ]
    if texts is not None:
        for line in texts.read_text(encoding="utf-8").splitlines():
            sequences.append(encoder.join(encoder.encode([line])[0].ids[: config["max_tokens"] - 2]))
    for head in encoder.heads:
        scored = encoder.score_tokens(head, sequences)
        exact = [score_with_torch(state, config, head, *sequence) for sequence in sequences]
        tokens = max(float(np.abs(a - b).max()) for a, b in zip(scored, exact, strict=True))
        means = max(float(np.abs(a.mean(0) - b.mean(0)).max()) for a, b in zip(scored, exact, strict=True))
        spread = float(np.concatenate(exact).std())
        print(
            f"{head}: largest difference from torch {tokens:.4f} of a token, {means:.4f} of a mean over the first part "
            f"(standard deviation over tokens {spread:.4f})"
        )


@torch.inference_mode()
def score_with_torch(
    state: State, config: dict[str, Any], head: str, ids: np.ndarray[Any, Any], first: int
) -> np.ndarray[Any, Any]:
    """Return the head's outputs on the tokens of the first part, by a plain float32 forward pass."""
    tokens = torch.from_numpy(ids.astype(np.int64))
    width, bert = config["hidden"], config["kind"] == "bert"
    kinds = (torch.arange(len(tokens)) >= first).long() if bert else torch.zeros_like(tokens)
    states = state["words.weight"][tokens] + state["types.weight"][kinds]
    if bert:
        states = states + state["places.weight"][: len(tokens)]
    states = normalize(states, state, "norm", config)
    for number in range(config["layers"]):
        name = f"blocks.{number}."
        joined = apply(states, state, f"{name}qkv").view(len(tokens), 3, config["attention_heads"], -1)
        query, key, value = joined.permute(1, 2, 0, 3)
        if not bert:
            query, key = rotate(query), rotate(key)
        weights = (query @ key.mT / math.sqrt(query.shape[-1])).softmax(-1)
        mixed = (weights @ value).transpose(0, 1).reshape(-1, width)
        states = normalize(states + apply(mixed, state, f"{name}out"), state, f"{name}norm1", config)
        inner = apply(states, state, f"{name}up")
        inner = functional.gelu(inner) if bert else inner * functional.silu(apply(states, state, f"{name}gate"))
        states = normalize(states + apply(inner, state, f"{name}down"), state, f"{name}norm2", config)
    return apply(states[:first], state, f"heads.{head}").numpy()


def apply(rows: torch.Tensor, state: State, name: str) -> torch.Tensor:
    return functional.linear(rows, state[f"{name}.weight"], state.get(f"{name}.bias"))


def normalize(rows: torch.Tensor, state: State, name: str, config: dict[str, Any]) -> torch.Tensor:
    weight, bias = state[f"{name}.weight"], state[f"{name}.bias"]
    return functional.layer_norm(rows, (config["hidden"],), weight, bias, config["epsilon"])


def rotate(vectors: torch.Tensor) -> torch.Tensor:
    length, width = vectors.shape[-2:]
    speeds = 1000.0 ** (-torch.arange(0, width, 2).float() / width)
    angles = torch.arange(length).float()[:, None] * speeds
    first, second = vectors.chunk(2, -1)
    cosine, sine = angles.cos(), angles.sin()
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1)


if __name__ == "__main__":
    main()
