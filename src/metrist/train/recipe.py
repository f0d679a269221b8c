"""Hyperparameters of a training, and the learning-rate schedule."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from metrist.errors import RunError

Schedule = Literal["linear", "cosine", "constant"]
TrainingDtype = Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Hyperparameters. The defaults are those of the BARTScore paper (section 3.3.2) where it gives them.

    `batch` is the number of examples per update. `max_tokens` limits how many tokens are computed at once (None: what
    suits the device); it does not change what is learned, so there is no number of accumulation steps. `warmup` is a
    share of all steps. `bucket` is the number of batches sorted by length together (1: purely random batches).
    `eval_every` counts steps (None: evaluate after each epoch). `patience` counts evaluations without improvement
    before training stops (None: never stop early). The weights stay float32; dtype 'bfloat16' computes in bfloat16, and
    'auto' does so if the device supports it.
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
                raise RunError(f"recipe: {name} must be at least 1, got {value}")
        if not (self.lr > 0 and math.isfinite(self.lr)):
            raise RunError(f"recipe: lr must be a number above 0, got {self.lr}")
        if not 0 <= self.warmup < 1:
            raise RunError(f"recipe: warmup must be a share of the steps, from 0 to below 1, got {self.warmup}")
        if self.weight_decay < 0 or self.seed < 0:
            raise RunError(f"recipe: weight_decay and seed must not be negative, got {self.weight_decay}, {self.seed}")
        if self.clip is not None and not self.clip > 0:
            raise RunError(f"recipe: clip must be above 0, or None for no clipping, got {self.clip}")

    def resolve(self, device: str, scoring_tokens: int) -> Recipe:
        """Resolve the defaults that depend on the device. `scoring_tokens` is the number of tokens that scoring
        computes at once there; training also stores activations and takes about twice the memory."""
        import torch

        fast_bfloat16 = torch.device(device).type == "cuda" and torch.cuda.is_bf16_supported()
        dtype = self.dtype if self.dtype != "auto" else "bfloat16" if fast_bfloat16 else "float32"
        return replace(self, max_tokens=self.max_tokens or max(1, scoring_tokens // 2), dtype=dtype)

    def identity(self) -> dict[str, Any]:
        """Return the settings that decide the trained weights: all but `max_tokens`."""
        return {name: value for name, value in asdict(self).items() if name != "max_tokens"}

    def learning_rate(self, step: int, steps: int) -> float:
        """Return the rate of a step, counted from 0: it rises from 0 during warm-up, then follows the schedule."""
        warm = round(self.warmup * steps)
        if step < warm:
            return self.lr * step / warm
        progress = (step - warm) / max(1, steps - warm)
        if self.schedule == "linear":
            return self.lr * max(0.0, 1 - progress)
        if self.schedule == "cosine":
            return self.lr * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
        return self.lr
