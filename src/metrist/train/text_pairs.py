"""Pairs of texts to learn from: what a model is given, and what it should find likely then."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from metrist.errors import InputError
from metrist.io.compression import STANDARD_INPUT
from metrist.io.fields import as_text, as_texts
from metrist.io.reader import Skipped
from metrist.io.row_model import Fault, shown
from metrist.io.rows import RowSource, file_source
from metrist.io.table_rows import Cells, from_cells

#: (condition, target)
TextPair = tuple[str, str]

_WANTED = (
    "'text' and 'summary', 'source' and 'target', 'first' and 'second' (paraphrases), or 'source' and 'references'"
)
_SHOWN_FIELDS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PairFile:
    """A file's pairs, equal ones once. `repeated` counts those that came again, `sha256` is of the file as it lies."""

    name: str
    sha256: str
    rows: int
    pairs: tuple[TextPair, ...]
    repeated: int
    skipped: Skipped


def read_pairs(path: str | os.PathLike[str], *, skip_bad: bool = False) -> PairFile:
    """Read JSONL, CSV, TSV or Parquet, also compressed. A paraphrase gives a pair each way, a record one per reference.

    The first bad row is an error, unless bad rows are to be skipped and counted.
    """
    if os.fspath(path) == STANDARD_INPUT:
        raise InputError("training data must be a file: a training that goes on after a stop reads it again")
    source, skipped = file_source(path), Skipped()
    pairs: dict[TextPair, None] = {}
    rows = given = 0
    for found in _each_row(source, skipped if skip_bad else None):
        rows, given = rows + 1, given + len(found)
        pairs.update(dict.fromkeys(found))
    if not pairs:
        raise InputError(f"{source.name}: has no pairs to learn from; wanted rows with {_WANTED}")
    return PairFile(
        name=str(source.name),
        sha256=_sha256(path),
        rows=rows,
        pairs=tuple(pairs),
        repeated=given - len(pairs),
        skipped=skipped,
    )


def _each_row(source: RowSource, skipped: Skipped | None) -> Iterator[list[TextPair]]:
    for line, row in source.read():
        try:
            if isinstance(row, Fault):
                raise row
            yield _pairs(row)
        except Fault as fault:
            message = f"{source.place(line)}: {fault}"
            if skipped is None:
                raise InputError(message) from None
            skipped.add(message)


def _pairs(row: Any) -> list[TextPair]:
    if type(row) is Cells:
        row = from_cells(row)
    if "text" in row and "summary" in row:
        return [(_filled("text", row), _filled("summary", row))]
    if "source" in row and "target" in row:
        return [(_filled("source", row), _filled("target", row))]
    if "first" in row and "second" in row:
        first, second = _filled("first", row), _filled("second", row)
        return [(first, second), (second, first)]
    if "source" in row and ("references" in row or "reference" in row):
        return [(_filled("source", row), reference) for reference in _references(row)]
    names = ", ".join(map(shown, list(row)[:_SHOWN_FIELDS])) + (", …" if len(row) > _SHOWN_FIELDS else "")
    raise Fault(f"has no pair of texts: wanted {_WANTED}; its fields are {names or 'none'}")


def _references(row: dict[str, Any]) -> tuple[str, ...]:
    if row.get("references") is None:
        return (_filled("reference", row),)
    found = as_texts("references", row["references"])
    if not found:
        raise Fault("'references' is empty: there is nothing to learn from it")
    if not all(text.strip() for text in found):
        raise Fault("'references' has an empty text: training needs text on both sides")
    return found


def _filled(field: str, row: dict[str, Any]) -> str:
    text = as_text(field, row[field])
    if not text.strip():
        raise Fault(f"{field!r} is empty: training needs text on both sides")
    return text


def _sha256(path: str | os.PathLike[str]) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
