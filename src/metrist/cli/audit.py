"""`metrist audit`: test whether an LLM can be trusted as a judge."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from metrist.cli.options import DryRun, Format, Inputs, LLMOptions, ReadingOptions, TableFormat, expand_options


class Reference(StrEnum):
    """Whether the judge sees the references."""

    hidden = "hidden"
    shown = "shown"


@expand_options
def audit(
    inputs: Inputs,
    *,
    llm: Annotated[
        str, typer.Option("--llm", metavar="SPEC", help="The LLM to audit, such as \"openai(model='gpt-4o-mini')\".")
    ],
    rubric: Annotated[
        str, typer.Option("--rubric", metavar="NAME_OR_FILE", help="The rubric that it grades by.")
    ] = "reliability",
    aspect: Annotated[
        str, typer.Option("--aspect", metavar="A", help="The aspect of the rubric whose grade is audited.")
    ] = "all",
    reference: Annotated[
        Reference, typer.Option("--reference", help="Whether the judge sees the references; both ways are compared.")
    ] = Reference.hidden,
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
    form: TableFormat = Format.text,
) -> None:
    """Audit an LLM as a judge: order, repeats, length, reference, scale, own outputs, injection, made-up reasons."""
    from metrist.cli.output import print_estimate, print_note, print_table, print_text
    from metrist.cli.progress import progress_bar
    from metrist.cli.score import report_skipped
    from metrist.evaluate.audit import Plan, estimate_audit
    from metrist.evaluate.audit import audit as audit_judge

    settings: dict[str, Any] = {
        "rubric": rubric,
        "aspect": aspect,
        "reference": reference.value,
        "temperature": temperature,
        "max_tokens": max_tokens,
        "second_llm": second_llm,
        "plan": Plan(items=items, outputs_per_item=outputs, repeats=repeats, own=own, aspects=ratings or ()),
    }
    records = reading.read(inputs)
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
    if form is Format.json:
        print_text(card.to_json())
    else:
        print_table(card.table(), form)
