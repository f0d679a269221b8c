"""Matrices kept in few bits: rounded to whole numbers, row by row and group by group of columns, with a scale each.

Only what lies on disk is small. Reading gives float32, and all computing is done in float32, so that a number never
depends on what else was in the batch, as it does where activations are rounded too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

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


def quantize(matrix: Floats, bits: int = 8, group: int | None = None) -> tuple[NDArray[np.int8], NDArray[np.float16]]:
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
        error = np.square(
            _rounded(grouped, tried, largest) * (tried.astype(np.float32) * _UNIT)[..., None] - grouped
        ).sum(2)
        better = error < best
        best[better], scale[better] = error[better], tried[better]
    return _rounded(grouped, scale, largest).astype(np.int8).reshape(rows, columns), scale


def _rounded(grouped: Floats, scale: NDArray[np.float16], largest: int) -> Floats:
    steps = (scale.astype(np.float32) * _UNIT)[..., None]
    return np.clip(np.rint(grouped / np.where(steps > 0, steps, 1)), -largest, largest)


def dequantize(integers: NDArray[np.int8], scale: NDArray[np.float16]) -> Floats:
    """The matrix that these integers and their scales represent."""
    rows, columns = integers.shape
    grouped = integers.reshape(rows, scale.shape[1], -1).astype(np.float32)
    grouped *= (scale.astype(np.float32) * _UNIT)[..., None]
    return grouped.reshape(rows, columns)


def pack_bits(whole: NDArray[np.int8], bits: int) -> NDArray[np.uint8]:
    """The numbers as bit planes, [bits, an eighth of their count]: the lowest bit of all, then the next, ..."""
    shifted = (whole.ravel().astype(np.int16) + 2 ** (bits - 1)).astype(np.uint8)
    return np.stack([np.packbits(shifted >> bit & 1) for bit in range(bits)])


def unpack_bits(planes: NDArray[np.uint8], shape: tuple[int, int]) -> NDArray[np.int8]:
    """The numbers of bit planes."""
    total = np.zeros(shape[0] * shape[1], np.uint8)
    for bit, plane in enumerate(planes):
        total |= np.unpackbits(plane, count=len(total)) << bit
    signed: NDArray[np.int8] = (total.astype(np.int16) - 2 ** (len(planes) - 1)).astype(np.int8)
    return signed.reshape(shape)


def write_arrays(path: Path, matrices: Mapping[str, Floats], bits: Mapping[str, tuple[int, int | None]]) -> None:
    """All arrays into one file: those that `bits` names in so many bits and groups, the others as float32."""
    from safetensors.numpy import save_file

    stored: dict[str, NDArray[np.generic]] = {}
    for name, matrix in matrices.items():
        if name not in bits:
            stored[name] = np.ascontiguousarray(matrix, np.float32)
            continue
        depth, group = bits[name]
        whole, stored[name + SCALE] = quantize(matrix, depth, group)
        stored[name] = whole if depth == 8 else pack_bits(whole, depth)
        if depth != 8:
            stored[name + SHAPE] = np.array(matrix.shape, np.int64)
    save_file(stored, str(path))
    path.chmod(0o644)  # The package writes files that only their owner can read; these are for all.


def read_arrays(path: Path) -> dict[str, Floats]:
    """Every array of a file that `write` wrote, as float32."""
    try:
        from safetensors import SafetensorError
        from safetensors.numpy import load_file
    except ImportError:
        raise MissingExtra("running a shipped model", "standard") from None
    try:
        stored = load_file(str(path))
    except (OSError, SafetensorError) as fault:
        raise ModelError(f"{path}: the weights cannot be read ({fault}); {remedy(path.parent)}") from None
    parts = (SCALE, SHAPE)
    try:
        return {name: _read_array(name, stored) for name in stored if not name.endswith(parts)}
    except ValueError as fault:
        raise ModelError(f"{path}: {fault}; {remedy(path.parent)}") from None


def remedy(folder: Path) -> str:
    """What helps with a damaged model: an installation brings back only those that metrist-models has."""
    try:
        shipped = Path(str(resources.files("metrist_models"))).resolve()
    except ModuleNotFoundError:
        shipped = None
    if shipped is not None and folder.resolve().is_relative_to(shipped):
        return "install metrist-models again"
    return "the folder is damaged: write it again from the model that it was made of"


def _read_array(name: str, stored: Mapping[str, NDArray[np.generic]]) -> Floats:
    """One array of a file as float32; ValueError where its parts do not fit each other."""
    array, scale, size = stored[name], stored.get(name + SCALE), stored.get(name + SHAPE)
    if scale is None and array.dtype.kind in "biu":
        raise ValueError(f"{name!r} has integers ({array.dtype}) but no {name + SCALE!r}")
    floats = array.astype(np.float32) if scale is None else scale.astype(np.float16)
    # Minimum and maximum are NaN where any number is: two fast passes, without an array of flags.
    if floats.size and not (np.isfinite(floats.min()) and np.isfinite(floats.max())):
        raise ValueError(f"{(name if scale is None else name + SCALE)!r} has numbers that are infinite or NaN")
    if scale is None:
        return floats.astype(np.float32, copy=False)
    if array.ndim != 2 or array.dtype != (np.int8 if size is None else np.uint8):
        expected = "a matrix of int8" if size is None else "bit planes of uint8"
        raise ValueError(f"{name!r} has the shape {array.shape} in {array.dtype}, expected {expected}")
    shape = array.shape[0], array.shape[1]
    if size is not None:
        # Bit planes must have as many bytes as their shape needs: missing ones would be read as zeros.
        if size.shape != (2,) or size.dtype.kind != "i" or (size.astype(np.int64) < 1).any():
            raise ValueError(f"{name + SHAPE!r} is {size.tolist()}, expected rows and columns")
        shape = int(size[0]), int(size[1])
        if not 1 <= array.shape[0] <= 8 or array.shape[1] != -(-shape[0] * shape[1] // 8):
            raise ValueError(f"{name!r} has bit planes of {array.shape}, which do not fit a matrix of {shape}")
    if scale.ndim != 2 or scale.shape[0] != shape[0] or not scale.shape[1] or shape[1] % scale.shape[1]:
        raise ValueError(f"{name + SCALE!r} has the shape {scale.shape}, which does not fit a matrix of {shape}")
    integers = array.astype(np.int8) if size is None else unpack_bits(array.astype(np.uint8), shape)
    return dequantize(integers, floats.astype(np.float16, copy=False))


# A folder in metrist's own form: what it says of itself, and its tokenizer.


FORMAT = 1
CONFIG, WEIGHTS, TOKENIZER = "config.json", "weights.safetensors", "tokenizer.json"


def read_config(folder: Path, architecture: str) -> Mapping[str, Any]:
    """The folder's configuration, if it is of this form, of this version and of that architecture."""
    path = folder / CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as fault:
        raise ModelError(f"{path}: cannot be read as a model's configuration ({fault})") from None
    if not isinstance(config, dict) or "metrist_format" not in config:
        raise ModelError(f"{path}: has no 'metrist_format'; this folder is no model in metrist's own form")
    if config["metrist_format"] != FORMAT:
        raise ModelError(
            f"{path}: is of format {config['metrist_format']!r}, this metrist reads {FORMAT}; "
            "install metrist and metrist-models of one time"
        )
    if config.get("architecture") != architecture:
        raise ModelError(f"{path}: is a {config.get('architecture')!r}, wanted a {architecture!r}")
    return config


def read_tokenizer(folder: Path) -> Any:
    """The folder's tokenizer, which neither cuts nor pads."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise MissingExtra("running a shipped model", "standard") from None
    path = folder / TOKENIZER
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as fault:  # The package raises Exception itself.
        raise ModelError(f"{path}: cannot be read as a tokenizer ({fault})") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
