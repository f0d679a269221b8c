"""mt-metrics-eval's folders. File names and line formats follow the public description in its README."""

from __future__ import annotations

from pathlib import Path

import pytest

from error_codes import raises_code
from metrist.errors import InputError
from metrist.io.convert import convert, detect

FILES = {
    "sources/de-en.txt": "eins\nzwei\n",
    "references/de-en.refA.txt": "one\ntwo\n",
    "references/de-en.refB.txt": "1\n\n",
    "system-outputs/de-en/nmt.txt": "uno\ndue\n",
    "system-outputs/de-en/refA.txt": "one\ntwo\n",
    "documents/de-en.docs": "news paper.1\nchat\ttalk.2\n",
    "human-scores/de-en.mqm.seg.score": "nmt -1.5\nnmt None\nrefA 0\nrefA -0.1\n",
    "human-scores/de-en.mqm.sys.score": "nmt -1.5\nrefA 0\n",
    "metric-scores/de-en/BLEU-refA.seg.score": "nmt 12.5\nnmt 0\n",
    "metric-scores/de-en/BLEU-refA.sys.score": "nmt 6\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        path = tmp_path / "wmt" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return tmp_path / "wmt"


def test_one_row_per_line_and_system(folder: Path) -> None:
    assert detect(folder) == "mt_metrics_eval"
    first = {"item": "de-en:1", "source": "eins", "task": "translation", "language": "de-en"}
    second = {"item": "de-en:2", "source": "zwei", "task": "translation", "language": "de-en"}
    assert list(convert(folder)) == [
        {
            **first,
            "doc": "paper.1",
            "domain": "news",
            "system": "nmt",
            "references": ["one", "1"],
            "ratings": {"mqm": [-1.5]},
            "scores": {"BLEU-refA": 12.5},
            "output": "uno",
        },
        {
            **first,
            "doc": "paper.1",
            "domain": "news",
            "system": "refA",
            "references": ["1"],
            "ratings": {"mqm": [0.0]},
            "output": "one",
        },
        {
            **second,
            "doc": "talk.2",
            "domain": "chat",
            "system": "nmt",
            "references": ["two"],
            "scores": {"BLEU-refA": 0.0},
            "output": "due",
        },
        {
            **second,
            "doc": "talk.2",
            "domain": "chat",
            "system": "refA",
            "ratings": {"mqm": [-0.1]},
            "output": "two",
        },
    ]


def test_references_can_be_selected(folder: Path) -> None:
    assert [row.get("references") for row in convert(folder, references=["refA"])] == [["one"], None, ["two"], None]


def test_sources_and_outputs_are_enough(folder: Path) -> None:
    for name in FILES:
        if not name.startswith(("sources", "system-outputs")):
            (folder / name).unlink()
    assert [(row["item"], row["system"], row["output"]) for row in convert(folder)] == [
        ("de-en:1", "nmt", "uno"),
        ("de-en:1", "refA", "one"),
        ("de-en:2", "nmt", "due"),
        ("de-en:2", "refA", "two"),
    ]


def test_a_document_line_may_have_no_domain(folder: Path) -> None:
    (folder / "documents/de-en.docs").write_text("paper.1\npaper.2\n", encoding="utf-8")
    assert [row["doc"] for row in convert(folder)][::2] == ["paper.1", "paper.2"]


def test_several_language_pairs_are_converted_one_at_a_time(folder: Path) -> None:
    (folder / "sources/en-fi.txt").write_text("one\n", encoding="utf-8")
    with raises_code(InputError, "unreadable", "'de-en'", "'en-fi'"):
        list(convert(folder))
    assert len(list(convert(folder, language="de-en"))) == 4
    with raises_code(InputError, "unreadable", "SYSTEM.txt"):
        list(convert(folder, language="en-fi"))


def test_an_unknown_name_is_an_error_that_lists_the_known_ones(folder: Path) -> None:
    with raises_code(InputError, "unknown_name", "'de-eng'", "'de-en'"):
        list(convert(folder, language="de-eng"))
    with raises_code(InputError, "unreadable", "'refC'", "'refA'", "'refB'"):
        list(convert(folder, references=["refC"]))


def test_a_missing_source_is_an_error(folder: Path) -> None:
    (folder / "sources/de-en.txt").unlink()
    with raises_code(InputError, "unreadable", "SOURCE-TARGET.txt", "en-de.txt"):
        list(convert(folder))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("system-outputs/de-en/nmt.txt", "uno\n", r"nmt\.txt: has 1 line, but .*de-en\.txt has 2"),
        ("documents/de-en.docs", "a b\n" * 3, r"de-en\.docs: has 3 lines, but .*de-en\.txt has 2"),
        ("human-scores/de-en.mqm.seg.score", "nmt 1\n", r"1 scores for system 'nmt', but the test has 2 lines"),
        ("human-scores/de-en.mqm.seg.score", "nmt\n", r"score:1: expected a system and a score, got 'nmt'"),
        (
            "human-scores/de-en.mqm.seg.score",
            "nmt 1\nnmtt 1\n",
            r"score:2: no outputs of a system 'nmtt'; did you",
        ),
        ("metric-scores/de-en/BLEU-refA.seg.score", "nmt high\n", r"score:1: 'score' must be a finite number or None"),
    ],
)
def test_an_inconsistent_file_is_named(folder: Path, name: str, content: str, message: str) -> None:
    (folder / name).write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        list(convert(folder))
