"""Work that tells how far it has come, as something to iterate over."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue


def as_it_comes(work: Callable[[Callable[[str], None]], str]) -> Iterator[str]:
    """What the work tells while it runs, and last what it gives; texts that repeat the one before are left out. The
    work runs in a thread of its own; what it raises is raised here."""
    told: SimpleQueue[str | BaseException | None] = SimpleQueue()

    def run() -> None:
        try:
            told.put(work(told.put))
        except BaseException as fault:
            told.put(fault)
        told.put(None)

    threading.Thread(target=run, daemon=True).start()
    last = None
    while (found := told.get()) is not None:
        if isinstance(found, BaseException):
            raise found
        if found != last:
            yield found
        last = found
