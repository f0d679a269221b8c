"""What a training will write, told before it begins: a disk that is full should not be found hours later."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metrist.errors import RunError

if TYPE_CHECKING:
    from torch import Tensor


def check_space(folder: Path, needed: int) -> None:
    """Refuse to begin where so many bytes are not free."""
    free = _free_space(folder)
    if free is not None and free < needed:
        raise RunError(
            f"{folder}: the checkpoints of this training need {_in_words(needed)} on the disk, and {_in_words(free)} "
            "are free; make room there, or give another --out"
        )


def space_needed(model: Any, *, kept: int, there: int, to_come: int) -> int:
    """Bytes that a training still needs, when so many checkpoints are kept at a time, there already, and to come: for
    those kept, and beside them for the one being written, or in the end the model. A best one that is older than those
    is not foreseen."""
    weights: int = sum(tensor.nbytes for tensor in saved_tensors(model).values())
    # AdamW keeps two numbers for each one that it learns.
    checkpoint: int = weights + sum(2 * one.nbytes for one in model.parameters() if one.requires_grad)
    more = max(0, min(kept, there + to_come) - there)
    return more * checkpoint + (checkpoint if to_come > more else weights)


def saved_tensors(model: Any) -> dict[str, Tensor]:
    """What of a model is written: parameters and buffers, shared ones once."""
    kept = set(model.state_dict())
    return {**dict(model.named_parameters()), **{k: v for k, v in model.named_buffers() if k in kept}}


def _free_space(folder: Path) -> int | None:
    """What the user may still write there; None where the file system does not say."""
    place = folder.absolute()
    there = next(one for one in (place, *place.parents) if one.exists())
    try:
        return shutil.disk_usage(there).free
    except OSError:
        return None


def _in_words(size: int) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e8 else f"{size / 1e6:,.2f} MB"
