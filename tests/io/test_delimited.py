"""CSV and TSV."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from metrist.errors import InputError
from metrist.io import read_records, read_rows

Write = Callable[..., Path]


def test_rows_know_the_line_they_begin_on(write: Write) -> None:
    path = write('item,output\n1,"two\nlines"\n\n2,b\n', "a.csv")
    assert [(place.line, dict(row)) for place, row in read_rows(path)] == [
        (2, {"item": "1", "output": "two\nlines"}),
        (5, {"item": "2", "output": "b"}),
    ]


def test_rows_without_a_cell_are_no_records(write: Write) -> None:
    path = write("item,system,output,source\n1,a,x,s\n,,,\n2,a,y,s\n,,,\n", "a.csv")
    assert [record.item for record in read_records(path)] == ["1", "2"]


def test_a_table_in_full(write: Write) -> None:
    path = write(
        "item\tsystem\toutput\tsource\treferences\treference_2\trating:fluency\tscore:bleu\trater\tdoc\n"
        '7\ta\t\tsrc\t"[""r1"", ""r2""]"\tr3\t4\t0.5\tann\td1\n'
        "7\tb\tout\t\tone reference\t\t\t\t\td1\n",
        "a.tsv",
    )
    first, second = read_records(path).entries()
    assert first.records[0].output == ""
    assert first.records[0].references == ("r1", "r2", "r3")
    assert first.records[0].extra == {"doc": "d1"}
    assert [(r.aspect, r.rater, r.value) for r in first.ratings] == [("fluency", "ann", 4.0)]
    assert [(s.metric, s.value) for s in first.scores] == [("bleu", 0.5)]
    assert second.records[0].source is None
    assert second.records[0].references == ("one reference",)
    assert second.ratings == second.scores == ()


def test_lists_and_objects_are_read_from_their_json(write: Write) -> None:
    path = write(
        "item,systems,outputs,ratings,raters\n"
        '1,"[""a"", ""b""]","[""x"", ""y""]","{""better"": [1, 0]}","[""r1"", ""r2""]"\n',
        "a.csv",
    )
    (entry,) = read_records(path).entries()
    assert [(p.rater, p.choice) for p in entry.preferences] == [("r1", "first"), ("r2", "tie")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"item,output\n1,a,b\n", ":2: must have 2 cells like the header, got 3"),
        (b"item,output\n1\n", ":2: must have 2 cells like the header, got 1"),
        (b'item,output\n1,"a"b\n', ":2: not readable as CSV: ',' expected after '\"'"),
        (b'item,output\n1,a\n2,"never closed\n3,c\n', ":3: not readable as CSV: unexpected end of data"),
        (b"item,item\n1,2\n", ":1: the header names the column 'item' twice"),
        (b'"item\n', ":1: the header line is not readable: unexpected end of data"),
        (b"item,\xff\n", ":1: not UTF-8 text: byte 0xff at position 6 of the line"),
        (b"item,output\n1,\xff\n", ":2: not UTF-8 text: byte 0xff at position 3 of the line"),
        (b"item,output,ratings\n1,a,good\n", ":2: 'ratings' must be JSON: not valid JSON: Expecting value"),
        (b"item,output\n", ": no rows"),
        (b"", ": no rows"),
    ],
)
def test_a_table_that_cannot_be_read_is_named(text: bytes, message: str, write: Write) -> None:
    path = write(text, "a.csv")
    with pytest.raises(InputError, match=re.escape(f"{path}{message}")):
        list(read_records(path).entries())


def test_bad_rows_of_a_table_can_be_skipped(write: Write) -> None:
    path = write(b'item,output\n1,a\n2,\xff\n3,"c"c\n4,d,e\n5,f\n', "a.csv")
    reader = read_records(path, skip_bad=True)
    assert [record.item for record in reader] == ["1", "5"]
    assert reader.skipped.count == 3
