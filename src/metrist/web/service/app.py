"""The service as an ASGI app: who may ask, how much, and what every answer and every error looks like.

Plain ASGI without a framework: a request of one record takes a fraction of a millisecond, of which routing and
middleware would be half.
"""

from __future__ import annotations

import asyncio
import math
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from metrist.errors import MetristError
from metrist.runtime import Runtime
from metrist.web.security import Access
from metrist.web.service.batching import BatchLimits, Lane
from metrist.web.service.catalog import LANES, Catalog, warm
from metrist.web.service.endpoints import Answer, Call, Endpoints, ServiceError, encode
from metrist.web.service.openapi import describe_api
from metrist.web.service.settings import ServiceSettings
from metrist.web.service.telemetry import STATUSES, Counters, Log, Tracing

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Handler = Callable[[bytes, Call], Awaitable[Answer]]

#: Threads that wait for LLM servers; a batch sends several requests at once by itself.
_LLM_THREADS = 8
#: Bytes of a refused request that are read, so that its client can read the answer; after more the connection closes.
_DISCARD = 256 * 1024
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_JSON = re.compile(rb"application/json\s*(;.*)?", re.IGNORECASE)
#: A batch that runs this many times longer than a request may take will not end: the process must be replaced.
_STALLED = 10
_UNKNOWN = "other"
_MAX_LOGGED_BODY = 2000


@dataclass(frozen=True, slots=True)
class Route:
    """An endpoint. Only what says nothing about the service's data is open to everybody."""

    method: str
    handler: Handler
    public: bool = False
    media_type: str = "application/json"


@dataclass(eq=False, slots=True)
class _Exchange:
    """A request and what is known about it so far."""

    scope: Scope
    headers: dict[bytes, bytes]
    endpoint: str
    request_id: str
    call: Call
    began: float
    client: str | None = None
    body: bytes = b""
    body_read: bool = False
    bytes_held: int = 0
    records_held: int = 0
    started: bool = False
    code: str | None = None
    status: int = 500
    response_headers: dict[str, str] = field(default_factory=dict)


