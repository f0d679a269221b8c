"""Choose settings on development pairs, one setting after the other, each on top of the best so far.

Test pairs are not used: a trial is judged by the development pairs of the criteria that it trains on, so a cross-task
training knows nothing of its target either. A log has everything that was tried, including failures.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from metrist.criteria import Suite
from metrist.errors import RunError, check_known
from metrist.io.writer import atomic_write
from metrist.studies.heap.jobs import Changes, Codes, Result, TrainingRequest
from metrist.studies.heap.training import Failures

LOG = "choices.jsonl"
BUDGET = 12
CHOICES = ("instruction", "lr", "batch", "epochs", "labelled", "keep")


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
