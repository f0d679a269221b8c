"""`metrist prompts`: which prompts help a likelihood metric on data that people have judged."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from metrist.cli.options import (
    BatchTokens,
    Cache,
    Device,
    Fields,
    Format,
    ItemKey,
    SkipBad,
    System,
    TableFormat,
    item_key,
    named_values,
)


def prompts(
    inputs: Annotated[
        list[str], typer.Argument(metavar="FILE…", help="Records with ratings: the data on which prompts are chosen.")
    ],
    metric: Annotated[
        str,
        typer.Option("-m", "--metric", metavar="SPEC", help="A likelihood metric, such as bartscore."),
    ],
    aspects: Annotated[
        list[str] | None, typer.Option("-a", "--aspect", metavar="A", help="The rating to agree with; repeatable.")
    ] = None,
    prompt_set: Annotated[
        str | None,
        typer.Option(
            "--prompt-set",
            metavar="SET",
            help="source-output, reference-output, or a file with one phrase a line.",
            show_default="as suits the direction",
        ),
    ] = None,
    phrases: Annotated[
        list[str] | None, typer.Option("--prompt", metavar="PHRASE", help="Try this phrase; repeatable.")
    ] = None,
    measure: Annotated[str, typer.Option("--measure", metavar="M", help="spearman, kendall_b, acc_eq, …")] = "spearman",
    group: Annotated[
        str, typer.Option("--group", metavar="BY", help="item, none, system, system-level, or a column.")
    ] = "item",
    gold: Annotated[
        str, typer.Option("--gold", metavar="HOW", help="mean, median, majority, z, or a rater's name.")
    ] = "mean",
    groups: Annotated[
        list[str] | None,
        typer.Option("--aspect-group", metavar="A=GROUP", help="Count an aspect in this group; repeatable."),
    ] = None,
    item_fields: ItemKey = "",
    fields: Fields = None,
    system: System = None,
    skip_bad: SkipBad = False,
    device: Device = None,
    batch_tokens: BatchTokens = None,
    cache: Cache = None,
    json_out: Annotated[Path | None, typer.Option("--json", metavar="OUT", help="Write all figures here.")] = None,
    form: TableFormat = Format.text,
) -> None:
    """Try each prompt on judged data: which agree best with people, and on which aspects prompts help at all."""
    from metrist.cli.output import say, show_all
    from metrist.cli.progress import progress_bar
    from metrist.errors import SpecError
    from metrist.evaluate.prompts import search_prompts
    from metrist.io.writer import whole

    if phrases and prompt_set:
        raise SpecError("give either --prompt-set or --prompt, not both")
    with progress_bar("trying prompts") as progress:
        study = search_prompts(
            inputs if len(inputs) > 1 else inputs[0],
            metric,
            aspects or (),
            prompts=phrases or prompt_set,
            measure=measure,
            group=group,
            gold=gold,
            groups=named_values(groups or [], "--aspect-group"),
            progress=progress,
            running={"device": device, "batch_tokens": batch_tokens, "cache": cache},
            item_key=item_key(item_fields),
            fields=named_values(fields or [], "--field"),
            system=system,
            skip_bad=skip_bad,
        )
    if json_out is not None:
        with whole(json_out) as file:
            file.write(study.to_json() + "\n")
    if form is Format.json:
        say(study.to_json())
        return
    show_all([study.table(), study.shares()], form)
    say(f"best prompt: {study.best}")
