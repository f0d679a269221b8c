"""Reading pairs of texts from files."""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from error_codes import raises_code
from metrist.errors import InputError
from metrist.train.text_pairs import read_pairs


def write_rows(path: Path, *rows: Any) -> Path:
    text = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    packs: dict[str, Callable[[bytes], bytes]]
    packs = {".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstandard.compress}
    path.write_bytes(packs.get(path.suffix, bytes)(text.encode()))
    return path


ROWS = [
    {"text": "a long text", "summary": "a text", "id": 4},
    {"source": "ein Satz", "target": "a sentence"},
    {"first": "one", "second": "eins"},
    {"item": "1", "system": "s", "output": "o", "source": "src", "references": ["r1", "r2"]},
    {"source": "src", "reference": "r3"},
]
PAIRS = (
    ("a long text", "a text"),
    ("ein Satz", "a sentence"),
    ("one", "eins"),
    ("eins", "one"),
    ("src", "r1"),
    ("src", "r2"),
    ("src", "r3"),
)


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz", ".zst"])
def test_all_forms_are_read_plain_and_compressed(tmp_path: Path, suffix: str) -> None:
    path = write_rows(tmp_path / f"pairs.jsonl{suffix}", *ROWS)
    file = read_pairs(path)
    assert file.pairs == PAIRS
    assert (file.rows, file.repeated, file.skipped.count) == (5, 0, 0)
    assert file.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_tables_are_read_too(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text('source,references\nsrc,"[""r1"", ""r2""]"\nother,r3\n')
    assert read_pairs(path).pairs == (("src", "r1"), ("src", "r2"), ("other", "r3"))


def test_duplicate_pairs_are_used_once_and_counted(tmp_path: Path) -> None:
    """As the records of many systems repeat an item's source and references."""
    row = {"source": "src", "references": ["r1", "r2"]}
    file = read_pairs(write_rows(tmp_path / "p.jsonl", row, row, {"first": "x", "second": "x"}))
    assert file.pairs == (("src", "r1"), ("src", "r2"), ("x", "x"))
    assert file.repeated == 3


@pytest.mark.parametrize(
    ("row", "values"),
    [
        ({"text": "a", "summary": " \n"}, ("p.jsonl:2", "'summary'")),
        ({"text": "", "summary": "a"}, ("p.jsonl:2", "'text'")),
        ({"first": "a", "second": ["b"]}, ("p.jsonl:2", "'second'", "got ['b']")),
        ({"source": "a", "target": None}, ("p.jsonl:2", "'target'", "got null")),
        ({"source": "a", "references": []}, ("p.jsonl:2", "'references'")),
        ({"source": "a", "references": ["b", ""]}, ("p.jsonl:2", "'references'")),
        ({"source": "a", "references": "b"}, ("p.jsonl:2", "'references'", "got 'b'")),
        (
            {"source": "a", "output": "b"},
            ("p.jsonl:2", "'text'", "'summary'", "'source'", "'output'"),
        ),
        ({}, ("p.jsonl:2",)),
        ("[1]", ("p.jsonl:2",)),
        ('{"text": ', ("p.jsonl:2",)),
    ],
)
def test_a_bad_row_is_named_or_skipped_and_counted(tmp_path: Path, row: Any, values: tuple[str, ...]) -> None:
    path = write_rows(tmp_path / "p.jsonl", ROWS[0], row, ROWS[1])
    with raises_code(InputError, "unreadable", *values):
        read_pairs(path)
    file = read_pairs(path, skip_bad=True)
    assert (file.pairs, file.skipped.count) == (PAIRS[:2], 1)


def test_a_file_without_pairs_is_refused(tmp_path: Path) -> None:
    with raises_code(InputError, "no_data", "p.jsonl", "'text'", "'summary'"):
        read_pairs(write_rows(tmp_path / "p.jsonl"))


def test_standard_input_is_refused() -> None:
    with raises_code(InputError, "invalid_value"):
        read_pairs("-")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    write_rows(tmp_path / "pairs.jsonl", ROWS[0])
    with raises_code(InputError, "missing_file", "pair.jsonl", "'pairs.jsonl'"):
        read_pairs(tmp_path / "pair.jsonl")
