"""Progress of a run: what is under way, how much is done and left, at which rate.

On a terminal it is a bar from the first moment on, in a notebook a line that changes in place, elsewhere a line on
standard error now and then, so that short commands stay quiet and the log of a long one always tells how far it is.
rich draws the bar; it draws nothing in a notebook without ipywidgets, so the line there is our own.
"""

from __future__ import annotations

import inspect
import math
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import wraps
from threading import Event, Thread
from time import monotonic
from typing import Any, ParamSpec, Protocol, TypeVar

from markupsafe import escape

from metrist.errors import escape_controls
from metrist.report.tables import shorten
from metrist.runtime import call_watchers, loading_watchers

_P = ParamSpec("_P")
_T = TypeVar("_T")
Clock = Callable[[], float]

#: Seconds between two lines: at first, and after ten minutes.
INTERVAL, LONG_INTERVAL = 10.0, 60.0
#: Least seconds between two drawings in a notebook.
_REDRAW = 0.2
#: Seconds over which a rate is measured: long enough to be steady, short enough to follow when records get harder.
_WINDOW = 30.0
#: Characters shown of a metric's text.
_MAX_NAME = 40


class Progress(Protocol):
    """Called with the number of records (or pairs) done, and of all of them where that is known or can be estimated.

    A callback with a keyword parameter `metric` is told more: which metrics are under way, as one text, and that they
    begin, by a first call with 0 records done. The count starts again at 0 when other metrics come, since cheap metrics
    go over the whole input before those with a model do. One with a keyword parameter `stored` is told how many of the
    records done a run folder had already.
    """

    def __call__(self, done: int, total: int | None) -> None: ...


def find_progress_keywords(progress: Progress | bool | None) -> set[str]:
    """Which of the optional keyword arguments of `Progress` a callback takes."""
    if not callable(progress):
        return set()
    try:
        parameters = inspect.signature(progress).parameters.values()
    except (TypeError, ValueError):  # A builtin without a signature.
        return set()
    keywords = {"metric", "stored"}
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return keywords
    return keywords & {parameter.name for parameter in parameters if parameter.kind is not parameter.POSITIONAL_ONLY}


def print_note(text: str) -> None:
    print(f"metrist: {escape_controls(text)}", file=sys.stderr, flush=True)


class ProgressSource:
    """Work whose progress is shown. It calls `on_change` after each change, and `note` with lines for the user."""

    def __init__(self) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self.note: Callable[[str], None] = print_note

    @property
    def position(self) -> tuple[float, float | None]:
        """How much is done, and all of it where that is known."""
        raise NotImplementedError

    def describe(self) -> str:
        """All of it in one line."""
        raise NotImplementedError


