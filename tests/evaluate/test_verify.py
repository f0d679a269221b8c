"""Run folders that are whole, and folders in which someone changed something."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import metrist
from metrist.cli.app import app
from metrist.errors import RunError
from metrist.evaluate.verify import verify

METRICS = ["rougeL", "chrf"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    rows = [
        {"item": f"i{n}", "system": f"s{n % 3}", "output": f"a text of number {n} b", "references": [f"a text {n} c"]}
        for n in range(60)
    ]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    metrist.score(tmp_path / "in.jsonl", METRICS, out=tmp_path / "run", shard_size=20, progress=False)
    return tmp_path / "run"


def failures(verification):
    return {(finding.check, finding.metric) for finding in verification.findings if finding.passed is False}


def test_a_run_that_nobody_touched_passes(run):
    verification = verify(run, sample=10)
    assert verification.passed
    assert not failures(verification)
    assert {(f.check, f.metric) for f in verification.findings} == {
        ("inputs", ""),
        *((check, metric) for check in ("files", "signature", "scores") for metric in METRICS),
    }
    assert "10 outputs scored again: equal" in str(verification)


def test_a_changed_byte_is_found(run):
    shard = sorted((run / "results" / "chrf").glob("*-*.jsonl"))[1]
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    assert ("files", "chrf") in failures(verify(run))


def forge(shard: Path, change) -> None:
    """Change the rows of a shard file, and write a checksum that fits."""
    header, *rows, _ = shard.read_text().splitlines()
    body = "\n".join([header, *(json.dumps(change(json.loads(row))) for row in rows)]) + "\n"
    shard.write_text(body + json.dumps({"sha256": hashlib.sha256(body.encode()).hexdigest()}) + "\n")


def test_forged_scores_with_the_right_checksum_are_found_by_scoring_again(run):
    for shard in (run / "results" / "rougeL").glob("*-*.jsonl"):
        forge(shard, lambda row: [*row[:2], min(1.0, row[2] + 0.05), *row[3:]])
    verification = verify(run, sample=5)
    assert failures(verification) == {("scores", "rougeL")}
    assert "5 of 5 outputs differ" in str(verification)


def test_a_missing_file_and_a_wrong_count_are_found(run):
    first, second, *_ = sorted((run / "results" / "rougeL").glob("*-*.jsonl"))
    first.unlink()
    assert ("files", "rougeL") in failures(verify(run))
    page = run / "results" / "chrf" / "complete.json"
    facts = json.loads(page.read_text())
    page.write_text(json.dumps({**facts, "records": 61}))
    assert ("files", "chrf") in failures(verify(run))
    assert second.exists()


def test_another_signature_is_told(run):
    page = run / "results" / "chrf" / "complete.json"
    facts = json.loads(page.read_text())
    page.write_text(json.dumps({**facts, "signature": facts["signature"] + " | other"}))
    verification = verify(run)
    assert ("signature", "chrf") in failures(verification)
    assert ("files", "chrf") in failures(verification)


def test_changed_and_missing_inputs(run):
    path = run.parent / "in.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[7]["output"] = "something else"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    verification = verify(run, sample=60)
    assert failures(verification) == {("inputs", "")}
    # What is unchanged can still be scored again.
    assert "59 outputs scored again: equal" in str(verification)
    path.unlink()
    verification = verify(run)
    assert not failures(verification)
    assert not verification.passed  # Nothing could be scored again.


def test_a_metric_of_ones_own_is_imported_only_if_it_is_named(run, tmp_path, monkeypatch):
    (tmp_path / "my_verified.py").write_text(
        "from dataclasses import dataclass\nimport metrist\n\n@dataclass(frozen=True)\nclass Size(metrist.Metric):\n"
        "    def score_record(self, record):\n        return float(len(record.output))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    metrist.score(tmp_path / "in.jsonl", ["my_verified.Size"], out=run, progress=False)
    found = {(f.check, f.metric): f.passed for f in verify(run).findings}
    assert found["scores", "my_verified.Size"] is None
    found = {(f.check, f.metric): f.passed for f in verify(run, metrics=["my_verified.Size"]).findings}
    assert found["scores", "my_verified.Size"] is True


def test_the_sample_does_not_depend_on_the_order_of_the_input(run, monkeypatch):
    drawn = []
    from metrist.evaluate import verify as module

    real = module.score
    monkeypatch.setattr(module, "score", lambda records, *a, **k: drawn.append(records) or real(records, *a, **k))
    verify(run, sample=5)
    path = run.parent / "in.jsonl"
    path.write_text("".join(reversed(path.read_text().splitlines(keepends=True))))
    verify(run, sample=5)
    names = [sorted(record.item for record in records) for records in drawn]
    assert names[0] == names[2]
    verify(run, sample=5, seed=1)
    assert sorted(record.item for record in drawn[4]) != names[0]


def test_the_command_exits_with_1_where_something_differs(run):
    runner = CliRunner()
    result = runner.invoke(app, ["verify", str(run), "--format", "json", "--sample", "3"])
    assert result.exit_code == 0, result.output
    next((run / "results" / "chrf").glob("*-*.jsonl")).unlink()
    assert runner.invoke(app, ["verify", str(run)]).exit_code == 1


def test_flat_files_and_other_folders_are_refused(run, tmp_path):
    metrist.export(run, tmp_path / "flat.jsonl")
    with pytest.raises(RunError, match="run folder"):
        verify(tmp_path / "flat.jsonl")
    with pytest.raises(RunError, match="run folder"):
        verify(tmp_path)
