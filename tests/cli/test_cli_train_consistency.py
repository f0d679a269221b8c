"""`metrist train consistency` and what comes of it, called as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from metrist.cli.train import print_result
from tiny_text_encoders import write_text_encoder

pytest.importorskip("torch", reason="torch is not installed")


def write_rows(path: Path, count: int) -> Path:
    rows: list[dict[str, Any]] = []
    for number in range(count):
        right = number % 2 == 0
        output = "the dog sat on the mat." if right else "the dog was not on the mat."
        source = f"one day the dog ran and sat on the mat {number}."
        rows.append({"item": str(number), "system": "a", "source": source, "output": output})
        rows[-1]["ratings"] = {"faithfulness": [5 if right else 1]}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_from_judgments_to_a_metric_and_its_errors(metrist, tmp_path):
    base, data = write_text_encoder(tmp_path / "base" / "model", scale=0.1), write_rows(tmp_path / "judged.jsonl", 60)
    command = ["train", "consistency", data, "--base", base, "-o", tmp_path / "own", "--window", 128]
    plan = metrist(*command, "--dry-run")
    assert plan.code == 0, plan.err
    assert "training outputs   48 in 48 rows" in plan.out
    assert "development rows   12" in plan.out
    assert "60 ratings of 1 to 5" in plan.err
    assert not (tmp_path / "own").exists()
    answer = metrist(*command, "--epochs", 8, "--lr", "3e-3")
    assert answer.code == 0, answer.err
    assert "Spearman's correlation with the labels" in answer.out
    assert f"consistency(model='{tmp_path / 'own'}')" in answer.out
    spec = f"consistency(model='{tmp_path / 'own'}', window=128)"
    shown = metrist("explain", data, "-m", spec, "--limit", 2)
    assert shown.code == 0, shown.err
    assert "major" in shown.out
    assert "the dog was not on the mat." in shown.out
    # No word of the tiny vocabulary is rare enough to find a passage by.
    assert "No passage" in shown.out
    # The stored scores of a run teach the next model.
    assert metrist("score", data, "-m", spec, "-o", tmp_path / "run").code == 0
    again = metrist(
        *("train", "consistency", "--from-run", tmp_path / "run", "--base", base, "-o", tmp_path / "copy"),
        *("--window", 128, "--epochs", 1),
    )
    assert again.code == 0, again.err
    assert "people's ratings" in again.out
    assert json.loads((tmp_path / "copy" / "card.json").read_text())["figures"]["people_model"] is not None


def test_options_that_do_not_fit_are_refused(metrist, tmp_path):
    data = write_rows(tmp_path / "judged.jsonl", 4)
    for options, keyword in (
        ([], "no training data"),
        ([data, "--from-run", tmp_path], "leave out other files"),
        ([data, "-m", "judge"], "--metric is for --from-run"),
        ([data, "--texts", data], "--texts is for --from-run"),
        (["--from-run", tmp_path, "--field", "output=text"], "--field"),
        ([data, "--aspect", "faithfulnes"], "did you mean"),
    ):
        answer = metrist("train", "consistency", *options)
        assert answer.code == 2
        assert keyword in answer.err


def test_the_figures_of_what_was_stored_name_both_ends(capsys, tmp_path):
    card = {
        "kind": "preference",
        "metric": "preference(model='own')",
        "figures": {"name": "accuracy", "before": 0.0, "after": 0.7161, "trained": 0.7202, "new_head": True},
        "data": {},
        "recipe": {"bits": 4},
        "training": {"seconds": 1.0},
        "fingerprint": "abc",
    }
    print_result(card, tmp_path)
    said = capsys.readouterr()
    assert "accuracy of the development pairs: 0.0000 before with a new head, 0.7161 after" in said.out
    assert "--bits 4 lowered the accuracy from 0.7202 to 0.7161" in said.err
