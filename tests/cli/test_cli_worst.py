"""`metrist worst`, called as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from metrist.evaluate.explain.worst import worst


def test_differences_to_a_system(metrist, run: Path) -> None:
    answer = metrist("worst", run, "-n", 1, "-m", "ter", "--vs", "good", "--format", "json")
    (entry,) = json.loads(answer.out)["entries"]
    assert [output["system"] for output in entry["outputs"]] == ["bad", "good"]
    assert entry["value"] == pytest.approx(entry["outputs"][1]["scores"]["ter"] - entry["outputs"][0]["scores"]["ter"])
    both = metrist(
        "worst", run, "-n", 1, "-m", "ter", "--by", "difference", "--systems", "bad", "good", "--format", "json"
    )
    assert both.out == answer.out


def test_files_with_ratings_can_be_named(metrist, run: Path, outputs: Path, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in outputs.read_text().splitlines()]
    rated = [row | {"ratings": {"overall": [n % 5]}, "text": row.pop("output")} for n, row in enumerate(rows)]
    file = tmp_path / "rated.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rated))
    answer = metrist("worst", run, file, "--by", "people", "--field", "output=text", "-n", 1)
    assert answer.code == 0, answer.err
    assert "overall" in answer.out


def test_moved_files_leave_the_scores(metrist, outputs: Path, tmp_path: Path) -> None:
    run = tmp_path / "bare"
    assert metrist("score", outputs, "-m", "rougeL", "-o", run, "--no-texts").code == 0
    outputs.unlink()
    answer = metrist("worst", run, "-n", 1)
    assert answer.code == 0, answer.err
    assert "rougeL 0." in answer.out
    assert "texts are not shown: " in answer.out


def test_references_that_are_left_out_come_with_the_option_and_in_python_with_the_argument(
    metrist, tmp_path: Path
) -> None:
    file, run = tmp_path / "in.jsonl", tmp_path / "run"
    file.write_text(json.dumps({"item": "1", "system": "a", "output": "x", "references": ["x `full`", "y", "z"]}))
    assert metrist("score", file, "-m", "rougeL", "-o", run).code == 0
    printed, text = metrist("worst", run).out, worst(run).text()
    assert "… and 1 more reference (--full)" in printed
    assert "… and 1 more reference (full=True)" in text
    assert all("x `full`" in shown and "reference 3" not in shown for shown in (printed, text))
    assert "reference 3" in metrist("worst", run, "--full").out


def test_what_was_recognised_is_said_once_for_two_runs(
    metrist, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.csv").write_text("id,v1,v2,ref\n1,a b,a c,a b\n2,x,x y,x y\n")
    for run in ("new", "old"):
        options = ("--output", "v*", "-m", "rougeL", "-o", f"{run}/", "--no-texts")
        assert metrist("score", "in.csv", *options).code == 0
    answer = metrist("worst", "new/", "--vs", "old/", "--order", "both", "-n", 1)
    assert "2 items × 2 systems" in answer.out
    assert (answer.out + answer.err).count("reading in.csv") == 1
    # Systems that lost nothing, and a system that did.
    answer = metrist("worst", "new/", "--systems", "v2", "--vs", "v1", "--format", "json")
    assert [entry["outputs"][0]["item"] for entry in json.loads(answer.out)["entries"]] == ["1"]
