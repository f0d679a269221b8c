"""Processes of the service: a parent that starts, watches and stops workers, each with a socket of its own on one port.

The kernel spreads connections over the workers (SO_REUSEPORT). SIGTERM or Ctrl-C ends the service in order: it says
that it is not ready, answers what it has accepted and what still comes on open connections, closes each of them with
its answer, and then stops listening.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import multiprocessing
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

import uvicorn

from metrist.errors import MetristError, RunError
from metrist.runtime import Runtime
from metrist.web.server import limit_headers
from metrist.web.service.app import Service, make_counters
from metrist.web.service.catalog import Catalog, build_catalog
from metrist.web.service.settings import ServiceSettings
from metrist.web.service.telemetry import Log, start_tracing

#: Tried first when no port is given.
DEFAULT_PORT = 8600
_BACKLOG = 1024
_KEEP_ALIVE = 75
#: Workers that end this often within the time are not started again.
_MAX_STARTS, _START_WINDOW = 5, 30.0
_POLL = 0.1
_SETTLE_ROUNDS = 5
#: A thread waits this long for another to give up the interpreter: less than a request takes.
_SWITCH_SECONDS = 0.001


def can_share_port() -> bool:
    """Whether the kernel spreads connections over several sockets on one port."""
    return sys.platform.startswith("linux")


def bind(host: str, port: int | None, *, shared: bool = False, joining: bool = False) -> socket.socket:
    """Return a bound socket: on the given port, else on the default one, else on any free one. With `shared`, other
    sockets of this user can be bound to the same port, and with `joining` there are such sockets already."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)[0]
    except OSError:
        raise RunError(f"{host!r} is no address of this machine; use 127.0.0.1 or 0.0.0.0") from None
    reason: Any = ""
    for candidate in (port,) if port is not None else (DEFAULT_PORT, 0):
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            if shared and not joining:
                _check_free(family, address[0], candidate)
            if shared:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if not shared or joining:  # Closed connections of a service that was killed must not hold the port.
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address[0], candidate))
            return listener
        except (OSError, OverflowError) as error:
            listener.close()
            reason = getattr(error, "strerror", None) or error
    raise RunError(f"cannot listen on port {port} of {host}: {reason}; try another --port")


def _check_free(family: int, address: str | int, port: int) -> None:
    """Raise OSError for a port that somebody listens on: a shared socket would take some of their connections."""
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((address, port))


#: A program for the kernel's packet filter: drop what has SYN and not ACK in its flags, which is what begins a
#: connection, and let all else pass. Instructions are (code, jump if true, jump if false, operand).
_DROP_SYN = ((0x30, 0, 0, 13), (0x54, 0, 0, 0x12), (0x15, 0, 1, 0x02), (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF))
_SO_ATTACH_FILTER = 26


def close_queue(listener: socket.socket) -> None:
    """Let no further connection enter the queue of a listener; those in it can still be accepted.

    Closing a listener resets the connections in its queue, although their clients have sent a request. On Linux a
    filter drops what would begin a connection: whoever tries to connect tries again a second later, and is refused when
    the listener is closed. Elsewhere a queue of one is what comes closest.
    """
    with suppress(OSError):
        if not sys.platform.startswith("linux"):
            listener.listen(0)
            return
        program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in _DROP_SYN))
        head = struct.pack("HP", len(_DROP_SYN), ctypes.addressof(program))
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, head)


def _choose_protocol() -> Any:
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:
        from uvicorn.protocols.http.h11_impl import H11Protocol

        return limit_headers(H11Protocol)
    return limit_headers(HttpToolsProtocol)


