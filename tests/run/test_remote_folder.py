"""Inputs and run folders in a store, here fsspec's store in memory, and one writer at a time."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from metrist.run.remote_folder import WRITER, RemoteFolder, describe_process
from typer.testing import CliRunner

import metrist
from metrist.cli.app import app
from metrist.errors import InputError, RunError
from metrist.io import remote
from metrist.io.remote import describe_stamp, fetch, has_version, is_remote, local_path
from metrist.run import remote_folder
from metrist.run.estimate import estimate_run

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed: pip install 'metrist[ray]'")

METRICS = ["rougeL", "chrf"]


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An empty store, and an empty folder for copies."""
    monkeypatch.setenv("METRIST_REMOTE", str(tmp_path / "copies"))
    monkeypatch.setattr(remote_folder, "SYNC_SECONDS", 0.05)
    monkeypatch.setattr(remote_folder, "STALE_SECONDS", 0.3)
    monkeypatch.setattr(remote, "RETRY_SECONDS", 0.01)
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


def end_process() -> int:
    """The number of a process that has ended."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a run that does not exist yet, in a store without folders and in one with them."""
    return "memory://bucket/runs/run" if request.param == "memory" else f"file://{tmp_path}/store/runs/run"


def read_all(url: str) -> dict[str, bytes]:
    store, root = fsspec.core.url_to_fs(url)
    return read_store(store, root)


ROWS = [{"item": str(n), "output": f"word {n}", "references": ["word"]} for n in range(20)]


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


