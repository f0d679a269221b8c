"""The progress bar: records done, rate and time left, on a terminal; nothing anywhere else."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Progress(Protocol):
    """What a run calls after each shard."""

    def __call__(self, done: int, total: int | None) -> None: ...


def _silent(done: int, total: int | None) -> None:
    del done, total


@contextmanager
def progress_bar(title: str) -> Iterator[Progress]:
    """A callback that draws how far a run has come."""
    if not sys.stderr.isatty():
        yield _silent
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Task as BarTask
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: BarTask) -> Text:
            return Text(f"{task.speed:,.0f} records/s" if task.speed else "")

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)

        def draw(done: int, total: int | None) -> None:
            bar.update(task, completed=done, total=total)

        yield draw
