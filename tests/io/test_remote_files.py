"""Inputs and flat files by URL, here in fsspec's store in memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import metrist
from error_codes import raises_code
from metrist.errors import ErrorCode, InputError, RunError
from metrist.io import remote
from metrist.io.remote import describe_stamp, fetch, find_copy, has_version, is_remote, local_path, put_bytes

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed: pip install fsspec")

ROWS = [{"item": str(n), "output": f"word {n}", "references": ["word"]} for n in range(20)]
INPUT = "memory://bucket/data/in.jsonl"


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An empty store, and an empty folder for copies."""
    monkeypatch.setenv("METRIST_REMOTE", str(tmp_path / "copies"))
    monkeypatch.setattr(remote, "RETRY_SECONDS", 0.01)
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]
    yield memory
    memory.store.clear()


def write_input(store: Any, rows: list[dict[str, Any]] = ROWS) -> bytes:
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    store.pipe_file("/bucket/data/in.jsonl", data)
    return data


def test_patterns_and_flat_files(store: Any, tmp_path: Path) -> None:
    write_input(store)
    metrist.score("memory://bucket/data/*.jsonl", ["chrf"], out="memory://bucket/scores.jsonl")
    assert len(store.cat_file("/bucket/scores.jsonl").splitlines()) == len(ROWS)
    assert list(metrist.load("memory://bucket/scores.jsonl").scores) == ["chrf"]
    metrist.score(ROWS, ["chrf"], out=f"file://{tmp_path}/store/new/scores.jsonl")
    assert (tmp_path / "store/new/scores.jsonl").exists()
    with pytest.raises(InputError, match="no file matches"):
        metrist.score("memory://bucket/nothing/*.jsonl", ["chrf"])
    with pytest.raises(InputError, match="no such file"):
        metrist.score("memory://bucket/data/other.jsonl", ["chrf"])


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("ftp://127.0.0.1:1/x.jsonl", "unreadable"),
        ("jupyter://host/x.jsonl", "unsupported"),
        ("s3:///", "invalid_value"),
        ("s3://", "invalid_value"),
        ("memory://bucket/none.jsonl", "missing_file"),
        ("file:///none/none.jsonl", "missing_file"),
        ("file://host/x.jsonl", "invalid_value"),
        ("unknown://host/x.jsonl", "unsupported"),
        ("my_store://host/x.jsonl", "unsupported"),
        ("S3://bucket/x.jsonl", "unsupported"),
        *(
            (f"{scheme}://x/y.jsonl", "unsupported")
            for scheme in ("zip", "tar", "dir", "data", "reference", "simplecache")
        ),
        ("zip://x.jsonl::file://y.zip", "invalid_value"),
        *((f"{scheme}://x/y.jsonl", None) for scheme in ("sftp", "gs", "abfs", "hdfs", "git", "smb", "webhdfs", "oss")),
        ("http://127.0.0.1:1/x.jsonl", None),
    ],
)
def test_each_kind_of_url_fails_with_a_code(url: str, code: ErrorCode | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """None: whether the store's library is installed decides."""
    monkeypatch.setattr("metrist.io.remote._ATTEMPTS", 1)
    place = url.partition("://")[2]
    with pytest.raises(metrist.MetristError) as caught:
        list(metrist.read_records(url))
    assert caught.value.code == code or (code is None and caught.value.code in ("missing_dependency", "unreadable"))
    assert place in str(caught.value)
    if code != "missing_file":
        with pytest.raises(metrist.MetristError) as caught:
            metrist.score(ROWS, ["length"], out=url)
        assert code in (None, caught.value.code)
        with pytest.raises(metrist.MetristError):
            metrist.load(f"{url}/run/")


def test_an_error_of_a_store_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError("Unable to load libjvm\ndlopen(/usr/lib/libjvm.so) failed")

    monkeypatch.setattr("fsspec.core.url_to_fs", fail)
    with raises_code(InputError, "unreadable", "hdfs://host/x.jsonl", "libjvm") as caught:
        remote.open_store("hdfs://host/x.jsonl")
    assert "\n" not in str(caught.value)


def test_a_changed_file_is_fetched_again(store: Any) -> None:
    store.pipe_file("/bucket/x.jsonl", b"one")
    assert fetch("memory://bucket/x.jsonl").read_bytes() == b"one"
    store.pipe_file("/bucket/x.jsonl", b"two, longer")
    assert fetch("memory://bucket/x.jsonl").read_bytes() == b"two, longer"
    local_path("memory://bucket/x.jsonl").write_bytes(b"changed here")
    assert fetch("memory://bucket/x.jsonl").read_bytes() == b"two, longer"


def test_a_run_fetches_inputs_of_its_own_bucket_only(store: Any) -> None:
    write_input(store)
    assert find_copy(INPUT, "memory://other/run") is None
    assert find_copy(INPUT, "/local/run") is None
    copy = find_copy(INPUT, "memory://bucket/run")
    assert copy == local_path(INPUT)
    assert find_copy(INPUT, "/local/run") == copy
    assert find_copy("memory://bucket/../x", "memory://bucket/run") is None
    assert find_copy("memory://bucket/gone.jsonl", "memory://bucket/run") is None


@pytest.mark.parametrize("name", ["info", "get_file", "glob"])
def test_a_failing_call_for_an_input_is_repeated(name: str, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    original, failures = getattr(type(store), name), list[int]()

    def fail_twice(self: Any, *arguments: Any, **options: Any) -> Any:
        if len(failures) < 2:
            failures.append(1)
            raise OSError("the connection was lost")
        return original(self, *arguments, **options)

    monkeypatch.setattr(type(store), name, fail_twice)
    data = write_input(store)
    assert len(metrist.score("memory://bucket/data/*.jsonl", ["chrf"])["chrf"].values) == len(ROWS)
    assert len(failures) == 2
    assert local_path(INPUT).read_bytes() == data


def test_a_store_that_stays_away_is_told(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("the connection was lost")

    write_input(store)
    monkeypatch.setattr(type(store), "get_file", fail)
    with raises_code(InputError, "unreadable", "connection"):
        fetch(INPUT)
    assert not [path for path in local_path(INPUT).parent.iterdir() if path.is_file()]


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
    data = write_input(store)
    assert fetch(INPUT).read_bytes() == data
    # One that ends early each time is still refused.
    monkeypatch.setattr(type(store), "get_file", lambda _self, _path, local, **_: Path(local).write_bytes(data[:5]))
    with pytest.raises(InputError, match=r"only 5 of [\d,]+ bytes came"):
        fetch(INPUT)


@pytest.mark.parametrize("out", [None, "memory://bucket/scores.jsonl"])
def test_a_folder_for_copies_that_cannot_be_written_is_told(
    out: str | None, store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_input(store)
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "missing" / "folder")
    # Making the first raises NotADirectoryError, the second FileNotFoundError.
    for place in (tmp_path / "file" / "copies", tmp_path / "link" / "copies"):
        monkeypatch.setenv("METRIST_REMOTE", str(place))
        with pytest.raises((InputError, RunError), match=rf"cannot (be copied to|write) {place}/\S*: \w+"):
            metrist.score(INPUT if out is None else ROWS, ["chrf"], out=out)


class HiddenBuckets:
    """A store with paths such as S3's, where a key may write files and sees no buckets."""

    def __init__(self, errors: list[Exception]) -> None:
        self.errors, self.files = errors, dict[str, bytes]()

    def exists(self, _path: str) -> bool:
        return False

    def pipe_file(self, path: str, data: bytes) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.files[path] = data


def test_a_failed_upload_is_repeated_where_buckets_are_hidden() -> None:
    hidden = HiddenBuckets([ConnectionError("connection reset")])
    put_bytes(hidden, "bucket/x", b"content")
    assert hidden.files == {"bucket/x": b"content"}
    with pytest.raises(RunError, match="ConnectionError: connection reset"):
        put_bytes(HiddenBuckets([ConnectionError("connection reset")] * 9), "bucket/x", b"content")
    with raises_code(RunError, "cannot_write", "'bucket'"):
        put_bytes(HiddenBuckets([FileNotFoundError("NoSuchBucket")]), "bucket/x", b"content")


# ---- URLs and versions


@pytest.mark.parametrize(
    "url", ["s3://bucket/../x", "s3://..", "simplecache::s3://bucket/x", "s3://a/b\\c", "zip://a::b"]
)
def test_urls_that_lead_elsewhere_are_refused(url: str) -> None:
    assert is_remote(url) == ("::" not in url.partition("//")[0])
    with pytest.raises(InputError, match="expected a URL"):
        local_path(url)


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
    info = type(store).info

    def without_time(self: Any, *arguments: Any, **options: Any) -> Any:
        return {key: value for key, value in info(self, *arguments, **options).items() if key != "created"}

    monkeypatch.setattr(type(store), "info", without_time)
    for content in (b"one", b"two"):
        store.pipe_file("/bucket/x.jsonl", content)
        assert fetch("memory://bucket/x.jsonl").read_bytes() == content
