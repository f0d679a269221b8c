"""Bodies of requests and answers: the service validates requests with them and publishes them in its OpenAPI document,
and `metrist.client` reads answers with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, PlainValidator
from pydantic.json_schema import models_json_schema

from metrist._version import __version__
from metrist.ratings import Choice, Error
from metrist.scores import Failure

if TYPE_CHECKING:
    from metrist.web.service.settings import ServiceSettings

Name = Annotated[str, Field(min_length=1, max_length=1000)]
MetricName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=10_000,
        description="A metric that the service offers, by its name or its text: see GET /v1/metrics",
        examples=["rougeL"],
    ),
]


MetricNames = Annotated[list[MetricName], Field(min_length=1, max_length=100)]


class _Body(BaseModel):
    # Unknown fields are refused: a misspelt field would silently do nothing.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)


class Context(_Body):
    """The context of an output: source, instruction and references."""

    item: Name | None = Field(None, description="The item's name; by default its number, from 1")
    source: str | None = None
    references: Annotated[list[str], Field(max_length=100)] = []
    instruction: str | None = None
    task: Annotated[str, Field(max_length=1000)] | None = None
    language: Annotated[str, Field(max_length=100)] | None = None


class RecordBody(Context):
    """One output to be judged, with what it is judged against."""

    output: str
    system: Name = "output"


class PairBody(Context):
    """Two outputs of one item, to be compared."""

    first: str
    second: str
    first_system: Name = "first"
    second_system: Name = "second"


class ScoreRequest(_Body):
    records: Annotated[list[RecordBody], Field(min_length=1)]
    metrics: MetricNames | None = Field(None, description="By default all metrics of the service that call no LLM")
    details: bool = Field(False, description="Whether scores come with parts, errors and explanations")
    stream: bool = Field(False, description="Answer with one line of JSON per record (NDJSON), as they are scored")


class ExplainRequest(_Body):
    records: Annotated[list[RecordBody], Field(min_length=1)]
    metric: MetricName | None = Field(None, description="A metric that reports errors or reasons; by default the first")
    stream: bool = False


class PreferRequest(_Body):
    pairs: Annotated[list[PairBody], Field(min_length=1)]
    metrics: MetricNames | None = Field(
        None, description="Comparators, or metrics whose better score wins; by default all that call no LLM"
    )
    stream: bool = False


class CompareRequest(_Body):
    records: Annotated[list[RecordBody], Field(min_length=1, description="Outputs of at least two systems")]
    metrics: MetricNames | None = None
    baseline: Name | None = None
    test: Literal["both", "bootstrap", "randomisation"] = "both"
    draws: Annotated[int, Field(ge=1, le=1_000_000)] = 2000
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    alpha: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)] = 0.05


class RerankRequest(_Body):
    records: Annotated[list[RecordBody], Field(min_length=1, description="Outputs; those without an item are of one")]
    metrics: MetricNames | None = Field(None, description="Metrics whose score chooses")
    mbr: MetricNames | None = Field(None, description="Metrics that compare each output with all of its item")
    comparators: MetricNames | None = Field(None, description="What compares two outputs of an item")
    pairing: Literal["all", "knockout"] = "all"
    weights: dict[MetricName, Annotated[float, Field(allow_inf_nan=False)]] = {}
    k: Annotated[int, Field(ge=1)] = 1


class CheckBody(_Body):
    """A limit on a metric's value."""

    metric: MetricName
    min: Annotated[float, Field(allow_inf_nan=False)] | None = None
    max: Annotated[float, Field(allow_inf_nan=False)] | None = None


class GuardRequest(_Body):
    record: RecordBody
    checks: Annotated[list[CheckBody], Field(min_length=1, max_length=100)] | None = Field(
        None, description="By default those that the service was started with"
    )
    budget_ms: Annotated[float, Field(gt=0, le=600_000, allow_inf_nan=False)] | None = None
    policy: Literal["open", "closed"] | None = Field(
        None, description="Whether an output passes ('open') whose checks have no result within the budget"
    )


# ---- Answers


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FailureBody(_Answer):
    kind: str = Field(description="One of a closed set, such as missing_input")
    message: str


def _read_failure(body: Any) -> Failure:
    fields = FailureBody.model_validate(body)
    return Failure(fields.kind, fields.message)


def _write_failure(failure: Failure) -> FailureBody:
    return FailureBody(kind=failure.kind.value, message=failure.message)


#: A `metrist.Failure` in Python, an object with kind and message in JSON.
FailureField = Annotated[Failure, PlainValidator(_read_failure), PlainSerializer(_write_failure)]


class ScoreBody(_Answer):
    value: float | None = Field(description="null exactly where there is a failure")
    failure: FailureField | None = None
    parts: dict[str, float | None] | None = None
    errors: tuple[Error, ...] | None = None
    explanation: str | None = None


