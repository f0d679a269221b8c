"""Runs by URL: in fsspec's stores in memory and of files, and over S3's protocol (moto's server, by s3fs)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import metrist
from error_codes import raises_code
from metrist import Metric, Score
from metrist.cli.app import app
from metrist.errors import RunError
from metrist.io import remote
from metrist.io.remote import local_path
from metrist.run import remote_store, stored_pipeline
from metrist.run.estimate import estimate_run
from metrist.run.inputs import read_inputs
from metrist.run.manifest import Manifest, format_manifest
from metrist.run.remote_store import WRITER, Files, Lease, RemoteStore, describe_process
from metrist.run.run import open_run
from metrist.run.stored_run import open_store

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed: pip install fsspec")

METRICS = ["rougeL", "chrf"]
ROWS = [
    {"item": str(n), "system": system, "output": f"text {n} {system}", "references": [f"text {n} a"]}
    | {"ratings": {"quality": n % 3 + (system == "a")}}
    for n in range(16)
    for system in ("a", "b")
]


class Length(Metric):
    def score_record(self, record: metrist.Record) -> Score:
        return Score(value=float(len(record.output)), explanation=f"as long as {record.output}")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of an empty store, which this process and those that it starts take for S3."""
    reason = "s3fs and moto are not installed: pip install s3fs 'moto[server]'"
    pytest.importorskip("s3fs", reason=reason)
    pytest.importorskip("moto.server", reason=reason)
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with (
        subprocess.Popen(
            command, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True, env=environment
        ) as process,
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


@pytest.fixture(autouse=True)
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder for copies of inputs, and short waits."""
    monkeypatch.setenv("METRIST_REMOTE", str(tmp_path / "copies"))
    monkeypatch.setattr(remote_store, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(remote_store, "STALE_SECONDS", 0.5)
    monkeypatch.setattr(remote, "RETRY_SECONDS", 0.001)


@pytest.fixture
def memory() -> Any:
    """The store in memory, empty."""
    store = fsspec.filesystem("memory")
    store.store.clear()
    store.pseudo_dirs[:] = [""]
    return store


@pytest.fixture(params=["memory", "file", "s3"])
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty bucket."""
    if request.param == "memory":
        request.getfixturevalue("memory")
        return "memory://bucket"
    if request.param == "file":
        (tmp_path / "bucket").mkdir()
        return f"file://{tmp_path}/bucket"
    store = fsspec.filesystem("s3", endpoint_url=request.getfixturevalue("server"))
    if store.exists("bucket"):
        store.rm("bucket", recursive=True)
    store.mkdir("bucket")
    return "s3://bucket"


@pytest.fixture
def url(bucket: str) -> str:
    """The URL of a run that does not exist yet."""
    return f"{bucket}/runs/run"


def write(url: str, data: bytes) -> None:
    folder, _, name = url.rpartition("/")
    Files(folder).write(name, data)


def write_rows(url: str, rows: list[dict[str, Any]] = ROWS) -> str:
    write(url, "".join(json.dumps(row) + "\n" for row in rows).encode())
    return url


def list_files(url: str) -> set[str]:
    return set(Files(url).find(""))


def list_rows(url: str) -> dict[str, Counter[bytes]]:
    """The records that the listed parts of each metric have, read as any other program would."""
    rows: dict[str, Counter[bytes]] = {}
    files = Files(url)
    for metric in (open_store(url).read_manifest() or Manifest()).metrics:
        for part in (part for version in metric.versions for part in version.parts):
            table = pq.read_table(files.open(f"{metric.place}/{part.file}"))
            rows.setdefault(metric.text, Counter()).update(table["record"].to_pylist())
    return rows


def check_rows(url: str) -> int:
    """Check that the listed parts are there and have no row twice, and return the number of their rows."""
    rows = list_rows(url).values()
    assert all(number == 1 for counter in rows for number in counter.values())
    return sum(map(len, rows))


class Changed:
    """A file system with another method in place of one of its own."""

    def __init__(self, store: Any, name: str, make: Callable[[Any], Any]) -> None:
        self._store, self._name, self._make = store, name, make

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._store, name)
        return self._make(value) if name == self._name else value


