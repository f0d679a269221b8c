"""The format of shipped models: configuration, tokenizer, and weights quantized to few bits.

Matrices are rounded to integers with a scale for each group of columns of a row. Text encoders compute with the
integers themselves, and T5 where that is faster. Otherwise only the files are small: reading gives float32.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrist.documents import read_json
from metrist.errors import MissingExtra, ModelError

Floats = NDArray[np.float32]

#: The format's version, "metrist_format" in config.json.
FORMAT = 1
#: The packages of shipped models. A distribution has the name of its package, with hyphens.
PACKAGES = (
    "metrist_models",
    "metrist_models_english",
    "metrist_models_english_large",
    "metrist_models_multilingual",
    "metrist_models_analyst",
)
CONFIG, WEIGHTS, TOKENIZER = "config.json", "weights.safetensors", "tokenizer.json"
#: "architecture" in config.json of text encoders, and of a BERT with a reward head that was exported from transformers:
#: `metrist.models.text_encoder` reads both.
TEXT_ENCODER, BERT_REWARD = "text-encoder", "bert-reward"
#: A matrix `m` is stored as `m` (8 bits: int8; fewer: bit planes and `m.shape`) and `m.scale`, [rows, column groups].
SCALE = ".scale"
SHAPE = ".shape"
#: Scales are stored in this unit: float16 loses precision below 6e-5, where the scales of small weights lie.
_UNIT = np.float32(2**-10)
#: Candidate scales, as fractions of the one that keeps the largest weight.
_CANDIDATES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75)


# ---- Configuration and tokenizer


def read_config(folder: Path, *architectures: str) -> Mapping[str, Any]:
    """Read the folder's configuration; check its format, version and architecture, which must be one of these."""
    path = folder / CONFIG
    config = read_json(path, ModelError)
    if not isinstance(config, dict) or "metrist_format" not in config:
        raise ModelError(
            f"{path}: has no 'metrist_format'; this folder is not a model in metrist's own format", code="invalid_value"
        )
    if config["metrist_format"] != FORMAT:
        raise ModelError(
            f"{path}: has format {config['metrist_format']!r}, but this metrist reads {FORMAT}; "
            "install matching versions of metrist and of its models"
        )
    if config.get("architecture") not in architectures:
        expected = " or ".join(map(repr, architectures))
        raise ModelError(
            f"{path}: is a {config.get('architecture')!r} model, expected {expected}", code="invalid_value"
        )
    return config


def read_tokenizer(folder: Path) -> Any:
    """Read the folder's tokenizer, set to neither truncate nor pad."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise MissingExtra("running a shipped model", "standard") from None
    path = folder / TOKENIZER
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as fault:  # The package raises Exception itself.
        raise ModelError(f"{path}: cannot be read as a tokenizer ({fault})", code="unreadable") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def suggest_repair(folder: Path) -> str:
    """Return what to do about a damaged model: only shipped models can be installed again."""
    if distribution := find_distribution(folder):
        return f"install {distribution} again"
    return "the folder is damaged: export it again from the original model"


def find_packages() -> dict[str, Path]:
    """Return the folders of the installed packages of shipped models, by distribution."""
    folders = {}
    for package in PACKAGES:
        # A package that sys.modules holds as None raises the same.
        with contextlib.suppress(ModuleNotFoundError):
            folders[package.replace("_", "-")] = Path(str(resources.files(package)))
    return folders


def find_distribution(folder: Path) -> str | None:
    """Return the distribution that a model's folder belongs to, such as 'metrist-models'; None if it did not ship."""
    resolved = folder.resolve()
    homes = (name for name, root in find_packages().items() if resolved.is_relative_to(root.resolve()))
    return next(homes, None)


# ---- Weights


