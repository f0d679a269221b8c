"""Plain text, one text a line: read line by line, and counted beforehand so that files can be told to fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from metrist.errors import InputError
from metrist.io.compression import open_bytes
from metrist.io.place import Fault, Place
from metrist.io.text_lines import BYTE_ORDER_MARK, decoded


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a file without their ends. Only a newline ends a line, as in sacreBLEU: texts may well hold the
    other characters that Unicode calls line breaks."""
    with open_bytes(path) as file:
        for n, line in enumerate(file, 1):
            try:
                yield decoded((line.removeprefix(BYTE_ORDER_MARK) if n == 1 else line).rstrip(b"\r\n"))
            except Fault as fault:
                raise InputError(f"{Place(str(path), n)}: {fault}") from None


def check_lengths(paths: Sequence[Path]) -> int:
    """The number of lines that all the files have: known before anything is written, not after."""
    first, *others = paths
    wanted = _count(first)
    for path in others:
        if (found := _count(path)) != wanted:
            raise InputError(
                f"{path}: has {found:,} lines, but {first} has {wanted:,}; line n of every file must be of one item"
            )
    return wanted


def _count(path: Path) -> int:
    with open_bytes(path) as file:
        return sum(1 for _ in file)
