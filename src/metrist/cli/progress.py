"""Progress of a run: on a terminal a bar with records done, rate, time left and LLM answers; elsewhere only a line when
an LLM server makes the run wait."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING

from metrist.cli.output import print_note
from metrist.llm.base import watch

if TYPE_CHECKING:
    from metrist.run.pipeline import Progress

#: Least seconds between two notes about a failing server.
_NOTE_INTERVAL = 10.0


@contextmanager
def progress_bar(title: str) -> Iterator[Progress | None]:
    """Yield a callback that draws the progress; None if standard error is not a terminal."""
    if not sys.stderr.isatty():
        with watch(AnswerWatch()):
            yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[far]}"))
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None, far="")
        start, records = monotonic(), ""

        def draw(done: int, total: int | None) -> None:
            nonlocal records
            records = format_progress(done, total, monotonic() - start)
            bar.update(task, completed=done, total=total, far=describe())

        def describe() -> str:
            return "; ".join(filter(None, (records, answers.message)))

        answers = AnswerWatch(lambda: bar.update(task, far=describe()))
        with watch(answers):
            yield draw


@dataclass(eq=False)
class AnswerWatch:
    """Count answers, and print a note when a server makes the run wait: at once, then at most every ten seconds."""

    draw: Callable[[], None] | None = None
    _requests: int = 0
    _answers: int = 0
    _failures: int = 0
    _last_note: float | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def message(self) -> str:
        """The number of answers and requests so far; empty before the first request."""
        return f"{self._answers:,} of {self._requests:,} answers" if self._requests else ""

    def requested(self, count: int) -> None:
        self._requests += count
        self._redraw()

    def completed(self, count: int) -> None:
        self._answers += count
        self._redraw()

    def retried(self, reason: str, wait: float) -> None:
        with self._lock:
            self._failures += 1
            now = monotonic()
            if self._last_note is not None and now - self._last_note < _NOTE_INTERVAL:
                return
            self._last_note = now
            attempts = "" if self._failures == 1 else f" ({self._failures:,} attempts have failed so far)"
            print_note(f"{reason}; trying again in {wait:.1f} seconds{attempts}")

    def _redraw(self) -> None:
        if self.draw:
            self.draw()


def format_progress(done: int, total: int | None, seconds: float) -> str:
    """Format records done, rate and time left. The rate is computed here because rich resets its own whenever the
    total changes, and the total may be a changing estimate."""
    rate = done / seconds if seconds > 0 else 0.0
    text = f"{done:,} records" if total is None else f"{done:,} of {total:,} records"
    if rate:
        text += f", {rate:,.0f}/s"
    if rate and total is not None:
        text += f", {timedelta(seconds=max(0, round((total - done) / rate)))} left"
    return text
