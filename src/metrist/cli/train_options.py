"""Options that all trainings share, each said once."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from metrist.train.recipe import Recipe


class ScheduleName(StrEnum):
    """How the learning rate falls."""

    linear = "linear"
    cosine = "cosine"
    constant = "constant"


class DtypeName(StrEnum):
    """The number format to compute in; the weights stay float32."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"


Out = Annotated[Path, typer.Option("-o", "--out", metavar="DIR", help="Where the trained model goes.")]
Dev = Annotated[
    str | None,
    typer.Option("--dev", metavar="FILE/SHARE", help="Pairs to judge by: a file, or a share such as 0.05."),
]
Epochs = Annotated[int, typer.Option("--epochs", min=1, help="How often each pair is seen.")]
BatchSize = Annotated[int, typer.Option("--batch", min=1, help="Pairs per update.")]
Lr = Annotated[float, typer.Option("--lr", help="Highest learning rate.")]
ScheduleOption = Annotated[ScheduleName, typer.Option("--schedule", help="How the rate falls after the warm-up.")]
Warmup = Annotated[float, typer.Option("--warmup", help="Share of the steps in which the rate rises.")]
WeightDecay = Annotated[float, typer.Option("--weight-decay", help="AdamW's weight decay.")]
Clip = Annotated[float, typer.Option("--clip", help="Largest norm of the gradients; 0: any.")]
TrainingSeed = Annotated[int, typer.Option("--seed", min=0, help="Seed of order, split and dropout.")]
DtypeOption = Annotated[
    DtypeName, typer.Option("--dtype", help="What to compute in; auto: bfloat16 on cards that have it.")
]
MaxTokens = Annotated[
    int | None,
    typer.Option("--max-tokens", min=1, help="Tokens to compute at once.", show_default="what suits the device"),
]
Bucket = Annotated[int, typer.Option("--bucket", min=1, help="Batches drawn together by length, to pad less; 1: none.")]
EvalEvery = Annotated[
    int | None, typer.Option("--eval-every", min=1, help="Steps between evaluations.", show_default="an epoch")
]
Patience = Annotated[
    int | None, typer.Option("--patience", min=1, help="Stop after so many evaluations without a better one.")
]
CheckpointEvery = Annotated[int, typer.Option("--checkpoint-every", min=1, help="Steps between checkpoints.")]
KeepCheckpoints = Annotated[
    bool, typer.Option("--keep-checkpoints", help="Leave the last checkpoints there when all is done.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Only go on with a training that was stopped; never begin one.")]
Revision = Annotated[str | None, typer.Option("--revision", help="The base model's revision on the hub.")]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run Python code that comes with the base model.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be trained on, and stop.")]


def recipe_of(
    *,
    epochs: int,
    batch: int,
    lr: float,
    schedule: ScheduleName,
    warmup: float,
    weight_decay: float,
    clip: float,
    seed: int,
    dtype: DtypeName,
    max_tokens: int | None,
    bucket: int,
    eval_every: int | None,
    patience: int | None,
) -> Recipe:
    """The recipe that the options say."""
    from metrist.train.recipe import Recipe

    return Recipe(
        epochs=epochs,
        batch=batch,
        lr=lr,
        schedule=schedule.value,
        warmup=warmup,
        weight_decay=weight_decay,
        clip=clip or None,
        seed=seed,
        dtype=dtype.value,
        max_tokens=max_tokens,
        bucket=bucket,
        eval_every=eval_every,
        patience=patience,
    )
