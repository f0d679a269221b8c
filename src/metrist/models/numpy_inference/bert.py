"""BERT in numpy: the vector of a text, from the encoder's last layer. float32 throughout.

Texts lie one behind the other as rows of one matrix, so that the large products are few and large whatever the texts'
lengths, and nothing is padded. Only attention goes by length: texts of one length meet in one call. How many rows a
product has decides, on some processors, in which order it adds up: a text's vector may differ in its last digits by
what lies beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrist.errors import ModelError
from metrist.models.numpy_inference.quantization import Floats

Ids = NDArray[np.int32]
Activation = Callable[[Floats], None]

#: What earlier versions of transformers wrote beside a model's weights: 0, 1, 2, ...
_BESIDE = ("embeddings.position_ids",)
#: Numbers that a function goes over at a time, step after step: they and two copies stay in a core's own cache.
_PIECE = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes of a BERT, under the names that its own configuration uses."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int
    layer_norm_eps: float
    hidden_act: str

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Sizes:
        """The sizes in a configuration; a missing one is a KeyError that names it, a wrong one a ValueError."""
        sizes = cls(**{name: config[name] for name in cls.__dataclass_fields__})
        for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings"):
            # A bool is an int to Python.
            if type(config[name]) is not int or config[name] < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {config[name]!r}")
        if sizes.hidden_size % sizes.num_attention_heads:
            raise ValueError(
                f"num_attention_heads must divide hidden_size, got {sizes.num_attention_heads} for {sizes.hidden_size}"
            )
        epsilon = sizes.layer_norm_eps
        if type(epsilon) not in (int, float) or not math.isfinite(epsilon) or epsilon < 0:
            raise ValueError(f"layer_norm_eps must be a number of at least 0, got {epsilon!r}")
        if not isinstance(sizes.hidden_act, str):
            raise ValueError(f"hidden_act must be a name, got {sizes.hidden_act!r}")
        return sizes


@dataclass(frozen=True, slots=True, eq=False)
class _Linear:
    """A product and what is added to it. `matrix` is [in, out] in one piece: so it is read fastest."""

    matrix: Floats
    bias: Floats

    def __call__(self, rows: Floats) -> Floats:
        found: Floats = rows @ self.matrix
        found += self.bias
        return found


@dataclass(frozen=True, slots=True, eq=False)
class _Norm:
    weight: Floats
    bias: Floats
    epsilon: float

    def __call__(self, rows: Floats) -> Floats:
        """Each row with mean 0 and variance 1, weighed: in place."""
        width = np.float32(rows.shape[1])
        rows -= rows.sum(1, keepdims=True) / width
        square = np.einsum("ij,ij->i", rows, rows)[:, None] / width
        rows *= 1 / np.sqrt(square + np.float32(self.epsilon))
        rows *= self.weight
        rows += self.bias
        return rows


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    attention_in: _Linear
    attention_out: _Linear
    attention_norm: _Norm
    feed_in: _Linear
    feed_out: _Linear
    feed_norm: _Norm


class Bert:
    """The model. Texts are given as rows of ids, special tokens included."""

    def __init__(self, arrays: Mapping[str, Floats], sizes: Sizes) -> None:
        """An array that does not fit the sizes, or that nothing uses, is a ValueError, a missing one a KeyError."""
        self.sizes = sizes
        _check(arrays, sizes)
        self._activation = _activation(sizes.hidden_act)
        self._words = arrays["embeddings.word_embeddings.weight"]
        # All tokens are of one kind, so that what is said of it can be said with the position.
        kind = arrays["embeddings.token_type_embeddings.weight"][0]
        self._positions = arrays["embeddings.position_embeddings.weight"] + kind
        self._norm = _norm(arrays, "embeddings.LayerNorm", sizes)
        self._layers = [_layer(arrays, f"encoder.layer.{n}", sizes) for n in range(sizes.num_hidden_layers)]

    def check_tokens(self, where: str, count: int) -> None:
        """That there is a vector for each of so many tokens: ids below their number; else a ValueError."""
        known = len(self._words)
        if count > known:
            raise ValueError(f"{where} goes up to token {count - 1:,}, but the weights have {known:,} tokens")

    def vectors(self, texts: Sequence[Ids], spans: Sequence[tuple[int, int]]) -> Floats:
        """A row for each text: the mean over the tokens of its span, from the first to before the second number. Texts
        of one length that follow each other are computed together."""
        if sum(map(len, texts)) == 1:
            # A product with a single row is computed in another way, which rounds otherwise.
            return self.vectors([*texts, *texts], [*spans, *spans])[:1]
        runs = list(_runs([len(text) for text in texts]))
        states = self._words[np.concatenate(texts)]
        for first, count, length in runs:
            states[first : first + count * length].reshape(count, length, -1)[:] += self._positions[:length]
        self._norm(states)
        for layer in self._layers:
            states += self._attention(layer, states, runs)
            layer.attention_norm(states)
            states += self._feed_forward(layer, states)
            layer.feed_norm(states)
        starts = np.cumsum([0, *map(len, texts)])
        return np.stack([states[at + a : at + b].mean(0) for at, (a, b) in zip(starts[:-1], spans, strict=True)])

    def _attention(self, layer: _Layer, states: Floats, runs: Sequence[tuple[int, int, int]]) -> Floats:
        joined = layer.attention_in(states)
        mixed = np.empty_like(states)
        for first, count, length in runs:
            rows = slice(first, first + count * length)
            heads = joined[rows].reshape(count, length, 3, self.sizes.num_attention_heads, -1)
            query, key, value = heads.transpose(2, 0, 3, 1, 4)
            out = mixed[rows].reshape(count, length, self.sizes.num_attention_heads, -1).transpose(0, 2, 1, 3)
            _mix(query, key, value, out)
        return layer.attention_out(mixed)

    def _feed_forward(self, layer: _Layer, states: Floats) -> Floats:
        inner = layer.feed_in(states)
        flat = inner.reshape(-1)
        for first in range(0, len(flat), _PIECE):
            self._activation(flat[first : first + _PIECE])
        return layer.feed_out(inner)


def _mix(query: Floats, key: Floats, value: Floats, out: Floats) -> None:
    """The values of [text, head, token, width], weighed by the softmax of query times key, into `out`."""
    # [key, query]: numpy is faster down the columns of a table than along its rows.
    weights = key @ query.swapaxes(2, 3)
    weights -= weights.max(2, keepdims=True)
    np.exp(weights, out=weights)
    total = weights.sum(2)[..., None]
    np.matmul(weights.swapaxes(2, 3), value, out=out)
    out /= total


def _runs(lengths: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """(first row, how many texts, their length) of each run of texts of one length."""
    row = at = 0
    while at < len(lengths):
        end = at
        while end < len(lengths) and lengths[end] == lengths[at]:
            end += 1
        yield row, end - at, lengths[at]
        row, at = row + (end - at) * lengths[at], end


def _check(arrays: Mapping[str, Floats], sizes: Sizes) -> None:
    wanted = dict(_shapes(arrays, sizes))
    for name, shape in wanted.items():
        check_shape(name, arrays[name], shape)
    # With fewer layers than were trained, everything would run, and every number would be wrong.
    if unused := [name for name in arrays if name not in wanted and name not in _BESIDE]:
        raise ValueError(f"{unused[0]!r} is in no layer of a model with num_hidden_layers {sizes.num_hidden_layers}")


def check_shape(name: str, array: Floats, wanted: tuple[int | None, ...]) -> None:
    """That an array has this shape, None being any size but 0; else a ValueError."""
    fits = len(wanted) == array.ndim and all(
        size == asked or (asked is None and size) for size, asked in zip(array.shape, wanted, strict=True)
    )
    if not fits:
        shown = ", ".join("any" if size is None else str(size) for size in wanted)
        raise ValueError(f"{name!r} has the shape {array.shape}, but by the sizes in config.json it is ({shown})")


def _shapes(arrays: Mapping[str, Floats], sizes: Sizes) -> Iterator[tuple[str, tuple[int | None, ...]]]:
    """The name and shape of all that a model of these sizes has."""
    width = sizes.hidden_size
    # config.json does not have this one: the first layer says it for all.
    inner = next(iter(arrays["encoder.layer.0.intermediate.dense.weight"].shape), 0)
    yield "embeddings.word_embeddings.weight", (None, width)
    yield "embeddings.token_type_embeddings.weight", (None, width)
    yield "embeddings.position_embeddings.weight", (sizes.max_position_embeddings, width)
    yield from _weight_and_bias("embeddings.LayerNorm", (width,))
    for layer in (f"encoder.layer.{number}" for number in range(sizes.num_hidden_layers)):
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            yield from _weight_and_bias(f"{layer}.attention.{name}", (width, width))
        yield from _weight_and_bias(f"{layer}.attention.output.LayerNorm", (width,))
        yield from _weight_and_bias(f"{layer}.intermediate.dense", (inner, width))
        yield from _weight_and_bias(f"{layer}.output.dense", (width, inner))
        yield from _weight_and_bias(f"{layer}.output.LayerNorm", (width,))


def _weight_and_bias(name: str, weight: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", weight
    yield f"{name}.bias", weight[:1]


def _layer(arrays: Mapping[str, Floats], name: str, sizes: Sizes) -> _Layer:
    parts = [_linear(arrays, f"{name}.attention.self.{one}") for one in ("query", "key", "value")]
    # Queries are scaled once, here, and not in every product with keys.
    scale = np.float32((sizes.hidden_size // sizes.num_attention_heads) ** -0.5)
    parts[0] = _Linear(parts[0].matrix * scale, parts[0].bias * scale)
    return _Layer(
        attention_in=_Linear(
            np.concatenate([one.matrix for one in parts], 1), np.concatenate([one.bias for one in parts])
        ),
        attention_out=_linear(arrays, f"{name}.attention.output.dense"),
        attention_norm=_norm(arrays, f"{name}.attention.output.LayerNorm", sizes),
        feed_in=_linear(arrays, f"{name}.intermediate.dense"),
        feed_out=_linear(arrays, f"{name}.output.dense"),
        feed_norm=_norm(arrays, f"{name}.output.LayerNorm", sizes),
    )


def _linear(arrays: Mapping[str, Floats], name: str) -> _Linear:
    return _Linear(np.ascontiguousarray(arrays[f"{name}.weight"].T), arrays[f"{name}.bias"])


def _norm(arrays: Mapping[str, Floats], name: str, sizes: Sizes) -> _Norm:
    return _Norm(arrays[f"{name}.weight"], arrays[f"{name}.bias"], sizes.layer_norm_eps)


def _activation(name: str) -> Activation:
    known = {"gelu": _gelu, "gelu_new": _gelu_by_tanh, "gelu_pytorch_tanh": _gelu_by_tanh, "relu": _relu}
    if name not in known:
        raise ModelError(f"the form without torch has the activations {', '.join(known)}, got hidden_act {name!r}")
    return known[name]


def _relu(rows: Floats) -> None:
    np.maximum(rows, 0, out=rows)


#: erf(x / sqrt(2)) = tanh(x p(x^2)), p found by least squares weighed anew until the largest error of the GELU was
#: least (6.6e-8): p's coefficients, the highest power first. numpy has no erf, and its tanh is faster than its exp.
_ERF = tuple(
    np.float32(c)
    for c in (
        1.81399552e-09,
        -1.33786376e-07,
        3.97412510e-06,
        -5.52738142e-05,
        -3.30251236e-05,
        3.63341467e-02,
        7.97884270e-01,
    )
)


def _gelu(rows: Floats) -> None:
    """x times the share of a normal distribution under x, in place."""
    with np.errstate(over="ignore"):  # tanh is 1 long before.
        square = rows * rows
        inner = square * _ERF[0]
        for c in _ERF[1:-1]:
            inner += c
            inner *= square
        inner += _ERF[-1]
        inner *= rows
    _halved(rows, inner)


def _gelu_by_tanh(rows: Floats) -> None:
    """The approximation that some models were trained with, in place."""
    with np.errstate(over="ignore"):
        inner = rows * rows
        inner *= np.float32(0.044715 * np.sqrt(2 / np.pi))
        inner += np.float32(np.sqrt(2 / np.pi))
        inner *= rows
    _halved(rows, inner)


def _halved(rows: Floats, inner: Floats) -> None:
    """rows (1 + tanh(inner)) / 2, in place."""
    np.tanh(inner, out=inner)
    rows *= np.float32(0.5)
    inner *= rows
    rows += inner
