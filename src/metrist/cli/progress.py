"""How far a run has come: on a terminal a bar with records done, rate and time left, and with LLMs' answers; anywhere
else nothing, but for a line where a server keeps an LLM's answers back."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING

from metrist.cli.output import remark
from metrist.llm.base import watch

if TYPE_CHECKING:
    from metrist.run.pipeline import Progress

#: Seconds between two lines about a server that fails.
_QUIET = 10.0


@contextmanager
def progress_bar(title: str) -> Iterator[Progress | None]:
    """A callback that draws how far a run has come; None where nobody watches."""
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
        began, records = monotonic(), ""

        def draw(done: int, total: int | None) -> None:
            nonlocal records
            records = how_far(done, total, monotonic() - began)
            bar.update(task, completed=done, total=total, far=both())

        def both() -> str:
            return "; ".join(filter(None, (records, answers.message)))

        answers = AnswerWatch(lambda: bar.update(task, far=both()))
        with watch(answers):
            yield draw


class AnswerWatch:
    """Counts answers, and says when a server makes a run wait: at once, then not more often than every few seconds."""

    def __init__(self, draw: Callable[[], None] | None = None) -> None:
        self._draw = draw
        self._asked = self._arrived = self._failed = 0
        self._told: float | None = None
        self._lock = threading.Lock()

    @property
    def message(self) -> str:
        """Answers so far, of those to the questions so far."""
        return f"{self._arrived:,} of {self._asked:,} answers" if self._asked else ""

    def requested(self, count: int) -> None:
        self._asked += count
        self._redraw()

    def completed(self, count: int) -> None:
        self._arrived += count
        self._redraw()

    def retried(self, reason: str, wait: float) -> None:
        with self._lock:
            self._failed += 1
            now = monotonic()
            if self._told is not None and now - self._told < _QUIET:
                return
            self._told = now
            times = "" if self._failed == 1 else f" ({self._failed:,} attempts have failed so far)"
            remark(f"{reason}; trying again in {wait:.1f} seconds{times}")

    def _redraw(self) -> None:
        if self._draw:
            self._draw()


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
