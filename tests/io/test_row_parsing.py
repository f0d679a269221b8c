"""Rows become records; errors name their place."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from error_codes import raises_code
from metrist.errors import InputError
from metrist.io import read_records
from metrist.records import Record

Write = Callable[..., Path]


def only(row: dict[str, Any], **options: Any) -> Record:
    (record,) = read_records([row], **options)
    return record


def test_all_fields_of_a_record() -> None:
    record = only(
        {
            "item": 7,
            "system": "nllb",
            "output": "o",
            "source": "s",
            "references": ["r1", "r2"],
            "instruction": "i",
            "task": "t",
            "language": "en-de",
            "doc": {"nested": [1]},
            "ratings": {"fluency": 3},
        }
    )
    assert record == Record(
        item="7",
        system="nllb",
        output="o",
        source="s",
        references=("r1", "r2"),
        instruction="i",
        task="t",
        language="en-de",
        extra={"doc": {"nested": [1]}},
    )


def test_single_references_follow_the_list_by_number() -> None:
    row = {"item": 1, "output": "", "reference_10": "e", "reference_2": "d", "reference": "c", "references": ["a", "b"]}
    assert only(row).references == ("a", "b", "c", "d", "e")
    assert only({"item": 1, "output": "", "reference": ["a", "b"], "reference_1": None}).references == ("a", "b")


@pytest.mark.parametrize(("value", "name"), [(7, "7"), ("7", "7"), (7.0, "7"), (10**30, "1" + "0" * 30), (0.5, "0.5")])
def test_numbers_are_names_as_they_are_written(value: object, name: str) -> None:
    record = only({"item": value, "system": value, "output": "o"})
    assert (record.item, record.system) == (name, name)


def test_whole_numbers_and_truth_values_are_texts() -> None:
    record = only({"item": 1, "output": 42, "source": True, "references": ["x", 42]})
    assert (record.output, record.source, record.references) == ("42", "True", ("x", "42"))


def test_null_means_absent() -> None:
    record = only({"item": 1, "output": "o", "source": None, "references": None, "task": None, "reference_1": None})
    assert record == Record(item="1", system="unnamed", output="o")


def test_without_a_system_the_file_names_it(write: Write) -> None:
    path = write([{"item": 1, "output": "o"}], "nllb-3.3b.en-de.jsonl")
    assert [record.system for record in read_records(path)] == ["nllb-3.3b.en-de"]
    assert [record.system for record in read_records(path, system="mine")] == ["mine"]
    named = write([{"item": 1, "system": "own", "output": "o"}])
    assert [record.system for record in read_records(named, system="mine")] == ["own"]


def test_without_items_the_position_of_the_row_is_the_item(write: Write) -> None:
    path = write('{"output": "a"}\n\noops\n{"output": "b"}\n')
    assert [(record.item, record.output) for record in read_records(path, skip_bad=True)] == [("1", "a"), ("3", "b")]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [{"item": 1, "output": "a"}, {"output": "b"}],
            "no 'item', but earlier rows have one",
        ),
        ([{"output": "a"}, {"item": 2, "output": "b"}], "'item' must be in all rows or in none, got 2 after rows"),
    ],
)
def test_items_are_in_all_rows_or_in_none(rows: list[dict[str, Any]], message: str, write: Write) -> None:
    path = write(rows)
    with pytest.raises(InputError, match=re.escape(f"{path}:2: {message}")):
        list(read_records(path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"references": "the cat"}, "'references' must be a list of strings, got 'the cat'; use 'reference'"),
        ({"references": ["a", None]}, "'references' must be a list of strings, got null at position 2"),
        ({"references": "x" * 100}, f"'references' must be a list of strings, got '{'x' * 60}'…"),
        ({"reference_2": 1.5}, "'reference_2' must be a text, got 1.5"),
        ({"output": 1.5}, "'output' must be a text, got 1.5"),
        ({"source": ["s", 1]}, "'source' must be a text or a list of texts"),
        ({"task": {}}, "'task' must be a text, got {}"),
        ({"item": ""}, "'item' must be a non-empty text or a number, got ''"),
        ({"item": True}, "'item' must be a non-empty text or a number, got true"),
        ({"system": float("inf")}, "'system' must be a non-empty text or a number, got Infinity"),
        ({"outputs": ["a", "b"]}, "'systems' and 'outputs' must be lists of two, got null and 2 outputs"),
        ({"outputs": ["a"], "systems": ["x"]}, "'systems' and 'outputs' must be lists of two, got ['x'] and 1 output"),
        ({"outputs": "ab", "systems": ["x", "y"]}, "'outputs' must be a list of strings, got 'ab'"),
        ({"outputs": ["a", "b"], "systems": ["x", "x"]}, "'systems' must name two systems, got 'x' twice"),
        ({"outputs": ["a", "b"], "systems": ["x", None]}, "'systems' must be a non-empty text or a number"),
        ({1: 2}, "must have text keys, got 1"),
    ],
)
def test_a_field_of_the_wrong_type_is_named(change: dict[Any, Any], message: str) -> None:
    rows = [{"item": 1, "system": "s", "output": "a"}, {"item": 2, "system": "s", "output": "b", **change}]
    with pytest.raises(InputError, match=re.escape(f"row 2: {message}")):
        list(read_records(rows))


@pytest.mark.parametrize("column", ["outputt", "result"])
def test_a_missing_output_names_the_column_that_has_it(column: str, write: Write) -> None:
    path = write([{"item": 1, column: "o", "ratings": {"x": 1}}])
    message = f"{path}:1: no 'output', but '{column}': use `fields={{'output': {column!r}}}`"
    with pytest.raises(InputError, match=re.escape(message)):
        list(read_records(path))
    assert [record.output for record in read_records(path, fields={"output": column})] == ["o"]


def test_a_missing_output_lists_the_available_fields() -> None:
    row = {"item": 1, "pair": 1, "good": [], "bad": []}
    with raises_code(InputError, "invalid_row", "1", "'output'", "'pair'"):
        list(read_records([row]))
    message = "no column 'prediction', which `fields` maps to 'output'; the columns are 'item', 'pair', 'good', 'bad'"
    with pytest.raises(InputError, match=f"the input: {message}"):
        list(read_records([row], fields={"output": "prediction"}))


OPTIONAL = [{"item": 1, "output": "a"}, {"item": 2, "output": "b", "gold": "g", "meta": {"lang": None}}]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
@pytest.mark.parametrize(
    ("fields", "column"),
    [
        ({"output": "summry2"}, "summry2"),
        ({"references": "summry2"}, "summry2"),
        ({"references": "summary1,summry2"}, "summry2"),
        ({"rating:x": "summry2", "other": ""}, "summry2"),
    ],
)
def test_a_mapped_column_that_the_file_lacks_is_an_error(
    suffix: str, fields: dict[str, str], column: str, tmp_path: Path
) -> None:
    # The file has the fields under their own names too: they must not be read instead.
    row = {"item": "1", "output": "o", "references": "r", "summary1": "one", "summary2": "two"}
    path = tmp_path / f"f{suffix}"
    if suffix == ".csv":
        path.write_text(f"{','.join(row)}\n{','.join(row.values())}\n")
    elif suffix == ".jsonl":
        path.write_text(json.dumps({**row, "references": ["r"]}) + "\n")
    else:
        pytest.importorskip("pandas", reason="pandas is not installed").DataFrame([row]).to_parquet(path)
    field = next(iter(fields))
    message = (
        f"{path}: no column '{column}', which `fields` maps to '{field}'; did you mean 'summary2' or 'summary1'? The "
        "columns are 'item', 'output', 'references', 'summary1', 'summary2'"
    )
    for read in (list, lambda reader: list(reader.entries())):
        with pytest.raises(InputError, match=re.escape(message)):
            read(read_records(path, fields=fields))
        with pytest.raises(InputError, match=re.escape(message)):
            read(read_records(path, fields=fields, skip_bad=True))


def test_a_mapped_column_that_only_some_rows_have_is_read_there() -> None:
    records = list(read_records(OPTIONAL, fields={"references": "gold", "language": "meta.lang"}))
    assert [record.references for record in records] == [(), ("g",)]
    with raises_code(InputError, "unknown_name", "'meta.lng'", "'language'"):
        list(read_records(OPTIONAL, fields={"language": "meta.lng"}))


def test_a_mapped_column_is_missed_at_the_end_of_rows_that_come_once() -> None:
    assert len(list(read_records(iter(OPTIONAL), fields={"references": "gold"}))) == 2
    with raises_code(InputError, "unknown_name", "'glod'", "`fields`", "'references'"):
        list(read_records(iter(OPTIONAL), fields={"references": "glod"}))


def test_each_file_must_have_a_mapped_column_unless_it_holds_only_judgments(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("texts.jsonl", "ratings.jsonl", "others.jsonl")]
    paths[0].write_text('{"item": "1", "system": "a", "hyp": "o"}\n')
    paths[1].write_text('{"item": "1", "system": "a", "rating:x": 3}\n')
    paths[2].write_text('{"item": "2", "system": "a", "output": "o"}\n')
    hyp = {"output": "hyp"}
    assert [len(entry.ratings) for entry in read_records(paths[:2], fields=hyp).entries()] == [0, 1]
    for read in (list, lambda reader: list(reader.entries())):
        with pytest.raises(
            InputError, match=re.escape(f"{paths[2]}: no column 'hyp', which `fields` maps to 'output'")
        ):
            read(read_records([paths[0], paths[2]], fields=hyp))
    with raises_code(InputError, "unknown_name", "ratings.jsonl", "'hyp'"):
        list(read_records(paths[:2], fields=hyp))
    with raises_code(InputError, "unknown_name", "texts.jsonl", "ratings.jsonl", "'hyq'"):
        list(read_records(paths[:2], fields={**hyp, "source": "hyq"}).entries())


def test_fields_may_be_mapped_and_dropped() -> None:
    row = {"id": 3, "hyp": "o", "ref": "r", "fluency": 4, "time": 12}
    names = {"item": "id", "output": "hyp", "reference": "ref", "rating:fluency": "fluency", "time": ""}
    (entry,) = read_records([row], fields=names).entries()
    assert entry.records == (Record(item="3", system="unnamed", output="o", references=("r",)),)
    assert [(rating.aspect, rating.value) for rating in entry.ratings] == [("fluency", 4.0)]
    assert row == {"id": 3, "hyp": "o", "ref": "r", "fluency": 4, "time": 12}


def test_an_unknown_field_is_an_error_that_suggests_the_nearest() -> None:
    with raises_code(InputError, "unknown_name", "'outptu'", "'output'"):
        read_records([], fields={"outptu": "x"})


def test_an_item_key_is_built_from_fields_and_cannot_collide() -> None:
    rows = [{"doc": "a|b", "seg": 1, "output": "x"}, {"doc": "a", "seg": "b|1", "output": "y"}]
    assert [record.item for record in read_records(rows, item_key=("doc", "seg"))] == ["a\\|b|1", "a|b\\|1"]
    assert [record.item for record in read_records(rows, item_key=("doc",))] == ["a|b", "a"]
    assert only({"doc": "a", "item": 2, "output": "x"}, item_key=["doc", "item"]).item == "a|2"
    assert only({"doc": "a", "seg": 2, "output": "x"}, item_key="doc+seg").item == "a|2"


def test_an_item_key_that_cannot_be_built_is_named() -> None:
    with raises_code(InputError, "invalid_row", "1", "'seg'"):
        list(read_records([{"doc": 1, "output": "x"}], item_key=("doc", "seg")))
    with raises_code(InputError, "invalid_value", "item_key", "'doc+segment'", "'doc+'"):
        read_records([], item_key="doc+")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"item": 7}, "'item' of a Record must be a text, got 7"),
        ({"source": 7}, "'source' of a Record must be a text or None, got 7"),
        ({"references": "the cat"}, "'references' of a Record must be a tuple of strings, got 'the cat'"),
    ],
)
def test_an_invalid_record_is_named(change: dict[str, Any], message: str) -> None:
    wrong = Record(**{"item": "1", "system": "s", "output": "o", **change})
    with pytest.raises(InputError, match=re.escape(f"row 1: {message}")):
        list(read_records([wrong]))


def test_a_null_output_is_an_error() -> None:
    for row in ({"output": None, "text": "t"}, {"output": None, "source": "s"}):
        with raises_code(InputError, "invalid_row", "1", "'output'", "`skip_bad=True`"):
            list(read_records([row]))
