"""What a training will write, told before it begins: a disk that is full should not be found hours later."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metrist.errors import RunError

if TYPE_CHECKING:
    from torch import Tensor
import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field

from metrist.train.task import Evaluation


def check_disk_space(folder: Path, needed: int) -> None:
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


# Checkpoints: all that a training needs to go on as if nothing had happened.
#
# A checkpoint is a folder, `step-00000500`, with the weights and the optimizer's state as safetensors and the rest as
# JSON. It is written under another name, synced and renamed, so that a folder with the right name is whole.
# The generators of random numbers leave no state to keep: every step has a seed of its own.


_NAME = re.compile(r"step-(\d{8,})")
_MODEL, _OPTIMIZER, _STATE = "model.safetensors", "optimizer.safetensors", "state.json"


@dataclass(slots=True, kw_only=True)
class TrainingState:
    """Where a training stands. `max_tokens` is the budget that has proved to fit into the memory."""

    max_tokens: int
    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    before: float | None = None
    best_step: int | None = None
    evaluations: list[Evaluation] = field(default_factory=list)

    @property
    def best(self) -> Evaluation | None:
        """The evaluation with the highest figure, the earliest of equal ones."""
        return next((one for one in self.evaluations if one.step == self.best_step), None)

    @property
    def stale(self) -> int:
        """Evaluations since the best."""
        return sum(one.step > (self.best_step or 0) for one in self.evaluations)


class Checkpoints:
    """The checkpoints of one training. The latest two are kept, and those with the best weights known to them."""

    def __init__(self, folder: Path, *, every: int = 500, kept: int = 2) -> None:
        if every < 1:
            raise RunError(f"checkpoints are written every so many steps, at least 1, got {every}")
        self.folder = folder
        self.every = every
        self._kept = kept

    def steps(self) -> list[int]:
        """The steps that there are checkpoints of, in order."""
        if not self.folder.is_dir():
            return []
        found = (_NAME.fullmatch(path.name) for path in self.folder.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def make_room(self, model: Any, to_come: int) -> None:
        """Remove what a killed process left half written, and see that there is room for so many more checkpoints."""
        for part in self.folder.glob(".step-*.part"):
            shutil.rmtree(part, ignore_errors=True)
        check_disk_space(self.folder, space_needed(model, kept=self._kept, there=len(self.steps()), to_come=to_come))

    def write(self, at: TrainingState, model: Any, optimizer: Any) -> None:
        """Write a checkpoint, then remove those that are no longer needed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        target = self._path(at.step)
        part = target.with_name(f".{target.name}.part")
        try:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            _write_tensors(part / _MODEL, collect_weights(model))
            _write_tensors(part / _OPTIMIZER, _optimizer_tensors(optimizer))
            _write_text(part / _STATE, json.dumps(asdict(at), indent=2) + "\n")
            shutil.rmtree(target, ignore_errors=True)
            part.rename(target)
            _sync_folder(self.folder)
        except OSError as fault:
            shutil.rmtree(part, ignore_errors=True)  # A disk that is full needs the space.
            raise RunError(f"{target}: cannot be written: {fault.strerror or fault}") from fault
        self._prune()

    def resume(self, model: Any, optimizer: Any, tell: Callable[[str], None]) -> TrainingState | None:
        """Put the state of the newest readable checkpoint into model and optimizer; None where there is none."""
        steps = self.steps()
        untouched = {name: tensor.clone() for name, tensor in collect_weights(model).items()} if steps else {}
        for step in reversed(steps):
            try:
                at = self._position(step)
                weights, state = _tensors(self._path(step) / _MODEL), _tensors(self._path(step) / _OPTIMIZER)
                load_weights(model, weights)
                _put_optimizer(optimizer, state)
            except (OSError, ValueError, KeyError, TypeError) as fault:
                # Its weights may have been whole, and its optimizer not.
                load_weights(model, untouched)
                optimizer.state.clear()
                tell(f"the checkpoint {self._path(step)} cannot be read ({fault}) and is passed over")
            else:
                return at
        if steps:
            tell("no checkpoint can be read: from the start")
        return None

    def put_best(self, model: Any, at: TrainingState) -> None:
        """Give the model the weights of the best evaluation, where it has others now."""
        if at.best_step is not None and at.best_step != at.step:
            load_weights(model, _tensors(self._path(at.best_step) / _MODEL))

    def remove(self) -> None:
        """Remove all checkpoints."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"

    def _position(self, step: int) -> TrainingState:
        facts = json.loads((self._path(step) / _STATE).read_text(encoding="utf-8"))
        return TrainingState(**{**facts, "evaluations": [Evaluation(**one) for one in facts["evaluations"]]})

    def _prune(self) -> None:
        latest = self.steps()[-self._kept :]
        best = set()
        for step in latest:
            with suppress(OSError, ValueError, KeyError, TypeError):
                best.add(self._position(step).best_step)
        for step in set(self.steps()) - {*latest, *best}:
            shutil.rmtree(self._path(step), ignore_errors=True)


def collect_weights(model: Any) -> dict[str, Tensor]:
    """A model's parameters and buffers. Shared ones come once, as safetensors wants it."""
    return {name: tensor.detach().cpu().contiguous() for name, tensor in saved_tensors(model).items()}


def load_weights(model: Any, weights: Mapping[str, Tensor]) -> None:
    """Give the model these weights."""
    import torch

    places = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    wrong = [name for name, tensor in weights.items() if name not in places or places[name].shape != tensor.shape]
    missing = [name for name, _ in model.named_parameters() if name not in weights]
    if wrong or missing:
        raise ValueError(f"its weights are of another model: {', '.join((wrong + missing)[:3])}")
    with torch.no_grad():
        for name, tensor in weights.items():
            places[name].copy_(tensor)


def _optimizer_tensors(optimizer: Any) -> dict[str, Tensor]:
    state = optimizer.state_dict()["state"]
    named = ((f"{number}.{key}", tensor) for number, kept in state.items() for key, tensor in kept.items())
    return {name: tensor.cpu().contiguous() for name, tensor in named}


def _put_optimizer(optimizer: Any, tensors: Mapping[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        number, _, key = name.partition(".")
        state.setdefault(int(number), {})[key] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _tensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return dict(load_file(path))
    except SafetensorError as fault:
        raise ValueError(str(fault)) from fault


def _write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(tensors, path)
    except SafetensorError as fault:  # A full disk, for one, is told in this way.
        raise OSError(str(fault)) from fault
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _write_text(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    # The new name must survive a power cut; some file systems cannot promise that, and need not.
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
