"""Parquet files and frames; the optional packages are installed for tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pandas
import polars
import pyarrow
import pyarrow.parquet as parquet
import pytest

from error_codes import raises_code
from metrist.errors import InputError
from metrist.io import read_records
from metrist.records import Record

Write = Callable[..., Path]
ROWS: list[dict[str, Any]] = [
    {"item": 1, "system": "a", "output": "x", "source": "s", "references": ["r", "q"], "rating:f": 1.5, "n": 1},
    {"item": 2, "system": "a", "output": "", "source": None, "references": None, "rating:f": None, "n": 2},
]
WANTED = [
    Record(item="1", system="a", output="x", source="s", references=("r", "q"), extra={"n": 1}),
    Record(item="2", system="a", output="", extra={"n": 2}),
]


def test_parquet_is_read_in_batches(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    rows = [{**ROWS[0], "item": i, "ratings": {"e": [1], "g": None}} for i in range(3000)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=700)
    entries = list(read_records(path).entries())
    assert [entry.records[0].item for entry in entries] == [str(i) for i in range(3000)]
    assert str(entries[-1].location) == f"{path}:3000"
    assert [(r.aspect, r.value) for r in entries[0].ratings] == [("e", 1.0), ("f", 1.5)]


def test_frames_and_tables_give_the_same_records(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pyarrow.Table.from_pylist(ROWS)
    parquet.write_table(table, path)
    for source in (path, table, pandas.DataFrame(ROWS), polars.DataFrame(ROWS), table.to_pandas()):
        reader = read_records(source)
        assert list(reader) == WANTED
        assert [entry.ratings[0].value for entry in reader.entries() if entry.ratings] == [1.5]


def test_all_missing_markers_mean_absent() -> None:
    frame = pandas.DataFrame({"item": [1, 2, 3], "output": "o", "source": [None, float("nan"), pandas.NA]})
    assert [record.source for record in read_records(frame)] == [None, None, None]
    times = pandas.DataFrame({"item": [1.0], "output": ["o"], "when": [pandas.NaT]})
    assert list(read_records(times)) == [Record(item="1", system="unnamed", output="o")]


def test_numpy_values_in_rows_are_numbers_like_others() -> None:
    row = {
        "item": numpy.int64(7),
        "output": numpy.str_("o"),
        "references": numpy.array(["r"]),
        "rating:f": numpy.float32(2),
    }
    (entry,) = read_records([row]).entries()
    assert entry.records == (Record(item="7", system="unnamed", output="o", references=("r",)),)
    assert type(entry.records[0].output) is str
    assert entry.ratings[0].value == 2.0


def test_a_lazy_frame_is_an_error_that_names_collect() -> None:
    with pytest.raises(InputError, match=r"a lazy frame has no rows yet: call \.collect\(\) on it first"):
        read_records(polars.DataFrame(ROWS).lazy())


def test_parquet_with_text_that_is_no_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    output = pyarrow.array([b"\xe1nother"], pyarrow.binary()).view(pyarrow.string())
    parquet.write_table(pyarrow.table({"output": output}), path)
    with raises_code(InputError, "damaged", "a.parquet"):
        list(read_records(path))


def test_an_invalid_parquet_file_is_named(write: Write) -> None:
    path = write(b"PAR1 and no more", "a.parquet")
    with raises_code(InputError, "damaged", path):
        list(read_records(path))
    packed = write(b"", "a.parquet.gz")
    with raises_code(InputError, "unreadable", "a.parquet.gz"):
        list(read_records(packed))


def test_a_null_output_of_a_frame_is_called_by_its_column() -> None:
    frame = pandas.DataFrame({"id": [1, 2], "completion": ["a", None], "gold": ["a", "b"]})
    with raises_code(InputError, "invalid_row", "row 2", "'completion'"):
        list(read_records(frame))
    reader = read_records(frame, skip_bad=True)
    assert ([record.output for record in reader], reader.skipped.count) == (["a"], 1)
