"""The endpoints: turn validated bodies into jobs for lanes, and scores into answers."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError, to_json

from metrist._version import __version__
from metrist.errors import MetristError, RunError
from metrist.evaluate.plans import RerankSettings
from metrist.evaluate.rerank.rerank import Ranker
from metrist.io.dedup import digest_source
from metrist.records import OPTIONAL_FIELDS, Pair, Record, Unit
from metrist.run.tasks import count_characters
from metrist.scores import Failure, FailureKind, Scores
from metrist.web.service import models
from metrist.web.service.batching import JobResults, Key, Lane
from metrist.web.service.catalog import Catalog, OfferedMetric, UnknownMetric
from metrist.web.service.guards import Guards, describe_check
from metrist.web.service.settings import Check, ServiceSettings
from metrist.web.service.telemetry import Counters, Log

#: An answer: a body, or lines of NDJSON as they come.
Answer = bytes | AsyncIterator[bytes]
#: Writes a record or pair, which has a position in its chunk, with its results by the texts of metrics.
Writer = Callable[[Any, int, Mapping[str, JobResults]], dict[str, Any]]
#: Chunks of one request that are in lanes at once: enough to keep them busy, few enough to let other requests through.
_CHUNKS_AT_ONCE = 4
#: Comparisons that wait for the thread that tests them.
_MAX_COMPARISONS = 4
#: Failures whose messages are about the request's own record. Others may quote an LLM server or what it was sent.
_TOLD = (FailureKind.missing_input, FailureKind.not_scored)
_Model = TypeVar("_Model", bound=BaseModel)


class ApiError(Exception):
    """An answer other than success: a status, a code for programs and a message for people."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        field: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message
        self.headers, self.field = headers, field


def _refuse(field: str, problem: str, code: str = "invalid_request") -> ApiError:
    return ApiError(422, code, f"{field}: {problem}", field=field)


@dataclass(eq=False, slots=True)
class ServedRequest:
    """A request, what it holds of the process, and what the log says about it. `began` is of `time.monotonic`."""

    request_id: str
    endpoint: str
    began: float = field(default_factory=time.monotonic)
    client: str | None = None
    body: bytes = b""
    body_read: bool = False
    held: Counter[str] = field(default_factory=Counter)
    started: bool = False
    streams: bool = False
    status: int = 500
    code: str | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    #: Metrics and kinds of the failures that the log has.
    failures: set[tuple[str, FailureKind]] = field(default_factory=set)


class Capacity:
    """How many requests, bytes and records are held by the requests in progress; there is a limit on each."""

    def __init__(self, settings: ServiceSettings, lanes: Sequence[Lane]) -> None:
        self._limits = {
            "requests": (settings.max_requests, "too many requests are in progress"),
            "bytes": (settings.max_pending_bytes, "too many bytes wait"),
            "records": (settings.max_queue, "the queue is full"),
        }
        self._lanes = lanes
        self._held: Counter[str] = Counter()

    def hold(self, call: ServedRequest, kind: str, amount: int) -> None:
        """Reserve room for a request. One that needs more than all of it is accepted while others hold none."""
        limit, message = self._limits[kind]
        if self._held[kind] + amount > limit and self._held[kind] > call.held[kind]:
            wait = max(lane.backlog_seconds for lane in self._lanes)
            seconds = min(60, max(1, math.ceil(wait)))
            text = f"{message}; try again in {seconds} s"
            raise ApiError(429, "queue_full", text, headers={"Retry-After": str(seconds)})
        self._held[kind] += amount
        call.held[kind] += amount

    def release(self, call: ServedRequest) -> None:
        self._held.subtract(call.held)


