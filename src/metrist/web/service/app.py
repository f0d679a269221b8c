"""The service as an ASGI app: who may ask, and what every answer and every error looks like."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from metrist.errors import MetristError
from metrist.runtime import Runtime
from metrist.web.security import Access
from metrist.web.service.batching import Lane
from metrist.web.service.catalog import LANES, Catalog, warm
from metrist.web.service.endpoints import Answer, ApiError, Capacity, Endpoints, ServedRequest, encode, parse
from metrist.web.service.guards import Guards
from metrist.web.service.models import OPERATIONS, describe_api
from metrist.web.service.settings import ServiceSettings
from metrist.web.service.telemetry import Counters, Log, Tracing

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_JSON = re.compile(r"application/json\s*(;.*)?", re.IGNORECASE)
#: A batch that runs this many times longer than a request may take will not end: the process must be replaced.
_STALLED = 10
#: Seconds in which a client must have taken an error, such as the last line of a stream that was given up.
_LAST_LINE_SECONDS = 1.0
_HEADERS = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))
_UNKNOWN = "other"
_MAX_LOGGED_BODY = 2000
#: Bytes of an answer that a connection takes at once.
_LARGE = 64 * 1024


class Service:
    """An ASGI app that scores with the metrics of a catalog. It is one of `workers` processes."""

    def __init__(
        self,
        catalog: Catalog,
        settings: ServiceSettings | None = None,
        *,
        counters: Counters | None = None,
        log: Log | None = None,
        tracing: Tracing | None = None,
        runtime: Runtime | None = None,
        workers: int = 1,
    ) -> None:
        self.settings = settings or ServiceSettings()
        self.counters = counters or Counters()
        self.log = log or Log(self.settings.log)
        #: Set when the process is about to end, and when it accepts no more connections.
        self.draining = self.closing = False
        self._catalog = catalog
        self._tracing = tracing or Tracing()
        self._runtime = runtime or Runtime.current().override(**self.settings.runtime)
        self._workers = workers
        needs_host = self.settings.tokens is None and not self.settings.anonymous
        self._access = Access(host=self.settings.host) if needs_host else None
        make_lane = partial(
            Lane, catalog.by_text, self.settings, counters=self.counters, runtime=self._runtime, tracing=self._tracing
        )
        lanes: dict[str, Lane] = {name: make_lane(name) for name in LANES}
        # A guard is a batch of its own, and its answer waits for no other text.
        guard_lanes: dict[str, Lane] = {name: make_lane(name, batch_records=1) for name in LANES}
        self._lanes = [*lanes.values(), *guard_lanes.values()]
        self._capacity = Capacity(self.settings, self._lanes)
        self._guards = Guards(self.settings, guard_lanes)
        self._endpoints = endpoints = Endpoints(
            catalog=catalog,
            lanes=lanes,
            guards=self._guards,
            settings=self.settings,
            counters=self.counters,
            capacity=self._capacity,
            log=self.log,
            note_fault=self._note_fault,
        )
        document = encode(describe_api(self.settings))
        self._gets: dict[str, Callable[[], bytes]] = {
            "/v1/metrics": endpoints.list_metrics,
            "/openapi.json": lambda: document,
            "/metrics": self.counters.render,
            "/healthz": self._check_health,
            "/readyz": self._check_readiness,
        }
        self._posts: dict[str, Callable[[Any, ServedRequest], Awaitable[Answer]]] = {
            "/v1/score": endpoints.score,
            "/v1/explain": endpoints.explain,
            "/v1/prefer": endpoints.prefer,
            "/v1/compare": endpoints.compare,
            "/v1/rerank": endpoints.rerank,
            "/v1/guard": endpoints.guard,
        }

    async def _live(self, receive: Receive, send: Send) -> None:
        """Begin and end with the server."""
        await receive()
        self.counters.worker_starts.inc()
        warming = asyncio.create_task(self._warm())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        warming.cancel()
        self.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _warm(self) -> None:
        """Load the metrics' models and time them, while the server answers GET /readyz with 503."""
        began = time.monotonic()
        loop = asyncio.get_running_loop()
        try:
            for prepare in (warm, self._guards.measure):
                await loop.run_in_executor(None, prepare, self._catalog, self._runtime)
        except Exception as error:
            # Not ready, and each request says why; the log says it once.
            self.log.event("not_ready", level="error", reason=_describe_fault(error, with_message=True))
            return
        self.counters.workers_ready.inc()
        self.log.event("guard", **self._guards.describe())
        self.log.event("ready", seconds=round(time.monotonic() - began, 3))

    def close(self) -> None:
        """Start nothing more."""
        for lane in self._lanes:
            lane.close()
        self._endpoints.close()

    @property
    def idle(self) -> bool:
        """Whether all lanes are idle."""
        return not any(lane.pending for lane in self._lanes)

    # ---- One request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        request = Request(scope, receive)
        headers = request.headers
        request_id = headers.get("x-request-id", "")
        if not _REQUEST_ID.fullmatch(request_id):
            request_id = secrets.token_hex(8)
        endpoint = scope["path"] if scope["path"] in OPERATIONS else _UNKNOWN
        call = ServedRequest(request_id, endpoint)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                call.started, call.status = True, message["status"]
                added = [(b"x-request-id", request_id.encode()), *_HEADERS]
                if self.closing:
                    added.append((b"connection", b"close"))
                message["headers"] = [*message["headers"], *added]
            elif len(message.get("body", b"")) > _LARGE and not message.get("more_body", False):
                # Sending something after it waits until the client has read it, so that the limits cover that, too.
                await send({**message, "more_body": True})
                message = {"type": "http.response.body", "body": b""}
            await send(message)

        attributes = {"http.request.method": scope["method"], "http.route": endpoint, "metrist.request_id": request_id}
        self.counters.in_progress.inc()
        try:
            with self._tracing.start(f"{scope['method']} {endpoint}", attributes, headers) as span:
                try:
                    async with asyncio.timeout(self.settings.time_limit):  # Sending included: a client may not read.
                        self._check_access(headers, call)
                        response = await self._respond(request, call)
                        await response(scope, receive, send_with_headers)
                except (Exception, asyncio.CancelledError) as error:
                    await self._end(request, call, error, send_with_headers)
                if span is not None:
                    span.set_attribute("http.response.status_code", call.status)
                    span.set_attribute("metrist.records", call.notes.get("records", 0))
        finally:
            self._capacity.release(call)
            self._note(call, scope["method"])

    async def _respond(self, request: Request, call: ServedRequest) -> Response:
        if call.endpoint == _UNKNOWN:
            raise ApiError(404, "not_found", "there is no such path: GET /openapi.json describes those there are")
        operation = OPERATIONS[call.endpoint]
        methods = ("GET", "HEAD") if operation.request is None else ("POST",)
        if request.method not in methods:
            allowed = ", ".join(methods)
            raise ApiError(405, "method_not_allowed", f"expected {allowed}", headers={"Allow": allowed})
        if operation.request is None:
            return Response(self._gets[call.endpoint](), media_type=operation.media_type)
        if not _JSON.fullmatch(request.headers.get("content-type", "")):
            raise ApiError(415, "unsupported_media_type", "expected a body of application/json")
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            raise ApiError(415, "unsupported_media_type", "compressed bodies are not accepted")
        self._capacity.hold(call, "requests", 1)
        call.body = await self._read_body(request, call)
        answer = await self._posts[call.endpoint](parse(operation.request, call.body), call)
        if isinstance(answer, bytes):
            return Response(answer, media_type="application/json")
        first = await anext(answer)  # An error before the first line has a status of its own.
        call.streams = True
        return StreamingResponse(self._stream(call, first, answer), media_type="application/x-ndjson")

    def _check_access(self, headers: Headers, call: ServedRequest) -> None:
        """Refuse a request by its headers alone, before anything is counted or awaited."""
        if self._access is not None:
            if not self._access.allows_host(headers.get("host", "")):
                raise ApiError(421, "wrong_host", "this service is not reached by that name")
            if "origin" in headers:
                raise ApiError(403, "forbidden", "web pages cannot use a service without tokens")
        is_public = call.endpoint != _UNKNOWN and OPERATIONS[call.endpoint].public
        if self.settings.tokens is not None and not is_public:
            scheme, _, token = headers.get("authorization", "").partition(" ")
            if scheme.lower() == "bearer":
                call.client = self.settings.tokens.identify(token.strip().encode("latin-1"))
            if call.client is None:
                text = "expected the header 'Authorization: Bearer TOKEN' with a token of this service"
                raise ApiError(401, "unauthorized", text, headers={"WWW-Authenticate": "Bearer"})

    async def _read_body(self, request: Request, call: ServedRequest) -> bytes:
        """The body, within its limit and within what the process can hold."""
        length = request.headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 18:
            raise ApiError(400, "invalid_request", "the content-length is no number")
        limit, body = self.settings.max_body, bytearray()
        pieces = request.stream()
        while (size := max(int(length), len(body))) <= limit:
            self._capacity.hold(call, "bytes", size - call.held["bytes"])
            if (piece := await anext(pieces, None)) is None:
                call.body_read = True
                return bytes(body)
            body += piece
        raise ApiError(413, "too_large", f"the body is larger than {limit:,} bytes, the limit")

    # ---- Answers

    async def _stream(self, call: ServedRequest, first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        yield first
        try:
            async for lines in rest:
                yield lines
        except Exception as error:
            yield _write_error(call, self._explain_error(call, error)) + b"\n"

    async def _end(self, request: Request, call: ServedRequest, error: BaseException, send: Send) -> None:
        """Answer a request that cannot be answered otherwise. Where a stream has begun, the error is its last line."""
        problem = self._explain_error(call, error)
        body = _write_error(call, problem)
        if call.started and not call.streams:
            raise error
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_LINE_SECONDS):
                if call.started:
                    await send({"type": "http.response.body", "body": body + b"\n"})
                else:
                    response = Response(body, problem.status, problem.headers, "application/json")
                    await response(request.scope, request.receive, send)
                return
        raise error  # The server closes the connection of a client that does not read.

    def _explain_error(self, call: ServedRequest, error: BaseException) -> ApiError:
        """What a client is told about an error."""
        if isinstance(error, ApiError):
            return error
        if isinstance(error, ClientDisconnect):
            return ApiError(400, "invalid_request", "the client is gone")
        if isinstance(error, asyncio.CancelledError):  # By the server, at the end of its time for accepted requests.
            return ApiError(503, "shutting_down", "the service ended before the request")
        if isinstance(error, TimeoutError) and not call.body_read:
            return ApiError(408, "timeout", "the body did not arrive in time", headers={"Connection": "close"})
        if isinstance(error, TimeoutError):
            return ApiError(504, "timeout", f"no answer within {self.settings.time_limit:g} seconds")
        self._note_fault(call, error)
        if isinstance(error, MetristError):
            # What it says may quote an LLM server, a key, or a text of another request.
            return ApiError(502, "metric_failed", f"a metric failed ({error.code}); the service's log says more")
        return ApiError(500, "internal", "this is a fault of metrist; the service's log says more")

    def _note(self, call: ServedRequest, method: str) -> None:
        seconds = time.monotonic() - call.began
        self.counters.in_progress.dec()
        self.counters.requests.labels(call.endpoint, call.status).inc()
        self.counters.seconds.labels(call.endpoint).observe(seconds)
        if "records" in call.notes:
            self.counters.records.labels(call.endpoint).inc(call.notes["records"])
        if call.endpoint in ("/healthz", "/readyz", "/metrics"):
            return
        fields: dict[str, Any] = {"id": call.request_id, "method": method[:16], "path": call.endpoint}
        fields |= {"status": call.status, "ms": round(seconds * 1000, 2)}
        fields |= {name: value for name in ("client", "code") if (value := getattr(call, name)) is not None}
        self.log.request(failed=call.status >= 500, **fields, **call.notes)

    def _note_fault(self, call: ServedRequest, error: BaseException) -> None:
        texts = self.settings.log_texts
        # What a foreign exception says may quote a text.
        own = isinstance(error, MetristError) and isinstance(error.__cause__, MetristError | None)
        fields = {"id": call.request_id, "path": call.endpoint}
        if texts:
            fields["body"] = call.body[:_MAX_LOGGED_BODY].decode("utf-8", "replace")
        self.log.event("fault", level="error", reason=_describe_fault(error, with_message=texts or own), **fields)

    # ---- The service's own endpoints

    def _check_health(self) -> bytes:
        if any(lane.busy_seconds() > _STALLED * self.settings.time_limit for lane in self._lanes):
            raise ApiError(503, "stalled", "a batch does not end; the process must be replaced")
        return encode({"status": "ok"})

    def _check_readiness(self) -> bytes:
        if self.draining:
            raise ApiError(503, "shutting_down", "the service is about to end")
        ready = round(self.counters.total("metrist_workers_ready"))
        if ready < self._workers:
            raise ApiError(503, "not_ready", f"{ready} of {self._workers} processes are ready")
        return encode({"status": "ready"})


def _write_error(call: ServedRequest, problem: ApiError) -> bytes:
    """The body of an error, which is noted in the call."""
    call.status, call.code = problem.status, problem.code
    body = {"code": problem.code, "message": problem.message, "request_id": call.request_id}
    if problem.field is not None:
        body["field"] = problem.field
    return encode({"error": body})


def _describe_fault(error: BaseException, *, with_message: bool) -> str:
    """An exception without its message, which may quote a text, unless that is wanted."""
    place, trace = "", error.__traceback__
    while trace is not None:
        place = f" ({Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno})"
        trace = trace.tb_next
    if with_message:
        return f"{type(error).__name__}: {error}" + ("" if isinstance(error, MetristError) else place)
    return f"{type(error).__name__}{place}"
