"""`metrist train`: train a likelihood, preference or consistency metric or an error analyst, and export one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metrist.cli.train_options import (
    LICENCE,
    BitsName,
    ConsistencyTrainingOptions,
    DataOptions,
    Files,
    KeepName,
    PreferenceTrainingOptions,
    SupportDataOptions,
    TrainingOptions,
    merge_files,
    read_bits,
)
from metrist.cli.train_study import SuiteOptions, run_suite
from metrist.errors import SpecError, format_count
from metrist.settings import as_arguments, setting
from metrist.train.recipe import PreferenceSettings

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


def _parse_languages(text: str) -> tuple[str, str]:
    first, comma, second = text.partition(",")
    if not (first and comma and second):
        raise SpecError(f"must be two names, such as en_XX,de_DE, got {text!r}")
    return first, second


def likelihood(
    *,
    files: Files = None,
    data: list[Path] | None = setting(
        None, "Pairs of texts: text and summary, paraphrases, …; repeatable.", metavar="FILE"
    ),
    base: str = setting("metrist:likelihood-small", "The sequence-to-sequence model to fine-tune.", metavar="MODEL"),
    training: TrainingOptions,
    pairs: int = setting(30_000, "Number of pairs to sample; 0: all.", min=0),
    max_length: int | None = setting(None, "Truncate texts to this many tokens.", min=2, shown="model's limit"),
    languages: tuple[str, str] | None = setting(
        None, "Languages of conditions and targets, as the model names them.", metavar="A,B", parse=_parse_languages
    ),
    bits: BitsName = setting(
        "16", "Bits per weight of a model tuned from metrist's own format; few undo small changes."
    ),
    skip_bad: bool = setting(False, "Skip rows that cannot be read, and count them."),
) -> None:
    from metrist.cli.training import describe_plan, print_plan, run_training
    from metrist.train.fit import plan_training
    from metrist.train.likelihood import LikelihoodPlan, LikelihoodTask

    options = training.base_model(base, languages)
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


def preference(
    files: Files = None,
    *,
    data: DataOptions,
    across: bool = setting(False, "With --from-run: compare outputs of different items, if each item has one."),
    base: str = setting(
        "metrist:preference-small",
        "The model to fine-tune: a shipped one, or an encoder, BART, T5 or a causal one of transformers.",
        metavar="MODEL",
    ),
    training: PreferenceTrainingOptions,
    labelled: bool | None = setting(
        None,
        "Put the fields' names before their texts.",
        "--labelled/--unlabelled",
        shown="unlabelled, or as the base was trained",
    ),
    keep: KeepName | None = setting(
        None, "Which side of a too long context is kept; both: cut the middle.", shown="end, or as the base was trained"
    ),
    preferences: PreferenceSettings,
    max_length: int | None = setting(
        None, "Tokens of instruction, context and answer together.", min=2, shown="512, or as the base was trained"
    ),
    licence: str | None = LICENCE,
    bits: BitsName | None = setting(
        None,
        "Bits per weight of a model tuned from metrist's own format; few undo small changes.",
        shown="16; 7 for a text encoder",
    ),
    criterion: str | None = setting(
        None, "What the pairs of a file that does not say so teach, such as fluency.", metavar="NAME", shown="overall"
    ),
    suite: SuiteOptions,
) -> None:
    from metrist.cli.training import describe_plan, print_plan, run_training
    from metrist.train.distributed import is_first_process
    from metrist.train.fit import plan_training
    from metrist.train.preference import PreferencePlan

    paths = data.paths(files, across=across)
    if suite.suite is not None and data.from_run is not None:
        raise SpecError("--suite trains on a file of pairs: leave out --from-run")
    unsupported = {
        **{name: getattr(training, name) for name in ("dev", "seed", "keep_checkpoints", "resume")},
        "licence": licence,
        "criterion": criterion,
    }
    suite.check(paths, unsupported)
    options = training.base_model(base)
    settings: dict[str, Any] = {
        "base": options,
        "layout": _choose_layout(labelled, keep, max_length),
        "recipe": training.recipe(options),
        **as_arguments(preferences),
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


def consistency(
    files: Files = None,
    *,
    data: SupportDataOptions,
    aspect: str | None = setting(
        None,
        "The rating that says whether the source supports an output.",
        "-a",
        metavar="NAME",
        shown="consistency, faithfulness, …",
    ),
    base: str = setting("metrist:english-small", "The text encoder to fine-tune.", metavar="MODEL"),
    training: ConsistencyTrainingOptions,
    window: int = setting(512, "Tokens that the model reads at once.", min=128),
    bits: int = setting(7, "Bits per stored weight.", min=2, max=7),
    licence: str | None = LICENCE,
) -> None:
    from metrist.cli.training import describe_plan, print_plan, run_training
    from metrist.evaluate.distill import read_judged_run
    from metrist.train.consistency import ConsistencyTask, divide_examples, read_support_examples
    from metrist.train.fit import plan_training

    paths = data.paths(files)
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
    out: Path = setting(..., "The folder to write.", "-o", metavar="DIR"),
    bits: BitsName = setting("8", "Bits per weight."),
    group: int | None = setting(None, "Columns that share a scale.", min=1, shown="a whole row"),
) -> None:
    from metrist.cli.output import print_text
    from metrist.models.numpy_inference.export import export_reward

    export_reward(folder, out, read_bits(bits), group)
    size = sum(path.stat().st_size for path in out.iterdir()) / 1e6
    print_text(f"wrote {out} ({size:,.1f} MB); score with preference(model='{out}')")
