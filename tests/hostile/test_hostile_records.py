"""Records, archives, other people's formats and stored answers of strangers."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import sqlite3
import tarfile
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

import metrist
from error_codes import raises_code
from metrist.errors import InputError
from metrist.llm.cache import FILE_NAME, AnswerCache

Refused = Callable[..., str]

DEEP = 100_000
MARK = '{"item": "1", "system": "a", "output": "'


def _zip(*entries: tuple[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries:
            archive.writestr(name, data)
    return buffer.getvalue()


def _tar() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo("../../canary"))
    return buffer.getvalue()


ROW = b'{"item": "1", "system": "a", "output": "x", "references": ["x"]'
FILES: dict[str, tuple[str, str, bytes]] = {
    "a row nested 100,000 deep": ("nested", "r.jsonl", ROW + b', "x": ' + b"[" * DEEP),
    "a list nested 100,000 deep": ("nested", "r.json", b"[" * DEEP),
    "a number of 5,000 digits": ("digits", "r.jsonl", ROW + b', "x": ' + b"9" * 5000 + b"}"),
    "a pickle as records": ("UTF-8", "r.jsonl", b"\x80\x04cos\nsystem\n(S'touch canary'\ntR."),
    "a zip archive as records": ("zip archive", "r.jsonl", _zip(("../../canary", b"x"))),
    "a tar archive with a path": ("", "r.jsonl", _tar()),
    "gzip that is cut short": ("cut short", "r.jsonl.gz", gzip.compress(ROW + b"}" * 9)[:-9]),
    "YAML with a tag": ("JSON", "r.jsonl", b"!!python/object/apply:os.system ['touch canary']"),
    "XML with a billion laughs": ("JSON", "r.jsonl", b'<!DOCTYPE l [<!ENTITY a "&b;&b;">]><l>&a;</l>'),
    "a sheet that is no zip": ("", "r.xlsx", b"PK\x03\x04" + bytes(100)),
    "a sheet with a billion laughs": (
        "",
        "r.xlsx",
        _zip(("[Content_Types].xml", b'<!DOCTYPE l [<!ENTITY a "&a;&a;">]><l>&a;</l>'), ("xl/workbook.xml", b"<x/>")),
    ),
}


@pytest.mark.parametrize("case", FILES)
def test_a_file_of_records_is_refused(case: str, tmp_path: Path, refused: Refused) -> None:
    word, name, content = FILES[case]
    (tmp_path / name).write_bytes(content)
    refused(word, "score", tmp_path / name, "-m", "chrf")


def _bomb(suffix: str) -> bytes:
    """32 megabytes in one line."""
    data = MARK.encode() + b"a" * (1 << 25)
    if suffix == ".zst":
        return zstandard.ZstdCompressor().compress(data)
    return gzip.compress(data) if suffix == ".gz" else lzma.compress(data, preset=0)


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_a_line_of_gigabytes_is_refused(
    suffix: str, tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METRIST_MAX_ROW", str(1 << 24))
    (tmp_path / f"r.jsonl{suffix}").write_bytes(_bomb(suffix))
    refused("METRIST_MAX_ROW", lambda: list(metrist.read_records(tmp_path / f"r.jsonl{suffix}")))


@pytest.mark.parametrize("name", ["r.jsonl", "r.csv", "r.json"])
def test_a_row_of_gigabytes_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METRIST_MAX_ROW", str(1 << 20))
    text = "a b\n" * (1 << 18) + "a" * (1 << 20)
    row = json.dumps({"item": "1", "output": text})
    content = {"r.jsonl": row, "r.csv": f'item,output\n1,"{text}"\n', "r.json": f"[{row}]"}[name]
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError) as caught:
        list(metrist.read_records(tmp_path / name))
    assert caught.value.code in ("too_large", "invalid_row")
    monkeypatch.setenv("METRIST_MAX_ROW", str(1 << 23))
    assert [record.output for record in metrist.read_records(tmp_path / name)] == [text]


@pytest.mark.parametrize("name", ["r.jsonl.gz", "r.csv.gz", "r.json.gz"])
def test_an_archive_of_blank_lines_is_refused(name: str, tmp_path: Path) -> None:
    rows = {"r.csv.gz": b"item,output\n1,x\n", "r.json.gz": b"["}.get(name, ROW + b"}\n")
    (tmp_path / name).write_bytes(gzip.compress(rows + b"\n" * (1 << 22), 9))
    with raises_code(InputError, "damaged", name):
        list(metrist.read_records(tmp_path / name))


def test_an_archive_of_gigabytes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = b'{"item": "1", "output": "%s"}\n' % (b"x" * 10_000) * 300
    (tmp_path / "r.jsonl.gz").write_bytes(gzip.compress(rows, 9))
    monkeypatch.setenv("METRIST_MAX_UNPACKED", str(1 << 20))
    with raises_code(InputError, "too_large", "METRIST_MAX_UNPACKED"):
        list(metrist.read_records(tmp_path / "r.jsonl.gz"))
    monkeypatch.setenv("METRIST_MAX_UNPACKED", str(1 << 30))
    assert len(list(metrist.read_records(tmp_path / "r.jsonl.gz"))) == 1
    monkeypatch.setenv("METRIST_MAX_UNPACKED", "many")
    with raises_code(InputError, "invalid_value", "METRIST_MAX_UNPACKED"):
        list(metrist.read_records(tmp_path / "r.jsonl.gz"))


def _repeat(text: str, rows: int, *, in_list: bool = False) -> pa.Table:
    """A table in which a text is stored once and stands in many rows, or many times in a list in the first."""
    texts: Any = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([text]))
    if in_list:
        texts = pa.ListArray.from_arrays(pa.array([0, rows, rows]), texts)
    column = {"references" if in_list else "source": texts}
    return pa.table({"item": list(map(str, range(len(texts)))), "output": ["x"] * len(texts), **column})


@pytest.mark.parametrize(
    ("text", "in_list"),
    [
        pytest.param("a" * (3 << 20), False, id="a text that is too long"),
        pytest.param("".join(map(chr, range(0x4E00, 0x9000))) * 9, True, id="a list of too many texts"),
        pytest.param("", True, id="a list of empty texts"),
    ],
)
def test_a_parquet_file_that_repeats_a_text_is_refused(
    text: str, in_list: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METRIST_MAX_ROW", str(1 << 20))
    monkeypatch.setattr("metrist.io.table_rows._LIST_ENTRIES", 1 << 10)
    monkeypatch.setattr("metrist.io.table_rows._LIST_BYTES", 1 << 24)
    pq.write_table(_repeat(text, 1 << 16, in_list=in_list), tmp_path / "r.parquet", store_schema=False)
    with raises_code(InputError, "too_large", "METRIST_MAX_ROW"):
        list(metrist.read_records(tmp_path / "r.parquet"))


def test_long_texts_of_a_parquet_file_are_read_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metrist.io.table_rows._PARQUET_BYTES", 1 << 20)
    text = "".join(map(chr, range(0x4E00, 0x9000))) * 24
    pq.write_table(_repeat(text, 64), tmp_path / "r.parquet", store_schema=False)
    tracemalloc.start()
    try:
        records = metrist.read_records(tmp_path / "r.parquet").batches(1)
        assert [batch.records.sources[0] == text for batch in records] == [True] * 64
        assert tracemalloc.get_traced_memory()[1] < 16 * 2 * len(text)
    finally:
        tracemalloc.stop()


def test_a_link_to_a_device_is_refused(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").symlink_to("/dev/zero")
    with raises_code(InputError, "unreadable", "device"):
        metrist.read_records(tmp_path / "r.jsonl")


DOCUMENTS: dict[str, tuple[str, bytes]] = {
    "nested 100,000 deep": ("nested", b'[{"a": ' + b"[" * DEEP),
    "a number of 5,000 digits": ("digits", b'{"a": ' + b"9" * 5000 + b"}"),
    "the same key twice": ("twice", b'{"a": 1, "a": 2}'),
    "a pickle": ("pickle", b"\x80\x04cos\nsystem\n(S'touch canary'\ntR."),
    "UTF-16": ("", '{"a": 1}'.encode("utf-16")),
    "another program's JSON": ("", b'{"__class__": "os.system", "arguments": ["touch canary"]}'),
}


@pytest.mark.parametrize("case", DOCUMENTS)
@pytest.mark.parametrize("kind", ["bartscore", "alpaca_eval", "label_studio"])
def test_a_file_of_another_tool_is_refused(kind: str, case: str, tmp_path: Path, refused: Refused) -> None:
    word, content = DOCUMENTS[case]
    (tmp_path / "in.json").write_bytes(content)
    refused(word if kind == "bartscore" else "", "convert", tmp_path / "in.json", "--kind", kind, "-o", "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()


LABEL_STUDIO: dict[str, Any] = {
    "annotations that are a number": {"id": 1, "data": {"output": "x"}, "annotations": 7},
    "a result that is a text": {"id": 1, "data": {"output": "x"}, "annotations": [{"result": "x"}]},
    "a region of 5,000 digits": {
        "id": 1,
        "data": {"output": "x"},
        "annotations": [{"result": [{"type": "labels", "value": {"labels": ["x"], "start": "9" * 5000, "end": "2"}}]}],
    },
    "an annotation that is a text": {"id": 1, "data": {"output": "x"}, "annotations": ["x"]},
    "data that are a list": {"id": 1, "data": [1], "annotations": []},
}


@pytest.mark.parametrize("case", LABEL_STUDIO)
def test_a_label_studio_file_is_refused(case: str, tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "in.json").write_text(json.dumps([LABEL_STUDIO[case]]))
    refused("", "convert", tmp_path / "in.json", "--kind", "label_studio", "-o", tmp_path / "out.jsonl")


ANSWERS: dict[str, tuple[str, bytes]] = {
    "nested 100,000 deep": ("not an answer", b"[" * DEEP),
    "a number of 5,000 digits": ("not an answer", b'{"when": ' + b"9" * 5000 + b"}"),
    "a list": ("not an answer", b"[1]"),
    "no fields": ("missing", b"{}"),
    "a date beyond all dates": ("", b'{"when": "99999-01-01T00:00:00"}'),
    "a pickle": ("not an answer", b"\x80\x04\x95"),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_a_file_of_answers_is_refused(case: str, tmp_path: Path, refused: Refused) -> None:
    word, content = ANSWERS[case]
    (tmp_path / "answers.jsonl").write_bytes(content)
    refused(word, "answers", "import", tmp_path / "answers.jsonl")


def test_answers_of_gigabytes_are_refused(tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metrist.llm.replay._LONGEST_LINE", 1 << 20)
    (tmp_path / "answers.jsonl.gz").write_bytes(_bomb(".gz"))
    refused("1,048,576", "answers", "import", tmp_path / "answers.jsonl.gz")


def _spoil_cache(folder: Path, *statements: str, values: tuple[Any, ...] = ()) -> None:
    AnswerCache(folder).contents() if (folder / FILE_NAME).exists() else AnswerCache(folder).check_writable()
    with sqlite3.connect(folder / FILE_NAME) as connection:
        for statement in statements:
            connection.execute(statement, values if "?" in statement else ())
    connection.close()


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param("CREATE TRIGGER t AFTER INSERT ON answers BEGIN DELETE FROM answers; END", id="a trigger"),
        pytest.param("CREATE VIEW v AS SELECT load_extension('canary')", id="a view"),
        pytest.param("PRAGMA application_id = 7", id="another program's file"),
    ],
)
def test_a_cache_of_a_stranger_is_set_aside(statement: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _spoil_cache(tmp_path, statement)
    cache = AnswerCache(tmp_path)
    cache.check_writable()
    assert not cache.contents().answers
    assert "set aside" in caplog.text


def _blob(data: bytes) -> bytes:
    return data + zlib.crc32(data).to_bytes(4, "big")


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param(zlib.compress(b"[" * DEEP), id="nested 100,000 deep"),
        pytest.param(zlib.compress(b"7" * 5000), id="a number of 5,000 digits"),
        pytest.param(b"no zlib at all", id="not compressed"),
        pytest.param(zlib.compress(b"[]"), id="a list"),
    ],
)
def test_an_entry_of_a_cache_that_is_none_counts_as_missing(entry: bytes, tmp_path: Path) -> None:
    names = "(key, llm, question, answer, arrived)"
    _spoil_cache(tmp_path, f"INSERT INTO answers {names} VALUES ('k', 'm', ?, ?, 1.0)", values=(_blob(entry),) * 2)
    assert list(AnswerCache(tmp_path).entries()) == []


def test_an_entry_of_gigabytes_counts_as_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metrist.llm.cache._LARGEST_DATA", 1 << 16)
    data = zlib.compress(b" " * (1 << 20))
    names = "(key, llm, question, answer, arrived)"
    _spoil_cache(tmp_path, f"INSERT INTO answers {names} VALUES ('k', 'm', ?, ?, 1.0)", values=(_blob(data),) * 2)
    assert list(AnswerCache(tmp_path).entries()) == []


def test_a_pipe_that_the_shell_made_is_read() -> None:
    from metrist.documents import read_text

    reader, writer = os.pipe()
    os.write(writer, b"x = 1")
    os.close(writer)
    assert read_text(Path(f"/dev/fd/{reader}"), InputError) == "x = 1"
    os.close(reader)
