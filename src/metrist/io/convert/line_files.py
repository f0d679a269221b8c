"""Plain text, one text a line: read line by line, and counted beforehand so that files can be told to fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from metrist.errors import InputError
from metrist.io.compression import BYTE_ORDER_MARK, decoded, open_bytes
from metrist.io.convert.foreign_json import Row, filled
from metrist.io.row_model import Location, RowError


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a file without their ends. Only a newline ends a line, as in sacreBLEU: texts may well hold the
    other characters that Unicode calls line breaks."""
    with open_bytes(path) as file:
        for n, line in enumerate(file, 1):
            try:
                yield decoded((line.removeprefix(BYTE_ORDER_MARK) if n == 1 else line).rstrip(b"\r\n"))
            except RowError as fault:
                raise InputError(f"{Location(str(path), n)}: {fault}") from None


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


# Line files as sacreBLEU takes them: line n of each file belongs to the same item.


def line_files(
    outputs: Mapping[str, Path | str],
    *,
    source: Path | str | None = None,
    references: Sequence[Path | str] = (),
    task: str | None = None,
    language: str | None = None,
) -> Iterator[Row]:
    """Rows from one file of outputs per system, with the source and any number of references; an item is called by its
    line's number. An empty line of a reference file means that the item lacks this reference, as it does in sacreBLEU.
    """
    if not outputs:
        raise InputError("line files need at least one file of outputs with its system's name, as in nllb=nllb.txt")
    sources = [Path(source)] if source is not None else []
    columns = [*sources, *map(Path, references), *map(Path, outputs.values())]
    check_lengths(columns)
    shared = filled({"task": task, "language": language})
    return _rows(columns, len(sources), len(references), list(outputs), shared)


def _rows(columns: list[Path], sources: int, references: int, systems: list[str], shared: Row) -> Iterator[Row]:
    first_output = sources + references
    for n, texts in enumerate(zip(*map(read_lines, columns), strict=True), 1):
        given = [reference for reference in texts[sources:first_output] if reference]
        head = {"item": str(n), "source": texts[0] if sources else None, "references": given}
        for system, output in zip(systems, texts[first_output:], strict=True):
            yield {**filled(head), **shared, "system": system, "output": output}
