"""Checkpoints: everything a training needs to resume.

A checkpoint is a folder, such as `step-00000500`, with the weights and the optimizer's state as safetensors and the
rest as JSON, with the SHA-256 of each file. It is written under a temporary name, synced and renamed, so a folder with
the final name is complete; one that was damaged later does not match its hashes, and is not used. Random generators
have no state to store: each step has its own seed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metrist.errors import RunError
from metrist.io.writer import sync_folder
from metrist.models.numpy_inference.export import translate_disk_errors
from metrist.train.distributed import divide_like, gather
from metrist.train.task import Evaluation

if TYPE_CHECKING:
    from torch import Tensor

_NAME = re.compile(r"step-(\d{8,})")
_FILES, _SHA256 = "files", "sha256"
_MODEL, _OPTIMIZER, _STATE = "model.safetensors", "optimizer.safetensors", "state.json"


@dataclass(slots=True, kw_only=True)
class TrainingState:
    """The progress of a training. `max_tokens` is the budget that has proved to fit into memory; `before` is the
    development figure of the untrained model."""

    max_tokens: int
    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    before: float | None = None
    best_step: int | None = None
    evaluations: list[Evaluation] = field(default_factory=list)

    @property
    def best(self) -> Evaluation | None:
        """The evaluation with the highest figure; the earliest if several are equal."""
        return next((evaluation for evaluation in self.evaluations if evaluation.step == self.best_step), None)

    @property
    def evaluations_since_best(self) -> int:
        return sum(evaluation.step > (self.best_step or 0) for evaluation in self.evaluations)


class Checkpoints:
    """The checkpoints of one training. Keeps the latest `keep`, and those with the best weights they refer to."""

    def __init__(self, folder: Path, *, every: int = 500, keep: int = 2) -> None:
        if every < 1:
            raise RunError(
                f"the number of steps between checkpoints must be at least 1, got {every}", code="invalid_value"
            )
        self.folder = folder
        self.every = every
        self._keep = keep

    def steps(self) -> list[int]:
        if not self.folder.is_dir():
            return []
        matches = (_NAME.fullmatch(path.name) for path in self.folder.iterdir())
        return sorted(int(match[1]) for match in matches if match)

    def prepare(self, model: Any, planned: int) -> None:
        """Remove incomplete checkpoints of a killed process; check that the disk has room for the planned ones."""
        for part in self.folder.glob(".step-*.part"):
            shutil.rmtree(part, ignore_errors=True)
        needed = estimate_disk_space(model, keep=self._keep, existing=len(self.steps()), planned=planned)
        path = self.folder.absolute()
        existing = next(parent for parent in (path, *path.parents) if parent.exists())
        try:
            free = shutil.disk_usage(existing).free
        except OSError:
            return  # The file system does not report its free space.
        if free < needed:
            raise RunError(
                f"{self.folder}: the checkpoints of this training need {_format_size(needed)} of disk space, but only "
                f"{_format_size(free)} are free; free some space or give another `out`"
            )

    def write(self, state: TrainingState, model: Any, optimizer: Any, *, first: bool = True) -> None:
        """Write a checkpoint, then remove those that are no longer needed. For a sharded model all processes call this,
        and the `first` one writes."""
        weights = collect_weights(model, keep=first)
        moments = {
            f"{number}.{key}": tensor
            for number, tensors in optimizer.state_dict()["state"].items()
            for key, tensor in tensors.items()
        }
        moments = _collect(moments.items(), keep=first)
        if not first:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        target = self._path(state.step)
        part = target.with_name(f".{target.name}.part")
        try:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            _write_tensors(part / _MODEL, weights)
            _write_tensors(part / _OPTIMIZER, moments)
            hashes = {name: _hash_file(part / name) for name in (_MODEL, _OPTIMIZER)}
            fields = {**asdict(state), _FILES: hashes}
            with (part / _STATE).open("w", encoding="utf-8") as file:
                file.write(json.dumps({**fields, _SHA256: _hash_fields(fields)}, indent=2) + "\n")
                file.flush()
                os.fsync(file.fileno())
            shutil.rmtree(target, ignore_errors=True)
            part.rename(target)
            sync_folder(self.folder)
        except OSError as fault:
            shutil.rmtree(part, ignore_errors=True)  # A full disk needs the space.
            raise RunError(f"{target}: cannot be written: {fault.strerror or fault}", code="cannot_write") from fault
        kept = set(self.steps()[-self._keep :])
        for step in list(kept):
            with suppress(OSError, ValueError, KeyError, TypeError):
                kept.add(self._read_state(step)[0].best_step or step)
        for step in set(self.steps()) - kept:
            shutil.rmtree(self._path(step), ignore_errors=True)

    def resume(self, model: Any, optimizer: Any, report: Callable[[str], None]) -> TrainingState | None:
        """Load the newest readable checkpoint into model and optimizer; return None if there is none."""
        steps = self.steps()
        original = {name: tensor.clone() for name, tensor in collect_weights(model).items()} if steps else {}
        for step in reversed(steps):
            try:
                state, hashes = self._read_state(step)
                weights = _read_tensors(self._path(step) / _MODEL, hashes[_MODEL])
                optimizer_state = _read_tensors(self._path(step) / _OPTIMIZER, hashes[_OPTIMIZER])
                if state.best_step not in (None, step):
                    self._read_best(state)
                load_weights(model, weights)
                _load_optimizer_state(optimizer, optimizer_state)
            except (OSError, ValueError, KeyError, TypeError) as fault:
                # The weights may have been loaded before the optimizer's state failed.
                load_weights(model, original)
                optimizer.state.clear()
                report(f"skipping the checkpoint {self._path(step)}, which cannot be read ({fault})")
            else:
                return state
        if steps:
            report("no checkpoint can be read: starting from the beginning")
        return None

    def load_best(self, model: Any, state: TrainingState) -> None:
        """Load the weights of the best evaluation, unless they are the current ones."""
        if state.best_step is not None and state.best_step != state.step:
            try:
                load_weights(model, self._read_best(state))
            except (OSError, ValueError, KeyError, TypeError) as fault:
                raise RunError(
                    f"{self._path(state.best_step)} cannot be read ({fault}); run the same command again",
                    code="unreadable",
                ) from fault

    def _read_best(self, state: TrainingState) -> dict[str, Tensor]:
        assert state.best_step is not None
        _, hashes = self._read_state(state.best_step)
        return _read_tensors(self._path(state.best_step) / _MODEL, hashes[_MODEL])

    def remove(self) -> None:
        """Remove all checkpoints."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"

    def _read_state(self, step: int) -> tuple[TrainingState, dict[str, str]]:
        fields = json.loads((self._path(step) / _STATE).read_text(encoding="utf-8"))
        if fields.pop(_SHA256) != _hash_fields(fields):
            raise ValueError(f"{_STATE} does not match its checksum")
        hashes = fields.pop(_FILES)
        evaluations = [Evaluation(**evaluation) for evaluation in fields["evaluations"]]
        return TrainingState(**{**fields, "evaluations": evaluations}), hashes