def change_stores(monkeypatch: pytest.MonkeyPatch, name: str, make: Callable[[Any], Any]) -> None:
    """Replace a method of the file systems of runs."""
    original = remote_store.open_store

    def open_changed(url: str, **options: Any) -> tuple[Any, str]:
        store, path = original(url, **options)
        return Changed(store, name, make), path

    monkeypatch.setattr(remote_store, "open_store", open_changed)


# ---- The same as in a local folder


def test_a_run_by_url_is_that_of_a_local_folder(
    bucket: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_rows(f"{bucket}/data/in.jsonl")
    results = metrist.score(source, METRICS, out=f"{url}/", shard_size=5)
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    expected = metrist.score(tmp_path / "in.jsonl", METRICS, out=tmp_path / "local", shard_size=5)
    assert results.system_scores() == expected.system_scores()
    # There is no copy of the run, and another machine loads it and adds to it.
    assert not local_path(url).exists()
    assert WRITER not in list_files(url)
    monkeypatch.setenv("METRIST_REMOTE", str(tmp_path / "elsewhere"))
    run, local = open_run(url), open_run(tmp_path / "local")
    assert run.records().equals(local.records())
    assert run.scores().equals(local.scores())
    assert run.ratings().equals(local.ratings())
    metrist.score(source, ["bleu"], out=f"{url}/")
    other = write_rows(f"{bucket}/data/other.jsonl", [{**row, "system": f"{row['system']}2"} for row in ROWS])
    results = metrist.score(other, [*METRICS, "bleu"], out=f"{url}/")
    assert len(results) == 2 * len(ROWS)
    loaded = metrist.load(url)
    assert list(loaded.scores) == [*METRICS, "bleu"]
    assert loaded.system_scores() == results.system_scores()
    assert check_rows(url) == 3 * len(results)


def test_inputs_of_a_remote_run_are_found_again(bucket: str, url: str, tmp_path: Path) -> None:
    source = write_rows(f"{bucket}/data/in.jsonl")
    path = tmp_path / "other.jsonl"
    path.write_text("".join(json.dumps({**row, "system": "c"}) + "\n" for row in ROWS[::2]))
    for records in (source, path):
        metrist.score(records, ["chrf"], out=f"{url}/", texts=False)
    run = open_run(url)
    assert [one.path for one in run.manifest.inputs] == [source, str(path)]
    assert {record.output for record in read_inputs(url)} == {row["output"] for row in ROWS}
    # The same again changes nothing.
    before = list_files(url)
    for records in (source, path):
        metrist.score(records, ["chrf"], out=f"{url}/", texts=False)
    assert list_files(url) == before


def test_preferences_are_added_by_url(url: str) -> None:
    first = metrist.prefer(ROWS, ["chrf"], out=f"{url}/")
    metrist.prefer(ROWS, ["bleu"], out=f"{url}/")
    again = metrist.prefer(ROWS, ["chrf"], out=f"{url}/")
    assert again.judgments == first.judgments
    assert len([name for name in list_files(url) if name.startswith("exports/")]) == 2


def test_a_dry_run_counts_what_the_store_holds(url: str) -> None:
    assert estimate_run(ROWS, METRICS, out=f"{url}/").stored == {}
    metrist.score(ROWS[:15], METRICS, out=f"{url}/")
    before = list_files(url)
    assert estimate_run(ROWS, METRICS, out=f"{url}/").stored == dict.fromkeys(METRICS, 15)
    assert list_files(url) == before
    estimate = estimate_run(ROWS, METRICS, out="nosuchstore://bucket/run/")
    assert any("not counted" in note for note in estimate.notes)
    assert estimate_run(ROWS, METRICS, out=f"{url}.jsonl").stored == {}


def test_commands_take_urls(bucket: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records, flat = write_rows(f"{bucket}/data/in.jsonl"), f"{bucket}/scores.jsonl"
    metrist.score(records, METRICS, out=f"{url}/")
    metrist.score(records, ["chrf"], out=flat)
    before = list_files(bucket)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for arguments in (
        ["compare", url],
        ["check", url, "--against", url],
        ["worst", url, "-m", "chrf"],
        ["meta", url, "--draws", "10"],
        ["meta", records, url, "--draws", "10"],
        ["meta", records, flat, "--draws", "10"],
        ["report", url, "--format", "pr"],
        ["report", records, flat, "--format", "pr"],
        ["verify", url],
        ["calibrate", url, "-m", "chrf", "-o", "chrf.json"],
        ["explain", records],
        ["export", url, "-o", "flat.jsonl"],
        ["query", url, "SELECT metric, avg(value) FROM scores GROUP BY ALL"],
    ):
        answer = CliRunner().invoke(app, arguments)
        assert answer.exit_code == 0, (arguments, answer.output, answer.exception)
    assert len(Path("flat.jsonl").read_text().splitlines()) == len(METRICS) * len(ROWS)
    assert list_files(bucket) == before
    with raises_code(RunError, "no_data", "rougeL, chrf"):
        metrist.explain(url)
    answer = CliRunner().invoke(app, ["remove", url, "-m", "rougeL", "--yes"])
    assert answer.exit_code == 0, (answer.output, answer.exception)
    assert list(metrist.load(url).scores) == ["chrf"]


# ---- What is no run


def test_folders_that_hold_something_else_are_refused(bucket: str, url: str) -> None:
    write_rows(f"{bucket}/data/in.jsonl")
    metrist.score(ROWS, ["chrf"], out=f"{url}/")
    for place in (f"{bucket}/data", bucket, url.rpartition("/")[0]):
        before = list_files(place)
        with raises_code(RunError, "invalid_value"):
            metrist.score(ROWS, ["chrf"], out=f"{place}/")
        assert list_files(place) == before
    with raises_code(RunError, "invalid_value", "manifest.json"):
        metrist.load(f"{bucket}/nothing")


def test_a_run_that_was_deleted_is_begun_again(url: str) -> None:
    metrist.score(ROWS, METRICS, out=f"{url}/")
    for name in list_files(url):
        Files(url).remove(name)
    with raises_code(RunError, "invalid_value", "manifest.json"):
        metrist.load(url)
    metrist.score(ROWS, ["bleu"], out=f"{url}/")
    assert list(metrist.load(url).scores) == ["bleu"]


@pytest.mark.parametrize("name", ["run/", "scores.jsonl"])
def test_a_misspelt_bucket_is_not_made(server: str, name: str) -> None:
    store = fsspec.filesystem("s3", endpoint_url=server)
    with pytest.raises(RunError, match="has no bucket 'buket'"):
        metrist.score(ROWS, ["chrf"], out=f"s3://buket/{name}")
    assert not store.exists("buket")


def test_names_that_lead_out_of_the_folder_are_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    metrist.score(ROWS, ["chrf"], out=f"{url}/")
    manifest = Files(url).read("manifest.json") or b""
    for wrong in (
        re.sub(rb'"file": "\w+', b'"file": "../../x', manifest),
        manifest.replace(b'"folder": "chrf"', b'"folder": ".."'),
    ):
        assert wrong != manifest
        write(f"{url}/manifest.json", wrong)
        with raises_code(RunError, "damaged", "manifest.json"):
            metrist.load(url)
    write(f"{url}/manifest.json", manifest)
    change_stores(monkeypatch, "find", lambda find: lambda root: [*find(root), f"{root}/../x"])
    with raises_code(RunError, "run_failed"):
        metrist.score(ROWS, ["bleu"], out=f"{url}/")


@pytest.mark.parametrize("error", [PermissionError("Access Denied: ListBucket"), OSError("Forbidden")])
def test_a_key_that_may_not_list_reads_runs_and_files(
    error: OSError, memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "memory://bucket/run"
    metrist.score(ROWS, ["chrf"], out=f"{url}/")
    memory.pipe_file("/bucket/d.json", json.dumps([{**row, "scores": {"m": 1}} for row in ROWS]).encode())
    cat, requests = type(memory).cat_file, list[str]()

    def refuse(*_: Any, **__: Any) -> None:
        raise error

    def read(self: Any, path: str, **options: Any) -> Any:
        requests.append(path)
        if path not in self.store:
            raise error  # As S3 answers, so that nobody learns which files there are.
        return cat(self, path, **options)

    for name in ("find", "ls"):
        monkeypatch.setattr(type(memory), name, refuse)
    monkeypatch.setattr(type(memory), "cat_file", read)
    assert list(metrist.load(url).scores) == ["chrf"]
    assert metrist.explain("memory://bucket/d.json") is not None
    # A refusal is an answer; other errors may pass.
    assert requests.count("/bucket/d.json/manifest.json") == (1 if isinstance(error, PermissionError) else 3)
    with raises_code(RunError, "run_failed", "bucket/other"):
        metrist.load("memory://bucket/other")


# ---- One writer at a time


def test_a_run_that_is_being_written_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_store, "STALE_SECONDS", 60)
    with RemoteStore(url).write(), raises_code(RunError, "in_use", os.getpid()):
        metrist.score(ROWS, ["chrf"], out=f"{url}/")
    metrist.score(ROWS, ["chrf"], out=f"{url}/")


def end_process() -> int:
    """The number of a process that has ended."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


@pytest.mark.parametrize("is_here", [False, True])
def test_the_run_of_a_dead_writer_is_taken_over(is_here: bool, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_store, "STALE_SECONDS", 60 if is_here else 0.3)
    if is_here and not Path("/proc/self/ns/pid").is_symlink():
        pytest.skip("this system does not tell containers apart")
    page = {**describe_process(), "owner": "other", "pid": end_process(), "beat": 7}
    if not is_here:
        page["host"] = "elsewhere"
    write(f"{url}/{WRITER}", json.dumps(page).encode())
    metrist.score(ROWS, ["chrf"], out=f"{url}/")
    assert list(metrist.load(url).scores) == ["chrf"]


@pytest.mark.parametrize("place", ["boot", "pid_namespace"])
def test_a_process_number_of_another_container_says_nothing(
    place: str, memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_store, "STALE_SECONDS", 60)
    page = {**describe_process(), "owner": "other", "pid": end_process(), place: "another"}
    memory.pipe_file(f"/bucket/run/{WRITER}", json.dumps({**page, "beat": 1}).encode())

    def beat() -> None:
        time.sleep(0.2)
        memory.pipe_file(f"/bucket/run/{WRITER}", json.dumps({**page, "beat": 2}).encode())

    thread = threading.Thread(target=beat)
    thread.start()
    with raises_code(RunError, "in_use"):
        Lease("memory://bucket/run").take()
    thread.join()


def test_a_writer_that_lost_its_lease_writes_nothing_more(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    metrist.score(ROWS, ["chrf"], out=f"{url}/")
    before = list_files(url)
    page = {"owner": "other", "host": "elsewhere", "pid": 5, "beat": 1}
    monkeypatch.setattr(remote_store, "BEAT_SECONDS", 60)
    store = RemoteStore(url)
    with store.write():
        write(f"{url}/{WRITER}", json.dumps(page).encode())
        for action in (
            lambda: store.update(lambda _: Manifest()),
            lambda: store.write_bytes("records/x", b""),
            lambda: store._append_log(b""),
            lambda: store.delete(before),
        ):
            with raises_code(RunError, "in_use", "5"):
                action()
    assert list_files(url) == before | {WRITER}


def test_a_run_that_lost_its_lease_ends_early(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_pipeline, "SAVE_SECONDS", 0.1)
    scored = list[str]()

    class Slow(Length):
        def score_record(self, record: metrist.Record) -> Score:
            scored.append(record.item)
            if len(scored) > 5:
                page = {"owner": "other", "host": "elsewhere", "pid": 5, "beat": 1}
                memory.pipe_file(f"/bucket/run/{WRITER}", json.dumps(page).encode())
            time.sleep(0.05)
            return super().score_record(record)

    with raises_code(RunError, "in_use", "process 5"):
        metrist.score(ROWS, [Slow()], out="memory://bucket/run/", shard_size=1, executor="serial")
    assert len(scored) < len(ROWS)
    assert json.loads(memory.cat_file(f"/bucket/run/{WRITER}"))["owner"] == "other"


def test_a_writer_that_does_not_know_of_its_loss_commits_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was stopped between its last look at the lease and its commit, as by a suspended machine."""
    monkeypatch.setattr(remote_store, "BEAT_SECONDS", 60)
    metrist.score(ROWS, ["chrf"], out=f"{url}/")
    first, files = RemoteStore(url), Files(url)
    with first.write():
        before = files.read_version("manifest.json")
        write(f"{url}/{WRITER}", b"{}")
        with RemoteStore(url).write():
            assert not files.write_if("manifest.json", b"something else", before)
    assert list(metrist.load(url).scores) == ["chrf"]


def test_the_writer_beats_while_a_large_file_is_put(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    beats = list[int]()

    def slow(pipe_file: Any) -> Any:
        def put(path: str, *arguments: Any, **options: Any) -> Any:
            for _ in range(2 if path.endswith(".parquet") else 0):
                page = b""
                while not page:  # A page that is being written may be empty.
                    page = Files(url).read(WRITER) or b""
                beats.append(json.loads(page)["beat"])
                time.sleep(0.4)
            return pipe_file(path, *arguments, **options)

        return put

    change_stores(monkeypatch, "pipe_file", slow)
    with (store := RemoteStore(url)).write():
        store.write_bytes("records/x.parquet", b"large")
    assert beats[1] >= beats[0] + 2


def test_two_changes_of_a_manifest_at_once_are_both_made(url: str) -> None:
    """Without the lease of the first, as by a store that shows a file late."""
    metrist.score(ROWS, METRICS, out=f"{url}/")
    store, calls = RemoteStore(url), list[int]()

    def drop(manifest: Manifest, text: str) -> Manifest:
        return msgspec.structs.replace(manifest, metrics=tuple(m for m in manifest.metrics if m.text != text))

    def change(manifest: Manifest) -> Manifest:
        calls.append(len(manifest.metrics))
        if len(calls) == 1:
            write(f"{url}/manifest.json", format_manifest(drop(manifest, "chrf")))
        return drop(manifest, "rougeL")

    store.update(change)
    assert calls == [2, 1]
    assert (store.read_manifest() or Manifest(texts=False)).metrics == ()


# ---- Kills


#: Without ratings, which are written again for rows that have no file.
PLAIN_ROWS = [{name: value for name, value in row.items() if name != "ratings"} for row in ROWS]


class Killed(BaseException):
    """Ends a run as `kill -9` does: it does not come to write anything more."""


def kill_at(step: int, url: str, monkeypatch: pytest.MonkeyPatch, folder: str = "") -> None:
    """Let only so many calls change the store, or a folder in it; the next leaves half a file where the store has
    folders."""
    left, is_dead, main = step, False, threading.get_ident()

    def limit(name: str) -> Callable[[Any], Any]:
        def make(original: Any) -> Any:
            def call(*arguments: Any) -> Any:
                nonlocal left, is_dead
                if threading.get_ident() != main:
                    raise OSError("killed")  # The thread that renews the lease.
                if not is_dead and folder in arguments[0]:
                    is_dead = left == 0
                    left -= 1
                    if is_dead and name == "pipe_file" and url.startswith("file:"):
                        original(arguments[0], arguments[1][: len(arguments[1]) // 2])
                if is_dead:
                    raise Killed
                return original(*arguments)

            return call

        return make

    for name in ("pipe_file", "mv", "rm_file"):
        change_stores(monkeypatch, name, limit(name))


def run_until_killed(step: int, url: str, monkeypatch: pytest.MonkeyPatch, folder: str = "") -> bool:
    """Whether a run was killed at this step, or came to its end."""
    with monkeypatch.context() as patch:
        kill_at(step, url, patch, folder)
        try:
            metrist.score(PLAIN_ROWS, [Length()], out=f"{url}/", shard_size=16, executor="serial")
        except Killed:
            return True
    return False


@pytest.mark.parametrize("bucket", ["file"], indirect=True)
@pytest.mark.parametrize("when", ["scoring", "recovering unlisted rows", "recovering listed rows", "compacting"])
def test_a_run_that_is_killed_at_any_step_goes_on(when: str, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_store, "BEAT_SECONDS", 0.005)
    monkeypatch.setattr(remote_store, "STALE_SECONDS", 0.01)
    monkeypatch.setattr(remote_store, "_READING_SECONDS", 0.001)
    # Parts are saved after each task, or results stay in the log.
    logs = {"recovering unlisted rows": 1, "recovering listed rows": 2}.get(when)
    monkeypatch.setattr(stored_pipeline, "_COSTLY_SECONDS", 0.0)
    monkeypatch.setattr(stored_pipeline, "_LOGGED_SECONDS", 60.0 if logs else 0.0)
    monkeypatch.setattr(stored_pipeline, "_FEW_PARTS", 99 if when == "scoring" else 1)
    expected = metrist.score(PLAIN_ROWS, [Length()])[Length().text].values.tolist()
    is_killed, step, seen = True, 0, 0
    while is_killed:
        url = f"{bucket}/{step}"
        if logs:
            assert run_until_killed(logs, url, monkeypatch, "/log/")
            assert [name for name in list_files(url) if name.startswith("log/")]
        elif when == "compacting":
            with monkeypatch.context() as patch:
                patch.setattr(stored_pipeline, "_FEW_PARTS", 99)
                metrist.score(PLAIN_ROWS, [Length()], out=f"{url}/", shard_size=16, executor="serial")
        is_killed = run_until_killed(step, url, monkeypatch)
        seen = max(seen, check_rows(url))
        results = metrist.score(PLAIN_ROWS, [Length()], out=f"{url}/", shard_size=16, executor="serial")
        assert results[Length().text].values.tolist() == expected
        assert check_rows(url) == len(PLAIN_ROWS)
        with open_store(url).write():  # It deletes what the last one has merged.
            pass
        listed = set(open_run(url).manifest.list_parts())
        assert list_files(url) == {"manifest.json", *listed}
        step += 1
    assert step > 5
    assert seen == len(PLAIN_ROWS)


def test_a_run_in_s3_that_was_killed_goes_on(server: str, tmp_path: Path) -> None:
    store = fsspec.filesystem("s3", endpoint_url=server)
    store.makedirs("killed", exist_ok=True)
    (tmp_path / "slow_metric.py").write_text(
        "import sys, time\nfrom metrist import Metric\n\n\nclass Slow(Metric):\n    resident = True\n\n"
        "    def score_record(self, record):\n        time.sleep(0.05 if record.item != sys.argv[-1] else 600)\n"
        "        return float(len(record.output))\n"
    )
    path = write_rows(
        f"file://{tmp_path}/in.jsonl", [{**r, "item": f"{r['item']}-{n}"} for n in range(2) for r in PLAIN_ROWS]
    )
    program = (
        f"import metrist; metrist.score({path!r}, ['slow_metric.Slow', 'chrf'], out='s3://killed/run/', "
        "executor='serial', shard_size=4, progress=False)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    for last, wanted in (("4-0", 2), ("14-0", 5)):  # In the third task, and in the sixth after two that are stored.
        with subprocess.Popen([sys.executable, "-c", program, last], env=environment) as process:
            try:
                until = time.monotonic() + 60
                while len([name for name in list_files("s3://killed/run") if "log" in name]) < wanted:
                    assert time.monotonic() < until
                    time.sleep(0.05)
            finally:
                process.kill()
    # What was logged is in parts before anything is scored again.
    with RemoteStore("s3://killed/run").write():
        assert len(list_rows("s3://killed/run")["slow_metric.Slow"]) >= 5 * 4
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
    assert len(metrist.load("s3://killed/run")) == 2 * len(PLAIN_ROWS)
    assert check_rows("s3://killed/run") == 4 * len(PLAIN_ROWS)
    assert not [name for name in list_files("s3://killed/run") if "log" in name or name == WRITER]


# ---- Readers


def test_a_reader_goes_on_while_parts_are_merged(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_pipeline, "_COSTLY_SECONDS", 0.0)
    monkeypatch.setattr(stored_pipeline, "_LOGGED_SECONDS", 0.0)
    for few in (99, 1):
        monkeypatch.setattr(stored_pipeline, "_FEW_PARTS", few)
        metrist.score(ROWS[:10], [Length()], out=f"{url}/", shard_size=3, executor="serial")
        if few == 99:
            before = open_run(url)
    (metric,) = before.manifest.metrics
    assert [len(version.parts) for version in metric.versions] == [4]
    assert len(open_run(url).manifest.metrics[0].versions[0].parts) == 1
    scores, missing = before.read_scores(metric)
    assert scores.values.tolist() == [len(row["output"]) for row in ROWS[:10]]
    assert scores.explanations == {n: f"as long as {row['output']}" for n, row in enumerate(ROWS[:10])}
    assert not len(missing)
    with open_store(url).write():  # The next writer deletes them.
        pass
    with raises_code(RunError, "changed", "changed"):
        before.scores()


def test_a_part_that_is_gone_is_told_and_scored_again(url: str) -> None:
    results = metrist.score(ROWS, METRICS, out=f"{url}/")
    run = open_run(url)
    part = run.manifest.metrics[0].versions[0].parts[0]
    Files(url).remove(f"{run.manifest.metrics[0].place}/{part.file}")
    with raises_code(RunError, "damaged", "`metrist score`"):
        metrist.load(url)
    again = metrist.score(ROWS, METRICS, out=f"{url}/")
    assert any("is missing: it was set aside and scored again" in note for note in again.notes)
    assert metrist.load(url).system_scores() == results.system_scores()


def test_a_flipped_bit_is_no_other_number(url: str) -> None:
    results = metrist.score(ROWS, METRICS, out=f"{url}/")
    metric = open_run(url).manifest.metrics[0]
    name = f"{metric.place}/{metric.versions[0].parts[0].file}"
    data = Files(url).read(name)
    assert data is not None
    for position in range(0, len(data), len(data) // 9):
        write(f"{url}/{name}", data[:position] + bytes([data[position] ^ 4]) + data[position + 1 :])
        with raises_code(RunError, "damaged", f"{url}/{name}"):
            metrist.load(url)
        with raises_code(RunError, "unreadable", f"{url}/{name}") as caught:
            open_run(url).query("SELECT sum(value) FROM scores")
        assert "Traceback" not in str(caught.value)
    metrist.score(ROWS, METRICS, out=f"{url}/")
    assert metrist.load(url).system_scores() == results.system_scores()


def test_large_parts_are_read_in_ranges(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    results = metrist.score(ROWS, METRICS, out=f"{url}/")
    sizes = list[int]()

    def watch(cat_file: Any) -> Any:
        def read(path: str, **options: Any) -> Any:
            if path.endswith(".parquet") and len(sizes) == 3:
                sizes.append(0)
                raise OSError("the connection was lost")
            data = cat_file(path, **options)
            if path.endswith(".parquet"):
                sizes.append(len(data))
            return data

        return read

    monkeypatch.setattr(remote_store, "_SMALL_FILE", 64)
    change_stores(monkeypatch, "cat_file", watch)
    assert metrist.load(url).system_scores() == results.system_scores()
    assert len(sizes) > 3 * (len(METRICS) + 1)


# ---- Stores that fail


@pytest.mark.parametrize("name", ["cat_file", "pipe_file", "find", "rm_file", "ls", "mv", "info"])
def test_one_call_that_fails_is_repeated(name: str, memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    original, failures = getattr(type(memory), name), list[int]()

    def fail_once(self: Any, *arguments: Any, **options: Any) -> Any:
        if not failures:
            failures.append(1)
            raise OSError("the connection was lost")
        return original(self, *arguments, **options)

    for url in ("memory://bucket/run", "memory://bucket/run"):
        monkeypatch.setattr(type(memory), name, fail_once)
        metrist.score(ROWS, ["chrf"], out=f"{url}/")
    assert list(metrist.load("memory://bucket/run").scores) == ["chrf"]
    if name != "info":  # Only needed for large files.
        assert failures


def test_a_store_that_stays_away_is_told(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    metrist.score(ROWS, ["chrf"], out="memory://bucket/run/")

    def fail(*_: Any, **__: Any) -> None:
        raise ConnectionError("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(type(memory), "pipe_file", fail)
        with raises_code(RunError, "run_failed", "Connection"):
            metrist.score(ROWS, ["bleu"], out="memory://bucket/run/")
    with monkeypatch.context() as patch:
        patch.setattr(type(memory), "cat_file", fail)
        with raises_code(RunError, "run_failed", "bucket/run/manifest.json"):
            metrist.load("memory://bucket/run")
    assert list(metrist.load("memory://bucket/run").scores) == ["chrf"]


@pytest.mark.parametrize("fault", ["lost answer", "no conditions"])
@pytest.mark.parametrize("bucket", ["s3"], indirect=True)
def test_conditions_of_s3_may_be_unknown_and_answers_lost(
    fault: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    conditions = list[str]()

    def change(pipe_file: Any) -> Any:
        def put(path: str, data: bytes, **options: Any) -> None:
            conditions.extend(options)
            error = OSError("fault")
            if options and fault == "no conditions":
                error.__cause__ = Exception()
                error.__cause__.response = {"Error": {"Code": "NotImplemented"}}  # type: ignore[attr-defined]
                raise error
            pipe_file(path, data, **options)
            if options and len(conditions) % 2:
                raise error

        return put

    with monkeypatch.context() as patch:
        change_stores(patch, "pipe_file", change)
        metrist.score(ROWS, METRICS, out=f"{url}/")
    assert list(metrist.load(url).scores) == METRICS
    assert set(conditions) == ({"IfNoneMatch"} if fault == "no conditions" else {"IfNoneMatch", "IfMatch"})
