"""Matrices kept in few bits: rounded to whole numbers, row by row and group by group of columns, with a scale each.

Only what lies on disk is small. Reading gives float32, and all computing is done in float32, so that a number never
depends on what else was in the batch, as it does where activations are rounded too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from metrist.errors import MissingExtra, ModelError

Floats = NDArray[np.float32]
_Kind = TypeVar("_Kind", np.float16, np.float32)

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
        error = np.square(_rounded(grouped, tried, largest) * _steps(tried) - grouped).sum(2)
        better = error < best
        best[better], scale[better] = error[better], tried[better]
    return _rounded(grouped, scale, largest).astype(np.int8).reshape(rows, columns), scale


def _steps(scale: NDArray[np.float16]) -> Floats:
    return (scale.astype(np.float32) * _UNIT)[..., None]


def _rounded(grouped: Floats, scale: NDArray[np.float16], largest: int) -> Floats:
    steps = _steps(scale)
    return np.clip(np.rint(grouped / np.where(steps > 0, steps, 1)), -largest, largest)


def dequantize(whole: NDArray[np.int8], scale: NDArray[np.float16]) -> Floats:
    """The matrix that the whole numbers and their scales stand for."""
    rows, columns = whole.shape
    grouped = whole.reshape(rows, scale.shape[1], -1).astype(np.float32)
    grouped *= _steps(scale)
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
        return {name: _read_one(name, stored) for name in stored if not name.endswith(parts)}
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


def _read_one(name: str, stored: Mapping[str, NDArray[np.generic]]) -> Floats:
    array = stored[name]
    if name + SCALE not in stored:
        if array.dtype.kind in "biu":
            raise ValueError(f"{name!r} has whole numbers ({array.dtype}) but no {name + SCALE!r}")
        return _finite(name, array.astype(np.float32))
    shape = _whole_shape(name, array, stored.get(name + SHAPE))
    scale = _finite(name + SCALE, stored[name + SCALE].astype(np.float16))
    if scale.ndim != 2 or scale.shape[0] != shape[0] or not scale.shape[1] or shape[1] % scale.shape[1]:
        raise ValueError(f"{name + SCALE!r} has the shape {scale.shape}, which does not fit a matrix of {shape}")
    if name + SHAPE in stored:
        return dequantize(unpack_bits(array.astype(np.uint8), shape), scale)
    return dequantize(array.astype(np.int8), scale)


def _whole_shape(name: str, array: NDArray[np.generic], said: NDArray[np.generic] | None) -> tuple[int, int]:
    """The shape of a matrix of whole numbers; bit planes have it beside them, and must be as many bytes as it asks
    for: missing ones would be read as zeros."""
    if array.ndim != 2 or array.dtype != (np.int8 if said is None else np.uint8):
        form = "a matrix of int8" if said is None else "bit planes of uint8"
        raise ValueError(f"{name!r} has the shape {array.shape} in {array.dtype}, wanted {form}")
    if said is None:
        return array.shape[0], array.shape[1]
    if said.shape != (2,) or said.dtype.kind != "i" or (said.astype(np.int64) < 1).any():
        raise ValueError(f"{name + SHAPE!r} is {said.tolist()}, wanted rows and columns")
    rows, columns = (int(size) for size in said)
    if not 1 <= array.shape[0] <= 8 or array.shape[1] != -(-rows * columns // 8):
        raise ValueError(f"{name!r} has bit planes of {array.shape}, which do not fit a matrix of {(rows, columns)}")
    return rows, columns


def _finite(name: str, array: NDArray[_Kind]) -> NDArray[_Kind]:
    # The least and the largest are NaN where any number is: two fast passes, and no table of flags.
    if array.size and not (np.isfinite(array.min()) and np.isfinite(array.max())):
        raise ValueError(f"{name!r} has numbers that are infinite or none (NaN)")
    return array


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
