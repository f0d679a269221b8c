"""What a study tells whoever watches it: many trainings, some of them at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from metrist.train.task import Evaluation, TrainingProgress


class StudyWatcher(Protocol):
    """Told of each training by its name, in the process of the study, never by two threads at once."""

    def planned(self, count: int, finished: int) -> None:
        """So many trainings are asked for, so many of them were finished before."""
        ...

    def started(self, name: str) -> None: ...

    def on_progress(self, name: str, progress: TrainingProgress) -> None: ...

    def on_evaluation(self, name: str, evaluation: Evaluation, figure: str) -> None: ...

    def finished(self, name: str, seconds: float) -> None: ...

    def failed(self, name: str, reason: str) -> None: ...

    def on_message(self, remark: str) -> None: ...


class Silent:
    """Watches nothing."""

    def planned(self, count: int, finished: int) -> None:
        pass

    def started(self, name: str) -> None:
        pass

    def on_progress(self, name: str, progress: TrainingProgress) -> None:
        pass

    def on_evaluation(self, name: str, evaluation: Evaluation, figure: str) -> None:
        pass

    def finished(self, name: str, seconds: float) -> None:
        pass

    def failed(self, name: str, reason: str) -> None:
        pass

    def on_message(self, remark: str) -> None:
        pass


@dataclass(frozen=True, slots=True)
class OneOf:
    """Watches one training for a study's watcher."""

    name: str
    study: StudyWatcher

    def on_progress(self, progress: TrainingProgress) -> None:
        self.study.on_progress(self.name, progress)

    def on_evaluation(self, evaluation: Evaluation, name: str) -> None:
        self.study.on_evaluation(self.name, evaluation, name)

    def on_message(self, remark: str) -> None:
        self.study.on_message(f"{self.name}: {remark}")
