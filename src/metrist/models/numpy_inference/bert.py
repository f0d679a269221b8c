"""BERT in numpy: the vector of a text, from the encoder's last layer. float32 throughout.

The tokens of all texts are rows of one matrix, so the products are few and large and nothing is padded. Only attention
goes by length: consecutive texts of equal length are computed in one call. On some processors the number of rows of a
product changes the order of its sums, so a text's vector may differ in its last digits with the rest of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrist.errors import ModelError
from metrist.kernels.reference.encoder import ERF
from metrist.models.numpy_inference.storage import Floats

Ids = NDArray[np.int32]
Activation = Callable[[Floats], None]

#: Arrays that earlier versions of transformers stored with the weights: 0, 1, 2, ...
_IGNORED = ("embeddings.position_ids",)
#: Numbers that an activation processes at a time: they and two copies fit into a core's cache.
_ACTIVATION_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class BertSizes:
    """The sizes of a BERT, named as in its configuration."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int
    layer_norm_eps: float
    hidden_act: str

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> BertSizes:
        """Read the sizes from a configuration; raise KeyError for a missing one, ValueError for a wrong one."""
        sizes = cls(**{name: config[name] for name in cls.__dataclass_fields__})
        for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings"):
            # type(): a bool is an int.
            if type(config[name]) is not int or config[name] < 1:
                raise ValueError(f"{name} must be an integer of at least 1, got {config[name]!r}")
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
    """A linear layer. `matrix` is [in, out] and contiguous, which is fastest."""

    matrix: Floats
    bias: Floats

    def __call__(self, rows: Floats) -> Floats:
        result: Floats = rows @ self.matrix
        result += self.bias
        return result


@dataclass(frozen=True, slots=True, eq=False)
class _Norm:
    weight: Floats
    bias: Floats
    epsilon: float

    def __call__(self, rows: Floats) -> Floats:
        """Normalize each row in place."""
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
    """The model. Texts are arrays of token ids, special tokens included."""

    def __init__(self, arrays: Mapping[str, Floats], sizes: BertSizes) -> None:
        """Raise ValueError for an array that does not fit the sizes or is not used, KeyError for a missing one."""
        self.sizes = sizes
        _check_arrays(arrays, sizes)
        self._activation = _find_activation(sizes.hidden_act)
        self._words = arrays["embeddings.word_embeddings.weight"]
        # All tokens have type 0, so its embedding is added to those of the positions.
        token_type = arrays["embeddings.token_type_embeddings.weight"][0]
        self._positions = arrays["embeddings.position_embeddings.weight"] + token_type
        self._norm = _make_norm(arrays, "embeddings.LayerNorm", sizes)
        self._layers = [_make_layer(arrays, f"encoder.layer.{n}", sizes) for n in range(sizes.num_hidden_layers)]

    def check_tokens(self, name: str, count: int) -> None:
        """Raise ValueError unless the weights have a vector for each of `count` tokens."""
        known = len(self._words)
        if count > known:
            raise ValueError(f"{name} goes up to token {count - 1:,}, but the weights have {known:,} tokens")

    def vectors(self, texts: Sequence[Ids], spans: Sequence[tuple[int, int]]) -> Floats:
        """Return a row per text: the mean over the tokens of its span (start, end). Consecutive texts of equal length
        are computed together."""
        if sum(map(len, texts)) == 1:
            # BLAS computes a product with a single row differently, with other rounding.
            return self.vectors([*texts, *texts], [*spans, *spans])[:1]
        runs = list(_group_runs([len(text) for text in texts]))
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
            _attend(query, key, value, out)
        return layer.attention_out(mixed)

    def _feed_forward(self, layer: _Layer, states: Floats) -> Floats:
        inner = layer.feed_in(states)
        flat = inner.reshape(-1)
        for first in range(0, len(flat), _ACTIVATION_CHUNK):
            self._activation(flat[first : first + _ACTIVATION_CHUNK])
        return layer.feed_out(inner)


def _attend(query: Floats, key: Floats, value: Floats, out: Floats) -> None:
    """Write attention over [text, head, token, width] to `out`."""
    # [key, query]: numpy reduces columns faster than rows.
    weights = key @ query.swapaxes(2, 3)
    weights -= weights.max(2, keepdims=True)
    np.exp(weights, out=weights)
    total = weights.sum(2)[..., None]
    np.matmul(weights.swapaxes(2, 3), value, out=out)
    out /= total


