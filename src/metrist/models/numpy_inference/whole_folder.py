"""A model's folder that appears whole or not at all: written beside its place, then moved there."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from metrist.errors import RunError
from metrist.models.numpy_inference import folder as folders

#: The folder of a training has it, whether finished or not.
TRAINING = "training.json"


def check_place(source: Path, out: Path) -> None:
    """Refuse a place where the new model would spoil another one."""
    if out.resolve() == source.resolve():
        raise RunError(f"{out} is the folder of the model itself; give another one for the exported model")
    if out.exists() and not out.is_dir():
        raise RunError(f"{out} is a file; give a folder for the exported model")
    if (out / TRAINING).is_file():
        raise RunError(f"{out} is the folder of a training; give another one for the exported model")


@contextmanager
def whole_folder(out: Path) -> Iterator[Path]:
    """A folder to write into, whose files move to `out` when the block ends well. Other files there stay."""
    # A link keeps pointing where it points.
    place = out.resolve()
    part = place.with_name(f".{place.name[:100]}.{secrets.token_hex(6)}.part")
    try:
        with disk_faults():
            part.mkdir(parents=True)
            yield part
            _move(part, place)
    except OSError as fault:
        raise RunError(f"{out}: the model cannot be written: {fault.strerror or fault}") from fault
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _move(part: Path, place: Path) -> None:
    if not place.exists():
        part.rename(place)
        return
    # Weights last: no one takes half a model for one.
    for path in sorted(part.iterdir(), key=lambda one: one.name == folders.WEIGHTS):
        os.replace(path, place / path.name)


@contextmanager
def disk_faults() -> Iterator[None]:
    """What safetensors says of a disk that is full, as what it is."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as fault:
        raise OSError(str(fault)) from fault
