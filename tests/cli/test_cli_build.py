"""`metrist build`, as a user calls it."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from metrist import criteria
from metrist.data.heap import read_heap_pairs
from metrist.data.pairs import read_good_bad


@pytest.fixture
def rated(tmp_path: Path) -> Path:
    """Three systems on 40 items of their own words, rated for two aspects; every fifth item has a tie."""
    rows = []
    for item in range(40):
        for at, system in enumerate(("one", "two", "three")):
            fluency = 3 if item % 5 == 0 and at else at + 1
            words = " ".join(f"{word}{item}" for word in ("some", "text", "to", "work", "on"))
            answer = " ".join(f"{word}{item}{system}" for word in ("an", "answer", "of"))
            rows.append(
                {
                    "item": item,
                    "system": system,
                    "source": words,
                    "output": answer,
                    "ratings": {"fluency": [fluency], "mistakes": [at, at]},
                }
            )
    return write(tmp_path / "rated.jsonl", rows)


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_pairs_are_built_with_an_account_that_adds_up(metrist, rated: Path, tmp_path: Path) -> None:
    out = tmp_path / "pairs.jsonl.xz"
    answer = metrist(
        *("build", "pairs", rated, "-o", out, "--aspect", "fluency", "--aspect", "mistakes", "--opposite", "mistakes"),
        *("--criterion", "mistakes=correctness", "--instruction", "mistakes=Which has fewer mistakes?"),
        *("--label", "source=task", "--split", "0.8,0.1,0.1", "--format", "json"),
    )
    assert answer.code == 0, answer.err
    rows = {row["criterion"]: row for row in json.loads(answer.out)["rows"]}
    assert rows["fluency"]["possible"] == 120 == rows["fluency"]["kept"] + rows["fluency"]["tie"]
    assert (rows["fluency"]["tie"], rows["correctness"]["kept"]) == (8, 120)
    assert rows["correctness"]["good"] == "lower mistakes"
    assert sum(rows["all"][side] for side in ("train", "dev", "test")) == rows["all"]["kept"] == 232
    pairs = read_good_bad(out)
    assert len(pairs) == 232
    correct = [pair for pair in pairs if pair.criterion == "correctness"]
    assert {pair.systems for pair in correct} == {("one", "two"), ("one", "three"), ("two", "three")}
    assert {pair.instruction for pair in correct} == {"Which has fewer mistakes?"}
    assert correct[0].good[0][0] == "task"
    # A known criterion brings its own instruction.
    assert all(pair.instruction for pair in pairs)
    assert "wrote 232 pairs" in answer.err
    leaks = metrist("build", "leaks", out, "--fail-on-leak")
    assert leaks.code == 0, leaks.out


def test_only_pairs_are_replaced(metrist, rated: Path, tmp_path: Path) -> None:
    out = tmp_path / "pairs.jsonl"
    build = ("build", "pairs", rated, "-o", out, "--aspect", "fluency", "--criterion", "fluency")
    assert metrist(*build).code == 0
    assert metrist(*build).code == 0
    out.write_text(other := '{"item": 1, "output": "mine"}\n')
    refused = metrist(*build)
    assert (refused.code, "holds no pairs" in refused.err) == (2, True)
    assert out.read_text() == other


def test_a_leaking_split_can_fail(metrist, rated: Path, tmp_path: Path) -> None:
    out = tmp_path / "pairs.jsonl"
    for way, code in (("position", 1), ("text", 0)):
        built = metrist(
            *("build", "pairs", rated, "-o", out, "--aspect", "fluency"),
            *("--split", "0.71,0.15,0.14", "--split-by", way),
        )
        assert built.code == 0, built.err
        answer = metrist("build", "leaks", out, "--fail-on-leak")
        assert answer.code == code, answer.out
        assert "any criterion" in answer.out
    assert metrist("build", "leaks", out).code == 0


def test_pairs_can_be_split_again(metrist, rated: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    assert metrist("build", "pairs", rated, "-o", first, "--aspect", "mistakes").code == 0
    assert {pair.split for pair in read_good_bad(first)} == {None}
    refused = metrist("build", "leaks", first)
    assert refused.code == 2
    for way in ("text", "position"):
        answer = metrist("build", "split", first, "-o", second, "--split-by", way, "--format", "json")
        assert answer.code == 0, answer.err
        row = json.loads(answer.out)["rows"][0]
        assert [row[name] for name in ("train", "dev", "test", "left out")] == [96, 12, 12, 0]
    assert [pair.split for pair in read_good_bad(second)] == ["train"] * 96 + ["dev"] * 12 + ["test"] * 12
    lines = first.read_text().splitlines()
    second.write_text("\n".join([*second.read_text().splitlines(), lines[0]]) + "\n")
    assert "1 of 121 pairs" in metrist("build", "leaks", second).err


def test_skipped_rows_are_reported_before_later_errors(metrist, rated: Path, tmp_path: Path) -> None:
    with rated.open("a") as file:
        file.write("no JSON\n" * 2)
    answer = metrist("build", "pairs", rated, "-o", tmp_path / "p.jsonl", "--aspect", "fluensy", "--skip-bad")
    assert answer.code == 2
    lines = answer.err.splitlines()
    assert "2 rows " in lines[0]
    assert "fluensy" in lines[1]
    rows = [{"item": "1", "system": "a", "output": "x"}, {"item": "2", "output": 3.5}]
    bare = write(tmp_path / "bare.jsonl", rows)
    answer = metrist("build", "pairs", bare, "-o", tmp_path / "p.jsonl", "--skip-bad")
    assert (answer.code, "bare.jsonl (1 bad row skipped)" in answer.err) == (2, True)


@pytest.fixture
def endings(tmp_path: Path) -> Path:
    rows = [{"ind": n, "ctx": f"Text {n}.", "endings": ["a", "b", "c", "d"], "label": n % 4} for n in range(10)]
    (tmp_path / "hellaswag_val.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "hellaswag_val.jsonl"


def test_pairs_are_written_with_the_chosen_wording_and_split(metrist, endings: Path, tmp_path: Path) -> None:
    out = tmp_path / "pairs.jsonl.xz"
    answer = metrist("build", "heap", "hellaswag", endings, "-o", out, "--wording", 1, "--split", "positional")
    assert (answer.code, answer.err) == (0, f"metrist: wrote 30 pairs to {out}: HS 30\n")
    assert [pair.split for pair in read_heap_pairs(out, 1)] == ["train"] * 24 + ["dev"] * 3 + ["test"] * 3
    with lzma.open(out, "rt", encoding="utf-8") as lines:
        first = json.loads(next(lines))
    assert first["instruction"] == criteria.find("HS").instructions[1]
    own, out = tmp_path / "own.toml", tmp_path / "own.jsonl"
    own.write_text("HS = 'How does it end?'", encoding="utf-8")
    assert metrist("build", "heap", "hellaswag", endings, "-o", out, "--instructions", own).code == 0
    assert json.loads(out.read_text(encoding="utf-8").splitlines()[0])["instruction"] == "How does it end?"
