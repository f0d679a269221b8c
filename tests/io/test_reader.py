"""Readers: sources, merging, skipping, reading again."""

from __future__ import annotations

import io
import os
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from error_codes import raises_code
from metrist.errors import InputError
from metrist.io import read_records
from metrist.records import Record

Write = Callable[..., Path]
ROW = {"item": "1", "system": "a", "output": "x", "source": "s", "references": ["r"]}


def test_rows_of_one_output_are_merged() -> None:
    rows = [{**ROW, "ratings": {"f": 1}}, {**ROW, "ratings": {"f": 2}, "raters": ["r"]}, {**ROW, "errors": [{}]}, ROW]
    reader = read_records(rows)
    assert [record.output for record in reader] == ["x"]
    entries = list(reader.entries())
    assert [len(entry.records) for entry in entries] == [1, 1, 1, 1]
    assert [len(entry.new) for entry in entries] == [1, 0, 0, 0]
    assert [r.value for entry in entries for r in entry.ratings] == [1, 2]
    assert [len(entry.errors) for entry in entries] == [0, 0, 1, 0]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"output": "y"}, "a different text in 'output'"),
        ({"source": "t"}, "a different text in 'source'"),
        ({"source": None}, "a different text in 'source'"),
        ({"references": ["r", "q"]}, "a different text in 'references'"),
        ({"instruction": "i"}, "a different text in 'instruction'"),
        ({"task": "t"}, "different values in one of task, language"),
        ({"doc": {"a": 1}}, "different values in one of task, language, 'doc'"),
    ],
)
def test_one_key_with_another_text_names_both_lines(change: dict[str, Any], field: str, write: Write) -> None:
    first = write([ROW, {**ROW, "item": "2"}], "a.jsonl")
    second = write([{**ROW, "item": "3"}, {**ROW, **change}], "b.jsonl")
    message = f"{second}:2: item '1' of system 'a' already occurs at {first}:1 with {field}; use `item_key`"
    with pytest.raises(InputError, match=re.escape(message)):
        list(read_records([first, second]))
    reader = read_records([first, second], skip_bad=True)
    assert [record.item for record in reader] == ["1", "2", "3"]
    assert reader.skipped.messages[0].startswith(message)


def test_the_order_of_other_columns_makes_no_difference() -> None:
    rows = [
        {**ROW, "doc": {"a": 1, "b": float("inf")}, "part": 1},
        {**ROW, "part": 1, "doc": {"b": float("inf"), "a": 1}},
    ]
    assert len(list(read_records(rows))) == 1


def test_a_conflicting_pair_is_dropped_as_a_whole() -> None:
    def pair(first: str, x: str, second: str, y: str) -> dict[str, Any]:
        return {"item": 1, "systems": [first, second], "outputs": [x, y]}

    rows = [pair("a", "x", "b", "y"), pair("c", "z", "a", "other"), pair("c", "z", "b", "y")]
    reader = read_records(rows, skip_bad=True)
    assert [(record.system, record.output) for record in reader] == [("a", "x"), ("b", "y"), ("c", "z")]
    assert reader.skipped.messages[0].startswith(
        "row 2: item '1' of system 'a' already occurs at row 1 with a different text in 'output'"
    )


def test_repeated_judgments_of_a_named_rater_count_once() -> None:
    named = {**ROW, "ratings": {"f": [1, 2]}, "raters": ["r1", "r2"], "scores": {"bleu": 1}}
    unnamed = {**ROW, "ratings": {"f": [1, 2]}, "scores": {"bleu": 1}}
    other = {**ROW, "ratings": {"f": [1, 3]}, "raters": ["r1", "r2"], "scores": {"bleu": 1}}

    def counted(*rows: dict[str, Any]) -> tuple[int, int]:
        entries = list(read_records(list(rows)).entries())
        return sum(len(entry.ratings) for entry in entries), sum(len(entry.scores) for entry in entries)

    assert counted(named, named) == (2, 1)
    assert counted(unnamed, unnamed) == (4, 1)
    assert counted(named, other, named) == (4, 1)


def test_bad_rows_are_skipped_and_counted(write: Write) -> None:
    path = write("".join(f'{{"item": {i}, "output": "x"}}\noops\n' for i in range(30)))
    with raises_code(InputError, "invalid_row", f"{path}:2"):
        list(read_records(path))
    reader = read_records(path, skip_bad=True)
    for _ in range(2):
        assert len(list(reader)) == 30
        assert reader.skipped.count == 30
        assert len(reader.skipped.messages) == 20
    assert reader.skipped.messages[0].startswith(f"{path}:2: not valid JSON")


def test_rows_that_are_all_bad_are_an_error_even_when_skipping(write: Write) -> None:
    path = write("oops\noops\n")
    with raises_code(InputError, "invalid_row", path, f"{path}:1"):
        list(read_records(path, skip_bad=True))


