"""`metrist convert` and `export`: records from other formats, runs of older versions, and runs as flat files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from metrist.cli.options import parse_pairs
from metrist.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator


#: A format that need not be detected.
Kind = Literal["bartscore", "alpaca_eval", "mt_metrics_eval", "label_studio"]


def convert(
    out: Annotated[
        Path,
        typer.Option("-o", "--out", help="The file to write: .jsonl, also .jsonl.gz, .xz or .zst; a folder for a run."),
    ],
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[IN…]",
            help="JSON of BARTScore, AlpacaEval or Label Studio, an mt-metrics-eval folder, or a run folder of an "
            "earlier version.",
        ),
    ] = None,
    source: Annotated[Path | None, typer.Option("--source", help="Line file of sources.")] = None,
    reference: Annotated[
        list[Path] | None, typer.Option("--reference", help="Line file of references; repeatable.")
    ] = None,
    output: Annotated[
        list[str] | None,
        typer.Option("--output", metavar="SYSTEM=FILE", help="A system's line file; repeatable."),
    ] = None,
    kind: Annotated[Kind | None, typer.Option("--kind", help="The format of IN.", show_default="detected")] = None,
    system: Annotated[str | None, typer.Option("--system", help="The system's name, for outputs without one.")] = None,
    task: Annotated[str | None, typer.Option("--task", help="The task of all records.")] = None,
    language: Annotated[str | None, typer.Option("--language", help="The language of all records.")] = None,
    rating: Annotated[
        list[str] | None,
        typer.Option(
            "--rating", help="BARTScore: a score given by people; repeatable.", show_default="the known names"
        ),
    ] = None,
    take: Annotated[
        list[str] | None,
        typer.Option(
            "--take-reference",
            help="mt-metrics-eval: a reference to use, such as refA; repeatable.",
            show_default="all",
        ),
    ] = None,
) -> None:
    """Convert other tools' files to records: line files, BARTScore, AlpacaEval, mt-metrics-eval, Label Studio. A run
    folder of an earlier version becomes a run."""
    from metrist.cli.output import format_count, print_note
    from metrist.io import convert as formats
    from metrist.run.store import is_run_folder

    if paths and any(map(is_run_folder, (paths[0], paths[0] / "preferences" / "shards"))):
        if len(paths) > 1:
            raise InputError("runs are converted one at a time, each into a folder of its own")
        from metrist.run.convert import convert_run

        for line in convert_run(paths[0], out).describe():
            print_note(line)
        return
    rows: Iterator[dict[str, Any]]
    if output:
        if paths:
            raise InputError("give either files to convert or line files with --output, not both")
        files = parse_pairs(output, "--output")
        rows = formats.line_files(files, source=source, references=reference or [], task=task, language=language)
    else:
        if source or reference:
            raise InputError("--source and --reference need --output SYSTEM=FILE")
        rows = formats.convert(
            *(paths or []),
            kind=kind,
            system=system,
            task=task,
            language=language,
            ratings=rating,
            references=take,
        )
    print_note(f"wrote {format_count(formats.write_rows(rows, out), 'row')} to {out}")


def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder, or its URL.")],
    out: Annotated[
        Path, typer.Option("-o", "--out", help="The file to write: .jsonl, .csv or .parquet, also compressed.")
    ],
) -> None:
    """Write a run folder as one flat file: a line per item, system and metric."""
    from metrist.cli.output import format_count, print_note
    from metrist.cli.progress import progress_bar
    from metrist.run import export as export_run

    with progress_bar("writing") as progress:
        results = export_run(run, out, progress)
    for note in results.notes:
        print_note(note)
    print_note(f"wrote {format_count(len(results) * len(results.scores), 'row')} to {out}")
