"""`metrist train export`: a trained preference model in a form that needs no torch."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from metrist.cli import train_options as told
from metrist.cli.options import SkipBad
from metrist.errors import SpecError

if TYPE_CHECKING:
    from metrist.train.likelihood import LikelihoodPlan, LikelihoodTask


class BitsName(StrEnum):
    """How many bits a weight has on the disk; float32 keeps all of it."""

    eight = "8"
    six = "6"
    four = "4"
    whole = "float32"


def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a trained preference model, a BERT.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="A folder for the new form.")],
    bits: Annotated[BitsName, typer.Option("--bits", help="Bits a weight.")] = BitsName.eight,
    group: Annotated[
        int | None, typer.Option("--group", min=1, help="So many columns share a scale.", show_default="a whole row")
    ] = None,
) -> None:
    """Bring a trained preference model into metrist's own form: small, and read without torch."""
    from metrist.cli.output import print_text
    from metrist.models.numpy_inference.export import export_reward

    export_reward(folder, out, None if bits is BitsName.whole else int(bits), group)
    size = sum(path.stat().st_size for path in out.iterdir()) / 1e6
    print_text(f"wrote {out} ({size:,.1f} MB); score with preference(model='{out}')")


# `metrist train likelihood`: a sequence-to-sequence model learns to find targets likely.


def likelihood(
    data: Annotated[
        list[Path],
        typer.Option("--data", metavar="FILE", help="Pairs of texts: text and summary, paraphrases, …; repeatable."),
    ],
    base: Annotated[str, typer.Option("--base", metavar="MODEL", help="The sequence-to-sequence model to begin with.")],
    out: told.Out,
    dev: told.Dev = None,
    pairs: Annotated[int, typer.Option("--pairs", min=0, help="Pairs to draw of the data; 0: all.")] = 30_000,
    epochs: told.Epochs = 1,
    batch: told.BatchSize = 20,
    lr: told.Lr = 5e-5,
    schedule: told.ScheduleOption = told.ScheduleName.linear,
    warmup: told.Warmup = 0.0,
    weight_decay: told.WeightDecay = 0.0,
    clip: told.Clip = 1.0,
    seed: told.TrainingSeed = 0,
    dtype: told.DtypeOption = told.DtypeName.auto,
    max_length: Annotated[
        int | None,
        typer.Option("--max-length", min=2, help="Cut texts at so many tokens.", show_default="the model's limit"),
    ] = None,
    max_tokens: told.MaxTokens = None,
    bucket: told.Bucket = 1,
    eval_every: told.EvalEvery = None,
    patience: told.Patience = None,
    checkpoint_every: told.CheckpointEvery = 500,
    keep_checkpoints: told.KeepCheckpoints = False,
    resume: told.Resume = False,
    revision: told.Revision = None,
    languages: Annotated[
        str | None,
        typer.Option("--languages", metavar="A,B", help="Of conditions and targets, as a multilingual model has them."),
    ] = None,
    trust_remote_code: told.TrustRemoteCode = False,
    skip_bad: SkipBad = False,
    dry_run: told.DryRun = False,
) -> None:
    """Fine-tune a sequence-to-sequence model for likelihood metrics; the same command goes on after a stop."""
    from metrist.models.devices import Options
    from metrist.train.likelihood import LikelihoodTask

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
    request = LikelihoodTask(
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


def _train(request: LikelihoodTask) -> None:
    from metrist.cli.training_progress import carry_out
    from metrist.train.fit import fit

    carry_out(lambda callback: fit(request, callback), request.out)


def _languages(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    first, comma, second = text.partition(",")
    if not (first and comma and second):
        raise SpecError(f"--languages wants two names, as in en_XX,de_DE, got {text!r}")
    return first, second


def _tell_plan(request: LikelihoodTask) -> None:
    from metrist.cli.output import print_note, print_text
    from metrist.train.fit import plan_training
    from metrist.train.likelihood import LikelihoodPlan

    plan = plan_training(request)
    assert isinstance(plan, LikelihoodPlan)
    for message in plan.data.remarks():
        print_note(message)
    for line in _plan_lines(plan, request):
        print_text(line)


def _plan_lines(planned: LikelihoodPlan, request: LikelihoodTask) -> list[str]:
    epochs, lengths = request.recipe.epochs, planned.train.lengths
    lines = [
        f"training pairs     {len(planned.train):,}",
        f"development pairs  {len(planned.dev) if planned.dev else 0:,}",
        f"steps              {planned.steps:,} ({epochs:,} epochs of {planned.steps // epochs:,})",
        f"tokens             {int(lengths.sum()):,} an epoch; {lengths.mean():.0f} a pair, at most {lengths.max():,}",
    ]
    conditions, targets, tokens = planned.train.cut
    return [*lines, f"too long           {conditions:,} conditions, {targets:,} targets; {tokens:,} tokens cut"]
