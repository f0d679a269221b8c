"""Where the scores of a run go: nowhere, into one flat file, or into a run folder."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from metrist.errors import RunError
from metrist.io.writer import check_apart
from metrist.run.store.flat import check_writable, flat_suffix
from metrist.run.store.folder import RunFolder


@dataclass(frozen=True, slots=True)
class Target:
    """A flat file to write in the end, or a folder to write into all along; at most one of them."""

    file: Path | None = None
    folder: RunFolder | None = None

    def check_apart_from(self, inputs: Iterable[str]) -> None:
        """Refuse to write over the file that is being read."""
        if self.file:
            check_apart(self.file, inputs)


def target_of(out: str | os.PathLike[str] | None) -> Target:
    """What a path asks for. What could not be written in the end is refused at once; nothing is touched yet."""
    if out is None:
        return Target()
    path = Path(out)
    if flat_suffix(path):
        check_writable(path)
        return Target(file=path)
    named_as_folder = os.fspath(out).endswith(("/", os.sep)) or path.is_dir()
    if not named_as_folder and re.fullmatch(r"\.[A-Za-z]\w*", path.suffix):
        raise RunError(
            f"cannot tell what to write to {path}: wanted a folder (end it with '/'), or a file that ends in "
            ".jsonl, .csv or .parquet"
        )
    return Target(folder=RunFolder(path))
