"""A study as it goes: one live line for all trainings on a terminal; elsewhere a line for each that ends."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from metrist.cli.output import remark

if TYPE_CHECKING:
    from metrist.studies.heap.watching import StudyWatcher
    from metrist.train.watching import Evaluation, Progress


class StudyLines:
    """Trainings that end, and remarks, as lines on standard error."""

    def __init__(self) -> None:
        self.count = self.done = 0
        self.dev: dict[str, float] = {}
        self.far: dict[str, tuple[int, int]] = {}

    def planned(self, count: int, finished: int) -> None:
        self.count, self.done = count, finished
        if finished:
            self.said(f"{finished:,} of {count:,} trainings were finished before")

    def started(self, name: str) -> None:
        self.far[name] = (0, 0)

    def moved(self, name: str, progress: Progress) -> None:
        self.far[name] = (progress.step, progress.steps)

    def evaluated(self, name: str, evaluation: Evaluation, figure: str) -> None:  # noqa: ARG002
        self.dev[name] = evaluation.figure

    def finished(self, name: str, seconds: float) -> None:
        self._ended(name)
        dev = f", dev {self.dev[name]:.4f}" if name in self.dev else ""
        self.said(f"{self.done:,} of {self.count:,}: {name} in {seconds:,.1f} s{dev}")

    def failed(self, name: str, reason: str) -> None:
        self._ended(name)
        self.said(f"{self.done:,} of {self.count:,}: {name} failed: {reason}")

    def said(self, text: str) -> None:
        remark(text)

    def _ended(self, name: str) -> None:
        self.done += 1
        self.far.pop(name, None)


class StudyLive(StudyLines):
    """The same, above a bar of all trainings and how far each one under way has come."""

    def __init__(self, bar: Any, task: Any) -> None:
        super().__init__()
        self._bar = bar
        self._task = task

    def planned(self, count: int, finished: int) -> None:
        super().planned(count, finished)
        self._draw()

    def started(self, name: str) -> None:
        super().started(name)
        self._draw()

    def moved(self, name: str, progress: Progress) -> None:
        super().moved(name, progress)
        self._draw()

    def _ended(self, name: str) -> None:
        super()._ended(name)
        self._draw()

    def said(self, text: str) -> None:
        self._bar.console.print(f"metrist: {text}", markup=False, highlight=False, soft_wrap=True)

    def _draw(self) -> None:
        parts = sum(step / steps for step, steps in self.far.values() if steps)
        words = under_way(self.done, self.count, self.far, self.dev)
        self._bar.update(self._task, completed=self.done + parts, total=self.count, far=words)


@contextmanager
def study_progress() -> Iterator[StudyWatcher]:
    """Whoever watches a study on the command line."""
    if not sys.stderr.isatty():
        yield StudyLines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TextColumn("{task.fields[far]}"))
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        yield StudyLive(bar, bar.add_task("study", total=None, far="reading"))


def under_way(done: int, count: int, far: dict[str, tuple[int, int]], dev: dict[str, float]) -> str:
    """How many trainings are done, and of those under way the first few: name, share of its steps, dev figure."""
    words = f"{done:,} of {count:,} trainings"
    shown = []
    for name, (step, steps) in list(far.items())[:3]:
        at = f"{step / steps:.0%}" if steps else "loading"
        shown.append(f"{name} {at}" + (f", dev {dev[name]:.3f}" if name in dev else ""))
    more = f" and {len(far) - 3} more" if len(far) > 3 else ""
    return f"{words}; {' · '.join(shown)}{more}" if shown else words
