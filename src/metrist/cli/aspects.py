"""`metrist aspects`: what can be wrong with an output of this task?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from metrist.cli.options import DryRun, Format, MaxCost


def aspects(
    task: Annotated[str, typer.Option("--task", metavar="TEXT", help="What the outputs are made for, in a sentence.")],
    llm: Annotated[str, typer.Option("--llm", metavar="LLM", help="Who drafts: \"openai(model='gpt-4o')\".")],
    out: Annotated[Path | None, typer.Option("-o", "--out", metavar="FILE", help="The .toml file to write.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file where there is one.")] = False,
    max_cost: MaxCost = None,
    dry_run: DryRun = False,
) -> None:
    """Draft a table of aspects for a new task, to be edited by a person and used by error_analysis(aspects=…)."""
    from metrist.cli.estimate import estimate_table
    from metrist.cli.output import remark, say, show
    from metrist.cli.progress import progress_bar
    from metrist.errors import RunError
    from metrist.evaluate.aspects import draft_aspects, estimate_aspects, shipped
    from metrist.io.writer import check_place, whole
    from metrist.run.surroundings import surroundings

    if out is not None and out.suffix != ".toml":
        raise RunError(f"cannot write {out}: wanted a name that ends in .toml")
    if out is not None and out.exists() and not overwrite:
        raise RunError(f"cannot write {out}: it is there already, perhaps edited by a person; --overwrite replaces it")
    if out is not None:
        check_place(out)
    if dry_run:
        show(estimate_table(estimate_aspects(task, llm)), Format.text)
        return
    if known := shipped(task):
        remark(f"there is a table for {known!r} already: error_analysis(task='{known}')")
    with progress_bar("drafting"), surroundings(max_cost=max_cost):
        draft = draft_aspects(task, llm)
    if out is None:
        say(draft.toml().rstrip("\n"))
        return
    with whole(out) as file:
        file.write(draft.toml())
    remark(f"wrote {len(draft.table.aspects)} aspects to {out}: read and change them before they are used")
