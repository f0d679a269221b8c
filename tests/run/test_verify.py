"""Run folders that are whole, and folders in which someone changed something."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import metrist
from error_codes import raises_code
from metrist.cli.app import app
from metrist.errors import RunError
from metrist.run.store import Store
from metrist.run.verify import verify
from run_contents import write_rows

METRICS = ["rougeL", "chrf"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    rows = [
        {"item": f"i{n}", "system": f"s{n % 3}", "output": f"a text of number {n} b", "references": [f"a text {n} c"]}
        | {"ratings": {"quality": n % 5}}
        for n in range(60)
    ]
    metrist.score(write_rows(tmp_path / "in.jsonl", rows), METRICS, out=tmp_path / "run", shard_size=20, progress=False)
    return tmp_path / "run"


def failures(verification):
    return {(finding.check, finding.metric) for finding in verification.findings if finding.passed is False}


def test_a_run_that_nobody_touched_passes(run):
    verification = verify(run, sample=10)
    assert verification.passed
    assert not failures(verification)
    assert {(f.check, f.metric) for f in verification.findings} == {
        ("inputs", ""),
        ("files", ""),
        *((check, metric) for check in ("files", "signature", "scores") for metric in METRICS),
    }
    assert "10 outputs scored again: equal" in str(verification)


def change_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def find_part(run: Path, folder: str) -> Path:
    return next(run.glob(f"{folder}*/*.parquet"))


@pytest.mark.parametrize(("folder", "metric"), [("scores/chrf", "chrf"), ("records", ""), ("ratings", "")])
def test_a_changed_byte_and_a_missing_file_are_found(run, folder, metric):
    part = find_part(run, folder)
    change_byte(part)
    assert ("files", metric) in failures(verify(run))
    part.unlink()
    verification = verify(run)
    assert ("files", metric) in failures(verification)
    assert f"{folder}/{part.name} is missing" in str(verification)


def forge(run: Path, folder: str, change) -> None:
    """Change the table of a part, and write it and the manifest as if a run had."""
    part = find_part(run, folder)
    table = pq.read_table(part)
    facts = json.loads((table.schema.metadata or {}).get(b"metrist", b"{}"))
    folder = part.parent.relative_to(run).as_posix()
    forged = Store(run).write_part(folder, change(table).replace_schema_metadata(), facts)
    manifest = run / "manifest.json"
    manifest.write_text(manifest.read_text().replace(part.name, forged.file).replace('"checksum"', '"unknown"'))
    part.unlink()


def replace_column(table: pa.Table, name: str, change) -> pa.Table:
    values = [change(value) for value in table[name].to_pylist()]
    return table.set_column(table.column_names.index(name), table.schema.field(name), [values])


def test_forged_scores_with_the_right_hashes_are_found_by_scoring_again(run):
    forge(run, "scores/rougeL", lambda table: replace_column(table, "value", lambda value: min(1.0, value + 0.05)))
    verification = verify(run, sample=5)
    assert failures(verification) == {("scores", "rougeL")}
    assert "5 of 5 outputs differ" in str(verification)


def test_forged_statistics_of_which_systems_are_scored_are_found(run):
    forge(run, "scores/chrf", lambda table: replace_column(table, "statistics", lambda row: [row[0] + 1, *row[1:]]))
    assert failures(verify(run, sample=5)) == {("scores", "chrf")}


def test_forged_texts_with_the_right_hashes_of_files_are_found_by_the_hashes_of_records(run):
    forge(run, "records", lambda table: replace_column(table, "output", lambda text: text.replace("text", "book")))
    assert ("files", "") in failures(verify(run))


def test_a_wrong_count_is_found(run):
    forge(run, "scores/chrf", lambda table: table.slice(1))
    verification = verify(run)
    assert failures(verification) == {("files", "chrf")}
    assert "holds 59 rows, the manifest says 60" in str(verification)


def test_another_signature_is_told(run):
    manifest = run / "manifest.json"
    facts = json.loads(manifest.read_text())
    facts["metrics"][1]["versions"][0]["signature"] += " | other"
    del facts["checksum"]
    manifest.write_text(json.dumps(facts))
    verification = verify(run)
    assert failures(verification) == {("signature", "chrf"), ("files", "chrf")}


def test_changed_and_missing_inputs(run):
    path = run.parent / "in.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[7]["output"] = "something else"
    write_rows(path, rows)
    verification = verify(run, sample=60)
    assert failures(verification) == {("inputs", "")}
    # The texts that were scored are in the run.
    assert "60 outputs scored again: equal" in str(verification)
    path.unlink()
    verification = verify(run)
    assert verification.passed
    assert {finding.passed for finding in verification.findings if finding.check == "inputs"} == {None}


def test_a_run_without_texts_reads_its_inputs_again(run):
    path, bare = run.parent / "in.jsonl", run.parent / "bare"
    metrist.score(path, METRICS, out=bare, texts=False, progress=False)
    assert "60 outputs scored again: equal" in str(verify(bare))
    rows = path.read_text().splitlines(keepends=True)
    path.write_text("".join([rows[0].replace("text", "book"), *rows[1:]]))
    verification = verify(bare)
    assert failures(verification) == {("inputs", "")}
    assert "59 outputs scored again: equal" in str(verification)
    path.unlink()
    assert not verify(bare).passed  # Nothing could be scored again.


def test_columns_that_json_cannot_hold_keep_their_hash(tmp_path):
    when = datetime.datetime(2024, 5, 1, tzinfo=datetime.UTC)
    rows = [{"item": "1", "output": "a text", "when": when, "price": Decimal("1.50"), "data": b"x", "list": (1, 2)}]
    metrist.score(rows, ["length"], out=tmp_path / "run", progress=False)
    assert verify(tmp_path / "run").passed


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
    from metrist.run import verify as module

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
    find_part(run, "scores/chrf").unlink()
    assert runner.invoke(app, ["verify", str(run)]).exit_code == 1


def test_flat_files_and_other_folders_are_refused(run, tmp_path):
    metrist.export(run, tmp_path / "flat.jsonl")
    with raises_code(RunError, "invalid_value", "flat.jsonl"):
        verify(tmp_path / "flat.jsonl")
    with raises_code(RunError, "invalid_value", tmp_path):
        verify(tmp_path)


# ---- Runs in stores ----


@pytest.fixture
def url(tmp_path, monkeypatch) -> str:
    """The URL of a run in a store, made on another machine from an input in the store."""
    pytest.importorskip("fsspec", reason="fsspec is not installed: pip install 'metrist[ray]'")
    rows = [
        {"item": f"i{n}", "system": system, "output": f"a text {n} {end}", "references": [f"a text {n} c"]}
        | {"ratings": {"quality": n % 5 + (end == "c")}}
        for n in range(15)
        for system, end in (("one", "b"), ("two", "c"))
    ]
    store = tmp_path / "store"
    store.mkdir()
    write_rows(store / "in.jsonl", rows)
    monkeypatch.setenv("METRIST_REMOTE", str(tmp_path / "elsewhere"))
    metrist.score(f"file://{store}/in.jsonl", METRICS, out=f"file://{store}/run/", shard_size=10, progress=False)
    monkeypatch.setenv("METRIST_REMOTE", str(tmp_path / "copies"))
    return f"file://{store}/run"


def test_a_changed_input_in_a_store_is_found(url, tmp_path):
    assert verify(url).passed
    with (tmp_path / "store" / "in.jsonl").open("a") as file:
        file.write('{"item": "new", "output": "a", "references": ["a"]}\n')
    verification = verify(url)
    (finding,) = (finding for finding in verification.findings if finding.passed is False)
    assert finding.check == "inputs"
    # The command names what is in the store, not the copies.
    assert f"metrist score file://{tmp_path}/store/in.jsonl" in finding.message
    assert f"-o {url}/" in finding.message


def test_an_input_in_another_bucket_is_not_fetched_because_a_run_says_so(url, tmp_path):
    manifest = tmp_path / "store" / "run" / "manifest.json"
    forged = manifest.read_text().replace(f"file://{tmp_path}/store/in.jsonl", "memory://elsewhere/in.jsonl")
    manifest.write_text(forged.replace('"checksum"', '"unknown"'))
    checks = {(finding.check, finding.metric): finding.passed for finding in verify(url).findings}
    assert checks["inputs", ""] is None
    assert checks["scores", "chrf"]  # The texts are in the run.


def test_a_url_without_a_run_is_refused(url, tmp_path):
    with raises_code(RunError, "invalid_value", "file://"):
        verify(url.removesuffix("/run"))
    assert not (tmp_path / "copies").exists() or not list((tmp_path / "copies").rglob("*.jsonl"))
