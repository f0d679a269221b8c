"""What a worker process does: it holds the metrics of a run and performs tasks."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable
from functools import cache
from typing import TypeVar

from metrist.errors import MetristError, RunError
from metrist.metrics.base import Metric
from metrist.run.tasks import Task, perform

_T = TypeVar("_T")


#: The pickled metrics of the run, in a worker.
_pickled: list[bytes] = []


def hold_metrics(pickled: bytes) -> None:
    """Keep the pickled metrics of the run until the first task."""
    _pickled.append(pickled)


@cache
def _load_metrics() -> dict[str, Metric]:
    return {metric.text: metric for metric in pickle.loads(_pickled[-1])}


def reply(message: bytes) -> bytes:
    """Perform a pickled task. The result or the error is pickled, too."""
    try:
        known = _load_metrics()
    except Exception as error:
        return pickle.dumps(_unreadable("the metrics", error))
    try:
        task: Task = pickle.loads(message)
    except Exception as error:
        return pickle.dumps(_unreadable("the records", error))
    result = attempt(lambda: perform(known, task))
    try:
        return pickle.dumps(result, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        return pickle.dumps(RunError(f"a metric's result cannot be sent from its worker process: {error}"))


def attempt(work: Callable[[], _T]) -> _T | MetristError:
    """The result of a piece of work, or the error that ended it, as it can be sent."""
    try:
        return work()
    except MetristError as error:
        if error.__cause__ is not None:
            # A cause is not pickled with an exception; as a note, its traceback is.
            error.add_note("".join(traceback.format_exception(error.__cause__)))
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # An exception with a constructor of its own often cannot be unpickled.
            return RunError(f"{type(error).__name__}: {error}")
        return error


def _unreadable(what: str, error: Exception) -> RunError:
    return RunError(
        f"{what} cannot be read in a worker process ({type(error).__name__}: {error}): use executor='serial'"
    )
