"""The layers of a text encoder in numpy. Numbers are rounded as in the compiled kernels, so both agree but for the
order of sums: on a boundary between two integers that order can change a rounding, and a model's result by about 1e-3.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from metrist.kernels.columns import Places
from metrist.kernels.layers import Integers, PackedLinear, Singles

#: erf(x / sqrt(2)) = tanh(x p(x^2)): p's coefficients, the highest power first, from iteratively reweighted least
#: squares that minimize the largest error of the GELU (6.6e-8). numpy has no erf, and its tanh is faster than its exp.
ERF = (
    1.81399552e-09,
    -1.33786376e-07,
    3.97412510e-06,
    -5.52738142e-05,
    -3.30251236e-05,
    3.63341467e-02,
    7.97884270e-01,
)

#: Attention's weights are integers up to this one, and scales of values have these ratios: see native/encoder_layers.h.
_LARGEST_WEIGHT = np.float32(9279.457)
_RELATIVE_SCALES: Singles = np.exp2(np.arange(17) / -4).astype(np.float32)


def pack_linear(integers: Integers, scales: Singles, bias: Singles | None, *, fine: bool = False) -> PackedLinear:
    """Arrange a linear layer for `apply_linear`. The weights are integers from -63 to 63, if `fine` to 127, [outputs,
    inputs], times a scale for each block of inputs, [outputs, blocks]. Outputs and blocks are multiples of 16."""
    del fine
    outputs, inputs = integers.shape
    blocks = scales.shape[1]
    matrix = integers.reshape(outputs, blocks, -1).astype(np.float32) * scales[:, :, None]
    return PackedLinear(matrix.reshape(outputs, inputs).T, scales, bias, inputs, outputs, inputs // blocks)


def apply_linear(linear: PackedLinear, rows: Singles, *, gelu: bool = False, fine: bool = False) -> Singles:
    """Apply a linear layer, and then GELU if asked to. Each block of a row is first rounded to 8 bits with a scale of
    its own, so a row's result does not depend on other rows. If `fine`, it is not rounded, or to 16 bits where products
    of integers are faster: the error of a number is at most a part in 64,516 of the largest one of its block."""
    if not fine:
        integers, scales = _to_integers(rows.reshape(len(rows), -1, linear.block))
        rows = (integers * scales).reshape(rows.shape)
    result: Singles = rows @ linear.weights
    if linear.bias is not None:
        result += linear.bias
    if not gelu:
        return result
    square = np.minimum(result * result, np.float32(64))
    inner = np.full_like(result, ERF[0])
    for coefficient in ERF[1:]:
        inner *= square
        inner += np.float32(coefficient)
    inner *= np.float32(-2) * result
    return result / (1 + _exponential(inner))


def _exponential(rows: Singles) -> Singles:
    result: Singles = np.exp(np.clip(rows, np.float32(-87), np.float32(88)))
    return result


def attend(joined: Singles, starts: Places, heads: int, turns: Singles | None) -> Singles:
    """Return self-attention within each text; text t is the rows `starts[t]:starts[t + 1]`, and a row is query, key and
    value of all heads. `turns` has the cosines and sines of a rotary encoding, [positions, width of a head]. Each
    query, key and value is rounded to 8 bits with a scale of its own, and weights to 14 bits. A head is at most 256
    wide."""
    width = joined.shape[1] // 3 // heads
    result = np.empty((len(joined), heads * width), np.float32)
    for first, end in pairwise(starts.tolist()):
        if first == end:
            continue
        query, key, value = joined[first:end].reshape(end - first, 3, heads, width).transpose(1, 2, 0, 3)
        if turns is not None:
            query, key = _turn(query, turns[: end - first]), _turn(key, turns[: end - first])
        (query, query_scale), (key, key_scale) = _to_integers(query), _to_integers(key)
        # Integers from -127 to 127, the number of the relative scale of each row, and the largest scale.
        sizes = np.abs(value).max(2)
        largest = sizes.max(1, keepdims=True)
        steps = (_RELATIVE_SCALES[1:] * largest[:, :, None] >= sizes[:, :, None]).sum(2)
        value = np.rint(value * (_invert(largest) / _RELATIVE_SCALES[steps])[:, :, None])
        value_scale = largest[:, :, None] / np.float32(127)
        products = query @ key.swapaxes(1, 2)
        products *= key_scale.swapaxes(1, 2)
        products *= query_scale * np.float32(np.log2(np.e) * width**-0.5)
        products -= np.float32(0.25) * steps[:, None, :]
        products -= products.max(2, keepdims=True)
        weights = np.rint(_LARGEST_WEIGHT * np.exp2(np.maximum(products, np.float32(-16))))
        mixed = weights @ value * (value_scale / (weights @ (1 / _RELATIVE_SCALES[steps])[:, :, None]))
        result[first:end] = mixed.transpose(1, 0, 2).reshape(end - first, -1)
    return result


def attend_finely(
    queries: Singles,
    memory: Singles,
    spans: Places,
    bias: Singles | None,
    heads: int,
    width: int,
    *,
    exact: bool = False,
    exponentiate: Callable[[Singles], tuple[Singles, Singles]] | None = None,
) -> Singles:
    """Return attention in float32, or, unless it is to be exact, with numbers of 16 bits where that is faster. A row of
    `queries` begins with the query of each head, and one of `memory` ends with all keys and all values. Rows
    `first:end` attend to the rows `start:stop` for each (first, end, start, stop) of `spans`, [texts, 4]; no row is in
    two texts. With a bias, [heads, distances], the first are the last of the second, and the one for distance 0 of a
    key from a query is in the middle."""
    del exact
    exponentiate = exponentiate or exponentiate_rows
    hidden = heads * width
    mixed = np.empty((len(queries), hidden), np.float32)
    query, result = (rows.reshape(-1, heads, width).swapaxes(0, 1) for rows in (queries[:, :hidden], mixed))
    keys, values = memory[:, -2 * hidden :].reshape(len(memory), 2, heads, width).transpose(1, 2, 0, 3)
    for first, end, start, stop in spans.tolist():
        own, seen = slice(first, end), slice(start, stop)
        weights = query[:, own] @ keys[:, seen].swapaxes(1, 2)
        if bias is not None:
            # A window per query, the one of the last query first.
            windows = np.lib.stride_tricks.sliding_window_view(bias, stop - start, axis=1)
            at = bias.shape[1] // 2 - (stop - start - 1)
            weights += windows[:, at : at + end - first][:, ::-1]
        _, sums = exponentiate(weights)
        result[:, own] = weights @ values[:, seen] / sums[..., None]
    return mixed


def _to_integers(numbers: Singles) -> tuple[Singles, Singles]:
    """Return integers from -127 to 127, and a scale for each row of them."""
    largest = np.abs(numbers).max(-1, keepdims=True)
    return np.rint(numbers * _invert(largest)), largest / np.float32(127)


def _invert(largest: Singles) -> Singles:
    """127 divided by each number, or 0 if that is so small that it does not matter."""
    return np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > np.float32(1e-30))


def _turn(vectors: Singles, turns: Singles) -> Singles:
    half = vectors.shape[-1] // 2
    first, second = vectors[..., :half], vectors[..., half:]
    cosine, sine = turns[:, :half], turns[:, half:]
    return np.concatenate((first * cosine - second * sine, second * cosine + first * sine), -1)


def add_and_normalize(rows: Singles, more: Singles | None, weight: Singles, bias: Singles, epsilon: float) -> None:
    """Add `more` to the rows and normalize each of them, in place."""
    if more is not None:
        rows += more
    rows -= rows.mean(1, keepdims=True)
    square = np.einsum("ij,ij->i", rows, rows)[:, None] / np.float32(rows.shape[1])
    rows *= 1 / np.sqrt(square + np.float32(epsilon))
    rows *= weight
    rows += bias


def gate_rows(joined: Singles) -> Singles:
    """Return up * silu(gate); a row is `up` followed by `gate`."""
    up, gate = np.split(joined, 2, axis=1)
    result: Singles = up * (gate / (1 + _exponential(-gate)))
    return result


# ---- Layers in float32, of models whose products are numpy's


def gate_by_gelu(joined: Singles) -> Singles:
    """Return gelu(gate) * up, with GELU in the approximation by tanh; a row is `gate` followed by `up`."""
    gate, up = np.split(joined, 2, axis=1)
    result: Singles = gate * gate
    result *= np.float32(0.044715)
    result += 1
    result *= gate
    result *= np.float32(np.sqrt(2 / np.pi))
    np.tanh(result, out=result)
    result += 1
    result *= gate
    result *= np.float32(0.5)
    result *= up
    return result


def exponentiate_rows(rows: Singles) -> tuple[Singles, Singles]:
    """Replace each number of contiguous rows by e**(number - the row's largest); return the largest numbers and the
    sums of the powers."""
    largest: Singles = rows.max(-1)
    rows -= largest[..., None]
    np.exp(rows, out=rows)
    return largest, rows.sum(-1)
