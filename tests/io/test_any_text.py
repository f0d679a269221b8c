"""Any text or bytes: records come back exactly, or metrist reports an error."""

from __future__ import annotations

import csv
import io
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from metrist.errors import MetristError
from metrist.io import fields as metrist_fields
from metrist.io import read_records
from metrist.records import Record

NAMES = st.text(min_size=1)
TEXTS = st.text(st.characters(exclude_categories=[])) | st.sampled_from(
    ["\0", "\ud800", "\u202e\u2028", "\U0001f600", ""]
)
PLAIN = st.text(st.characters(exclude_categories=["Cs"]))
ROWS = st.fixed_dictionaries(
    {"item": NAMES, "system": NAMES, "output": TEXTS},
    optional={"source": TEXTS, "instruction": TEXTS, "task": TEXTS, "language": TEXTS, "references": st.lists(TEXTS)},
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from([*metrist_fields.FIELDS, "reference_1", "rating:f", "score:b"])
# A file per example would need a fresh folder each; the one that all examples write to serves as well.
same_file = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def wanted(row: dict[str, Any]) -> Record:
    return Record(**{**row, "references": tuple(row.get("references", ()))})


@same_file
@given(st.lists(ROWS, min_size=1, unique_by=lambda row: (row["item"], row["system"])), st.booleans())
def test_json_lines_come_back_exactly(tmp_path: Path, rows: list[dict[str, Any]], escaped: bool) -> None:
    path = tmp_path / "a.jsonl"
    lines = "".join(json.dumps(row, ensure_ascii=escaped) + "\n" for row in rows)
    path.write_bytes(lines.encode("utf-8", "backslashreplace"))
    assert list(read_records(path)) == [wanted(row) for row in rows]


@same_file
@given(
    st.lists(
        st.tuples(st.integers(), PLAIN, PLAIN, st.lists(PLAIN, min_size=1)), min_size=1, unique_by=lambda row: row[0]
    ),
    st.sampled_from([("a.csv", ","), ("a.tsv", "\t")]),
)
def test_tables_come_back_exactly(tmp_path: Path, rows: list[Any], kind: tuple[str, str]) -> None:
    file = io.StringIO(newline="")
    writer = csv.writer(file, delimiter=kind[1], quoting=csv.QUOTE_ALL)
    writer.writerow(["item", "output", "source", "references"])
    writer.writerows((item, output, source, json.dumps(references)) for item, output, source, references in rows)
    path = tmp_path / kind[0]
    path.write_bytes(file.getvalue().encode())
    assert list(read_records(path)) == [
        Record(item=str(item), system="a", output=output, source=source or None, references=tuple(references))
        for item, output, source, references in rows
    ]


@same_file
@given(st.lists(st.dictionaries(FIELDS | TEXTS, JSON), min_size=1, max_size=4))
@example([{"output": "o", "ratings": {"f": [10**400]}}])
@example([{"item": 1, "output": "o", "errors": [{"start": -1, "end": 10**40}]}])
@example([{"item": float("nan"), "output": float("nan")}])
def test_any_json_in_any_field_is_read_or_refused(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for source in (path, rows):
        for skip_bad in (False, True):
            with suppress(MetristError):
                list(read_records(source, skip_bad=skip_bad).entries())
            with suppress(MetristError):
                list(read_records(source, skip_bad=skip_bad))


@same_file
@given(
    st.binary() | st.text().map(lambda text: ("item,output\n" + text).encode("utf-8", "surrogatepass")),
    st.sampled_from(["a.jsonl", "a.json", "a.csv", "a.tsv", "a", "a.jsonl.gz", "a.csv.xz", "a.zst", "a.parquet"]),
)
@example(b"[" * 100_000, "a.json")
@example(b'{"a":' * 100_000, "a.jsonl")
@example(b'[{"a": "' + b"\xf0\x9f\x98", "a.json")
def test_any_bytes_are_read_or_refused(tmp_path: Path, content: bytes, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    for skip_bad in (False, True):
        with suppress(MetristError):
            list(read_records(path, skip_bad=skip_bad).entries())


def test_messages_about_bad_rows_can_be_printed() -> None:
    rows = [{"item": "\ud800", "output": "a"}, {"item": "\ud800", "output": "b", "\udfff": 1}]
    with pytest.raises(MetristError, match=r"item '\\ud800' of system") as error:
        list(read_records(rows))
    str(error.value).encode()


def test_lines_of_a_megabyte_are_lines_like_others(tmp_path: Path) -> None:
    text = "word ünï\U0001f600 " * 100_000
    for name, content in (
        ("a.jsonl", json.dumps({"item": 1, "output": text})),
        ("a.json", json.dumps([{"item": 1, "output": text}])),
        ("a.tsv", f"item\toutput\n1\t{text}\n"),
    ):
        (tmp_path / name).write_text(content, encoding="utf-8")
        assert [record.output for record in read_records(tmp_path / name)] == [text]
