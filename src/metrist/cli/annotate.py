"""`metrist annotate`: people rate, compare, mark or review outputs in a browser."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from metrist.cli.options import Format, Inputs, ReadingOptions, TableFormat, expand_options
from metrist.errors import InputError

if TYPE_CHECKING:
    from metrist.web.annotation.answers import Answers


#: Which outputs or pairs raters see.
PickName = Literal["random", "items", "system", "disagreement"]
#: How answers are exported.
ExportFormat = Literal["rows", "label-studio"]


@expand_options
def annotate(
    inputs: Inputs,
    *,
    schema: Annotated[
        str | None,
        typer.Option(
            "--schema",
            metavar="NAME_OR_FILE",
            help="likert, pairwise, errors, questionnaire, a shipped rubric such as reliability (three aspects from 1 "
            "to 3), or a rubric's .toml file.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FOLDER", help="The new folder of the project.")
    ] = None,
    aspects: Annotated[
        list[str] | None,
        typer.Option(
            "--aspect",
            metavar="A",
            help="A criterion to rate or choose by, or an aspect of the rubric or of errors; repeatable.",
            show_default="overall; all of a rubric",
        ),
    ] = None,
    points: Annotated[int, typer.Option("--points", metavar="N", min=2, help="Points of the Likert scale.")] = 5,
    table: Annotated[
        str | None,
        typer.Option(
            "--error-table",
            metavar="FILE",
            help="The aspects of errors to mark, as `metrist aspects` writes them.",
            show_default="that of the task",
        ),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(
            "-n", "--count", metavar="N", min=1, help="Outputs or pairs to annotate, about.", show_default="all"
        ),
    ] = None,
    pick: Annotated[
        PickName,
        typer.Option(
            "--pick",
            help="Which: any; whole items; equally many of each system; whole items, those that metrics disagree about "
            "more often (needs a run).",
        ),
    ] = "random",
    run: Annotated[
        str | None,
        typer.Option(
            "--run",
            metavar="RUN",
            help="A run folder, for --pick disagreement and for the explanations that the questionnaire asks about.",
        ),
    ] = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option("-m", "--metric", metavar="SPEC", help="The metrics of the run to use; repeatable."),
    ] = None,
    systems: Annotated[
        list[str] | None,
        typer.Option("--systems", metavar="S", help="Only outputs of these systems.", show_default="all"),
    ] = None,
    raters: Annotated[
        list[str] | None,
        typer.Option("--rater", metavar="NAME", help="A rater, who gets a personal link; repeatable."),
    ] = None,
    number: Annotated[int, typer.Option("--raters", metavar="N", min=1, help="Instead of names: raters r1 to rN.")] = 1,
    overlap: Annotated[
        int | None,
        typer.Option("--overlap", metavar="K", min=1, help="Raters who see the same item.", show_default="all of them"),
    ] = None,
    share: Annotated[
        float,
        typer.Option("--overlap-share", metavar="SHARE", help="Share of the items that several raters see."),
    ] = 1.0,
    attention: Annotated[
        list[str] | None,
        typer.Option(
            "--attention",
            metavar="FILE",
            help="Attention items: records whose ratings, preferences or errors are the right answers; repeatable.",
        ),
    ] = None,
    show_references: Annotated[
        bool, typer.Option("--show-references", help="Show raters the references, too.")
    ] = False,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the sample and of all orders.")] = 0,
    serve: Annotated[
        bool, typer.Option("--serve/--no-serve", help="Whether to start the server, or only set the project up.")
    ] = True,
    host: Annotated[str, typer.Option("--host", help="The address to listen on; 0.0.0.0 for other machines.")] = (
        "127.0.0.1"
    ),
    port: Annotated[
        int | None, typer.Option("--port", min=0, help="The port to listen on.", show_default="8517, or a free one")
    ] = None,
    url: Annotated[
        str | None,
        typer.Option("--url", metavar="URL", help="The address that raters use, if a proxy stands before the server."),
    ] = None,
    add_raters: Annotated[
        list[str] | None,
        typer.Option(
            "--add-rater",
            metavar="NAME",
            help="Instead: add a rater to a project, also while its server runs; -n says with how many tasks.",
        ),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(
            "--export", metavar="FILE", help="Instead: write the answers of a project to a .jsonl file (or .json)."
        ),
    ] = None,
    export_format: Annotated[
        ExportFormat,
        typer.Option("--export-format", help="Rows that other commands read, or Label Studio's JSON."),
    ] = "rows",
    min_attention: Annotated[
        float,
        typer.Option(
            "--min-attention",
            metavar="SHARE",
            help="Export only raters who passed at least this share of their attention items.",
        ),
    ] = 0.0,
    status: Annotated[
        bool, typer.Option("--status", help="Instead: print progress and agreement of a project.")
    ] = False,
    reading: ReadingOptions,
    form: TableFormat = "text",
) -> None:
    """Let people rate, compare or mark outputs in a browser; a project's folder instead of files goes on."""
    from metrist.cli.output import print_note
    from metrist.errors import format_count
    from metrist.web import check_installed
    from metrist.web.annotation.project import is_project, open_project

    check_installed("annotate")
    if len(inputs) == 1 and is_project(inputs[0]):
        _refuse_options(
            inputs[0],
            {
                "--schema": schema is not None,
                "--out": out is not None,
                "--aspect": bool(aspects),
                "--points": points != 5,
                "--error-table": table is not None,
                "--count": count is not None and not add_raters,
                "--pick": pick != "random",
                "--run": run is not None,
                "--metric": bool(metrics),
                "--systems": bool(systems),
                "--rater": bool(raters),
                "--raters": number != 1,
                "--overlap": overlap is not None,
                "--overlap-share": share != 1.0,
                "--attention": bool(attention),
                "--show-references": show_references,
                "--seed": seed != 0,
            },
        )
        project = open_project(inputs[0])
    else:
        if export is not None or status or add_raters:
            raise InputError(f"--export, --status and --add-rater need the folder of a project; {inputs[0]} is none")
        if schema is None or out is None:
            raise InputError("a new project needs --schema (likert, pairwise, errors, …) and a folder: -o FOLDER")
        from metrist.web.annotation.setup import set_up

        reading.check_system([str(source) for source in inputs])
        project = set_up(
            out,
            inputs,
            schema,
            raters=raters or number,
            aspects=aspects or (),
            points=points,
            table=table,
            count=count,
            pick=pick,
            run=run,
            metrics=metrics or (),
            systems=systems or (),
            overlap=overlap,
            share=share,
            attention=attention or (),
            show_references=show_references,
            seed=seed,
            **reading.keywords(),
        )
        tasks = format_count(len(project.tasks), "task")
        print_note(f"set up {tasks} for {format_count(len(project.raters), 'rater')} in {out}")
    from metrist.web.annotation.answers import Answers

    with project.open_store() if export is None else project.read_store() as store:
        answers = Answers(project, store)
        if export is not None:
            from metrist.web.annotation.export import write_export

            rows = write_export(answers, export, export_format, min_attention=min_attention)
            print_note(f"wrote {format_count(rows, 'row')} to {export}")
        elif add_raters:
            for name in add_raters:
                added = answers.add_rater(name, count)
                print_note(f"added {name} with {format_count(len(added.assignments), 'task')}")
            print_note(f"the owner's page and `metrist annotate {inputs[0]}` show the new link")
        elif status:
            _print_status(answers, form)
        elif serve:
            _serve(answers, host, port, url)


