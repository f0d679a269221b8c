"""Rows of pandas and polars frames and Arrow tables, known by what they can do: none of them is imported here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from metrist.errors import InputError
from metrist.io.cells import Cells

_MISSING = {"NAType", "NaTType", "NoneType"}


def frame_rows(source: Any) -> Callable[[], Iterator[Cells]] | None:
    """How to go over the frame's rows, or None where the source is no frame."""
    if hasattr(source, "collect") and hasattr(source, "collect_schema"):
        raise InputError("a lazy frame has no rows yet: call .collect() on it first")
    if hasattr(source, "itertuples") and hasattr(source, "columns"):
        return lambda: _named(source.columns, source.itertuples(index=False, name=None))
    if hasattr(source, "iter_rows") and hasattr(source, "columns"):
        return lambda: _named(source.columns, source.iter_rows())
    if hasattr(source, "to_batches") and hasattr(source, "schema"):
        return lambda: (Cells(row) for batch in source.to_batches(max_chunksize=1024) for row in batch.to_pylist())
    return None


def _named(columns: Any, rows: Iterator[tuple[Any, ...]]) -> Iterator[Cells]:
    names = [str(column) for column in columns]
    for values in rows:
        yield Cells((name, plain(value)) for name, value in zip(names, values, strict=True))


def plain(value: Any) -> Any:
    """The value in Python's own types; None for all the ways in which a frame says that there is none."""
    if isinstance(value, str):
        return str(value)
    if type(value).__name__ in _MISSING:
        return None
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    return None if isinstance(value, float) and value != value else value