class ScoredRecord(_Answer):
    item: str
    system: str
    scores: dict[str, ScoreBody]


class ScoreResponse(_Answer):
    results: list[ScoredRecord] = Field(description="One per record, in their order")


class ExplainedRecord(_Answer):
    item: str
    system: str
    score: ScoreBody


class ExplainResponse(_Answer):
    metric: str
    results: list[ExplainedRecord]


class PairJudgment(_Answer):
    """What one metric prefers; `preference` is None exactly when there is a failure."""

    preference: Choice | None
    explanation: str | None = None
    flipped: bool | None = None
    failure: FailureField | None = None


class JudgedPair(_Answer):
    """The judgments of two outputs of an item, by the names of the metrics."""

    item: str
    first_system: str
    second_system: str
    judgments: dict[str, PairJudgment]


class PreferResponse(_Answer):
    results: list[JudgedPair] = Field(description="One per pair, in their order")


class RerankedOutput(_Answer):
    """A chosen output: the number of its record in the request, from 0, and how good it is."""

    record: int
    system: str
    rank: int
    score: float
    scores: dict[str, float]
    lead: float | None = Field(description="The distance to the best output that was not chosen")


class RerankedItem(_Answer):
    """The best of the outputs of an item, which are `of`."""

    item: str
    of: int
    choices: list[RerankedOutput]
    failure: FailureField | None = Field(None, description="Why nothing was chosen")


class RerankResponse(_Answer):
    results: list[RerankedItem] = Field(description="One per item, in their order")


class ServedContest(BaseModel):
    """Two systems under one metric. Differences are first minus second; p-values are by the test's name, as they are
    (`p_TEST`) and after Holm's correction (`p_TEST_holm`)."""

    model_config = ConfigDict(extra="allow", frozen=True)

    metric: str
    first: str
    second: str
    items: int
    first_score: float | None
    second_score: float | None
    difference: float | None
    low: float | None
    high: float | None
    winner: str | None
    verdict: str

    @property
    def p(self) -> dict[str, float | None]:
        """The p-values by the name of the test."""
        values = (self.model_extra or {}).items()
        return {name[2:]: p for name, p in values if name.startswith("p_") and not name.endswith("_holm")}

    @property
    def adjusted(self) -> dict[str, float | None]:
        """The p-values after Holm's correction, by the name of the test."""
        return {test: (self.model_extra or {})[f"p_{test}_holm"] for test in self.p}


class ServedComparison(BaseModel):
    """All contests, and what the service notes about them."""

    model_config = ConfigDict(extra="allow", frozen=True)

    contests: tuple[ServedContest, ...]
    systems: list[dict[str, Any]]
    signatures: dict[str, str]
    notes: tuple[str, ...]


class CheckedMetric(_Answer):
    """One check of a guard."""

    model_config = ConfigDict(populate_by_name=True)

    metric: str
    result: Literal["pass", "fail", "late", "too_long", "unscored", "skipped"] = Field(
        description="'too_long': the metric would take more than half of the budget for this text, and was not asked; "
        "'skipped': another check had failed already"
    )
    needed_ms: float | None = Field(None, description="About how long the metric would take, where it was not asked")
    value: float | None = None
    minimum: float | None = Field(None, alias="min")
    maximum: float | None = Field(None, alias="max")
    failure: FailureField | None = None
    errors: tuple[Error, ...] = ()


class GuardVerdict(_Answer):
    """Whether an output may be shown. In Python true in a condition exactly if it may."""

    verdict: Literal["pass", "fail"]
    decided_by: Literal["checks", "policy"] = Field(description="'policy': a check had no result in time, or no value")
    reasons: tuple[str, ...] = Field(description="Why the output fails, or what the policy lets pass; no texts")
    checks: tuple[CheckedMetric, ...]
    policy: Literal["open", "closed"]
    budget_ms: float
    elapsed_ms: float

    def __bool__(self) -> bool:
        return self.verdict == "pass"


class ServedMetric(_Answer):
    """A metric that the service offers."""

    name: str
    text: str
    measures: str = Field(description="What the number measures, from the metric's card")
    signature: str
    needs: tuple[str, ...]
    higher_is_better: bool | None
    low: float | None
    high: float | None
    explains: bool = Field(description="Whether POST /v1/explain takes it")
    scores: bool = Field(description="Whether POST /v1/score takes it: a comparator only compares")
    compares: bool = Field(description="Whether POST /v1/prefer takes it")
    calls_llm: bool


class MetricsResponse(_Answer):
    version: str
    metrics: list[ServedMetric]
    limits: dict[str, float]
    guard: dict[str, Any]


