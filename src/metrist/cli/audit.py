"""`metrist audit`, `metrist questionnaire` and `metrist stress`: whether an LLM or a metric can be trusted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metrist.cli.options import DRY_RUN, TABLE_FORMAT, Format, Inputs, LLMOptions, ReadingOptions
from metrist.cli.output import (
    print_estimate,
    print_note,
    print_table,
    print_tables,
    print_text,
    progress_bar,
    report_skipped,
)
from metrist.errors import SpecError
from metrist.evaluate.plans import AuditPlan, JudgeSettings
from metrist.settings import ModelSettings, ReadingSettings, as_arguments, reuse_setting, setting

if TYPE_CHECKING:
    from metrist.evaluate.audit import JudgeCard


def audit(
    inputs: Inputs,
    *,
    llm: str | None = setting(None, "The LLM to audit, such as \"openai(model='gpt-4o-mini')\".", metavar="SPEC"),
    metric: str | None = setting(
        None,
        "Instead of an LLM, a metric that lists errors, such as a trained tigerscore(llm=local(…)): "
        "--second-llm checks whether its analyses are made up.",
        "-m",
        metavar="SPEC",
    ),
    judge: JudgeSettings,
    plan: AuditPlan,
    out: Path | None = setting(None, "Write the card to a .json or .md file.", "-o"),
    reading: ReadingOptions,
    llms: LLMOptions,
    dry_run: bool = DRY_RUN,
    form: Format = TABLE_FORMAT,
) -> None:
    from metrist.evaluate.audit import audit as audit_judge
    from metrist.evaluate.audit import audit_analyses, estimate_analyses, estimate_audit

    settings: dict[str, Any] = {**as_arguments(judge), "plan": plan}
    records = reading.read(inputs)
    if (llm is None) == (metric is None):
        raise SpecError(
            "name what to audit: an LLM as a judge (--llm), or a metric that lists errors (--metric)",
            code="missing_value",
        )
    if metric is not None:
        if judge.second_llm is None:
            raise SpecError("--metric needs --second-llm, which checks the analyses", code="missing_value")
        if dry_run:
            with llms.activate():
                print_estimate(estimate_analyses(records, metric, judge.second_llm), form)
            return
        with progress_bar("auditing") as progress:
            card = audit_analyses(
                records, metric, judge.second_llm, out=out, on_part=progress.begin, **as_arguments(llms)
            )
        _print_card(card, form)
        return
    assert llm is not None
    if dry_run:
        with llms.activate():
            print_estimate(estimate_audit(records, llm, **settings), form)
        return
    with progress_bar("auditing") as progress:

        def begin(part: str) -> None:
            print_note(f"asking: {part}")
            progress.begin(part)

        card = audit_judge(records, llm, out=out, on_part=begin, **as_arguments(llms), **settings)
    report_skipped(records)
    _print_card(card, form)


def _print_card(card: JudgeCard, form: Format) -> None:
    if form == "json":
        print_text(card.to_json())
    else:
        print_table(card.table(), form)


def questionnaire(
    answers: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE…", help="Answers: a row per rater and output, with errors, overlooked, … in it."),
    ] = None,
    schema: bool = setting(False, "Print the questions as a JSON schema, and stop."),
    fields: Mapping[str, str] = reuse_setting(ReadingSettings, "fields"),
    form: Format = TABLE_FORMAT,
) -> None:
    from metrist.evaluate.explain.questionnaire import (
        load_questionnaire,
        read_answers,
        tabulate_answers,
        tabulate_shares,
    )

    if schema:
        print_text(json.dumps(load_questionnaire().schema(), indent=2, ensure_ascii=False))
        return
    if not answers:
        raise SpecError("no answers are named; give a file: metrist questionnaire FILE (--schema shows the questions)")
    rows = read_answers(answers, fields)
    print_tables([tabulate_answers(rows), tabulate_shares(rows)], form)


def stress(
    metrics: Annotated[
        list[str], typer.Argument(metavar="METRIC...", help="The metrics to test, such as bleu or chrf.")
    ],
    *,
    inputs: list[str] | None = setting(
        None,
        "Good outputs to put the faults into; repeatable.",
        "-i",
        "--input",
        metavar="FILE",
        shown="20 short reports with summaries",
    ),
    items: int = setting(100, "Items to test on, at most.", metavar="N", min=5),
    kinds: list[str] | None = setting(
        None, "A fault or harmless change; repeatable.", "--fault", metavar="KIND", shown="all"
    ),
    least: float = setting(0.7, "Share of the items whose score must get worse to pass.", metavar="SHARE"),
    require: list[str] | None = setting(
        None,
        "Exit with 1 if this test fails: a name in the table, a group (fault, harmless, series, severity) or "
        "all; repeatable.",
        metavar="TEST",
    ),
    seed: int = setting(0, "Seed of the faults.", min=0),
    reading: ReadingOptions,
    models: ModelSettings,
    llms: LLMOptions,
    form: Format = TABLE_FORMAT,
) -> None:
    from metrist.evaluate.audit.stress import check_tests
    from metrist.evaluate.audit.stress import stress as stress_metrics

    check_tests(require or ())
    reader = reading.read(inputs) if inputs else None
    with progress_bar("scoring") as progress:
        report = stress_metrics(
            metrics,
            reader,
            items=items,
            kinds=kinds,
            least=least,
            seed=seed,
            progress=progress,
            **as_arguments(models),
            **as_arguments(llms),
        )
    if reader is not None:
        report_skipped(reader)
    if form == "json":
        print_text(json.dumps(report.to_dict(), indent=2))
    else:
        print_table(report.table(), form)
    failures = report.find_failures(require or ())
    if failures:
        print_note(f"failed: {', '.join(f'{test.metric} {test.test}' for test in failures)}")
        raise typer.Exit(1)
