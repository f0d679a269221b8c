"""Show the progress of a command or call: on a terminal a bar from the first moment on, in a notebook a line that
changes in place, elsewhere a line on standard error now and then, so that short commands stay quiet and the log of a
long one always tells how far it is.

rich draws the bar. It draws nothing in a notebook without ipywidgets, so the line there is our own.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from html import escape
from threading import Event, Thread
from time import monotonic
from typing import Any

from metrist.errors import escape_controls

Clock = Callable[[], float]

#: Seconds between two lines: at first, and after ten minutes.
INTERVAL, LONG_INTERVAL = 10.0, 60.0
#: Least seconds between two drawings in a notebook.
_REDRAW = 0.2


def print_note(text: str) -> None:
    print(f"metrist: {escape_controls(text)}", file=sys.stderr, flush=True)


class Shown:
    """Something whose progress is shown. It calls `on_change` after each change, and `note` with lines for the user."""

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


def show_progress(shown: Shown) -> AbstractContextManager[None]:
    """Show the progress on standard error inside the block."""
    return _draw_bar(shown) if sys.stderr.isatty() else _print_lines(shown)


@contextmanager
def _print_lines(shown: Shown) -> Iterator[None]:
    ended = Event()

    def print_lines() -> None:
        began = monotonic()
        while not ended.wait(next_interval(monotonic() - began)):
            shown.note(shown.describe())

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
def _draw_bar(shown: Shown) -> Iterator[None]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, Task
    from rich.table import Column
    from rich.text import Text

    class Status(ProgressColumn):
        """Drawn again several times a second, so that times go on while nothing is reported."""

        def render(self, task: Task) -> Text:  # noqa: ARG002
            return Text(shown.describe())

    status = Status(Column(no_wrap=True, overflow="ellipsis"))
    with Progress(BarColumn(20), status, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def move() -> None:
            done, total = shown.position
            bar.update(task, completed=done, total=total)

        def print_above(text: str) -> None:
            bar.console.print(f"metrist: {escape_controls(text)}", markup=False, highlight=False, soft_wrap=True)

        shown.on_change, shown.note = move, print_above
        try:
            yield
        finally:
            shown.note = print_note


# ---- Notebooks ----


def in_notebook() -> bool:
    """Whether this is a kernel of Jupyter, which can change what it has shown; a terminal of IPython is none."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")


@contextmanager
def show_in_notebook(shown: Shown, summarize: Callable[[str], str], clock: Clock = monotonic) -> Iterator[None]:
    """Show a bar with a line that changes in place. It ends as `summarize` says, given how the block ended."""
    from IPython.display import display

    handle: Any = None
    lock, last = threading.Lock(), -math.inf

    def redraw() -> None:
        # LLM answers come from many threads; one that finds the line being drawn has nothing to add.
        nonlocal handle, last
        if clock() - last >= _REDRAW and lock.acquire(blocking=False):
            try:
                last = clock()
                line = _Line(shown.describe(), shown.position)
                if handle is None:
                    handle = display(line, display_id=True)
                else:
                    handle.update(line)
            finally:
                lock.release()

    shown.on_change = redraw
    end = "stopped after "
    try:
        yield
        end = ""
    finally:
        shown.on_change = lambda: None
        if handle is not None:  # What is refused before it begins has nothing to show.
            with lock:
                handle.update(_Line(summarize(end), None))


@dataclass(frozen=True)
class _Line:
    """What a notebook shows: a bar and the text; the text alone at the end and where there is no HTML."""

    text: str
    position: tuple[float, float | None] | None

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        if self.position is None:
            return escape(self.text)
        done, total = self.position
        share = f' value="{done}" max="{total}"' if total else ""
        return f"<progress{share}></progress> {escape(self.text)}"
