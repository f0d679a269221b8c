"""Progress of a command on standard error: of records, of a training, of the trainings of a study."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING

from metrist.report.progress import ProgressReport, ProgressSource, show_progress, watch_run

if TYPE_CHECKING:
    from metrist.train.task import Evaluation, TrainingProgress


@contextmanager
def progress_bar(title: str, noun: str = "records") -> Iterator[ProgressReport]:
    """Show the progress of the block, which is counted in `noun`; yields the callback to pass on."""
    report = ProgressReport(title, noun)
    with watch_run(report), show_progress(report):
        yield report


class TrainingReport(ProgressSource):
    """Steps, speed, loss and the latest development figure of a training. Evaluations and messages are notes."""

    def __init__(self) -> None:
        super().__init__()
        self._first: tuple[float, TrainingProgress] | None = None
        self._progress: TrainingProgress | None = None
        self._dev: float | None = None

    @property
    def position(self) -> tuple[float, float | None]:
        return (self._progress.step, self._progress.steps) if self._progress else (0, None)

    def on_progress(self, progress: TrainingProgress) -> None:
        # The speed is measured from the first call on, without loading and tokenizing.
        self._first = self._first or (monotonic(), progress)
        self._progress = progress
        self.on_change()

    def on_evaluation(self, evaluation: Evaluation, name: str) -> None:
        self._dev = evaluation.figure
        self.note(f"step {evaluation.step:,}: {name} of the development data {evaluation.figure:.4f}")

    def on_message(self, text: str) -> None:
        self.note(text)

    def describe(self) -> str:
        if self._first is None or self._progress is None:
            return "training: loading"
        start, first = self._first
        steps, tokens = self._progress.step - first.step, self._progress.tokens - first.tokens
        return format_progress(self._progress, steps, tokens, monotonic() - start, self._dev)


def format_progress(progress: TrainingProgress, steps: int, tokens: int, seconds: float, dev: float | None) -> str:
    """Format step, loss, development figure, speed and time left; `steps` and `tokens` were done in `seconds`."""
    text = f"step {progress.step:,} of {progress.steps:,}, loss {progress.loss:.4f}"
    if dev is not None:
        text += f", dev {dev:.4f}"
    if steps and seconds > 0:
        remaining = timedelta(seconds=round((progress.steps - progress.step) * seconds / steps))
        text += f", {steps / seconds:.1f} steps/s, {tokens / seconds:,.0f} tokens/s, {remaining} left"
    return text


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
        return format_running(self._done, self._count, self._steps, self._dev)

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


def format_running(done: int, count: int, running: Mapping[str, tuple[int, int]], dev: Mapping[str, float]) -> str:
    """Format how many trainings are done, and the first three running ones: name, share of steps, dev figure."""
    text = f"{done:,} of {count:,} trainings"
    parts = []
    for name, (step, steps) in list(running.items())[:3]:
        share = f"{step / steps:.0%}" if steps else "loading"
        parts.append(f"{name} {share}" + (f", dev {dev[name]:.3f}" if name in dev else ""))
    more = f" and {len(running) - 3} more" if len(running) > 3 else ""
    return f"{text}; {' · '.join(parts)}{more}" if parts else text
