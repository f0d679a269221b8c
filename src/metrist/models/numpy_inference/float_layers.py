"""The layers of an encoder in float32: the operations of `metrist.kernels` without rounding to integers.

Preference models that are exported from transformers are computed with them: their weights have 8 bits or are floats,
and the integer kernels take 7. On some processors the number of rows of a product changes the order of its sums, so a
text's numbers may differ in their last digits with the rest of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, pairwise

import numpy as np

from metrist.errors import ModelError
from metrist.kernels.layers import PackedLinear, Places, Singles
from metrist.kernels.reference.encoder import ERF, add_and_normalize

#: Numbers that an activation processes at a time: they and two copies fit into a core's cache.
_ACTIVATION_CHUNK = 1 << 16


class FloatLayers:
    """The operations of a network with the activation of that name."""

    def __init__(self, activation: str) -> None:
        known = {"gelu": gelu, "gelu_new": _gelu_by_tanh, "gelu_pytorch_tanh": _gelu_by_tanh, "relu": _relu}
        if activation not in known:
            raise ModelError(f"models without torch support the activations {', '.join(known)}, got {activation!r}")
        self._activate: Callable[[Singles], None] = known[activation]

    def apply_linear(self, linear: PackedLinear, rows: Singles, *, gelu: bool = False) -> Singles:
        """Apply a layer of `pack_linear`; `gelu` says whether the activation follows."""
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
        for first, count, length in _group_runs([end - start for start, end in pairwise(starts.tolist())]):
            rows = slice(first, first + count * length)
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


def pack_linear(matrices: Sequence[Singles], biases: Sequence[Singles], *, queries: int | None = None) -> PackedLinear:
    """Join layers with the same input. With `queries`, the first one gives queries of heads of that width, whose
    products with keys are scaled here once."""
    scale = np.float32(1 if queries is None else queries**-0.5)
    joined = np.concatenate([matrices[0] * scale, *matrices[1:]])
    weights = np.ascontiguousarray(joined.T)
    bias = np.concatenate([biases[0] * scale, *biases[1:]])
    inputs, outputs = weights.shape
    return PackedLinear(weights, np.empty(0, np.float32), bias, inputs, outputs, inputs)


def _group_runs(lengths: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield (first row, number of texts, length) of each run of texts of equal length."""
    first = 0
    for length, run in groupby(lengths):
        count = len(list(run))
        yield first, count, length
        first += count * length


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
