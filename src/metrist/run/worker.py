"""A worker process: it reads metrics and tasks from its standard input and writes results to its standard output.

The first message says where modules are found and which metrics to hold; each further one is a task. A worker ends at
once when its standard input does, whatever it is doing, so it never outlives the run that started it.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import traceback
from collections.abc import Callable
from queue import SimpleQueue
from typing import IO, Any, TypeVar

from metrist.errors import MetristError, RunError
from metrist.run.tasks import Task, perform
from metrist.run.worker_pool import receive, send

_T = TypeVar("_T")


def main() -> None:
    tasks, results = _take_over_pipes()
    inbox: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_read_messages, args=(tasks, inbox), daemon=True).start()
    try:
        path, folder, pickled = pickle.loads(inbox.get())
        sys.path[:] = path
        os.chdir(folder)
        metrics = {metric.text: metric for metric in pickle.loads(pickled)}
    except Exception as error:
        send(results, pickle.dumps(_unreadable("the metrics", error)))
        return
    while True:
        answer = reply(metrics, inbox.get())
        try:
            send(results, answer)
        except OSError:
            os._exit(0)  # The run has ended, so nobody would read a traceback.


def _take_over_pipes() -> tuple[IO[bytes], IO[bytes]]:
    """The pipes to the run, moved so that code that prints or reads standard input does not disturb them."""
    tasks = os.fdopen(os.dup(0), "rb")
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    return tasks, results


def _read_messages(tasks: IO[bytes], inbox: SimpleQueue[bytes]) -> None:
    try:
        while True:
            inbox.put(receive(tasks))
    except (EOFError, OSError):
        os._exit(0)


def reply(metrics: dict[str, Any], message: bytes) -> bytes:
    """Perform a pickled task; the result or the error is pickled, too."""
    try:
        task: Task = pickle.loads(message)
    except Exception as error:
        return pickle.dumps(_unreadable("the records", error))
    result = attempt(lambda: perform(metrics, task))
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


if __name__ == "__main__":
    main()
