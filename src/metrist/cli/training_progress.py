"""A training as it goes: a live line on a terminal; elsewhere plain lines, every so often."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any

from metrist.cli.output import print_note

if TYPE_CHECKING:
    from metrist.train.task import Evaluation, TrainingCallback, TrainingProgress
if TYPE_CHECKING:
    from metrist.studies.heap.worker_pool import StudyCallback
    from metrist.train.task import Evaluation
from collections.abc import Callable
from pathlib import Path

from metrist.cli.output import print_text

if TYPE_CHECKING:
    from metrist.train.task import TrainingCallback


#: Without a terminal a line comes after so many seconds, or after this share of the steps, whichever is first.
_SECONDS, _SHARE = 60.0, 0.1


class Lines:
    """Evaluations and remarks as lines on standard error, and every so often one that says how far it is."""

    def __init__(self) -> None:
        self._told = (monotonic(), 0)
        self._first: tuple[float, int, int] | None = None
        self._dev: float | None = None

    def on_progress(self, progress: TrainingProgress) -> None:
        now, words = monotonic(), self._words(progress)
        then, step = self._told
        is_due = now - then >= _SECONDS or progress.step - step >= _SHARE * progress.steps
        if is_due and progress.step < progress.steps:  # The end is told by the result.
            self._told = (now, progress.step)
            self.on_message(words)

    def on_evaluation(self, evaluation: Evaluation, name: str) -> None:
        self._dev = evaluation.figure
        self.on_message(f"step {evaluation.step:,}: {name} of the development pairs {evaluation.figure:.4f}")

    def on_message(self, text: str) -> None:
        print_note(text)

    def _words(self, progress: TrainingProgress) -> str:
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

    def on_progress(self, progress: TrainingProgress) -> None:
        self._bar.update(self._task, completed=progress.step, total=progress.steps, far=self._words(progress))

    def on_message(self, text: str) -> None:
        self._bar.console.print(f"metrist: {text}", markup=False, highlight=False, soft_wrap=True)


@contextmanager
def training_progress() -> Iterator[TrainingCallback]:
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


def how_far(progress: TrainingProgress, steps: int, tokens: int, seconds: float, dev: float | None) -> str:
    """Step, loss, development figure, speed and time left in words; `steps` and `tokens` are those of `seconds`."""
    words = f"step {progress.step:,} of {progress.steps:,}, loss {progress.loss:.4f}"
    if dev is not None:
        words += f", dev {dev:.4f}"
    if steps and seconds > 0:
        left = timedelta(seconds=round((progress.steps - progress.step) * seconds / steps))
        words += f", {steps / seconds:.1f} steps/s, {tokens / seconds:,.0f} tokens/s, {left} left"
    return words


# A study as it goes: one live line for all trainings on a terminal; elsewhere a line for each that ends.


class StudyLines:
    """Trainings that end, and remarks, as lines on standard error."""

    def __init__(self) -> None:
        self.count = self.done = 0
        self.dev: dict[str, float] = {}
        self.far: dict[str, tuple[int, int]] = {}

    def on_plan(self, count: int, finished: int) -> None:
        self.count, self.done = count, finished
        if finished:
            self.on_message(f"{finished:,} of {count:,} trainings were finished before")

    def on_start(self, name: str) -> None:
        self.far[name] = (0, 0)

    def on_progress(self, name: str, progress: TrainingProgress) -> None:
        self.far[name] = (progress.step, progress.steps)

    def on_evaluation(self, name: str, evaluation: Evaluation, figure: str) -> None:  # noqa: ARG002
        self.dev[name] = evaluation.figure

    def on_finish(self, name: str, seconds: float) -> None:
        self._ended(name)
        dev = f", dev {self.dev[name]:.4f}" if name in self.dev else ""
        self.on_message(f"{self.done:,} of {self.count:,}: {name} in {seconds:,.1f} s{dev}")

    def on_failure(self, name: str, reason: str) -> None:
        self._ended(name)
        self.on_message(f"{self.done:,} of {self.count:,}: {name} failed: {reason}")

    def on_message(self, text: str) -> None:
        print_note(text)

    def _ended(self, name: str) -> None:
        self.done += 1
        self.far.pop(name, None)


class StudyLive(StudyLines):
    """The same, above a bar of all trainings and how far each one under way has come."""

    def __init__(self, bar: Any, task: Any) -> None:
        super().__init__()
        self._bar = bar
        self._task = task

    def on_plan(self, count: int, finished: int) -> None:
        super().on_plan(count, finished)
        self._draw()

    def on_start(self, name: str) -> None:
        super().on_start(name)
        self._draw()

    def on_progress(self, name: str, progress: TrainingProgress) -> None:
        super().on_progress(name, progress)
        self._draw()

    def _ended(self, name: str) -> None:
        super()._ended(name)
        self._draw()

    def on_message(self, text: str) -> None:
        self._bar.console.print(f"metrist: {text}", markup=False, highlight=False, soft_wrap=True)

    def _draw(self) -> None:
        parts = sum(step / steps for step, steps in self.far.values() if steps)
        words = under_way(self.done, self.count, self.far, self.dev)
        self._bar.update(self._task, completed=self.done + parts, total=self.count, far=words)


@contextmanager
def study_progress() -> Iterator[StudyCallback]:
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


# A training carried out, with its progress and its result told.


def carry_out(work: Callable[[TrainingCallback], dict[str, Any]], out: Path) -> None:
    """Train while the terminal shows how far it is; `work` gives the card."""
    from metrist.train.distributed import is_first_process

    try:
        with training_progress() as watcher:
            card = work(watcher)
    except KeyboardInterrupt as stop:
        if str(stop) and is_first_process():  # A checkpoint was written; Ctrl-C before the first step says nothing.
            print_note(f"{stop}; the same command goes on from there")
        raise
    if is_first_process():
        _tell_result(card, out)


def _tell_result(card: dict[str, Any], out: Path) -> None:
    figures = card["figures"]
    if figures:
        print_text(
            f"{figures['name']} of the development pairs: {figures['before']:.4f} before, {figures['after']:.4f} after"
        )
        _tell_criteria(card["data"].get("criteria", {}), figures.get("by_criterion", {}))
    print_text(f"trained in {card['training']['seconds']:,} s: {out} (fingerprint {card['fingerprint']})")
    print_text(f'use it: metrist score … -m "{card["metric"]}"')


def _tell_criteria(criteria: dict[str, Any], figures: dict[str, float]) -> None:
    if len(figures) < 2:
        return
    width = max(map(len, figures))
    for name, figure in figures.items():
        print_text(f"  {name:{width}}  {figure:.4f}  {criteria[name]['development_pairs']:,} pairs")
