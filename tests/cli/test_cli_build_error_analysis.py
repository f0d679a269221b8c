"""`metrist build error-analysis`, as a user calls it."""

from __future__ import annotations

import json
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


def test_build(metrist, records: Path, tmp_path: Path) -> None:
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


def test_channels_and_mix(metrist, records: Path, tmp_path: Path) -> None:
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


FAKE = "fake(answers='There are no errors that I can see.')"


def test_an_llm_that_cannot_be_read(metrist, records: Path, tmp_path: Path) -> None:
    answer = metrist("build", "error-analysis", records, "-o", tmp_path / "data", "--llm", FAKE, "--real", 6)
    assert answer.code == 0, answer.err
    assert "12 questions" in answer.err
    removed = {row["step"]: row for row in json.loads((tmp_path / "data" / "report.json").read_text())["removed"]}
    assert removed["unreadable"]["count"] == 6
    assert "JSON" in removed["unreadable"]["samples"][0]["reason"]


def test_outputs_are_chosen_by_stored_scores(metrist, records: Path, tmp_path: Path) -> None:
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