def _refuse_options(folder: str, given: Mapping[str, bool]) -> None:
    """Raise InputError if an option was given that says how a project is set up: this one is already."""
    for option, is_given in given.items():
        if is_given:
            hint = "; --add-rater adds one" if option.startswith("--rater") else ""
            raise InputError(f"{folder} is a project, which is set up already: leave {option} out{hint}")


def _print_status(answers: Answers, form: Format) -> None:
    from metrist.cli.output import print_tables
    from metrist.report.tables import Column, Table
    from metrist.web.annotation.app import describe_progress

    progress = Table(
        title="Progress",
        columns=[Column("rater"), *(Column(name, "right") for name in ("done", "tasks", "attention passed"))],
        rows=describe_progress(answers),
    )
    rows = [
        [
            row["name"],
            "" if row["alpha"] is None else f"{row['alpha']:.3f}",
            row["scale"],
            row["tasks"],
            row["failure"] or "",
        ]
        for row in answers.agreement()
    ]
    agreement = Table(
        title="Agreement (Krippendorff's alpha)",
        columns=[
            Column("question"),
            Column("alpha", "right"),
            Column("scale"),
            Column("tasks", "right"),
            Column("remark"),
        ],
        rows=rows,
    )
    print_tables([progress, agreement], form)


def _serve(answers: Answers, host: str, port: int | None, url: str | None) -> None:
    from metrist.cli.output import print_note, print_text
    from metrist.web.annotation.app import create_annotation_app, describe_links, grant_project_access
    from metrist.web.server import serve

    access = grant_project_access(answers, host, url)

    def announce(address: str) -> None:
        base = address.partition("?")[0] if url is None else f"{url.rstrip('/')}/"
        for line in describe_links(answers.project, base):
            print_text(line)
        print_note("each link is personal; Ctrl-C stops the server, and the same folder goes on where it stopped")

    serve(create_annotation_app(answers, access), access, port=port, announce=announce)
