"""`metrist view`: the outputs of runs in a browser, and a playground."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from metrist.cli.options import MAX_COST
from metrist.settings import setting


def view(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN…",
            help="Run folders, or .jsonl files that `metrist score` wrote; or URLs of run folders.",
            show_default="none: only the playground",
        ),
    ] = None,
    texts: list[str] | None = setting(None, "Files with the texts of a run.", metavar="FILE", shown="those it read"),
    metrics: list[str] | None = setting(
        None, "A further metric of the playground, such as a judge.", "-m", "--metric", metavar="SPEC"
    ),
    picks: Path = setting(
        Path("picked.jsonl"), "Where outputs that are sent to annotation are written.", metavar="FILE"
    ),
    host: str = setting(
        "127.0.0.1", "The address to listen on; any but this machine's needs a token.", metavar="ADDRESS"
    ),
    port: int | None = setting(None, "The port.", metavar="N", min=0, max=65535, shown="a free one"),
    open_browser: bool = setting(False, "Open the page in the browser.", "--open"),
    max_cost: float | None = MAX_COST,
) -> None:
    from metrist.cli.output import print_note
    from metrist.cli.progress import progress_bar
    from metrist.errors import RunError
    from metrist.io.writer import check_writable
    from metrist.web import check_installed

    check_installed("metrist view")
    from metrist.web.playground import Playground, offer_metrics
    from metrist.web.queries import Collection
    from metrist.web.server import create_app, grant_access, serve
    from metrist.web.viewed_run import open_view
    from metrist.web.viewer import Viewer

    if picks.suffix != ".jsonl":
        raise RunError(f"cannot write {picks}: the name must end in .jsonl")
    check_writable(picks)
    playground = Playground(
        metrics=offer_metrics(metrics) if metrics else None,
        limits={} if max_cost is None else {"max_cost": max_cost},
        with_viewer=bool(runs),
    )
    routes = playground.routes()
    collection = None
    if runs:
        with progress_bar("reading", "outputs") as progress:
            collection = Collection([open_view(run, texts or (), progress=progress, note=print_note) for run in runs])
        collection.prepare()
        routes += Viewer(collection=collection, picks=picks).routes()
    access = grant_access(host)

    def announce(address: str) -> None:
        typer.echo(f"{address}\nCtrl-C stops the server.")

    try:
        serve(
            create_app(routes, access),
            access,
            port=port,
            open_browser=open_browser,
            path="/" if runs else "/play",
            announce=announce,
        )
    finally:
        playground.close()
        if collection:
            collection.close()