def test_a_source_without_rows_is_an_error(write: Write) -> None:
    full, empty = write([ROW]), write("\n\n", "empty.jsonl")
    with pytest.raises(InputError, match=re.escape(f"{empty}: no rows")):
        list(read_records([full, empty]))
    with pytest.raises(InputError, match="the input: no rows"):
        list(read_records([]))


def test_rows_without_any_output_cannot_be_scored(write: Write) -> None:
    path = write([{"item": 1, "ratings": {"a": 1}}])
    assert len(list(read_records(path).entries())) == 1
    with raises_code(InputError, "no_data", path):
        list(read_records(path))


def test_a_missing_file_is_an_error_that_suggests_the_nearest_names(write: Write, tmp_path: Path) -> None:
    write([ROW], "outputs.jsonl")
    with raises_code(InputError, "missing_file", "output.jsonl", "'outputs.jsonl'"):
        read_records(tmp_path / "output.jsonl")
    with raises_code(InputError, "missing_file", "a.jsonl"):
        read_records(tmp_path / "no" / "a.jsonl")
    with raises_code(InputError, "unreadable", tmp_path):
        read_records(tmp_path)
    with raises_code(InputError, "unreadable", "embedded"):
        read_records("a\0b")


def test_standard_input_is_read_once_in_any_format(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in (
        '{"item": 1, "output": "x"}',
        '[{"item": 1, "output": "x"}]',
        "item,output\n1,x\n",
        "item\toutput\n1\tx",
    ):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        reader = read_records("-")
        assert list(reader) == [Record(item="1", system="unnamed", output="x")]
        with raises_code(InputError, "unreadable", "standard"):
            list(reader)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"oops\x00")))
    with pytest.raises(InputError, match="standard input: no rows"):
        list(read_records("-"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"PAR1\x15\x04")))
    with raises_code(InputError, "unreadable", "standard"):
        list(read_records("-"))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text('{"item": 1, "output": "x"}\n'))
    writer.start()
    reader = read_records(pipe)
    assert len(list(reader)) == 1
    writer.join()
    with raises_code(InputError, "unreadable"):
        list(reader)


def test_rows_in_memory_can_be_dicts_and_records() -> None:
    record = Record(item="2", system="a", output="y")
    rows = [ROW, record]
    reader = read_records(rows)
    assert [r.item for r in reader] == [r.item for r in reader] == ["1", "2"]
    assert [entry.new for entry in reader.entries()][1] == (record,)
    once = read_records(iter(rows))
    assert len(list(once)) == 2
    with raises_code(InputError, "unreadable"):
        list(once)


