"""How a model is trained: the numbers that a card prints, and the learning rate that follows from them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from metrist.errors import RunError
from metrist.models.devices import Options, resolve_placement
from metrist.train.distributed import ProcessGroup

Schedule = Literal["linear", "cosine", "constant"]
TrainingDtype = Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The defaults are those of the BARTScore paper (its section 3.3.2), as far as it says.

    `batch` is how many examples one update sees. How many of them are computed at once follows from `max_tokens`, so
    there is no number of accumulation steps to set: neither changes what is learned. `warmup` is a share of all steps;
    `bucket` is how many batches are drawn from examples of like length (1: none, purely random batches); `eval_every`
    counts steps (None: at the end of each epoch); `patience` counts evaluations without a better figure (None: never
    stop early). The weights stay float32 with either dtype; 'bfloat16' computes in it, and 'auto' means that where the
    device is good at it. `max_tokens` None: as many as suit the device. `settled` decides both before training.
    """

    epochs: int = 1
    batch: int = 20
    lr: float = 5e-5
    schedule: Schedule = "linear"
    warmup: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = 1.0
    seed: int = 0
    dtype: TrainingDtype = "auto"
    max_tokens: int | None = None
    bucket: int = 1
    eval_every: int | None = None
    patience: int | None = None

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "max_tokens", "bucket", "eval_every", "patience"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise RunError(f"a recipe's {name} must be at least 1, got {value}")
        if not (self.lr > 0 and math.isfinite(self.lr)):
            raise RunError(f"a recipe's lr must be a number above 0, got {self.lr}")
        if not 0 <= self.warmup < 1:
            raise RunError(f"a recipe's warmup must be a share of the steps, from 0 to below 1, got {self.warmup}")
        if self.weight_decay < 0 or self.seed < 0:
            raise RunError(
                f"a recipe's weight_decay and seed must not be negative, got {self.weight_decay}, {self.seed}"
            )
        if self.clip is not None and not self.clip > 0:
            raise RunError(f"a recipe's clip must be above 0, or None for no clipping, got {self.clip}")


def learning_rate(recipe: Recipe, step: int, steps: int) -> float:
    """The rate of a step, counted from 0: up from 0 during the warm-up, then as the schedule says."""
    warm = round(recipe.warmup * steps)
    if step < warm:
        return recipe.lr * step / warm
    gone = (step - warm) / max(1, steps - warm)
    if recipe.schedule == "linear":
        return recipe.lr * max(0.0, 1 - gone)
    if recipe.schedule == "cosine":
        return recipe.lr * 0.5 * (1 + math.cos(math.pi * min(1.0, gone)))
    return recipe.lr


# What a recipe leaves to the device, decided.


def settled(recipe: Recipe, base: Options, ranks: ProcessGroup) -> Recipe:
    """The recipe with a dtype and a number of tokens that suit the device the base model is trained on."""
    import torch

    # Learning keeps what scoring throws away, and takes about twice the room.
    tokens = recipe.max_tokens or max(1, resolve_placement(base).tokens // 2)
    on_card = torch.device(ranks.device).type == "cuda" and torch.cuda.is_bf16_supported()
    dtype = recipe.dtype if recipe.dtype != "auto" else "bfloat16" if on_card else "float32"
    return replace(recipe, max_tokens=tokens, dtype=dtype)
