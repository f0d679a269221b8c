"""Detection of formats, and files of unknown formats."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from error_codes import raises_code
from metrist.errors import InputError
from metrist.io.convert import KINDS, convert, detect


def saved(path: Path, content: str) -> Path:
    path.write_text(content, encoding="utf-8")
    return path


def test_a_document_is_detected_on_one_or_several_lines_plain_or_compressed(tmp_path: Path) -> None:
    document = {"1": {"sys_summs": {"A": {"sys_summ": "x"}}}}
    plain = json.dumps(document)
    for n, text in enumerate((plain, json.dumps(document, indent=2), f"\ufeff\n {plain}")):
        assert detect(saved(tmp_path / f"{n}.json", text)) == "bartscore"
    (tmp_path / "data.json.gz").write_bytes(gzip.compress(plain.encode()))
    assert detect(str(tmp_path / "data.json.gz")) == "bartscore"
    assert len(list(convert(str(tmp_path / "data.json.gz")))) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"found: expected JSON, which begins with { or \[, found nothing; .* --output SYSTEM=FILE"),
        ("Hello there.", r"found: expected JSON, which begins with { or \[, found 'H'"),
        ("{", r"found:1: not valid JSON: Expecting property name"),
        (
            "{}",
            r"found: is none of bartscore, alpaca_eval, .*, ragas; it begins with an object",
        ),
        ("[]", r"found: is none of .*; it begins with \[\]"),
        ("[[1]]", r"found: is none of .*; it begins with \[\[1\]\]"),
        ('{"text": "x", "label": 1}', r"found: is none of .*; it begins with an object with 'text', 'label'"),
        ('{"item": "1", "system": "a", "output": "x"}', r"already has metrist's fields"),
        ("[" * 100_000, r"found: not readable JSON: it is nested too deeply"),
    ],
)
def test_unknown_content_is_described(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        detect(saved(tmp_path / "found", content))


def test_bytes_that_are_not_utf8_are_named(tmp_path: Path) -> None:
    (tmp_path / "data.json").write_bytes(b'{"1": "\xff"}')
    with raises_code(InputError, "unreadable", "data.json", "0xff"):
        detect(tmp_path / "data.json")


def test_an_unknown_folder_is_described(tmp_path: Path) -> None:
    for name in "abcdefghij":
        (tmp_path / name).mkdir()
    message = r"expected a folder with sources/ and system-outputs/ \(mt-metrics-eval\), found 'a', .*'h' and 2 more"
    with pytest.raises(InputError, match=message):
        detect(tmp_path)


def test_a_missing_path_is_named(tmp_path: Path) -> None:
    for attempt in (detect, convert):
        with raises_code(InputError, "missing_file", "nowhere.json"):
            attempt(tmp_path / "nowhere.json")


def test_formats_are_not_mixed(tmp_path: Path) -> None:
    first = saved(tmp_path / "one.json", '{"1": {"sys_summ": "x"}}')
    second = saved(tmp_path / "two.json", '[{"instruction": "i", "output": "o", "generator": "g"}]')
    with raises_code(InputError, "unreadable", "two.json", "one.json"):
        convert(first, second)


def test_an_unknown_kind_is_an_error_that_suggests_the_nearest(tmp_path: Path) -> None:
    path = saved(tmp_path / "one.json", "{}")
    with pytest.raises(InputError, match=rf"no format named 'bart'; .*there are {', '.join(KINDS)}|did you mean"):
        convert(path, kind="bart")
    with raises_code(InputError, "unknown_name", "'bartscores'", "'bartscore'"):
        convert(path, kind="bartscores")


def test_nothing_to_convert_is_an_error() -> None:
    with pytest.raises(InputError, match=r"nothing to convert: name at least one file or folder"):
        convert()
