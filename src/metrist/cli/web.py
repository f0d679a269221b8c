"""`metrist view`, `metrist annotate` and `metrist serve`: pages in a browser, and metrics over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from metrist.cli.options import MAX_COST, TABLE_FORMAT, Format, Inputs, Names, ReadingOptions
from metrist.cli.output import print_note, print_tables, print_text, progress_bar
from metrist.errors import InputError
from metrist.settings import as_arguments, list_changed, setting
from metrist.web.annotation.plan import ProjectPlan
from metrist.web.service.settings import ServiceOptions

if TYPE_CHECKING:
    from metrist.report.tables import Table
    from metrist.web.annotation.answers import Answers


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
    from metrist.errors import RunError
    from metrist.io.writer import check_writable
    from metrist.web import check_installed

    check_installed("metrist view")
    from metrist.web.playground import Playground, offer_metrics
    from metrist.web.server import create_app, grant_access, serve
    from metrist.web.viewed_run import open_view
    from metrist.web.viewer import Collection, Viewer

    if picks.suffix != ".jsonl":
        raise RunError(f"cannot write {picks}: the name must end in .jsonl", code="cannot_write")
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


#: How answers are exported.
ExportFormat = Literal["rows", "disputes", "label-studio"]
#: Disputed tasks that --status prints.
_SHOWN_DISPUTES = 20


def annotate(
    inputs: Inputs,
    *,
    schemas: Names = setting(
        (),
        "likert, pairwise, errors, questionnaire, a shipped rubric such as reliability (three aspects from 1 "
        "to 3), or a rubric's .toml file; repeatable: ratings and errors, or choices and errors, at once.",
        "--schema",
        metavar="NAME_OR_FILE",
    ),
    out: Path | None = setting(None, "The new folder of the project.", "-o", metavar="FOLDER"),
    plan: ProjectPlan,
    raters: Names = setting((), "A rater, who gets a personal link; repeatable.", "--rater", metavar="NAME"),
    number: int = setting(1, "Instead of names: raters r1 to rN.", "--raters", metavar="N", min=1),
    serve: bool = setting(True, "Whether to start the server, or only set the project up.", "--serve/--no-serve"),
    host: str = setting("127.0.0.1", "The address to listen on; 0.0.0.0 for other machines."),
    port: int | None = setting(None, "The port to listen on.", min=0, shown="8517, or a free one"),
    url: str | None = setting(None, "The address that raters use, if a proxy stands before the server.", metavar="URL"),
    add_raters: Names = setting(
        (),
        "Instead: add a rater to a project, also while its server runs; -n says with how many tasks.",
        "--add-rater",
        metavar="NAME",
    ),
    export: Path | None = setting(
        None, "Instead: write the answers of a project to a .jsonl file (or .json).", metavar="FILE"
    ),
    export_format: ExportFormat = setting(
        "rows",
        "Rows that other commands read; the tasks that raters dispute, with each one's answer; or Label Studio's JSON.",
    ),
    min_attention: float = setting(
        0.0, "Export only raters who passed at least this share of their attention items.", metavar="SHARE"
    ),
    status: bool = setting(False, "Instead: print progress, agreement and disputed tasks of a project."),
    reading: ReadingOptions,
    form: Format = TABLE_FORMAT,
) -> None:
    from metrist.errors import format_count
    from metrist.web import check_installed
    from metrist.web.annotation.project import is_project, open_project

    check_installed("annotate")
    if len(inputs) == 1 and is_project(inputs[0]):
        others = {"schema": schemas, "out": out, "raters": raters, "number": number != 1}
        for name in [*list_changed(plan), *(name for name, value in others.items() if value)]:
            if name == "count" and add_raters:  # How many tasks the new rater gets.
                continue
            hint = "; --add-rater adds one" if name in ("raters", "number") else ""
            raise InputError(f"{inputs[0]} is a project, which is set up already: leave `{name}` out{hint}")
        project = open_project(inputs[0])
    else:
        if export is not None or status or add_raters:
            raise InputError(
                f"--export, --status and --add-rater need the folder of a project; {inputs[0]} is none",
                code="missing_value",
            )
        if not schemas or out is None:
            raise InputError(
                "a new project needs --schema (likert, pairwise, errors, …) and a folder: -o FOLDER",
                code="missing_value",
            )
        from metrist.web.annotation.estimates import FIRST_TASKS
        from metrist.web.annotation.setup import set_up

        reading.check_system([str(source) for source in inputs])
        project = set_up(out, inputs, schemas, raters=raters or number, **as_arguments(plan), **reading.keywords())
        tasks = format_count(len(project.tasks), "task")
        print_note(f"set up {tasks} for {format_count(len(project.raters), 'rater')} in {out}")
        if plan.order == "informative" and len(project.sampled_tasks) <= FIRST_TASKS:
            print_note(
                f"--next informative orders what comes after the first {FIRST_TASKS}; there is nothing after them"
            )
    from metrist.web.annotation.answers import Answers

    with project.open_store() if export is None else project.read_store() as store:
        answers = Answers(project, store)
        if export is not None:
            from metrist.web.annotation.export import write_export

            rows = write_export(answers, export, export_format, min_attention=min_attention)
            print_note(f"wrote {format_count(rows, 'row')} to {export}")
        elif add_raters:
            for name in add_raters:
                added = answers.add_rater(name, plan.count)
                print_note(f"added {name} with {format_count(len(added.assignments), 'task')}")
            print_note(f"the owner's page and `metrist annotate {inputs[0]}` show the new link")
        elif status:
            _print_status(answers, form)
        elif serve:
            _serve(answers, host, port, url)


def _print_status(answers: Answers, form: Format) -> None:
    from metrist.report.tables import Column, Table, name_columns
    from metrist.web.annotation.answers import ALPHA_NOTE
    from metrist.web.annotation.export import attention_share

    answers.refresh()
    rows = []
    for rater in answers.project.raters:
        done, total = answers.progress(rater.name)
        _, seen = answers.attention(rater.name)
        rows.append([rater.name, str(done), str(total), f"{attention_share(answers, rater.name):.0%}" if seen else ""])
    columns = name_columns("rater", right=("done", "tasks", "attention passed"))
    progress = Table(title="Progress", columns=columns, rows=rows)
    agreement = Table(
        title="Agreement (Krippendorff's alpha)",
        columns=[
            Column("question"),
            Column("alpha", "right"),
            Column("scale"),
            Column("tasks", "right"),
            Column("remark"),
        ],
        rows=[
            [
                row["name"],
                "" if row["alpha"] is None else f"{row['alpha']:.3f}",
                row["scale"],
                row["tasks"],
                row["failure"] or "",
            ]
            for row in answers.agreement()
        ],
        notes=[ALPHA_NOTE],
    )
    print_tables([progress, *_list_means(answers), agreement, *_list_disputes(answers)], form)


def _list_means(answers: Answers) -> list[Table]:
    from metrist.report.tables import Estimate, Table, name_columns
    from metrist.web.annotation.estimates import describe_means, estimate_ratings

    means = [mean for mean in estimate_ratings(answers) if mean.rated]
    if not means:
        return []
    is_pairwise = answers.project.schema.kind == "pairwise"
    title, column = ("Win rates", "win rate") if is_pairwise else ("Mean ratings", "mean")
    return [
        Table(
            title=title,
            columns=name_columns("question", "system", right=(column, "rated", "of")),
            rows=[
                [mean.question, mean.system, Estimate(mean.value, mean.low, mean.high), mean.rated, mean.outputs]
                for mean in means
            ],
            notes=describe_means(answers, means),
        )
    ]


def _list_disputes(answers: Answers) -> list[Table]:
    from metrist.report.tables import Column, Table
    from metrist.web.annotation.answers import Disputes, describe_dispute

    disputes = Disputes(answers).find()
    if not disputes:
        return []
    notes = [
        "Disagreement is the mean distance of two raters' answers, about the question that they disagree about most."
    ]
    if len(disputes) > _SHOWN_DISPUTES:
        notes.append(f"{len(disputes) - _SHOWN_DISPUTES:,} more: --export FILE --export-format disputes writes all.")
    return [
        Table(
            title="Disputed tasks",
            columns=[Column("item"), Column("system"), Column("disagreement", "right"), Column("answers")],
            rows=[
                [
                    own.task.item,
                    ", ".join(record.system for record in own.task.records),
                    f"{own.disagreement:.2f}",
                    describe_dispute(answers, own),
                ]
                for own in disputes[:_SHOWN_DISPUTES]
            ],
            notes=notes,
        )
    ]


def _serve(answers: Answers, host: str, port: int | None, url: str | None) -> None:
    from metrist.web.annotation.app import create_annotation_app, grant_project_access
    from metrist.web.server import serve

    access = grant_project_access(answers, host, url)

    def announce(address: str) -> None:
        base = address.partition("?")[0] if url is None else f"{url.rstrip('/')}/"
        print_text(f"owner: {base}?token={answers.project.owner_token}")
        for rater in answers.project.raters:
            print_text(f"{rater.name}: {base}?token={rater.token}")
        print_note("each link is personal; Ctrl-C stops the server, and the same folder goes on where it stopped")

    serve(create_annotation_app(answers, access), access, port=port, announce=announce)


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
    guard_budget: float | None = setting(
        None,
        "Milliseconds in which /v1/guard answers.",
        metavar="MS",
        min=1,
        shown="300, or more where 4,000 characters need it",
    ),
    max_body: float = setting(8, "Size of a request.", metavar="MB", min=0.001),
    batch_wait: float = setting(0, "Milliseconds to wait for a fuller batch.", metavar="MS", min=0),
    max_cost: float | None = MAX_COST,
) -> None:
    from metrist.web import check_installed

    check_installed("metrist serve", "serve")
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
        guard_budget=None if guard_budget is None else guard_budget / 1000,
        runtime={} if max_cost is None else {"max_cost": max_cost},
    )
    if workers is None:
        has_model = any(map(is_resident, build_all(metrics)))
        workers = 1 if has_model else min(4, count_cores())
    server.serve(metrics, settings, port=port, workers=workers, announce=lambda url: typer.echo(f"serving on {url}"))
