"""`metrist serve`: metrics over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from metrist.cli.options import MaxCost

_MB = 1_000_000


def serve(
    metrics: Annotated[
        list[str],
        typer.Option("-m", "--metric", metavar="SPEC", help="A metric that requests can use; no other is available."),
    ],
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="The address to listen on; any but loopback needs tokens.")
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option("--port", metavar="N", min=0, max=65535, help="The port.", show_default="8600 or a free one"),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            metavar="N",
            min=1,
            max=64,
            help="Processes that answer; each loads the models.",
            show_default="one per core, at most 4; 1 with models",
        ),
    ] = None,
    tokens: Annotated[
        Path | None,
        typer.Option(
            "--tokens",
            metavar="FILE",
            help="API tokens, one per line: TOKEN, NAME:TOKEN or NAME:sha256:HASH.",
            show_default="those in METRIST_SERVE_TOKENS",
        ),
    ] = None,
    anonymous: Annotated[
        bool,
        typer.Option("--anonymous", help="Serve other machines without tokens: something in front checks users."),
    ] = False,
    checks: Annotated[
        list[str] | None,
        typer.Option("--guard", metavar="CHECK", help="A check of /v1/guard, such as consistency>=0.5; repeatable."),
    ] = None,
    guard_budget: Annotated[
        float, typer.Option("--guard-budget", metavar="MS", min=1, help="Milliseconds in which /v1/guard answers.")
    ] = 300,
    guard_policy: Annotated[
        Literal["open", "closed"],
        typer.Option("--guard-policy", help="Whether an output passes whose checks miss the budget."),
    ] = "closed",
    max_body: Annotated[float, typer.Option("--max-body", metavar="MB", min=0.001, help="Size of a request.")] = 8,
    max_records: Annotated[
        int, typer.Option("--max-records", metavar="N", min=1, help="Records of a request.")
    ] = 10_000,
    max_queue: Annotated[
        int, typer.Option("--queue", metavar="N", min=1, help="Records that wait, per process; then 429.")
    ] = 20_000,
    max_requests: Annotated[
        int, typer.Option("--max-requests", metavar="N", min=1, help="Requests in progress, per process; then 429.")
    ] = 512,
    time_limit: Annotated[
        float, typer.Option("--time-limit", metavar="S", min=0.1, help="Seconds until a request is given up.")
    ] = 60,
    batch_wait: Annotated[
        float, typer.Option("--batch-wait", metavar="MS", min=0, help="Milliseconds to wait for a fuller batch.")
    ] = 0,
    log: Annotated[
        Literal["requests", "errors", "off"], typer.Option("--log", help="What is logged, as JSON, without texts.")
    ] = "requests",
    log_texts: Annotated[
        bool, typer.Option("--log-texts", help="Log the bodies of requests that the service failed at.")
    ] = False,
    otel: Annotated[bool, typer.Option("--otel", help="Send OpenTelemetry spans (extra `otel`).")] = False,
    grace: Annotated[
        float, typer.Option("--grace", metavar="S", min=1, help="Seconds to end accepted requests after SIGTERM.")
    ] = 60,
    max_cost: MaxCost = None,
) -> None:
    """Score, explain, compare and guard outputs over HTTP: a JSON API with tokens, limits and health checks."""
    from metrist.web.service import check_installed

    check_installed()
    from metrist.metrics.base import is_resident
    from metrist.metrics.registry import build_all
    from metrist.runtime import count_cores
    from metrist.web.service import server
    from metrist.web.service.settings import Check, ServiceSettings, read_tokens

    settings = ServiceSettings(
        host=host,
        tokens=read_tokens(tokens),
        anonymous=anonymous,
        max_body=round(max_body * _MB),
        max_records=max_records,
        max_queue=max_queue,
        max_requests=max_requests,
        time_limit=time_limit,
        batch_wait=batch_wait / 1000,
        checks=tuple(map(Check.parse, checks or ())),
        guard_budget=guard_budget / 1000,
        guard_policy=guard_policy,
        log=log,
        log_texts=log_texts,
        otel=otel,
        grace=grace,
        runtime={} if max_cost is None else {"max_cost": max_cost},
    )
    if workers is None:
        has_model = any(map(is_resident, build_all(metrics)))
        workers = 1 if has_model else min(4, count_cores())
    server.serve(metrics, settings, port=port, workers=workers, announce=lambda url: typer.echo(f"serving on {url}"))
