"""A typed client of `metrist serve`, for code with and without asyncio. Needs the extra `client` (httpx2).

    from metrist.client import Client

    with Client("http://127.0.0.1:8600", token="…") as client:
        (scored,) = client.score([{"output": "a cat", "references": ["the cat"]}], ["rougeL"])
        print(scored.scores["rougeL"].value)

`AsyncClient` has the same methods as coroutines. Requests that the service has no room for (429), or that do not reach
it, are tried again. Everything else that goes wrong raises a `ServiceError` with the service's code.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from metrist._version import __version__
from metrist.errors import MetristError, MissingExtra
from metrist.ratings import Choice, Error
from metrist.records import Record
from metrist.scores import Failure, Score

if TYPE_CHECKING:
    import httpx2

__all__ = [
    "AsyncClient",
    "CheckedMetric",
    "Client",
    "Contest",
    "GuardVerdict",
    "JudgedPair",
    "PairJudgment",
    "ScoredOutput",
    "ServedComparison",
    "ServedMetric",
    "ServiceError",
]

#: The environment variable with the token, if none is given.
TOKEN_VARIABLE = "METRIST_TOKEN"
#: Records of one request; longer lists are sent in several.
CHUNK = 1000
_RETRIED = (429, 503)
_FIELDS = ("item", "system", "output", "source", "instruction", "task", "language")

#: A record, or a mapping with its fields.
RecordLike = Record | Mapping[str, Any]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PairJudgment:
    """What one metric prefers; `preference` is None exactly when there is a failure."""

    preference: Choice | None
    explanation: str | None = None
    flipped: bool | None = None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedPair:
    """The judgments of two outputs of an item, by the names of the metrics."""

    item: str
    first_system: str
    second_system: str
    judgments: Mapping[str, PairJudgment]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """Two systems under one metric, with p-values by the name of the test, as they are and after Holm's correction."""

    metric: str
    first: str
    second: str
    items: int
    first_score: float | None
    second_score: float | None
    difference: float | None
    low: float | None
    high: float | None
    p: Mapping[str, float | None]
    adjusted: Mapping[str, float | None]
    winner: str | None
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedComparison:
    """All contests, and what the service notes about them."""

    contests: tuple[Contest, ...]
    signatures: Mapping[str, str]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedMetric:
    """One check of a guard."""

    metric: str
    result: Literal["pass", "fail", "late", "unscored", "skipped"]
    value: float | None = None
    minimum: float | None = None
    maximum: float | None = None
    failure: Failure | None = None
    errors: tuple[Error, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardVerdict:
    """Whether an output may be shown. True in a condition exactly if it may."""

    verdict: Literal["pass", "fail"]
    decided_by: Literal["checks", "policy"]
    reasons: tuple[str, ...]
    checks: tuple[CheckedMetric, ...]
    policy: Literal["open", "closed"]
    budget_ms: float
    elapsed_ms: float

    def __bool__(self) -> bool:
        return self.verdict == "pass"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedMetric:
    """A metric that the service offers."""

    name: str
    text: str
    signature: str
    needs: tuple[str, ...]
    higher_is_better: bool | None
    low: float | None
    high: float | None
    explains: bool
    scores: bool
    compares: bool
    calls_llm: bool


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    path: str
    body: Any = None


# ---- Requests


def _to_body(record: RecordLike) -> dict[str, Any]:
    if not isinstance(record, Record):
        return dict(record)
    body: dict[str, Any] = {name: value for name in _FIELDS if (value := getattr(record, name)) is not None}
    if record.references:
        body["references"] = list(record.references)
    return body


def _listed(metrics: str | Sequence[str] | None) -> list[str] | None:
    return None if metrics is None else [metrics] if isinstance(metrics, str) else list(metrics)


def _drop_none(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _score_requests(
    records: Iterable[RecordLike], metrics: str | Sequence[str] | None, details: bool, chunk: int
) -> Iterator[_Request]:
    bodies = map(_to_body, records)
    start: dict[str, int] = {}
    while some := list(islice(bodies, chunk)):
        for body in some:  # Numbered here: the service sees one part of the records at a time.
            system = body.get("system", "output")
            start[system] = start.get(system, 0) + 1
            if body.get("item") is None:
                body["item"] = str(start[system])
        yield _Request("POST", "/v1/score", _drop_none(records=some, metrics=_listed(metrics), details=details))


def _explain_request(records: Iterable[RecordLike], metric: str | None) -> _Request:
    return _Request("POST", "/v1/explain", _drop_none(records=list(map(_to_body, records)), metric=metric))


def _prefer_request(pairs: Iterable[Mapping[str, Any]], metrics: str | Sequence[str] | None) -> _Request:
    return _Request("POST", "/v1/prefer", _drop_none(pairs=list(map(dict, pairs)), metrics=_listed(metrics)))


def _guard_request(
    record: RecordLike, checks: Mapping[str, Any] | None, budget_ms: float | None, policy: str | None
) -> _Request:
    """`checks` maps a metric to its minimum, or to a mapping with `min` and `max`."""
    listed = None
    if checks is not None:
        listed = [
            {"metric": metric, **(limits if isinstance(limits, Mapping) else {"min": limits})}
            for metric, limits in checks.items()
        ]
    body = _drop_none(record=_to_body(record), checks=listed, budget_ms=budget_ms, policy=policy)
    return _Request("POST", "/v1/guard", body)


# ---- Answers


def _parse_failure(body: Mapping[str, Any] | None) -> Failure | None:
    return None if body is None else Failure(body["kind"], body["message"])


def _parse_errors(bodies: Iterable[Mapping[str, Any]] | None) -> tuple[Error, ...]:
    return tuple(Error(**body) for body in bodies or ())


def _parse_score(body: Mapping[str, Any]) -> Score:
    parts = {name: math.nan if value is None else value for name, value in (body.get("parts") or {}).items()}
    return Score(
        value=math.nan if body["value"] is None else body["value"],
        parts=parts,
        errors=_parse_errors(body.get("errors")),
        explanation=body.get("explanation"),
        failure=_parse_failure(body.get("failure")),
    )


def _parse_scored(body: Mapping[str, Any]) -> ScoredOutput:
    scores = {name: _parse_score(score) for name, score in body["scores"].items()}
    return ScoredOutput(item=body["item"], system=body["system"], scores=scores)


def _parse_explained(answer: Mapping[str, Any]) -> list[ScoredOutput]:
    return [
        ScoredOutput(item=row["item"], system=row["system"], scores={answer["metric"]: _parse_score(row["score"])})
        for row in answer["results"]
    ]


def _parse_judged(answer: Mapping[str, Any]) -> list[JudgedPair]:
    return [
        JudgedPair(
            item=row["item"],
            first_system=row["first_system"],
            second_system=row["second_system"],
            judgments={
                name: PairJudgment(**{**judgment, "failure": _parse_failure(judgment.get("failure"))})
                for name, judgment in row["judgments"].items()
            },
        )
        for row in answer["results"]
    ]


def _parse_comparison(answer: Mapping[str, Any]) -> ServedComparison:
    tests = answer["tests"]
    same = ("metric", "first", "second", "items", "first_score", "second_score", "difference", "low", "high")
    contests = tuple(
        Contest(
            **{name: row[name] for name in (*same, "winner", "verdict")},
            p={test: row[f"p_{test}"] for test in tests},
            adjusted={test: row[f"p_{test}_holm"] for test in tests},
        )
        for row in answer["contests"]
    )
    return ServedComparison(contests=contests, signatures=answer["signatures"], notes=tuple(answer["notes"]))


def _parse_verdict(answer: Mapping[str, Any]) -> GuardVerdict:
    checks = tuple(
        CheckedMetric(
            metric=row["metric"],
            result=row["result"],
            value=row.get("value"),
            minimum=row.get("min"),
            maximum=row.get("max"),
            failure=_parse_failure(row.get("failure")),
            errors=_parse_errors(row.get("errors")),
        )
        for row in answer["checks"]
    )
    return GuardVerdict(**{**answer, "reasons": tuple(answer["reasons"]), "checks": checks})


def _parse_metrics(answer: Mapping[str, Any]) -> list[ServedMetric]:
    return [ServedMetric(**{**row, "needs": tuple(row["needs"])}) for row in answer["metrics"]]


def _parse_error(status: int, content: bytes) -> ServiceError:
    try:
        error = json.loads(content)["error"]
        return ServiceError(
            error["message"],
            status=status,
            code=error["code"],
            field=error.get("field"),
            request_id=error.get("request_id"),
        )
    except (ValueError, KeyError, TypeError):  # Something between us and the service answered.
        return ServiceError(f"the server answered with status {status}", status=status, code="not_metrist")


# ---- Clients


@dataclass
class _Retries:
    """Decides whether and when a request is sent again."""

    left: int
    wait: float = field(default=0.25)

    def next_wait(self, retry_after: str | None) -> float | None:
        """Seconds to wait, or None to give up."""
        if not self.left:
            return None
        self.left -= 1
        wait, self.wait = self.wait * random.uniform(0.75, 1.25), self.wait * 2
        return max(wait, float(retry_after)) if retry_after and retry_after.isdigit() else wait


def _load_library() -> ModuleType:
    try:
        import httpx2
    except ImportError:
        raise MissingExtra("metrist.client", "client") from None
    return httpx2


class _Settings:
    """What both clients are built from."""

    def __init__(self, url: str, token: str | None, timeout: float, retries: int) -> None:
        self.retries = retries
        headers = {"User-Agent": f"metrist/{__version__}"}
        if key := token or os.environ.get(TOKEN_VARIABLE):
            headers["Authorization"] = f"Bearer {key}"
        self.options: dict[str, Any] = {"base_url": url.rstrip("/"), "headers": headers, "timeout": timeout}


class Client:
    """Calls a service. Threads can share it; close it, or use it in a `with` block."""

    def __init__(
        self, url: str, *, token: str | None = None, timeout: float = 60.0, retries: int = 4, transport: Any = None
    ) -> None:
        settings = _Settings(url, token, timeout, retries)
        self._retries = settings.retries
        self._library = _load_library()
        self._http: httpx2.Client = self._library.Client(**settings.options, transport=transport)

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
        for request in _score_requests(records, metrics, details, chunk):
            yield from map(_parse_scored, self._send(request)["results"])

    def explain(self, records: Iterable[RecordLike], metric: str | None = None) -> list[ScoredOutput]:
        """Score outputs with a metric that reports errors or reasons."""
        return _parse_explained(self._send(_explain_request(records, metric)))

    def prefer(
        self, pairs: Iterable[Mapping[str, Any]], metrics: str | Sequence[str] | None = None
    ) -> list[JudgedPair]:
        """Choose between the outputs `first` and `second` of each pair."""
        return _parse_judged(self._send(_prefer_request(pairs, metrics)))

    def compare(
        self, records: Iterable[RecordLike], metrics: str | Sequence[str] | None = None, **options: Any
    ) -> ServedComparison:
        """Test whether systems differ. `options` are `baseline`, `test`, `draws`, `seed` and `alpha`."""
        body = _drop_none(records=list(map(_to_body, records)), metrics=_listed(metrics), **options)
        return _parse_comparison(self._send(_Request("POST", "/v1/compare", body)))

    def guard(
        self,
        record: RecordLike,
        checks: Mapping[str, Any] | None = None,
        *,
        budget_ms: float | None = None,
        policy: Literal["open", "closed"] | None = None,
    ) -> GuardVerdict:
        """Whether an output may be shown. `checks` maps a metric to its minimum, or to `{"min": …, "max": …}`; by
        default the service's own."""
        return _parse_verdict(self._send(_guard_request(record, checks, budget_ms, policy)))

    def metrics(self) -> list[ServedMetric]:
        """The metrics that the service offers."""
        return _parse_metrics(self._send(_Request("GET", "/v1/metrics")))

    def is_ready(self) -> bool:
        """Whether the service can be reached and has loaded its models."""
        try:
            return self._http.request("GET", "/readyz").status_code == 200
        except self._library.HTTPError:
            return False

    def _send(self, request: _Request) -> Any:
        retries = _Retries(self._retries)
        while True:
            try:
                response = self._http.request(request.method, request.path, json=request.body)
            except self._library.HTTPError as error:
                problem = ServiceError(f"no answer from the service: {error or type(error).__name__}")
                wait = retries.next_wait(None)
            else:
                if response.status_code == 200:
                    return response.json()
                problem = _parse_error(response.status_code, response.content)
                retried = response.status_code in _RETRIED
                wait = retries.next_wait(response.headers.get("retry-after")) if retried else None
            if wait is None:
                raise problem
            time.sleep(wait)


class AsyncClient:
    """Calls a service from coroutines; use it in an `async with` block."""

    def __init__(
        self, url: str, *, token: str | None = None, timeout: float = 60.0, retries: int = 4, transport: Any = None
    ) -> None:
        settings = _Settings(url, token, timeout, retries)
        self._retries = settings.retries
        self._library = _load_library()
        self._http: httpx2.AsyncClient = self._library.AsyncClient(**settings.options, transport=transport)

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
        for request in _score_requests(records, metrics, details, chunk):
            for row in (await self._send(request))["results"]:
                yield _parse_scored(row)

    async def explain(self, records: Iterable[RecordLike], metric: str | None = None) -> list[ScoredOutput]:
        """Score outputs with a metric that reports errors or reasons."""
        return _parse_explained(await self._send(_explain_request(records, metric)))

    async def prefer(
        self, pairs: Iterable[Mapping[str, Any]], metrics: str | Sequence[str] | None = None
    ) -> list[JudgedPair]:
        """Choose between the outputs `first` and `second` of each pair."""
        return _parse_judged(await self._send(_prefer_request(pairs, metrics)))

    async def compare(
        self, records: Iterable[RecordLike], metrics: str | Sequence[str] | None = None, **options: Any
    ) -> ServedComparison:
        """Test whether systems differ. `options` are `baseline`, `test`, `draws`, `seed` and `alpha`."""
        body = _drop_none(records=list(map(_to_body, records)), metrics=_listed(metrics), **options)
        return _parse_comparison(await self._send(_Request("POST", "/v1/compare", body)))

    async def guard(
        self,
        record: RecordLike,
        checks: Mapping[str, Any] | None = None,
        *,
        budget_ms: float | None = None,
        policy: Literal["open", "closed"] | None = None,
    ) -> GuardVerdict:
        """Whether an output may be shown; as `Client.guard`."""
        return _parse_verdict(await self._send(_guard_request(record, checks, budget_ms, policy)))

    async def metrics(self) -> list[ServedMetric]:
        """The metrics that the service offers."""
        return _parse_metrics(await self._send(_Request("GET", "/v1/metrics")))

    async def is_ready(self) -> bool:
        """Whether the service can be reached and has loaded its models."""
        try:
            return (await self._http.request("GET", "/readyz")).status_code == 200
        except self._library.HTTPError:
            return False

    async def _send(self, request: _Request) -> Any:
        retries = _Retries(self._retries)
        while True:
            try:
                response = await self._http.request(request.method, request.path, json=request.body)
            except self._library.HTTPError as error:
                problem = ServiceError(f"no answer from the service: {error or type(error).__name__}")
                wait = retries.next_wait(None)
            else:
                if response.status_code == 200:
                    return response.json()
                problem = _parse_error(response.status_code, response.content)
                retried = response.status_code in _RETRIED
                wait = retries.next_wait(response.headers.get("retry-after")) if retried else None
            if wait is None:
                raise problem
            await asyncio.sleep(wait)