class Service:
    """An ASGI app that scores with the metrics of a catalog."""

    def __init__(
        self,
        catalog: Catalog,
        settings: ServiceSettings | None = None,
        *,
        counters: Counters | None = None,
        log: Log | None = None,
        tracing: Tracing | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        self.settings = settings or ServiceSettings()
        self.counters = counters or make_counters(catalog)
        self.log = log or Log(self.settings.log)
        self.ready = False
        #: Set when the process is to end: answers then close their connections.
        self.draining = False
        self._catalog = catalog
        self._tracing = tracing or Tracing()
        self._runtime = runtime or Runtime.current().override(**self.settings.runtime)
        self.lanes: dict[str, Lane] = {name: self._make_lane(name) for name in LANES}
        self.endpoints = Endpoints(catalog, self.lanes, self.settings, self.counters)
        self._document = encode(describe_api(self.settings))
        self._allows_host = lru_cache(maxsize=64)(self._check_host)
        self._requests = 0
        self._records = 0
        self._bytes = 0
        self._warming: asyncio.Task[None] | None = None
        endpoints = self.endpoints
        self._routes: Mapping[str, Route] = {
            "/v1/score": Route("POST", endpoints.score),
            "/v1/explain": Route("POST", endpoints.explain),
            "/v1/prefer": Route("POST", endpoints.prefer),
            "/v1/compare": Route("POST", endpoints.compare),
            "/v1/guard": Route("POST", endpoints.guard),
            "/v1/metrics": Route("GET", endpoints.list_metrics),
            "/openapi.json": Route("GET", self._send_document),
            "/metrics": Route("GET", self._send_counters, media_type="text/plain; version=0.0.4; charset=utf-8"),
            "/healthz": Route("GET", self._send_health, public=True),
            "/readyz": Route("GET", self._send_readiness, public=True),
        }

    def _make_lane(self, name: str) -> Lane:
        settings = self.settings
        characters = settings.batch_characters if name == "text" else settings.model_batch_characters
        return Lane(
            name,
            self._catalog.by_text,
            BatchLimits(records=settings.batch_records, characters=characters, wait=settings.batch_wait),
            threads=_LLM_THREADS if name == "llm" else 1,
            runtime=self._runtime,
            counters=self.counters,
            tracing=self._tracing,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        self._warming = asyncio.create_task(self._warm())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _warm(self) -> None:
        """Load the metrics' models while the server answers GET /readyz with 503."""
        began = time.monotonic()
        try:
            await asyncio.get_running_loop().run_in_executor(None, warm, self._catalog, self._runtime)
        except Exception as error:
            # Not ready, and each request says why; the log says it once.
            self.log.event("not_ready", level="error", reason=_describe_fault(error, with_message=True))
            return
        self.ready = True
        self.counters.add("metrist_workers_ready", 1)
        self.log.event("ready", seconds=round(time.monotonic() - began, 3))

    def close(self) -> None:
        """Start nothing more, and write the log."""
        if self._warming is not None:
            self._warming.cancel()
        for lane in self.lanes.values():
            lane.close()
        self.endpoints.close()
        self.log.flush()

    @property
    def idle(self) -> bool:
        """Whether no lane has anything to do."""
        return not any(lane.pending for lane in self.lanes.values())

    # ---- One request

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        path: str = scope["path"]
        given = headers.get(b"x-request-id", b"")
        request_id = given.decode() if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        endpoint = path if path in self._routes else _UNKNOWN
        began = time.monotonic()
        exchange = _Exchange(scope, headers, endpoint, request_id, Call(lambda _: None, began), began)
        exchange.call.reserve = lambda records: self._reserve_records(exchange, records)
        self._requests += 1
        self.counters.add("metrist_requests_in_progress", 1)
        attributes = {"http.request.method": scope["method"], "http.route": endpoint, "metrist.request_id": request_id}
        carrier = {"traceparent": headers.get(b"traceparent", b"").decode("latin-1")} if self._tracing.enabled else None
        try:
            with self._tracing.start(f"{scope['method']} {endpoint}", attributes, carrier) as span:
                try:
                    await self._answer(exchange, receive, send)
                except ServiceError as error:
                    await self._refuse(exchange, error, receive, send)
                if span is not None:
                    span.set_attribute("http.response.status_code", exchange.status)
                    span.set_attribute("metrist.records", exchange.call.notes.get("records", 0))
        finally:
            self._requests -= 1
            self._bytes -= exchange.bytes_held
            self._records -= exchange.records_held
            self._note(exchange)

    async def _answer(self, exchange: _Exchange, receive: Receive, send: Send) -> None:
        """Answer a request. Whatever goes wrong becomes a ServiceError, or the last line of a stream."""
        try:
            async with asyncio.timeout(self.settings.time_limit):
                route = self._check(exchange)
                if route.method == "POST":
                    exchange.body = await self._read(exchange, receive)
                answer = await route.handler(exchange.body, exchange.call)
                if isinstance(answer, bytes):
                    await self._send(exchange, send, 200, answer, route.media_type)
                else:
                    await self._stream(exchange, send, answer)
        except ServiceError:
            raise
        except TimeoutError:
            if not exchange.body_read:
                raise ServiceError(408, "timeout", "the body did not arrive in time") from None
            limit = self.settings.time_limit
            raise ServiceError(504, "timeout", f"no answer within {limit:g} seconds") from None
        except MetristError as error:
            # A fault of the metric as a whole: a model that cannot be loaded, an LLM server that is gone.
            self._note_fault(exchange, error)
            raise ServiceError(502, "metric_failed", _describe_fault(error, with_message=True)) from None
        except Exception as error:
            self._note_fault(exchange, error)
            raise ServiceError(500, "internal", "this is a fault of metrist; the service's log says more") from None

    def _check(self, exchange: _Exchange) -> Route:
        """Refuse a request by its path, method and headers alone."""
        headers, settings = exchange.headers, self.settings
        route = self._routes.get(exchange.scope["path"])
        if settings.tokens is not None:
            if route is None or not route.public:
                exchange.client = self._identify(headers)
        elif not settings.anonymous:
            if not self._allows_host(headers.get(b"host", b"")):
                raise ServiceError(421, "wrong_host", "this service is not reached by that name")
            if b"origin" in headers:
                raise ServiceError(403, "forbidden", "web pages cannot use a service without tokens")
        if route is None:
            raise ServiceError(404, "not_found", "there is no such path; GET /openapi.json describes those there are")
        if exchange.scope["method"] != route.method:
            allowed = {"Allow": route.method}
            raise ServiceError(405, "method_not_allowed", f"expected {route.method}", headers=allowed)
        if route.method == "POST":
            if not _JSON.fullmatch(headers.get(b"content-type", b"")):
                raise ServiceError(415, "unsupported_media_type", "expected a body of application/json")
            if headers.get(b"content-encoding", b"identity").lower() != b"identity":
                raise ServiceError(415, "unsupported_media_type", "compressed bodies are not accepted")
            if self._requests > settings.max_requests:
                raise self._full("too many requests are in progress")
        return route

    def _identify(self, headers: Mapping[bytes, bytes]) -> str:
        assert self.settings.tokens is not None
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        client = self.settings.tokens.identify(token.strip()) if scheme.lower() == b"bearer" else None
        if client is None:
            raise ServiceError(
                401,
                "unauthorized",
                "expected the header 'Authorization: Bearer TOKEN' with a token of this service",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return client

    def _check_host(self, header: bytes) -> bool:
        return Access(host=self.settings.host).allows_host(header.decode("latin-1"))

    async def _read(self, exchange: _Exchange, receive: Receive) -> bytes:
        """The body, within its limit and within what the process can hold."""
        limit = self.settings.max_body
        length = exchange.headers.get(b"content-length", b"0")
        if not length.isdigit() or len(length) > 18:
            raise ServiceError(400, "invalid_request", "the content-length is no number")
        if int(length) > limit:
            raise ServiceError(413, "too_large", f"the body is larger than {limit:,} bytes, the limit")
        self._hold_bytes(exchange, int(length))
        pieces, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ServiceError(400, "invalid_request", "the client is gone")
            piece = message.get("body", b"")
            size += len(piece)
            if size > limit:
                raise ServiceError(413, "too_large", f"the body is larger than {limit:,} bytes, the limit")
            self._hold_bytes(exchange, size - exchange.bytes_held)
            pieces.append(piece)
            if not message.get("more_body", False):
                exchange.body_read = True
                return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _hold_bytes(self, exchange: _Exchange, more: int) -> None:
        if more <= 0:
            return
        if self._bytes + more > self.settings.max_pending_bytes and self._bytes > exchange.bytes_held:
            raise self._full("too many bytes wait")
        self._bytes += more
        exchange.bytes_held += more

    def _reserve_records(self, exchange: _Exchange, records: int) -> None:
        """Take room for the records of a request. One that is larger than the queue has to find it empty."""
        if self._records and self._records + records > self.settings.max_queue:
            raise self._full("the queue is full")
        self._records += records
        exchange.records_held += records

    def _full(self, message: str) -> ServiceError:
        wait = max((lane.backlog_seconds for lane in self.lanes.values()), default=0.0)
        seconds = min(60, max(1, math.ceil(wait)))
        text = f"{message}; try again in {seconds} s"
        return ServiceError(429, "queue_full", text, headers={"Retry-After": str(seconds)})

    # ---- Answers

    async def _refuse(self, exchange: _Exchange, error: ServiceError, receive: Receive, send: Send) -> None:
        exchange.code = error.code
        body: dict[str, Any] = {"code": error.code, "message": error.message, "request_id": exchange.request_id}
        if error.field is not None:
            body["field"] = error.field
        if exchange.started:  # The status is out: the error is the last line of the stream.
            exchange.status = error.status
            await send({"type": "http.response.body", "body": encode({"error": body}) + b"\n", "more_body": False})
            return
        exchange.response_headers |= error.headers
        if not exchange.body_read and not await _discard(receive):
            exchange.response_headers["Connection"] = "close"
        await self._send(exchange, send, error.status, encode({"error": body}), "application/json")

    def _start(self, exchange: _Exchange, status: int, media_type: str, length: int | None) -> MutableMapping[str, Any]:
        exchange.started = True
        exchange.status = status
        headers = [
            (b"content-type", media_type.encode()),
            (b"x-request-id", exchange.request_id.encode()),
            (b"cache-control", b"no-store"),
            (b"x-content-type-options", b"nosniff"),
            *((name.lower().encode(), value.encode("latin-1")) for name, value in exchange.response_headers.items()),
        ]
        if length is not None:
            headers.append((b"content-length", str(length).encode()))
        if self.draining and "Connection" not in exchange.response_headers:
            headers.append((b"connection", b"close"))
        return {"type": "http.response.start", "status": status, "headers": headers}

    async def _send(self, exchange: _Exchange, send: Send, status: int, body: bytes, media_type: str) -> None:
        await send(self._start(exchange, status, media_type, len(body)))
        await send({"type": "http.response.body", "body": body})

    async def _stream(self, exchange: _Exchange, send: Send, lines: AsyncIterator[bytes]) -> None:
        first = True
        async for piece in lines:  # An error before the first line still has a status of its own.
            if first:
                await send(self._start(exchange, 200, "application/x-ndjson", None))
                first = False
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _note(self, exchange: _Exchange) -> None:
        counters, notes = self.counters, exchange.call.notes
        seconds = time.monotonic() - exchange.began
        status = exchange.status if exchange.status in STATUSES else 500
        counters.add("metrist_requests_in_progress", -1)
        counters.add("metrist_requests_total", endpoint=exchange.endpoint, status=str(status))
        counters.observe("metrist_request_seconds", seconds, endpoint=exchange.endpoint)
        if "records" in notes:
            counters.add("metrist_records_total", notes["records"], endpoint=exchange.endpoint)
        if exchange.endpoint in ("/healthz", "/readyz", "/metrics"):
            return
        fields: dict[str, Any] = {
            "id": exchange.request_id,
            "method": exchange.scope["method"][:16],
            "path": exchange.endpoint,
            "status": status,
            "ms": round(seconds * 1000, 2),
        }
        if exchange.client is not None:
            fields["client"] = exchange.client
        if exchange.code is not None:
            fields["code"] = exchange.code
        self.log.request(failed=status >= 500, **fields, **notes)

    def _note_fault(self, exchange: _Exchange, error: Exception) -> None:
        texts = self.settings.log_texts
        fields: dict[str, Any] = {"id": exchange.request_id, "path": exchange.endpoint}
        if texts:
            fields["body"] = exchange.body[:_MAX_LOGGED_BODY].decode("utf-8", "replace")
        self.log.event("fault", level="error", reason=_describe_fault(error, with_message=texts), **fields)

    # ---- The service's own endpoints

    async def _send_document(self, body: bytes, call: Call) -> Answer:  # noqa: ARG002
        return self._document

    async def _send_counters(self, body: bytes, call: Call) -> Answer:  # noqa: ARG002
        return self.counters.render().encode()

    async def _send_health(self, body: bytes, call: Call) -> Answer:  # noqa: ARG002
        if any(lane.busy_seconds() > _STALLED * self.settings.time_limit for lane in self.lanes.values()):
            raise ServiceError(503, "stalled", "a batch does not end; the process must be replaced")
        return encode({"status": "ok"})

    async def _send_readiness(self, body: bytes, call: Call) -> Answer:  # noqa: ARG002
        if self.draining:
            raise ServiceError(503, "shutting_down", "the service is about to end")
        ready, expected = round(self.counters.total("metrist_workers_ready")), self.counters.rows
        if ready < expected:
            raise ServiceError(503, "not_ready", f"{ready} of {expected} processes are ready")
        return encode({"status": "ready"})


def make_counters(catalog: Catalog) -> Counters:
    """The counters of a service with these metrics; the same in all of its processes."""
    endpoints = (
        *("/v1/score", "/v1/explain", "/v1/prefer", "/v1/compare", "/v1/guard", "/v1/metrics"),
        *("/openapi.json", "/metrics", "/healthz", "/readyz", _UNKNOWN),
    )
    return Counters(endpoints, LANES, [offer.label for offer in catalog.offered])


async def _discard(receive: Receive) -> bool:
    """Read the rest of a refused request; False if it is long or slow."""
    size = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(1.0):
            while size < _DISCARD:
                message = await receive()
                size += len(message.get("body", b""))
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return True
    return False


def _describe_fault(error: BaseException, *, with_message: bool) -> str:
    """An exception without its message, which may quote a text, unless that is wanted."""
    place, trace = "", error.__traceback__
    while trace is not None:
        place = f" ({Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno})"
        trace = trace.tb_next
    if with_message:
        return f"{type(error).__name__}: {error}" + ("" if isinstance(error, MetristError) else place)
    return f"{type(error).__name__}{place}"