@dataclass(eq=False)
class Counter:
    """How many things are done, of how many, and how fast. Those of an earlier run say nothing about the rate."""

    noun: str
    clock: Clock
    done: int = 0
    total: int | None = None
    stored: int = 0
    _samples: deque[tuple[float, int]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._samples.append((self.clock(), self.done - self.stored))

    def update(self, done: int, total: int | None, stored: int = 0) -> None:
        """Set the numbers; `stored` are those of the ones done that were done before."""
        now = self.clock()
        self.done, self.total, self.stored = done, total, stored
        self._samples.append((now, done - stored))
        # The last sample before the window stays, so that the window is always covered.
        while len(self._samples) > 2 and self._samples[1][0] <= now - _WINDOW:
            self._samples.popleft()

    def describe(self) -> str:
        """`1,200 of 4,000 records (30 %), 40/s, 0:01:10 left`; without a total only what is done, and the rate."""
        text = f"{self.done:,}" if self.total is None else f"{self.done:,} of {self.total:,}"
        text += f" {self.noun}" if (self.total or self.done) != 1 else f" {self.noun.removesuffix('s')}"
        if self.total:
            text += f" ({min(100, 100 * self.done // self.total)} %)"
        waited = self.clock() - self._samples[-1][0]
        if self.total is not None and self.done >= self.total and waited >= INTERVAL / 2:
            return f"{text}, finishing for {_format_time(waited)}"  # Columns, intervals, tables.
        began, before = self._samples[0]
        seconds, done = self.clock() - began, self.done - self.stored - before
        if done <= 0 or seconds <= 0:
            return text
        rate = done / seconds
        text += f", {1 / rate:,.1f} s each" if rate < 1 else f", {rate:,.{0 if rate >= 10 else 1}f}/s"
        if self.total is not None:
            text += f", {_format_time(max(0, self.total - self.done) / rate)} left"
        return text


def _format_time(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


class ProgressReport(ProgressSource):
    """What a command is doing: a callback for `score` and the like, and a watcher of LLM calls and of model loads."""

    def __init__(self, title: str, noun: str = "records", clock: Clock = monotonic) -> None:
        super().__init__()
        self._title, self._noun, self._clock = title, noun, clock
        self._metric, self._loading = "", ""
        self._began = self._since = clock()
        self._records: Counter | None = None
        self._answers: Counter | None = None
        self._failures = 0
        self._last_note: float | None = None
        self._lock = threading.Lock()

    @property
    def position(self) -> tuple[int, int | None]:
        """Records done, and all of them where known."""
        return (self._records.done, self._records.total) if self._records else (0, None)

    def __call__(self, done: int, total: int | None = None, *, metric: str = "", stored: int = 0) -> None:
        """Report that so many records are done, of which some were stored; the rate starts anew with each metric."""
        if self._records is None or metric != self._metric:
            self._metric = metric
            self._records = Counter(self._noun, self._clock)
            self._since = self._clock()
        self._records.update(done, total, stored)
        self.on_change()

    def begin(self, part: str) -> None:
        """Report the part of the work that comes now, where it is not records that count."""
        self._metric = part
        self._records = None
        self._answers = None
        self._since = self._clock()
        self.on_change()

    def loading(self, model: str | None) -> None:
        """Report that a model is being loaded; None: it is."""
        now = self._clock()
        records = self._records
        if model is None and records is not None and records.done == records.stored:
            # The time that a model takes to load is no part of the rate.
            self._records = Counter(self._noun, self._clock, records.done, records.total, records.stored)
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
            self._answers = self._answers or Counter("answers", self._clock, 0, 0)
            self._answers.update(self._answers.done + count, self._answers.total)
        self.on_change()

    def retried(self, reason: str, wait: float) -> None:
        """Tell that a server makes the run wait: at once, then at most every ten seconds."""
        with self._lock:
            self._failures += 1
            now = self._clock()
            if self._last_note is not None and now - self._last_note < INTERVAL:
                return
            self._last_note = now
            attempts = "" if self._failures == 1 else f" ({self._failures:,} attempts have failed so far)"
            self.note(f"{reason}; trying again in {wait:.1f} seconds{attempts}")

    def summarize(self, end: str = "") -> str:
        """What was done, in one line; `end` says how it ended."""
        done = self.position[0]
        noun = self._noun if done != 1 else self._noun.removesuffix("s")
        return f"{self._title}: {end}{done:,} {noun} in {_format_time(self._clock() - self._began)}"

    def describe(self) -> str:
        text = f"{self._title} {escape_controls(shorten(self._metric, _MAX_NAME))}".rstrip()
        waited = self._clock() - self._since
        so_far = f", {_format_time(waited)} so far" if waited >= 1 else ""
        if self._loading:
            return f"{text}: loading the model {escape_controls(shorten(self._loading, _MAX_NAME))}{so_far}"
        counters = [counter for counter in (self._records, self._answers) if counter is not None]
        text += f": {'; '.join(counter.describe() for counter in counters)}" if counters else ""
        return text if any(counter.done for counter in counters) else f"{text}{so_far}"


@contextmanager
def watch_run(report: ProgressReport) -> Iterator[None]:
    """Tell the report of LLM calls and of model loads inside the block."""
    call_watchers.append(report)
    loading_watchers.append(report.loading)
    try:
        yield
    finally:
        call_watchers.remove(report)
        loading_watchers.remove(report.loading)


# ---- On standard error ----


def show_progress(source: ProgressSource) -> AbstractContextManager[None]:
    """Show the progress on standard error inside the block."""
    return _draw_bar(source) if sys.stderr.isatty() else _print_lines(source)


@contextmanager
def _print_lines(source: ProgressSource) -> Iterator[None]:
    ended = Event()

    def print_lines() -> None:
        began = monotonic()
        while not ended.wait(next_interval(monotonic() - began)):
            source.note(source.describe())

    thread = Thread(target=print_lines, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def next_interval(seconds: float) -> float:
    """Seconds until the next line of something that has run for `seconds`."""
    return min(LONG_INTERVAL, max(INTERVAL, seconds / 10))


@contextmanager
def _draw_bar(source: ProgressSource) -> Iterator[None]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, Task
    from rich.table import Column
    from rich.text import Text

    class Status(ProgressColumn):
        """Drawn again several times a second, so that times go on while nothing is reported."""

        def render(self, task: Task) -> Text:  # noqa: ARG002
            return Text(source.describe())

    status = Status(Column(no_wrap=True, overflow="ellipsis"))
    with Progress(BarColumn(20), status, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def move() -> None:
            done, total = source.position
            bar.update(task, completed=done, total=total)

        def print_above(text: str) -> None:
            bar.console.print(f"metrist: {escape_controls(text)}", markup=False, highlight=False, soft_wrap=True)

        source.on_change, source.note = move, print_above
        try:
            yield
        finally:
            source.note = print_note


# ---- Notebooks ----


def in_notebook() -> bool:
    """Whether this is a kernel of Jupyter, which can change what it has shown; a terminal of IPython is none."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")


@contextmanager
def show_in_notebook(report: ProgressReport, clock: Clock = monotonic) -> Iterator[None]:
    """Show a bar with a line that changes in place, and in the end what was done."""
    from IPython.display import display

    handle: Any = None
    lock, last = threading.Lock(), -math.inf

    def redraw() -> None:
        # LLM answers come from many threads; one that finds the line being drawn has nothing to add.
        nonlocal handle, last
        if clock() - last >= _REDRAW and lock.acquire(blocking=False):
            try:
                last = clock()
                line = _NotebookLine(report.describe(), report.position)
                if handle is None:
                    handle = display(line, display_id=True)
                else:
                    handle.update(line)
            finally:
                lock.release()

    report.on_change = redraw
    end = "stopped after "
    try:
        yield
        end = ""
    finally:
        report.on_change = lambda: None
        if handle is not None:  # What is refused before it begins has nothing to show.
            with lock:
                handle.update(_NotebookLine(report.summarize(end), None))


@dataclass(frozen=True)
class _NotebookLine:
    """What a notebook shows: a bar and the text; the text alone at the end and where there is no HTML."""

    text: str
    position: tuple[float, float | None] | None

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        if self.position is None:
            return str(escape(self.text))
        done, total = self.position
        share = f' value="{done}" max="{total}"' if total else ""
        return f"<progress{share}></progress> {escape(self.text)}"


# ---- Calls from Python ----


def shows_progress(title: str, noun: str) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Let an argument `progress` also be True or False: whether to show it. None is True in a notebook."""

    def decorate(function: Callable[_P, _T]) -> Callable[_P, _T]:
        @wraps(function)
        def call(*arguments: _P.args, **keywords: _P.kwargs) -> _T:
            progress = keywords.get("progress")
            if progress is False or (progress is None and not in_notebook()):
                keywords["progress"] = None
            elif progress is None or progress is True:
                with report_progress(ProgressReport(title, noun)) as report:
                    keywords["progress"] = report
                    return function(*arguments, **keywords)
            return function(*arguments, **keywords)

        return call

    return decorate


@contextmanager
def report_progress(report: ProgressReport) -> Iterator[ProgressReport]:
    """Show the progress of the block, and in the end what was done."""
    if in_notebook():
        with show_in_notebook(report), watch_run(report):
            yield report
        return
    end = "stopped after "
    try:
        with show_progress(report), watch_run(report):
            yield report
        end = ""
    finally:
        if report.position[0]:
            print_note(report.summarize(end))
