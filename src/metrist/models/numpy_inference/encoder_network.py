"""The network of a text encoder: its sizes, its arrays, and the states of tokens after its layers.

Most models are computed by the integer kernels of `metrist.kernels`. A BERT that was exported from transformers with a
reward head has the arrays of transformers, and is computed in float32 by `FloatLayers`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from metrist import kernels, threads
from metrist.errors import ModelError, format_count
from metrist.kernels import PackedLinear
from metrist.kernels.columns import Places
from metrist.kernels.layers import LARGEST, UNIT, WIDEST_HEAD, Singles
from metrist.kernels.reference.encoder import ERF, add_and_normalize
from metrist.models.numpy_inference.storage import Floats, Quantized

Ids = NDArray[np.int32]
#: The tokens of an input, special ones included, and how many of them are its first part: `[CLS] output [SEP]`.
TokenSequence = tuple[Ids, int]
#: The matrix and the bias of a linear head.
Head = tuple[NDArray[np.float64], NDArray[np.float64]]

#: What precedes a head's name in the names of its arrays.
HEAD = "heads."
#: The only head of a BERT that was exported from transformers, and what precedes the names of its arrays.
PREFERENCE, REWARD_HEAD = "preference", "head."
#: Of nomic-embed-text: the wavelength of the slowest rotation, in positions and turns of 2 pi.
_ROTARY_BASE = 1000.0


_Count = Annotated[int, msgspec.Meta(ge=1)]
_TokenId = Annotated[int, msgspec.Meta(ge=0)]
_Epsilon = Annotated[float, msgspec.Meta(ge=0, le=sys.float_info.max)]


@dataclass(frozen=True, slots=True, kw_only=True)
class BertSizes:
    """The architecture of a BERT that was exported from transformers, under its names in config.json."""

    hidden_size: _Count
    num_hidden_layers: _Count
    num_attention_heads: _Count
    max_position_embeddings: _Count
    layer_norm_eps: _Epsilon
    hidden_act: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderSizes:
    """The architecture of a text encoder, named as in config.json."""

    #: "bert": learned positions, GELU, biases. "nomic": rotary positions, a gate with SiLU, no biases.
    kind: Literal["bert", "nomic"]
    hidden: _Count
    inner: _Count
    attention_heads: _Count
    layers: _Count
    positions: _Count
    #: The most tokens of an input, special ones included.
    max_tokens: Annotated[int, msgspec.Meta(ge=3)]
    epsilon: _Epsilon
    #: Special tokens: [CLS] and [SEP] of BERT.
    begin_token: _TokenId
    end_token: _TokenId

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> EncoderSizes:
        """Read the sizes from config.json; raise ValueError for a wrong or missing one."""
        sizes = convert_sizes(config, cls)
        if sizes.hidden % (UNIT * sizes.attention_heads) or sizes.inner % UNIT:
            raise ValueError(
                f"the width of an attention head and inner must be multiples of {UNIT}, got hidden {sizes.hidden} "
                f"in {sizes.attention_heads} heads and inner {sizes.inner}"
            )
        if sizes.hidden // sizes.attention_heads > WIDEST_HEAD:
            raise ValueError(
                f"an attention head must be at most {WIDEST_HEAD} wide, got hidden {sizes.hidden} in "
                f"{format_count(sizes.attention_heads, 'head')}"
            )
        if sizes.max_tokens > sizes.positions:
            raise ValueError(f"max_tokens must be from 3 to positions ({sizes.positions}), got {sizes.max_tokens}")
        return sizes

    @classmethod
    def from_bert(cls, bert: BertSizes, arrays: Mapping[str, Floats | Quantized]) -> EncoderSizes:
        if bert.hidden_size % bert.num_attention_heads:
            raise ValueError(
                f"num_attention_heads must divide hidden_size, got {bert.num_attention_heads} for {bert.hidden_size}"
            )
        return cls(
            kind="bert",
            hidden=bert.hidden_size,
            # Not in config.json: the first layer decides.
            inner=next(iter(arrays["encoder.layer.0.intermediate.dense.weight"].shape), 0),
            attention_heads=bert.num_attention_heads,
            layers=bert.num_hidden_layers,
            positions=bert.max_position_embeddings,
            max_tokens=bert.max_position_embeddings,
            epsilon=bert.layer_norm_eps,
            # reward.json has the special tokens.
            begin_token=0,
            end_token=0,
        )


_Sizes = TypeVar("_Sizes")


def convert_sizes(config: Mapping[str, Any], kind: type[_Sizes]) -> _Sizes:
    try:
        return msgspec.convert(config, kind)
    except msgspec.ValidationError as fault:
        raise ValueError(str(fault)) from None


class _Layer(NamedTuple):
    attention_in: PackedLinear
    attention_out: PackedLinear
    attention_norm: tuple[Floats, Floats]
    feed_in: PackedLinear
    feed_out: PackedLinear
    feed_norm: tuple[Floats, Floats]


class _Names(NamedTuple):
    words: str
    types: str
    places: str
    norm: str
    block: str
    qkv: tuple[str, ...]
    out: str
    norm1: str
    up: str
    down: str
    norm2: str


_OWN_NAMES = _Names("words", "types", "places", "norm", "blocks.{}", ("qkv",), "out", "norm1", "up", "down", "norm2")
_BERT_NAMES = _Names(
    words="embeddings.word_embeddings",
    types="embeddings.token_type_embeddings",
    places="embeddings.position_embeddings",
    norm="embeddings.LayerNorm",
    block="encoder.layer.{}",
    qkv=("attention.self.query", "attention.self.key", "attention.self.value"),
    out="attention.output.dense",
    norm1="attention.output.LayerNorm",
    up="intermediate.dense",
    down="output.dense",
    norm2="output.LayerNorm",
)
#: Arrays that earlier versions of transformers stored with the weights: 0, 1, 2, ...
_IGNORED = ("embeddings.position_ids",)


class Network:
    def __init__(
        self, arrays: Mapping[str, Floats | Quantized], sizes: EncoderSizes, activation: str | None = None
    ) -> None:
        """With an activation, the model is an exported BERT in float32. Raise ValueError for an array that does not fit
        the sizes or is not used, KeyError for a missing one."""
        self._sizes = sizes
        width = sizes.hidden
        # The module of the integer kernels, or an object with the same functions.
        self._operations: Any = kernels if activation is None else FloatLayers(activation)
        names = _OWN_NAMES if activation is None else _BERT_NAMES
        reader = _ArrayReader(arrays, width) if activation is None else _FloatArrayReader(arrays, width)
        self._words = reader.take(f"{names.words}.weight", (None, width))
        #: The number of tokens with a vector.
        self.words = int(self._words.shape[0])
        self._types = reader.floats(f"{names.types}.weight", (None, width))
        if sizes.kind == "bert":
            self._places = reader.floats(f"{names.places}.weight", (sizes.positions, width))
            if activation is None:
                check_shape("types.weight", self._types, (2, width))
            else:
                # All tokens have type 0, so its embedding is added to those of the positions.
                self._places, self._types = self._places + self._types[0], np.zeros((2, width), np.float32)
        self._norm = reader.norm(names.norm)
        self._layers: list[_Layer] = threads.parallel_map(
            lambda number: _read_layer(reader, f"{names.block.format(number)}.", names, sizes), range(sizes.layers)
        )
        # With fewer layers than were trained, the model would run and all its numbers would be wrong.
        heads = HEAD if activation is None else REWARD_HEAD
        others = arrays.keys() - reader.names - {*_IGNORED}
        if unused := sorted(name for name in others if not name.startswith(heads)):
            raise ValueError(f"{unused[0]!r} does not belong to a {sizes.kind!r} encoder of {sizes.layers} layers")
        self._turns: Floats | None = None
        if sizes.kind == "nomic":
            # The cosines and sines by which each position turns a head's vector, [positions, width].
            head = width // sizes.attention_heads
            angles = np.arange(sizes.max_tokens)[:, None] * _ROTARY_BASE ** (-np.arange(0, head, 2) / head)
            self._turns = np.concatenate((np.cos(angles), np.sin(angles)), 1).astype(np.float32)

    def encode(
        self, sequences: Sequence[TokenSequence], layer: int | None = None, rows_read: NDArray[np.intp] | None = None
    ) -> Floats:
        """Return the states after a layer (None: the last one), one row per token of all sequences. If only some rows
        are read, the others are not computed to the end."""
        sizes, lengths = self._sizes, [len(ids) for ids, _ in sequences]
        starts = np.cumsum([0, *lengths], dtype=np.int64)
        tokens = np.concatenate([np.asarray(ids, np.int32) for ids, _ in sequences])
        if isinstance(self._words, Quantized):
            # Unpacked only where it is used: most of the table never is.
            distinct, places = np.unique(tokens, return_inverse=True)
            states = self._words.take_rows(distinct)[places]
        else:
            states = self._words[tokens]
        for start, length, (_, first) in zip(starts[:-1].tolist(), lengths, sequences, strict=True):
            rows = states[start : start + length]
            if sizes.kind == "bert":
                rows += self._places[:length]
                rows[:first] += self._types[0]
                rows[first:] += self._types[1]
            else:
                rows += self._types[0]
        self._normalize(states, None, self._norm)
        blocks = self._layers[:layer]
        for number, block in enumerate(blocks):
            joined = self._operations.apply_linear(block.attention_in, states)
            mixed = self._operations.attend(joined, starts, sizes.attention_heads, self._turns)
            if rows_read is not None and number == len(blocks) - 1:
                # No row of the last layer depends on another one from here on.
                states[rows_read] = self._feed(block, states[rows_read], mixed[rows_read])
            else:
                states = self._feed(block, states, mixed)
        return states

    def _feed(self, block: _Layer, states: Floats, mixed: Floats) -> Floats:
        """Return the states after what follows the attention of a layer; `states` is overwritten."""
        apply_linear = self._operations.apply_linear
        self._normalize(states, apply_linear(block.attention_out, mixed), block.attention_norm)
        if self._sizes.kind == "bert":
            inner = apply_linear(block.feed_in, states, gelu=True)
        else:
            inner = kernels.gate_rows(apply_linear(block.feed_in, states))
        self._normalize(states, apply_linear(block.feed_out, inner), block.feed_norm)
        return states

    def _normalize(self, states: Floats, more: Floats | None, norm: tuple[Floats, Floats]) -> None:
        self._operations.add_and_normalize(states, more, *norm, self._sizes.epsilon)


class _ArrayReader:
    """Takes arrays of the expected shapes from a file, and notes their names."""

    def __init__(self, arrays: Mapping[str, Floats | Quantized], width: int) -> None:
        self._arrays, self._width = arrays, width
        self.names: set[str] = set()

    def take(self, name: str, shape: tuple[int | None, ...] | None = None) -> Floats | Quantized:
        self.names.add(name)
        array = self._arrays[name]
        if shape is not None:
            check_shape(name, array, shape)
        return array

    def floats(self, name: str, shape: tuple[int | None, ...]) -> Floats:
        array = self.take(name, shape)
        return array.dequantize() if isinstance(array, Quantized) else np.ascontiguousarray(array)

    def norm(self, name: str) -> tuple[Floats, Floats]:
        return self.floats(f"{name}.weight", (self._width,)), self.floats(f"{name}.bias", (self._width,))

    def linear(
        self, names: Sequence[str], outputs: int, inputs: int, *, bias: bool, queries: int | None = None
    ) -> PackedLinear:
        """Read linear layers with the same input as one. `queries` is the width of an attention head if queries are
        among the outputs; the integer kernels scale them later."""
        del queries
        shape = (outputs // len(names), inputs)
        quantized: list[Quantized] = []
        for name in (f"{name}.weight" for name in names):
            matrix = self.take(name)
            if not isinstance(matrix, Quantized):
                raise ValueError(f"{name!r} has numbers of {matrix.dtype}, expected integers with scales")
            if matrix.shape != shape:
                raise ValueError(f"{name!r} has the shape {matrix.shape}, but config.json implies {shape}")
            if (block := inputs // matrix.scale.shape[1]) % UNIT:
                raise ValueError(f"{name!r} has a scale for every {block} columns, expected a multiple of {UNIT}")
            quantized.append(matrix)
        integers = np.concatenate([matrix.integers() for matrix in quantized])
        if integers.min() < -LARGEST or integers.max() > LARGEST:
            raise ValueError(f"'{names[0]}.weight' has integers beyond {LARGEST}, expected at most 7 bits")
        biases = [self.floats(f"{name}.bias", shape[:1]) for name in names] if bias else []
        return kernels.pack_linear(
            integers,
            np.concatenate([matrix.steps for matrix in quantized]),
            np.concatenate(biases) if biases else None,
        )


class _FloatArrayReader(_ArrayReader):
    """Reads linear layers as float32, whatever they are stored in."""

    def linear(
        self, names: Sequence[str], outputs: int, inputs: int, *, bias: bool, queries: int | None = None
    ) -> PackedLinear:
        assert bias
        own = outputs // len(names)
        matrices = [self.floats(f"{name}.weight", (own, inputs)) for name in names]
        biases = [self.floats(f"{name}.bias", (own,)) for name in names]
        # The products of queries with keys are scaled here once.
        scale = np.float32(1 if queries is None else queries**-0.5)
        weights = np.ascontiguousarray(np.concatenate([matrices[0] * scale, *matrices[1:]]).T)
        joined = np.concatenate([biases[0] * scale, *biases[1:]])
        return PackedLinear(weights, np.empty(0, np.float32), joined, inputs, outputs, inputs)


def check_shape(name: str, array: Floats | Quantized, expected: tuple[int | None, ...]) -> None:
    """Raise ValueError unless the array has this shape; None means any size but 0."""
    fits = len(expected) == len(array.shape) and all(
        size == required or (required is None and size) for size, required in zip(array.shape, expected, strict=True)
    )
    if not fits:
        shown = ", ".join("any" if size is None else str(size) for size in expected)
        raise ValueError(f"{name!r} has the shape {array.shape}, but config.json implies ({shown})")


def _read_layer(reader: _ArrayReader, name: str, names: _Names, sizes: EncoderSizes) -> _Layer:
    width, inner, bert = sizes.hidden, sizes.inner, sizes.kind == "bert"
    feed = [f"{name}{names.up}"] if bert else [f"{name}up", f"{name}gate"]
    queries = width // sizes.attention_heads
    return _Layer(
        attention_in=reader.linear([name + part for part in names.qkv], 3 * width, width, bias=bert, queries=queries),
        attention_out=reader.linear([name + names.out], width, width, bias=bert),
        attention_norm=reader.norm(name + names.norm1),
        feed_in=reader.linear(feed, inner * len(feed), width, bias=bert),
        feed_out=reader.linear([name + names.down], width, inner, bias=bert),
        feed_norm=reader.norm(name + names.norm2),
    )


def read_heads(arrays: Mapping[str, Floats | Quantized], width: int) -> dict[str, Head]:
    reader = _ArrayReader(arrays, width)
    heads = {}
    names = {name.rpartition(".")[0] for name in arrays if name.startswith(HEAD) and name.endswith(".weight")}
    for name in sorted(names):
        matrix = reader.floats(f"{name}.weight", (None, width))
        bias = reader.floats(f"{name}.bias", (len(matrix),))
        heads[name.removeprefix(HEAD)] = matrix.astype(np.float64), bias.astype(np.float64)
    if unused := sorted(name for name in arrays if name.startswith(HEAD) and name not in reader.names):
        raise ValueError(f"{unused[0]!r} is not the weight or the bias of a head")
    return heads


def read_reward_head(arrays: Mapping[str, Floats | Quantized], width: int) -> dict[str, Head]:
    reader = _ArrayReader(arrays, width)
    matrix, bias = reader.floats(f"{REWARD_HEAD}weight", (1, width)), reader.floats(f"{REWARD_HEAD}bias", (1,))
    return {PREFERENCE: (matrix.astype(np.float64), bias.astype(np.float64))}


# ---- Layers in float32: the operations of `metrist.kernels` without rounding to integers
#
# Preference models that are exported from transformers are computed with them: their weights have 8 bits or are floats,
# and the integer kernels take 7. On some processors the number of rows of a product changes the order of its sums, so a
# text's numbers may differ in their last digits with the rest of the batch.

#: Numbers that an activation processes at a time: they and two copies fit into a core's cache.
_ACTIVATION_CHUNK = 1 << 16


class FloatLayers:
    def __init__(self, activation: str) -> None:
        known = {"gelu": gelu, "gelu_new": _gelu_by_tanh, "gelu_pytorch_tanh": _gelu_by_tanh, "relu": _relu}
        if activation not in known:
            raise ModelError(
                f"models without torch support the activations {', '.join(known)}, got {activation!r}",
                code="unsupported",
            )
        self._activate: Callable[[Singles], None] = known[activation]

    def apply_linear(self, linear: PackedLinear, rows: Singles, *, gelu: bool = False) -> Singles:
        """Apply a layer of `_FloatArrayReader`; `gelu` says whether the activation follows."""
        # BLAS computes a product with a single row differently, with other rounding.
        result: Singles = (np.repeat(rows, 2, 0) @ linear.weights)[:1] if len(rows) == 1 else rows @ linear.weights
        if linear.bias is not None:
            result += linear.bias
        if gelu:
            flat = result.reshape(-1)
            for first in range(0, len(flat), _ACTIVATION_CHUNK):
                self._activate(flat[first : first + _ACTIVATION_CHUNK])
        return result

    def attend(self, joined: Singles, starts: Places, heads: int, turns: Singles | None = None) -> Singles:
        """Attention within each text. Consecutive texts of equal length are computed together."""
        assert turns is None, "no model in float32 has rotary positions"
        mixed = np.empty((len(joined), joined.shape[1] // 3), np.float32)
        first = 0
        for length, run in groupby(end - start for start, end in pairwise(starts.tolist())):
            count = len(list(run))
            rows = slice(first, first + count * length)
            first = rows.stop
            query, key, value = joined[rows].reshape(count, length, 3, heads, -1).transpose(2, 0, 3, 1, 4)
            out = mixed[rows].reshape(count, length, heads, -1).transpose(0, 2, 1, 3)
            # [text, head, key, query]: numpy reduces columns faster than rows.
            weights = key @ query.swapaxes(2, 3)
            weights -= weights.max(2, keepdims=True)
            np.exp(weights, out=weights)
            total = weights.sum(2)[..., None]
            np.matmul(weights.swapaxes(2, 3), value, out=out)
            out /= total
        return mixed

    add_and_normalize = staticmethod(add_and_normalize)


def _relu(rows: Singles) -> None:
    np.maximum(rows, 0, out=rows)


_ERF = tuple(np.float32(coefficient) for coefficient in ERF)


def gelu(rows: Singles) -> None:
    """x times the normal distribution function of x, in place."""
    with np.errstate(over="ignore"):  # tanh is 1 long before that.
        square = rows * rows
        inner = square * _ERF[0]
        for coefficient in _ERF[1:-1]:
            inner += coefficient
            inner *= square
        inner += _ERF[-1]
        inner *= rows
    _finish_gelu(rows, inner)


def _gelu_by_tanh(rows: Singles) -> None:
    """The tanh approximation that some models were trained with, in place."""
    with np.errstate(over="ignore"):
        inner = rows * rows
        inner *= np.float32(0.044715 * np.sqrt(2 / np.pi))
        inner += np.float32(np.sqrt(2 / np.pi))
        inner *= rows
    _finish_gelu(rows, inner)


def _finish_gelu(rows: Singles, inner: Singles) -> None:
    """Compute rows (1 + tanh(inner)) / 2 in place."""
    np.tanh(inner, out=inner)
    rows *= np.float32(0.5)
    inner *= rows
    rows += inner
