"""Processes of the service: uvicorn's server, and uvicorn's supervisor of several workers that share one socket.

SIGTERM or Ctrl-C ends the service in order: it says that it is not ready, answers what it has accepted and what still
comes for a moment, closes each connection with its answer, and then stops listening. A connection that nobody has
accepted by then is refused or reset.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors.multiprocess import Multiprocess, Process

from metrist.errors import RunError
from metrist.runtime import Runtime
from metrist.web.server import Server, bind, format_address, limit_headers
from metrist.web.service.app import Service
from metrist.web.service.catalog import build_catalog
from metrist.web.service.settings import ServiceSettings
from metrist.web.service.telemetry import FOLDER_VARIABLE, Counters, Log, start_tracing

try:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as _Protocol
except ImportError:
    from uvicorn.protocols.http.h11_impl import H11Protocol as _Protocol  # type: ignore[assignment]

#: Tried first when no port is given.
DEFAULT_PORT = 8600
_BACKLOG = 1024
_KEEP_ALIVE = 75
#: Workers that end this often within the time are not started again.
_MAX_DEATHS, _DEATH_WINDOW = 5, 30.0
#: Seconds in which the last connections are accepted, and in which a request must come on one of them.
_LAST_MOMENT = 0.5
#: A thread waits this long for another to give up the interpreter: less than a request takes.
_SWITCH_SECONDS = 0.001
#: In memory, and writable in a container without other writable folders.
_SHARED_MEMORY = Path("/dev/shm")


class ServiceProtocol(limit_headers(_Protocol)):  # type: ignore[misc]
    """A connection that does not close at once when the server ends: a request may be on its way."""

    def shutdown(self) -> None:
        self.loop.call_later(_LAST_MOMENT, super().shutdown)


def serve(
    metrics: Sequence[str],
    settings: ServiceSettings,
    *,
    port: int | None = None,
    workers: int = 1,
    announce: Callable[[str], None] = print,
) -> None:
    """Serve these metrics until SIGTERM or Ctrl-C. `announce` gets the address once the port is taken."""
    catalog = build_catalog(metrics)  # Errors show here, before any process is started.
    for check in settings.checks:
        catalog.find(check.metric)
    runtime = Runtime.current().override(**settings.runtime).split(workers)
    config = partial(_configure, grace=settings.grace, workers=workers)
    with bind(settings.host, port, preferred=DEFAULT_PORT, backlog=_BACKLOG) as listener:
        announce(format_address(settings.host, listener.getsockname()[1], path=""))
        if workers == 1:
            app = Service(catalog, settings, tracing=start_tracing() if settings.otel else None, runtime=runtime)
            Server(config(partial(prepare_process, app, listener))).run(sockets=[listener])
            if not app.idle:  # A thread may still run a batch that nobody waits for.
                sys.stderr.flush()
                os._exit(0)
            return
        memory = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else None
        with tempfile.TemporaryDirectory(prefix="metrist-", dir=memory) as folder:
            os.environ[FOLDER_VARIABLE] = folder  # prometheus_client reads it when a worker imports it.
            make = partial(make_worker, tuple(metrics), settings, runtime, workers)
            Supervisor(config(make), listener, settings).run()


def _configure(make_app: Callable[[], Service], *, grace: float, workers: int) -> uvicorn.Config:
    return uvicorn.Config(
        make_app,
        factory=True,
        http=ServiceProtocol,
        ws="none",
        loop="auto",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        workers=workers,
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=max(1, round(grace)),
    )


def make_worker(metrics: Sequence[str], settings: ServiceSettings, runtime: Runtime, workers: int) -> Service:
    """Make the app of a worker process, in that process."""
    tracing = start_tracing() if settings.otel else None
    counters = Counters(os.environ[FOLDER_VARIABLE])
    service = Service(
        build_catalog(metrics), settings, counters=counters, tracing=tracing, runtime=runtime, workers=workers
    )
    threading.Thread(target=_end_with_parent, daemon=True).start()
    return prepare_process(service)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    shutil.rmtree(os.environ[FOLDER_VARIABLE], ignore_errors=True)  # Where the parent was killed.
    os.kill(os.getpid(), signal.SIGTERM)


def prepare_process(service: Service, listener: socket.socket | None = None) -> Service:
    """Have a signal drain the service before uvicorn ends. Called by uvicorn, which has set its handlers already. A
    worker leaves the listener, which it shares with others, to the supervisor."""
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # Faults are reported by the app.
    sys.setswitchinterval(_SWITCH_SECONDS)
    loop = asyncio.get_running_loop()
    end: Any = signal.getsignal(signal.SIGTERM)

    async def stop() -> None:
        await asyncio.sleep(service.settings.drain)
        if listener is not None:
            _close_queue(listener)
        await asyncio.sleep(_LAST_MOMENT)
        end(signal.SIGTERM, None)

    def drain(number: int, frame: FrameType | None) -> None:
        if not service.draining:
            service.draining = True
            asyncio.run_coroutine_threadsafe(stop(), loop)
        elif number == signal.SIGINT:  # Ctrl-C for the second time; uvicorn takes two for "at once".
            end(number, frame)
            end(number, frame)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, drain)
    return service


def _close_queue(listener: socket.socket) -> None:
    """Let hardly any further connection enter the queue of a listener. Closing it resets those in its queue, although
    their clients may have sent a request. Whoever tries to connect from now on tries again a second later and is
    refused."""
    listener.listen(0)


class Supervisor(Multiprocess):
    """uvicorn's supervisor, which logs deaths of workers and gives up when there are many."""

    def __init__(self, config: uvicorn.Config, listener: socket.socket, settings: ServiceSettings) -> None:
        super().__init__(config, [listener])
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        self._log = Log(settings.log)
        self._drain = settings.drain
        self._deaths: list[float] = []
        self._failure = ""

    def run(self) -> None:
        """Run until a signal. Raise RunError if workers cannot be kept alive."""
        super().run()
        if self._failure:
            raise RunError(f"{self._failure}; the messages above say why")

    def handle_hup(self) -> None:
        self.should_exit.set()  # The terminal was closed; uvicorn would start its workers again.

    def keep_subprocess_alive(self) -> None:
        """Replace workers that have ended. uvicorn would also kill those that do not answer within some seconds, which
        are most likely still starting or scoring; GET /healthz tells of them."""
        now = time.monotonic()
        for number, process in enumerate(self.processes):
            if process.exitcode is None:
                continue
            self._log.event("worker_died", level="error", worker=number, exit_code=process.exitcode)
            self._deaths = [death for death in self._deaths if now - death < _DEATH_WINDOW] + [now]
            if len(self._deaths) > _MAX_DEATHS or process.exitcode == STARTUP_FAILURE:
                self._failure = f"workers ended {len(self._deaths)} times within {_DEATH_WINDOW:g} s"
                self.should_exit.set()
                return
            self.processes[number] = Process(self.config, self.sockets)
            self.processes[number].start()

    def terminate_all(self) -> None:
        super().terminate_all()
        time.sleep(self._drain)
        for listener in self.sockets:
            _close_queue(listener)
            listener.close()  # When the last worker has closed its own, connecting is refused.
