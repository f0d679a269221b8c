"""`metrist annotate`: people rate, compare, mark or review outputs in a browser."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from metrist.cli.options import TABLE_FORMAT, Format, Inputs, ReadingOptions
from metrist.errors import InputError
from metrist.settings import setting

if TYPE_CHECKING:
    from metrist.web.annotation.answers import Answers


#: Which outputs or pairs raters see.
PickName = Literal["random", "items", "system", "disagreement"]
#: How answers are exported.
ExportFormat = Literal["rows", "label-studio"]


def annotate(
    inputs: Inputs,
    *,
    schema: str | None = setting(
        None,
        "likert, pairwise, errors, questionnaire, a shipped rubric such as reliability (three aspects from 1 "
        "to 3), or a rubric's .toml file.",
        metavar="NAME_OR_FILE",
    ),
    out: Path | None = setting(None, "The new folder of the project.", "-o", metavar="FOLDER"),
    aspects: list[str] | None = setting(
        None,
        "A criterion to rate or choose by, or an aspect of the rubric or of errors; repeatable.",
        "--aspect",
        metavar="A",
        shown="overall; all of a rubric",
    ),
    points: int = setting(5, "Points of the Likert scale.", metavar="N", min=2),
    table: str | None = setting(
        None,
        "The aspects of errors to mark, as `metrist aspects` writes them.",
        "--error-table",
        metavar="FILE",
        shown="that of the task",
    ),
    count: int | None = setting(None, "Outputs or pairs to annotate, about.", "-n", metavar="N", min=1, shown="all"),
    pick: PickName = setting(
        "random",
        "Which: any; whole items; equally many of each system; whole items, those that metrics disagree about "
        "more often (needs a run).",
    ),
    run: str | None = setting(
        None,
        "A run folder, for --pick disagreement and for the explanations that the questionnaire asks about.",
        metavar="RUN",
    ),
    metrics: list[str] | None = setting(
        None, "The metrics of the run to use; repeatable.", "-m", "--metric", metavar="SPEC"
    ),
    systems: list[str] | None = setting(None, "Only outputs of these systems.", metavar="S", shown="all"),
    raters: list[str] | None = setting(
        None, "A rater, who gets a personal link; repeatable.", "--rater", metavar="NAME"
    ),
    number: int = setting(1, "Instead of names: raters r1 to rN.", "--raters", metavar="N", min=1),
    overlap: int | None = setting(None, "Raters who see the same item.", metavar="K", min=1, shown="all of them"),
    share: float = setting(1.0, "Share of the items that several raters see.", "--overlap-share", metavar="SHARE"),
    attention: list[str] | None = setting(
        None,
        "Attention items: records whose ratings, preferences or errors are the right answers; repeatable.",
        metavar="FILE",
    ),
    show_references: bool = setting(False, "Show raters the references, too."),
    seed: int = setting(0, "Seed of the sample and of all orders.", min=0),
    serve: bool = setting(True, "Whether to start the server, or only set the project up.", "--serve/--no-serve"),
    host: str = setting("127.0.0.1", "The address to listen on; 0.0.0.0 for other machines."),
    port: int | None = setting(None, "The port to listen on.", min=0, shown="8517, or a free one"),
    url: str | None = setting(None, "The address that raters use, if a proxy stands before the server.", metavar="URL"),
    add_raters: list[str] | None = setting(
        None,
        "Instead: add a rater to a project, also while its server runs; -n says with how many tasks.",
        "--add-rater",
        metavar="NAME",
    ),
    export: Path | None = setting(
        None, "Instead: write the answers of a project to a .jsonl file (or .json).", metavar="FILE"
    ),
    export_format: ExportFormat = setting("rows", "Rows that other commands read, or Label Studio's JSON."),
    min_attention: float = setting(
        0.0, "Export only raters who passed at least this share of their attention items.", metavar="SHARE"
    ),
    status: bool = setting(False, "Instead: print progress and agreement of a project."),
    reading: ReadingOptions,
    form: Format = TABLE_FORMAT,
) -> None:
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
