"""`metrist compare`, `check`, `verify` and `calibrate`: conclusions from runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from metrist.cli.options import (
    LayoutOptions,
    PaperTableFormat,
    RunPath,
    RunPaths,
    Seed,
    TableFormat,
    expand_options,
    parse_numbers,
)
from metrist.errors import RunError

#: Which test decides.
ComparisonTest = Literal["both", "bootstrap", "randomisation"]
#: What marks significance in the table of systems.
ComparisonMarks = Literal["letters", "daggers", "none"]
#: Which tables of a comparison are printed.
ComparisonTables = Literal["systems", "pairs", "both"]


@expand_options
def compare(
    runs: RunPaths,
    *,
    systems: Annotated[
        list[str] | None, typer.Option("--systems", metavar="A B …", help="Only these systems.", show_default="all")
    ] = None,
    metrics: Annotated[
        list[str] | None, typer.Option("-m", "--metric", metavar="SPEC", help="Only these metrics; repeatable.")
    ] = None,
    baseline: Annotated[str | None, typer.Option("--baseline", help="Compare each system with this one only.")] = None,
    test: Annotated[ComparisonTest, typer.Option("--test", help="Which test decides.")] = "both",
    alpha: Annotated[
        float, typer.Option("--alpha", min=0, max=1, help="Largest p-value that counts as a difference.")
    ] = 0.05,
    draws: Annotated[int, typer.Option("--draws", min=100, help="Resamples behind each p-value.")] = 10_000,
    seed: Seed = 0,
    marks: Annotated[
        ComparisonMarks | None,
        typer.Option(
            "--marks",
            help="Mark significance by letters that systems share unless they differ, or by daggers.",
            show_default="letters; with --baseline daggers",
        ),
    ] = None,
    show: Annotated[
        ComparisonTables | None,
        typer.Option(
            "--show",
            help="Systems with their scores, the list of pairs, or both.",
            show_default="both; systems in LaTeX, pairs in CSV",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Compare runs although a metric was not computed alike; the table says so.")
    ] = False,
    form: PaperTableFormat = "text",
    appearance: LayoutOptions,
) -> None:
    """Test whether one system beats another: paired bootstrap and approximate randomisation, Holm-corrected."""
    from metrist.cli.output import print_note, print_table, print_tables, print_text
    from metrist.cli.progress import progress_bar
    from metrist.evaluate.compare.comparison import compare as compare_runs

    layout = appearance.layout()
    with progress_bar("comparing", "draws") as progress:
        comparison = compare_runs(
            runs,
            systems=systems or None,
            metrics=metrics or None,
            test=test,
            draws=draws,
            seed=seed,
            baseline=baseline,
            alpha=alpha,
            force=force,
            progress=progress,
        )
    if form == "bibtex":
        print_text(comparison.bibliography(marks))
        for note in comparison.notes:
            print_note(note)
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
    elif len(tables) == 1:
        print_table(tables[0], form, layout)
    else:
        print_tables(tables, form, layout)


#: How a paragraph is printed.
MethodsFormat = Literal["text", "markdown", "latex"]


def methods(
    runs: RunPaths,
    systems: Annotated[
        list[str] | None, typer.Option("--systems", metavar="A B …", help="Only these systems.", show_default="all")
    ] = None,
    metrics: Annotated[
        list[str] | None, typer.Option("-m", "--metric", metavar="SPEC", help="Only these metrics; repeatable.")
    ] = None,
    baseline: Annotated[
        str | None, typer.Option("--baseline", help="The system that each other was compared with.")
    ] = None,
    test: Annotated[ComparisonTest, typer.Option("--test", help="Which test decided.")] = "both",
    alpha: Annotated[
        float, typer.Option("--alpha", min=0, max=1, help="Largest p-value that counted as a difference.")
    ] = 0.05,
    draws: Annotated[int, typer.Option("--draws", min=100, help="Resamples behind each p-value.")] = 10_000,
    interval_draws: Annotated[
        int, typer.Option("--interval-draws", min=0, help="Resamples behind the intervals of `metrist score`.")
    ] = 1000,
    seed: Seed = 0,
    marks: Annotated[
        ComparisonMarks | None,
        typer.Option(
            "--marks", help="How the table marks significance.", show_default="letters; with --baseline daggers"
        ),
    ] = None,
    form: Annotated[MethodsFormat, typer.Option("--format", help="How to print the paragraph.")] = "text",
) -> None:
    """Describe how a run was evaluated, in a paragraph for a paper; give the options of `metrist compare`."""
    from metrist.cli.output import print_note, print_text
    from metrist.evaluate.compare.methods import describe_methods
    from metrist.evaluate.selection import open_run

    opened = [open_run(run, metrics or ()) for run in runs]
    print_text(
        describe_methods(
            opened,
            systems=systems or None,
            metrics=metrics or None,
            test=test,
            draws=draws,
            seed=seed,
            baseline=baseline,
            alpha=alpha,
            interval_draws=interval_draws,
            form=form,
            marks=marks,
        )
    )
    if form != "text":  # The text has them below the paragraph.
        for note in (note for run in opened for note in run.notes):
            print_note(note)


def check(
    run: RunPath,
    minimum: Annotated[
        list[str] | None, typer.Option("--min", metavar="METRIC=X", help="Lower limit of a metric; repeatable.")
    ] = None,
    maximum: Annotated[
        list[str] | None, typer.Option("--max", metavar="METRIC=X", help="Upper limit of a metric; repeatable.")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="RUN",
            help="Fail if a system is significantly worse than in this run, or than this system of the same run.",
        ),
    ] = None,
    systems: Annotated[
        list[str] | None, typer.Option("--systems", metavar="A B …", help="Only these systems.", show_default="all")
    ] = None,
    min_coverage: Annotated[
        float | None,
        typer.Option(
            "--min-coverage",
            min=0,
            max=1,
            help="Smallest share of outputs that must have a score.",
            show_default="1 for what is checked",
        ),
    ] = None,
    alpha: Annotated[
        float, typer.Option("--alpha", min=0, max=1, help="Largest p-value that counts as a loss.")
    ] = 0.05,
    draws: Annotated[int, typer.Option("--draws", min=100, help="Resamples behind each p-value.")] = 10_000,
    seed: Seed = 0,
    junit: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Write JUnit XML here.")] = None,
    form: TableFormat = "text",
) -> None:
    """Exit with 1 if a limit is missed or a system got significantly worse; made for CI."""
    from metrist.cli.output import print_table
    from metrist.evaluate.compare.check import check as check_run
    from metrist.io.writer import atomic_write

    report = check_run(
        run,
        minimum=parse_numbers(minimum or [], "--min"),
        maximum=parse_numbers(maximum or [], "--max"),
        against=against,
        alpha=alpha,
        systems=systems or None,
        min_coverage=min_coverage,
        draws=draws,
        seed=seed,
    )
    print_table(report.table(), form)
    if junit is not None:
        with atomic_write(junit) as file:
            file.write(report.junit())
    if not report.passed:
        raise typer.Exit(1)


def verify(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder, or its URL.")],
    files: Annotated[
        list[str] | None, typer.Argument(metavar="IN…", help="Its inputs, if they are no longer where they were.")
    ] = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option(
            "-m", "--metric", metavar="SPEC", help="A metric of your own to import, as in `score`; repeatable."
        ),
    ] = None,
    sample: Annotated[int, typer.Option("--sample", min=1, help="How many outputs are scored again.")] = 100,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the sample.")] = 0,
    tolerance: Annotated[
        float, typer.Option("--tolerance", min=0, help="Largest difference of scores, relative if they exceed 1.")
    ] = 1e-6,
    llm: Annotated[
        bool,
        typer.Option("--llm", help="Score metrics that call an LLM again, too: answers may differ and cost money."),
    ] = False,
    form: TableFormat = "text",
) -> None:
    """Check a run's files, inputs and signatures, and score a sample again; exit with 1 if anything differs."""
    from metrist.cli.output import print_table
    from metrist.run.verify import verify as verify_run

    verification = verify_run(
        run,
        files or (),
        metrics=metrics or (),
        sample=sample,
        seed=seed,
        tolerance=tolerance,
        allow_llm=llm,
    )
    print_table(verification.table(), form)
    if not verification.passed:
        raise typer.Exit(1)