class WorkerServer(uvicorn.Server):
    """A uvicorn server that drains before it stops listening."""

    def __init__(self, service: Service, listener: socket.socket) -> None:
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # Faults are reported by the app.
        super().__init__(
            uvicorn.Config(
                service,
                http=_choose_protocol(),
                ws="none",
                loop="auto",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                proxy_headers=False,
                backlog=_BACKLOG,
                timeout_keep_alive=_KEEP_ALIVE,
                timeout_graceful_shutdown=max(1, round(service.settings.grace)),
            )
        )
        self._service = service
        self._listener = listener
        self._drain_until: float | None = None
        self._parent = os.getppid()
        #: Whether the process ends when the one that started it is gone.
        self.follows_parent = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self._drain_until is not None and sig == signal.SIGINT:
            self.force_exit = self.should_exit = True
        self.stop()

    def stop(self) -> None:
        """Begin to end: from now on each answer closes its connection."""
        if self._drain_until is None:
            self._service.draining = True
            self._drain_until = time.monotonic() + self._service.settings.drain

    async def on_tick(self, counter: int) -> bool:
        if self.follows_parent and os.getppid() != self._parent:
            self.stop()
        if self._drain_until is not None and time.monotonic() >= self._drain_until and not self.should_exit:
            close_queue(self._listener)
            await self._settle()
            self.should_exit = True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the listener, and only then the connections: one that was accepted a moment ago has a request on its
        way, which a busy machine may not have read yet."""
        for server in self.servers:
            server.close()
        for listener in sockets or ():
            listener.close()
        if not self.force_exit:
            await self._settle()
        await super().shutdown()

    async def _settle(self) -> None:
        """Let the event loop accept and read what has arrived, however slow the machine is."""
        for _ in range(_SETTLE_ROUNDS):
            await asyncio.sleep(_POLL)

    def serve_forever(self) -> None:
        """Serve until a signal, then end what was accepted."""
        self._listener.listen(_BACKLOG)
        sys.setswitchinterval(_SWITCH_SECONDS)
        self.run(sockets=[self._listener])
        self._service.log.flush()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlan:
    """What a worker process needs to know; it is sent there pickled."""

    metrics: tuple[str, ...]
    settings: ServiceSettings
    runtime: Runtime
    host: str
    port: int
    workers: int


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
    runtime = Runtime.current().override(**settings.runtime)
    if workers > 1 and not can_share_port():
        raise RunError("several workers share a port on Linux only: use --workers 1 here")
    for check in settings.checks:
        catalog.find(check.metric)
    listener = bind(settings.host, port, shared=workers > 1)
    number = listener.getsockname()[1]
    name = settings.host.strip("[]")
    announce(f"http://{f'[{name}]' if ':' in name else name}:{number}")
    if workers == 1:
        _serve_alone(catalog, settings, runtime, listener)
        return
    plan = WorkerPlan(
        metrics=tuple(metrics),
        settings=settings,
        runtime=runtime.split(workers),
        host=settings.host,
        port=number,
        workers=workers,
    )
    with listener:  # Keeps the port; only the workers listen.
        Supervisor(plan, catalog).run()


def _serve_alone(catalog: Catalog, settings: ServiceSettings, runtime: Runtime, listener: socket.socket) -> None:
    tracing = start_tracing() if settings.otel else None
    service = Service(catalog, settings, tracing=tracing, runtime=runtime)
    service.counters.add("metrist_worker_starts_total")
    WorkerServer(service, listener).serve_forever()
    _leave(service)


def _leave(service: Service) -> None:
    """End the process although a thread may still run a batch that nobody waits for."""
    if not service.idle:
        sys.stderr.flush()
        os._exit(0)


def run_worker(plan: WorkerPlan, number: int, memory: Any) -> None:
    """The main function of a worker process."""
    catalog = build_catalog(plan.metrics)
    counters = make_counters(catalog)
    counters.share(memory, plan.workers, number)
    counters.add("metrist_worker_starts_total")
    tracing = start_tracing() if plan.settings.otel else None
    service = Service(catalog, plan.settings, counters=counters, tracing=tracing, runtime=plan.runtime)
    server = WorkerServer(service, bind(plan.host, plan.port, shared=True, joining=True))
    server.follows_parent = True
    server.serve_forever()
    _leave(service)


class Supervisor:
    """Starts workers, replaces those that die, and stops all of them."""

    def __init__(self, plan: WorkerPlan, catalog: Catalog) -> None:
        self._plan = plan
        self._context = multiprocessing.get_context("spawn")
        self._memory = self._context.RawArray("d", plan.workers * make_counters(catalog).width)
        self._processes: list[Any] = []
        self._starts: list[float] = []
        self._stopping = threading.Event()
        self._log = Log(plan.settings.log)

    def run(self) -> None:
        """Run until a signal. Raise RunError if workers cannot be kept alive."""
        previous = {sig: signal.signal(sig, self._handle) for sig in (signal.SIGINT, signal.SIGTERM)}
        try:
            self._processes = [self._start(number) for number in range(self._plan.workers)]
            while not self._stopping.wait(_POLL):
                self._replace()
        finally:
            self._stop()
            for sig, handler in previous.items():
                signal.signal(sig, handler)

    def _handle(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self._stopping.is_set() and sig == signal.SIGINT:
            for process in self._processes:
                process.kill()
        self._stopping.set()

    def _start(self, number: int) -> Any:
        process = self._context.Process(target=run_worker, args=(self._plan, number, self._memory))
        process.start()
        return process

    def _replace(self) -> None:
        for number, process in enumerate(self._processes):
            if process.is_alive():
                continue
            now = time.monotonic()
            self._starts = [start for start in self._starts if now - start < _START_WINDOW] + [now]
            self._log.event("worker_died", level="error", worker=number, exit_code=process.exitcode)
            if len(self._starts) > _MAX_STARTS:
                raise RunError(
                    f"workers ended {len(self._starts)} times within {_START_WINDOW:g} s; the messages above say why"
                )
            self._processes[number] = self._start(number)

    def _stop(self) -> None:
        for process in self._processes:
            if process.is_alive():
                with suppress(MetristError, OSError):
                    os.kill(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + self._plan.settings.drain + self._plan.settings.grace + 5
        for process in self._processes:
            process.join(max(0.1, deadline - time.monotonic()))
            if process.is_alive():
                self._log.event("worker_killed", level="error", exit_code=None)
                process.kill()
                process.join()
