"""A whole study: all trainings of the asked setups in one folder, and the tables that they allow.

A study that was stopped goes on where it was: finished trainings are only read, and a training under way goes on from
its latest checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from metrist import criteria as known
from metrist.criteria import Suite
from metrist.errors import InputError, RunError, did_you_mean
from metrist.io.writer import atomic_write
from metrist.report.tables import Table
from metrist.studies.heap.callbacks import Silent, StudyWatcher
from metrist.studies.heap.dataset import Material, read, write_split
from metrist.studies.heap.hyperparameters import BUDGET, LOG, Search, check_search, in_words
from metrist.studies.heap.jobs import (
    RESULTS,
    Change,
    Codes,
    Job,
    Order,
    Settings,
    SetupName,
    SplitName,
    differing_settings,
    jobs,
)
from metrist.studies.heap.results import StudyResults, readings
from metrist.studies.heap.tables import clusters, tables, to_data, to_markdown
from metrist.studies.heap.worker_pool import Failures, WorkerPool

_ABOUT, _CHOSEN = "study.json", "chosen.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What is asked for. `criteria` restricts those of the pairs file (none: all); `choose` names settings to search
    on development pairs, with so many trial trainings each; `paper_settings` begins with what the paper chose."""

    pairs: Path
    out: Path
    settings: Settings
    setups: tuple[SetupName, ...]
    splits: tuple[SplitName, ...] = ("authors",)
    seeds: int = 5
    criteria: Codes = ()
    suite: str = "heap"
    at_once: int = 1
    choose: tuple[str, ...] = ()
    budget: int = BUDGET
    paper_settings: bool = False
    keep_models: bool = True
    checkpoint_every: int = 500


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcome:
    """What the study found, and which trainings failed."""

    found: StudyResults
    tables: Sequence[Table]
    failures: Failures


def run(study: Study, watcher: StudyWatcher | None = None) -> Outcome:
    """Do all that is not done yet, and write the tables into the folder."""
    watcher = watcher or Silent()
    suite = known.suite(study.suite)
    material = read(study.pairs)
    planned = plan(study, suite, material)
    check_place(study, material)
    _begin(study, material)
    with WorkerPool(study.out, study.at_once, watcher) as crew:
        chosen = _choose(study, suite, planned, crew) if study.choose else {}
        orders = [_order(study, suite, job, chosen.get(_about(job), {})) for job in planned]
        failures = crew.do(orders)
    if orders and len(failures) == len(orders):
        raise RunError(f"every training failed; the first: {next(iter(failures.values()))}")
    found = found_in(study.out)
    made = tables(found)
    _publish(study.out, made)
    return Outcome(found=found, tables=made, failures=failures)


def plan(study: Study, suite: Suite, material: Material) -> list[Job]:
    """The trainings of a study."""
    codes = _criteria(study, suite, material)
    planned = jobs(study.setups, codes, clusters(suite), range(study.seeds), study.splits)
    if not planned:
        raise RunError(
            f"{', '.join(study.setups)} of {', '.join(codes)} is no training: there is nothing to learn from"
        )
    return planned


def found_in(out: Path) -> StudyResults:
    """What the finished trainings of a folder found."""
    about = _read(out / _ABOUT)
    if about is None:
        raise InputError(f"{out} holds no study; run one with --suite and -o {out}")
    words = {subject: in_words(change) for subject, change in (_read(out / _CHOSEN) or {}).items()}
    there = readings(out)
    return StudyResults(known.suite(about["suite"]), there.results, chosen=words, left_out=there.left_out)


def _criteria(study: Study, suite: Suite, material: Material) -> Codes:
    there = material.criteria
    for name in study.criteria:
        if suite.criterion(name).code not in there:
            raise InputError(
                f"{study.pairs} has no pairs of {name!r}{did_you_mean(name, there)}; it has {', '.join(there)}"
            )
    wanted = {suite.criterion(name).code for name in study.criteria} or set(there)
    return tuple(code for code in suite.codes if code in wanted)