def parse(model: type[_Model], body: bytes) -> _Model:
    """Validate a body of JSON. Messages name the place and never quote the value."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        if first["type"] == "json_invalid":
            raise ApiError(400, "invalid_json", first["msg"]) from None
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
        message = first["msg"]
        if first["type"] == "extra_forbidden":
            message = "a request has no such field; GET /openapi.json lists those that there are"
        raise ApiError(422, "invalid_request", f"{place or 'body'}: {message}", field=place or None) from None


def encode(value: Any) -> bytes:
    """A value as JSON. Numbers that JSON does not have become null."""
    try:
        return to_json(value, inf_nan_mode="null")
    except (PydanticSerializationError, UnicodeError):  # Half of a surrogate pair, in the answer of an LLM.
        return json.dumps(value, default=asdict).encode()


class Endpoints:
    """The endpoints of one process."""

    def __init__(
        self,
        catalog: Catalog,
        lanes: Mapping[str, Lane],
        guards: Guards,
        settings: ServiceSettings,
        counters: Counters,
        capacity: Capacity,
        log: Log,
        note_fault: Callable[[ServedRequest, BaseException], None],
    ) -> None:
        self._catalog = catalog
        self._lanes = lanes
        self._guards = guards
        self._log = log
        self._note_fault = note_fault
        self._settings = settings
        self._counters = counters
        self._capacity = capacity
        self._statistics = ThreadPoolExecutor(1, thread_name_prefix="metrist-statistics")
        self._comparisons = 0
        for check in settings.checks:
            if not catalog.find(check.metric).can_score:
                raise RunError(f"a guard cannot check {check.metric}, which compares outputs and scores none")

    def close(self) -> None:
        """Start no further comparison."""
        self._statistics.shutdown(wait=False, cancel_futures=True)

    def list_metrics(self) -> bytes:
        """GET /v1/metrics."""
        settings = self._settings
        names = ("max_body", "max_records", "max_characters", "max_queue", "max_draws", "max_systems", "time_limit")
        limits = {name: getattr(settings, name) for name in names}
        checks = [{"metric": c.metric, "min": c.minimum, "max": c.maximum} for c in settings.checks]
        guard = {"checks": checks, "policy": settings.guard_policy, **self._guards.describe()}
        metrics = [offer.describe() for offer in self._catalog.offered]
        return encode({"version": __version__, "metrics": metrics, "limits": limits, "guard": guard})

    async def score(self, request: models.ScoreRequest, call: ServedRequest) -> Answer:
        """POST /v1/score."""
        offers = self._choose(request.metrics)
        records = self._read_records(request.records)
        self._admit(call, len(records), offers)

        def write(record: Record, i: int, by_text: Mapping[str, JobResults]) -> dict[str, Any]:
            scores = {
                offer.label: self._write_score(call, offer, by_text, i, details=request.details) for offer in offers
            }
            return {"item": record.item, "system": record.system, "scores": scores}

        return await self._answer(self._plan(offers), records, write, stream=request.stream)

    async def explain(self, request: models.ExplainRequest, call: ServedRequest) -> Answer:
        """POST /v1/explain."""
        name = request.metric
        if name is None:
            # Those without an LLM come before the others.
            able = sorted((o for o in self._catalog.offered if o.explains), key=lambda offer: offer.calls_llm)
            if not able:
                raise ApiError(422, "unsuitable_metric", "this service has no metric that reports errors or reasons")
            name = able[0].label
        offer = self._find(name, lambda offer: offer.explains, "gives numbers and no reasons", "metric")
        records = self._read_records(request.records)
        self._admit(call, len(records), [offer])

        def write(record: Record, i: int, by_text: Mapping[str, JobResults]) -> dict[str, Any]:
            score = self._write_score(call, offer, by_text, i, details=True)
            return {"item": record.item, "system": record.system, "score": score}

        head = {"metric": offer.label}
        return await self._answer(self._plan([offer]), records, write, stream=request.stream, head=head)

    async def prefer(self, request: models.PreferRequest, call: ServedRequest) -> Answer:
        """POST /v1/prefer."""
        offers = self._choose(request.metrics, compare=True)
        pairs = [
            Pair(
                first=_make_record(body, number, body.first_system, body.first),
                second=_make_record(body, number, body.second_system, body.second),
            )
            for number, body in enumerate(request.pairs, 1)
        ]
        self._check_size(pairs, "pairs")
        self._admit(call, len(pairs), offers)

        def write(pair: Pair, i: int, by_text: Mapping[str, JobResults]) -> dict[str, Any]:
            return {
                "item": pair.first.item,
                "first_system": pair.first.system,
                "second_system": pair.second.system,
                "judgments": {offer.label: self._write_judgment(call, offer, by_text, i) for offer in offers},
            }

        return await self._answer(self._plan(offers, compare=True), pairs, write, stream=request.stream)

    async def compare(self, request: models.CompareRequest, call: ServedRequest) -> Answer:
        """POST /v1/compare."""
        settings = self._settings
        if request.draws > settings.max_draws:
            raise _refuse("draws", f"at most {settings.max_draws:,} are allowed here")
        offers = self._choose(request.metrics)
        records = self._read_records(request.records)
        systems = Counter(record.system for record in records)
        if not 2 <= len(systems) <= settings.max_systems:
            raise _refuse("records", f"expected outputs of 2 to {settings.max_systems} systems, got {len(systems)}")
        (key, count) = Counter((record.item, record.system) for record in records).most_common(1)[0]
        if count > 1:
            positions = [i for i, record in enumerate(records) if (record.item, record.system) == key]
            raise _refuse(f"records[{positions[1]}]", "its item has an output of its system already")
        self._admit(call, len(records), offers)
        blocks: dict[str, list[Scores]] = {offer.text: [] for offer in offers}
        async for _, by_text in self._run(self._plan(offers), records):
            for text, parts in blocks.items():
                parts.append(by_text[text].take(text))
        if self._comparisons >= _MAX_COMPARISONS:
            raise ApiError(429, "queue_full", "too many comparisons wait", headers={"Retry-After": "10"})
        self._comparisons += 1
        loop = asyncio.get_running_loop()
        run = loop.run_in_executor(self._statistics, _compare, offers, records, blocks, request)
        run.add_done_callback(self._finish_comparison)
        try:
            return encode(await asyncio.shield(run))
        except MetristError as error:
            raise ApiError(422, "not_comparable", str(error)) from None

    async def rerank(self, request: models.RerankRequest, call: ServedRequest) -> Answer:
        """POST /v1/rerank."""
        direct = self._choose(request.metrics) if request.metrics else []
        risks = [
            self._find(
                name, lambda offer: "references" in offer.metric.needs, "compares with no reference", f"mbr[{i}]"
            )
            for i, name in enumerate(request.mbr or ())
        ]
        comparing = self._choose(request.comparators, compare=True) if request.comparators else []
        try:
            ranker = Ranker.of(
                [offer.metric for offer in direct],
                [offer.metric for offer in risks],
                [offer.metric for offer in comparing],
                RerankSettings(k=request.k, weights=request.weights, pairing=request.pairing),
            )
        except MetristError as error:
            raise ApiError(
                422, "invalid_request", str(error), field="weights" if request.weights else "metrics"
            ) from None
        bodies = [body if body.item else body.model_copy(update={"item": "1"}) for body in request.records]
        records = self._read_records(bodies)
        numbers: dict[str, list[int]] = {}
        for number, record in enumerate(records):
            numbers.setdefault(record.item, []).append(number)
        pairs = sum(len(own) ** 2 for own in numbers.values()) if risks or comparing else len(records)
        if pairs > self._settings.max_records:
            text = f"records: they make {pairs:,} pairs of outputs of an item, more than {self._settings.max_records:,}"
            raise ApiError(413, "too_many_records", text, field="records")
        self._admit(call, pairs, [*direct, *risks, *comparing])
        plan: dict[str, Key] = {}
        for offer, metric in zip((*risks, *direct, *comparing), ranker.metrics, strict=True):
            self._catalog.by_text.setdefault(metric.text, metric)
            plan[offer.lane] = (*plan.get(offer.lane, ()), metric.text)
        # An item is one chunk, and no other request in the batch has one of its name.
        chunks = ([replace(records[n], item=f"{id(call)} {item}") for n in own] for item, own in numbers.items())
        rows = list[dict[str, Any]]()
        async for _, by_text in self._run(plan, records, chunks):
            own = numbers[list(numbers)[len(rows)]]
            blocks = [by_text[metric.text].take(metric.text) for metric in ranker.metrics]
            values = np.column_stack([block.values for block in blocks])
            goodness, order = ranker.rank(values)
            choices = [
                {
                    "record": own[order[choice.rank - 1]],
                    "system": choice.record.system,
                    **{name: getattr(choice, name) for name in ("rank", "score", "scores", "lead")},
                }
                for choice in ranker.describe([records[n] for n in own], values, goodness, order[: request.k], order)
            ]
            row: dict[str, Any] = {"item": records[own[0]].item, "of": len(own), "choices": choices}
            if not choices:
                by_offer = zip((*risks, *direct, *comparing), blocks, strict=True)
                offer, failures = next((offer, block.failures) for offer, block in by_offer if block.failures)
                row["failure"] = self._write_failure(call, offer, next(iter(failures.values())))
            rows.append(row)
        return encode({"results": rows})

    def _finish_comparison(self, run: asyncio.Future[dict[str, Any]]) -> None:
        """Make room for the next one, also where a request did not wait for its end."""
        self._comparisons -= 1
        if not run.cancelled():
            run.exception()  # Seen: asyncio would log it, with its message.

    async def guard(self, request: models.GuardRequest, call: ServedRequest) -> Answer:
        """POST /v1/guard."""
        settings = self._settings
        if any(body.min is None and body.max is None for body in request.checks or ()):
            raise _refuse("checks", "expected min or max, or both")
        checks = settings.checks
        if request.checks is not None:
            checks = tuple(Check(metric=body.metric, minimum=body.min, maximum=body.max) for body in request.checks)
        if not checks:
            raise _refuse("checks", "none are given, and the service has none of its own", "no_checks")
        offers = [
            self._find(check.metric, lambda offer: offer.can_score, "scores no single output", f"checks[{i}].metric")
            for i, check in enumerate(checks)
        ]
        (record,) = self._read_records([request.record])
        self._admit(call, 1, offers)
        usual = self._guards.choose_budget(offer.text for offer in offers)
        budget = usual if request.budget_ms is None else request.budget_ms / 1000
        policy = request.policy or settings.guard_policy
        judge = partial(self._judge, call)
        results = await self._guards.check(checks, offers, record, judge, budget=budget, began=call.began)
        failed = [result for result in results if result["result"] == "fail"]
        undecided = [result for result in results if result["result"] in ("late", "too_long", "unscored")]
        passed = not failed and (not undecided or policy == "open")
        decided_by = "policy" if undecided and not failed else "checks"
        verdict = "pass" if passed else "fail"
        self._counters.guards.labels(verdict, decided_by).inc()
        call.notes |= {"verdict": verdict, "decided_by": decided_by}
        return encode(
            {
                "verdict": verdict,
                "decided_by": decided_by,
                "reasons": [describe_check(result, budget, policy) for result in failed or undecided],
                "checks": results,
                "policy": policy,
                "budget_ms": budget * 1000,
                "elapsed_ms": round((time.monotonic() - call.began) * 1000, 3),
            }
        )

    def _judge(
        self, call: ServedRequest, check: Check, offer: OfferedMetric, job: asyncio.Future[JobResults]
    ) -> dict[str, Any]:
        if (error := job.exception()) is not None:
            self._note_fault(call, error)
            failure = {"kind": "other", "message": "the metric failed; the service's log says more"}
            return {"value": None, "result": "unscored", "failure": failure}
        body = self._write_score(call, offer, {offer.text: job.result()}, 0, details=True)
        result = "unscored" if body["value"] is None else "pass" if check.passes(body["value"]) else "fail"
        return {"result": result, **{name: body[name] for name in ("value", "failure", "errors") if name in body}}

    # ---- Requests

    def _find(self, name: str, suits: Callable[[OfferedMetric], bool], problem: str, field: str) -> OfferedMetric:
        try:
            offer = self._catalog.find(name)
        except UnknownMetric as error:
            raise ApiError(422, "unknown_metric", str(error), field=field) from None
        if not suits(offer):
            raise ApiError(422, "unsuitable_metric", f"{offer.label} {problem}", field=field)
        return offer

    def _choose(self, names: Sequence[str] | None, *, compare: bool = False) -> list[OfferedMetric]:
        if names is None:
            offers = self._catalog.by_default(compare=compare)
            if not offers:
                raise _refuse("metrics", "name one, since all that suit call an LLM", "unsuitable_metric")
            return offers

        def suits(offer: OfferedMetric) -> bool:
            return offer.comparator is not None if compare else offer.can_score

        problem = "prefers neither high nor low scores" if compare else "compares outputs and scores none"
        found = [self._find(name, suits, problem, f"metrics[{i}]") for i, name in enumerate(names)]
        return list(dict.fromkeys(found))

    def _admit(self, call: ServedRequest, records: int, offers: Sequence[OfferedMetric]) -> None:
        call.notes |= {"records": records, "metrics": [offer.label for offer in offers]}
        self._capacity.hold(call, "records", records)

    def _read_records(self, bodies: Sequence[models.RecordBody]) -> list[Record]:
        counts: Counter[str] = Counter()
        records: list[Record] = []
        for body in bodies:
            counts[body.system] += 1
            records.append(_make_record(body, counts[body.system], body.system, body.output))
        self._check_size(records, "records")
        return records

    def _check_size(self, units: Sequence[Unit], name: str) -> None:
        limit, characters = self._settings.max_records, self._settings.max_characters
        if len(units) > limit:
            text = f"{name}: {len(units):,} are more than {limit:,}, the limit"
            raise ApiError(413, "too_many_records", text, field=name)
        for i, unit in enumerate(units):
            if count_characters([unit]) > characters:
                text = f"{name}[{i}]: its texts have more than {characters:,} characters"
                raise ApiError(413, "record_too_large", text, field=f"{name}[{i}]")

    # ---- Work

    def _plan(self, offers: Sequence[OfferedMetric], *, compare: bool = False) -> dict[str, Key]:
        """The texts of the metrics by lane."""
        plan: dict[str, Key] = {}
        for offer in offers:
            text = offer.comparator_text if compare and offer.comparator_text is not None else offer.text
            plan[offer.lane] = (*plan.get(offer.lane, ()), text)
        return plan

    async def _run(
        self, plan: Mapping[str, Key], units: Sequence[Unit], chunks: Iterator[Sequence[Unit]] | None = None
    ) -> AsyncIterator[tuple[Sequence[Unit], dict[str, JobResults]]]:
        """The results of units in their order, chunk by chunk. Only a few chunks are in the lanes at once."""
        small = any(lane != "text" for lane in plan)
        limit = self._settings.model_batch_characters if small else self._settings.batch_characters
        flying: deque[tuple[Sequence[Unit], list[tuple[Key, asyncio.Future[JobResults]]]]] = deque()
        chunks = chunks or cut_chunks(units, self._settings.batch_records, limit)
        try:
            while True:
                while len(flying) < _CHUNKS_AT_ONCE and (chunk := next(chunks, None)):
                    flying.append((chunk, [(key, self._lanes[lane].submit(key, chunk)) for lane, key in plan.items()]))
                if not flying:
                    return
                chunk, jobs = flying[0]
                by_text: dict[str, JobResults] = {}
                for key, job in jobs:
                    results = await job
                    by_text |= dict.fromkeys(key, results)
                flying.popleft()
                yield chunk, by_text
        finally:
            for _, jobs in flying:
                for _, job in jobs:
                    job.cancel()

    # ---- Answers

    async def _answer(
        self,
        plan: Mapping[str, Key],
        units: Sequence[Unit],
        write: Writer,
        *,
        stream: bool,
        head: Mapping[str, Any] | None = None,
    ) -> Answer:
        """The results as one JSON object, or as lines. Chunks are encoded one by one: the event loop goes on."""
        chunks = (
            [write(unit, i, by_text) for i, unit in enumerate(chunk)] async for chunk, by_text in self._run(plan, units)
        )
        if stream:
            return _write_lines(chunks)
        pieces = [encode(rows)[1:-1] async for rows in chunks]
        start = encode(head)[:-1] + b"," if head else b"{"
        return start + b'"results":[' + b",".join(pieces) + b"]}"

    def _write_score(
        self, call: ServedRequest, offer: OfferedMetric, by_text: Mapping[str, JobResults], i: int, *, details: bool
    ) -> dict[str, Any]:
        results = by_text[offer.text]
        row = results.start + i
        block: Scores = results.blocks[offer.text]
        value = float(block.values[row])
        if math.isnan(value):
            return {"value": None, "failure": self._write_failure(call, offer, block.failures[row])}
        body: dict[str, Any] = {"value": value}
        if details:
            score = block[row]
            if score.parts:
                body["parts"] = dict(score.parts)
            if score.errors or offer.explains:
                body["errors"] = score.errors
            if score.explanation is not None:
                body["explanation"] = score.explanation
        return body

    def _write_judgment(
        self, call: ServedRequest, offer: OfferedMetric, by_text: Mapping[str, JobResults], i: int
    ) -> dict[str, Any]:
        assert offer.comparator_text is not None
        results = by_text[offer.comparator_text]
        judgment = results.blocks[offer.comparator_text][results.start + i]
        body: dict[str, Any] = {"preference": judgment.preference}
        if judgment.explanation is not None:
            body["explanation"] = judgment.explanation
        if judgment.flipped is not None:
            body["flipped"] = judgment.flipped
        if judgment.failure is not None:
            body["failure"] = self._write_failure(call, offer, judgment.failure)
        return body

    def _write_failure(self, call: ServedRequest, offer: OfferedMetric, failure: Failure) -> dict[str, str]:
        """Why there is no score. What is not about the client's own data is in the log alone: the first of a kind."""
        self._counters.unscored.labels(offer.label).inc()
        kind = failure.kind
        if kind in _TOLD:
            return {"kind": kind.value, "message": failure.message}
        if (offer.label, kind) not in call.failures:
            call.failures.add((offer.label, kind))
            names = {"id": call.request_id, "path": call.endpoint, "metric": offer.label, "kind": kind.value}
            self._log.event("unscored", level="error", **names, reason=failure.message)
        return {"kind": kind.value, "message": f"no score ({kind.value}); the service's log says more"}


