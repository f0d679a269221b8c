"""`metrist build heap`: pairs out of the data sets that HEAP was made of."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class SplitRule(StrEnum):
    """How the pairs are split."""

    none = "none"
    positional = "positional"


def register(app: typer.Typer) -> None:
    """Add the verb to `metrist build`."""
    app.command("heap")(heap)


def heap(
    data_set: Annotated[
        str, typer.Argument(metavar="DATA_SET", help="A data set, such as CHASM, or a code, such as CNG.")
    ],
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="The files that it was published in.")],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="Where to: .jsonl, also .gz, .xz or .zst.")],
    wording: Annotated[int, typer.Option("--wording", min=0, help="Which wording of the instruction to write.")] = 0,
    split: Annotated[
        SplitRule,
        typer.Option(
            "--split", help="positional: 80, 10 and 10 % of each criterion in the file's order, as HEAP has it."
        ),
    ] = SplitRule.none,
) -> None:
    """Make pairs of a data set that HEAP was made of, from the files that its authors published."""
    from metrist.cli.output import counted, remark
    from metrist.data import originals
    from metrist.data.pairs import check_name, write_good_bad
    from metrist.data.splits import positional
    from metrist.io.writer import check_apart

    check_name(out)
    check_apart(out, files, "the data set is")
    pairs = originals.read(data_set, *files, wording=wording)
    if split is SplitRule.positional:
        pairs = positional(pairs)
    write_good_bad(out, pairs)
    made = ", ".join(f"{code} {count:,}" for code, count in Counter(pair.criterion for pair in pairs).items())
    remark(f"wrote {counted(len(pairs), 'pair')} to {out}: {made}")
