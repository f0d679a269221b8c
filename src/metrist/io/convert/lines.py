"""Line files as sacreBLEU takes them: line n of each file belongs to the same item."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from metrist.errors import InputError
from metrist.io.convert.fields import Row, filled
from metrist.io.convert.text_lines import check_lengths, read_lines


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
