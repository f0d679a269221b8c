"""`metrist cache`: what `--cache` keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from metrist.errors import ModelError


def cache(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that was given as --cache.")],
    clear: Annotated[bool, typer.Option("--clear", help="Remove what is kept there.")] = False,
) -> None:
    """Say how much a cache of likelihoods and vectors holds; --clear empties it."""
    from metrist.cli.output import say
    from metrist.models.sqlite_store import CACHE_NAME, CacheFile

    if not (folder / CACHE_NAME).exists():
        raise ModelError(f"{folder} holds no cache: wanted a folder that `metrist score --cache` has used")
    file = CacheFile(folder)
    if clear:
        file.clear()
    held = file.contents()
    say(f"{folder}: {held.entries:,} entries, {held.size / 1e6:,.1f} MB")