@pytest.mark.parametrize("name", ["info", "get_file", "glob"])
def test_a_failing_call_for_an_input_is_repeated(name: str, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    original, failures = getattr(type(store), name), list[int]()

    def fail_twice(self: Any, *arguments: Any, **options: Any) -> Any:
        if len(failures) < 2:
            failures.append(1)
            raise OSError("the connection was lost")
        return original(self, *arguments, **options)

    monkeypatch.setattr(type(store), name, fail_twice)
    data = write_input(store, ROWS)
    assert len(metrist.score("memory://bucket/data/*.jsonl", ["chrf"])["chrf"].values) == len(ROWS)
    assert len(failures) == 2
    assert local_path("memory://bucket/data/in.jsonl").read_bytes() == data


def test_a_store_that_stays_away_is_told(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("the connection was lost")

    write_input(store, ROWS)
    monkeypatch.setattr(type(store), "get_file", fail)
    with pytest.raises(InputError, match="cannot be read: OSError: the connection was lost"):
        fetch("memory://bucket/data/in.jsonl")
    assert not [path for path in local_path("memory://bucket/data/in.jsonl").parent.iterdir() if path.is_file()]


def read_in_halves(store: Any, monkeypatch: pytest.MonkeyPatch, between: Callable[[], None]) -> None:
    """Make copies as a library does that goes on reading after a lost connection: half and half."""

    def get(self: Any, path: str, local: str, **_: Any) -> None:
        first = self.cat_file(path)
        between()
        second = self.cat_file(path)
        Path(local).write_bytes(first[: len(first) // 2] + second[len(first) // 2 :])

    monkeypatch.setattr(type(store), "get_file", get)


def test_a_file_is_not_joined_from_two_versions(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store.pipe_file("/bucket/x.jsonl", b"one" * 10)
    versions = iter([b"two" * 10])

    def change() -> None:
        for version in versions:
            store.pipe_file("/bucket/x.jsonl", version)

    read_in_halves(store, monkeypatch, change)
    assert fetch("memory://bucket/x.jsonl").read_bytes() == b"two" * 10


def test_a_file_that_is_always_being_written_is_refused(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store.pipe_file("/bucket/x.jsonl", b"one")
    read = store.cat_file
    read_in_halves(store, monkeypatch, lambda: store.pipe_file("/bucket/x.jsonl", read("/bucket/x.jsonl") * 2))
    with pytest.raises(InputError, match="changed each time"):
        fetch("memory://bucket/x.jsonl")
    assert not local_path("memory://bucket/x.jsonl").exists()


def test_a_file_whose_version_differs_at_each_request_is_read(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    info, versions = type(store).info, count()
    monkeypatch.setattr(type(store), "info", lambda *path, **_: {**info(*path), "ETag": str(next(versions))})
    data = write_input(store, ROWS)
    assert fetch("memory://bucket/data/in.jsonl").read_bytes() == data
    # One that ends early each time is still refused.
    monkeypatch.setattr(type(store), "get_file", lambda _self, _path, local, **_: Path(local).write_bytes(data[:5]))
    with pytest.raises(InputError, match=r"only 5 of [\d,]+ bytes came"):
        fetch("memory://bucket/data/in.jsonl")


@pytest.mark.parametrize("out", [None, "memory://bucket/run/", "memory://bucket/scores.jsonl"])
def test_a_folder_for_copies_that_cannot_be_written_is_told(
    out: str | None, store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_input(store, ROWS)
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "missing" / "folder")
    # Making the first raises NotADirectoryError, the second FileNotFoundError.
    for place in (tmp_path / "file" / "copies", tmp_path / "link" / "copies"):
        monkeypatch.setenv("METRIST_REMOTE", str(place))
        with pytest.raises((InputError, RunError), match=rf"cannot (be copied to|write) {place}/\S*: \w+"):
            metrist.score("memory://bucket/data/in.jsonl" if out is None else ROWS, ["chrf"], out=out)
    monkeypatch.setenv("METRIST_REMOTE", str(tmp_path / "copies"))
    metrist.score(ROWS, ["chrf"], out="memory://bucket/other/")
    monkeypatch.setenv("METRIST_REMOTE", str(tmp_path / "link" / "copies"))
    with pytest.raises(RunError, match=rf"cannot write {tmp_path}/link/copies/\S*: \w+"):
        metrist.load("memory://bucket/other")


def test_a_file_that_ends_early_is_read_again(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    original, lengths = type(store).get_file, iter([5])

    def get(self: Any, path: str, local: str, **options: Any) -> None:
        original(self, path, local, **options)
        for length in lengths:
            Path(local).write_bytes(Path(local).read_bytes()[:length])

    data = write_input(store, ROWS)
    monkeypatch.setattr(type(store), "get_file", get)
    assert fetch("memory://bucket/data/in.jsonl").read_bytes() == data


def test_a_copy_that_was_changed_is_fetched_again(store: Any) -> None:
    data = write_input(store, ROWS)
    fetch("memory://bucket/data/in.jsonl").write_bytes(b"other")
    assert fetch("memory://bucket/data/in.jsonl").read_bytes() == data


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
def test_the_folder_of_a_dead_writer_is_taken_over(
    is_here: bool, store: Any, rows: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_folder, "STALE_SECONDS", 60 if is_here else 0.3)
    if is_here and not Path("/proc/self/ns/pid").is_symlink():
        pytest.skip("this system does not tell containers apart")
    write_input(store, rows)
    page = {**describe_process(), "owner": "other", "pid": end_process(), "beat": 7}
    if not is_here:
        page["host"] = "elsewhere"
    store.pipe_file(f"/bucket/run/{WRITER}", json.dumps(page).encode())
    metrist.score("memory://bucket/data/in.jsonl", ["chrf"], out="memory://bucket/run/")
    assert store.exists("/bucket/run/manifest.json")


@pytest.mark.parametrize("place", ["boot", "pid_namespace"])
def test_a_process_number_of_another_container_says_nothing(
    place: str, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_folder, "STALE_SECONDS", 60)
    page = {**describe_process(), "owner": "other", "pid": end_process(), place: "another"}
    store.pipe_file(f"/bucket/run/{WRITER}", json.dumps({**page, "beat": 1}).encode())

    def beat() -> None:
        time.sleep(0.2)
        store.pipe_file(f"/bucket/run/{WRITER}", json.dumps({**page, "beat": 2}).encode())

    thread = threading.Thread(target=beat)
    thread.start()
    with pytest.raises(RunError, match="is being written"):
        RemoteFolder("memory://bucket/run").__enter__()
    thread.join()


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


# ---- Stores that fail, change or are slow ----


def test_all_files_are_uploaded(url: str) -> None:
    metrist.score(ROWS, METRICS, out=f"{url}/", shard_size=5)
    assert read_all(url).keys() == read_local(local_path(url)).keys() - {
        name for name in read_local(local_path(url)) if name.startswith("columns/")
    }
    assert list(metrist.load(url).scores) == METRICS


def test_preferences_are_added_to_those_in_the_store(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{**row, "system": system} for row in ROWS for system in ("one", "two")]
    metrist.prefer(rows, ["chrf"], out=f"{url}/")
    monkeypatch.setenv("METRIST_REMOTE", str(tmp_path / "elsewhere"))
    metrist.prefer(rows, ["bleu"], out=f"{url}/")
    assert len([name for name in read_all(url) if name.count("/") == 1 and name.endswith(".jsonl")]) == 2


def test_a_folder_of_run_folders_is_refused(url: str) -> None:
    metrist.score(ROWS, ["chrf"], out=f"{url}/")
    with pytest.raises(RunError, match="not a run folder"):
        metrist.score(ROWS, ["chrf"], out=f"{url.rpartition('/')[0]}/")


def test_a_flat_file_is_uploaded_to_a_new_folder(tmp_path: Path) -> None:
    metrist.score(ROWS, ["chrf"], out=f"file://{tmp_path}/store/new/scores.jsonl")
    assert (tmp_path / "store/new/scores.jsonl").exists()


def test_a_run_that_was_deleted_from_the_store_is_not_uploaded_again(url: str) -> None:
    metrist.score(ROWS, METRICS, out=f"{url}/")
    metrist.load(url)
    store, root = fsspec.core.url_to_fs(url)
    store.rm(root, recursive=True)
    with pytest.raises(RunError, match="there is no run"):
        metrist.load(url)
    metrist.score(ROWS, ["bleu"], out=f"{url}/")
    assert list(metrist.load(url).scores) == ["bleu"]


def test_files_that_were_not_uploaded_survive_the_deletion_of_their_run(url: str) -> None:
    metrist.score(ROWS, ["chrf"], out=f"{url}/")
    store, root = fsspec.core.url_to_fs(url)
    store.rm(root, recursive=True)
    only_here = local_path(url) / "results" / "chrf" / "new"
    only_here.write_text("not uploaded")
    with pytest.raises(RunError, match="not uploaded"):
        metrist.score(ROWS, ["chrf"], out=f"{url}/")
    assert only_here.exists()


def test_a_reader_does_not_touch_the_folder_of_a_writer(url: str) -> None:
    metrist.score(ROWS, ["chrf"], out=f"{url}/")
    manifest = local_path(url) / "manifest.json"
    newer = manifest.read_text() + "\n"
    with RemoteFolder(url, sync_seconds=60):
        manifest.write_text(newer)
        assert list(metrist.load(url).scores) == ["chrf"]
        assert manifest.read_text() == newer
    assert read_all(url)["manifest.json"].decode() == newer


def test_what_changed_here_and_was_not_uploaded_is_kept(url: str) -> None:
    metrist.score(ROWS, ["chrf"], out=f"{url}/")
    manifest = local_path(url) / "manifest.json"
    newer = manifest.read_text() + "\n"
    manifest.write_text(newer)  # As by a run that was killed before its next upload.
    with RemoteFolder(url):
        assert manifest.read_text() == newer
    assert read_all(url)["manifest.json"].decode() == newer


def change_both(url: str, name: str, local: bytes, store: bytes) -> Path:
    """Write two versions of a file of a run, as runs do on two machines of which one could not upload any more."""
    (local_path(url) / name).write_bytes(local)
    file_system, root = fsspec.core.url_to_fs(url)
    file_system.pipe_file(f"{root}/{name}", store)
    return local_path(url) / name


@pytest.mark.parametrize("has_index", [True, False])
@pytest.mark.parametrize("folder", ["", "inputs/"])
def test_settings_and_lists_that_changed_on_both_sides_are_told_and_kept(
    url: str, folder: str, has_index: bool, tmp_path: Path
) -> None:
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "other.jsonl").write_text("".join(json.dumps({**row, "system": "b"}) + "\n" for row in ROWS))
    metrist.score(tmp_path / "in.jsonl", ["chrf"], out=f"{url}/")
    (name,) = (name for name in read_all(url) if name.startswith(folder) and ("/" in name) == bool(folder))
    ours = read_all(url)[name].replace(b'"order": 0', b'"order": 1').replace(b'"shard_size": 1024', b'"shard_size": 8')
    if folder:
        body = ours[: ours.rindex(b'{"sha256"')]
        ours = body + b'{"sha256": "%s"}\n' % hashlib.sha256(body).hexdigest().encode()
    assert ours != read_all(url)[name]
    metrist.score(tmp_path / "other.jsonl", ["bleu"], out=tmp_path / "other")
    theirs = next((tmp_path / "other" / folder).glob("*.json*")).read_bytes()
    path = change_both(url, name, ours, theirs)
    if not has_index:
        path.parents[len(Path(name).parts) - 1].with_name("run.metrist-sync").unlink()
    before = read_local(local_path(url))
    with pytest.raises(RunError, match=rf"{name}: the versions in .* differ, and both have changed"):
        metrist.score(tmp_path / "in.jsonl", ["chrf"], out=f"{url}/")
    assert read_local(local_path(url)) == before
    assert read_all(url)[name] == theirs
    assert WRITER not in read_all(url)
    # As the message says.
    path.unlink()
    with RemoteFolder(url):
        assert path.read_bytes() == theirs


def test_the_same_change_on_both_sides_is_no_conflict(url: str) -> None:
    metrist.score(ROWS, ["chrf"], out=f"{url}/")
    newer = read_all(url)["manifest.json"] + b"\n"
    path = change_both(url, "manifest.json", newer, newer)
    with RemoteFolder(url):
        assert path.read_bytes() == newer


def test_of_two_versions_of_a_shard_the_whole_one_counts(url: str) -> None:
    values = list(metrist.score(ROWS, ["chrf"], out=f"{url}/", shard_size=5)["chrf"].values)
    first, second, *_ = (name for name in read_all(url) if name.startswith("results/") and name.endswith(".jsonl"))
    contents = read_all(url)
    change_both(url, first, contents[first], contents[first][:50])
    (local_path(url) / first).write_bytes(contents[first])
    change_both(url, second, contents[second][:70], contents[second])
    (local_path(url).parent / "run.metrist-sync").unlink()
    with RemoteFolder(url):
        assert (local_path(url) / first).read_bytes() == contents[first]
        assert (local_path(url) / second).read_bytes() == contents[second]
    assert read_all(url) == contents
    assert list(metrist.load(url)["chrf"].values) == values


def test_shards_of_two_machines_are_joined(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One machine was cut off after its results were finished, another has added others since."""
    metrist.score(ROWS[:5], ["chrf"], out=f"{url}/", shard_size=5)
    shutil.copytree(tmp_path / "copies", tmp_path / "elsewhere")
    metrist.score(ROWS[5:10], ["chrf"], out=f"{url}/", shard_size=5)
    # What the second machine has is as it would be without its last upload.
    monkeypatch.setenv("METRIST_REMOTE", str(tmp_path / "elsewhere"))
    with_local_page = local_path(url)
    metrist.score(ROWS[10:], ["chrf"], out=f"{with_local_page}/", shard_size=5)
    results = metrist.score(ROWS, ["chrf"], out=f"{url}/", shard_size=5)
    assert len(results["chrf"].values) == len(ROWS)
    assert metrist.verify(local_path(url), sample=3).findings[0].passed


def test_what_a_killed_run_uploaded_is_known_to_be_the_same(url: str) -> None:
    folder = RemoteFolder(url, sync_seconds=60)
    folder.__enter__()
    folder.path.mkdir(parents=True)
    (folder.path / "manifest.json").write_text("{}")
    folder.upload()
    (folder.path / "manifest.json").write_text("{ }")
    folder._writer.release()  # All that ends with a process.
    again = RemoteFolder(url)
    again.fetch()
    assert (folder.path / "manifest.json").read_text() == "{ }"


def test_a_copy_is_whole_or_not_there(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    metrist.score(ROWS, ["chrf"], out=f"{url}/")
    folder = RemoteFolder(url, for_reading=True)

    def stop(_self: Any, _remote: str, local: str, **_: Any) -> None:
        Path(local).write_text("half of")
        raise OSError("the connection was lost")

    monkeypatch.setattr(type(folder._store), "get_file", stop)
    with pytest.raises(RunError, match="connection was lost"):
        folder.fetch()
    assert [path for path in folder.path.rglob("*") if path.is_file()] == []
    assert not list(folder.path.parent.glob("*.part"))


def fetch_amid(folder: RemoteFolder, monkeypatch: pytest.MonkeyPatch, name: str, action: Callable[[str], None]) -> None:
    """Do something before and after each file of this name is copied for a reader."""
    original = type(folder._store).get_file

    def get(self: Any, path: str, local: str, **options: Any) -> None:
        is_it = name in path and ".metrist-read" in local
        if is_it:
            action("before")
        original(self, path, local, **options)
        if is_it:
            action("after")

    monkeypatch.setattr(type(folder._store), "get_file", get)


def test_a_run_that_grows_while_it_is_read_is_read_whole(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrist.score(ROWS[:5], ["chrf"], out=f"{url}/", shard_size=5)
    steps = iter([10, 15, 20])

    def grow(when: str) -> None:
        if when == "before" and (number := next(steps, None)):
            with monkeypatch.context() as patch:
                patch.setenv("METRIST_REMOTE", str(tmp_path / "elsewhere"))
                metrist.score(ROWS[:number], ["chrf"], out=f"{url}/", shard_size=5)

    # The new page names shards that were not there when the reader listed the folder.
    folder = RemoteFolder(url, for_reading=True)
    fetch_amid(folder, monkeypatch, "/complete.json", grow)
    assert len(metrist.load(url)["chrf"].values) == 20
    assert next(steps, None) is None


@pytest.mark.parametrize("is_page", [True, False])
def test_a_run_that_changes_all_the_time_is_read_or_refused(
    is_page: bool, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrist.score(ROWS, ["chrf"], out="memory://bucket/run/")
    page = store.cat_file("/bucket/run/results/chrf/complete.json")
    lists, folder = 0, RemoteFolder("memory://bucket/run", for_reading=True)
    find = folder._store.find

    def add(*arguments: Any, **options: Any) -> Any:
        nonlocal lists
        lists += 1
        name = "chrf/complete.json" if is_page else f"bleu/{lists}.jsonl"
        store.pipe_file(f"/bucket/run/results/{name}", page + b" " * lists)
        return find(*arguments, **options)

    monkeypatch.setattr(folder._store, "find", add)
    if is_page:
        with pytest.raises(RunError, match="memory://bucket/run changed each time while it was read"):
            folder.fetch()
    else:  # Shards of a metric that is not finished yet.
        assert folder.fetch()
    assert lists == remote_folder._ROUNDS + 1


def test_a_copy_that_was_removed_while_it_was_made_is_made_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by another reader, which found no run in the store."""
    metrist.score(ROWS, ["chrf"], out=f"{url}/", shard_size=5)
    folder = RemoteFolder(url, for_reading=True)
    removals = iter([1])

    def remove(when: str) -> None:
        if when == "after" and next(removals, None):
            shutil.rmtree(folder.path, ignore_errors=True)

    last = max(name for name in folder._list_remote() if name.startswith("results/") and name.endswith(".jsonl"))
    fetch_amid(folder, monkeypatch, last, remove)
    assert remote_folder.find_run(url) == folder.path
    assert next(removals, None) is None
    assert read_local(folder.path) == read_all(url)


def test_a_file_that_is_missing_here_is_not_taken_for_one_that_was_removed_there(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrist.score(ROWS, ["chrf"], out=f"{url}/")
    folder = RemoteFolder(url, for_reading=True)

    def remove(when: str) -> None:
        for part in folder.path.parent.glob("*.part") if when == "after" else ():
            part.unlink()

    fetch_amid(folder, monkeypatch, "manifest.json", remove)
    with pytest.raises(RunError, match=rf"cannot write {folder.path}/manifest\.json: No such file"):
        folder.fetch()


def test_results_of_which_both_versions_are_damaged_are_scored_again(url: str) -> None:
    values = list(metrist.score(ROWS, ["chrf"], out=f"{url}/", shard_size=5)["chrf"].values)
    contents = read_all(url)
    first, second, *_ = (name for name in contents if name.startswith("results/") and name.endswith(".jsonl"))
    change_both(url, first, contents[first][:50], contents[first][:70])
    change_both(url, second, b"", contents[second][:-20])
    change_both(url, "results/chrf/complete.json", b"{", b'{"metric')
    assert list(metrist.score(ROWS, ["chrf"], out=f"{url}/", shard_size=5)["chrf"].values) == values
    assert read_all(url) == contents
    assert list(metrist.load(url)["chrf"].values) == values


def test_lists_of_which_both_versions_are_damaged_are_told(url: str) -> None:
    metrist.score(ROWS, ["chrf"], out=f"{url}/", shard_size=5)
    change_both(url, "manifest.json", b"{", b'{"metric')
    with pytest.raises(RunError, match="differ, and both have changed"):
        metrist.score(ROWS, ["chrf"], out=f"{url}/", shard_size=5)


class HiddenBuckets:
    """A store with paths such as S3's, where a key may write files and sees no buckets."""

    def __init__(self, errors: list[Exception]) -> None:
        self.errors, self.files = errors, dict[str, bytes]()

    def exists(self, _path: str) -> bool:
        return False

    def put_file(self, local: str, path: str) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.files[path] = Path(local).read_bytes()


def test_a_failed_upload_is_repeated_where_buckets_are_hidden(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"content")
    hidden = HiddenBuckets([ConnectionError("connection reset")])
    remote_folder.put_file(hidden, tmp_path / "x", "bucket/x")
    assert hidden.files == {"bucket/x": b"content"}
    hidden = HiddenBuckets([ConnectionError("connection reset")] * 9)
    with pytest.raises(RunError, match="ConnectionError: connection reset"):
        remote_folder.put_file(hidden, tmp_path / "x", "bucket/x")
    with pytest.raises(RunError, match="the store has no bucket 'bucket'"):
        remote_folder.put_file(HiddenBuckets([FileNotFoundError("NoSuchBucket")]), tmp_path / "x", "bucket/x")


@pytest.mark.parametrize("name", ["cat_file", "pipe_file", "find", "put_file", "rm_file"])
def test_one_call_that_fails_is_repeated(name: str, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    original, failures = getattr(type(store), name), list[int]()

    def fail_once(self: Any, *arguments: Any, **options: Any) -> Any:
        if not failures:
            failures.append(1)
            raise OSError("the connection was lost")
        return original(self, *arguments, **options)

    monkeypatch.setattr(type(store), name, fail_once)
    metrist.score(ROWS, ["chrf"], out="memory://bucket/run/")
    assert failures
    assert list(metrist.load("memory://bucket/run").scores) == ["chrf"]


def test_uploads_go_on_after_the_store_was_away(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    original, is_away = type(store).cat_file, threading.Event()

    def fail(self: Any, *arguments: Any, **options: Any) -> Any:
        if is_away.is_set():
            raise OSError("the store is away")
        return original(self, *arguments, **options)

    monkeypatch.setattr(type(store), "cat_file", fail)
    with RemoteFolder("memory://bucket/run", sync_seconds=0.02) as folder:
        is_away.set()
        while folder._error is None:
            time.sleep(0.01)
        is_away.clear()
        folder.path.mkdir(parents=True)
        (folder.path / "manifest.json").write_text("{}")
        until = time.monotonic() + 10
        while not store.exists("/bucket/run/manifest.json") and time.monotonic() < until:
            time.sleep(0.01)
        assert store.exists("/bucket/run/manifest.json")


def test_a_run_that_lost_its_folder_ends_early(store: Any) -> None:
    count = 0

    def rows() -> Iterator[dict[str, Any]]:
        nonlocal count
        for n in range(20_000):
            count += 1
            if n == 500:
                page = {"owner": "other", "host": "elsewhere", "pid": 5, "beat": 1}
                store.pipe_file(f"/bucket/run/{WRITER}", json.dumps(page).encode())
                time.sleep(0.5)
            yield {"item": str(n), "output": f"word {n}", "references": ["word"]}

    with pytest.raises(RunError, match="taken over by process 5"):
        metrist.score(rows(), ["chrf"], out="memory://bucket/run/", shard_size=100, executor="serial")
    assert count < 10_000
    assert json.loads(store.cat_file(f"/bucket/run/{WRITER}"))["owner"] == "other"


def test_the_writer_beats_while_a_large_file_is_uploaded(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    original, beats = type(store).put_file, list[int]()

    def read_beat() -> int:
        return int(json.loads(store.cat_file(f"/bucket/run/{WRITER}"))["beat"])

    def put(self: Any, *arguments: Any, **options: Any) -> None:
        beats.append(read_beat())
        time.sleep(0.5)
        beats.append(read_beat())
        original(self, *arguments, **options)

    monkeypatch.setattr(type(store), "put_file", put)
    with RemoteFolder("memory://bucket/run", sync_seconds=0.05) as folder:
        folder.path.mkdir(parents=True)
        (folder.path / "manifest.json").write_text("{}")
    assert beats[1] >= beats[0] + 2


# ---- URLs, versions and dry runs ----


@pytest.mark.parametrize("name", ["out", "records"])
def test_a_password_in_a_url_is_refused_and_not_repeated(name: str) -> None:
    url = "sftp://user:hunter2@host/runs/one/"
    with pytest.raises(InputError, match="password") as caught:
        metrist.score(**{"records": ROWS, "metrics": ["chrf"], name: url})
    assert "hunter2" not in str(caught.value)
    with pytest.raises(InputError, match="password"):
        metrist.load(url)
    assert local_path("abfs://container@account/x").name == "x"
    assert local_path("hdfs://user@host:9000/a:b@c/x").name == "x"


@pytest.mark.parametrize(
    "name", ["ETag", "modificationTime", "blob_id", "Content-MD5", "Digest", "sha", "modify", "mtime"]
)
def test_versions_of_one_size_are_told_apart(name: str) -> None:
    first, second = {"size": 3, name: "1"}, {"size": 3, name: "2"}
    assert describe_stamp(first) != describe_stamp(second)
    assert has_version(first)
    assert not has_version({"size": 3})


def test_a_store_that_tells_only_sizes_is_read_each_time(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_time(call: Any) -> Any:
        def info(self: Any, *arguments: Any, **options: Any) -> Any:
            result = call(self, *arguments, **options)
            for entry in [result, *result.values()]:
                if isinstance(entry, dict):
                    entry.pop("created", None)
            return result

        return info

    monkeypatch.setattr(type(store), "info", without_time(type(store).info))
    monkeypatch.setattr(type(store), "find", without_time(type(store).find))
    store.pipe_file("/bucket/x.jsonl", b"one")
    assert fetch("memory://bucket/x.jsonl").read_bytes() == b"one"
    store.pipe_file("/bucket/x.jsonl", b"two")
    assert fetch("memory://bucket/x.jsonl").read_bytes() == b"two"
    folder = RemoteFolder("memory://bucket/run", for_reading=True)
    for content in (b"{}", b"[]"):
        store.pipe_file("/bucket/run/manifest.json", content)
        folder.fetch()
        assert (folder.path / "manifest.json").read_bytes() == content


def test_a_dry_run_counts_what_the_store_holds(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert estimate_run(ROWS, METRICS, out=f"{url}/").stored == {}
    metrist.score(ROWS[:15], METRICS, out=f"{url}/")
    monkeypatch.setenv("METRIST_REMOTE", str(tmp_path / "elsewhere"))
    assert estimate_run(ROWS, METRICS, out=f"{url}/").stored == dict.fromkeys(METRICS, 15)
    assert not local_path(url).exists()
    estimate = estimate_run(ROWS, METRICS, out="nosuchstore://bucket/run/")
    assert any("not counted" in note for note in estimate.notes)
    assert estimate_run(ROWS, METRICS, out=f"{url}.jsonl").stored == {}


# ---- URLs in place of paths


@pytest.fixture
def judged(store: Any, tmp_path: Path) -> dict[str, str]:
    """The URLs of rated records, and of a run folder and a flat file with their scores; there are no copies of them."""
    rows = [
        {"item": str(n), "system": system, "output": f"text {n} {system}", "references": [f"text {n} a"]}
        | {"ratings": {"quality": n % 3 + (system == "a")}}
        for n in range(20)
        for system in ("a", "b")
    ]
    write_input(store, rows)
    urls = {"records": "memory://bucket/data/in.jsonl", "run": "memory://bucket/run"}
    metrist.score(urls["records"], METRICS, out=f"{urls['run']}/")
    metrist.score(urls["records"], ["chrf"], out="memory://bucket/scores.jsonl")
    shutil.rmtree(tmp_path / "copies")
    return {**urls, "flat": "memory://bucket/scores.jsonl"}


def test_sources_of_a_meta_evaluation_can_be_urls(judged: dict[str, str]) -> None:
    def evaluate(*names: str) -> list[tuple[str, float]]:
        sources = [judged[name] for name in names]
        figures = metrist.meta_evaluate(sources if len(sources) > 1 else sources[0], draws=0).figures
        return [(figure.metric, figure.value) for figure in figures if figure.metric == "chrf"]

    (expected,) = evaluate("run")
    assert evaluate("records", "flat") == [expected]
    assert evaluate("records", "run") == [expected]


def test_other_functions_take_urls_too(judged: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    from metrist.evaluate.calibrate import calibrate
    from metrist.evaluate.report import build_report
    from metrist.web.run_index import open_index

    monkeypatch.setenv("XDG_CACHE_HOME", str(local_path(judged["run"]).parent))
    (entry,) = metrist.worst(judged["run"], 1, "chrf").entries
    assert entry.outputs[0].record is not None  # The input was copied too.
    assert metrist.worst(judged["run"], 1, "chrf", vs=judged["flat"]).entries is not None
    assert build_report(judged["run"]).title == "Evaluation of run"
    assert "quality" in build_report(judged["records"], judged["flat"]).facts
    assert len({calibrate(source, "chrf").calibration.data for source in judged.values()}) == 1
    assert open_index(judged["run"]) is not None
    with pytest.raises(RunError, match="nothing to explain"):
        metrist.explain(judged["run"])


@pytest.mark.parametrize(
    ("command", "names", "options"),
    [
        ("meta", ["records", "flat"], ["--draws", "10"]),
        ("worst", ["run"], ["-m", "chrf"]),
        ("report", ["run"], ["--format", "pr"]),
        ("report", ["records", "flat"], ["--format", "pr"]),
        ("explain", ["records"], []),
        ("calibrate", ["run"], ["-m", "chrf", "-o", "chrf.json"]),
    ],
)
def test_commands_take_urls(
    command: str,
    names: list[str],
    options: list[str],
    judged: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = CliRunner().invoke(app, [command, *(judged[name] for name in names), *options])
    assert answer.exit_code == 0, (answer.output, answer.exception)


def test_messages_about_records_name_their_url(store: Any) -> None:
    store.pipe_file("/bucket/bad.jsonl", b"{")
    with pytest.raises(InputError, match=r"^memory://bucket/bad\.jsonl"):
        metrist.meta_evaluate("memory://bucket/bad.jsonl")
    with pytest.raises(InputError, match=r"^memory://bucket/none\.json: no such file"):
        metrist.meta_evaluate("memory://bucket/none.json")


@pytest.mark.parametrize("error", [PermissionError("Access Denied: ListBucket"), OSError("Forbidden")])
def test_a_key_that_may_not_list_reads_files(
    error: OSError, judged: dict[str, str], store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [json.loads(line) for line in store.cat_file("/bucket/data/in.jsonl").splitlines()]
    store.pipe_file(
        "/bucket/d.json", json.dumps([{**row, "scores": {"m": len(row["output"])}} for row in rows]).encode()
    )
    info, requests = type(store).info, list[str]()

    def refuse(*_: Any, **__: Any) -> None:
        raise error

    def find_file(self: Any, path: str, **options: Any) -> Any:
        requests.append(path)
        try:
            return info(self, path, **options)
        except FileNotFoundError:
            raise error from None  # As S3 answers, so that nobody learns which files there are.

    for name in ("find", "ls"):
        monkeypatch.setattr(type(store), name, refuse)
    monkeypatch.setattr(type(store), "info", find_file)
    assert metrist.meta_evaluate("memory://bucket/d.json", draws=0).figures[0].metric == "m"
    # A refusal is an answer; other errors may pass.
    assert requests.count("/bucket/d.json/manifest.json") == (1 if isinstance(error, PermissionError) else 3)
    with pytest.raises(RunError, match="cannot read memory://bucket/run: "):
        metrist.meta_evaluate(judged["run"])
