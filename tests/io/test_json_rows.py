"""JSON lines and JSON lists."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from error_codes import raises_code
from metrist.errors import InputError
from metrist.io import read_rows
from metrist.io.json_rows import json_list_rows

Write = Callable[..., Path]


def test_lines_are_objects_and_blank_lines_are_skipped(write: Write) -> None:
    path = write('\n{"a": 1}\r\n   \n{"a": "\\ud800"}')
    assert [(str(place), row) for place, row in read_rows(path)] == [
        (f"{path}:2", {"a": 1}),
        (f"{path}:4", {"a": "\ud800"}),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"a": 1', "not valid JSON: Expecting ',' delimiter at column 8, found the end of the line"),
        (b'{"a": oops}', "not valid JSON: Expecting value at column 7, found 'oops}'"),
        (b'{"a": 1} {"a": 2}', "more follows after the JSON object: ' {\"a\": 2}'"),
        (b"7", "must be a JSON object, got 7"),
        (b"[{}]", "must be a JSON object, got [{}]; name the file .json if it holds one list of objects"),
        (b'{"a": "\xff"}', "not UTF-8 text: byte 0xff at position 8 of the line"),
        (b'{"a":' + b"[" * 100_000, "not readable JSON: it is nested too deeply"),
        (b'{"a":' + b"9" * 5000 + b"}", "not readable JSON: an integer has more than 4,300 digits"),
    ],
)
def test_a_line_that_is_not_an_object_is_named(line: bytes, message: str, write: Write) -> None:
    path = write(b'{"a": 1}\n' + line)
    with pytest.raises(InputError, match=re.escape(f"{path}:2: ") + ".*" + re.escape(message)):
        list(read_rows(path))


def test_a_json_file_may_hold_a_list_or_lines(write: Write) -> None:
    rows = [{"a": i, "b": "x" * 50_000} for i in range(5)]
    as_list = write(json.dumps(rows, indent=1), "a.json")
    assert [row for _, row in read_rows(as_list)] == rows
    assert [place.line for place, _ in read_rows(as_list)] == [2, 6, 10, 14, 18]
    assert [row for _, row in read_rows(write(rows, "b.json"))] == rows
    assert list(read_rows(write("[]", "c.json"))) == []


@given(st.lists(st.dictionaries(st.text(), st.text() | st.integers() | st.lists(st.text()))))
def test_a_list_reads_as_json_reads_it(rows: list[dict[str, object]]) -> None:
    text = json.dumps(rows, ensure_ascii=True, indent=1)
    assert [row for _, row in json_list_rows(io.BytesIO(text.encode()), "a.json")] == rows


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"a": 1},\n {"a": 2}', ":2: not a JSON list of objects: expected ',' or ']', found the end of the file"),
        ('[{"a": 1} {"a": 2}]', ":1: not a JSON list of objects: expected ',' or ']', found '{'"),
        ('[{"a": 1},\n\n {"a": oops}]', ":3: not valid JSON: Expecting value"),
        ('[{"a": "cut', ":1: not valid JSON: Unterminated string"),
        ('[{"a": 1}] x', ":1: more follows after the JSON list"),
        ('[{"a": 1}, 7]', ":1: must be a JSON object, got 7"),
    ],
)
def test_an_invalid_list_is_named(text: str, message: str, write: Write) -> None:
    path = write(text, "a.json")
    with pytest.raises(InputError, match=re.escape(f"{path}{message}")):
        list(read_rows(path))


def test_a_list_that_is_not_utf8_is_named(write: Write) -> None:
    path = write(b'[{"a": "\xff"}]', "a.json")
    with raises_code(InputError, "unreadable", path, "0xff"):
        list(read_rows(path))


def test_a_stray_character_does_not_read_the_rest_of_a_list() -> None:
    stream = io.BytesIO(b'[{"a" 1},' + b'{"a": 1},' * 1_000_000)
    with raises_code(InputError, "unreadable", "a.json:1"):
        list(json_list_rows(stream, "a.json"))
    assert stream.tell() < 1 << 18
