"""`metrist train export`: a trained preference model in a form that needs no torch."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class BitsName(StrEnum):
    """How many bits a weight has on the disk; float32 keeps all of it."""

    eight = "8"
    six = "6"
    four = "4"
    whole = "float32"


def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a trained preference model, a BERT.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="A folder for the new form.")],
    bits: Annotated[BitsName, typer.Option("--bits", help="Bits a weight.")] = BitsName.eight,
    group: Annotated[
        int | None, typer.Option("--group", min=1, help="So many columns share a scale.", show_default="a whole row")
    ] = None,
) -> None:
    """Bring a trained preference model into metrist's own form: small, and read without torch."""
    from metrist.cli.output import say
    from metrist.models.numpy_inference.export import export_reward

    export_reward(folder, out, None if bits is BitsName.whole else int(bits), group)
    size = sum(path.stat().st_size for path in out.iterdir()) / 1e6
    say(f"wrote {out} ({size:,.1f} MB); score with preference(model='{out}')")
