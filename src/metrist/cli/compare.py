"""`metrist compare`, `methods`, `check`, `verify`, `calibrate` and `leaderboard`: conclusions from runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from metrist.cli.options import (
    PAPER_FORMAT,
    TABLE_FORMAT,
    Format,
    LayoutOptions,
    PaperFormat,
    ReadingOptions,
    RunFolder,
    RunPath,
    RunPaths,
)
from metrist.cli.output import (
    print_note,
    print_table,
    print_tables,
    print_text,
    progress_bar,
    translate_notes,
    write_file,
)
from metrist.errors import RunError
from metrist.evaluate.plans import CheckSettings, ComparisonSettings, LeaderboardSettings
from metrist.settings import as_arguments, setting

#: What marks significance in the table of systems.
ComparisonMarks = Literal["letters", "daggers", "none"]
#: Which tables of a comparison are printed.
ComparisonTables = Literal["systems", "pairs", "both"]


def compare(
    runs: RunPaths,
    *,
    settings: ComparisonSettings,
    marks: ComparisonMarks | None = setting(
        None,
        "Mark significance by letters that systems share unless they differ, or by daggers.",
        shown="letters; with --baseline daggers",
    ),
    show: ComparisonTables | None = setting(
        None, "Systems with their scores, the list of pairs, or both.", shown="both; systems in LaTeX, pairs in CSV"
    ),
    force: bool = setting(False, "Compare runs although a metric was not computed alike; the table says so."),
    form: PaperFormat = PAPER_FORMAT,
    appearance: LayoutOptions,
) -> None:
    from metrist.evaluate.compare.comparison import compare as compare_runs

    layout = appearance.layout()
    with progress_bar("comparing", "draws") as progress:
        comparison = compare_runs(runs, **as_arguments(settings), force=force, progress=progress)
    if form == "bibtex":
        print_text(comparison.bibliography(marks))
        print_note(*comparison.notes)
        return
    defaults: dict[str, ComparisonTables] = {"latex": "systems", "csv": "pairs"}
    show = show or defaults.get(form, "both")
    pairs = comparison.table()
    systems_table = comparison.system_table(marks)
    if show == "both":
        once = [remark for remark in systems_table.remarks if remark not in pairs.remarks]
        tables = [replace(systems_table, remarks=once, signatures=()), pairs]
    else:
        tables = [systems_table if show == "systems" else pairs]
    if form == "json" and show == "both":
        # The pairs are the document, as they were before there was a table of systems.
        first, second = (table.to_dict() for table in (layout.apply(tables) if layout else tables))
        print_text(json.dumps({**second, "systems": first}, indent=2))
    else:
        print_tables(tables, form, layout, as_list=False)


#: How a paragraph is printed.
MethodsFormat = Literal["text", "markdown", "latex"]


def methods(
    runs: RunPaths,
    *,
    settings: ComparisonSettings,
    interval_draws: int = setting(1000, "Resamples behind the intervals of `metrist score`.", min=0),
    marks: ComparisonMarks | None = setting(
        None, "How the table marks significance.", shown="letters; with --baseline daggers"
    ),
    form: MethodsFormat = setting("text", "How to print the paragraph.", "--format"),
) -> None:
    from metrist.evaluate.compare.methods import describe_methods
    from metrist.evaluate.selection import open_run

    opened = [open_run(run, settings.metrics or ()) for run in runs]
    options = as_arguments(settings)
    print_text(describe_methods(opened, **options, interval_draws=interval_draws, form=form, marks=marks))
    if form != "text":  # The text has them below the paragraph.
        for run in opened:
            print_note(*run.notes)


def check(
    run: RunPath,
    *,
    settings: CheckSettings,
    junit: Path | None = setting(None, "Write JUnit XML here.", metavar="FILE"),
    form: Format = TABLE_FORMAT,
) -> None:
    from metrist.evaluate.compare.check import check as check_run

    report = check_run(run, **as_arguments(settings))
    print_table(report.table(), form)
    if junit is not None:
        write_file(junit, report.junit())
    if not report.passed:
        raise typer.Exit(1)


def verify(
    run: RunFolder,
    files: Annotated[
        list[str] | None, typer.Argument(metavar="IN…", help="Its inputs, if they are no longer where they were.")
    ] = None,
    metrics: list[str] | None = setting(
        None, "A metric of your own to import, as in `score`; repeatable.", "-m", "--metric", metavar="SPEC"
    ),
    sample: int = setting(100, "How many outputs are scored again.", min=1),
    seed: int = setting(0, "Seed of the sample.", min=0),
    tolerance: float = setting(1e-6, "Largest difference of scores, relative if they exceed 1.", min=0),
    allow_llm: bool = setting(
        False, "Score metrics that call an LLM again, too: answers may differ and cost money.", "--llm"
    ),
    form: Format = TABLE_FORMAT,
) -> None:
    from metrist.run.verify import verify as verify_run

    verification = verify_run(
        run,
        files or (),
        metrics=metrics or (),
        sample=sample,
        seed=seed,
        tolerance=tolerance,
        allow_llm=allow_llm,
    )
    messages = translate_notes([finding.message for finding in verification.findings])
    findings = [replace(finding, message=text) for finding, text in zip(verification.findings, messages, strict=True)]
    print_table(replace(verification, findings=tuple(findings)).table(), form)
    if not verification.passed:
        raise typer.Exit(1)


def calibrate(
    source: Annotated[
        str,
        typer.Argument(metavar="RUN", help="A run folder, a .jsonl file that `metrist score` wrote, or records."),
    ],
    metric: str | None = setting(None, "The metric; required if there are several.", "-m", metavar="SPEC"),
    out: Path | None = setting(None, "The calibration to write; with --apply, a .jsonl file of percentiles.", "-o"),
    by: str | None = setting(
        None, "Fit one distribution per system, task, language or other column.", metavar="COLUMN"
    ),
    apply: Path | None = setting(
        None, "Do not fit; print the percentiles of the scores in this calibration.", metavar="FILE"
    ),
    good: float | None = setting(
        None, "Do not fit; print limits by which outputs with this mean rating are told from others.", metavar="RATING"
    ),
    aspect: str | None = setting(None, "The aspect that --good is about; required if there are several.", metavar="A"),
    form: Format = TABLE_FORMAT,
) -> None:
    from metrist.evaluate.audit import calibrate as study

    if good is not None:
        from metrist.evaluate.audit.limits import choose_limits

        if apply is not None or by is not None or out is not None:
            raise RunError("--good prints limits and fits nothing: omit --apply, --by and -o", code="conflict")
        print_table(choose_limits(source, good, metric, aspect).table(), form)
        return
    if apply is not None:
        if metric is not None or by is not None:
            raise RunError("--apply uses the metric and groups of the calibration: omit -m and --by")
        percentiles = study.apply_calibration(source, apply)
        if out is not None:
            _write(out, "".join(json.dumps(row) + "\n" for row in percentiles.rows()), ".jsonl")
        print_table(percentiles.table(), form)
        return
    with progress_bar("calibrating"):
        fit = study.calibrate(source, metric, by)
    if out is None:
        raise RunError("no file to write the calibration to: add -o calibration.json", code="missing_value")
    _write(out, fit.calibration.to_json(), ".json")
    print_table(fit.table(), form)


def leaderboard(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE_OR_RUN…",
            help="Files with preferences, choices that `metrist prefer` wrote, run folders and result files.",
        ),
    ],
    *,
    settings: LeaderboardSettings,
    out: Path | None = setting(None, "Write a page of HTML here.", "-o", metavar="FILE"),
    title: str = setting("Leaderboard", "The title of the page.", metavar="TEXT"),
    json_out: Path | None = setting(None, "Write everything here.", "--json", metavar="OUT"),
    reading: ReadingOptions,
    form: Format = TABLE_FORMAT,
) -> None:
    from metrist.evaluate.leaderboard import build_page
    from metrist.evaluate.leaderboard import leaderboard as rank_systems
    from metrist.io.rows import check_own
    from metrist.io.writer import check_distinct, check_writable
    from metrist.report.html import PAGE_MARK

    reading.check_system(sources)
    for path in (out, json_out):
        if path is not None:
            check_writable(path)
            check_distinct(path, sources, "the votes are")
    if settings.into is not None and out is None:
        out = settings.into / "index.html"
    if out is not None:
        check_own(out, "page", mark=PAGE_MARK)
    with progress_bar("ranking", "draws") as progress:
        data = sources if len(sources) > 1 else sources[0]
        board = rank_systems(data, **as_arguments(settings), **reading.keywords(), progress=progress)
    if json_out is not None:
        write_file(json_out, board.to_json() + "\n")
    if out is not None:
        write_file(out, build_page(board, title).html())
    if form == "json":
        print_text(board.to_json())
    else:
        print_tables(board.tables(), form, as_list=False)


def _write(path: Path, text: str, suffix: str) -> None:
    if suffix not in path.suffixes:
        raise RunError(f"cannot write {path}: the name must end in {suffix}", code="cannot_write")
    write_file(path, text)
