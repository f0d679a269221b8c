"""Choosing settings on development pairs, one after the other, each with the best of those before it.

Test pairs take no part: a trial is judged by the development pairs of the criteria it learned from, so a cross-task
training knows nothing of its target either. All that was tried is kept in a log, failures too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from metrist.criteria import Suite
from metrist.errors import RunError, SpecError, did_you_mean
from metrist.io.writer import atomic_write
from metrist.studies.heap.jobs import Change, Codes, Order, Result
from metrist.studies.heap.worker_pool import Failures

LOG = "choices.jsonl"
BUDGET = 12
#: What does all orders and gives those that failed.
Does = Callable[[Sequence[Order]], Failures]
#: The order of a trial of a subject: its number, and the settings that it changes.
Trials = Callable[[str, int, Change], Order]


def values(suite: Suite, name: str) -> tuple[Any, ...]:
    """What is tried of one setting: the paper's grid, which bounds the epochs only: four of them are tried."""
    grid = suite.grid
    match name:
        case "instruction":
            return tuple(range(min(len(one.instructions) for one in suite.criteria)))
        case "lr":
            return grid.learning_rates
        case "batch":
            return grid.gradient_accumulation
        case "epochs":
            return tuple(int(count) for count in np.linspace(*grid.epochs, 4).round())
        case "labelled":
            return grid.labelled
        case "keep":
            return ("end", "start", "both")
    raise SpecError(f"--choose knows no {name!r}{did_you_mean(name, CHOICES)}; there are {', '.join(CHOICES)}")


CHOICES = ("instruction", "lr", "batch", "epochs", "labelled", "keep")


@dataclass(slots=True, kw_only=True)
class _Subject:
    """One training to be settled: what was found best so far, and the trials it has left."""

    name: str
    learns: Codes
    left: int
    change: Change = field(default_factory=dict)
    result: Result | None = None
    best: float = -1.0
    done: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    subject: _Subject
    order: Order
    change: Change
    of: str
    value: Any


@dataclass(slots=True, kw_only=True)
class Search:
    """A search for several subjects side by side, so that their trials can be trained at once."""

    suite: Suite
    names: Sequence[str]
    budget: int
    trials: Trials
    crew: Does
    log: Path
    _tried: list[dict[str, Any]] = field(default_factory=list)

    def run(self, subjects: Mapping[str, Codes], start: Mapping[str, Change]) -> dict[str, Change]:
        """The settings chosen for each subject, beside those that it starts with."""
        searched = [
            _Subject(name=name, learns=learns, left=self.budget, change=dict(start.get(name, {})))
            for name, learns in subjects.items()
        ]
        self._judge([self._trial(one, "start", None, one.change) for one in searched])
        for name in self.names:
            before = [one.result for one in searched]
            found = self._judge([trial for one in searched for trial in self._candidates(one, name)])
            if name == "instruction":
                pairs = zip(searched, before, strict=True)
                self._judge([trial for one, result in pairs for trial in self._mixed(one, result, found)])
        return {one.name: one.change for one in searched}

    def _candidates(self, subject: _Subject, name: str) -> list[_Trial]:
        tried = values(self.suite, name)
        if name == "instruction":
            changes = [(number, {"instructions": dict.fromkeys(subject.learns, number)}) for number in tried[1:]]
        else:
            here = self.trials(subject.name, 0, subject.change).settings
            now = getattr(here.layout if name in ("labelled", "keep") else here.recipe, name)
            changes = [(value, {name: value}) for value in tried if value != now]
        afford = changes[: max(0, subject.left)]
        for value, _ in changes[len(afford) :]:
            self._note(subject, name, value, failure="not tried: the budget of trials is spent")
        return [self._trial(subject, name, value, {**subject.change, **change}) for value, change in afford]

    def _mixed(self, subject: _Subject, before: Result | None, found: Sequence[tuple[_Trial, Result]]) -> list[_Trial]:
        """Each criterion with the paraphrase that it did best with, as one more trial."""
        every = [(trial.value, result) for trial, result in found if trial.subject is subject]
        every = ([(0, before)] if before is not None else []) + every
        if not every or subject.left < 1:
            return []
        best = dict.fromkeys(subject.learns, 0)
        for code in subject.learns:
            # A small criterion may have no development pairs to choose by: it keeps the first wording.
            if all(code in result.answers for _, result in every):
                figures = [result.answers[code].accuracy for _, result in every]
                best[code] = every[int(np.argmax(figures))][0]
        if len(set(best.values())) == 1:
            return []
        return [self._trial(subject, "instruction", best, {**subject.change, "instructions": best})]

    def _trial(self, subject: _Subject, of: str, value: Any, change: Change) -> _Trial:
        order = self.trials(subject.name, subject.done, change)
        subject.done += 1
        subject.left -= 1
        return _Trial(subject=subject, order=order, change=change, of=of, value=value)

    def _judge(self, trials: Sequence[_Trial]) -> list[tuple[_Trial, Result]]:
        """Train all; where one is better than the best so far, its settings are the subject's now."""
        failures = self.crew([trial.order for trial in trials])
        found = []
        for trial in trials:
            result = trial.order.result()
            if result is None:
                reason = failures.get(trial.order.name, "it gave no results")
                self._note(trial.subject, trial.of, trial.value, trial.order, failure=reason)
                continue
            figure = dev_accuracy(result)
            self._note(trial.subject, trial.of, trial.value, trial.order, dev=figure)
            found.append((trial, result))
            if figure > trial.subject.best:
                subject = trial.subject
                subject.best, subject.result, subject.change = figure, result, trial.change
        self._write()
        return found

    def _note(self, subject: _Subject, of: str, value: Any, order: Order | None = None, **facts: Any) -> None:
        row = {"subject": subject.name, "setting": of, "value": value, **facts}
        self._tried.append(row | ({"folder": order.name} if order is not None else {}))

    def _write(self) -> None:
        judged_by = "mean over the learned criteria of the accuracy on their development pairs, one seed"
        rule = {**_rule(self.names, self.budget), "judged_by": judged_by}
        with atomic_write(self.log) as file:
            for row in (rule, *self._tried):
                file.write(json.dumps(row) + "\n")


def check_search(log: Path, names: Sequence[str], budget: int) -> None:
    """Refuse to search a folder in another way than before: its trials are numbered in the order of the first search,
    and trainings with what that one chose may be finished."""
    if not log.is_file():
        return
    rule = json.loads(log.read_text(encoding="utf-8").splitlines()[0])
    if any(rule[name] != wanted for name, wanted in _rule(names, budget).items()):
        before = f"--choose {','.join(rule['settings'])} --budget {rule['budget']}"
        raise RunError(f"{log.parent} was searched with {before}; give the same, or another --out")


def _rule(names: Sequence[str], budget: int) -> dict[str, Any]:
    return {"budget": budget, "settings": list(names)}


def dev_accuracy(result: Result) -> float:
    """The mean over criteria, each counting alike."""
    return float(np.mean([answers.accuracy for answers in result.answers.values()]))


def in_words(change: Change) -> str:
    """Settings that were chosen, for a table or a card."""
    words = [f"{name} {value}" for name, value in change.items() if name != "instructions"]
    other = {code: number + 1 for code, number in change.get("instructions", {}).items() if number}
    if other:
        words.append("instructions " + ", ".join(f"{code} no. {number}" for code, number in other.items()))
    return ", ".join(words) or "nothing but the settings it started with"
