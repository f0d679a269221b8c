"""`metrist train`: train a likelihood, preference or consistency metric or an error analyst, and export one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metrist.cli.options import SkipBad, TiesName, expand_options
from metrist.cli.train_options import (
    Bits,
    BitsName,
    ConsistencyTrainingOptions,
    DataOptions,
    Files,
    KeepName,
    Licence,
    PoolingName,
    PreferenceTrainingOptions,
    SupportDataOptions,
    TrainingOptions,
    merge_files,
    read_bits,
)
from metrist.cli.train_study import SuiteOptions, run_suite
from metrist.errors import SpecError, format_count

if TYPE_CHECKING:
    from metrist.models.devices import Options
    from metrist.models.reward_layout import RewardLayout
    from metrist.train.preference import PreferenceTask

#: The description of each pooling in a dry run.
_POOLINGS = {
    "answer": "mean over its tokens and the closing separator",
    "mean": "mean over all tokens",
    "first": "that of the first token",
    "last": "that of the last token",
}


@expand_options
def likelihood(
    *,
    files: Files = None,
    data: Annotated[
        list[Path] | None,
        typer.Option("--data", metavar="FILE", help="Pairs of texts: text and summary, paraphrases, …; repeatable."),
    ] = None,
    base: Annotated[
        str, typer.Option("--base", metavar="MODEL", help="The sequence-to-sequence model to fine-tune.")
    ] = "metrist:likelihood-small",
    training: TrainingOptions,
    pairs: Annotated[int, typer.Option("--pairs", min=0, help="Number of pairs to sample; 0: all.")] = 30_000,
    max_length: Annotated[
        int | None,
        typer.Option("--max-length", min=2, help="Truncate texts to this many tokens.", show_default="model's limit"),
    ] = None,
    languages: Annotated[
        str | None,
        typer.Option(
            "--languages",
            metavar="A,B",
            help="Languages of conditions and targets, as the model names them.",
        ),
    ] = None,
    bits: Bits = "16",
    skip_bad: SkipBad = False,
) -> None:
    """Fine-tune a sequence-to-sequence model for likelihood metrics; the same command resumes after a stop."""
    from metrist.cli.training import describe_plan, print_plan, run_training
    from metrist.train.fit import plan_training
    from metrist.train.likelihood import LikelihoodPlan, LikelihoodTask

    options = training.base_model(base, _parse_languages(languages))
    dev, default_dev = training.development(options)
    task = LikelihoodTask(
        data=tuple(merge_files(files, data)),
        dev=dev or default_dev,
        pairs=pairs,
        max_length=max_length,
        bits=read_bits(bits),
        skip_bad=skip_bad,
        **training.task_settings("likelihood", options),
    )
    if not training.dry_run:
        run_training(task)
        return
    plan = plan_training(task)
    assert isinstance(plan, LikelihoodPlan)
    conditions, targets, tokens = plan.train.cut
    print_plan(
        plan.data.remarks(),
        f"training pairs     {len(plan.train):,}",
        *describe_plan(plan, task.recipe.epochs),
        f"too long           {format_count(conditions, 'condition')}, {format_count(targets, 'target')}; "
        f"{format_count(tokens, 'token')} cut",
    )


def _parse_languages(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    first, comma, second = text.partition(",")
    if not (first and comma and second):
        raise SpecError(f"--languages must be two names, such as en_XX,de_DE, got {text!r}")
    return first, second


@expand_options
def preference(
    *,
    data: DataOptions,
    across: Annotated[
        bool,
        typer.Option("--across", help="With --from-run: compare outputs of different items, if each item has one."),
    ] = False,
    base: Annotated[
        str,
        typer.Option(
            "--base",
            metavar="MODEL",
            help="The model to fine-tune: a shipped one, or an encoder, BART, T5 or a causal one of transformers.",
        ),
    ] = "metrist:preference-small",
    training: PreferenceTrainingOptions,
    labelled: Annotated[
        bool | None,
        typer.Option(
            "--labelled/--unlabelled",
            help="Put the fields' names before their texts.",
            show_default="unlabelled, or as the base was trained",
        ),
    ] = None,
    keep: Annotated[
        KeepName | None,
        typer.Option(
            "--keep",
            help="Which side of a too long context is kept; both: cut the middle.",
            show_default="end, or as the base was trained",
        ),
    ] = None,
    pooling: Annotated[
        PoolingName,
        typer.Option(
            "--pooling",
            help="What is scored: the mean over the answer's or all tokens, the first or the last token; auto: by the "
            "model's kind.",
        ),
    ] = "auto",
    balance: Annotated[
        float,
        typer.Option("--balance", min=0, max=1, help="1: weight criteria by their pairs; 0: weight them equally."),
    ] = 1.0,
    ties: Annotated[
        TiesName, typer.Option("--ties", help="Drop ties, or learn that neither answer is better.")
    ] = "drop",
    regression: Annotated[
        float, typer.Option("--regression", min=0, help="Weight of an added loss on the ratings, if there are any.")
    ] = 0.0,
    max_length: Annotated[
        int | None,
        typer.Option(
            "--max-length",
            min=2,
            help="Tokens of instruction, context and answer together.",
            show_default="512, or as the base was trained",
        ),
    ] = None,
    head_lr: Annotated[
        float | None, typer.Option("--head-lr", help="Learning rate of the last layer.", show_default="that of --lr")
    ] = None,
    licence: Licence = None,
    bits: Annotated[
        BitsName | None,
        typer.Option(
            "--bits",
            help="Bits per weight of a model tuned from metrist's own format; few undo small changes.",
            show_default="16; 7 for a text encoder",
        ),
    ] = None,
    criterion: Annotated[
        str | None,
        typer.Option(
            "--criterion",
            metavar="NAME",
            help="What the pairs of a file that does not say so teach, such as fluency.",
            show_default="overall",
        ),
    ] = None,
    suite: SuiteOptions,
) -> None:
    """Train a model to give better answers higher scores; the same command resumes after a stop."""
    from metrist.cli.training import describe_plan, print_plan, run_training
    from metrist.train.distributed import is_first_process
    from metrist.train.fit import plan_training
    from metrist.train.preference import PreferencePlan

    paths = data.paths(across=across)
    if suite.suite is not None and data.from_run is not None:
        raise SpecError("--suite trains on a file of pairs: leave out --from-run")
    unsupported = {
        "--dev": training.dev,
        "--seed": training.seed,
        "--licence": licence,
        "--criterion": criterion,
        "--keep-checkpoints": training.keep_checkpoints,
        "--resume": training.resume,
    }
    suite.check(paths, unsupported)
    options = training.base_model(base)
    settings: dict[str, Any] = {
        "base": options,
        "layout": _choose_layout(labelled, keep, max_length),
        "pooling": pooling,
        "recipe": training.recipe(options),
        "balance": balance,
        "ties": ties,
        "regression": regression,
        "head_lr": head_lr,
    }
    if suite.suite is not None:
        run_suite(
            suite,
            settings,
            paths[0],
            training.folder("preference"),
            checkpoint_every=training.checkpoint_every,
            dry_run=training.dry_run,
        )
        return
    settings |= training.task_settings("preference", options)
    settings |= {"bits": read_bits(bits) if bits else "auto", "licence": licence}
    if data.from_run is not None:
        task, remarks = _prepare_distillation(data, training, settings, across=across, criterion=criterion)
    else:
        task, remarks = _prepare_preference(paths, training, settings, options, criterion)
    if not training.dry_run:
        run_training(task, remarks if is_first_process() else ())
        return
    plan = plan_training(task)
    assert isinstance(plan, PreferencePlan)
    pooled, max_tokens = _POOLINGS[plan.settings.pooling], plan.settings.layout.max_length
    print_plan(
        (*remarks, *plan.remarks()),
        f"training pairs     {len(plan.train):,} of {len(set(plan.train.criteria)):,} criteria",
        *describe_plan(plan, task.recipe.epochs),
        f"padding            {plan.padding:.1%} of what is computed",
        f"an answer's vector {pooled}, in rows of {max_tokens:,} tokens at most",
    )


def _prepare_preference(
    paths: list[Path], training: TrainingOptions, settings: dict[str, Any], base: Options, criterion: str | None
) -> tuple[PreferenceTask, list[str]]:
    """Return the training that learns from files, and what the user should know about it."""
    from metrist.train.dataset import load_preference_pairs
    from metrist.train.preference import PreferenceTask, base_instructions

    dev, default_dev = training.development(base)
    dataset = load_preference_pairs(
        paths,
        dev,
        seed=training.seed,
        learned=base_instructions(base),
        default_dev=default_dev,
        criterion=criterion,
    )
    task = PreferenceTask(train=dataset.train, dev=dataset.dev, data=dataset.describe(), **settings)
    return task, dataset.remarks()


def _prepare_distillation(
    data: DataOptions, training: TrainingOptions, settings: dict[str, Any], *, across: bool, criterion: str | None
) -> tuple[PreferenceTask, list[str]]:
    """Return the training that learns from a run, and what the user should know about it."""
    from metrist.evaluate.distill import read_judge
    from metrist.train.distillation import DistillationTask, make_pairs

    assert data.from_run is not None
    outputs = read_judge(data.from_run, data.metric, texts=data.texts or [], criterion=criterion)
    pairs = make_pairs(outputs, training.held_out(), seed=training.seed, across=across)
    task = DistillationTask(
        train=pairs.train, dev=pairs.dev, held_out=pairs.held_out, across=across, data=pairs.facts, **settings
    )
    return task, pairs.notes


@expand_options
def consistency(
    *,
    data: SupportDataOptions,
    aspect: Annotated[
        str | None,
        typer.Option(
            "-a",
            "--aspect",
            metavar="NAME",
            help="The rating that says whether the source supports an output.",
            show_default="consistency, faithfulness, …",
        ),
    ] = None,
    base: Annotated[
        str, typer.Option("--base", metavar="MODEL", help="The text encoder to fine-tune.")
    ] = "metrist:english-small",
    training: ConsistencyTrainingOptions,
    window: Annotated[int, typer.Option("--window", min=128, help="Tokens that the model reads at once.")] = 512,
    bits: Annotated[int, typer.Option("--bits", min=2, max=7, help="Bits per stored weight.")] = 7,
    licence: Licence = None,
) -> None:
    """Train a model to tell which sentences the source supports; the same command resumes after a stop."""
    from metrist.cli.training import describe_plan, print_plan, run_training
    from metrist.evaluate.distill import read_judged_run
    from metrist.train.consistency import ConsistencyTask, divide_examples, read_support_examples
    from metrist.train.fit import plan_training

    paths = data.paths()
    if data.from_run is not None:
        examples = read_judged_run(data.from_run, data.metric, texts=data.texts or (), aspect=aspect)
    else:
        examples = read_support_examples(paths, aspect)
    divided = divide_examples(examples.examples, training.held_out(), training.seed, aspect)
    task = ConsistencyTask(
        train=divided.train,
        dev=divided.dev,
        window=window,
        bits=bits,
        licence=licence,
        data={"labels": "; ".join(examples.notes)},
        **training.task_settings("consistency", training.base_model(base)),
    )
    if not training.dry_run:
        run_training(task, examples.notes)
        return
    plan = plan_training(task)
    print_plan(
        (*examples.notes, *plan.remarks()),
        f"training outputs   {len(divided.train):,} in {format_count(len(plan.train), 'row')}",
        *describe_plan(plan, task.recipe.epochs, "row"),
    )


def _choose_layout(labelled: bool | None, keep: KeepName | None, max_length: int | None) -> RewardLayout | None:
    """Return the layout that the options select; None if they leave it to the base."""
    from metrist.models.reward_layout import RewardLayout

    values = {"labelled": labelled, "keep": keep, "max_length": max_length}
    selected: dict[str, Any] = {name: value for name, value in values.items() if value is not None}
    return RewardLayout(**selected) if selected else None


def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a trained preference model, a BERT.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="The folder to write.")],
    bits: Annotated[BitsName, typer.Option("--bits", help="Bits per weight.")] = "8",
    group: Annotated[
        int | None, typer.Option("--group", min=1, help="Columns that share a scale.", show_default="a whole row")
    ] = None,
) -> None:
    """Export a trained preference model to metrist's own format, which is small and needs no torch."""
    from metrist.cli.output import print_text
    from metrist.models.numpy_inference.export import export_reward

    export_reward(folder, out, read_bits(bits), group)
    size = sum(path.stat().st_size for path in out.iterdir()) / 1e6
    print_text(f"wrote {out} ({size:,.1f} MB); score with preference(model='{out}')")
