"""Run a study: all trainings of the requested setups in one folder, and the tables of their results.

A stopped study resumes: finished trainings are only read, and an unfinished training resumes from its latest
checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from metrist import criteria as criteria_tables
from metrist.criteria import Suite
from metrist.errors import InputError, RunError, did_you_mean
from metrist.io.writer import atomic_write
from metrist.report.tables import Table
from metrist.studies.heap.hyperparameters import BUDGET, LOG, Search, check_search, describe_changes
from metrist.studies.heap.jobs import (
    RESULTS,
    Changes,
    Codes,
    Job,
    Settings,
    SetupName,
    SplitName,
    TrainingRequest,
    list_differences,
    list_jobs,
)
from metrist.studies.heap.results import StudyResults, read_results
from metrist.studies.heap.tables import list_clusters, make_tables
from metrist.studies.heap.training import (
    Failures,
    NoStudyCallback,
    StudyCallback,
    StudyData,
    TrainingPool,
    read_study_data,
    write_split,
)

_DESCRIPTION, _CHOSEN = "study.json", "chosen.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """The request for a study. `criteria` restricts those of the pairs file (empty: all); a name is a criterion's code
    or name, or its data set's, and those after a `!` are left out. `choose` names settings to search on development
    pairs, with up to `budget` trials for each training. `paper_settings` starts from the settings that the paper
    chose."""

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
class StudyOutcome:
    """The results and tables of a study, and the trainings that failed."""

    results: StudyResults
    tables: Sequence[Table]
    failures: Failures


def run(study: Study, callback: StudyCallback | None = None) -> StudyOutcome:
    """Run all trainings that are not finished, and write the tables into the folder."""
    suite = criteria_tables.suite(study.suite)
    data = read_study_data(study.pairs)
    jobs = plan_jobs(study, suite, data)
    check_folder(study, data)
    _prepare_folder(study, data)
    with TrainingPool(study.out, study.at_once, callback or NoStudyCallback()) as pool:
        chosen = _choose_settings(study, suite, jobs, pool) if study.choose else {}
        requests = [_make_request(study, suite, job, chosen.get(_choice_name(job), {})) for job in jobs]
        failures = pool.run(requests)
    if requests and len(failures) == len(requests):
        raise RunError(f"every training failed; the first: {next(iter(failures.values()))}")
    results = read_study(study.out)
    tables = make_tables(results)
    with atomic_write(study.out / "tables.md") as file:
        file.write("\n\n".join(table.render("markdown") for table in tables) + "\n")
    _write_json(study.out / "tables.json", [table.to_dict() for table in tables])
    return StudyOutcome(results=results, tables=tables, failures=failures)


def plan_jobs(study: Study, suite: Suite, data: StudyData) -> list[Job]:
    """Return the trainings of a study."""
    codes = _select_criteria(study, suite, data)
    jobs = list_jobs(study.setups, codes, list_clusters(suite), range(study.seeds), study.splits)
    if not jobs:
        raise RunError(
            f"{', '.join(study.setups)} of {', '.join(codes)} has no training: no criterion to learn from",
            code="no_data",
        )
    return jobs


def read_study(out: Path) -> StudyResults:
    """Read the results of the finished trainings of a folder."""
    description = _read_json(out / _DESCRIPTION)
    if description is None:
        raise InputError(f"{out} has no study: run `metrist train preference --suite heap -o {out}`", code="no_data")
    chosen = {subject: describe_changes(changes) for subject, changes in (_read_json(out / _CHOSEN) or {}).items()}
    results, left_out = read_results(out)
    return StudyResults(criteria_tables.suite(description["suite"]), results, chosen=chosen, left_out=left_out)


def _select_criteria(study: Study, suite: Suite, data: StudyData) -> Codes:
    named: dict[bool, set[str]] = {True: set(), False: set()}
    for name in study.criteria:
        codes = set(suite.find_codes(name.removeprefix("!"))) & set(data.criteria)
        if not codes:
            raise InputError(
                f"{study.pairs} has no pairs of {name!r}{did_you_mean(name, data.criteria)}; it has "
                f"{', '.join(data.criteria)}",
                code="unknown_name",
            )
        named[name.startswith("!")] |= codes
    selected = (named[False] or set(data.criteria)) - named[True]
    return tuple(code for code in suite.codes if code in selected)


def check_folder(study: Study, data: StudyData) -> None:
    """Raise an error unless the study's folder is new, empty, or has the same study. Nothing is written."""
    stored = _read_json(study.out / _DESCRIPTION)
    if stored is not None:
        _check_same_study(study.out, stored, _describe_study(study, data))
        if study.choose:
            check_search(study.out / LOG, study.choose, study.budget)
    elif study.out.exists() and (not study.out.is_dir() or any(study.out.iterdir())):
        raise RunError(
            f"{study.out} exists and has no study; use a new or an empty folder as `out`", code="cannot_write"
        )


