"""Progress of a command: what it is doing, how much is done and left, at which rate.

On a terminal it is a bar, from the first moment on. Elsewhere it is a line on standard error every ten seconds, so that
short commands stay quiet and the log of a long one always tells how far it is. Both also tell when an LLM server makes
the run wait, at once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

from metrist.cli.output import print_note
from metrist.report.progress import INTERVAL, ProgressReport, watch_run


@contextmanager
def progress_bar(title: str, noun: str = "records") -> Iterator[ProgressReport]:
    """Show the progress of the block, which is counted in `noun`; yields the callback to pass on."""
    report = ProgressReport(title, noun, note=print_note)
    with watch_run(report), _draw_bar(report) if sys.stderr.isatty() else _print_lines(report):
        yield report


@contextmanager
def _print_lines(report: ProgressReport) -> Iterator[None]:
    """Print a line of progress every ten seconds."""
    ended = Event()

    def print_lines() -> None:
        while not ended.wait(INTERVAL):
            print_note(report.describe())

    thread = Thread(target=print_lines, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def _draw_bar(report: ProgressReport) -> Iterator[None]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, Task
    from rich.table import Column
    from rich.text import Text

    class Status(ProgressColumn):
        """Drawn again several times a second, so that times go on while nothing is reported."""

        def render(self, task: Task) -> Text:  # noqa: ARG002
            return Text(report.describe())

    status = Status(Column(no_wrap=True, overflow="ellipsis"))
    with Progress(BarColumn(20), status, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def move() -> None:
            done, total = report.records
            bar.update(task, completed=done, total=total)

        report.on_change = move
        yield
