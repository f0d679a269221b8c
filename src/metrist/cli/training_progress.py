"""A training as it goes: a live line on a terminal; elsewhere a line for each evaluation."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any

from metrist.cli.output import remark

if TYPE_CHECKING:
    from metrist.train.watching import Evaluation, Progress, Watcher


class Lines:
    """Evaluations and remarks as lines on standard error."""

    def moved(self, progress: Progress) -> None:
        pass

    def evaluated(self, evaluation: Evaluation, name: str) -> None:
        self.said(f"step {evaluation.step:,}: {name} of the development pairs {evaluation.figure:.4f}")

    def said(self, text: str) -> None:
        remark(text)


class Live(Lines):
    """The same, above a bar that shows steps, speed, loss and the latest development figure."""

    def __init__(self, bar: Any, task: Any) -> None:
        self._bar = bar
        self._task = task
        self._first: tuple[float, int, int] | None = None
        self._dev: float | None = None

    def moved(self, progress: Progress) -> None:
        now = monotonic()
        began, step, tokens = self._first or (now, progress.step, progress.tokens)
        self._first = (began, step, tokens)
        words = how_far(progress, progress.step - step, progress.tokens - tokens, now - began, self._dev)
        self._bar.update(self._task, completed=progress.step, total=progress.steps, far=words)

    def evaluated(self, evaluation: Evaluation, name: str) -> None:
        self._dev = evaluation.figure
        super().evaluated(evaluation, name)

    def said(self, text: str) -> None:
        self._bar.console.print(f"metrist: {text}", markup=False, highlight=False, soft_wrap=True)


@contextmanager
def training_progress() -> Iterator[Watcher]:
    """Whoever watches a training on the command line."""
    if not sys.stderr.isatty():
        yield Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TextColumn("{task.fields[far]}"))
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        yield Live(bar, bar.add_task("training", total=None, far="loading"))


def how_far(progress: Progress, steps: int, tokens: int, seconds: float, dev: float | None) -> str:
    """Step, loss, development figure, speed and time left in words; `steps` and `tokens` are those of `seconds`."""
    words = f"step {progress.step:,} of {progress.steps:,}, loss {progress.loss:.4f}"
    if dev is not None:
        words += f", dev {dev:.4f}"
    if steps and seconds > 0:
        left = timedelta(seconds=round((progress.steps - progress.step) * seconds / steps))
        words += f", {steps / seconds:.1f} steps/s, {tokens / seconds:,.0f} tokens/s, {left} left"
    return words
