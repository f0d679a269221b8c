"""A typed client of `metrist serve`, for code with and without asyncio. Needs the extra `client` (httpx2, pydantic).

    from metrist.client import Client

    with Client("http://127.0.0.1:8600", token="…") as client:
        (scored,) = client.score([{"output": "a cat", "references": ["the cat"]}], ["rougeL"])
        print(scored.scores["rougeL"].value)

`AsyncClient` has the same methods as coroutines. Requests that the service has no room for (429), or that do not reach
it, are tried again. Everything else that goes wrong raises a `ServiceError` with the service's code.

Each method is written once, as a function that returns a `_Request`; `_exchange` decides what is sent, tried again and
read. The clients differ in how they send and sleep.
"""

from __future__ import annotations

import asyncio
import functools
import math
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, Concatenate, Generic, Literal, ParamSpec, TypeVar

from metrist._version import __version__
from metrist.errors import MetristError, MissingExtra
from metrist.records import TEXT_FIELDS, Record
from metrist.scores import Score

try:
    import httpx2
    from pydantic import BaseModel, ValidationError

    from metrist.web.service import models
    from metrist.web.service.models import (
        CheckedMetric,
        GuardVerdict,
        JudgedPair,
        PairJudgment,
        RerankedItem,
        RerankedOutput,
        ServedComparison,
        ServedContest,
        ServedMetric,
    )
except ImportError:
    raise MissingExtra("metrist.client", "client") from None

__all__ = [
    "AsyncClient",
    "CheckedMetric",
    "Client",
    "GuardVerdict",
    "JudgedPair",
    "PairJudgment",
    "RerankedItem",
    "RerankedOutput",
    "ScoredOutput",
    "ServedComparison",
    "ServedContest",
    "ServedMetric",
    "ServiceError",
]

#: The environment variable with the token, if none is given.
TOKEN_VARIABLE = "METRIST_TOKEN"
#: Records of one request; longer lists are sent in several.
CHUNK = 1000
_RETRIED = (429, 503)

#: A record, or a mapping with its fields.
RecordLike = Record | Mapping[str, Any]
_P = ParamSpec("_P")
_Answer = TypeVar("_Answer", bound=BaseModel)
_T = TypeVar("_T")


class ServiceError(MetristError):
    """The service did not do what it was asked. `code` is for programs; `field` is the place in the request."""

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        code: str = "unreachable",
        field: str | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.field = field
        self.request_id = request_id


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredOutput:
    """The scores of one output by the names of the metrics."""

    item: str
    system: str
    scores: Mapping[str, Score]


# ---- Calls: what is sent, and what is made of the answer


@dataclass(frozen=True, slots=True)
class _Request(Generic[_T]):
    method: str
    path: str
    body: Any
    read: Callable[[bytes], _T]


def _make_request(
    path: str, body: Mapping[str, Any] | None, model: type[_Answer], read: Callable[[_Answer], _T]
) -> _Request[_T]:
    """A call whose answer is validated by a model. Fields that are None are not sent."""
    given = None if body is None else {name: value for name, value in body.items() if value is not None}
    return _Request(
        "GET" if body is None else "POST", path, given, lambda content: read(model.model_validate_json(content))
    )


def _to_body(record: RecordLike) -> dict[str, Any]:
    if not isinstance(record, Record):
        return dict(record)
    body: dict[str, Any] = {name: value for name in TEXT_FIELDS if (value := getattr(record, name)) is not None}
    if record.references:
        body["references"] = list(record.references)
    return body


def _to_list(metrics: str | Sequence[str] | None) -> list[str] | None:
    return None if metrics is None else [metrics] if isinstance(metrics, str) else list(metrics)


def _to_score(body: models.ScoreBody) -> Score:
    return Score(
        value=math.nan if body.value is None else body.value,
        parts={name: math.nan if part is None else part for name, part in (body.parts or {}).items()},
        errors=body.errors or (),
        explanation=body.explanation,
        failure=body.failure,
    )


def _score(
    records: Iterable[RecordLike], metrics: str | Sequence[str] | None, details: bool, chunk: int
) -> Iterator[_Request[list[ScoredOutput]]]:
    """A call for each chunk of the records."""

    def read(answer: models.ScoreResponse) -> list[ScoredOutput]:
        return [
            ScoredOutput(
                item=row.item,
                system=row.system,
                scores={name: _to_score(score) for name, score in row.scores.items()},
            )
            for row in answer.results
        ]

    bodies = map(_to_body, records)
    counts: dict[str, int] = {}
    while some := list(islice(bodies, chunk)):
        for body in some:  # Numbered here: the service sees one part of the records at a time.
            system = body.get("system", "output")
            counts[system] = counts.get(system, 0) + 1
            if body.get("item") is None:
                body["item"] = str(counts[system])
        request = {"records": some, "metrics": _to_list(metrics), "details": details}
        yield _make_request("/v1/score", request, models.ScoreResponse, read)


