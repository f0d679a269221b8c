"""A fast training: a small model with dropout learns sums."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from metrist.train.batches import Shuffled
from metrist.train.checkpoints import Checkpoints
from metrist.train.distributed import ProcessGroup
from metrist.train.loop import Trainer
from metrist.train.recipe import Recipe
from metrist.train.task import Examples, NoCallback

DEVICE = ProcessGroup(device="cpu")


class Rows(Examples):
    """Rows of 1 to 6 numbers; the target is their sum. Rows count by their length."""

    def __init__(self, count: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.lengths = rng.integers(1, 7, count)
        self.weights = self.lengths.astype(np.float64)
        self.numbers = rng.normal(size=(count, 6)) * (np.arange(6) < self.lengths[:, None])

    def collate(self, chosen: Any) -> Mapping[str, Tensor]:
        x = torch.from_numpy(self.numbers[chosen]).float()
        return {"x": x, "y": x.sum(1), "weight": torch.from_numpy(self.weights[chosen]).float()}


class SquaredError:
    figure = "negative squared error"

    def losses(self, model: Any, batch: Any) -> Tensor:
        return (model(batch["x"]).squeeze(1) - batch["y"]) ** 2

    def loss(self, model: Any, batch: Any) -> Tensor:
        return (self.losses(model, batch) * batch["weight"]).sum()

    def judge(self, model: Any, batch: Any) -> Tensor:
        return -self.losses(model, batch)


def toy_model(dropout: float = 0.2) -> torch.nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return torch.nn.Sequential(
            torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Dropout(dropout), torch.nn.Linear(16, 1)
        )


def toy(folder: Path, *, dropout: float = 0.2, every: int = 1000, dev: bool = True, **changed: Any) -> Trainer:
    parts: dict[str, Any] = {"objective": SquaredError(), "examples": Rows(90, 1), "processes": DEVICE}
    parts |= {name: changed.pop(name) for name in (*parts, "callback") if name in changed}
    recipe = Recipe(**{"epochs": 4, "batch": 8, "lr": 1e-2, "dtype": "float32", "max_tokens": 24, **changed})
    return Trainer(
        model=toy_model(dropout),
        dev=Rows(30, 2) if dev else None,
        sampler=Shuffled(lengths=parts["examples"].lengths, batch=recipe.batch, seed=recipe.seed, bucket=recipe.bucket),
        recipe=recipe,
        checkpoints=Checkpoints(folder, every=every),
        **parts,
    )


class StopAt(NoCallback):
    """Stops a training at a step, as a killed process does."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_progress(self, progress: Any) -> None:
        if progress.step >= self.step:
            raise RuntimeError("killed")