def _prepare_folder(study: Study, data: StudyData) -> None:
    study.out.mkdir(parents=True, exist_ok=True)
    if _read_json(study.out / _DESCRIPTION) is None or not _has_finished_training(study.out):
        _write_json(study.out / _DESCRIPTION, _describe_study(study, data))
    for split in study.splits:
        write_split(study.out, split, data)


def _describe_study(study: Study, data: StudyData) -> Mapping[str, Any]:
    settings = {**study.settings.identity(), "paper_settings": study.paper_settings}
    return {"suite": study.suite, "pairs": data.describe(), "settings": settings}


def _check_same_study(out: Path, stored: Mapping[str, Any], requested: Mapping[str, Any]) -> None:
    """All trainings of a folder are in the same tables, so they need the same pairs and settings, apart from what was
    chosen for some of them."""
    if any(stored[name] != requested[name] for name in ("suite", "pairs")):
        raise RunError(f"{out} has a study of other pairs ({stored['pairs']['name']}); use another `out`")
    differences = list_differences(stored["settings"], requested["settings"])
    if differences and _has_finished_training(out):
        raise RunError(
            f"{out} has a study with other settings: {'; '.join(differences)}. Use the same settings, or another `out`"
        )


def _has_finished_training(out: Path) -> bool:
    """Return whether settings were used: a study that failed at once may be started again with others."""
    return any(next((out / folder).glob(f"*/{RESULTS}"), None) for folder in ("trainings", "choices"))


def _make_request(study: Study, suite: Suite, job: Job, chosen: Changes, folder: str | None = None) -> TrainingRequest:
    settings = study.settings.with_changes(read_paper_settings(suite, job)) if study.paper_settings else study.settings
    return TrainingRequest(
        job=job,
        settings=settings.with_changes(chosen),
        pairs=study.pairs,
        study=study.out,
        folder=study.out / (folder or f"trainings/{job.name}"),
        keep_model=study.keep_models,
        checkpoint_every=study.checkpoint_every,
        chosen=describe_changes(chosen) if chosen else None,
    )


def read_paper_settings(suite: Suite, job: Job) -> Changes:
    """Return the settings of the paper's Table 4. Its number of accumulated gradients times the authors' batch on a
    device is our batch, and its right truncation keeps the end of a context. Cross-cluster trainings use those of
    cross-task ones."""
    table = suite.chosen.get("cross-task" if job.setup == "cross-cluster" else job.setup, {})
    chosen = table.get(job.target or "all")
    if chosen is None:
        return {}
    changes: dict[str, Any] = {
        "lr": chosen.learning_rate,
        "batch": suite.grid.device_batch * chosen.gradient_accumulation,
        "epochs": chosen.epochs,
    }
    if chosen.labelled is not None:
        changes["labelled"] = chosen.labelled
    if chosen.truncate_right is not None:
        changes["keep"] = "end" if chosen.truncate_right else "start"
    return changes


def _choice_name(job: Job) -> str:
    """Return what chosen settings apply to: a subject on one split."""
    return f"{job.subject}-{job.split}"


def _choose_settings(study: Study, suite: Suite, jobs: Sequence[Job], pool: TrainingPool) -> Mapping[str, Changes]:
    first_jobs = {_choice_name(job): job for job in reversed(jobs) if job.learns}

    def make_trial_request(name: str, number: int, changes: Changes) -> TrainingRequest:
        job = replace(first_jobs[name], seed=0, judged=first_jobs[name].learns)
        request = _make_request(study, suite, job, changes, f"choices/{name}-trial{number}")
        return replace(request, side="dev", keep_model=False, chosen=None)

    search = Search(
        suite=suite,
        names=study.choose,
        budget=study.budget,
        make_request=make_trial_request,
        run_requests=pool.run,
        log=study.out / LOG,
    )
    chosen = search.run({name: job.learns for name, job in first_jobs.items()})
    _write_json(study.out / _CHOSEN, {**(_read_json(study.out / _CHOSEN) or {}), **chosen})
    return chosen


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def _write_json(path: Path, value: Any) -> None:
    with atomic_write(path) as file:
        file.write(json.dumps(value, indent=2) + "\n")
