"""`metrist annotate`: people rate, compare, mark or review outputs in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from metrist.cli.options import TABLE_FORMAT, Format, Inputs, Names, ReadingOptions
from metrist.errors import InputError
from metrist.settings import as_arguments, list_changed, setting
from metrist.web.annotation.plan import ProjectPlan

if TYPE_CHECKING:
    from metrist.web.annotation.answers import Answers


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
        others = {"schema": schema, "out": out, "raters": raters, "number": number != 1}
        for name in [*list_changed(plan), *(name for name, value in others.items() if value)]:
            if name == "count" and add_raters:  # How many tasks the new rater gets.
                continue
            hint = "; --add-rater adds one" if name in ("raters", "number") else ""
            raise InputError(f"{inputs[0]} is a project, which is set up already: leave `{name}` out{hint}")
        project = open_project(inputs[0])
    else:
        if export is not None or status or add_raters:
            raise InputError(f"--export, --status and --add-rater need the folder of a project; {inputs[0]} is none")
        if schema is None or out is None:
            raise InputError("a new project needs --schema (likert, pairwise, errors, …) and a folder: -o FOLDER")
        from metrist.web.annotation.setup import set_up

        reading.check_system([str(source) for source in inputs])
        project = set_up(out, inputs, schema, raters=raters or number, **as_arguments(plan), **reading.keywords())
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
                added = answers.add_rater(name, plan.count)
                print_note(f"added {name} with {format_count(len(added.assignments), 'task')}")
            print_note(f"the owner's page and `metrist annotate {inputs[0]}` show the new link")
        elif status:
            _print_status(answers, form)
        elif serve:
            _serve(answers, host, port, url)


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
