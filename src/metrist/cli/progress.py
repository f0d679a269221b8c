"""The progress bar: records done, rate and time left, on a terminal; nothing anywhere else."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from metrist.run.scoring import Progress


@contextmanager
def progress_bar(title: str) -> Iterator[Progress | None]:
    """A callback that draws how far a run has come; None where nobody watches."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[far]}"))
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None, far="")
        began = monotonic()

        def draw(done: int, total: int | None) -> None:
            bar.update(task, completed=done, total=total, far=how_far(done, total, monotonic() - began))

        yield draw


def how_far(done: int, total: int | None, seconds: float) -> str:
    """Done, rate and time left in words. The total may be an estimate that changes, so the rate is kept apart from it
    (rich forgets its own whenever the total changes)."""
    rate = done / seconds if seconds > 0 else 0.0
    words = f"{done:,} records" if total is None else f"{done:,} of {total:,} records"
    if rate:
        words += f", {rate:,.0f}/s"
    if rate and total is not None:
        words += f", {timedelta(seconds=max(0, round((total - done) / rate)))} left"
    return words
