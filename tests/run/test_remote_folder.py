"""Inputs and run folders in a store, here fsspec's store in memory, and one writer at a time."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import metrist
from metrist.errors import InputError, RunError
from metrist.io.remote import fetch, is_remote, local_path
from metrist.run import remote_folder
from metrist.run.remote_folder import WRITER, RemoteFolder

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed: pip install 'metrist[ray]'")

METRICS = ["rougeL", "chrf"]


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An empty store, and an empty folder for copies."""
    monkeypatch.setenv("METRIST_REMOTE", str(tmp_path / "copies"))
    monkeypatch.setattr(remote_folder, "SYNC_SECONDS", 0.05)
    monkeypatch.setattr(remote_folder, "STALE_SECONDS", 0.3)
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]
    yield memory
    memory.store.clear()


def write_input(store: Any, rows: list[dict[str, Any]]) -> bytes:
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    store.pipe_file("/bucket/data/in.jsonl", data)
    return data


def read_store(store: Any, root: str) -> dict[str, bytes]:
    return {path[len(root) + 1 :]: store.cat_file(path) for path in store.find(root) if "/timings/" not in path}


def read_local(run: Path) -> dict[str, bytes]:
    paths = (path for path in run.rglob("*") if path.is_file() and "timings" not in path.parts)
    return {path.relative_to(run).as_posix(): path.read_bytes() for path in paths}