class ErrorBody(_Answer):
    code: str = Field(description="What went wrong, for programs", examples=["unknown_metric"])
    message: str = Field(description="What went wrong, for people")
    field: str | None = Field(None, description="The place in the request", examples=["records[3].output"])
    request_id: str | None = None


class ErrorResponse(_Answer):
    error: ErrorBody


class StatusResponse(_Answer):
    status: str


# ---- The OpenAPI document


class Operation(NamedTuple):
    """An endpoint as the document shows it. `public` ones need no token, and say 503 when all is not well."""

    name: str
    summary: str
    response: type[BaseModel] | None
    request: type[BaseModel] | None = None
    streams: bool = False
    public: bool = False
    media_type: str = "application/json"


OPERATIONS = {
    "/v1/score": Operation("score", "Score outputs", ScoreResponse, ScoreRequest, streams=True),
    "/v1/explain": Operation("explain", "Find the errors of outputs", ExplainResponse, ExplainRequest, streams=True),
    "/v1/prefer": Operation("prefer", "Choose between two outputs", PreferResponse, PreferRequest, streams=True),
    "/v1/compare": Operation("compare", "Test whether systems differ", ServedComparison, CompareRequest),
    "/v1/rerank": Operation("rerank", "Choose the best of several outputs", RerankResponse, RerankRequest),
    "/v1/guard": Operation("guard", "Whether an output may be shown, within a time budget", GuardVerdict, GuardRequest),
    "/v1/metrics": Operation("metrics", "The metrics and limits of the service", MetricsResponse),
    "/openapi.json": Operation("openapi", "This document", None),
    "/metrics": Operation(
        "counters", "Counters in Prometheus' text format", None, media_type="text/plain; version=0.0.4"
    ),
    "/healthz": Operation("health", "Whether the process works", StatusResponse, public=True),
    "/readyz": Operation("readiness", "Whether the service is ready to score", StatusResponse, public=True),
}
_ERRORS = {
    "400": "The body is no JSON",
    "408": "The body did not arrive in time",
    "413": "The body, a record, or the number of records is too large",
    "415": "The body is not of application/json",
    "422": "The request does not make sense: see `field`",
    "429": "The service has too much to do: try again after Retry-After seconds",
    "502": "A metric failed as a whole",
    "504": "There was no answer within the time limit",
}


def describe_api(settings: ServiceSettings) -> dict[str, Any]:
    """Return the OpenAPI document of a service with these limits."""
    used: list[tuple[type[BaseModel], Any]] = [(ErrorResponse, "serialization")]
    for operation in OPERATIONS.values():
        used += [(operation.response, "serialization")] if operation.response else []
        used += [(operation.request, "validation")] if operation.request else []
    references, definitions = models_json_schema(used, ref_template="#/components/schemas/{model}")
    schemas = definitions["$defs"]
    for schema in schemas.values():
        for name in ("records", "pairs"):
            if "items" in schema.get("properties", {}).get(name, {}):
                schema["properties"][name]["maxItems"] = settings.max_records
    schemas["CompareRequest"]["properties"]["draws"]["maximum"] = settings.max_draws

    def describe_error(text: str) -> dict[str, Any]:
        schema = references[(ErrorResponse, "serialization")]
        return {"description": text, "content": {"application/json": {"schema": schema}}}

    def describe_operation(operation: Operation) -> dict[str, Any]:
        schema: Any = {"type": "object" if operation.media_type == "application/json" else "string"}
        if operation.response is not None:
            schema = references[(operation.response, "serialization")]
        content = {operation.media_type.partition(";")[0]: {"schema": schema}}
        if operation.streams:
            text = "One line per record, then {done, count}; or a last line {error}"
            content["application/x-ndjson"] = {"schema": {"type": "string", "description": text}}
        responses: dict[str, Any] = {"200": {"description": "Success", "content": content}}
        described: dict[str, Any] = {"operationId": operation.name, "summary": operation.summary}
        if operation.request is not None:
            body = {"application/json": {"schema": references[(operation.request, "validation")]}}
            described["requestBody"] = {"required": True, "content": body}
            responses |= {status: describe_error(text) for status, text in _ERRORS.items()}
            responses["429"]["headers"] = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds"}}
        if operation.public:
            described["security"] = []
            responses["503"] = describe_error("Not now")
        elif settings.tokens is not None:
            responses["401"] = describe_error("The token is missing or unknown")
        return {**described, "responses": responses}

    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "metrist",
            "version": __version__,
            "summary": "Score generated text, explain its errors, compare systems, guard outputs.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": {
            path: {"post" if operation.request else "get": describe_operation(operation)}
            for path, operation in OPERATIONS.items()
        },
        "components": {"schemas": schemas},
    }
    if settings.tokens is not None:
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
    return document
