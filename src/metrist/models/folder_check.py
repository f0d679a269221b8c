"""Refuse files of a model's folder that hold code, block, never end, or lead elsewhere, before any reader opens them.

Links are followed: the hub's cache is made of them. What they lead to must be a file.
"""

from __future__ import annotations

import re
import stat
import zipfile
from pathlib import Path
from typing import Any

from metrist.documents import read_json
from metrist.errors import ModelError

#: Bytes of a file that is not weights. The largest tokenizers have 35 MB.
_LARGEST_TEXT = 1 << 29
_INDEX = ".safetensors.index.json"
#: The beginning of other files that may be called .safetensors.
_BEGINNINGS = {
    b"PK\x03\x04": "a zip archive, as torch.save writes it, with a pickle in it, which can run code",
    b"\x80": "a pickle, which can run code when it is read",
    b"GGUF": "a GGUF file; serve it with llama.cpp, and give its address",
    b"version https://git-lfs": "a pointer of Git LFS; fetch the file itself with `git lfs pull`",
    b"\x1f\x8b": "a gzip archive; unpack it first",
    b"<": "a web page or XML",
}
#: Settings that count layers, experts and the like: each one is an object in memory.
_LAYERS = re.compile(r"(n|num|encoder|decoder)_(\w+_)?(layers?|experts|blocks|groups)")
_MOST_LAYERS = 10_000
#: Settings that are sizes of vectors and vocabularies.
_SIZES = re.compile(r"\w*(_size|_dim|_positions|_heads|d_model|d_ff|n_embd)")
_LARGEST_SIZE = 1 << 28


def check_model_folder(name: str, folder: Path) -> None:
    """Refuse a folder whose files are not what models have; `name` is the user's name for it."""
    for path in sorted(folder.iterdir()):
        try:
            status = path.stat()
        except OSError as error:
            raise ModelError(f"{name}: {path.name} cannot be read ({error.strerror}): is it a broken link?") from None
        if stat.S_ISDIR(status.st_mode):
            continue
        if not stat.S_ISREG(status.st_mode):
            raise ModelError(f"{name}: {path.name} is a named pipe or a device, expected a file")
        if path.name.endswith(".safetensors"):
            check_beginning(path)
        elif path.name.endswith(_INDEX):
            _check_index(path)
        elif path.suffix in (".json", ".txt", ".model", ".spm", ".tiktoken") and status.st_size > _LARGEST_TEXT:
            raise ModelError(f"{path} has {status.st_size:,} bytes, which is too large: at most {_LARGEST_TEXT:,}")


def check_beginning(path: Path) -> None:
    """Refuse another kind of file under the name of safetensors, by its first bytes."""
    with path.open("rb") as file:
        head = file.read(64)
    for beginning, kind in _BEGINNINGS.items():
        # The first 8 bytes of safetensors are the length of its header, the next one opens that.
        if head.startswith(beginning) and head[8:9] != b"{":
            raise ModelError(f"{path} is not safetensors: it is {kind}")


def _check_index(path: Path) -> None:
    """Refuse an index that names files elsewhere."""
    content = read_json(path, ModelError)
    files = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(files, dict):
        raise ModelError(f"{path} must hold an object with a 'weight_map'")
    for file in files.values():
        if not isinstance(file, str) or not re.fullmatch(r"[\w.-]+\.safetensors", file):
            raise ModelError(f"{path}: weights must be safetensors files of the same folder, got {file!r:.100}")


def check_config(path: Path, config: dict[str, Any]) -> None:
    """Refuse sizes that no model has: they would fill the memory before the weights are compared with them."""
    for table in (config, *(value for value in config.values() if isinstance(value, dict))):
        for key, value in table.items():
            most = _MOST_LAYERS if _LAYERS.fullmatch(key) else _LARGEST_SIZE if _SIZES.fullmatch(key) else None
            if most is not None and isinstance(value, int) and abs(value) > most:
                raise ModelError(f"{path}: {key} is {value:.4g}, and no model has more than {most:,}")


def check_state_dict_archive(path: Path) -> None:
    """Refuse a compressed archive, which may unpack to any size: torch.save stores tensors as they are."""
    try:
        if not zipfile.is_zipfile(path):
            return
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        raise ModelError(f"{path} is refused: its archive is damaged ({error})") from None
    if sum(entry.file_size for entry in entries) > path.stat().st_size or any(entry.compress_type for entry in entries):
        raise ModelError(f"{path} is refused: it is compressed, and would unpack to more than its own size")


def check_tensor_sizes(path: Path, tensors: dict[str, Any]) -> None:
    """Refuse tensors that take more memory than the file has: a small one may claim any shape by repeating a value."""
    size = path.stat().st_size
    total = 0
    for name, tensor in tensors.items():
        needed = tensor.numel() * tensor.element_size()
        total += needed
        if needed > tensor.untyped_storage().nbytes() or total > 8 * size:
            raise ModelError(f"{path} is refused: {name!r:.100} claims {needed:,} bytes, the file has {size:,}")
