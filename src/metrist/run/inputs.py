"""The files that a run read, read again for their texts and ratings: a run stores neither."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from metrist.errors import RunError
from metrist.io import Reader, read_records
from metrist.run.run_folder import RunFolder, is_run_folder

_STANDARD_INPUT = "-"


def read_inputs(
    run: str | os.PathLike[str] | RunFolder, files: Sequence[str | os.PathLike[str]] = (), **reading: Any
) -> Reader:
    """Return a reader of the files that a run folder read, or of `files` where some are named.

    A file is looked for under the name that the run was given, then under that name beside the run folder.
    """
    if files:
        return read_records(list(files), **reading)
    folder = run if isinstance(run, RunFolder) else None
    path = Path(run.path if isinstance(run, RunFolder) else run)
    if folder is None and is_run_folder(path):
        folder = RunFolder(path)
    if folder is None:
        raise RunError(f"{path} does not say which files it was made from: name them on the command line")
    if not folder.inputs:
        raise RunError(f"the run in {path} read no files but rows in memory: name the files with its texts")
    return read_records([_locate(name, path) for name in folder.inputs], **reading)


def _locate(name: str, run: Path) -> Path:
    if name == _STANDARD_INPUT:
        raise RunError(f"the run in {run} read standard input, which is gone: name a file with its records")
    places = list(dict.fromkeys([Path(name), run.parent / name, run.parent / Path(name).name]))
    for place in places:
        if place.is_file():
            return place
    looked = ", ".join(str(place.absolute()) for place in places)
    raise RunError(
        f"the run in {run} read {name}, which is missing (looked for {looked}): name the file on the command line"
    )
