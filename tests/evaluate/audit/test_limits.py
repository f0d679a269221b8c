"""`metrist calibrate --good`: limits from ratings, with their precision and recall."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from error_codes import raises_code
from metrist.cli.app import app
from metrist.errors import RunError
from metrist.evaluate.audit.limits import choose_limits
from metrist.evaluate.meta.join import join


def make_rows(sign: int = 1, seed: int = 3) -> list[dict[str, object]]:
    rng = np.random.default_rng(seed)
    rows: list[dict[str, object]] = []
    for number in range(200):
        rating = int(rng.integers(1, 6))
        score = round(sign * (rating / 5 + rng.normal(0, 0.15)), 6)
        rows.append({"item": str(number), "output": "x", "ratings": {"correct": [rating]}, "scores": {"mine": score}})
    return rows


@pytest.mark.parametrize("sign", [1, -1])
def test_precision_and_recall_are_those_of_the_printed_check(sign: int) -> None:
    """Counted again, output by output."""
    rows = make_rows(sign)
    found = choose_limits(join(rows, lower_is_better=["mine"] if sign < 0 else []), 4)
    assert len(found.limits) >= 3
    for limit in found.limits:
        name, _, value = limit.check.partition(">=" if sign > 0 else "<=")
        passed = [row for row in rows if sign * read_score(row) >= sign * float(value)]
        good = [row for row in rows if read_rating(row) >= 4]
        hits = sum(read_rating(row) >= 4 for row in passed)
        assert (limit.passed, name) == (len(passed), "mine")
        assert (limit.precision, limit.recall) == pytest.approx((hits / len(passed), hits / len(good)))
        if limit.purpose.startswith("precision"):
            assert limit.precision >= float(limit.purpose.split()[-1].rstrip("%")) / 100


@pytest.mark.parametrize("name", ["length", "words=length"])
def test_records_without_scores_of_the_metric_are_scored(tmp_path: Path, name: str) -> None:
    rows = [{**row, "output": "word " * (number % 7 + 1)} for number, row in enumerate(make_rows())]
    path = tmp_path / "rated.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = choose_limits(str(path), 4, name)
    counted = [{**row, "scores": {"length": len(str(row["output"]).split())}} for row in rows]
    wanted = choose_limits(counted, 4, "length")
    assert [(limit.precision, limit.passed) for limit in found.limits] == [
        (limit.precision, limit.passed) for limit in wanted.limits
    ]
    assert found.metric == name.partition("=")[0]
    with raises_code(RunError, "unknown_name", "lenth"):
        choose_limits(join(rows), 4, "lenth")


def read_score(row: dict[str, object]) -> float:
    scores = row["scores"]
    assert isinstance(scores, dict)
    return float(next(iter(scores.values())))


def read_rating(row: dict[str, object]) -> int:
    ratings = row["ratings"]
    assert isinstance(ratings, dict)
    return int(ratings["correct"][0])


def test_what_cannot_choose_a_limit_is_an_error(tmp_path: Path) -> None:
    rows = make_rows()
    with raises_code(RunError, "no_data", "5 outputs"):
        choose_limits([row for row in rows if read_rating(row) == 5][:5], 4)
    with raises_code(RunError, "no_data", "ratings"):
        choose_limits([{**row, "ratings": {}} for row in rows], 4)
    with raises_code(RunError, "unknown_name"):
        choose_limits(rows, 4, "yours")
    path = tmp_path / "r.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with raises_code(RunError, "conflict"):
        CliRunner().invoke(
            app, ["calibrate", str(path), "--good", "4", "-o", str(tmp_path / "c.json")], catch_exceptions=False
        )


def test_the_command_prints_limits(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in make_rows()))
    arguments = ["calibrate", str(path), "-m", "mine", "--good", "4", "--aspect", "correct", "--format", "json"]
    (row, *_) = json.loads(CliRunner().invoke(app, arguments).stdout)["rows"]
    assert row["check"].startswith("mine>=")
