"""Train any task: resolve the recipe, lock the folder, run or resume the loop, publish the model and its card."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from metrist.errors import RunError
from metrist.models.devices import Options, Placement, import_torch, resolve_placement
from metrist.models.numpy_inference import storage
from metrist.models.numpy_inference.export import restore_transformers
from metrist.models.weights import Weights, find_weights
from metrist.runtime import Runtime
from metrist.train.card import make_card, render_card
from metrist.train.checkpoints import Checkpoints
from metrist.train.distributed import ProcessGroup, join_processes
from metrist.train.folder import TrainingFolder, lock_folder
from metrist.train.task import NoCallback, TrainingCallback, TrainingPlan, TrainingTask


def fit(
    task: TrainingTask, callback: TrainingCallback | None = None, *, runtime: Runtime | None = None
) -> dict[str, Any]:
    """Train, or resume a stopped training, and return its card; a finished training is not repeated. `task.out` then
    contains the model, its tokenizer and the card."""
    import_torch(f"training a {task.kind} metric")
    placement = resolve_placement(task.base, runtime)
    processes = join_processes(str(placement.device))
    try:
        task = replace(task, recipe=task.recipe.resolve(processes.device, placement.tokens))
        with open_base(task.base) as weights:
            return _fit(task, weights, processes, callback if callback and processes.is_first else NoCallback())
    finally:
        processes.leave()


def plan_training(task: TrainingTask, *, runtime: Runtime | None = None) -> TrainingPlan:
    """Read and tokenize all data and run all checks, but load no weights and write nothing."""
    import_torch(f"training a {task.kind} metric")
    placement = resolve_placement(task.base, runtime)
    task = replace(task, recipe=task.recipe.resolve(str(placement.device), placement.tokens))
    with open_base(task.base) as weights:
        data = task.load_data()
        _open_folder(task, task.identity(weights, data))
        return task.plan(weights, data)


@contextmanager
def open_base(options: Options) -> Iterator[Weights]:
    """Find the base model. One in metrist's own format is unpacked for transformers into a temporary folder (a text
    encoder is not: its task reads it); its weights still say `runs_on_numpy`, and its training ends in the same
    format."""
    weights = find_weights(options)
    if not weights.runs_on_numpy or weights.config.get("architecture") == storage.TEXT_ENCODER:
        yield weights
        return
    with tempfile.TemporaryDirectory(prefix="metrist-base-") as temporary:
        folder = restore_transformers(weights.folder, Path(temporary))
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        yield replace(weights, folder=folder, config=config)


def _fit(task: TrainingTask, weights: Weights, processes: ProcessGroup, callback: TrainingCallback) -> dict[str, Any]:
    import torch

    from metrist.train.loop import Trainer

    data = task.load_data()
    with _claim_folder(task, task.identity(weights, data), processes, callback) as card:
        if card is not None:
            callback.on_message(f"{task.out} is already finished; nothing was trained")
            return card
        folder = TrainingFolder(task.out)
        plan = task.plan(weights, data)
        for remark in plan.remarks():
            callback.on_message(remark)
        placement = Placement(device=torch.device(processes.device), dtype=torch.float32, tokens=1)
        learner = task.build(weights, plan, placement)
        trainer = Trainer(
            model=learner.model,
            objective=learner.objective,
            examples=plan.train,
            dev=plan.dev,
            sampler=plan.sampler,
            recipe=task.recipe,
            checkpoints=Checkpoints(folder.checkpoints, every=task.checkpoint_every),
            processes=processes,
            callback=callback,
            rates=learner.rates,
        )
        outcome = trainer.run()
        if processes.is_first:
            facts = task.publish(weights, data, plan, trainer, folder)
            figure = learner.objective.figure
            card = make_card(task, weights, facts, figure=figure, outcome=outcome, processes=processes)
            folder.put_card(card, render_card(card))
            if not task.keep_checkpoints:
                trainer.checkpoints.remove()
        processes.wait()
        return folder.card() or {}


def _open_folder(task: TrainingTask, identity: Mapping[str, Any]) -> TrainingFolder:
    """Check that this training may start or resume in its folder; write nothing."""
    folder = TrainingFolder(task.out)
    if task.resume and not folder.is_begun:
        raise RunError(f"{task.out} has no training to resume; leave out `resume` to start one", code="conflict")
    folder.check(identity)
    return folder


@contextmanager
def _claim_folder(
    task: TrainingTask, identity: Mapping[str, Any], processes: ProcessGroup, callback: TrainingCallback
) -> Iterator[dict[str, Any] | None]:
    """Lock the folder and store the task's identity in it; yield the card of a finished training."""
    folder = _open_folder(task, identity)
    card = folder.card()
    processes.wait()  # All processes read the folder before the first one writes to it.
    if card is not None:
        yield card  # Nothing is written, so the folder need not be writable.
        return
    with lock_folder(task.out, processes):
        folder.check(identity)  # Again: another process may have trained here before we had the lock.
        card = folder.card()
        if card is None and folder.is_begun and not Checkpoints(folder.checkpoints).steps():
            callback.on_message(f"{task.out} has no checkpoint yet: starting from the beginning")
        processes.wait()
        if card is None and processes.is_first:
            folder.begin(identity)
        yield card
