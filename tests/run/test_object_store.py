"""Inputs and run folders over S3's protocol: the store is moto's server, the library s3fs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import metrist
from metrist.cli.app import app
from metrist.errors import RunError

_REASON = "s3fs and moto are not installed: pip install s3fs 'moto[server]'"
s3fs = pytest.importorskip("s3fs", reason=_REASON)
pytest.importorskip("moto.server", reason=_REASON)

METRICS = ["rougeL", "chrf"]
#: Scores slowly enough to be killed halfway.
SLOW = """
import time
from metrist import Metric

class Slow(Metric):
    def score_record(self, record):
        time.sleep(0.05)
        return float(len(record.output))
"""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of a server with an empty store, which this process and those that it starts take for S3."""
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with (
        subprocess.Popen(command, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True) as process,
        pytest.MonkeyPatch.context() as patch,
    ):
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        address = next(match[0] for line in lines if (match := re.search(r"http://127\.0\.0\.1:\d+", line)))
        names = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
        for name, value in {**names, "AWS_ENDPOINT_URL": address}.items():
            patch.setenv(name, value)
        # What the server writes must not fill its pipe.
        reader = subprocess.Popen(["cat"], stdin=process.stdout, stdout=subprocess.DEVNULL)
        yield address
        process.kill()
        reader.wait()


@pytest.fixture
def store(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A new bucket with an input, and an empty folder for copies."""
    monkeypatch.setenv("METRIST_REMOTE", str(tmp_path / "copies"))
    file_system = s3fs.S3FileSystem(endpoint_url=server)
    if file_system.exists("bucket"):
        file_system.rm("bucket", recursive=True)
    file_system.mkdir("bucket")
    rows = [
        {"item": str(n), "system": system, "output": f"word {n} {system}", "references": ["word one"]}
        | {"ratings": {"quality": n % 3}}
        for n in range(60)
        for system in ("one", "two")
    ]
    file_system.pipe_file("bucket/data/in.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())
    return file_system


def read_store(store: Any, root: str) -> dict[str, bytes]:
    store.invalidate_cache()
    return {path.removeprefix(root): store.cat_file(path) for path in store.find(root) if "/timings/" not in path}


def count_shards(store: Any) -> int:
    """How many shard files of the slow metric the run has uploaded."""
    store.invalidate_cache()
    return sum("/results/slow_metric" in path for path in store.find("bucket/run"))


@pytest.mark.parametrize("executor", ["processes", "ray:local"])
def test_all_executors_write_the_same_bytes(store: Any, executor: str) -> None:
    if executor.startswith("ray"):
        pytest.importorskip("ray", reason="Ray is not installed: pip install 'metrist[ray]'")
    for name, choice in (("first", "serial"), ("second", executor)):
        program = (
            f"import metrist; metrist.score('s3://bucket/data/*.jsonl', {METRICS}, out='s3://bucket/{name}/', "
            f"executor={choice!r}, shard_size=20, progress=False)"
        )
        subprocess.run([sys.executable, "-c", program], check=True)  # Ray leaves processes to be ended with this one.
    first = read_store(store, "bucket/first")
    assert len(first) == 2 * (6 + 1) + 2
    assert read_store(store, "bucket/second") == first


def test_commands_read_a_run_on_another_machine(store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metrist.score("s3://bucket/data/in.jsonl", METRICS, out="s3://bucket/run/")
    metrist.score("s3://bucket/data/in.jsonl", ["chrf"], out="s3://bucket/scores.jsonl")
    before = read_store(store, "bucket")
    monkeypatch.setenv("METRIST_REMOTE", str(tmp_path / "elsewhere"))
    monkeypatch.chdir(tmp_path)
    run, records, flat = "s3://bucket/run", "s3://bucket/data/in.jsonl", "s3://bucket/scores.jsonl"
    for arguments in (
        ["verify", run],
        ["compare", run],
        ["worst", run, "-m", "chrf"],
        ["meta", run, "--draws", "100"],
        ["meta", records, flat, "--draws", "100"],
        ["report", records, flat, "--format", "pr"],
        ["export", run, "-o", "flat.jsonl"],
    ):
        answer = CliRunner().invoke(app, arguments)
        assert answer.exit_code == 0, answer.output
    assert len(Path("flat.jsonl").read_text().splitlines()) == 240
    assert read_store(store, "bucket") == before


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_a_run_that_was_killed_goes_on(store: Any, tmp_path: Path, is_elsewhere: bool) -> None:
    (tmp_path / "slow_metric.py").write_text(SLOW)
    program = (
        "import metrist; from metrist.run import remote_folder; remote_folder.SYNC_SECONDS = 0.2\n"
        "metrist.score('s3://bucket/data/in.jsonl', ['slow_metric.Slow', 'chrf'], out='s3://bucket/run/', "
        "executor='serial', shard_size=10, progress=False)"
    )
    path = os.pathsep.join([str(tmp_path), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path}
    process = subprocess.Popen([sys.executable, "-c", program], env=environment)
    try:
        until = time.monotonic() + 60
        while count_shards(store) < 3 and time.monotonic() < until:
            time.sleep(0.1)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    stored = {name: data for name, data in read_store(store, "bucket/run").items() if "/results/" in name}
    assert 3 <= len(stored) < 24
    if is_elsewhere:
        environment["METRIST_REMOTE"] = str(tmp_path / "elsewhere")
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
    subprocess.run([sys.executable, "-c", program.replace("/run/", "/whole/")], env=environment, check=True)
    resumed = read_store(store, "bucket/run")
    assert resumed == read_store(store, "bucket/whole")
    assert stored.items() <= resumed.items()


def test_a_changed_input_is_noticed_by_the_same_process(store: Any) -> None:
    before = metrist.score("s3://bucket/data/*.jsonl", ["chrf"])
    store.pipe_file("bucket/data/in.jsonl", b'{"item": "1", "output": "a", "references": ["a"]}\n')
    assert len(before["chrf"].values) == 120
    assert len(metrist.score("s3://bucket/data/*.jsonl", ["chrf"])["chrf"].values) == 1


@pytest.mark.parametrize("name", ["run/", "scores.jsonl"])
def test_a_misspelt_bucket_is_not_made(store: Any, name: str) -> None:
    with pytest.raises(RunError, match="has no bucket 'buket'"):
        metrist.score("s3://bucket/data/in.jsonl", ["chrf"], out=f"s3://buket/{name}")
    assert store.ls("") == ["bucket"]