def write_arrays(
    path: Path, arrays: Mapping[str, Floats | Quantized], bits: Mapping[str, tuple[int, int | None]]
) -> None:
    """Write all arrays to one file. `bits` maps the names of matrices to quantize to (bits, column group size); 16 bits
    are float16. Matrices that are quantized already are written as they are."""
    from safetensors.numpy import save_file

    stored: dict[str, NDArray[np.generic]] = {}
    for name, array in arrays.items():
        if isinstance(array, Quantized):
            stored[name], stored[name + SCALE] = array.stored, array.scale
            if array.bits != 8:
                stored[name + SHAPE] = np.array(array.shape, np.int64)
            continue
        if name not in bits:
            stored[name] = np.ascontiguousarray(array, np.float32)
            continue
        depth, group = bits[name]
        if depth == 16:
            stored[name] = np.ascontiguousarray(array, np.float16)
            continue
        integers, stored[name + SCALE] = quantize(array, depth, group)
        stored[name] = integers if depth == 8 else pack_bits(integers, depth)
        if depth != 8:
            stored[name + SHAPE] = np.array(array.shape, np.int64)
    save_file(stored, str(path))
    path.chmod(0o644)  # safetensors creates files that only their owner can read.


def read_arrays(path: Path) -> dict[str, Floats]:
    """Read all arrays of a file written by `write_arrays` as float32."""
    return {
        name: array.dequantize() if isinstance(array, Quantized) else array
        for name, array in read_quantized(path).items()
    }


def read_quantized(path: Path) -> dict[str, Floats | Quantized]:
    """Read all arrays of a file written by `write_arrays`, leaving quantized matrices as they are stored."""
    try:
        from safetensors import SafetensorError
        from safetensors.numpy import load_file
    except ImportError:
        raise MissingExtra("running a shipped model", "standard") from None
    try:
        stored = load_file(str(path))
    except (OSError, SafetensorError, KeyError) as fault:  # A KeyError is a type of numbers that numpy does not have.
        raise ModelError(
            f"{path}: the weights cannot be read ({fault}); {suggest_repair(path.parent)}", code="unreadable"
        ) from None
    try:
        return {name: _read_array(name, stored) for name in stored if not name.endswith((SCALE, SHAPE))}
    except ValueError as fault:
        raise ModelError(f"{path}: {fault}; {suggest_repair(path.parent)}") from None


