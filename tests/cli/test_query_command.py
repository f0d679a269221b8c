"""`metrist query`: what it answers, in which forms, and what it refuses."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from metrist import load, open_run, score
from metrist.errors import RunError
from metrist.run.removal import plan_removal

ROWS = [
    {"item": "1", "system": "a", "output": "the cat sat", "references": ["the cat sat"], "ratings": {"quality": 4}},
    {"item": "1", "system": "b", "output": "=1+1\nline", "references": ["the cat sat"], "ratings": {"quality": 1}},
]


@pytest.fixture
def run(tmp_path: Path) -> str:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    score(path, ["rougeL", "length"], out=tmp_path / "run", progress=False)
    return str(tmp_path / "run")


def test_an_answer_as_json_and_csv(metrist, run):
    sql = 'SELECT item, system, output, "references", parts, value FROM records JOIN scores USING (item, system)'
    sql += " WHERE metric = 'rougeL' ORDER BY system"
    first, second = json.loads(metrist("query", run, sql, "--format", "json").out)["rows"]
    assert first == {
        **{name: ROWS[0][name] for name in ("item", "system", "output", "references")},
        "parts": {"precision": 1.0, "recall": 1.0, "f": 1.0},
        "value": 1.0,
    }
    assert second["output"] == "=1+1\nline"
    shown = list(csv.reader(io.StringIO(metrist("query", run, sql, "--format", "csv").out)))
    assert shown[0] == ["item", "system", "output", "references", "parts", "value"]
    assert json.loads(shown[1][4]) == first["parts"]
    # A spreadsheet must not run it.
    assert shown[2][2] == "'=1+1\nline"


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "jsonl.gz", "parquet"])
def test_an_answer_goes_to_a_file(metrist, run, suffix, tmp_path):
    out = tmp_path / f"answer.{suffix}"
    sql = "SELECT system, value, record, output, value FROM scores JOIN records USING (record, system)"
    assert metrist("query", run, sql, "-o", out).code == 0
    if suffix == "parquet":
        rows = pq.read_table(out).to_pylist()
    elif suffix == "csv":
        rows = list(csv.DictReader(io.StringIO(out.read_bytes().decode())))
    else:
        data = gzip.decompress(out.read_bytes()) if suffix.endswith("gz") else out.read_bytes()
        rows = [json.loads(line) for line in data.decode().splitlines()]
    assert list(rows[0]) == ["system", "value", "record", "output", "value_2"]
    assert {float(row["value"]) for row in rows} == {1.0, 0.0, 3.0}
    assert {len(row["record"]) for row in rows} == {16 if suffix == "parquet" else 32}
    assert {row["output"].removeprefix("'") for row in rows} == {row["output"] for row in ROWS}


def test_a_file_and_a_format_agree(metrist, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sql = "SELECT system, output, value > 0 AS good, value, parts FROM records JOIN scores USING (record, item, system)"
    sql += " ORDER BY ALL"
    for form in ("csv", "json"):
        shown = metrist("query", run, sql, "--format", form).out
        metrist("query", run, sql, "-o", f"a.{form}", "--format", form)
        metrist("query", run, sql, "-o", f"b.{form}")
        assert Path(f"a.{form}").read_bytes() == Path(f"b.{form}").read_bytes() == shown.encode()
    assert metrist("query", run, sql, "--format", "csv", "-o", "c.parquet").code == 2
    assert not Path("c.parquet").exists()


def test_notes_tell_which_scores_are_missing(metrist, run, tmp_path):
    """The same as those of `load`; none where a query is not about scores."""
    more = tmp_path / "more.jsonl"
    more.write_text(json.dumps({**ROWS[0], "item": "2"}) + "\n")
    score(more, ["rougeL"], out=run, progress=False)
    (note,) = [note for note in load(run).notes if note.startswith("length has not scored")]
    assert f"metrist: {note}\n" in metrist("query", run, "SELECT metric, avg(value) FROM scores GROUP BY ALL").err
    assert note not in metrist("query", run, "SELECT count(*) FROM records").err
    manifest = json.loads((Path(run) / "manifest.json").read_text())
    for version in manifest["metrics"][0]["versions"]:
        version["finished"] = False
    (Path(run) / "manifest.json").write_text(json.dumps(manifest | {"checksum": None}))
    (note,) = [note for note in load(run).notes if "is left out" in note]
    assert f"metrist: {note}\n" in metrist("query", run, "FROM wide").err


def test_a_path_without_a_run_is_named_as_everywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("folder/a.txt").write_text("a")
    reasons = {
        "nosuch": "there is no run at nosuch",
        "folder": "folder is not a run folder: it has no manifest.json",
        "folder/a.txt": "folder/a.txt is not a run folder: it has no manifest.json",
    }
    for path, reason in reasons.items():
        # A file may be one of results.
        for read in (open_run, plan_removal, *(() if path.endswith(".txt") else (load,))):
            with pytest.raises(RunError) as refusal:
                read(path)
            assert str(refusal.value) == reason
