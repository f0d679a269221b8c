"""`metrist serve`: metrics over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import typer

from metrist.cli.options import MAX_COST
from metrist.settings import setting

_MB = 1_000_000


def serve(
    metrics: list[str] = setting(
        ..., "A metric that requests can use; no other is available.", "-m", "--metric", metavar="SPEC"
    ),
    host: str = setting("127.0.0.1", "The address to listen on; any but loopback needs tokens.", metavar="ADDRESS"),
    port: int | None = setting(None, "The port.", metavar="N", min=0, max=65535, shown="8600 or a free one"),
    workers: int | None = setting(
        None,
        "Processes that answer; each loads the models.",
        metavar="N",
        min=1,
        max=64,
        shown="one per core, at most 4; 1 with models",
    ),
    tokens: Path | None = setting(
        None,
        "API tokens, one per line: TOKEN, NAME:TOKEN or NAME:sha256:HASH.",
        metavar="FILE",
        shown="those in METRIST_SERVE_TOKENS",
    ),
    anonymous: bool = setting(False, "Serve other machines without tokens: something in front checks users."),
    checks: list[str] | None = setting(
        None, "A check of /v1/guard, such as consistency>=0.5; repeatable.", "--guard", metavar="CHECK"
    ),
    guard_budget: float = setting(300, "Milliseconds in which /v1/guard answers.", metavar="MS", min=1),
    guard_policy: Literal["open", "closed"] = setting(
        "closed", "Whether an output passes whose checks miss the budget."
    ),
    max_body: float = setting(8, "Size of a request.", metavar="MB", min=0.001),
    max_records: int = setting(10_000, "Records of a request.", metavar="N", min=1),
    max_queue: int = setting(20_000, "Records that wait, per process; then 429.", "--queue", metavar="N", min=1),
    max_requests: int = setting(512, "Requests in progress, per process; then 429.", metavar="N", min=1),
    time_limit: float = setting(60, "Seconds until a request is given up.", metavar="S", min=0.1),
    batch_wait: float = setting(0, "Milliseconds to wait for a fuller batch.", metavar="MS", min=0),
    log: Literal["requests", "errors", "off"] = setting("requests", "What is logged, as JSON, without texts."),
    log_texts: bool = setting(False, "Log the bodies of requests that the service failed at."),
    otel: bool = setting(False, "Send OpenTelemetry spans (extra `otel`)."),
    grace: float = setting(60, "Seconds to end accepted requests after SIGTERM.", metavar="S", min=1),
    max_cost: float | None = MAX_COST,
) -> None:
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
        workers = 1 if has_model or not server.can_share_port() else min(4, count_cores())
    server.serve(metrics, settings, port=port, workers=workers, announce=lambda url: typer.echo(f"serving on {url}"))
