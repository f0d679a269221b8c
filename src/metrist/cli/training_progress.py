"""A training as it goes: a live line on a terminal; elsewhere plain lines, every so often."""

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


#: Without a terminal a line comes after so many seconds, or after this share of the steps, whichever is first.
_SECONDS, _SHARE = 60.0, 0.1


class Lines:
    """Evaluations and remarks as lines on standard error, and every so often one that says how far it is."""

    def __init__(self) -> None:
        self._told = (monotonic(), 0)
        self._first: tuple[float, int, int] | None = None
        self._dev: float | None = None

    def moved(self, progress: Progress) -> None:
        now, words = monotonic(), self._words(progress)
        then, step = self._told
        is_due = now - then >= _SECONDS or progress.step - step >= _SHARE * progress.steps
        if is_due and progress.step < progress.steps:  # The end is told by the result.
            self._told = (now, progress.step)
            self.said(words)

    def evaluated(self, evaluation: Evaluation, name: str) -> None:
        self._dev = evaluation.figure
        self.said(f"step {evaluation.step:,}: {name} of the development pairs {evaluation.figure:.4f}")

    def said(self, text: str) -> None:
        remark(text)

    def _words(self, progress: Progress) -> str:
        """How far it is; the speed is that since the first time this was asked, without what came before training."""
        now = monotonic()
        began, step, tokens = self._first or (now, progress.step, progress.tokens)
        self._first = (began, step, tokens)
        return how_far(progress, progress.step - step, progress.tokens - tokens, now - began, self._dev)


class Live(Lines):
    """The same, above a bar that shows steps, speed, loss and the latest development figure."""

    def __init__(self, bar: Any, task: Any) -> None:
        super().__init__()
        self._bar = bar
        self._task = task

    def moved(self, progress: Progress) -> None:
        self._bar.update(self._task, completed=progress.step, total=progress.steps, far=self._words(progress))

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
