"""Parquet, a batch of rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from metrist.errors import InputError, MissingExtra
from metrist.io.cells import Cells
from metrist.io.compression import display_name

_BATCH = 1024


def parquet_rows(path: str) -> Iterator[tuple[int, Cells]]:
    """Row numbers, from 1, with their cells by column."""
    pyarrow, parquet = _package()
    name = display_name(path)
    try:
        with parquet.ParquetFile(path) as file:
            yield from _numbered(file.iter_batches(batch_size=_BATCH))
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{name}: not a Parquet file, or a damaged one: {error}") from error


def _package() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra("reading Parquet", "tables") from None
    return pyarrow, pyarrow.parquet


def _numbered(batches: Iterator[Any]) -> Iterator[tuple[int, Cells]]:
    start = 1
    for batch in batches:
        yield from enumerate(map(Cells, batch.to_pylist()), start)
        start += batch.num_rows
