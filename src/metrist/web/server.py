"""Start and stop a local web server: `create_app` puts routes behind `Security`, `serve` runs them until Ctrl-C.

access = grant_access("127.0.0.1")
serve(create_app([Route("/", home)], access), access, open_browser=True)
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from metrist.errors import MetristError, RunError, describe_exception
from metrist.web.pages import render_error, static_route
from metrist.web.security import OWNER, Access, BodyTooLarge, Security, is_loopback

#: Tried first when no port is given, so that links to a view still work after a restart.
PREFERRED_PORT = 8517
_GRACE_SECONDS = 3
#: Seconds in which a client must have sent the headers of a request, and bytes that they may have.
_HEADER_SECONDS = 10.0
_MAX_HEADERS = 64 * 1024
#: Seconds in which the rest of a body is read after an early answer.
_REST_SECONDS = 60.0
#: Seconds in which a client must have read something of a long answer.
_WRITE_SECONDS = 60.0
#: The socket option for the time that a client does not read; only Linux has it.
_USER_TIMEOUT: int | None = getattr(socket, "TCP_USER_TIMEOUT", None)


def grant_access(host: str) -> Access:
    """Return the access to a server with one user: free on loopback, with a new token on any other address."""
    return Access(host=host, tokens={} if is_loopback(host) else {secrets.token_urlsafe(24): OWNER})


def create_app(routes: Sequence[BaseRoute], access: Access, *, static: Sequence[str] = ()) -> ASGIApp:
    """Return an app of these routes, static files (those of metrist.web and of the packages `static`) and error pages.

    A handler reports what the user can mend by raising a MetristError or an HTTPException."""
    app = Starlette(
        routes=[*routes, static_route(*static)],
        exception_handlers=dict.fromkeys((HTTPException, MetristError, BodyTooLarge, Exception), _answer_error),
    )
    return Security(app, access)


async def _answer_error(request: Request, error: Exception) -> Response:
    match error:
        case HTTPException():
            unknown = error.status_code == 404 and error.detail == "Not Found"  # Starlette's own words.
            message = "This server has no such page." if unknown else str(error.detail)
            response = render_error(request.scope, error.status_code, message)
            response.headers.update(error.headers or {})
            return response
        case MetristError():
            return render_error(request.scope, 400, str(error))
        case BodyTooLarge():
            return render_error(request.scope, 413, "The request is too large.")
    place = f"{request.method} {request.url.path!r}"
    print(f"metrist: {place}: {describe_exception(error)}", file=sys.stderr, flush=True)
    return render_error(request.scope, 500, "This is a fault of metrist; the terminal that it runs in says more.")


def bind(host: str, port: int | None, *, preferred: int = PREFERRED_PORT, backlog: int = 128) -> socket.socket:
    """Return a socket that listens on a port: the given one, else the preferred one, else any free one."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)[0]
    except OSError:
        raise RunError(f"{host!r} is no address here: use 127.0.0.1 or 0.0.0.0", code="invalid_value") from None
    for candidate in (port,) if port is not None else (preferred, 0):
        # asyncio turns Nagle's algorithm off only for sockets of this protocol: without it, answers wait for 40 ms.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if _USER_TIMEOUT is not None:  # Connections get it, too: one that is closed would wait for its client to read.
            listener.setsockopt(socket.IPPROTO_TCP, _USER_TIMEOUT, round(_WRITE_SECONDS * 1000))
        try:
            listener.bind((address[0], candidate))
            listener.listen(backlog)
            return listener
        except (OSError, OverflowError) as error:
            listener.close()
            reason = getattr(error, "strerror", None) or error
    raise RunError(f"cannot listen on port {port} of {host}: {reason}; try another `port`", code="invalid_value")


def format_address(host: str, port: int, token: str = "", path: str = "/") -> str:
    """Return the URL of a server. One that listens everywhere is shown by the name of this machine."""
    name = host.strip("[]")
    if name in ("0.0.0.0", "::"):
        name = socket.gethostname()
    if ":" in name:
        name = f"[{name}]"
    return f"http://{name}:{port}{path}{f'?token={token}' if token else ''}"


_Protocol: Any = AutoHTTPProtocol


class LimitedProtocol(_Protocol):  # type: ignore[misc]
    """uvicorn's protocol with limits on the headers of a request, and on the time to read its answer."""

    app: ASGIApp
    _header_bytes = 0
    _header_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self.app = partial(self._run, self.app)
        self._await_headers(_HEADER_SECONDS)

    async def _run(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
        except BaseException:
            if self.flow.write_paused:  # uvicorn closes the connection once the client has read, which it does not.
                self.transport.abort()
            raise

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self.resume_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(_WRITE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        answered = before is None or before.response_complete
        # The rest of a body that was answered early, such as one that is too large: it is read and dropped, since a
        # client that is still sending would not see the answer if the connection were closed.
        in_body = before is not None and before.more_body
        if answered and self._header_timer is None:
            self._await_headers(_REST_SECONDS if in_body else _HEADER_SECONDS)
        super().data_received(data)
        if self.cycle is not before:
            self._stop_waiting()
        elif not in_body:  # Headers, perhaps of a request that is sent before the last one is answered.
            self._header_bytes += len(data)
            if self._header_bytes > _MAX_HEADERS:
                self.transport.close()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self.cycle.more_body = False  # uvicorn leaves it where the answer came first.

    def _await_headers(self, seconds: float) -> None:
        self._header_timer = self.loop.call_later(seconds, self.transport.close)

    def _stop_waiting(self) -> None:
        self._header_bytes = 0
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None


class Server(uvicorn.Server):
    """uvicorn's server, which does not end its process by the signal that ended it."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        # Without noting the signal, which uvicorn would raise again at the end: Ctrl-C is how a server ends.
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.should_exit = True


def configure(app: Any, **options: Any) -> uvicorn.Config:
    """Return the settings of uvicorn that pages and the service share, with these options."""
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # Faults are reported by the app.
    return uvicorn.Config(
        app,
        http=LimitedProtocol,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        **options,
    )


def configure_server(app: ASGIApp) -> uvicorn.Server:
    """Return the server of an app of pages."""
    limits = {"limit_concurrency": 200, "timeout_keep_alive": 15, "timeout_graceful_shutdown": _GRACE_SECONDS}
    return Server(configure(app, loop="asyncio", **limits))


def serve(
    app: ASGIApp,
    access: Access,
    *,
    port: int | None = None,
    open_browser: bool = False,
    path: str = "/",
    announce: Callable[[str], None] = print,
) -> None:
    """Serve an app until Ctrl-C or SIGTERM. `announce` gets the address, with the first token if there are any."""
    with bind(access.host, port) as listener:
        token = next(iter(access.tokens), "")
        address = format_address(access.host, listener.getsockname()[1], token, path)
        announce(address)
        if open_browser:
            import webbrowser

            webbrowser.open(address)  # The socket listens already: the page waits until the server answers.
        configure_server(app).run(sockets=[listener])
