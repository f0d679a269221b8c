"""The layers of a text encoder in numpy. Rows are rounded as in the compiled kernels, so both agree but for the order
of sums: on a boundary between two integers that order can change a rounding, and a model's result by about 1e-3."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from metrist.kernels.layers import Integers, PackedLinear, Places, Singles

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


def pack_linear(integers: Integers, scales: Singles, bias: Singles | None) -> PackedLinear:
    outputs, inputs = integers.shape
    blocks = scales.shape[1]
    matrix = integers.reshape(outputs, blocks, -1).astype(np.float32) * scales[:, :, None]
    weights = np.ascontiguousarray(matrix.reshape(outputs, inputs).T)
    return PackedLinear(weights, scales, bias, inputs, outputs, inputs // blocks)


def apply_linear(linear: PackedLinear, rows: Singles, *, gelu: bool = False) -> Singles:
    result: Singles = _round_rows(rows, linear.block) @ linear.weights
    if linear.bias is not None:
        result += linear.bias
    return _gelu(result) if gelu else result


def _round_rows(rows: Singles, block: int) -> Singles:
    """Round each block of a row to integers from -127 to 127 times a scale."""
    grouped = rows.reshape(len(rows), -1, block)
    largest = np.abs(grouped).max(2, keepdims=True)
    inverse = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > np.float32(1e-30))
    rounded: Singles = np.rint(grouped * inverse) * (largest / np.float32(127))
    return rounded.reshape(rows.shape)


def _gelu(rows: Singles) -> Singles:
    square = np.minimum(rows * rows, np.float32(64))
    inner = np.full_like(rows, ERF[0])
    for coefficient in ERF[1:]:
        inner *= square
        inner += np.float32(coefficient)
    inner *= np.float32(-2) * rows
    return rows / (1 + _exponential(inner))


def _exponential(rows: Singles) -> Singles:
    result: Singles = np.exp(np.clip(rows, np.float32(-87), np.float32(88)))
    return result


def attend(joined: Singles, starts: Places, heads: int, turns: Singles | None) -> Singles:
    width = joined.shape[1] // 3 // heads
    result = np.empty((len(joined), heads * width), np.float32)
    for first, end in pairwise(starts.tolist()):
        if first == end:
            continue
        query, key, value = joined[first:end].reshape(end - first, 3, heads, width).transpose(1, 2, 0, 3)
        if turns is not None:
            query, key = _turn(query, turns[: end - first]), _turn(key, turns[: end - first])
        products = (query * np.float32(width**-0.5)) @ key.swapaxes(1, 2)
        weights = _exponential(products - products.max(2, keepdims=True))
        mixed = weights @ value / weights.sum(2, keepdims=True)
        result[first:end] = mixed.transpose(1, 0, 2).reshape(end - first, -1)
    return result


def _turn(vectors: Singles, turns: Singles) -> Singles:
    half = vectors.shape[-1] // 2
    first, second = vectors[..., :half], vectors[..., half:]
    cosine, sine = turns[:, :half], turns[:, half:]
    return np.concatenate((first * cosine - second * sine, second * cosine + first * sine), -1)


def add_and_normalize(rows: Singles, more: Singles | None, weight: Singles, bias: Singles, epsilon: float) -> None:
    if more is not None:
        rows += more
    rows -= rows.mean(1, keepdims=True)
    square = np.einsum("ij,ij->i", rows, rows)[:, None] / np.float32(rows.shape[1])
    rows *= 1 / np.sqrt(square + np.float32(epsilon))
    rows *= weight
    rows += bias


def gate_rows(joined: Singles) -> Singles:
    up, gate = np.split(joined, 2, axis=1)
    result: Singles = up * (gate / (1 + _exponential(-gate)))
    return result
