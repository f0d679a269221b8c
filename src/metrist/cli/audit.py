"""`metrist audit`: test whether an LLM can be trusted as a judge, or a metric's analyses; `metrist questionnaire`: what
people say about such analyses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from metrist.cli.options import DryRun, Format, Inputs, LLMOptions, ReadingOptions, TableFormat, expand_options
from metrist.errors import SpecError

if TYPE_CHECKING:
    from metrist.evaluate.audit import JudgeCard


#: Whether the judge sees the references.
Reference = Literal["hidden", "shown"]


@expand_options
def audit(
    inputs: Inputs,
    *,
    llm: Annotated[
        str | None,
        typer.Option("--llm", metavar="SPEC", help="The LLM to audit, such as \"openai(model='gpt-4o-mini')\"."),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            "-m",
            "--metric",
            metavar="SPEC",
            help="Instead of an LLM, a metric that lists errors, such as a trained tigerscore(llm=local(…)): "
            "--second-llm checks whether its analyses are made up.",
        ),
    ] = None,
    rubric: Annotated[
        str, typer.Option("--rubric", metavar="NAME_OR_FILE", help="The rubric that it grades by.")
    ] = "reliability",
    aspect: Annotated[
        str, typer.Option("--aspect", metavar="A", help="The aspect of the rubric whose grade is audited.")
    ] = "all",
    reference: Annotated[
        Reference, typer.Option("--reference", help="Whether the judge sees the references; both ways are compared.")
    ] = "hidden",
    items: Annotated[int, typer.Option("--items", metavar="N", min=1, help="Items to audit on.")] = 50,
    outputs: Annotated[
        int, typer.Option("--outputs-per-item", metavar="N", min=1, help="Outputs to grade per item.")
    ] = 4,
    repeats: Annotated[int, typer.Option("--repeats", metavar="N", min=1, help="Times each question is asked.")] = 3,
    temperature: Annotated[float, typer.Option("--temperature", min=0, help="The judge's sampling temperature.")] = 0.0,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", metavar="N", min=1, help="Length limit of an answer, in tokens.")
    ] = 1024,
    second_llm: Annotated[
        str | None,
        typer.Option("--second-llm", metavar="SPEC", help="Another LLM, which checks the judge's reasons."),
    ] = None,
    own: Annotated[
        str | None, typer.Option("--own", metavar="SYSTEM", help="The system that is the judge's own LLM.")
    ] = None,
    ratings: Annotated[
        list[str] | None,
        typer.Option("--rating", metavar="A", help="The human rating to agree with; repeatable.", show_default="all"),
    ] = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Write the card to a .json or .md file.")] = None,
    reading: ReadingOptions,
    llms: LLMOptions,
    dry_run: DryRun = False,
    form: TableFormat = "text",
) -> None:
    """Audit an LLM as a judge: order, repeats, length, reference, scale, own outputs, injection, made-up reasons."""
    from metrist.cli.output import print_estimate, print_note
    from metrist.cli.progress import progress_bar
    from metrist.cli.score import report_skipped
    from metrist.evaluate.audit import Plan, audit_analyses, estimate_analyses, estimate_audit
    from metrist.evaluate.audit import audit as audit_judge

    settings: dict[str, Any] = {
        "rubric": rubric,
        "aspect": aspect,
        "reference": reference,
        "temperature": temperature,
        "max_tokens": max_tokens,
        "second_llm": second_llm,
        "plan": Plan(items=items, outputs_per_item=outputs, repeats=repeats, own=own, aspects=ratings or ()),
    }
    records = reading.read(inputs)
    if (llm is None) == (metric is None):
        raise SpecError("name what to audit: an LLM as a judge (--llm), or a metric that lists errors (--metric)")
    if metric is not None:
        if second_llm is None:
            raise SpecError("--metric needs --second-llm, which checks the analyses")
        if dry_run:
            with llms.activate():
                print_estimate(estimate_analyses(records, metric, second_llm), form)
            return
        with progress_bar("auditing") as progress:
            card = audit_analyses(records, metric, second_llm, out=out, on_part=progress.begin, **vars(llms))
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

        card = audit_judge(records, llm, out=out, on_part=begin, **vars(llms), **settings)
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
    schema: Annotated[bool, typer.Option("--schema", help="Print the questions as a JSON schema, and stop.")] = False,
    form: TableFormat = "text",
) -> None:
    """Evaluate answers to the TIGERScore paper's questionnaire about error analyses."""
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
