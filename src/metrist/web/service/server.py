"""Processes of the service: uvicorn's server, and uvicorn's supervisor of several workers that share one socket.

SIGTERM or Ctrl-C ends the service in order. First it reports that it is not ready, but keeps answering for a moment so
that a load balancer can send requests elsewhere. Then it accepts the waiting connections, stops listening, and closes
each connection with its next answer. A connection that nobody has accepted by then is refused or reset.
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
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors.multiprocess import Multiprocess, Process

from metrist.errors import RunError
from metrist.runtime import Runtime
from metrist.web.server import Server, bind, configure, format_address
from metrist.web.service.app import Service
from metrist.web.service.catalog import build_catalog
from metrist.web.service.settings import ServiceSettings
from metrist.web.service.telemetry import FOLDER_VARIABLE, Counters, Log, start_tracing

#: Tried first when no port is given.
DEFAULT_PORT = 8600
_BACKLOG = 1024
_KEEP_ALIVE = 75
#: Workers that end this often within the time are not started again.
_MAX_DEATHS, _DEATH_WINDOW = 5, 30.0
#: Seconds in which all workers stop listening. Only then are connections closed: clients that open another one at once
#: would fill the queue of a worker that is about to close it.
_ALL_CLOSED = 0.2
#: Seconds in which a request must come on a connection that is open when the server stops listening.
_LAST_MOMENT = 1.0
#: A thread waits this long for another to give up the interpreter: less than a request takes.
_SWITCH_SECONDS = 0.001
#: In memory, and writable in a container without other writable folders.
_SHARED_MEMORY = Path("/dev/shm")


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
    config = partial(configure_service, grace=settings.grace, workers=workers)
    with bind(settings.host, port, preferred=DEFAULT_PORT, backlog=_BACKLOG) as listener:
        announce(format_address(settings.host, listener.getsockname()[1], path=""))
        if workers == 1:
            app = Service(catalog, settings, tracing=start_tracing() if settings.otel else None, runtime=runtime)
            ServiceServer(config(partial(prepare_process, app))).run(sockets=[listener])
            if not app.idle:  # A thread may still run a batch that nobody waits for.
                sys.stderr.flush()
                os._exit(0)
            return
        memory = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else None
        with tempfile.TemporaryDirectory(prefix="metrist-", dir=memory) as folder:
            os.environ[FOLDER_VARIABLE] = folder  # prometheus_client reads it when a worker imports it.
            make = partial(make_worker, tuple(metrics), settings, runtime, workers)
            Supervisor(config(make), listener, settings).run()


def configure_service(make_app: Callable[[], Service], *, grace: float, workers: int) -> uvicorn.Config:
    """Return the settings of uvicorn for a process of the service."""
    return configure(
        make_app,
        factory=True,
        lifespan="on",
        date_header=False,
        workers=workers,
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=max(1, round(grace)),
    )


def make_worker(metrics: Sequence[str], settings: ServiceSettings, runtime: Runtime, workers: int) -> Service:
    """Make the app of a worker process, in that process."""
    tracing = start_tracing() if settings.otel else None
    counters, catalog = Counters(os.environ[FOLDER_VARIABLE]), build_catalog(metrics)
    service = Service(catalog, settings, counters=counters, tracing=tracing, runtime=runtime, workers=workers)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    return prepare_process(service)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    shutil.rmtree(os.environ[FOLDER_VARIABLE], ignore_errors=True)  # Where the parent was killed.
    os.kill(os.getpid(), signal.SIGTERM)


def prepare_process(service: Service) -> Service:
    """Set up the process of a service."""
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # Faults are reported by the app.
    sys.setswitchinterval(_SWITCH_SECONDS)
    return service


class ServiceServer(Server):
    """A server that goes on for `drain` seconds after a signal, and then ends without losing a request."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        service = self.config.loaded_app if self.started else None
        if service is None or service.draining:
            super().handle_exit(sig, frame)
            return
        service.draining = True
        loop = asyncio.get_running_loop()
        loop.call_soon_threadsafe(loop.call_later, service.settings.drain, super().handle_exit, signal.SIGTERM, None)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept what waits and close the listeners at once: closing resets the connections in a queue."""
        waiting = []
        for server, listener in zip(self.servers, sockets or [], strict=True):
            with listener.dup() as last:
                server.close()
                listener.close()
                last.setblocking(False)
                with suppress(OSError):  # Nothing may come between the last accept and the end of listening.
                    while True:
                        waiting.append(last.accept()[0])
        protocol: Any = self.config.http_protocol_class
        state = {"server_state": self.server_state, "app_state": self.lifespan.state}
        make_protocol = partial(protocol, config=self.config, **state)
        for accepted in waiting:
            accepted.setblocking(False)
            await asyncio.get_running_loop().connect_accepted_socket(make_protocol, accepted)
        if self.config.workers > 1:
            await asyncio.sleep(_ALL_CLOSED)
        self.config.loaded_app.closing = True
        # Wait for a request on each open connection, but not long: most of them are idle.
        deadline = time.monotonic() + _LAST_MOMENT
        while self.server_state.connections and not self.force_exit and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        for _ in range(2):  # uvloop runs what is due before it reads: a busy process may have a request to read.
            await asyncio.sleep(0)
        await super().shutdown(sockets)


class Worker(Process):
    """A process of uvicorn's supervisor with a server of the service."""

    @property
    def server(self) -> uvicorn.Server:
        if self._server is None:
            self._server = ServiceServer(self.config)
        return self._server


class Supervisor(Multiprocess):
    """uvicorn's supervisor, which logs deaths of workers and gives up when there are many."""

    def __init__(self, config: uvicorn.Config, listener: socket.socket, settings: ServiceSettings) -> None:
        super().__init__(config, [listener])
        self._log = Log(settings.log)
        self._deaths: list[float] = []
        self._failure = ""

    def run(self) -> None:
        """Run until a signal. Raise RunError if workers cannot be kept alive."""
        super().run()
        if self._failure:
            raise RunError(f"{self._failure}; the messages above say why")

    def init_processes(self) -> None:
        self.processes = [Worker(self.config, self.sockets) for _ in range(self.processes_num)]
        for process in self.processes:
            process.start()

    def handle_hup(self) -> None:
        self.should_exit.set()  # The terminal was closed; uvicorn would start its workers again.

    def keep_subprocess_alive(self) -> None:
        """Replace workers that have ended, but none that is busy, as uvicorn would; GET /healthz tells of them."""
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
            self.processes[number] = Worker(self.config, self.sockets)
            self.processes[number].start()

    def terminate_all(self) -> None:
        for listener in self.sockets:  # The last worker to close its own empties the queue first.
            listener.close()
        super().terminate_all()