def _explain(records: Iterable[RecordLike], metric: str | None = None) -> _Request[list[ScoredOutput]]:
    """Score outputs with a metric that reports errors or reasons."""

    def read(answer: models.ExplainResponse) -> list[ScoredOutput]:
        return [
            ScoredOutput(item=row.item, system=row.system, scores={answer.metric: _to_score(row.score)})
            for row in answer.results
        ]

    request = {"records": list(map(_to_body, records)), "metric": metric}
    return _make_request("/v1/explain", request, models.ExplainResponse, read)


def _prefer(
    pairs: Iterable[Mapping[str, Any]], metrics: str | Sequence[str] | None = None
) -> _Request[list[JudgedPair]]:
    """Choose between the outputs `first` and `second` of each pair."""
    request = {"pairs": list(map(dict, pairs)), "metrics": _to_list(metrics)}
    return _make_request("/v1/prefer", request, models.PreferResponse, lambda answer: answer.results)


def _compare(
    records: Iterable[RecordLike], metrics: str | Sequence[str] | None = None, **options: Any
) -> _Request[ServedComparison]:
    """Test whether systems differ. `options` are `baseline`, `test`, `draws`, `seed` and `alpha`."""
    request = {"records": list(map(_to_body, records)), "metrics": _to_list(metrics), **options}
    return _make_request("/v1/compare", request, ServedComparison, lambda answer: answer)


def _rerank(
    records: Iterable[RecordLike],
    metrics: str | Sequence[str] | None = None,
    *,
    mbr: str | Sequence[str] | None = None,
    comparators: str | Sequence[str] | None = None,
    **options: Any,
) -> _Request[list[RerankedItem]]:
    """Choose the best outputs of each item, as `metrist.rerank`. `options` are `k`, `weights` and `pairing`."""
    request = {
        "records": list(map(_to_body, records)),
        "metrics": _to_list(metrics),
        "mbr": _to_list(mbr),
        "comparators": _to_list(comparators),
        **options,
    }
    return _make_request("/v1/rerank", request, models.RerankResponse, lambda answer: answer.results)


def _guard(
    record: RecordLike,
    checks: Mapping[str, Any] | None = None,
    *,
    budget_ms: float | None = None,
    policy: Literal["open", "closed"] | None = None,
) -> _Request[GuardVerdict]:
    """Whether an output may be shown. `checks` maps a metric to its minimum, or to `{"min": …, "max": …}`; by
    default the service's own."""
    listed = None
    if checks is not None:
        listed = [
            {"metric": metric, **(limits if isinstance(limits, Mapping) else {"min": limits})}
            for metric, limits in checks.items()
        ]
    request = {"record": _to_body(record), "checks": listed, "budget_ms": budget_ms, "policy": policy}
    return _make_request("/v1/guard", request, GuardVerdict, lambda answer: answer)


def _metrics() -> _Request[list[ServedMetric]]:
    """The metrics that the service offers."""
    return _make_request("/v1/metrics", None, models.MetricsResponse, lambda answer: answer.metrics)


# ---- The core of both clients


def _exchange(request: _Request[_T], retries: int) -> Generator[float, httpx2.Response | httpx2.HTTPError, _T]:
    """Take the response, or why there is none, and return the answer, or yield the seconds until the next try. The
    value that is yielded first means nothing."""
    wait, pause = 0.0, 0.25
    for left in range(retries, -1, -1):
        outcome = yield wait
        wait, pause = pause * random.uniform(0.75, 1.25), pause * 2
        if isinstance(outcome, httpx2.HTTPError):
            problem = ServiceError(f"no answer from the service: {outcome or type(outcome).__name__}")
        elif outcome.status_code == 200:
            try:
                return request.read(outcome.content)
            except ValidationError:
                raise ServiceError("the answer is not one of metrist's", status=200, code="not_metrist") from None
        else:
            problem = _read_error(outcome)
            retry_after = outcome.headers.get("retry-after", "")
            wait = max(wait, float(retry_after)) if retry_after.isdecimal() else wait
        if not left or problem.status not in (None, *_RETRIED):
            raise problem
    raise AssertionError("a request is sent at least once")


def _read_error(response: httpx2.Response) -> ServiceError:
    status = response.status_code
    try:
        error = models.ErrorResponse.model_validate_json(response.content).error
    except ValidationError:  # Something between us and the service answered.
        return ServiceError(f"the server answered with status {status}", status=status, code="not_metrist")
    return ServiceError(error.message, status=status, code=error.code, field=error.field, request_id=error.request_id)


