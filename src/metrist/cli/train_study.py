"""`metrist train preference --suite heap` and `metrist train tables`: a study of many trainings, and its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from metrist.cli.options import TABLE_FORMAT, Format, Names
from metrist.cli.output import print_note, print_tables, print_text
from metrist.errors import SpecError, check_known
from metrist.report.progress import ProgressSource, show_progress
from metrist.settings import ReadingSettings, find_settings, list_changed, setting, split_commas

if TYPE_CHECKING:
    from metrist.studies.heap.jobs import SetupName
    from metrist.studies.heap.study import Study
    from metrist.train.task import Evaluation, TrainingProgress


#: Which split of the pairs is used: that of the file, or one that keeps each context on one side.
SplitOption = Literal["authors", "honest", "both"]


#: Why some options of a training cannot be used in a study.
_REASONS = {
    "resume": "running the same command again resumes a study",
    **dict.fromkeys(find_settings(ReadingSettings), "a file of pairs has its own layout"),
}


@dataclass(frozen=True, kw_only=True)
class SuiteOptions:
    """Options of a study. Those that were not given are None, empty or False, so that `check` can tell."""

    suite: str | None = setting(None, "Run a study of this suite's criteria: heap.", metavar="NAME")
    setups: Names = setting(
        (),
        "What trainings learn from: base, single, multi, cross-task, cross-cluster, or all; repeatable.",
        "--setup",
        metavar="A,B",
        shown="multi",
        parse=split_commas,
    )
    seeds: int | None = setting(None, "Trainings of each kind, with seeds 0, 1, ….", min=1, shown="5")
    split: SplitOption | None = setting(
        None, "authors: the file's split; honest: each context on one side.", shown="authors"
    )
    jobs: int | None = setting(None, "Parallel trainings on one device.", min=1, shown="1")
    criteria: Names = setting(
        (),
        "Only these criteria, or data sets; without those after a !.",
        metavar="A,B",
        shown="all of the file",
        parse=split_commas,
    )
    choose: Names = setting(
        (), "Tune on dev pairs: instruction, lr, batch, epochs, labelled, keep.", metavar="A,B", parse=split_commas
    )
    instructions: Path | None = setting(None, "A TOML file of your own instructions: AH = 'TEXT'.", metavar="FILE")
    budget: int | None = setting(None, "Trial trainings per tuned choice.", min=1, shown="12")
    paper_settings: bool = setting(False, "Start from the paper's learning rates, batches, epochs and labels.")
    no_models: bool = setting(False, "Keep the models' answers, but not the models.")

    def check(self, data: Sequence[Path], unsupported: Mapping[str, Any]) -> None:
        """Raise if an option of a study is used without --suite, or with it what a study does not have: several files,
        or one of the `unsupported` options, which are given with their values."""
        changed = [name for name in list_changed(self) if name != "suite"]
        if changed and not self.suite:
            raise SpecError(f"`{changed[0]}` is for studies of a suite; add --suite heap or omit it", code="conflict")
        if self.suite is None:
            return
        from metrist.criteria import suite

        suite(self.suite)
        for name, value in unsupported.items():
            if value:
                reason = _REASONS.get(name, "a study has its own splits and seeds")
                raise SpecError(f"`{name}` cannot be used with --suite: {reason}; omit it", code="conflict")
        if self.instructions and "instruction" in self.choose:
            raise SpecError("`choose=instruction` and `instructions` exclude each other; omit one", code="conflict")
        if len(data) != 1:
            raise SpecError(f"a study needs exactly one file of pairs, got --data {len(data)} times")

    def study(self, pairs: Path, out: Path, settings: Mapping[str, Any], checkpoint_every: int) -> Study:
        from metrist.data.heap import read_instructions
        from metrist.studies.heap.jobs import SPLITS, Settings
        from metrist.studies.heap.study import Study

        split = self.split or "authors"
        numbers = {"seeds": self.seeds, "at_once": self.jobs, "budget": self.budget}
        return Study(
            suite=self.suite or "heap",
            pairs=pairs,
            out=out,
            settings=Settings(
                **settings, instructions=read_instructions(self.instructions) if self.instructions else {}
            ),
            setups=choose_setups(self.setups or ("multi",)),
            splits=tuple(name for name in SPLITS if split in (name, "both")),
            criteria=self.criteria,
            choose=self.choose,
            paper_settings=self.paper_settings,
            keep_models=not self.no_models,
            checkpoint_every=checkpoint_every,
            **{name: number for name, number in numbers.items() if number is not None},
        )


def choose_setups(names: Sequence[str]) -> tuple[SetupName, ...]:
    """Return the setups of these names, or of "all", in their usual order."""
    from metrist.studies.heap.jobs import SETUPS

    for name in names:
        check_known("setup", name, (*SETUPS, "all"))
    return tuple(setup for setup in SETUPS if setup in names or "all" in names)


def run_suite(
    suite: SuiteOptions,
    settings: Mapping[str, Any],
    pairs: Path,
    out: Path,
    *,
    checkpoint_every: int,
    dry_run: bool,
) -> None:
    """Run the study and print its tables."""
    from metrist.models.reward_layout import RewardLayout
    from metrist.models.weights import find_weights
    from metrist.studies.heap.study import run

    settings = {**settings, "layout": settings["layout"] or RewardLayout()}
    if find_weights(settings["base"]).runs_on_numpy:
        raise SpecError(
            f"{settings['base'].model} cannot be used with --suite: a study trains models for transformers; "
            "give one as --base, such as facebook/bart-base",
            code="conflict",
        )
    study = suite.study(pairs, out, settings, checkpoint_every)
    if dry_run:
        _print_plan(study)
        return
    try:
        with show_progress(report := StudyReport()):
            outcome = run(study, report)
    except KeyboardInterrupt:
        print_note(f"stopped; run the same command again to continue with {study.out}")
        raise
    print_tables(outcome.tables, "text")
    for name, reason in outcome.failures.items():
        print_note(f"{name} failed and is in no table: {reason}")
    if outcome.failures:
        raise typer.Exit(1)


def _print_plan(study: Study) -> None:
    from metrist import criteria
    from metrist.models.weights import find_weights
    from metrist.studies.heap.study import check_folder, plan_jobs
    from metrist.studies.heap.training import read_study_data

    dataset = read_study_data(study.pairs)
    jobs = plan_jobs(study, criteria.suite(study.suite), dataset)
    check_folder(study, dataset)
    find_weights(study.settings.base)  # Otherwise a missing model would only be noticed in the first training.
    print_text(f"{len(jobs):,} trainings, {study.at_once:,} at once")
    if study.choose:
        searches = len({(job.subject, job.split) for job in jobs if job.learns})
        print_text(f"before them up to {searches * study.budget:,} trials to choose {', '.join(study.choose)}")
    for job in jobs:
        print_text(f"  {job.name}  learns {', '.join(job.learns) or 'nothing'}; judged by {', '.join(job.judged)}")


def tables(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a study.")],
    form: Format = TABLE_FORMAT,
) -> None:
    from metrist.studies.heap.study import read_study
    from metrist.studies.heap.tables import make_tables

    print_tables(make_tables(read_study(folder)), form)


class StudyReport(ProgressSource):
    """How many trainings of a study are done, and how far the running ones are. The end of each is a note."""

    def __init__(self) -> None:
        super().__init__()
        self._count = self._done = 0
        self._dev: dict[str, float] = {}
        self._steps: dict[str, tuple[int, int]] = {}

    @property
    def position(self) -> tuple[float, float | None]:
        partial = sum(step / steps for step, steps in self._steps.values() if steps)
        return self._done + partial, self._count or None

    def describe(self) -> str:
        """How many trainings are done, and the first three running ones: name, share of steps, dev figure."""
        text = f"{self._done:,} of {self._count:,} trainings"
        parts = []
        for name, (step, steps) in list(self._steps.items())[:3]:
            share = f"{step / steps:.0%}" if steps else "loading"
            parts.append(f"{name} {share}" + (f", dev {self._dev[name]:.3f}" if name in self._dev else ""))
        more = f" and {len(self._steps) - 3} more" if len(self._steps) > 3 else ""
        return f"{text}; {' · '.join(parts)}{more}" if parts else text

    def on_plan(self, count: int, finished: int) -> None:
        self._count, self._done = count, finished
        if finished:
            self.note(f"{finished:,} of {count:,} trainings were finished before")
        self.on_change()

    def on_start(self, name: str) -> None:
        self._steps[name] = (0, 0)
        self.on_change()

    def on_progress(self, name: str, progress: TrainingProgress) -> None:
        self._steps[name] = (progress.step, progress.steps)
        self.on_change()

    def on_evaluation(self, name: str, evaluation: Evaluation, figure: str) -> None:  # noqa: ARG002
        self._dev[name] = evaluation.figure

    def on_finish(self, name: str, seconds: float) -> None:
        dev = f", dev {self._dev[name]:.4f}" if name in self._dev else ""
        self._end(name, f"in {seconds:,.1f} s{dev}")

    def on_failure(self, name: str, reason: str) -> None:
        self._end(name, f"failed: {reason}")

    def on_message(self, text: str) -> None:
        self.note(text)

    def _end(self, name: str, how: str) -> None:
        self._done += 1
        self._steps.pop(name, None)
        self.note(f"{self._done:,} of {self._count:,}: {name} {how}")
        self.on_change()