class Quantized(NamedTuple):
    """A quantized matrix as it is stored: int8, or bit planes of uint8; and the scales of its column groups."""

    stored: NDArray[Any]
    scale: NDArray[np.float16]
    shape: tuple[int, int]

    @property
    def bits(self) -> int:
        return 8 if self.stored.dtype == np.int8 else len(self.stored)

    @property
    def steps(self) -> Floats:
        """The scales as factors of the integers, [rows, column groups]."""
        steps: Floats = self.scale.astype(np.float32) * _UNIT
        return steps

    def integers(self) -> NDArray[np.int8]:
        return np.asarray(self.stored) if self.bits == 8 else unpack_bits(self.stored, self.shape)

    def dequantize(self) -> Floats:
        return dequantize(self.integers(), self.scale)

    def requantize(self, matrix: Floats, rng: np.random.Generator) -> Quantized:
        """Quantize another matrix with these scales; a group of columns that outgrew its scale gets a new one.

        A weight between two steps is rounded up or down at random, more often to the nearer one. Small changes of many
        weights then remain in sums over them, while rounding to the nearest step would undo them all.
        """
        (rows, columns), bits = self.shape, self.bits
        grouped = matrix.reshape(rows, self.scale.shape[1], -1).astype(np.float32)
        largest, scale = 2 ** (bits - 1) - 1, self.scale
        outgrown = np.abs(grouped).max(2) > (largest + 0.5) * self.steps
        if outgrown.any():
            scale = np.where(outgrown, quantize(matrix, bits, columns // scale.shape[1])[1], scale)
        noise = rng.random(grouped.shape, np.float32) - np.float32(0.5)
        integers = _round(grouped, scale, largest, noise).astype(np.int8).reshape(rows, columns)
        return Quantized(integers if bits == 8 else pack_bits(integers, bits), scale, self.shape)

    def take_rows(self, numbers: NDArray[np.integer[Any]]) -> Floats:
        """Return some rows as float32 without unpacking the others."""
        rows, columns = self.shape
        if self.stored.dtype == np.int8:
            return dequantize(np.asarray(self.stored[numbers], np.int8), self.scale[numbers])
        if columns % 8:
            return dequantize(self.integers()[numbers], self.scale[numbers])
        planes = self.stored.reshape(len(self.stored), rows, -1)[:, numbers]
        integers = unpack_bits(planes.reshape(len(planes), -1), (len(numbers), columns))
        return dequantize(integers, self.scale[numbers])


def _read_array(name: str, stored: Mapping[str, NDArray[np.generic]]) -> Floats | Quantized:
    """Return one array as float32 or as it is stored; raise ValueError if its parts do not fit each other."""
    array, scale, size = stored[name], stored.get(name + SCALE), stored.get(name + SHAPE)
    if scale is None and array.dtype.kind in "biu":
        raise ValueError(f"{name!r} has integers ({array.dtype}) but no {name + SCALE!r}")
    floats = array.astype(np.float32) if scale is None else scale.astype(np.float16)
    # Minimum and maximum are NaN if any number is: two fast passes, without an array of flags.
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
    return Quantized(array, floats.astype(np.float16, copy=False), shape)


# ---- Quantization


def quantize(matrix: Floats, bits: int = 8, group: int | None = None) -> tuple[NDArray[np.int8], NDArray[np.float16]]:
    """Return integers, symmetric around 0, and the scale of every group of columns (None: one group per row).

    A scale that clips the largest weights can round the others better: each group gets the candidate with the least
    squared error.
    """
    rows, columns = matrix.shape
    grouped = matrix.reshape(rows, -1, group or columns).astype(np.float32)
    largest = 2 ** (bits - 1) - 1
    widest = np.abs(grouped).max(2) / largest / _UNIT
    best = np.full(widest.shape, np.inf, np.float32)
    scale = np.zeros(widest.shape, np.float16)
    for fraction in _CANDIDATES:
        candidate = (widest * np.float32(fraction)).astype(np.float16)
        error = np.square(_round(grouped, candidate, largest) * _step_sizes(candidate) - grouped).sum(2)
        better = error < best
        best[better], scale[better] = error[better], candidate[better]
    return _round(grouped, scale, largest).astype(np.int8).reshape(rows, columns), scale


def dequantize(integers: NDArray[np.int8], scale: NDArray[np.float16]) -> Floats:
    rows, columns = integers.shape
    grouped = integers.reshape(rows, scale.shape[1], -1).astype(np.float32)
    grouped *= _step_sizes(scale)
    return grouped.reshape(rows, columns)


def _step_sizes(scale: NDArray[np.float16]) -> Floats:
    return (scale.astype(np.float32) * _UNIT)[..., None]


def _round(grouped: Floats, scale: NDArray[np.float16], largest: int, noise: Floats | None = None) -> Floats:
    steps = _step_sizes(scale)
    exact = grouped / np.where(steps > 0, steps, 1)
    return np.clip(np.rint(exact if noise is None else exact + noise), -largest, largest)


def pack_bits(integers: NDArray[np.int8], bits: int) -> NDArray[np.uint8]:
    """Pack integers into bit planes, [bits, count / 8]: the lowest bit of all integers, then the next, ..."""
    shifted = (integers.ravel().astype(np.int16) + 2 ** (bits - 1)).astype(np.uint8)
    return np.stack([np.packbits(shifted >> bit & 1) for bit in range(bits)])


def unpack_bits(planes: NDArray[np.uint8], shape: tuple[int, int]) -> NDArray[np.int8]:
    total = np.zeros(shape[0] * shape[1], np.uint8)
    for bit, plane in enumerate(planes):
        total |= np.unpackbits(plane, count=len(total)) << bit
    signed: NDArray[np.int8] = (total.astype(np.int16) - 2 ** (len(planes) - 1)).astype(np.int8)
    return signed.reshape(shape)
