"""What commands say about the columns they read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

READING = "item = id, system = model, output = completion, references = gold"
ROWS = "id,model,completion,gold\n1,a,the cat sat,the cat sat\n1,b,a dog,the cat sat\n2,a,x y,x y\n2,b,x,x y\n"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "data.csv"
    path.write_text(ROWS)
    return path


def test_score_says_on_standard_error_how_it_reads(metrist, table: Path) -> None:
    answer = metrist("score", table, "-m", "rougeL", "--format", "json")
    assert answer.err == f"metrist: reading {table}: {READING}\n"
    parsed = json.loads(answer.out)
    assert [row["system"] for row in parsed["rows"]] == ["a", "b"]
    assert "reading" not in answer.out


def test_columns_that_compete_stop_a_command(metrist, tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("id,prediction,summary\n1,x,y\n")
    answer = metrist("score", path, "-m", "length")
    assert (answer.code, answer.out) == (2, "")
    assert "--field output=prediction or --field output=summary" in answer.err


def test_wide_files_delimiters_and_encodings(metrist, tmp_path: Path) -> None:
    path = tmp_path / "wide.csv"
    path.write_bytes("id~v1_output~v2_output~gold\n1~caf\u00e9~th\u00e9~caf\u00e9\n".encode("utf-16"))
    answer = metrist("score", path, "-m", "rougeL", "--output", "*_output", "--delimiter", "~", "--encoding", "utf-16")
    assert f"reading {path}: outputs = v1_output (v1), v2_output (v2), item = id, references = gold" in answer.err
    lines = [line.split() for line in answer.out.splitlines()]
    assert [line[:2] for line in lines if line and line[0] in ("v1", "v2")] == [["v1", "1.000"], ["v2", "0.000"]]
    named = metrist("score", path, "-m", "length", "--output", "old=v1_output", "--delimiter", "~")
    assert "outputs = v1_output (old)" in named.err


@pytest.mark.parametrize(
    "command",
    [
        ("meta", "--preferences", "--show", "agreement"),
        ("prefer", "-m", "by_score(metric=length, better='higher')"),
        ("build", "pairs", "--criterion", "overall", "-o", "OUT"),
    ],
)
def test_preferences_are_read_by(command: tuple[str, ...], metrist, tmp_path: Path) -> None:
    path = tmp_path / "chosen.csv"
    path.write_text("prompt,chosen,rejected\n" + "".join(f"p{n},a long answer {n},no {n}\n" for n in range(6)))
    words = [str(tmp_path / "pairs.jsonl") if word == "OUT" else word for word in command]
    at = 2 if words[0] == "build" else 1
    answer = metrist(*words[:at], path, *words[at:])
    assert f"reading {path}: preferences = chosen, rejected" in answer.err
    assert answer.code == 0


def test_validate_reads_each_file_by_itself(metrist, tmp_path: Path) -> None:
    files = {
        "outputs.jsonl": '{"item": 1, "output": "x"}\n{"item": 1, "output": "y"}\n{}\n{"item": 3, "output": "z"}\n',
        "again.jsonl": '{"item": 1, "output": "other"}\n',
        "ratings.jsonl": '{"item": 1, "system": "a", "ratings": {"fluency": {"ann": "high"}}}\n',
        "chosen.csv": "id,chosen,rejected\n1,a,b\n2,c,d\n",
        "empty.jsonl": "",
    }
    paths = []
    for name, text in files.items():
        paths.append(tmp_path / name)
        paths[-1].write_text(text)
    answer = metrist("validate", *paths, "--format", "json")
    rows = [(Path(row["file"]).name, row["rows"], row["bad rows"]) for row in json.loads(answer.out)["rows"]]
    assert rows == [
        ("outputs.jsonl", 2, 2),
        ("again.jsonl", 1, 0),
        ("ratings.jsonl", 0, 1),
        ("chosen.csv", 2, 0),
        ("empty.jsonl", 0, 0),
    ]
    assert answer.code == 1
    places = [line.split(": ")[1].removeprefix(f"{tmp_path}/") for line in answer.err.splitlines()]
    assert [place for place in places if "reading" not in place] == [
        "outputs.jsonl:2",
        "outputs.jsonl:3",
        "ratings.jsonl",
        "empty.jsonl",
    ]
    assert metrist("validate", paths[1], paths[3]).code == 0
    assert metrist("validate", paths[0], "--skip-bad").code == 0
    assert metrist("validate", paths[0], paths[2], "--skip-bad").code == 1
    assert metrist("validate", tmp_path / "nothing.jsonl").code == 2
