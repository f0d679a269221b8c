"""`metrist build error-analysis`: training data for models that explain errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metrist.cli.options import DRY_RUN, TABLE_FORMAT, Format, Inputs, LLMOptions, Names, ReadingOptions
from metrist.data.settings import ExampleSettings
from metrist.errors import RunError, SpecError, did_you_mean
from metrist.settings import as_arguments, setting, split_commas

if TYPE_CHECKING:
    from metrist.data.error_analysis.build import AnalysisBuildResult
    from metrist.data.error_analysis.channels import JudgedOutput
    from metrist.llm.estimate import LLMEstimate
    from metrist.report.tables import Table


def error_analysis(
    inputs: Inputs,
    *,
    out: Path = setting(..., "The folder to write.", "-o", metavar="FOLDER"),
    examples: ExampleSettings,
    channels: Names = setting(
        (),
        "Where errors come from: real, synthetic, human, reference, freeform.",
        "--channel",
        metavar="A,B",
        shown="all; real only with --llm",
        parse=split_commas,
    ),
    llm: str | None = setting(None, "The LLM that analyses outputs: \"openai(model='gpt-4o')\".", metavar="SPEC"),
    generate: Names = setting((), "An LLM whose outputs are analysed as well; repeatable.", metavar="SPEC"),
    run: Path | None = setting(None, "Choose outputs in thirds by the scores of this run.", "--scores", metavar="RUN"),
    by: str | None = setting(
        None,
        "The metric of the run, or of `scores` in the records, such as a likelihood.",
        metavar="METRIC",
        shown="the only one",
    ),
    review: str | None = setting(None, "An LLM that removes analyses that are not reasonable.", metavar="SPEC"),
    task: str | None = setting(None, "The task of all records.", metavar="NAME", shown="their own"),
    instruction: str | None = setting(None, "The instruction of all records.", metavar="TEXT", shown="their own"),
    mix: str = setting("all", "Examples per task and channel: all, paper, or TOML.", metavar="NAME_OR_FILE"),
    chat: bool = setting(False, "Also write chat.jsonl with user and assistant turns."),
    reading: ReadingOptions,
    llms: LLMOptions,
    dry_run: bool = DRY_RUN,
    form: Format = TABLE_FORMAT,
) -> None:
    from metrist.cli.output import format_count, print_estimate, print_note, print_tables
    from metrist.cli.progress import progress_bar
    from metrist.cli.score import report_skipped
    from metrist.data.error_analysis.build import EXAMPLES, BuildSettings, build_examples, check_folder, read_mix
    from metrist.data.error_analysis.channels import read_outputs
    from metrist.data.error_analysis.examples import CHANNELS
    from metrist.llm.base import build_llm
    from metrist.llm.estimate import estimate_calls

    chosen: tuple[Any, ...] = channels  # The settings check the names.
    settings = BuildSettings(
        channels=chosen or tuple(name for name in CHANNELS if llm is not None or name != "real"),
        llm=build_llm(llm) if llm is not None else None,
        generate=tuple(map(build_llm, generate)),
        review=build_llm(review) if review is not None else None,
        mix=None if mix == "all" else read_mix(mix),
        **as_arguments(examples),
    )
    check_folder(out)
    reader = reading.read(inputs)
    outputs = read_outputs(reader, task=task, instruction=instruction)
    report_skipped(reader)
    scores = _read_scores(outputs, run, by)
    with llms.activate():
        if settings.llm is not None or dry_run:
            with estimate_calls() as estimate:
                build_examples(outputs, settings, scores=scores)
            if dry_run:
                print_estimate(estimate, form)
                return
            for calls in estimate.by_llm.values():
                print_note(_describe_estimate(calls))
        with progress_bar("building", "examples"):
            result = build_examples(outputs, settings, scores=scores)
    result.write(out, chat=chat)
    print_tables(build_tables(result), form)
    for note in result.notes:
        print_note(note)
    print_note(f"wrote {format_count(len(result.examples), 'example')} to {out / EXAMPLES}")


def _read_scores(outputs: Sequence[JudgedOutput], run: Path | None, by: str | None) -> dict[tuple[str, str], float]:
    """The scores by which outputs are chosen in thirds: those of a run, or those that the records hold."""
    if run is None:
        return _read_stored_scores(outputs, by) if by is not None else {}
    from metrist.evaluate.selection import find_metric
    from metrist.run import load

    results = load(run)
    if by is None and len(results.metrics) != 1:
        listed = ", ".join(metric.label for metric in results.metrics)
        raise SpecError(f"{run} has {len(results.metrics)} metrics: name one with --by ({listed})")
    metric = find_metric(results.metrics, by, results.unfinished) if by else results.metrics[0]
    rows = zip(results.items, results.systems, results[metric].values.tolist(), strict=True)
    scores = {(item, system): value for item, system, value in rows if not math.isnan(value)}
    if not any((output.record.item, output.record.system) in scores for output in outputs):
        raise RunError(f"{run} has no scores of the outputs that were read: score these files first")
    return scores


def _read_stored_scores(outputs: Sequence[JudgedOutput], by: str) -> dict[tuple[str, str], float]:
    scores = {
        (output.record.item, output.record.system): output.scores[by] for output in outputs if by in output.scores
    }
    if not scores:
        known = sorted({name for output in outputs for name in output.scores})
        have = f"they have scores of {', '.join(known)}{did_you_mean(by, known)}" if known else "they have no scores"
        raise SpecError(f"--by names {by!r}, but no record has a score of it: {have}; --scores RUN reads a run")
    return scores


def _describe_estimate(estimate: LLMEstimate) -> str:
    """The calls and the cost of one LLM, before it is asked."""
    from metrist.cli.output import Dollars, format_count

    new = estimate.calls - estimate.answered
    stored = f" ({estimate.answered:,} more are answered already)" if estimate.answered else ""
    cost = f"cost {Dollars(estimate.least_cost)} to {Dollars(estimate.most_cost)}"
    return f"{estimate.llm}: {format_count(new, 'question')}{stored}, {cost if estimate.price else 'cost unknown'}"


def build_tables(result: AnalysisBuildResult) -> list[Table]:
    """What was made, what each filter removed, what the mix took, and what the set is like."""
    from metrist.data.error_analysis.examples import CHANNELS
    from metrist.report.tables import Column, Count, Table

    def table(title: str, names: Sequence[str], rows: Sequence[Sequence[Any]], notes: Sequence[str] = ()) -> Table:
        columns = [Column(name, "right" if number else "left") for number, name in enumerate(names)]
        cells = [[Count(cell) if isinstance(cell, int) else cell for cell in row] for row in rows]
        return Table(title=title, columns=columns, rows=cells, notes=list(notes))

    report = result.report()
    statistics = report["statistics"]
    removed = [row for row in report["removed"] if row["count"]]
    tables = [
        table(
            "Examples",
            ["task", *CHANNELS, "major errors", "minor errors"],
            [
                [
                    task,
                    *(counts.get(channel, 0) for channel in CHANNELS),
                    *(statistics["severities"].get(task, {}).get(severity, 0) for severity in ("major", "minor")),
                ]
                for task, counts in statistics["channels"].items()
            ],
        ),
        table("Errors per example", ["errors", "examples"], list(statistics["errors per example"].items())),
        table(
            "Length",
            ["tokens", "examples"],
            list(statistics["tokens"].items()),
            ["prompt and completion; a token is about four bytes"],
        ),
    ]
    if removed:
        notes = [f"{row['step']}: {row['why']}" for row in removed]
        tables.insert(
            0, table("Removed", ["step", "examples"], [[row["step"], row["count"]] for row in removed], notes)
        )
    if report["mix"]:
        rows = [[f"{row['task']} {row['channel']}", *list(row.values())[2:]] for row in report["mix"]]
        tables.insert(-3, table("Mix", ["task and channel", "available", "expected", "taken"], rows))
    return tables
