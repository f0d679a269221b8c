"""`metrist audit`: test whether an LLM can be trusted as a judge, or a metric's analyses; `metrist questionnaire`: what
people say about such analyses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metrist.cli.options import DRY_RUN, TABLE_FORMAT, Format, Inputs, LLMOptions, ReadingOptions
from metrist.errors import SpecError
from metrist.evaluate.plans import AuditPlan, JudgeSettings
from metrist.settings import as_arguments, setting

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
    from metrist.cli.output import print_estimate, print_note
    from metrist.cli.progress import progress_bar
    from metrist.cli.score import report_skipped
    from metrist.evaluate.audit import audit as audit_judge
    from metrist.evaluate.audit import audit_analyses, estimate_analyses, estimate_audit

    settings: dict[str, Any] = {**as_arguments(judge), "plan": plan}
    records = reading.read(inputs)
    if (llm is None) == (metric is None):
        raise SpecError("name what to audit: an LLM as a judge (--llm), or a metric that lists errors (--metric)")
    if metric is not None:
        if judge.second_llm is None:
            raise SpecError("--metric needs --second-llm, which checks the analyses")
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
    from metrist.cli.output import print_table, print_text

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
    form: Format = TABLE_FORMAT,
) -> None:
    from metrist.cli.output import print_tables, print_text
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
    rows = read_answers(answers)
    print_tables([tabulate_answers(rows), tabulate_shares(rows)], form)
