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
    from metrist.studies.heap.jobs import Job, SetupName, SplitName
    from metrist.studies.heap.settings import Settings
    from metrist.studies.heap.study import Study


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
    from metrist.cli.output import show_all
    from metrist.studies.heap.study import found_in
    from metrist.studies.heap.tables import tables as made

    show_all(made(found_in(folder)), form)


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
    from metrist.cli.output import remark, show_all
    from metrist.cli.study_progress import study_progress
    from metrist.studies.heap.study import run

    try:
        with study_progress() as watcher:
            outcome = run(study, watcher)
    except KeyboardInterrupt:
        remark(f"stopped; the same command goes on with {study.out}")
        raise
    show_all(outcome.tables, Format.text)
    for name, reason in outcome.failures.items():
        remark(f"{name} failed and is in no table: {reason}")
    if outcome.failures:
        raise typer.Exit(1)


def _tell_plan(study: Study) -> None:
    from metrist import criteria
    from metrist.cli.output import say
    from metrist.studies.heap.material import read
    from metrist.studies.heap.study import check_place, plan
    from metrist.train.opening import base_weights

    suite, material = criteria.suite(study.suite), read(study.pairs)
    planned = plan(study, suite, material)
    check_place(study, material)
    base_weights(study.settings.base)  # A study would only learn in its first training that there is no such model.
    for line in _plan_lines(study, planned):
        say(line)


def _plan_lines(study: Study, planned: Sequence[Job]) -> Iterator[str]:
    yield f"{len(planned):,} trainings, {study.at_once:,} at once"
    if study.choose:
        searched = len({(job.subject, job.split) for job in planned if job.learns})
        yield f"before them up to {searched * study.budget:,} trials to choose {', '.join(study.choose)}"
    for job in planned:
        yield f"  {job.name}  learns {', '.join(job.learns) or 'nothing'}; judged by {', '.join(job.judged)}"
