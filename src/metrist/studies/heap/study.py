"""Run a study: all trainings of the requested setups in one folder, the choice of their settings, and the tables of
their results.

A stopped study resumes: finished trainings are only read, and an unfinished training resumes from its latest
checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from metrist import criteria as criteria_tables
from metrist.criteria import Suite
from metrist.errors import InputError, RunError, check_known, did_you_mean
from metrist.io.writer import atomic_write
from metrist.report.tables import Table
from metrist.studies.heap.jobs import (
    RESULTS,
    Changes,
    Codes,
    Job,
    Result,
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
LOG = "choices.jsonl"
BUDGET = 12
CHOICES = ("instruction", "lr", "batch", "epochs", "labelled", "keep")


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
    study.out.mkdir(parents=True, exist_ok=True)
    if _read_json(study.out / _DESCRIPTION) is None or not _has_finished_training(study.out):
        _write_json(study.out / _DESCRIPTION, _describe_study(study, data))
    for split in study.splits:
        write_split(study.out, split, data)
    with TrainingPool(study.out, study.at_once, callback or NoStudyCallback()) as pool:
        chosen = _choose_settings(study, suite, jobs, pool) if study.choose else {}
        requests = [_make_request(study, suite, job, chosen.get(f"{job.subject}-{job.split}", {})) for job in jobs]
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
    named: dict[bool, set[str]] = {True: set(), False: set()}
    for name in study.criteria:
        meant = set(suite.find_codes(name.removeprefix("!"))) & set(data.criteria)
        if not meant:
            raise InputError(
                f"{study.pairs} has no pairs of {name!r}{did_you_mean(name, data.criteria)}; it has "
                f"{', '.join(data.criteria)}",
                code="unknown_name",
            )
        named[name.startswith("!")] |= meant
    selected = (named[False] or set(data.criteria)) - named[True]
    codes = tuple(code for code in suite.codes if code in selected)
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


def check_folder(study: Study, data: StudyData) -> None:
    """Raise an error unless the study's folder is new, empty, or has the same study. Nothing is written."""
    stored = _read_json(study.out / _DESCRIPTION)
    if stored is not None:
        # All trainings of a folder are in the same tables, so they need the same pairs and settings, apart from what
        # was chosen for some of them.
        requested = _describe_study(study, data)
        if any(stored[name] != requested[name] for name in ("suite", "pairs")):
            raise RunError(f"{study.out} has a study of other pairs ({stored['pairs']['name']}); use another `out`")
        differences = list_differences(stored["settings"], requested["settings"])
        if differences and _has_finished_training(study.out):
            raise RunError(
                f"{study.out} has a study with other settings: {'; '.join(differences)}. Use the same settings, or "
                "another `out`"
            )
        if study.choose:
            check_search(study.out / LOG, study.choose, study.budget)
    elif study.out.exists() and (not study.out.is_dir() or any(study.out.iterdir())):
        raise RunError(
            f"{study.out} exists and has no study; use a new or an empty folder as `out`", code="cannot_write"
        )


def _describe_study(study: Study, data: StudyData) -> Mapping[str, Any]:
    settings = {**study.settings.identity(), "paper_settings": study.paper_settings}
    return {"suite": study.suite, "pairs": data.describe(), "settings": settings}


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


def _choose_settings(study: Study, suite: Suite, jobs: Sequence[Job], pool: TrainingPool) -> Mapping[str, Changes]:
    # What chosen settings apply to: a subject on one split.
    first_jobs = {f"{job.subject}-{job.split}": job for job in reversed(jobs) if job.learns}

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


# ---- The choice of settings on development pairs, one setting after the other, each on top of the best so far
#
# Test pairs are not used: a trial is judged by the development pairs of the criteria that it trains on, so a cross-task
# training knows nothing of its target either. A log has everything that was tried, including failures.


def list_values(suite: Suite, name: str) -> tuple[Any, ...]:
    """Return the values to try of one setting: those of the paper's grid. It gives a range of epochs, of which four are
    tried."""
    check_known("setting for `choose`:", name, CHOICES)
    grid = suite.grid
    match name:
        case "instruction":
            return tuple(range(min(len(criterion.instructions) for criterion in suite.criteria)))
        case "lr":
            return grid.learning_rates
        case "batch":
            return tuple(grid.device_batch * steps for steps in grid.gradient_accumulation)
        case "epochs":
            return tuple(int(count) for count in np.linspace(*grid.epochs, 4).round())
        case "labelled":
            return grid.labelled
        case _:
            return ("end", "start", "both")


@dataclass(slots=True, kw_only=True)
class _Subject:
    """One training whose settings are searched: the best so far, and the remaining trials."""

    name: str
    learns: Codes
    remaining: int
    changes: Changes = field(default_factory=dict)
    result: Result | None = None
    best: float = -1.0
    trials: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    subject: _Subject
    request: TrainingRequest
    changes: Changes
    setting: str
    value: Any


