"""Read Parquet. A file of a few bytes can repeat a text of megabytes in a million rows, so that what its rows take is
found out before they are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO, Any

from metrist.errors import InputError
from metrist.io.limits import HIGHEST_RATIO, check_unpacked, largest_row
from metrist.io.table_rows import Cells

#: Rows that are converted at once, and bytes of text that these may take.
_ROWS, _BYTES = 1024, 1 << 26
#: Entries of lists in a row group, and bytes of texts in them, up to which nothing is looked at.
_ENTRIES, _LIST_BYTES = 1 << 26, 1 << 30


def read_parquet(
    source: str | IO[bytes], name: str, groups: Sequence[int] | None = None, skipped: int = 0
) -> Iterator[tuple[int, Cells]]:
    """Yield the rows of a Parquet file, or of some of its row groups, with their numbers from 1; the first rows may be
    skipped."""
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(source) as file:
            groups_of_file = map(file.metadata.row_group, range(file.num_row_groups))
            chunks = [group.column(n) for group in groups_of_file for n in range(file.metadata.num_columns)]
            unpacked = sum(chunk.total_uncompressed_size for chunk in chunks)
            check_unpacked(name, unpacked, sum(chunk.total_compressed_size for chunk in chunks))
            read = 0
            for group in range(file.num_row_groups) if groups is None else groups:
                size = _choose_size(source, file.metadata, group, name)
                for batch in file.iter_batches(batch_size=size, row_groups=[group]):
                    first = min(max(skipped - read, 0), batch.num_rows)
                    yield from enumerate(map(Cells, batch.slice(first).to_pylist()), read + first + 1)
                    read += batch.num_rows
    except (pyarrow.ArrowException, UnicodeDecodeError, OSError) as error:
        raise InputError(f"{name}: not a Parquet file, or a damaged one: {error}", code="damaged") from error


def _choose_size(source: str | IO[bytes], metadata: Any, group: int, name: str) -> int:
    """How many rows of a group can be converted at once. A group with a row that is too large is refused."""
    limit = largest_row()
    row = 0  # Bytes of the largest row, or more.
    for column in range(metadata.num_columns):
        chunk = metadata.row_group(group).column(column)
        unpacked = chunk.total_uncompressed_size
        is_list = metadata.schema.column(column).max_repetition_level > 0
        if unpacked > limit and unpacked > HIGHEST_RATIO * chunk.total_compressed_size:
            raise _too_large(name, chunk, unpacked, limit)
        if is_list and chunk.num_values > _ENTRIES and chunk.num_values > HIGHEST_RATIO * unpacked:
            raise _too_large(name, chunk, chunk.num_values, limit)
        # Without a dictionary, each text takes its own bytes in the file.
        if not chunk.has_dictionary_page or chunk.physical_type != "BYTE_ARRAY" or unpacked * _ROWS <= _BYTES:
            continue
        longest = _find_longest(source, group, chunk, is_list=False)
        if is_list and longest * chunk.num_values > _LIST_BYTES:
            longest = _find_longest(source, group, chunk, is_list=True)
        if longest > limit:
            raise _too_large(name, chunk, longest, limit)
        row += longest
    return max(1, min(_ROWS, _BYTES // max(row, 1)))


def _too_large(name: str, chunk: Any, size: int, limit: int) -> InputError:
    return InputError(
        f"{name}: the column {chunk.path_in_schema!r} unpacks to {size:,} from {chunk.total_compressed_size:,} bytes, "
        f"more than the {limit:,} that a row may take; METRIST_MAX_ROW sets another limit",
        code="too_large",
    )


def _find_longest(source: str | IO[bytes], group: int, chunk: Any, *, is_list: bool) -> int:
    """The bytes of the longest text in the dictionary of a column, or of the row that has most of them in a list."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import parquet

    path = chunk.path_in_schema
    with parquet.ParquetFile(source, read_dictionary=[path], buffer_size=1 << 16) as file:
        longest = 0
        for batch in file.iter_batches(batch_size=_ROWS if is_list else 1, row_groups=[group], columns=[path]):
            for rows in batch.column(0) if is_list else [batch.column(0)]:
                texts = rows.values if isinstance(rows, pa.ListScalar) else rows
                while isinstance(texts, pa.ListArray | pa.StructArray):
                    texts = texts.flatten() if isinstance(texts, pa.ListArray) else texts.field(0)
                if not isinstance(texts, pa.DictionaryArray):
                    return chunk.total_uncompressed_size if texts is not None else longest
                lengths = pc.binary_length(texts.dictionary)
                total = pc.sum(lengths.take(texts.indices)) if is_list else pc.max(lengths)
                longest = max(longest, total.as_py() or 0)
            if not is_list:
                break
        return longest
