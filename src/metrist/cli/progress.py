"""Progress of a command: what it is doing, how much is done and left, at which rate.

On a terminal it is a bar, from the first moment on. Elsewhere it is a line on standard error every ten seconds, so that
short commands stay quiet and the log of a long one always tells how far it is. Both also tell when an LLM server makes
the run wait, at once.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from time import monotonic

from metrist.cli.output import print_note
from metrist.llm.base import watch
from metrist.report.tables import escape_controls, shorten
from metrist.runtime import loading_watchers

#: Seconds between two lines of progress, and least seconds between two notes about a failing server.
_INTERVAL = 10.0
#: Seconds over which a rate is measured: long enough to be steady, short enough to follow when records get harder.
_WINDOW = 30.0
#: Characters shown of a metric's text.
_MAX_NAME = 40

Clock = Callable[[], float]


@dataclass(eq=False)
class Counter:
    """How many things are done, of how many, and how fast they went lately."""

    noun: str
    clock: Clock
    done: int = 0
    total: int | None = None
    _samples: deque[tuple[float, int]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._samples.append((self.clock(), self.done))

    def update(self, done: int, total: int | None) -> None:
        """Set both numbers."""
        now = self.clock()
        self.done, self.total = done, total
        self._samples.append((now, done))
        # The last sample before the window stays, so that the window is always covered.
        while len(self._samples) > 2 and self._samples[1][0] <= now - _WINDOW:
            self._samples.popleft()

    def describe(self) -> str:
        """`1,200 of 4,000 records (30 %), 40/s, 0:01:10 left`; without a total only what is done, and the rate."""
        text = f"{self.done:,}" if self.total is None else f"{self.done:,} of {self.total:,}"
        text += f" {self.noun}" if (self.total or self.done) != 1 else f" {self.noun.removesuffix('s')}"
        if self.total:
            text += f" ({min(100, 100 * self.done // self.total)} %)"
        began, before = self._samples[0]
        seconds, done = self.clock() - began, self.done - before
        if done <= 0 or seconds <= 0:
            return text
        rate = done / seconds
        text += f", {_format_rate(rate)}"
        if self.total is not None:
            text += f", {_format_time(max(0, self.total - self.done) / rate)} left"
        return text


def _format_rate(rate: float) -> str:
    if rate < 1:
        return f"{1 / rate:,.1f} s each"
    return f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.1f}/s"


def _format_time(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


class ProgressReport:
    """What a command is doing: a callback for `score` and the like, and a watcher of LLM calls and of model loads."""

    def __init__(self, title: str, noun: str = "records", clock: Clock = monotonic) -> None:
        self._title, self._noun, self._clock = title, noun, clock
        self._metric, self._loading = "", ""
        self._since = clock()
        self._records: Counter | None = None
        self._answers: Counter | None = None
        self._failures = 0
        self._last_note: float | None = None
        self._lock = threading.Lock()
        #: Called after each change.
        self.on_change: Callable[[], None] = lambda: None

    @property
    def records(self) -> tuple[int, int | None]:
        """Records done, and all of them where known."""
        return (self._records.done, self._records.total) if self._records else (0, None)

    def __call__(self, done: int, total: int | None = None, *, metric: str = "") -> None:
        """Report that so many records are done; the rate starts anew with each metric."""
        if self._records is None or metric != self._metric:
            self._metric, self._records, self._since = metric, Counter(self._noun, self._clock), self._clock()
        self._records.update(done, total)
        self.on_change()

    def begin(self, part: str) -> None:
        """Report the part of the work that comes now, where it is not records that count."""
        self._metric, self._records, self._answers, self._since = part, None, None, self._clock()
        self.on_change()

    def loading(self, model: str | None) -> None:
        """Report that a model is being loaded; None: it is."""
        now = self._clock()
        if model is None and self._records is not None and not self._records.done:
            # The time that a model takes to load is no part of the rate.
            self._records = Counter(self._noun, self._clock, 0, self._records.total)
        self._loading, self._since = model or "", now
        self.on_change()

    def requested(self, count: int) -> None:
        """Report that an LLM is asked so many questions more."""
        with self._lock:
            if self._answers is None or self._answers.done == self._answers.total:
                done = self._answers.done if self._answers else 0
                self._answers = Counter("answers", self._clock, done, done)
            self._answers.update(self._answers.done, (self._answers.total or 0) + count)
        self.on_change()

    def completed(self, count: int) -> None:
        """Report so many answers more."""
        with self._lock:
            answers = self._answers or Counter("answers", self._clock, 0, 0)
            self._answers = answers
            answers.update(answers.done + count, answers.total)
        self.on_change()

    def retried(self, reason: str, wait: float) -> None:
        """Tell that a server makes the run wait: at once, then at most every ten seconds."""
        with self._lock:
            self._failures += 1
            now = self._clock()
            if self._last_note is not None and now - self._last_note < _INTERVAL:
                return
            self._last_note = now
            attempts = "" if self._failures == 1 else f" ({self._failures:,} attempts have failed so far)"
            print_note(f"{reason}; trying again in {wait:.1f} seconds{attempts}")

    def describe(self) -> str:
        """All of it in one line."""
        text = f"{self._title} {escape_controls(shorten(self._metric, _MAX_NAME))}".rstrip()
        waited = self._clock() - self._since
        if self._loading:
            return f"{text}: loading the model {escape_controls(shorten(self._loading, _MAX_NAME))}{_since(waited)}"
        counts = [counter.describe() for counter in (self._records, self._answers) if counter is not None]
        moving = any(counter.done for counter in (self._records, self._answers) if counter is not None)
        return f"{text}{': ' if counts else ''}{'; '.join(counts)}{'' if moving else _since(waited)}"


def _since(seconds: float) -> str:
    return f", {_format_time(seconds)} so far" if seconds >= 1 else ""


@contextmanager
def progress_bar(title: str, noun: str = "records") -> Iterator[ProgressReport]:
    """Show the progress of the block, which is counted in `noun`; yields the callback to pass on."""
    report = ProgressReport(title, noun)
    loading_watchers.append(report.loading)
    try:
        with watch(report), _draw_bar(report) if sys.stderr.isatty() else _Lines(report):
            yield report
    finally:
        loading_watchers.remove(report.loading)


class _Lines(threading.Thread):
    """Prints a line of progress every ten seconds inside a `with` block."""

    def __init__(self, report: ProgressReport) -> None:
        super().__init__(name="progress", daemon=True)
        self._report, self._stop_printing = report, threading.Event()

    def run(self) -> None:
        while not self._stop_printing.wait(_INTERVAL):
            print_note(self._report.describe())

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *_: object) -> None:
        self._stop_printing.set()
        self.join()


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
