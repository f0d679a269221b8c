"""Rows written as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metrist.io import read_records
from metrist.io.convert import Kind, Row, convert, write_rows

Write = Callable[..., Path]

ANY_TEXT = st.text(st.characters(exclude_categories=()))  # Lone surrogates included.


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.dictionaries(ANY_TEXT, ANY_TEXT | st.integers() | st.lists(ANY_TEXT)), max_size=3))
def test_rows_come_back_as_they_were(tmp_path: Path, rows: list[Row]) -> None:
    out = tmp_path / "rows.jsonl"
    assert write_rows(rows, out) == len(rows)
    lines = out.read_bytes().decode("utf-8").split("\n")
    assert [json.loads(line) for line in lines[:-1]] == rows


@pytest.mark.parametrize("kind", ["alpaca_eval", "bartscore"])
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(system=ANY_TEXT.filter(bool), output=ANY_TEXT, source=ANY_TEXT)
def test_any_text_survives_conversion(write: Write, kind: Kind, system: str, output: str, source: str) -> None:
    document: Any = [{"instruction": "i", "input": source, "output": output, "generator": system}]
    if kind == "bartscore":
        document = {"1": {"src": source, "sys_summs": {system: {"sys_summ": output}}}}
    path = write(json.dumps(document), "in.json")
    write_rows(convert(path, kind=kind), path.with_name("rows.jsonl"))
    (record,) = read_records(path.with_name("rows.jsonl"))
    assert (record.system, record.output, record.source or "") == (system, output, source)


def test_nan_is_written_as_null(tmp_path: Path) -> None:
    write_rows([{"price": float("nan"), "deep": {"x": [float("inf"), 1.5]}}], tmp_path / "rows.jsonl")
    assert (tmp_path / "rows.jsonl").read_text("utf-8") == '{"price": null, "deep": {"x": [null, 1.5]}}\n'
