"""`metrist build error-analysis`, as a user calls it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from metrist.data.error_analysis import read_examples
from metrist.evaluate.audit.stress import read_examples as read_reports


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """Twenty summaries with sources and references; people marked an error in the first one."""
    path = tmp_path / "records.jsonl"
    rows: list[dict[str, Any]] = [
        {
            "item": record.item, "system": "s", "task": record.task, "source": record.source, "output": record.output,
            "references": list(record.references),
        }
        for record in read_reports()
    ]  # fmt: skip
    rows[0]["errors"] = [{"start": 0, "end": 5, "category": "Extrinsic Entity Error"}]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_build(metrist: Callable[..., Any], records: Path, tmp_path: Path) -> None:
    out = tmp_path / "data"
    answer = metrist("build", "error-analysis", records, "-o", out, "--synthetic", 50, "--freeform", 5, "--chat")
    assert answer.code == 0, answer.err
    examples = list(read_examples(out / "examples.jsonl"))
    assert f"wrote {len(examples)} examples" in answer.err
    assert {example.channel for example in examples} == {"human", "synthetic", "reference", "freeform"}
    assert "Errors per example" in answer.out
    report = json.loads((out / "report.json").read_text())
    assert report["made"] == {"human": 1, "reference": 20, "synthetic": 50, "freeform": 5}
    assert len((out / "chat.jsonl").read_text().splitlines()) == len(examples)
    assert sorted(path.name for path in out.iterdir()) == ["chat.jsonl", "examples.jsonl", "report.json"]


def test_channels_and_mix(metrist: Callable[..., Any], records: Path, tmp_path: Path) -> None:
    mix = tmp_path / "mix.toml"
    mix.write_text("[summarization]\nsynthetic = 3\nreference = 1\n")
    answer = metrist(
        *("build", "error-analysis", records, "-o", tmp_path / "data", "--channel", "synthetic,reference"),
        *("--mix", mix, "--size", 8, "--format", "json"),
    )
    assert answer.code == 0, answer.err
    tables = {table["title"]: table for table in json.loads(answer.out)}
    assert tables["Mix"]["rows"][0]["taken"] == 6
    assert len(list(read_examples(tmp_path / "data" / "examples.jsonl"))) == 8


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--channel", "humans"], "human"),
        (["--mix", "papers"], "paper"),
        (["--fault", "numbers"], "number"),
        (["--category", "x"], "--category"),
        (["--clean", "x=y"], "--clean"),
        (["--size", "5"], "mix"),
        (["--task", "summarizaton"], "did you mean 'summarization'"),
    ],
)
def test_wrong_options(
    metrist: Callable[..., Any], records: Path, tmp_path: Path, options: list[str], word: str
) -> None:
    answer = metrist("build", "error-analysis", records, "-o", tmp_path / "data", *options)
    assert answer.code != 0
    assert word in answer.err
    assert not (tmp_path / "data").exists()


def test_nothing_to_learn_from(metrist: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text('{"item": "1", "system": "s", "output": ""}\n')
    answer = metrist("build", "error-analysis", path, "-o", tmp_path / "data")
    assert answer.code != 0
    assert "no examples" in answer.err


def test_the_folder_is_a_file(metrist: Callable[..., Any], records: Path, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("mine")
    answer = metrist("build", "error-analysis", records, "-o", tmp_path / "data" / "sub", "--llm", FAKE)
    assert answer.code != 0
    assert "expected a folder" in answer.err
    # It is noticed before anything is asked.
    assert "questions" not in answer.err
    assert (tmp_path / "data").read_text() == "mine"


FAKE = "fake(answers='There are no errors that I can see.')"


def test_a_dry_run_asks_and_writes_nothing(metrist: Callable[..., Any], records: Path, tmp_path: Path) -> None:
    answer = metrist(
        *("build", "error-analysis", records, "-o", tmp_path / "data", "--llm", FAKE, "--real", 6, "--dry-run"),
        *("--format", "json"),
    )
    assert answer.code == 0, answer.err
    (row,) = json.loads(answer.out)["rows"]
    assert row["questions"] == 12
    assert not (tmp_path / "data").exists()


def test_an_llm_that_cannot_be_read(metrist: Callable[..., Any], records: Path, tmp_path: Path) -> None:
    answer = metrist("build", "error-analysis", records, "-o", tmp_path / "data", "--llm", FAKE, "--real", 6)
    assert answer.code == 0, answer.err
    assert "12 questions" in answer.err
    removed = {row["step"]: row for row in json.loads((tmp_path / "data" / "report.json").read_text())["removed"]}
    assert removed["unreadable"]["count"] == 6
    assert "JSON" in removed["unreadable"]["samples"][0]["reason"]


def test_outputs_are_chosen_by_stored_scores(metrist: Callable[..., Any], records: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert metrist("score", records, "-m", "chrf,rougeL", "-o", run).code == 0
    command = ("build", "error-analysis", records, "-o", tmp_path / "data", "--llm", FAKE, "--real", 6)
    answer = metrist(*command, "--scores", run)
    assert answer.code != 0
    assert "--by" in answer.err
    answer = metrist(*command, "--scores", run, "--by", "chrf")
    assert answer.code == 0, answer.err
    answer = metrist(*command, "--by", "likelihood")
    assert answer.code != 0
    assert "no scores" in answer.err
    other = tmp_path / "other.jsonl"
    other.write_text('{"item": "x", "system": "y", "output": "Some text.", "references": ["Some text."]}\n')
    answer = metrist("build", "error-analysis", other, "-o", tmp_path / "data", "--scores", run, "--by", "chrf")
    assert answer.code != 0
    assert "score these files first" in answer.err


def test_options_that_need_an_llm(metrist: Callable[..., Any], records: Path, tmp_path: Path) -> None:
    for options in (["--channel", "real"], ["--inject"], ["--generate", FAKE]):
        answer = metrist("build", "error-analysis", records, "-o", tmp_path / "data", *options)
        assert answer.code != 0
        assert "needs an LLM" in answer.err
