"""`metrist train preference`: a model learns to tell better answers from worse ones."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from metrist.cli import train_options as told
from metrist.cli import train_suite as suites

if TYPE_CHECKING:
    from metrist.train.pair_material import PairMaterial
    from metrist.train.preference import Plan, Request


class PoolingName(StrEnum):
    """Which of the model's vectors is the answer's."""

    auto = "auto"
    answer = "answer"
    mean = "mean"
    first = "first"
    last = "last"


class KeepName(StrEnum):
    """Which side of a long context stays."""

    end = "end"
    start = "start"
    both = "both"


#: Whose vector each pooling takes, told by a dry run.
_VECTORS = {
    "answer": "mean over its tokens and the closing separator",
    "mean": "mean over all tokens",
    "first": "that of the first token",
    "last": "that of the last token",
}


class TiesName(StrEnum):
    """What becomes of pairs in which neither answer is better."""

    drop = "drop"
    soft = "soft"


def preference(
    data: Annotated[
        list[Path],
        typer.Option(
            "--data", metavar="FILE", help="Good and bad answers, as `metrist build pairs` writes; repeatable."
        ),
    ],
    base: Annotated[
        str,
        typer.Option("--base", metavar="MODEL", help="The model to begin with: an encoder, BART, T5, a causal one."),
    ],
    out: told.Out,
    dev: told.Dev = None,
    labelled: Annotated[
        bool, typer.Option("--labelled/--unlabelled", help="Put the fields' names before their texts.")
    ] = False,
    keep: Annotated[
        KeepName, typer.Option("--keep", help="Which side of a too long context stays; both: its middle goes.")
    ] = KeepName.end,
    pooling: Annotated[
        PoolingName,
        typer.Option(
            "--pooling",
            help="What is scored: the mean over the answer's or all tokens, the first or the last one; auto: as suits.",
        ),
    ] = PoolingName.auto,
    balance: Annotated[
        float,
        typer.Option("--balance", min=0, max=1, help="1: criteria weigh by their pairs; 0: all the same."),
    ] = 1.0,
    ties: Annotated[
        TiesName, typer.Option("--ties", help="Leave ties out, or learn that neither is better.")
    ] = TiesName.drop,
    regression: Annotated[
        float, typer.Option("--regression", min=0, help="Weight of learning the ratings too, where there are any.")
    ] = 0.0,
    max_length: Annotated[
        int, typer.Option("--max-length", min=2, help="Tokens of instruction, context and answer together.")
    ] = 512,
    epochs: told.Epochs = 5,
    batch: told.BatchSize = 32,
    lr: told.Lr = 2e-5,
    head_lr: Annotated[
        float | None, typer.Option("--head-lr", help="Learning rate of the last layer.", show_default="that of --lr")
    ] = None,
    schedule: told.ScheduleOption = told.ScheduleName.linear,
    warmup: told.Warmup = 0.1,
    weight_decay: told.WeightDecay = 0.01,
    clip: told.Clip = 1.0,
    seed: told.TrainingSeed = 0,
    dtype: told.DtypeOption = told.DtypeName.auto,
    max_tokens: told.MaxTokens = None,
    bucket: told.Bucket = 20,
    eval_every: told.EvalEvery = None,
    patience: told.Patience = None,
    checkpoint_every: told.CheckpointEvery = 1_000,
    keep_checkpoints: told.KeepCheckpoints = False,
    resume: told.Resume = False,
    revision: told.Revision = None,
    trust_remote_code: told.TrustRemoteCode = False,
    licence: Annotated[
        str | None, typer.Option("--licence", help="The licence that the card is to name, after that of base and data.")
    ] = None,
    suite: suites.SuiteName = None,
    setup: suites.Setups = None,
    seeds: suites.Seeds = None,
    split: suites.Split = None,
    jobs: suites.Jobs = None,
    criteria: suites.Criteria = "",
    choose: suites.Choose = "",
    budget: suites.Budget = None,
    paper_settings: suites.PaperSettings = False,
    no_models: suites.NoModels = False,
    dry_run: told.DryRun = False,
) -> None:
    """Train a model to give better answers higher scores; the same command goes on after a stop."""
    from metrist.models.options import Options
    from metrist.models.reward_layout import Layout
    from metrist.train.pair_material import gather_pairs
    from metrist.train.preference import Request

    recipe = told.recipe_of(
        epochs=epochs,
        batch=batch,
        lr=lr,
        schedule=schedule,
        warmup=warmup,
        weight_decay=weight_decay,
        clip=clip,
        seed=seed,
        dtype=dtype,
        max_tokens=max_tokens,
        bucket=bucket,
        eval_every=eval_every,
        patience=patience,
    )
    asked = suites.SuiteOptions(
        suite=suite,
        setups=setup,
        seeds=seeds,
        split=split,
        jobs=jobs,
        criteria=criteria,
        choose=choose,
        budget=budget,
        paper_settings=paper_settings,
        no_models=no_models,
    )
    asked.check()
    base_model = Options(model=base, revision=revision, trust_remote_code=trust_remote_code)
    layout = Layout(labelled=labelled, max_length=max_length, keep=keep.value)
    if suite is not None:
        from metrist.studies.heap.settings import Settings

        suites.run_suite(
            asked,
            Settings(
                base=base_model,
                layout=layout,
                pooling=pooling.value,
                recipe=recipe,
                balance=balance,
                ties=ties.value,
                regression=regression,
                head_lr=head_lr,
            ),
            data,
            out,
            without={
                "--dev": dev,
                "--seed": seed,
                "--licence": licence,
                "--keep-checkpoints": keep_checkpoints,
                "--resume": resume,
            },
            checkpoint_every=checkpoint_every,
            dry_run=dry_run,
        )
        return
    material = gather_pairs(data, dev, seed=seed)
    request = Request(
        train=material.train,
        dev=material.dev,
        base=base_model,
        out=out,
        layout=layout,
        pooling=pooling.value,
        recipe=recipe,
        balance=balance,
        ties=ties.value,
        regression=regression,
        head_lr=head_lr,
        resume=resume,
        checkpoint_every=checkpoint_every,
        keep_checkpoints=keep_checkpoints,
        data=material.described(),
        licence=licence,
    )
    if dry_run:
        _tell_plan(request, material)
    else:
        _train(request, material)


def _train(request: Request, material: PairMaterial) -> None:
    from metrist.cli.output import remark
    from metrist.cli.training_result import carry_out
    from metrist.train.preference import train
    from metrist.train.ranks import is_first_process

    if is_first_process():
        for said in material.remarks():
            remark(said)
    carry_out(lambda watcher: train(request, watcher), request.out)


def _tell_plan(request: Request, material: PairMaterial) -> None:
    from metrist.cli.output import remark, say
    from metrist.train.preference import plan

    planned = plan(request)
    for said in (*material.remarks(), *planned.remarks()):
        remark(said)
    for line in _plan_lines(planned, request):
        say(line)


def _plan_lines(planned: Plan, request: Request) -> list[str]:
    epochs, lengths, settings = request.recipe.epochs, planned.train.lengths, planned.settings
    return [
        f"training pairs     {len(planned.train):,} of {len(set(planned.train.criteria)):,} criteria",
        f"development pairs  {len(planned.dev) if planned.dev else 0:,}",
        f"steps              {planned.steps:,} ({epochs:,} epochs of {planned.steps // epochs:,})",
        f"tokens             {int(lengths.sum()):,} an epoch; {lengths.mean():.0f} a pair, at most {lengths.max():,}",
        f"padding            {planned.padding:.1%} of what is computed",
        f"an answer's vector {_VECTORS[settings.pooling]}, in rows of {settings.layout.max_length:,} tokens at most",
    ]
