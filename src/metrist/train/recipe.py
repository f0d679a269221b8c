"""Hyperparameters of a training, and the learning-rate schedule."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from metrist.errors import RunError
from metrist.settings import check_settings, setting, split_commas

Schedule = Literal["linear", "cosine", "constant"]
TrainingDtype = Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeSettings:
    """Hyperparameters as a user gives them: None for those that depend on the model and the task."""

    epochs: int | None = setting(None, "Number of passes over the pairs.", min=1)
    batch: int | None = setting(None, "Pairs per update.", min=1)
    lr: float | None = setting(None, "Peak learning rate.", shown="5e-05")
    schedule: Schedule = setting("linear", "How the learning rate falls after the warm-up.")
    warmup: float = setting(0.0, "Share of the steps in which the learning rate rises.")
    weight_decay: float = setting(0.0, "AdamW's weight decay.")
    clip: float | None = setting(1.0, "Maximum norm of the gradients; 0: no limit.", parse=lambda norm: norm or None)
    seed: int = setting(0, "Seed of order, split and dropout.", min=0)
    dtype: TrainingDtype = setting("auto", "Number format to compute in; auto: bfloat16 on GPUs that support it.")
    max_tokens: int | None = setting(None, "Tokens to compute at once.", min=1, shown="as fits the device")
    bucket: int = setting(1, "Batches drawn together by length, to reduce padding; 1: none.", min=1)
    eval_every: int | None = setting(None, "Steps between evaluations.", min=1, shown="an epoch")
    patience: int | None = setting(None, "Stop after N evaluations without improvement.", metavar="N", min=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe(RecipeSettings):
    """Hyperparameters. The defaults are those of the BARTScore paper (section 3.3.2) where it gives them.

    `max_tokens` does not change what is learned, so there is no number of accumulation steps. The weights stay float32,
    whatever the `dtype` of the computation.
    """

    epochs: int = 1
    batch: int = 20
    lr: float = 5e-5

    def __post_init__(self) -> None:
        check_settings(self)
        if not (self.lr > 0 and math.isfinite(self.lr)):
            raise RunError(f"`lr` must be a number above 0, got {self.lr}", code="invalid_value")
        if not 0 <= self.warmup < 1:
            raise RunError(
                f"`warmup` must be a share of the steps, from 0 to below 1, got {self.warmup}", code="invalid_value"
            )
        if self.weight_decay < 0:
            raise RunError(f"`weight_decay` must not be negative, got {self.weight_decay}", code="invalid_value")
        if self.clip is not None and not self.clip > 0:
            raise RunError(f"`clip` must be above 0, or None for no clipping, got {self.clip}", code="invalid_value")

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


# ---- Settings of tasks

Ties = Literal["drop", "soft"]
#: What is written: an adapter beside the base, a model of its own, or that and a GGUF file.
Stored = Literal["adapter", "merged", "gguf"]
#: How the prompt is given: through the model's chat template, or bare.
Turns = Literal["chat", "none"]
#: Which of the model's vectors represents the answer.
Pooling = Literal["auto", "answer", "mean", "first", "last"]


@dataclass(frozen=True, kw_only=True)
class PreferenceSettings:
    """What a preference model learns beside its recipe."""

    pooling: Pooling = setting(
        "auto",
        "What is scored: the mean over the answer's or all tokens, the first or the last token; auto: by the "
        "model's kind.",
    )
    balance: float = setting(1.0, "1: weight criteria by their pairs; 0: weight them equally.", min=0, max=1)
    ties: Ties = setting("drop", "Drop ties, or learn that neither answer is better.")
    regression: float = setting(0.0, "Weight of an added loss on the ratings, if there are any.", min=0)
    head_lr: float | None = setting(None, "Learning rate of the last layer.", shown="that of --lr")

    def __post_init__(self) -> None:
        check_settings(self)
        if self.head_lr is not None and not self.head_lr > 0:
            raise RunError(
                f"`head_lr` must be above 0, or None for the recipe's lr, got {self.head_lr}", code="invalid_value"
            )


@dataclass(frozen=True, kw_only=True)
class AnalystSettings:
    """How an error analyst is trained beside its recipe."""

    rank: int = setting(16, "Rank of the adapter.", min=1)
    adapter_dropout: float = setting(0.0, "Dropout before the adapter.", min=0)
    targets: tuple[str, ...] = setting(
        (), "Layers with an adapter, such as q_proj,v_proj.", metavar="A,B", shown="all linear", parse=split_commas
    )
    stored: Stored | None = setting(
        None, "Write an adapter, a merged model, or that and a GGUF file.", "--save", shown="adapter for LoRA"
    )
    turns: Turns | None = setting(
        None, "Use the chat template, or the bare prompt.", shown="chat, if there is a template"
    )
    max_length: int = setting(1024, "Tokens of a prompt and its analysis; longer ones are left out.", min=2)
    packing: bool = setting(True, "Let analyses share rows, without seeing each other.", "--packing/--no-packing")
    gradient_checkpointing: bool = setting(False, "Compute activations twice to save memory.")
    sharded: bool = setting(False, "Divide all weights over the GPUs (FSDP), with `accelerate launch`.", "--shard")
    tasks: tuple[str, ...] = setting((), "Train on these tasks only.", metavar="A,B", parse=split_commas)
    channels: tuple[str, ...] = setting(
        (), "Train on these channels only: real, synthetic, human, ….", metavar="A,B", parse=split_commas
    )
    licence: str | None = setting(None, "The licence to name in the card, after those of base and data.")