def calibrate(
    source: Annotated[
        str,
        typer.Argument(metavar="RUN", help="A run folder, a .jsonl file that `metrist score` wrote, or records."),
    ],
    metric: Annotated[
        str | None, typer.Option("-m", "--metric", metavar="SPEC", help="The metric; required if there are several.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="The calibration to write; with --apply, a .jsonl file of percentiles."),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option("--by", metavar="COLUMN", help="Fit one distribution per system, task, language or other column."),
    ] = None,
    apply: Annotated[
        Path | None,
        typer.Option(
            "--apply", metavar="FILE", help="Do not fit; print the percentiles of the scores in this calibration."
        ),
    ] = None,
    form: TableFormat = "text",
) -> None:
    """Fit the distribution of a metric on known outputs, or give the percentiles of other outputs in it."""
    from metrist.cli.output import print_table
    from metrist.cli.progress import progress_bar
    from metrist.evaluate.audit import calibrate as study

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
        raise RunError("no file to write the calibration to: add -o calibration.json")
    _write(out, fit.calibration.to_json(), ".json")
    print_table(fit.table(), form)


def _write(path: Path, text: str, suffix: str) -> None:
    from metrist.io.writer import atomic_write

    if suffix not in path.suffixes:
        raise RunError(f"cannot write {path}: the name must end in {suffix}")
    with atomic_write(path) as file:
        file.write(text)
