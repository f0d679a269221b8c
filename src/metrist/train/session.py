"""How every training begins and ends, whatever it learns."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from metrist.errors import ModelError, RunError
from metrist.models.devices import Options, Placement, resolve_placement
from metrist.models.weights import Weights, find_weights
from metrist.train.card import render_card
from metrist.train.checkpoints import Checkpoints
from metrist.train.distributed import ProcessGroup, join_processes
from metrist.train.folder import TrainingFolder, lock_folder
from metrist.train.recipe import Recipe, settled
from metrist.train.task import NoCallback, TrainingCallback

if TYPE_CHECKING:
    from metrist.train.loop import Trainer


class Joined(NamedTuple):
    """The processes of a training, its recipe as it suits their device, and who is told of it in this process."""

    ranks: ProcessGroup
    recipe: Recipe
    watcher: TrainingCallback


@contextmanager
def joined(base: Options, recipe: Recipe, watcher: TrainingCallback | None) -> Iterator[Joined]:
    """Train together with the processes that this one was started with."""
    ranks = join_processes(str(resolve_placement(base).device))
    try:
        yield Joined(ranks, settled(recipe, base, ranks), watcher if watcher and ranks.is_first else NoCallback())
    finally:
        ranks.leave()


def alone(base: Options, recipe: Recipe) -> Recipe:
    """The recipe as it suits the device of a process on its own."""
    return settled(recipe, base, ProcessGroup(device=str(resolve_placement(base).device)))


def base_weights(options: Options) -> Weights:
    """Where the base model lies."""
    weights = find_weights(options)
    if weights.plain:
        raise ModelError(f"{options.model} is in a form that can only score; give the model it was made from as --base")
    return weights


def learning_place(ranks: ProcessGroup) -> Placement:
    """Where a model that learns is: on this process's device, in float32."""
    import torch

    return Placement(device=torch.device(ranks.device), dtype=torch.float32, tokens=1)


def deciding(recipe: Recipe) -> dict[str, Any]:
    """What of a recipe decides the weights that come out: all but how much is computed at once."""
    return {name: value for name, value in asdict(recipe).items() if name != "max_tokens"}


def usable(out: Path, asked: Mapping[str, Any], *, resume: bool) -> TrainingFolder:
    """The folder, if this training may be begun in it or go on; nothing is written."""
    folder = TrainingFolder(out)
    if resume and not folder.is_begun:
        raise RunError(f"{out} holds no training to go on with; leave out --resume to begin one")
    folder.check(asked)
    return folder


@contextmanager
def opened(out: Path, asked: Mapping[str, Any], together: Joined, *, resume: bool) -> Iterator[dict[str, Any] | None]:
    """Have the folder for this training alone, with what was asked noted there; gives the card where all is done."""
    ranks, folder = together.ranks, usable(out, asked, resume=resume)
    done = folder.card()
    ranks.wait()  # All processes look before the first one writes.
    if done is not None:
        yield done  # Nothing will be written: such a folder need not be writable.
        return
    with lock_folder(out, ranks):
        folder.check(asked)  # Once more: until now another process may have worked here.
        done = folder.card()
        if done is None and folder.is_begun and not Checkpoints(folder.checkpoints).steps():
            together.watcher.message(f"{out} has no checkpoint yet: from the start")
        ranks.wait()
        if done is None and ranks.is_first:
            folder.begin(asked)
        yield done


def close(out: Path, made: Mapping[str, Any], training: Trainer, *, keep_checkpoints: bool) -> None:
    """Put the card beside the model, then clear up."""
    TrainingFolder(out).put_card(made, render_card(made))
    if not keep_checkpoints:
        training.checkpoints.remove()