def _sync(make: Callable[_P, _Request[_T]]) -> Callable[Concatenate[Client, _P], _T]:
    """A method of the client that makes a call."""

    @functools.wraps(make)
    def method(client: Client, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return client._send(make(*args, **kwargs))

    return method


def _async(make: Callable[_P, _Request[_T]]) -> Callable[Concatenate[AsyncClient, _P], Coroutine[Any, Any, _T]]:
    """A coroutine of the client that makes a call."""

    @functools.wraps(make)
    async def method(client: AsyncClient, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return await client._send(make(*args, **kwargs))

    return method


class _Connection:
    """What both clients are made with."""

    _http_client: ClassVar[Callable[..., Any]]

    def __init__(
        self, url: str, *, token: str | None = None, timeout: float = 60.0, retries: int = 4, transport: Any = None
    ) -> None:
        headers = {"User-Agent": f"metrist/{__version__}"}
        if key := token or os.environ.get(TOKEN_VARIABLE):
            headers["Authorization"] = f"Bearer {key}"
        self._retries = retries
        self._http = self._http_client(base_url=url.rstrip("/"), headers=headers, timeout=timeout, transport=transport)


class Client(_Connection):
    """Calls a service. Threads can share it; close it, or use it in a `with` block."""

    _http_client = httpx2.Client
    _http: httpx2.Client

    explain = _sync(_explain)
    prefer = _sync(_prefer)
    compare = _sync(_compare)
    rerank = _sync(_rerank)
    guard = _sync(_guard)
    metrics = _sync(_metrics)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def score(
        self,
        records: Iterable[RecordLike],
        metrics: str | Sequence[str] | None = None,
        *,
        details: bool = False,
        chunk: int = CHUNK,
    ) -> list[ScoredOutput]:
        """Score outputs, in requests of at most `chunk` records."""
        return list(self.iterate_scores(records, metrics, details=details, chunk=chunk))

    def iterate_scores(
        self,
        records: Iterable[RecordLike],
        metrics: str | Sequence[str] | None = None,
        *,
        details: bool = False,
        chunk: int = CHUNK,
    ) -> Iterator[ScoredOutput]:
        """Score outputs and yield each as soon as it comes, in order. Records may be any iterable: only one request's
        records are held."""
        for request in _score(records, metrics, details, chunk):
            yield from self._send(request)

    def is_ready(self) -> bool:
        """Whether the service can be reached and has loaded its models."""
        try:
            return self._http.get("/readyz").status_code == 200
        except httpx2.HTTPError:
            return False

    def _send(self, request: _Request[_T]) -> _T:
        exchange = _exchange(request, self._retries)
        next(exchange)
        while True:
            outcome: httpx2.Response | httpx2.HTTPError
            try:
                outcome = self._http.request(request.method, request.path, json=request.body)
            except httpx2.HTTPError as error:
                outcome = error
            try:
                time.sleep(exchange.send(outcome))
            except StopIteration as end:
                answer: _T = end.value
                return answer


class AsyncClient(_Connection):
    """Calls a service from coroutines; use it in an `async with` block."""

    _http_client = httpx2.AsyncClient
    _http: httpx2.AsyncClient

    explain = _async(_explain)
    prefer = _async(_prefer)
    compare = _async(_compare)
    rerank = _async(_rerank)
    guard = _async(_guard)
    metrics = _async(_metrics)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def score(
        self,
        records: Iterable[RecordLike],
        metrics: str | Sequence[str] | None = None,
        *,
        details: bool = False,
        chunk: int = CHUNK,
    ) -> list[ScoredOutput]:
        """Score outputs, in requests of at most `chunk` records."""
        return [scored async for scored in self.iterate_scores(records, metrics, details=details, chunk=chunk)]

    async def iterate_scores(
        self,
        records: Iterable[RecordLike],
        metrics: str | Sequence[str] | None = None,
        *,
        details: bool = False,
        chunk: int = CHUNK,
    ) -> AsyncIterator[ScoredOutput]:
        """Score outputs and yield each as soon as it comes, in order."""
        for request in _score(records, metrics, details, chunk):
            for scored in await self._send(request):
                yield scored

    async def is_ready(self) -> bool:
        """Whether the service can be reached and has loaded its models."""
        try:
            return (await self._http.get("/readyz")).status_code == 200
        except httpx2.HTTPError:
            return False

    async def _send(self, request: _Request[_T]) -> _T:
        exchange = _exchange(request, self._retries)
        next(exchange)
        while True:
            outcome: httpx2.Response | httpx2.HTTPError
            try:
                outcome = await self._http.request(request.method, request.path, json=request.body)
            except httpx2.HTTPError as error:
                outcome = error
            try:
                await asyncio.sleep(exchange.send(outcome))
            except StopIteration as end:
                answer: _T = end.value
                return answer
