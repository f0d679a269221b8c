"""The OpenAPI document of the service, from the models that validate its requests."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from metrist._version import __version__
from metrist.web.service import models
from metrist.web.service.settings import ServiceSettings

_REFERENCE = "#/components/schemas/{model}"
_ERRORS = {
    "400": "The body is no JSON",
    "401": "The token is missing or unknown",
    "408": "The body did not arrive in time",
    "413": "The body, a record, or the number of records is too large",
    "415": "The body is not of application/json",
    "422": "The request does not make sense: see `field`",
    "429": "The service has too much to do: try again after Retry-After seconds",
    "502": "A metric failed as a whole",
    "504": "There was no answer within the time limit",
}
_POSTS: dict[str, tuple[str, str, type[BaseModel], type[BaseModel], bool]] = {
    "/v1/score": ("score", "Score outputs", models.ScoreRequest, models.ScoreResponse, True),
    "/v1/explain": ("explain", "Find the errors of outputs", models.ExplainRequest, models.ExplainResponse, True),
    "/v1/prefer": ("prefer", "Choose between two outputs", models.PreferRequest, models.PreferResponse, True),
    "/v1/compare": ("compare", "Test whether systems differ", models.CompareRequest, models.CompareResponse, False),
    "/v1/guard": (
        "guard",
        "Whether an output may be shown, within a time budget",
        models.GuardRequest,
        models.GuardResponse,
        False,
    ),
}


def describe_api(settings: ServiceSettings) -> dict[str, Any]:
    """Return the OpenAPI document of a service with these limits."""
    used: list[tuple[type[BaseModel], Any]] = [(models.ErrorResponse, "serialization")]
    used += [(models.MetricsResponse, "serialization"), (models.StatusResponse, "serialization")]
    for _, _, request, response, _ in _POSTS.values():
        used += [(request, "validation"), (response, "serialization")]
    references, definitions = models_json_schema(used, ref_template=_REFERENCE)
    schemas = definitions["$defs"]
    for schema in schemas.values():
        for name in ("records", "pairs"):
            if "items" in schema.get("properties", {}).get(name, {}):
                schema["properties"][name]["maxItems"] = settings.max_records
    schemas["CompareRequest"]["properties"]["draws"]["maximum"] = settings.max_draws

    def refer(model: type[BaseModel], mode: Any) -> dict[str, Any]:
        return {"application/json": {"schema": references[(model, mode)]}}

    def fail(text: str) -> dict[str, Any]:
        return {"description": text, "content": refer(models.ErrorResponse, "serialization")}

    shared = {"401": fail(_ERRORS["401"])} if settings.tokens is not None else {}
    paths: dict[str, Any] = {}
    for path, (name, summary, request, response, streams) in _POSTS.items():
        content = refer(response, "serialization")
        if streams:
            text = "One line per record, then {done, count}; or a last line {error}"
            content["application/x-ndjson"] = {"schema": {"type": "string", "description": text}}
        errors = {status: fail(text) for status, text in _ERRORS.items() if status != "401"}
        errors["429"]["headers"] = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds"}}
        paths[path] = {
            "post": {
                "operationId": name,
                "summary": summary,
                "requestBody": {"required": True, "content": refer(request, "validation")},
                "responses": {"200": {"description": "Success", "content": content}, **errors, **shared},
            }
        }
    plain = {"text/plain": {"schema": {"type": "string"}}}
    status = refer(models.StatusResponse, "serialization")
    gets: dict[str, tuple[str, str, Any, bool]] = {
        "/v1/metrics": (
            "metrics",
            "The metrics and limits of the service",
            refer(models.MetricsResponse, "serialization"),
            False,
        ),
        "/openapi.json": ("openapi", "This document", {"application/json": {"schema": {"type": "object"}}}, False),
        "/metrics": ("counters", "Counters in Prometheus' text format", plain, False),
        "/healthz": ("health", "Whether the process works", status, True),
        "/readyz": ("readiness", "Whether the service is ready to score", status, True),
    }
    for path, (name, summary, content, public) in gets.items():
        operation: dict[str, Any] = {
            "operationId": name,
            "summary": summary,
            "responses": {"200": {"description": "Success", "content": content}, **({} if public else shared)},
        }
        if public:
            operation["security"] = []
            operation["responses"]["503"] = fail("Not now")
        paths[path] = {"get": operation}
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "metrist",
            "version": __version__,
            "summary": "Score generated text, explain its errors, compare systems, guard outputs.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {"schemas": schemas},
    }
    if settings.tokens is not None:
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
    return document
