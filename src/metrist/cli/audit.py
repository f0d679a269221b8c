"""`metrist audit`: can this LLM be trusted as a judge?"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metrist.cli.options import (
    Concurrency,
    DryRun,
    Fields,
    Format,
    Inputs,
    ItemKey,
    MaxCost,
    Rpm,
    SkipBad,
    System,
    TableFormat,
    Tpm,
    parse_item_key,
    parse_pairs,
)

if TYPE_CHECKING:
    from metrist.evaluate.audit import JudgeCard


class Reference(StrEnum):
    """Whether the judge sees the references."""

    hidden = "hidden"
    shown = "shown"


def audit(
    inputs: Inputs,
    llm: Annotated[
        str, typer.Option("--llm", metavar="SPEC", help="The LLM to audit, such as \"openai(model='gpt-4o-mini')\".")
    ],
    rubric: Annotated[
        str, typer.Option("--rubric", metavar="NAME_OR_FILE", help="The rubric that it grades by.")
    ] = "reliability",
    aspect: Annotated[
        str, typer.Option("--aspect", metavar="A", help="The rubric's aspect that is the grade.")
    ] = "all",
    reference: Annotated[
        Reference, typer.Option("--reference", help="Whether the judge sees the references; both ways are compared.")
    ] = Reference.hidden,
    items: Annotated[int, typer.Option("--items", metavar="N", min=1, help="Items to audit on.")] = 50,
    outputs: Annotated[
        int, typer.Option("--outputs-per-item", metavar="N", min=1, help="Outputs of an item that are graded.")
    ] = 4,
    repeats: Annotated[
        int, typer.Option("--repeats", metavar="N", min=1, help="How often the same question is asked.")
    ] = 3,
    temperature: Annotated[float, typer.Option("--temperature", min=0, help="How freely the judge answers.")] = 0.0,
    max_tokens: Annotated[int, typer.Option("--max-tokens", metavar="N", min=1, help="The longest answer.")] = 1024,
    second_llm: Annotated[
        str | None,
        typer.Option("--second-llm", metavar="SPEC", help="Another LLM, to check the judge's reasons."),
    ] = None,
    own: Annotated[
        str | None, typer.Option("--own", metavar="SYSTEM", help="The system that is the judge's own LLM.")
    ] = None,
    ratings: Annotated[
        list[str] | None,
        typer.Option("--rating", metavar="A", help="The human rating to agree with; repeatable.", show_default="all"),
    ] = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Write the card to a .json or .md file.")] = None,
    item_fields: ItemKey = "",
    fields: Fields = None,
    system: System = None,
    skip_bad: SkipBad = False,
    max_cost: MaxCost = None,
    concurrency: Concurrency = None,
    rpm: Rpm = None,
    tpm: Tpm = None,
    dry_run: DryRun = False,
    form: TableFormat = Format.text,
) -> None:
    """Audit an LLM as a judge: order, repeats, length, reference, scale, own outputs, injection, made-up reasons."""
    from metrist.cli.output import print_note, print_table, print_text
    from metrist.cli.progress import progress_bar
    from metrist.cli.score import report_skipped
    from metrist.evaluate.audit import Plan
    from metrist.evaluate.audit import audit as audit_judge
    from metrist.io.reader import read_records

    settings: dict[str, Any] = {
        "rubric": rubric,
        "aspect": aspect,
        "reference": reference.value,
        "temperature": temperature,
        "max_tokens": max_tokens,
        "second_llm": second_llm,
        "plan": Plan(items=items, outputs_per_item=outputs, repeats=repeats, own=own, aspects=ratings or ()),
    }
    records = read_records(
        inputs if len(inputs) > 1 else inputs[0],
        item_key=parse_item_key(item_fields),
        fields=parse_pairs(fields or [], "--field"),
        skip_bad=skip_bad,
        system=system,
    )
    if dry_run:
        _estimate(records, llm, settings, form)
        return
    limits: dict[str, Any] = {"max_cost": max_cost, "concurrency": concurrency, "rpm": rpm, "tpm": tpm}
    with progress_bar("auditing"):
        card: JudgeCard = audit_judge(
            records, llm, out=out, on_part=lambda part: print_note(f"asking: {part}"), **limits, **settings
        )
    report_skipped(records)
    if form is Format.json:
        print_text(card.to_json())
    else:
        print_table(card.table(), form)


def _estimate(records: Any, llm: str, settings: dict[str, Any], form: Format) -> None:
    from metrist.cli.estimate import estimate_table
    from metrist.cli.output import print_table
    from metrist.evaluate.audit import estimate_audit

    print_table(estimate_table(estimate_audit(records, llm, **settings)), form)