# ---- Disk space


def estimate_disk_space(model: Any, *, keep: int, existing: int, planned: int) -> int:
    """Return the bytes a training still needs: for the checkpoints it keeps, and for the next checkpoint or the final
    model, which is written while those exist. A best checkpoint older than the kept ones is not counted."""
    weights: int = sum(tensor.nbytes for tensor in _saved_tensors(model).values())
    # AdamW stores two numbers per trained weight.
    moments = sum(2 * parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)
    checkpoint: int = weights + moments
    added = max(0, min(keep, existing + planned) - existing)
    return added * checkpoint + (checkpoint if planned > added else weights)


def _format_size(size: int) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e8 else f"{size / 1e6:,.2f} MB"


# ---- Tensors


def _saved_tensors(model: Any) -> dict[str, Tensor]:
    """Return the trained parameters and the buffers to save; shared ones appear once. Frozen parameters, such as those
    beside an adapter, are those of the base."""
    saved = set(model.state_dict())
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    return {**trained, **{k: v for k, v in model.named_buffers() if k in saved}}


def collect_weights(model: Any, *, keep: bool = True) -> dict[str, Tensor]:
    """Return trained parameters and buffers on the CPU. Shared ones appear once, as safetensors requires. All processes
    must call this for a sharded model; those that do not `keep` the weights get none."""
    return _collect(_saved_tensors(model).items(), keep)


def _collect(named: Iterable[tuple[str, Tensor]], keep: bool) -> dict[str, Tensor]:
    whole = ((name, gather(tensor.detach())) for name, tensor in named)
    return {name: tensor.cpu().contiguous() for name, tensor in whole if keep}


def load_weights(model: Any, weights: Mapping[str, Tensor]) -> None:
    """Copy weights into the model; raise ValueError if names or shapes do not match."""
    import torch

    targets = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    wrong = [name for name, tensor in weights.items() if name not in targets or targets[name].shape != tensor.shape]
    missing = [name for name, own in model.named_parameters() if own.requires_grad and name not in weights]
    if wrong or missing:
        raise ValueError(f"the weights belong to another model: {', '.join((wrong + missing)[:3])}")
    with torch.no_grad():
        for name, tensor in weights.items():
            targets[name].copy_(divide_like(tensor, targets[name]))


def _load_optimizer_state(optimizer: Any, tensors: Mapping[str, Tensor]) -> None:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        number, _, key = name.partition(".")
        if int(number) >= len(parameters):
            raise ValueError("the optimizer's state belongs to another model")
        # The number of steps is a single number; the moments have the shape of their parameter.
        own = divide_like(tensor, parameters[int(number)]) if tensor.ndim else tensor
        state.setdefault(int(number), {})[key] = own
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _hash_fields(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields).encode("ascii")).hexdigest()


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_tensors(path: Path, digest: str) -> dict[str, Tensor]:
    """Read the tensors of a file; raise ValueError if it is damaged, or has another SHA-256 than `digest`."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if _hash_file(path) != digest:
        raise ValueError(f"{path.name} does not match its checksum")
    try:
        return dict(load_file(path))
    except SafetensorError as fault:
        raise ValueError(str(fault)) from fault


def _write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    from safetensors.torch import save_file

    with translate_disk_errors():
        save_file(tensors, path)
    with path.open("rb+") as file:
        os.fsync(file.fileno())
