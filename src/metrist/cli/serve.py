"""`metrist serve`: metrics over HTTP."""

from __future__ import annotations

from pathlib import Path

import typer

from metrist.cli.options import MAX_COST
from metrist.settings import as_arguments, setting
from metrist.web.service.settings import ServiceOptions

_MB = 1_000_000


def serve(
    *,
    metrics: list[str] = setting(
        ..., "A metric that requests can use; no other is available.", "-m", "--metric", metavar="SPEC"
    ),
    options: ServiceOptions,
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
    checks: list[str] | None = setting(
        None, "A check of /v1/guard, such as consistency>=0.5; repeatable.", "--guard", metavar="CHECK"
    ),
    guard_budget: float = setting(300, "Milliseconds in which /v1/guard answers.", metavar="MS", min=1),
    max_body: float = setting(8, "Size of a request.", metavar="MB", min=0.001),
    batch_wait: float = setting(0, "Milliseconds to wait for a fuller batch.", metavar="MS", min=0),
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
        **as_arguments(options),
        tokens=read_tokens(tokens),
        max_body=round(max_body * _MB),
        batch_wait=batch_wait / 1000,
        checks=tuple(map(Check.parse, checks or ())),
        guard_budget=guard_budget / 1000,
        runtime={} if max_cost is None else {"max_cost": max_cost},
    )
    if workers is None:
        has_model = any(map(is_resident, build_all(metrics)))
        workers = 1 if has_model else min(4, count_cores())
    server.serve(metrics, settings, port=port, workers=workers, announce=lambda url: typer.echo(f"serving on {url}"))
