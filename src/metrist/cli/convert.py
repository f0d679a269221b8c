"""`metrist convert` and `export`: records from other formats, runs of older versions, and runs as flat files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from metrist.errors import InputError
from metrist.settings import setting

if TYPE_CHECKING:
    from collections.abc import Iterator


#: A format that need not be detected.
Kind = Literal["bartscore", "alpaca_eval", "mt_metrics_eval", "label_studio"]


def convert(
    out: Path = setting(..., "The file to write: .jsonl, also .jsonl.gz, .xz or .zst; a folder for a run.", "-o"),
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[IN…]",
            help="JSON of BARTScore, AlpacaEval or Label Studio, an mt-metrics-eval folder, or a run folder of an "
            "earlier version.",
        ),
    ] = None,
    source: Path | None = setting(None, "Line file of sources."),
    reference: list[Path] | None = setting(None, "Line file of references; repeatable."),
    output: Mapping[str, str] = setting({}, "A system's line file; repeatable.", metavar="SYSTEM=FILE"),
    kind: Kind | None = setting(None, "The format of IN.", shown="detected"),
    system: str | None = setting(None, "The system's name, for outputs without one."),
    task: str | None = setting(None, "The task of all records."),
    language: str | None = setting(None, "The language of all records."),
    rating: list[str] | None = setting(
        None, "BARTScore: a score given by people; repeatable.", shown="the known names"
    ),
    take: list[str] | None = setting(
        None, "mt-metrics-eval: a reference to use, such as refA; repeatable.", "--take-reference", shown="all"
    ),
) -> None:
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
        rows = formats.line_files(dict(output), source=source, references=reference or [], task=task, language=language)
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
    out: Path = setting(..., "The file to write: .jsonl, .csv or .parquet, also compressed.", "-o"),
) -> None:
    from metrist.cli.output import format_count, print_note
    from metrist.cli.progress import progress_bar
    from metrist.run import export as export_run

    with progress_bar("writing") as progress:
        results = export_run(run, out, progress)
    for note in results.notes:
        print_note(note)
    print_note(f"wrote {format_count(len(results) * len(results.scores), 'row')} to {out}")