def cut_chunks(units: Sequence[Unit], size: int, characters: int) -> Iterator[Sequence[Unit]]:
    """Cut units into chunks that fit a batch; a unit that is too long for one has a chunk to itself."""
    chunk: list[Unit] = []
    total = 0
    for unit in units:
        length = count_characters([unit])
        if chunk and (len(chunk) >= size or total + length > characters):
            yield chunk
            chunk, total = [], 0
        chunk.append(unit)
        total += length
    if chunk:
        yield chunk


async def _write_lines(chunks: AsyncIterator[list[dict[str, Any]]]) -> AsyncIterator[bytes]:
    count = 0
    async for rows in chunks:
        count += len(rows)
        yield b"".join(encode(row) + b"\n" for row in rows)
    yield encode({"done": True, "count": count}) + b"\n"


def _make_record(context: models.Context, number: int, system: str, output: str) -> Record:
    return Record(
        item=str(number) if context.item is None else context.item,
        system=system,
        output=output,
        references=tuple(context.references),
        **{name: getattr(context, name) for name in OPTIONAL_FIELDS},
    )


def _compare(
    offers: Sequence[OfferedMetric],
    records: Sequence[Record],
    blocks: Mapping[str, list[Scores]],
    request: models.CompareRequest,
) -> dict[str, Any]:
    """Test the systems, in a thread."""
    from metrist.evaluate.compare.comparison import compare
    from metrist.run.results import Results

    results = Results(
        items=[record.item for record in records],
        systems=[record.system for record in records],
        sources=[digest_source(record.source) for record in records],
        metrics=tuple(offer.metric for offer in offers),
        scores={offer.label: Scores.join(blocks[offer.text]) for offer in offers},
        signatures={offer.label: offer.metric.signature for offer in offers},
        reference_counts=tuple(sorted({len(record.references) for record in records if record.references})),
    )
    return compare(results, **request.model_dump(include={"test", "draws", "seed", "baseline", "alpha"})).to_dict()