def check_place(study: Study, material: Material) -> None:
    """Whether the study may have its folder: a new or empty one, or its own. Nothing is written."""
    there = _read(study.out / _ABOUT)
    if there is not None:
        _check_same(study.out, there, _describe_study(study, material))
        if study.choose:
            check_search(study.out / LOG, study.choose, study.budget)
    elif study.out.exists() and (not study.out.is_dir() or any(study.out.iterdir())):
        raise RunError(f"{study.out} exists and holds no study; give a new or an empty folder as --out")


def _begin(study: Study, material: Material) -> None:
    study.out.mkdir(parents=True, exist_ok=True)
    if _read(study.out / _ABOUT) is None or not _is_anything_finished(study.out):
        _write(study.out / _ABOUT, _describe_study(study, material))
    for split in study.splits:
        write_split(study.out, split, material)


def _describe_study(study: Study, material: Material) -> Mapping[str, Any]:
    settings = {**study.settings.decides(), "paper_settings": study.paper_settings}
    return {"suite": study.suite, "pairs": material.described(), "settings": settings}


def _check_same(out: Path, there: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """All trainings of a folder stand in the same tables, so they must be of the same pairs and settings, less what
    was chosen for some of them. Studies of earlier versions have no settings here."""
    if any(there[name] != asked[name] for name in ("suite", "pairs")):
        raise RunError(f"{out} holds a study of other pairs ({there['pairs']['name']}); give another --out")
    differing = differing_settings(there.get("settings", asked["settings"]), asked["settings"])
    if differing and _is_anything_finished(out):
        raise RunError(
            f"{out} holds a study with other settings: {'; '.join(differing)}. Give the same settings, or another --out"
        )


def _is_anything_finished(out: Path) -> bool:
    """Whether any settings were put to use: a study that failed at once may be begun again with others."""
    return any(next((out / rooms).glob(f"*/{RESULTS}"), None) for rooms in ("trainings", "choices"))


def _order(study: Study, suite: Suite, job: Job, chosen: Change, folder: str | None = None) -> Order:
    settings = study.settings.changed(paper_change(suite, job)) if study.paper_settings else study.settings
    return Order(
        job=job,
        settings=settings.changed(chosen),
        pairs=study.pairs,
        study=study.out,
        folder=study.out / (folder or f"trainings/{job.name}"),
        keep_model=study.keep_models,
        checkpoint_every=study.checkpoint_every,
        chosen=in_words(chosen) if chosen else None,
    )


def paper_change(suite: Suite, job: Job) -> Change:
    """The paper's Table 4: its number of accumulated gradients is the batch, and what it says of truncation keeps the
    end of a context. Cross-cluster trainings take what was chosen for cross-task ones."""
    table = suite.chosen.get("cross-task" if job.setup == "cross-cluster" else job.setup, {})
    told = table.get(job.target or "all")
    if told is None:
        return {}
    change: dict[str, Any] = {"lr": told.learning_rate, "batch": told.gradient_accumulation, "epochs": told.epochs}
    if told.labelled is not None:
        change["labelled"] = told.labelled
    if told.truncate_right is not None:
        change["keep"] = "end" if told.truncate_right else "start"
    return change


def _about(job: Job) -> str:
    """What a choice holds for: its subject on one split."""
    return f"{job.subject}-{job.split}"


def _choose(study: Study, suite: Suite, planned: Sequence[Job], crew: WorkerPool) -> Mapping[str, Change]:
    first = {_about(job): job for job in reversed(planned) if job.learns}

    def trial(name: str, number: int, change: Change) -> Order:
        job = replace(first[name], seed=0, judged=first[name].learns)
        order = _order(study, suite, job, change, f"choices/{name}-trial{number}")
        return replace(order, side="dev", keep_model=False, chosen=None)

    search = Search(
        suite=suite,
        names=study.choose,
        budget=study.budget,
        trials=trial,
        crew=crew.do,
        log=study.out / LOG,
    )
    chosen = search.run({name: job.learns for name, job in first.items()}, {})
    _write(study.out / _CHOSEN, {**(_read(study.out / _CHOSEN) or {}), **chosen})
    return chosen


def _publish(out: Path, made: Sequence[Table]) -> None:
    with atomic_write(out / "tables.md") as file:
        file.write(to_markdown(made))
    _write(out / "tables.json", to_data(made))


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def _write(path: Path, row: Any) -> None:
    with atomic_write(path) as file:
        file.write(json.dumps(row, indent=2) + "\n")
