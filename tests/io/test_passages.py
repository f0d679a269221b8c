"""Rows of retrieval-augmented generation: which columns are read as what, and how passages are joined."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from error_codes import raises_code
from metrist import Record, read_records
from metrist.errors import InputError

Write = Callable[..., Path]

ASKED, PASSAGES, ANSWER, TRUTH = "Who built it?", ["Built in 1889.", "By Eiffel's firm."], "Eiffel.", "Eiffel's firm"
JOINED = "Built in 1889.\n\nBy Eiffel's firm."
#: The columns of ragas before version 0.2, and since then.
OLD = {"question": ASKED, "contexts": PASSAGES, "answer": ANSWER, "ground_truth": TRUTH}
NEW = {"user_input": ASKED, "retrieved_contexts": PASSAGES, "response": ANSWER, "reference": TRUTH}


def check(record: Record) -> None:
    assert (record.instruction, record.source) == (ASKED, JOINED)
    assert (record.output, record.references) == (ANSWER, (TRUTH,))


@pytest.mark.parametrize("row", [OLD, NEW], ids=["old names", "new names"])
def test_rows_of_ragas(row: dict[str, Any], tmp_path: Path) -> None:
    check(*read_records([row]))
    check(*read_records(pd.DataFrame([row])))
    (tmp_path / "r.jsonl").write_text(json.dumps(row))
    reader = read_records(tmp_path / "r.jsonl")
    check(*reader)
    assert "not used" not in reader.readings[0]
    pd.DataFrame([row]).to_parquet(tmp_path / "r.parquet")
    check(*read_records(tmp_path / "r.parquet"))


@pytest.mark.parametrize("name", ["context", "passages", "documents", "retrieved_documents", "Retrieved Contexts"])
@pytest.mark.parametrize(
    "value",
    [
        PASSAGES,
        JOINED,
        *([{key: text, "score": 0.5} for text in PASSAGES] for key in ("text", "content", "page_content")),
    ],
    ids=["list", "text", "text of objects", "content of objects", "page_content of objects"],
)
def test_columns_of_passages(name: str, value: Any) -> None:
    check(*read_records([{"question": ASKED, name: value, "answer": ANSWER, "ground_truth": TRUTH}]))


@pytest.mark.parametrize(
    "write",
    [json.dumps, repr, lambda texts: " ".join(["[", *map(repr, texts), "]"])],
    ids=["JSON", "Python", "numpy"],
)
def test_a_cell_that_holds_a_list(write: Callable[[Any], str], tmp_path: Path) -> None:
    file = io.StringIO()
    csv.writer(file).writerows([list(OLD), [ASKED, write(PASSAGES), ANSWER, TRUTH]])
    (tmp_path / "r.csv").write_text(file.getvalue())
    check(*read_records(tmp_path / "r.csv"))


@pytest.mark.parametrize("text", ["[1] Built in 1889.", "['unfinished", "[1, 2]", "[]x"])
def test_a_passage_in_brackets_is_a_text(text: str) -> None:
    (record,) = read_records([{**OLD, "contexts": text}])
    assert record.source == text


def test_metrists_own_names_beside_passages() -> None:
    row = {"item": "1", "system": "a", "output": ANSWER, "references": [TRUTH]}
    check(*read_records([{**row, "question": ASKED, "contexts": PASSAGES}]))
    check(*read_records([{**row, "instruction": ASKED, "source": PASSAGES}]))
    check(*read_records([{**row, "instruction": ASKED, "docs": PASSAGES}], fields={"source": "docs"}))


def test_no_passages_are_no_source() -> None:
    (record,) = read_records([{**OLD, "contexts": []}])
    assert (record.source, record.instruction) == (None, ASKED)


@pytest.mark.parametrize("value", [[1, 2], [{"title": "x"}], [["x"]]])
def test_a_list_that_holds_no_texts_is_refused_with_a_remedy(value: Any) -> None:
    with raises_code(InputError, "invalid_row", "row 1", "page_content", "fields"):
        list(read_records([{"item": "1", "system": "a", "output": "x", "source": value}]))


def test_unused_columns_are_named() -> None:
    told: list[str] = []
    rows = [{"id": n, "answer": "x", "topic": "y", "rating:a": 1, "year": 7} for n in range(3)]
    list(read_records([*rows, {"id": 9, "answer": "x", "later": 1}], announce=told.append))
    assert told == ["reading the rows: item = id, output = answer, not used = topic, year"]
    many = {"id": 1, "answer": "x", **{f"c{n}": n for n in range(30)}}
    reader = read_records([many])
    list(reader)
    assert "c7, …" in reader.readings[0]
    assert "c8" not in reader.readings[0]


@pytest.mark.parametrize(
    ("row", "is_asked"),
    [
        ({"Ticket ID": 7, "output": "x"}, True),
        ({"ticketId": "T-7", "answer": "x"}, True),
        ({"Ticket ID": 7, "item": 1, "output": "x"}, False),
        ({"annotator_id": 7, "output": "x"}, False),
        ({"Ticket ID": 0.5, "output": "x"}, False),
    ],
)
def test_a_column_that_may_name_the_items_is_asked_for(row: dict[str, Any], is_asked: bool) -> None:
    reader = read_records([row])
    assert [record.item for record in reader] == ["1"]
    column = next(iter(row))
    assert any(f"`fields={ {'item': column}!r}`" in line for line in reader.readings) == is_asked
    assert next(iter(read_records([row], fields={"item": column}))).item == str(row[column])