@dataclass(slots=True, kw_only=True)
class Search:
    """A search for several subjects together, so that their trials can run at the same time.

    `make_request` returns the request of a subject's trial, given its number and changed settings. `run_requests` runs
    requests and returns those that failed.
    """

    suite: Suite
    names: Sequence[str]
    budget: int
    make_request: Callable[[str, int, Changes], TrainingRequest]
    run_requests: Callable[[Sequence[TrainingRequest]], Failures]
    log: Path
    _log_rows: list[dict[str, Any]] = field(default_factory=list)

    def run(self, subjects: Mapping[str, Codes]) -> dict[str, Changes]:
        """Return the settings chosen for each subject; the values are the criteria that it trains on."""
        searched = [_Subject(name=name, learns=learns, remaining=self.budget) for name, learns in subjects.items()]
        self._evaluate([self._make_trial(subject, "start", None, {}) for subject in searched])
        for name in self.names:
            before = [subject.result for subject in searched]
            evaluated = self._evaluate([trial for subject in searched for trial in self._list_trials(subject, name)])
            if name == "instruction":
                previous = zip(searched, before, strict=True)
                self._evaluate(
                    [trial for subject, result in previous for trial in self._mix_wordings(subject, result, evaluated)]
                )
        return {subject.name: subject.changes for subject in searched}

    def _list_trials(self, subject: _Subject, name: str) -> list[_Trial]:
        values = list_values(self.suite, name)
        if name == "instruction":
            changes = [(number, {"instructions": dict.fromkeys(subject.learns, number)}) for number in values[1:]]
        else:
            settings = self.make_request(subject.name, 0, subject.changes).settings
            current = getattr(settings.layout if name in ("labelled", "keep") else settings.recipe, name)
            changes = [(value, {name: value}) for value in values if value != current]
        affordable = changes[: max(0, subject.remaining)]
        for value, _ in changes[len(affordable) :]:
            self._note(subject, name, value, failure="not tried: the budget of trials is spent")
        return [self._make_trial(subject, name, value, {**subject.changes, **change}) for value, change in affordable]

    def _mix_wordings(
        self, subject: _Subject, before: Result | None, evaluated: Sequence[tuple[_Trial, Result]]
    ) -> list[_Trial]:
        """Return one more trial, in which each criterion has the wording that it did best with."""
        candidates = [(trial.value, result) for trial, result in evaluated if trial.subject is subject]
        candidates = ([(0, before)] if before is not None else []) + candidates
        if not candidates or subject.remaining < 1:
            return []
        best = dict.fromkeys(subject.learns, 0)
        for code in subject.learns:
            # A small criterion may have no development pairs to choose by; it keeps the first wording.
            if all(code in result.scores for _, result in candidates):
                accuracies = [result.scores[code].accuracy for _, result in candidates]
                best[code] = candidates[int(np.argmax(accuracies))][0]
        if len(set(best.values())) == 1:
            return []
        return [self._make_trial(subject, "instruction", best, {**subject.changes, "instructions": best})]

    def _make_trial(self, subject: _Subject, setting: str, value: Any, changes: Changes) -> _Trial:
        request = self.make_request(subject.name, subject.trials, changes)
        subject.trials += 1
        subject.remaining -= 1
        return _Trial(subject=subject, request=request, changes=changes, setting=setting, value=value)

    def _evaluate(self, trials: Sequence[_Trial]) -> list[tuple[_Trial, Result]]:
        """Run all trials. The settings of a trial that beats the best so far become those of its subject."""
        failures = self.run_requests([trial.request for trial in trials])
        evaluated = []
        for trial in trials:
            subject, request = trial.subject, trial.request
            result = request.read_result()
            if result is None:
                reason = failures.get(request.name, "it gave no results")
                self._note(subject, trial.setting, trial.value, request, failure=reason)
                continue
            # Each criterion counts the same.
            accuracy = float(np.mean([scores.accuracy for scores in result.scores.values()]))
            self._note(subject, trial.setting, trial.value, request, dev=accuracy)
            evaluated.append((trial, result))
            if accuracy > subject.best:
                subject.best, subject.result, subject.changes = accuracy, result, trial.changes
        judged_by = "mean over the learned criteria of the accuracy on their development pairs, one seed"
        header = {"budget": self.budget, "settings": list(self.names), "judged_by": judged_by}
        with atomic_write(self.log) as file:
            file.writelines(json.dumps(row) + "\n" for row in (header, *self._log_rows))
        return evaluated

    def _note(
        self, subject: _Subject, setting: str, value: Any, request: TrainingRequest | None = None, **facts: Any
    ) -> None:
        row = {"subject": subject.name, "setting": setting, "value": value, **facts}
        self._log_rows.append(row | ({"folder": request.name} if request is not None else {}))


def check_search(log: Path, names: Sequence[str], budget: int) -> None:
    """Raise an error if the folder was searched in another way before: trials are numbered in the order of the first
    search, and trainings with the settings that it chose may be finished."""
    if not log.is_file():
        return
    header = json.loads(log.read_text(encoding="utf-8").splitlines()[0])
    if (header["budget"], header["settings"]) != (budget, list(names)):
        before = f"`choose='{','.join(header['settings'])}'`, `budget={header['budget']}`"
        raise RunError(f"{log.parent} was searched with {before}; use the same, or another `out`")


def describe_changes(changes: Changes) -> str:
    """Describe chosen settings for a table or a card."""
    parts = [f"{name} {value}" for name, value in changes.items() if name != "instructions"]
    wordings = {code: number + 1 for code, number in changes.get("instructions", {}).items() if number}
    if wordings:
        parts.append("instructions " + ", ".join(f"{code} no. {number}" for code, number in wordings.items()))
    return ", ".join(parts) or "nothing but the settings it started with"
