"""Line files as sacreBLEU takes them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from error_codes import raises_code
from metrist.errors import InputError
from metrist.io import read_records
from metrist.io.convert import line_files, write_rows

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\ufeff"))


def lines(path: Path, *texts: str) -> Path:
    path.write_bytes("".join(f"{text}\n" for text in texts).encode())
    return path


def test_line_n_of_every_file_is_one_item(tmp_path: Path) -> None:
    source, reference = lines(tmp_path / "src", "eins", "zwei"), lines(tmp_path / "ref", "one", "two")
    outputs = {"a": lines(tmp_path / "a", "on", "tow"), "b": lines(tmp_path / "b", "1", "2")}
    rows = list(line_files(outputs, source=source, references=[reference], task="translation", language="de-en"))
    shared = {"task": "translation", "language": "de-en"}
    assert rows == [
        {"item": "1", "source": "eins", "references": ["one"], **shared, "system": "a", "output": "on"},
        {"item": "1", "source": "eins", "references": ["one"], **shared, "system": "b", "output": "1"},
        {"item": "2", "source": "zwei", "references": ["two"], **shared, "system": "a", "output": "tow"},
        {"item": "2", "source": "zwei", "references": ["two"], **shared, "system": "b", "output": "2"},
    ]


def test_outputs_alone_are_enough(tmp_path: Path) -> None:
    assert list(line_files({"a": lines(tmp_path / "a", "x", "")})) == [
        {"item": "1", "system": "a", "output": "x"},
        {"item": "2", "system": "a", "output": ""},
    ]


def test_an_empty_reference_line_means_no_reference(tmp_path: Path) -> None:
    references = [lines(tmp_path / "r1", "one", "two"), lines(tmp_path / "r2", "", "deux")]
    rows = line_files({"a": lines(tmp_path / "a", "x", "y")}, references=references)
    assert [row["references"] for row in rows] == [["one"], ["two", "deux"]]


def test_only_a_newline_ends_a_line(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes("\ufeffa\u2028b\x0bc\r\nlast, without an end".encode())
    assert [row["output"] for row in line_files({"a": path})] == ["a\u2028b\x0bc", "last, without an end"]


def test_files_of_different_lengths_are_rejected_with_both_counts(tmp_path: Path) -> None:
    outputs = {"a": lines(tmp_path / "a.txt", "x")}
    with raises_code(InputError, "invalid_value", "a.txt", "ref.txt"):
        line_files(outputs, references=[lines(tmp_path / "ref.txt", "x", "y")])


def test_outputs_are_required() -> None:
    with pytest.raises(
        InputError, match=r"at least one file of outputs with its system's name, such as nllb=nllb\.txt"
    ):
        line_files({})


def test_bytes_that_are_not_utf8_are_named_with_their_line(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"fine\nno\xff\n")
    with raises_code(InputError, "unreadable", "a.txt:2", "0xff"):
        list(line_files({"a": path}))


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=4))
def test_any_text_survives_conversion(tmp_path: Path, pairs: list[tuple[str, str]]) -> None:
    source = lines(tmp_path / "source", *(source for source, _ in pairs))
    outputs = {"a": lines(tmp_path / "a", *(output for _, output in pairs))}
    write_rows(line_files(outputs, source=source), tmp_path / "rows.jsonl")
    assert [(record.source, record.output) for record in read_records(tmp_path / "rows.jsonl")] == pairs
