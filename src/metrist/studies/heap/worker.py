"""A process that trains one order after another: `python -m metrist.studies.heap.worker`.

Orders come in as lines of JSON, events go out as lines of JSON. When standard input ends, whoever gave the orders is
gone or has no more: a training under way is told to stop, which writes a checkpoint first.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
from dataclasses import asdict
from typing import Any, TextIO

from metrist.errors import MetristError
from metrist.studies.heap.jobs import Order
from metrist.studies.heap.training import run
from metrist.train.task import Evaluation, TrainingProgress


class Teller:
    """Writes what happens as lines of JSON."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def tell(self, event: str, **facts: Any) -> None:
        self._out.write(json.dumps({"event": event, **facts}) + "\n")
        self._out.flush()

    def on_progress(self, progress: TrainingProgress) -> None:
        self.tell("moved", **asdict(progress))

    def on_evaluation(self, evaluation: Evaluation, name: str) -> None:
        self.tell("evaluated", name=name, **asdict(evaluation))

    def on_message(self, remark: str) -> None:
        self.tell("message", remark=remark)


def main() -> None:
    # Libraries print to standard output as they like; the events keep the true one to themselves.
    teller = Teller(os.fdopen(os.dup(1), "w", encoding="utf-8"))
    os.dup2(2, 1)
    orders: queue.Queue[str | None] = queue.Queue()
    idle = threading.Event()
    idle.set()
    threading.Thread(target=_read, args=(orders, idle), daemon=True).start()
    while (line := orders.get()) is not None:
        how, facts = _fulfil(Order.of(json.loads(line)), teller)
        idle.set()  # Before it is told: the next order may come at once, and is not to be taken for idleness.
        teller.tell(how, **facts)


def _read(orders: queue.Queue[str | None], idle: threading.Event) -> None:
    for line in sys.stdin:
        idle.clear()
        orders.put(line)
    orders.put(None)
    if not idle.is_set():
        os.kill(os.getpid(), signal.SIGTERM)


def _fulfil(order: Order, teller: Teller) -> tuple[str, dict[str, Any]]:
    """How it ended, as it is to be told."""
    began = time.monotonic()
    try:
        run(order, teller)
    except MetristError as fault:
        return "failed", {"reason": str(fault)}
    except KeyboardInterrupt as stop:
        sys.exit(str(stop))
    except Exception as fault:  # Any fault of one training is told, and the next one is begun.
        return "failed", {"reason": f"{type(fault).__name__}: {fault}"}
    return "finished", {"seconds": time.monotonic() - began}


if __name__ == "__main__":
    main()
