"""Matrices kept in few bits: rounded to whole numbers, row by row and group by group of columns, with a scale each.

Only what lies on disk is small. Reading gives float32, and all computing is done in float32, so that a number never
depends on what else was in the batch, as it does where activations are rounded too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from metrist.errors import MissingExtra, ModelError

Floats = NDArray[np.float32]

#: A matrix `m` lies in the file as `m` (8 bits: int8; fewer: bit planes) and `m.scale`, [rows, groups of columns].
SCALE = ".scale"
SHAPE = ".shape"
#: Scales are stored in these units: 16-bit floats lose precision under 6e-5, where scales of small weights lie.
_UNIT = np.float32(2**-10)
#: Scales tried, as shares of the one that keeps the largest weight.
_SHARES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75)


def quantise(matrix: Floats, bits: int = 8, group: int | None = None) -> tuple[NDArray[np.int8], NDArray[np.float16]]:
    """Whole numbers of so many bits, symmetric around 0, and the scale of every group of columns (None: a row's).

    A scale that cuts off the largest weights can round all others better: the one with the least squared error is
    taken, group by group.
    """
    rows, columns = matrix.shape
    grouped = matrix.reshape(rows, -1, group or columns).astype(np.float32)
    largest = 2 ** (bits - 1) - 1
    widest = np.abs(grouped).max(2) / largest / _UNIT
    best = np.full(widest.shape, np.inf, np.float32)
    scale = np.zeros(widest.shape, np.float16)
    for share in _SHARES:
        tried = (widest * np.float32(share)).astype(np.float16)
        error = np.square(_rounded(grouped, tried, largest) * _steps(tried) - grouped).sum(2)
        better = error < best
        best[better], scale[better] = error[better], tried[better]
    return _rounded(grouped, scale, largest).astype(np.int8).reshape(rows, columns), scale


def _steps(scale: NDArray[np.float16]) -> Floats:
    return (scale.astype(np.float32) * _UNIT)[..., None]


def _rounded(grouped: Floats, scale: NDArray[np.float16], largest: int) -> Floats:
    steps = _steps(scale)
    return np.clip(np.rint(grouped / np.where(steps > 0, steps, 1)), -largest, largest)


def dequantise(whole: NDArray[np.int8], scale: NDArray[np.float16]) -> Floats:
    """The matrix that the whole numbers and their scales stand for."""
    rows, columns = whole.shape
    grouped = whole.reshape(rows, scale.shape[1], -1).astype(np.float32)
    grouped *= _steps(scale)
    return grouped.reshape(rows, columns)


def packed(whole: NDArray[np.int8], bits: int) -> NDArray[np.uint8]:
    """The numbers as bit planes, [bits, an eighth of their count]: the lowest bit of all, then the next, ..."""
    shifted = (whole.ravel().astype(np.int16) + 2 ** (bits - 1)).astype(np.uint8)
    return np.stack([np.packbits(shifted >> bit & 1) for bit in range(bits)])


def unpacked(planes: NDArray[np.uint8], shape: tuple[int, int]) -> NDArray[np.int8]:
    """The numbers of bit planes."""
    total = np.zeros(shape[0] * shape[1], np.uint8)
    for bit, plane in enumerate(planes):
        total |= np.unpackbits(plane, count=len(total)) << bit
    signed: NDArray[np.int8] = (total.astype(np.int16) - 2 ** (len(planes) - 1)).astype(np.int8)
    return signed.reshape(shape)


def write(path: Path, matrices: Mapping[str, Floats], bits: Mapping[str, tuple[int, int | None]]) -> None:
    """All arrays into one file: those that `bits` names in so many bits and groups, the others as float32."""
    from safetensors.numpy import save_file

    stored: dict[str, NDArray[np.generic]] = {}
    for name, matrix in matrices.items():
        if name not in bits:
            stored[name] = np.ascontiguousarray(matrix, np.float32)
            continue
        depth, group = bits[name]
        whole, stored[name + SCALE] = quantise(matrix, depth, group)
        stored[name] = whole if depth == 8 else packed(whole, depth)
        if depth != 8:
            stored[name + SHAPE] = np.array(matrix.shape, np.int64)
    save_file(stored, str(path))
    path.chmod(0o644)  # The package writes files that only their owner can read; these are for all.


def read(path: Path) -> dict[str, Floats]:
    """Every array of a file that `write` wrote, as float32."""
    try:
        from safetensors import SafetensorError
        from safetensors.numpy import load_file
    except ImportError:
        raise MissingExtra("running a shipped model", "standard") from None
    try:
        stored = load_file(str(path))
    except (OSError, SafetensorError) as fault:
        raise ModelError(f"{path}: the weights cannot be read ({fault}); install metrist-models again") from None
    parts = (SCALE, SHAPE)
    return {name: _read_one(name, stored) for name in stored if not name.endswith(parts)}


def _read_one(name: str, stored: Mapping[str, NDArray[np.generic]]) -> Floats:
    array = stored[name]
    if name + SCALE not in stored:
        return array.astype(np.float32)
    scale = stored[name + SCALE].astype(np.float16)
    if name + SHAPE in stored:
        rows, columns = (int(size) for size in stored[name + SHAPE])
        return dequantise(unpacked(array.astype(np.uint8), (rows, columns)), scale)
    return dequantise(array.astype(np.int8), scale)
