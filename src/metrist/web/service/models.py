"""Bodies of requests and answers. The same classes validate requests and make the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

Text = Annotated[str, Field(description="A text")]
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


class _Body(BaseModel):
    # Unknown fields are refused: a misspelt field would silently do nothing.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)


class Context(_Body):
    """What an output was made from, was asked to do, and should resemble."""

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
    metrics: Annotated[list[MetricName], Field(min_length=1, max_length=100)] | None = Field(
        None, description="By default all metrics of the service that call no LLM"
    )
    details: bool = Field(False, description="Whether scores come with parts, errors and explanations")
    stream: bool = Field(False, description="Answer with one line of JSON per record (NDJSON), as they are scored")


class ExplainRequest(_Body):
    records: Annotated[list[RecordBody], Field(min_length=1)]
    metric: MetricName | None = Field(None, description="A metric that reports errors or reasons; by default the first")
    stream: bool = False


class PreferRequest(_Body):
    pairs: Annotated[list[PairBody], Field(min_length=1)]
    metrics: Annotated[list[MetricName], Field(min_length=1, max_length=100)] | None = Field(
        None, description="Comparators, or metrics whose better score wins; by default all that call no LLM"
    )
    stream: bool = False


class CompareRequest(_Body):
    records: Annotated[list[RecordBody], Field(min_length=1, description="Outputs of at least two systems")]
    metrics: Annotated[list[MetricName], Field(min_length=1, max_length=100)] | None = None
    baseline: Name | None = None
    test: Literal["both", "bootstrap", "randomisation"] = "both"
    draws: Annotated[int, Field(ge=1, le=1_000_000)] = 2000
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    alpha: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)] = 0.05


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
    model_config = ConfigDict(extra="forbid")


class FailureBody(_Answer):
    kind: str = Field(description="One of a closed set, such as missing_input")
    message: str


class ErrorMark(_Answer):
    """One mistake in an output; `start` and `end` count characters."""

    aspect: str
    severity: str | None
    penalty: float | None = None
    explanation: str = ""
    revision: str = ""
    text: str = ""
    start: int | None = None
    end: int | None = None
    side: Literal["output", "source"] = "output"
    rater: str | None = None
    source_start: int | None = None
    source_end: int | None = None


class ScoreBody(_Answer):
    value: float | None = Field(description="null exactly where there is a failure")
    failure: FailureBody | None = None
    parts: dict[str, float | None] | None = None
    errors: list[ErrorMark] | None = None
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


class JudgmentBody(_Answer):
    preference: Literal["first", "second", "tie"] | None
    explanation: str | None = None
    flipped: bool | None = None
    failure: FailureBody | None = None


class JudgedPair(_Answer):
    item: str
    first_system: str
    second_system: str
    judgments: dict[str, JudgmentBody]


class PreferResponse(_Answer):
    results: list[JudgedPair] = Field(description="One per pair, in their order")


class ContestBody(BaseModel):
    """Two systems under one metric. Differences are first minus second; p-values are by the test's name."""

    model_config = ConfigDict(extra="allow")

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


class CompareResponse(BaseModel):
    model_config = ConfigDict(extra="allow")

    contests: list[ContestBody]
    systems: list[dict[str, Any]]
    signatures: dict[str, str]
    notes: list[str]


class CheckResult(_Answer):
    metric: str
    min: float | None = None
    max: float | None = None
    value: float | None = None
    result: Literal["pass", "fail", "late", "unscored", "skipped"] = Field(
        description="'skipped': another check had failed already"
    )
    failure: FailureBody | None = None
    errors: list[ErrorMark] | None = None


class GuardResponse(_Answer):
    verdict: Literal["pass", "fail"]
    decided_by: Literal["checks", "policy"] = Field(description="'policy': a check had no result in time, or no value")
    reasons: list[str] = Field(description="Why the output fails, or what the policy lets pass; no texts")
    checks: list[CheckResult]
    policy: Literal["open", "closed"]
    budget_ms: float
    elapsed_ms: float


class MetricBody(_Answer):
    name: str
    text: str
    signature: str
    needs: list[str]
    higher_is_better: bool | None
    low: float | None
    high: float | None
    explains: bool = Field(description="Whether POST /v1/explain takes it")
    scores: bool = Field(description="Whether POST /v1/score takes it: a comparator only compares")
    compares: bool = Field(description="Whether POST /v1/prefer takes it")
    calls_llm: bool


class MetricsResponse(_Answer):
    version: str
    metrics: list[MetricBody]
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


SCORE = TypeAdapter(ScoreRequest)
EXPLAIN = TypeAdapter(ExplainRequest)
PREFER = TypeAdapter(PreferRequest)
COMPARE = TypeAdapter(CompareRequest)
GUARD = TypeAdapter(GuardRequest)
