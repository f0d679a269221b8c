"""`metrist train preference --suite heap`: a whole study of trainings; `metrist train tables`: its tables again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metrist.cli.options import Format, TableFormat
from metrist.errors import SpecError, did_you_mean

if TYPE_CHECKING:
    from metrist.studies.heap.jobs import Job, Settings, SetupName, SplitName
    from metrist.studies.heap.study import Study
from typing import TYPE_CHECKING

from metrist.cli import train_options as told

if TYPE_CHECKING:
    from metrist.train.dataset import PreferenceData
    from metrist.train.preference import PreferencePlan, PreferenceTask


class SplitOption(StrEnum):
    """Where pairs belong: as their file says, or each context on one side."""

    authors = "authors"
    honest = "honest"
    both = "both"


SuiteName = Annotated[
    str | None, typer.Option("--suite", metavar="NAME", help="Run a study of this suite's criteria: heap.")
]
Setups = Annotated[
    list[str] | None,
    typer.Option(
        "--setup",
        metavar="A,B",
        help="What trainings learn from: base, single, multi, cross-task, cross-cluster, or all; repeatable.",
        show_default="multi",
    ),
]
Seeds = Annotated[
    int | None, typer.Option("--seeds", min=1, help="Trainings of each kind, by their seeds.", show_default="5")
]
Split = Annotated[
    SplitOption | None,
    typer.Option("--split", help="As the file says, or each context on one side.", show_default="authors"),
]
Jobs = Annotated[int | None, typer.Option("--jobs", min=1, help="Trainings at once on one device.", show_default="1")]
Criteria = Annotated[str, typer.Option("--criteria", metavar="A,B", help="Only these.", show_default="all of the file")]
Choose = Annotated[
    str, typer.Option("--choose", metavar="A,B", help="Choose on dev: instruction, lr, batch, epochs, labelled, keep.")
]
Budget = Annotated[
    int | None, typer.Option("--budget", min=1, help="Trial trainings for what is chosen, each.", show_default="12")
]
PaperSettings = Annotated[
    bool, typer.Option("--paper-settings", help="Begin with the paper's learning rates, batches, epochs, labels.")
]
NoModels = Annotated[bool, typer.Option("--no-models", help="Keep what the models said, but not the models.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteOptions:
    """The options that only a suite has; None where one was not given."""

    suite: str | None
    setups: Sequence[str] | None
    seeds: int | None
    split: SplitOption | None
    jobs: int | None
    criteria: str
    choose: str
    budget: int | None
    paper_settings: bool
    no_models: bool

    def check(self) -> None:
        """Without a suite, none of them may be set."""
        named: dict[str, object] = {"--setup": self.setups, "--criteria": self.criteria, "--choose": self.choose}
        named |= {"--seeds": self.seeds, "--split": self.split, "--jobs": self.jobs, "--budget": self.budget}
        named |= {"--paper-settings": self.paper_settings, "--no-models": self.no_models}
        for name, value in named.items():
            if value and not self.suite:
                raise SpecError(f"{name} is for studies of a suite; give --suite heap too, or leave it out")


_REASONS = {"--resume": "the same command goes on with a study that was stopped"}


def run_suite(
    asked: SuiteOptions,
    settings: Settings,
    data: Sequence[Path],
    out: Path,
    *,
    without: Mapping[str, Any],
    checkpoint_every: int,
    dry_run: bool,
) -> None:
    """Run the study and print its tables. `without` are options that have no meaning here, with what was given."""
    for name, value in without.items():
        if value:
            reason = _REASONS.get(name, "a study has its own splits and seeds")
            raise SpecError(f"{name} has no meaning with --suite: {reason}; leave it out")
    if len(data) != 1:
        raise SpecError(f"a study has one file of pairs, got {len(data)} times --data")
    study = _study(asked, settings, data[0], out, checkpoint_every)
    if dry_run:
        _tell_plan(study)
    else:
        _run(study)


def tables(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a study.")],
    form: TableFormat = Format.text,
) -> None:
    """Print the tables of a study again, from what its finished trainings said."""
    from metrist.cli.output import print_tables
    from metrist.studies.heap.study import read_study
    from metrist.studies.heap.tables import make_tables

    print_tables(make_tables(read_study(folder)), form)


def _study(asked: SuiteOptions, settings: Settings, pairs: Path, out: Path, checkpoint_every: int) -> Study:
    from metrist.studies.heap.study import Study

    numbers = {"seeds": asked.seeds, "at_once": asked.jobs, "budget": asked.budget}
    return Study(
        suite=asked.suite or "heap",
        pairs=pairs,
        out=out,
        settings=settings,
        setups=_setups(asked.setups or ["multi"]),
        splits=_splits(asked.split or SplitOption.authors),
        criteria=_listed(asked.criteria),
        choose=_listed(asked.choose),
        paper_settings=asked.paper_settings,
        keep_models=not asked.no_models,
        checkpoint_every=checkpoint_every,
        **{name: number for name, number in numbers.items() if number is not None},
    )


def _setups(asked: Sequence[str]) -> tuple[SetupName, ...]:
    from metrist.studies.heap.jobs import SETUPS

    named = [name for text in asked for name in _listed(text)]
    known = (*SETUPS, "all")
    wrong = [name for name in named if name not in known]
    if wrong or not named:
        found = f"{wrong[0]!r}{did_you_mean(wrong[0], known)}" if wrong else "none"
        raise SpecError(f"--setup wants some of {', '.join(known)}, with commas between, got {found}")
    return tuple(setup for setup in SETUPS if setup in named or "all" in named)


def _splits(asked: SplitOption) -> tuple[SplitName, ...]:
    from metrist.studies.heap.jobs import SPLITS

    return tuple(one for one in SPLITS if asked.value in (one, "both"))


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _run(study: Study) -> None:
    from metrist.cli.output import print_note, print_tables
    from metrist.cli.training_progress import study_progress
    from metrist.studies.heap.study import run

    try:
        with study_progress() as watcher:
            outcome = run(study, watcher)
    except KeyboardInterrupt:
        print_note(f"stopped; the same command goes on with {study.out}")
        raise
    print_tables(outcome.tables, Format.text)
    for name, reason in outcome.failures.items():
        print_note(f"{name} failed and is in no table: {reason}")
    if outcome.failures:
        raise typer.Exit(1)


def _tell_plan(study: Study) -> None:
    from metrist import criteria
    from metrist.cli.output import print_text
    from metrist.studies.heap.study import check_folder, plan_jobs
    from metrist.studies.heap.training import read_study_data
    from metrist.train.fit import find_base

    data = read_study_data(study.pairs)
    planned = plan_jobs(study, criteria.suite(study.suite), data)
    check_folder(study, data)
    find_base(study.settings.base)  # A study would only learn in its first training that there is no such model.
    for line in _plan_lines(study, planned):
        print_text(line)


def _plan_lines(study: Study, planned: Sequence[Job]) -> Iterator[str]:
    yield f"{len(planned):,} trainings, {study.at_once:,} at once"
    if study.choose:
        searched = len({(job.subject, job.split) for job in planned if job.learns})
        yield f"before them up to {searched * study.budget:,} trials to choose {', '.join(study.choose)}"
    for job in planned:
        yield f"  {job.name}  learns {', '.join(job.learns) or 'nothing'}; judged by {', '.join(job.judged)}"


# `metrist train preference`: a model learns to tell better answers from worse ones.


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
    suite: SuiteName = None,
    setup: Setups = None,
    seeds: Seeds = None,
    split: Split = None,
    jobs: Jobs = None,
    criteria: Criteria = "",
    choose: Choose = "",
    budget: Budget = None,
    paper_settings: PaperSettings = False,
    no_models: NoModels = False,
    dry_run: told.DryRun = False,
) -> None:
    """Train a model to give better answers higher scores; the same command goes on after a stop."""
    from metrist.models.devices import Options
    from metrist.models.reward_layout import Layout
    from metrist.train.dataset import load_preference_pairs
    from metrist.train.preference import PreferenceTask

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
    asked = SuiteOptions(
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
        from metrist.studies.heap.jobs import Settings

        run_suite(
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
    material = load_preference_pairs(data, dev, seed=seed)
    request = PreferenceTask(
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
        data=material.describe(),
        licence=licence,
    )
    if dry_run:
        _print_training_plan(request, material)
    else:
        _train(request, material)


def _train(request: PreferenceTask, material: PreferenceData) -> None:
    from metrist.cli.output import print_note
    from metrist.cli.training_progress import carry_out
    from metrist.train.distributed import is_first_process
    from metrist.train.fit import fit

    if is_first_process():
        for said in material.remarks():
            print_note(said)
    carry_out(lambda callback: fit(request, callback), request.out)


def _print_training_plan(request: PreferenceTask, material: PreferenceData) -> None:
    from metrist.cli.output import print_note, print_text
    from metrist.train.fit import plan_training
    from metrist.train.preference import PreferencePlan

    plan = plan_training(request)
    assert isinstance(plan, PreferencePlan)
    for message in (*material.remarks(), *plan.remarks()):
        print_note(message)
    for line in _training_lines(plan, request):
        print_text(line)


def _training_lines(planned: PreferencePlan, request: PreferenceTask) -> list[str]:
    epochs, lengths, settings = request.recipe.epochs, planned.train.lengths, planned.settings
    return [
        f"training pairs     {len(planned.train):,} of {len(set(planned.train.criteria)):,} criteria",
        f"development pairs  {len(planned.dev) if planned.dev else 0:,}",
        f"steps              {planned.steps:,} ({epochs:,} epochs of {planned.steps // epochs:,})",
        f"tokens             {int(lengths.sum()):,} an epoch; {lengths.mean():.0f} a pair, at most {lengths.max():,}",
        f"padding            {planned.padding:.1%} of what is computed",
        f"an answer's vector {_VECTORS[settings.pooling]}, in rows of {settings.layout.max_length:,} tokens at most",
    ]