def test_a_reader_may_be_given_for_a_source() -> None:
    reader = read_records([ROW])
    assert read_records(reader) is reader


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (ROW, "a frame, not from dict; put a single row in a list"),
        (Record(item="1", system="a", output="x"), "a frame, not from Record; put a single row in a list"),
        (7, "records are read from a path, a list of paths, rows or a frame, not from int"),
        (b"path", "not from bytes"),
    ],
)
def test_an_invalid_source_is_named(source: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_records(source)


def test_the_share_read_grows_with_the_file_and_ends_at_one(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    path.write_text("".join(f'{{"item": {i}, "output": "{"x" * 1000}"}}\n' for i in range(2000)))
    reader = read_records(path)
    shares = [reader.share_read or 0.0 for _ in reader]
    assert 0 < shares[0] < 0.5
    assert shares == sorted(shares)
    assert reader.share_read == 1
    assert read_records([{"item": "1", "output": "x"}]).share_read is None


def test_a_reference_in_a_table_may_begin_with_a_bracket(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(
        'item,output,references\n1,x,[laughs] hello\n2,x,"[1, 2]"\n3,x,"[""a"", ""b""]"\n4,x,[]\n', encoding="utf-8"
    )
    assert [r.references for r in read_records(path)] == [("[laughs] hello",), ("[1, 2]",), ("a", "b"), ()]
    path.write_text('item,output,reference\n1,x,"[""a""]"\n', encoding="utf-8")
    assert next(iter(read_records(path))).references == ('["a"]',)


def test_judgments_of_minus_one_and_minus_two_are_two_judgments() -> None:
    row = {"item": "1", "system": "a", "output": "x", "raters": ["r"], "scores": {"m": -1}, "ratings": {"mqm": [-1]}}
    again = {**row, "scores": {"m": -2}, "ratings": {"mqm": [-2]}}
    entries = list(read_records([row, again]).entries())
    assert [rating.value for entry in entries for rating in entry.ratings] == [-1, -2]
    assert [score.value for entry in entries for score in entry.scores] == [-1, -2]


def test_the_columns_of_a_row_without_text_are_kept() -> None:
    row = {"item": "1", "system": "a", "task": "story", "doc": "d1", "source": "s", "ratings": {"fluency": [3]}}
    (entry,) = read_records([row]).entries()
    assert entry.columns == {"task": "story", "doc": "d1"}


def test_files_with_the_same_numbers_for_different_inputs_print_a_note(tmp_path: Path) -> None:
    for name, source in (("de", "Hund"), ("ru", "собака")):
        (tmp_path / f"{name}.jsonl").write_text(f'{{"item": "1", "output": "dog", "source": "{source}"}}\n')
    reader = read_records([tmp_path / "de.jsonl", tmp_path / "ru.jsonl"])
    assert len(list(reader)) == 2
    assert reader.remarks[0].startswith("1 record has a different source than an earlier record of the same item")
    (tmp_path / "ru.jsonl").write_text('{"item": "1", "output": "hound", "source": "Hund"}\n')
    assert (len(list(reader)), reader.remarks) == (2, [])


def test_a_reader_knows_its_options_and_whether_it_can_be_read_again(write: Write) -> None:
    path = write('{"id": "1", "text": "a"}\n', "a.jsonl")
    options = {"fields": {"item": "id", "output": "text"}, "system": "s", "item_key": ("item",)}
    reader = read_records(path, **options)
    assert reader.options == {**options, "item_key": ["item"]}
    again = read_records(path, **reader.options)
    assert list(again) == list(reader)
    assert reader.is_repeatable
    assert read_records(path).options == {}
    assert not read_records(iter([{"item": "1", "system": "s", "output": "o"}])).is_repeatable


def test_a_reader_knows_which_file_a_record_came_from(write: Write) -> None:
    paths = [write(f'{{"item": "{n}", "output": "a"}}\n' * 2, f"{n}.jsonl") for n in range(3)]
    reader = read_records(paths)
    assert [(record.system, reader.source_number) for record in reader] == [("0", 0), ("1", 1), ("2", 2)]


def write_folders(root: Path, **contents: str) -> list[Path]:
    """`write_folders(root, a="item,output\\n…")`: the files a/data.csv and so on."""
    for name, content in contents.items():
        (root / name).mkdir()
        (root / name / "data.csv").write_text(content)
    return [root / name / "data.csv" for name in contents]


def test_files_of_one_name_are_systems_named_with_their_folders(tmp_path: Path) -> None:
    announced: list[str] = []
    files = write_folders(tmp_path, a="id,output\n1,x\n", b="id,output\n1,y\n", c="id,output\n2,z\n")
    reader = read_records(files, announce=announced.append)
    assert [record.system for record in reader] == ["a/data", "b/data", "c/data"]
    assert [entry.keys[0][1] for entry in reader.entries()] == ["a/data", "b/data", "c/data"]
    assert len(announced) == 1
    assert announced[0].endswith("item = id, systems = a/data, b/data, c/data (files of one name)")
    assert [reader.source_options(n) for n in range(2)] == [{"system": "a/data"}, {"system": "b/data"}]
    # A name for all of them, or columns that name the systems, are taken as they are.
    assert {record.system for record in read_records([files[0], files[2]], system="s")} == {"s"}
    assert {record.system for record in read_records([files[0], files[2]], outputs=["v=output"])} == {"v"}
    twins = tmp_path / "d.csv", tmp_path / "d.tsv"
    for twin, content in zip(twins, ("id,output\n1,x\n", "id\toutput\n1\ty\n"), strict=True):
        twin.write_text(content)
    assert [record.system for record in read_records(list(twins))] == ["d.csv", "d.tsv"]


def test_files_of_one_name_stay_one_system_where_they_agree(tmp_path: Path) -> None:
    files = write_folders(
        tmp_path,
        texts="item,output\n1,x\n2,y\n",
        ratings="item,rating:fluency\n1,3\n2,4\n",
        both="item,output,rating:fluency\n2,y,5\n",
        named="item,system,output\n1,s,z\n",
    )
    reader = read_records(files)
    assert {system for entry in reader.entries() for _, system in entry.keys} == {"data", "s"}
    assert sum(len(entry.ratings) for entry in reader.entries()) == 3


def test_rows_that_repeat_an_earlier_one_are_counted_in_a_note() -> None:
    rows = [{**ROW, "item": str(n)} for n in range(60)]
    reader = read_records([*rows, *rows])
    assert len(list(reader)) == 60
    assert reader.remarks == ["60 rows repeat an earlier one and count once"]
    list(reader.entries())
    assert reader.remarks == ["60 rows repeat an earlier one and count once"]
    one = read_records([*rows, rows[0]])
    list(one)
    assert one.remarks == ["1 row repeats an earlier one and counts once"]
    rated = read_records([{**row, "ratings": {"f": 1}} for row in (*rows, *rows)])
    list(rated)
    assert rated.remarks == []