def _group_runs(lengths: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield (first row, number of texts, length) of each run of texts of equal length."""
    row = at = 0
    while at < len(lengths):
        end = at
        while end < len(lengths) and lengths[end] == lengths[at]:
            end += 1
        yield row, end - at, lengths[at]
        row, at = row + (end - at) * lengths[at], end


def _check_arrays(arrays: Mapping[str, Floats], sizes: BertSizes) -> None:
    expected = dict(_expected_shapes(arrays, sizes))
    for name, shape in expected.items():
        check_shape(name, arrays[name], shape)
    # With fewer layers than were trained, the model would run and all its numbers would be wrong.
    if unused := [name for name in arrays if name not in expected and name not in _IGNORED]:
        raise ValueError(f"{unused[0]!r} does not belong to a model with num_hidden_layers {sizes.num_hidden_layers}")


def check_shape(name: str, array: Floats, expected: tuple[int | None, ...]) -> None:
    """Raise ValueError unless the array has this shape; None means any size but 0."""
    fits = len(expected) == array.ndim and all(
        size == required or (required is None and size) for size, required in zip(array.shape, expected, strict=True)
    )
    if not fits:
        shown = ", ".join("any" if size is None else str(size) for size in expected)
        raise ValueError(f"{name!r} has the shape {array.shape}, but config.json implies ({shown})")


def _expected_shapes(arrays: Mapping[str, Floats], sizes: BertSizes) -> Iterator[tuple[str, tuple[int | None, ...]]]:
    """Yield the name and shape of all arrays of a model."""
    width = sizes.hidden_size
    # Not in config.json: the first layer decides.
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


def _make_layer(arrays: Mapping[str, Floats], name: str, sizes: BertSizes) -> _Layer:
    parts = [_make_linear(arrays, f"{name}.attention.self.{part}") for part in ("query", "key", "value")]
    # Scale the queries here once instead of in every product with keys.
    scale = np.float32((sizes.hidden_size // sizes.num_attention_heads) ** -0.5)
    parts[0] = _Linear(parts[0].matrix * scale, parts[0].bias * scale)
    return _Layer(
        attention_in=_Linear(
            np.concatenate([part.matrix for part in parts], 1), np.concatenate([part.bias for part in parts])
        ),
        attention_out=_make_linear(arrays, f"{name}.attention.output.dense"),
        attention_norm=_make_norm(arrays, f"{name}.attention.output.LayerNorm", sizes),
        feed_in=_make_linear(arrays, f"{name}.intermediate.dense"),
        feed_out=_make_linear(arrays, f"{name}.output.dense"),
        feed_norm=_make_norm(arrays, f"{name}.output.LayerNorm", sizes),
    )


def _make_linear(arrays: Mapping[str, Floats], name: str) -> _Linear:
    return _Linear(np.ascontiguousarray(arrays[f"{name}.weight"].T), arrays[f"{name}.bias"])


def _make_norm(arrays: Mapping[str, Floats], name: str, sizes: BertSizes) -> _Norm:
    return _Norm(arrays[f"{name}.weight"], arrays[f"{name}.bias"], sizes.layer_norm_eps)


def _find_activation(name: str) -> Activation:
    known = {"gelu": _gelu, "gelu_new": _gelu_by_tanh, "gelu_pytorch_tanh": _gelu_by_tanh, "relu": _relu}
    if name not in known:
        raise ModelError(f"models without torch support the activations {', '.join(known)}, got hidden_act {name!r}")
    return known[name]


def _relu(rows: Floats) -> None:
    np.maximum(rows, 0, out=rows)


_ERF = tuple(np.float32(coefficient) for coefficient in ERF)


def _gelu(rows: Floats) -> None:
    """x times the normal distribution function of x, in place."""
    with np.errstate(over="ignore"):  # tanh is 1 long before that.
        square = rows * rows
        inner = square * _ERF[0]
        for c in _ERF[1:-1]:
            inner += c
            inner *= square
        inner += _ERF[-1]
        inner *= rows
    _finish_gelu(rows, inner)


def _gelu_by_tanh(rows: Floats) -> None:
    """The tanh approximation that some models were trained with, in place."""
    with np.errstate(over="ignore"):
        inner = rows * rows
        inner *= np.float32(0.044715 * np.sqrt(2 / np.pi))
        inner += np.float32(np.sqrt(2 / np.pi))
        inner *= rows
    _finish_gelu(rows, inner)


def _finish_gelu(rows: Floats, inner: Floats) -> None:
    """Compute rows (1 + tanh(inner)) / 2 in place."""
    np.tanh(inner, out=inner)
    rows *= np.float32(0.5)
    inner *= rows
    rows += inner
