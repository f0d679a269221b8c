"""`metrist train`: metrics that learn."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metrist.cli.options import SkipBad
from metrist.errors import SpecError

if TYPE_CHECKING:
    from metrist.train.likelihood import Plan, Request

train = typer.Typer(
    name="train", help="Train a metric of your own.", no_args_is_help=True, pretty_exceptions_enable=False
)


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


@train.command("likelihood")
def likelihood(
    data: Annotated[
        list[Path],
        typer.Option("--data", metavar="FILE", help="Pairs of texts: text and summary, paraphrases, …; repeatable."),
    ],
    base: Annotated[str, typer.Option("--base", metavar="MODEL", help="The sequence-to-sequence model to begin with.")],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="DIR", help="Where the trained model goes.")],
    dev: Annotated[
        str | None,
        typer.Option("--dev", metavar="FILE/SHARE", help="Pairs to judge by: a file, or a share such as 0.05."),
    ] = None,
    pairs: Annotated[int, typer.Option("--pairs", min=0, help="Pairs to draw of the data; 0: all.")] = 30_000,
    epochs: Annotated[int, typer.Option("--epochs", min=1, help="How often each pair is seen.")] = 1,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Pairs per update.")] = 20,
    lr: Annotated[float, typer.Option("--lr", help="Highest learning rate.")] = 5e-5,
    schedule: Annotated[
        ScheduleName, typer.Option("--schedule", help="How the rate falls after the warm-up.")
    ] = ScheduleName.linear,
    warmup: Annotated[float, typer.Option("--warmup", help="Share of the steps in which the rate rises.")] = 0.0,
    weight_decay: Annotated[float, typer.Option("--weight-decay", help="AdamW's weight decay.")] = 0.0,
    clip: Annotated[float, typer.Option("--clip", help="Largest norm of the gradients; 0: any.")] = 1.0,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of order, split and dropout.")] = 0,
    dtype: Annotated[
        DtypeName, typer.Option("--dtype", help="What to compute in; auto: bfloat16 on cards that have it.")
    ] = DtypeName.auto,
    max_length: Annotated[
        int | None,
        typer.Option("--max-length", min=2, help="Cut texts at so many tokens. [default: the model's limit]"),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option("--max-tokens", min=1, help="Tokens to compute at once. [default: what suits the device]"),
    ] = None,
    bucket: Annotated[
        int, typer.Option("--bucket", min=1, help="Batches drawn together by length, to pad less; 1: none.")
    ] = 1,
    eval_every: Annotated[
        int | None, typer.Option("--eval-every", min=1, help="Steps between evaluations. [default: an epoch]")
    ] = None,
    patience: Annotated[
        int | None, typer.Option("--patience", min=1, help="Stop after so many evaluations without a better one.")
    ] = None,
    checkpoint_every: Annotated[
        int, typer.Option("--checkpoint-every", min=1, help="Steps between checkpoints.")
    ] = 500,
    keep_checkpoints: Annotated[
        bool, typer.Option("--keep-checkpoints", help="Leave the last checkpoints there when all is done.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Only go on with a training that was stopped; never begin one.")
    ] = False,
    revision: Annotated[str | None, typer.Option("--revision", help="The base model's revision on the hub.")] = None,
    languages: Annotated[
        str | None,
        typer.Option("--languages", metavar="A,B", help="Of conditions and targets, as a multilingual model has them."),
    ] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run Python code that comes with the base model.")
    ] = False,
    skip_bad: SkipBad = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be trained on, and stop.")] = False,
) -> None:
    """Fine-tune a sequence-to-sequence model for likelihood metrics; the same command goes on after a stop."""
    from metrist.models.options import Options
    from metrist.train.likelihood import Request
    from metrist.train.recipe import Recipe

    recipe = Recipe(
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
    request = Request(
        data=tuple(data),
        base=Options(
            model=base, revision=revision, trust_remote_code=trust_remote_code, languages=_languages(languages)
        ),
        out=out,
        dev=dev,
        pairs=pairs,
        max_length=max_length,
        recipe=recipe,
        skip_bad=skip_bad,
        resume=resume,
        checkpoint_every=checkpoint_every,
        keep_checkpoints=keep_checkpoints,
    )
    if dry_run:
        _tell_plan(request)
    else:
        _train(request)


def _languages(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    first, comma, second = text.partition(",")
    if not (first and comma and second):
        raise SpecError(f"--languages wants two names, as in en_XX,de_DE, got {text!r}")
    return first, second


def _train(request: Request) -> None:
    from metrist.cli.output import remark
    from metrist.cli.training_progress import training_progress
    from metrist.train.likelihood import train as train_likelihood
    from metrist.train.ranks import is_first_process

    try:
        with training_progress() as watcher:
            card = train_likelihood(request, watcher)
    except KeyboardInterrupt as stop:
        if str(stop) and is_first_process():  # A checkpoint was written; Ctrl-C before the first step says nothing.
            remark(f"{stop}; the same command goes on from there")
        raise
    if is_first_process():
        _tell_result(card, request)


def _tell_result(card: dict[str, Any], request: Request) -> None:
    from metrist.cli.output import say

    figures = card["figures"]
    if figures:
        say(f"{figures['name']} of the development pairs: {figures['before']:.4f} before, {figures['after']:.4f} after")
    say(f"trained in {card['training']['seconds']:,} s: {request.out} (fingerprint {card['fingerprint']})")
    say(f'use it: metrist score … -m "{card["metric"]}"')


def _tell_plan(request: Request) -> None:
    from metrist.cli.output import remark, say
    from metrist.train.likelihood import plan

    planned = plan(request)
    for said in planned.material.remarks():
        remark(said)
    for line in _plan_lines(planned, request):
        say(line)


def _plan_lines(planned: Plan, request: Request) -> list[str]:
    epochs, lengths = request.recipe.epochs, planned.train.lengths
    lines = [
        f"training pairs     {len(planned.train):,}",
        f"development pairs  {len(planned.dev) if planned.dev else 0:,}",
        f"steps              {planned.steps:,} ({epochs:,} epochs of {planned.steps // epochs:,})",
        f"tokens             {int(lengths.sum()):,} an epoch; {lengths.mean():.0f} a pair, at most {lengths.max():,}",
    ]
    conditions, targets, tokens = planned.train.cut
    return [*lines, f"too long           {conditions:,} conditions, {targets:,} targets; {tokens:,} tokens cut"]