def test_input_and_run_in_a_store_are_those_of_a_local_run(
    store: Any, rows: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_input(store, rows)
    results = metrist.score("memory://bucket/data/in.jsonl", METRICS, out="memory://bucket/runs/one/", shard_size=5)
    local = tmp_path / "local"
    (local / "data").mkdir(parents=True)
    (local / "data" / "in.jsonl").write_bytes(data)
    monkeypatch.chdir(local)
    metrist.score("data/in.jsonl", METRICS, out="runs/one/", shard_size=5)
    # The name of the input is what the user typed; all else has the same bytes.
    expected = read_local(local / "runs" / "one")
    actual = read_store(store, "/bucket/runs/one")
    assert actual.keys() == expected.keys()
    for name, content in expected.items():
        lines, other = content.splitlines(), actual[name].replace(b"memory://bucket/", b"").splitlines()
        # The last line of a list has the hash of the others, the name included.
        kept = slice(0, -1) if name.startswith("inputs/") else slice(None)
        assert other[kept] == lines[kept], name
    # Another machine, without copies, loads the run and adds to it.
    monkeypatch.setenv("METRIST_REMOTE", str(tmp_path / "elsewhere"))
    loaded = metrist.load("memory://bucket/runs/one")
    assert list(loaded["rougeL"].values) == list(results["rougeL"].values)
    metrist.score("memory://bucket/data/in.jsonl", ["bleu"], out="memory://bucket/runs/one/")
    assert list(metrist.load("memory://bucket/runs/one").scores) == [*METRICS, "bleu"]


def test_patterns_and_flat_files(store: Any, rows: list[dict[str, Any]]) -> None:
    write_input(store, rows)
    metrist.score("memory://bucket/data/*.jsonl", ["chrf"], out="memory://bucket/scores.jsonl")
    assert len(store.cat_file("/bucket/scores.jsonl").splitlines()) == len(rows)
    with pytest.raises(InputError, match="no file matches"):
        metrist.score("memory://bucket/nothing/*.jsonl", ["chrf"])
    with pytest.raises(InputError, match="no such file"):
        metrist.score("memory://bucket/data/other.jsonl", ["chrf"])


def test_a_changed_file_is_fetched_again(store: Any) -> None:
    store.pipe_file("/bucket/x.jsonl", b"one")
    assert fetch("memory://bucket/x.jsonl").read_bytes() == b"one"
    store.pipe_file("/bucket/x.jsonl", b"two, longer")
    assert fetch("memory://bucket/x.jsonl").read_bytes() == b"two, longer"


def test_results_are_in_the_store_before_the_run_ends(store: Any) -> None:
    def rows() -> Iterator[dict[str, Any]]:
        for n in range(400):
            if n == 350:
                while not store.exists("/bucket/run/results/chrf"):
                    time.sleep(0.01)
            yield {"item": str(n), "output": f"word {n}", "references": ["word"]}

    metrist.score(rows(), ["chrf"], out="memory://bucket/run/", shard_size=100)
    assert not store.exists(f"/bucket/run/{WRITER}")


def test_whatever_is_uploaded_when_a_run_is_killed_is_a_run_folder(
    store: Any, rows: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    names, put = list[str](), type(store).put_file

    def record(self: Any, local: str, remote: str, **options: Any) -> None:
        names.append(remote.removeprefix("/bucket/run/"))
        put(self, local, remote, **options)

    monkeypatch.setattr(type(store), "put_file", record)
    monkeypatch.setattr(remote_folder, "SYNC_SECONDS", 60)
    write_input(store, rows)
    metrist.score("memory://bucket/data/in.jsonl", METRICS, out="memory://bucket/run/", shard_size=5)
    kinds = [2 * name.endswith("complete.json") + (name != "manifest.json") for name in names]
    assert kinds == sorted(kinds)
    assert kinds[0] == 0


def test_a_run_that_fails_keeps_what_it_has_in_the_store(store: Any) -> None:
    def rows() -> Iterator[dict[str, Any]]:
        yield from ({"item": str(n), "output": "a", "references": ["a"]} for n in range(200))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        metrist.score(rows(), ["chrf"], out="memory://bucket/run/", shard_size=50)
    assert [name for name in store.find("/bucket/run/results") if "-" in name]
    assert not store.exists(f"/bucket/run/{WRITER}")


def test_a_folder_that_is_being_written_is_refused(
    store: Any, rows: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_folder, "STALE_SECONDS", 60)
    write_input(store, rows)
    with RemoteFolder("memory://bucket/run", sync_seconds=0.02), pytest.raises(RunError, match="is being written"):
        metrist.score("memory://bucket/data/in.jsonl", ["chrf"], out="memory://bucket/run/")


@pytest.mark.parametrize("is_here", [False, True])
def test_the_folder_of_a_dead_writer_is_taken_over(is_here: bool, store: Any, rows: list[dict[str, Any]]) -> None:
    write_input(store, rows)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    host = RemoteFolder("memory://bucket/run")._owner["host"] if is_here else "elsewhere"
    page = {"owner": "other", "host": host, "pid": ended.pid, "beat": 7}
    store.pipe_file(f"/bucket/run/{WRITER}", json.dumps(page).encode())
    metrist.score("memory://bucket/data/in.jsonl", ["chrf"], out="memory://bucket/run/")
    assert store.exists("/bucket/run/manifest.json")


def test_a_writer_that_lost_its_folder_uploads_nothing_more(store: Any) -> None:
    folder = RemoteFolder("memory://bucket/run", sync_seconds=60)
    folder.__enter__()
    page = {"owner": "other", "host": "elsewhere", "pid": 5, "beat": 1}
    store.pipe_file(f"/bucket/run/{WRITER}", json.dumps(page).encode())
    folder.path.mkdir(parents=True, exist_ok=True)
    (folder.path / "manifest.json").write_text("{}")
    with pytest.raises(RunError, match="taken over by process 5 on elsewhere"):
        folder.__exit__(None)
    assert not store.exists("/bucket/run/manifest.json")
    assert store.exists(f"/bucket/run/{WRITER}")


def test_a_folder_with_other_files_is_refused(store: Any, rows: list[dict[str, Any]]) -> None:
    write_input(store, rows)
    with pytest.raises(RunError, match="not a run folder"):
        metrist.score("memory://bucket/data/in.jsonl", ["chrf"], out="memory://bucket/data/")
    assert list(store.find("/bucket/data")) == ["/bucket/data/in.jsonl"]


@pytest.mark.parametrize(
    "url", ["s3://bucket/../x", "s3://..", "simplecache::s3://bucket/x", "s3://a/b\\c", "zip://a::b"]
)
def test_urls_that_lead_elsewhere_are_refused(url: str) -> None:
    assert is_remote(url) == ("::" not in url.partition("//")[0])
    with pytest.raises(InputError, match="expected a URL"):
        local_path(url)


def test_a_store_that_needs_a_package_says_so() -> None:
    with pytest.raises(InputError, match="cannot be reached"):
        metrist.score("nosuchstore://bucket/x.jsonl", ["chrf"])
