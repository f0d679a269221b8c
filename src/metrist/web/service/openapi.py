"""The OpenAPI document of the service, from the models that validate its requests."""

from __future__ import annotations

from typing import Any, NamedTuple

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from metrist._version import __version__
from metrist.web.service import models
from metrist.web.service.settings import ServiceSettings


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
    "/v1/score": Operation("score", "Score outputs", models.ScoreResponse, models.ScoreRequest, streams=True),
    "/v1/explain": Operation(
        "explain", "Find the errors of outputs", models.ExplainResponse, models.ExplainRequest, streams=True
    ),
    "/v1/prefer": Operation(
        "prefer", "Choose between two outputs", models.PreferResponse, models.PreferRequest, streams=True
    ),
    "/v1/compare": Operation("compare", "Test whether systems differ", models.ServedComparison, models.CompareRequest),
    "/v1/guard": Operation(
        "guard", "Whether an output may be shown, within a time budget", models.GuardVerdict, models.GuardRequest
    ),
    "/v1/metrics": Operation("metrics", "The metrics and limits of the service", models.MetricsResponse),
    "/openapi.json": Operation("openapi", "This document", None),
    "/metrics": Operation(
        "counters", "Counters in Prometheus' text format", None, media_type="text/plain; version=0.0.4"
    ),
    "/healthz": Operation("health", "Whether the process works", models.StatusResponse, public=True),
    "/readyz": Operation("readiness", "Whether the service is ready to score", models.StatusResponse, public=True),
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
    used: list[tuple[type[BaseModel], Any]] = [(models.ErrorResponse, "serialization")]
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
        schema = references[(models.ErrorResponse, "serialization")]
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
