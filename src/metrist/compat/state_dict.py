"""Weights without the rest of a model: a safetensors file beside another model's config and tokenizer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from metrist.errors import ModelError
from metrist.models.options import Options
from metrist.models.weights import find

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".index.json")
#: Names under which models that share their embeddings may leave them out.
_SHARED = ("embed_tokens.weight", "shared.weight", "lm_head.weight", "embed_positions.weights")


@contextmanager
def assembled(weights: Path, model: Options) -> Iterator[Path]:
    """A folder with these weights and all else of the model, for as long as it takes to load it."""
    origin = find(model).folder
    if missing := sorted(_names(origin.glob("*.safetensors")) - _names([weights])):
        raise ModelError(
            f"{weights} holds no state dict of {model.model}: it lacks {len(missing):,} of its tensors, such as "
            f"{missing[0]}"
        )
    with TemporaryDirectory(prefix="metrist-") as name:
        folder = Path(name)
        for file in origin.iterdir():
            if file.is_file() and not file.name.endswith(_WEIGHTS):
                shutil.copyfile(file, folder / file.name)
        (folder / "model.safetensors").symlink_to(weights.absolute())
        yield folder


def _names(files: Iterable[Path]) -> set[str]:
    """The tensors that must be there, whether or not a file puts 'model.' before their names."""
    names = {name.removeprefix("model.") for file in files for name in _header(file)}
    return {name for name in names if not name.endswith(_SHARED)} - {"__metadata__"}


def _header(file: Path) -> dict[str, object]:
    """A safetensors file begins with the length of its header, 8 bytes, and the header, which is JSON."""
    try:
        with file.open("rb") as opened:
            header = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
    except (OSError, ValueError, OverflowError, MemoryError) as fault:
        raise ModelError(f"{file} is no safetensors file: {fault}") from None
    if not isinstance(header, dict):
        raise ModelError(f"{file} is no safetensors file: its header is no JSON object")
    return header
