"""A worker process: `python -m metrist.run.worker`, told by its standard input what to score.

The first message says where modules are found and which metrics to hold; each further one is a task. A worker ends
when its standard input does, at once and whatever it is doing: it never outlives the run that started it.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import traceback
from queue import SimpleQueue
from typing import IO, Any

from metrist.errors import MetristError, RunError
from metrist.run import worker_pool
from metrist.run.tasks import Done, Task, perform


def main() -> None:
    """Serve tasks until the run closes the pipe."""
    tasks, answers = _private_pipes()
    inbox: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_fill, args=(tasks, inbox), daemon=True).start()
    try:
        metrics = _metrics(pickle.loads(inbox.get()))
    except Exception as fault:
        worker_pool.send(answers, pickle.dumps(_unreadable("the metrics", fault)))
        return
    while True:
        answer = _answer(metrics, inbox.get())
        try:
            worker_pool.send(answers, answer)
        except OSError:
            # The run has gone, and with it whoever could read a traceback.
            os._exit(0)


def _private_pipes() -> tuple[IO[bytes], IO[bytes]]:
    """The pipes to the run, moved out of the way of code that prints or reads standard input."""
    tasks = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    return tasks, answers


def _fill(tasks: IO[bytes], inbox: SimpleQueue[bytes]) -> None:
    try:
        while True:
            inbox.put(worker_pool.receive(tasks))
    except (EOFError, OSError):
        os._exit(0)


def _metrics(greeting: worker_pool.Greeting) -> dict[str, Any]:
    sys.path[:] = greeting.path
    # Ours was only to find metrist. A metric may start programs of other environments, which must not see it.
    os.environ.pop("PYTHONPATH", None)
    if greeting.python_path is not None:
        os.environ["PYTHONPATH"] = greeting.python_path
    os.chdir(greeting.folder)
    return {metric.text: metric for metric in pickle.loads(greeting.metrics)}


def _answer(metrics: dict[str, Any], message: bytes) -> bytes:
    try:
        task: Task = pickle.loads(message)
    except Exception as fault:
        return pickle.dumps(_unreadable("the records", fault))
    answer = _attempt(metrics, task)
    try:
        return pickle.dumps(answer, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as fault:
        return pickle.dumps(RunError(f"what a metric returned cannot leave its worker process: {fault}"))


def _attempt(metrics: dict[str, Any], task: Task) -> Done | MetristError:
    try:
        return perform(metrics, task)
    except MetristError as fault:
        if fault.__cause__ is not None:
            # A cause does not travel with an exception; as a note, its traceback does.
            fault.add_note("".join(traceback.format_exception(fault.__cause__)))
        return fault if _travels(fault) else RunError(f"{type(fault).__name__}: {fault}")


def _travels(fault: MetristError) -> bool:
    """Whether an exception can be read on the other side; one with a constructor of its own often cannot."""
    try:
        pickle.loads(pickle.dumps(fault))
    except Exception:
        return False
    return True


def _unreadable(what: str, fault: Exception) -> RunError:
    return RunError(
        f"{what} cannot be read in a worker process ({type(fault).__name__}: {fault}): use executor='serial'"
    )


if __name__ == "__main__":
    main()
