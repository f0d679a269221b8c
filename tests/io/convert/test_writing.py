"""Rows written as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metrist.errors import InputError
from metrist.io.convert import Row, write_rows

ANY_TEXT = st.text(st.characters(exclude_categories=()))  # Lone surrogates included.


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.dictionaries(ANY_TEXT, ANY_TEXT | st.integers() | st.lists(ANY_TEXT)), max_size=3))
def test_rows_come_back_as_they_were(tmp_path: Path, rows: list[Row]) -> None:
    out = tmp_path / "rows.jsonl"
    assert write_rows(rows, out) == len(rows)
    lines = out.read_bytes().decode("utf-8").split("\n")
    assert [json.loads(line) for line in lines[:-1]] == rows


def test_nan_is_written_as_null(tmp_path: Path) -> None:
    write_rows([{"price": float("nan"), "deep": {"x": [float("inf"), 1.5]}}], tmp_path / "rows.jsonl")
    assert (tmp_path / "rows.jsonl").read_text("utf-8") == '{"price": null, "deep": {"x": [null, 1.5]}}\n'


def test_a_conversion_that_fails_leaves_no_file(tmp_path: Path) -> None:
    def rows() -> Iterator[Row]:
        yield {"item": "1"}
        raise InputError("line 2 is broken")

    with pytest.raises(InputError, match="line 2 is broken"):
        write_rows(rows(), tmp_path / "rows.jsonl")
    assert list(tmp_path.iterdir()) == []
