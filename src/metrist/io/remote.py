"""Files in object stores and on other machines, by URL (s3://…, gs://…, hdfs://…), through fsspec.

A remote file is copied to a local folder, where the rest of metrist reads it as any other file. Copies keep their place
below the folder (`s3/bucket/data/x.jsonl`), so that relative paths between them are those of the store. Libraries for
a store (s3fs, gcsfs, adlfs) are installed apart; its keys come from where they look for them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from metrist.errors import InputError, MetristError, RunError, find_pip

#: The variable that names the folder for copies; without it, the user's folder for caches.
VARIABLE = "METRIST_REMOTE"
_URL = re.compile(r"([a-z][a-z0-9_+.-]+)://(.*)", re.DOTALL | re.IGNORECASE)
#: Schemes by which fsspec reads what is inside another file or store.
_WRAPPERS = frozenset({
    "zip", "tar", "libarchive", "dir", "reference", "generic", "simplecache", "filecache", "blockcache", "cached",
    "data",
})  # fmt: skip
#: A data set of the Hugging Face hub, with its configuration where it has several: hf://USER/NAME/CONFIGURATION:SPLIT.
_HUB_DATASET = re.compile(r"hf://([\w.-]+/[\w.-]+)(?:/([\w.-]+))?:([\w.-]+)")
_PASSWORD = re.compile(r"[^/]*:[^/]*@")
#: The file beside a copy with the store's facts about the original, and the size and time of the copy.
_STAMP = ".metrist-stamp"
#: Calls of a store that may fail in a row before this is an error, and seconds before the first repetition.
_ATTEMPTS = 3
RETRY_SECONDS = 0.5
_T = TypeVar("_T")
#: Errors by which a store answers; others may have passed the next time.
_ANSWERS = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError, MetristError)
#: Facts about a file, as stores name them, that change with its content.
_VERSION_NAMES = (
    "ETag", "etag", "md5Hash", "md5", "Content-MD5", "Digest", "sha", "blob_id", "mtime", "modify",
    "modificationTime", "LastModified", "last_modified", "updated", "created",
)  # fmt: skip


def is_remote(path: Any) -> bool:
    """Whether this is a URL, and not a path of this machine."""
    return isinstance(path, str) and _URL.fullmatch(path) is not None


def is_pattern(url: str) -> bool:
    """Whether a URL is a pattern such as `s3://bucket/runs/*.jsonl`."""
    return re.search(r"[*?[]", url) is not None


def local_folder() -> Path:
    """The folder that holds copies of remote files."""
    if folder := os.environ.get(VARIABLE):
        return Path(folder).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    return (Path(base) if base else Path.home() / ".cache") / "metrist" / "remote"


def local_path(url: str) -> Path:
    """The place of the copy of a URL. A URL with a password, or whose parts would lead out of the folder, is
    refused."""
    match = _URL.fullmatch(url)
    if match is None:
        raise InputError(f"{url}: expected a URL such as s3://bucket/file.jsonl", code="invalid_value")
    scheme, rest = match.groups()
    if _PASSWORD.match(rest):  # The message does not repeat it.
        raise InputError(
            f"a {scheme}:// URL has a password in it, which would be written to files and messages: give it to the "
            "store's library by its own settings (its environment variables or key files, or fsspec's configuration "
            "in ~/.config/fsspec)",
            code="untrusted",
        )
    parts = [part for part in rest.split("/") if part]
    if not parts or any(part in (".", "..") or "\\" in part or "\0" in part for part in parts) or "::" in url:
        raise InputError(
            f"{url}: expected a URL such as s3://bucket/file.jsonl, without '..' and '::'", code="invalid_value"
        )
    if scheme == "file" and not rest.startswith("/"):  # fsspec takes another machine for a folder here.
        raise InputError(f"{url}: expected a whole path, as in file:///data/file.jsonl", code="invalid_value")
    if _HUB_DATASET.fullmatch(url):
        parts[-1] += ".parquet"
    return local_folder().joinpath(re.sub(r"[^a-z0-9]", "-", scheme), *parts)


def open_store(url: str, *, is_shared: bool = True) -> tuple[Any, str]:
    """The fsspec file system of a URL, and the path there. One that is not shared has a connection of its own."""
    local_path(url)  # Refuses what is no plain URL.
    import fsspec

    scheme = url.partition("://")[0]
    if scheme in _WRAPPERS:
        raise InputError(
            f"{url}: {scheme}:// reads what is inside another file or store: unpack it, and name the file",
            code="unsupported",
        )
    if scheme not in (*fsspec.available_protocols(), *fsspec.registry):
        raise InputError(f"{url}: fsspec knows no store by {scheme}://", code="unsupported")
    try:
        store, path = fsspec.core.url_to_fs(url, skip_instance_cache=not is_shared)
    except ImportError as error:
        raise InputError(f"{url}: cannot be reached: {error}", code="missing_dependency") from None
    except TypeError:  # Such as GitHub's, which takes an organisation and a repository.
        raise InputError(f"{url}: {scheme}:// needs settings that a URL does not have", code="unsupported") from None
    except Exception as error:  # Some stores connect at once, and each has exceptions of its own.
        raise InputError(f"{url}: cannot be reached: {_describe_failure(error)}") from None
    return store, path


def _describe_failure(error: Exception) -> str:
    """A store's exception in one line: that of HDFS lists all places in which it looked for Java."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def describe_stamp(info: dict[str, Any]) -> str:
    """The facts by which versions of a remote file differ."""
    return json.dumps([info.get("size"), *(str(info[name]) for name in _VERSION_NAMES if info.get(name))])


def has_version(info: dict[str, Any]) -> bool:
    """Whether a store tells more of a file than its size. Where it does not, a copy may be out of date."""
    return any(info.get(name) for name in _VERSION_NAMES)


def retry(call: Callable[..., _T], *arguments: Any) -> _T:
    """Call a store, again if it fails."""
    for attempt in range(1, _ATTEMPTS):
        try:
            return call(*arguments)
        except _ANSWERS:
            raise
        except Exception:  # Each store has exceptions of its own.
            time.sleep(attempt * RETRY_SECONDS)
    return call(*arguments)


def fetch(url: str) -> Path:
    """Copy a remote file to its local place, unless the copy there is of the same version."""
    target = local_path(url)
    if match := _HUB_DATASET.fullmatch(url):
        return _fetch_dataset(url, target, *match.groups())
    store, path = open_store(url)
    try:
        digests: list[str] = []
        for _ in range(_ATTEMPTS):
            if retry(_copy, store, path, url, target, digests):
                return target
    except FileNotFoundError:
        raise InputError(f"{url}: no such file", code="missing_file") from None
    except MetristError:
        raise
    except Exception as error:
        raise InputError(f"{url}: cannot be read: {_describe_failure(error)}") from error
    raise InputError(
        f"{url}: it changed each time while it was read: try again when it is no longer written", code="changed"
    )


def _fetch_dataset(url: str, target: Path, name: str, configuration: str | None, split: str) -> Path:
    """Write a split of a data set as Parquet. The package datasets finds it: on the hub, or in its cache."""
    try:
        from datasets import load_dataset
    except ImportError:
        raise InputError(f"{url}: needs a package: {find_pip()} install datasets", code="missing_dependency") from None
    try:
        dataset = load_dataset(name, configuration, split=split)
    except Exception as error:  # Of the hub, of the network, of the data set.
        raise InputError(f"{url}: cannot be read: {_describe_failure(error)}") from error
    version = dataset._fingerprint
    stamp_file = target.with_name(f"{target.name}{_STAMP}")
    if target.is_file() and stamp_file.is_file() and stamp_file.read_text() == _describe_copy(version, target):
        return target
    part = target.with_name(f"{target.name}.{os.getpid()}-{threading.get_ident()}.part")
    with _writing(url, target):
        target.parent.mkdir(parents=True, exist_ok=True)
        dataset.to_parquet(part)
        stamp = _describe_copy(version, part)
        os.replace(part, target)
        stamp_file.write_text(stamp, encoding="utf-8")
    return target


def find_copy(url: str, run: str) -> Path | None:
    """The copy of an input of a run; None if there is none. Only an input in the bucket of the run is fetched: a run
    does not choose which servers are asked."""
    try:
        target = local_path(url)
        buckets = [local_path(place).relative_to(local_folder()).parts[:2] for place in (url, run) if is_remote(place)]
        if buckets[1:] == buckets[:1]:
            return fetch(url)
    except InputError:
        return None
    return target if target.is_file() else None


def _copy(store: Any, path: str, url: str, target: Path, digests: list[str]) -> bool:
    """Copy a file from the beginning; False if it changed meanwhile, since a library may have read parts of both.

    `digests` are those of earlier copies. Some servers give a file another version at each request: it has not changed
    if two copies in a row have the same bytes."""
    info = _read_info(store, path)
    if info.get("type") == "directory":
        raise InputError(f"{url}: is a folder; pass the files in it")
    version = describe_stamp(info)
    stamp_file = target.with_name(f"{target.name}{_STAMP}")
    is_known = has_version(info) and target.is_file() and stamp_file.is_file()
    if is_known and stamp_file.read_text(encoding="utf-8") == _describe_copy(version, target):
        return True
    with _writing(url, target):
        target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.{os.getpid()}-{threading.get_ident()}.part")
    try:
        store.get_file(path, str(part))
        if describe_stamp(_read_info(store, path)) != version:
            with part.open("rb") as file:
                digests.append(hashlib.file_digest(file, "sha256").hexdigest())
            if digests[-2:-1] != digests[-1:]:
                return False
        size = part.stat().st_size
        expected = info.get("size") or 0
        if size < expected:
            raise OSError(f"only {size:,} of {expected:,} bytes came")
        with _writing(url, target):
            stamp = _describe_copy(version, part)
            os.replace(part, target)
            stamp_file.write_text(stamp, encoding="utf-8")
    finally:
        part.unlink(missing_ok=True)
    return True


@contextmanager
def _writing(url: str, target: Path) -> Iterator[None]:
    """Report an error of the local disk as one, and not as one of the store."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{url}: cannot be copied to {target}: {error.strerror}") from error


def _read_info(store: Any, path: str) -> dict[str, Any]:
    store.invalidate_cache()  # A library may remember an earlier version.
    info: dict[str, Any] = store.info(path)
    return info


def _describe_copy(version: str, path: Path) -> str:
    status = path.stat()
    return json.dumps([version, status.st_size, status.st_mtime_ns])


def expand(url: str) -> list[str]:
    """The URLs of the files that match a pattern such as `s3://bucket/runs/*.jsonl`, sorted; any other as it is."""
    if not is_pattern(url):
        return [url]
    store, path = open_store(url)

    def find() -> list[str]:
        store.invalidate_cache()
        return [store.unstrip_protocol(name) for name in sorted(store.glob(path)) if not store.isdir(name)]

    try:
        urls = retry(find)
    except Exception as error:
        raise InputError(f"{url}: cannot be read: {_describe_failure(error)}") from error
    if not urls:
        raise InputError(f"{url}: no file matches this pattern", code="missing_file")
    return urls


def call_store(action: str, call: Callable[..., _T], *arguments: Any) -> _T:
    """Call a store, again if it fails, and raise what stays wrong as a `RunError`. That there is no such file is an
    answer."""
    try:
        return retry(call, *arguments)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, MetristError):
        raise
    except Exception as error:
        raise RunError(f"cannot {action}: {_describe_failure(error)}") from error


def put_file(local: Path, url: str) -> None:
    store, remote = open_store(url)
    put_bytes(store, remote, local.read_bytes())


def put_bytes(store: Any, path: str, data: bytes) -> None:
    """Write a file of a store, and make the folder for it where the store needs one."""

    def put() -> None:
        try:
            store.pipe_file(path, data)
        except Exception as error:
            make_folder(store, path, error)
            store.pipe_file(path, data)

    try:
        call_store(f"write {path}", put)
    except FileNotFoundError as error:
        raise RunError(f"cannot write {path}: {error}", code="cannot_write") from error


def make_folder(store: Any, path: str, error: Exception) -> None:
    """Make the folder of a file that could not be written because of `error`. A bucket, whose name is before the first
    slash, is not made: it may be misspelt. A key that may not look at its bucket sees none, whatever the error was."""
    bucket = path.partition("/")[0]
    if bucket and not store.exists(bucket):
        if not isinstance(error, FileNotFoundError):
            raise error
        raise RunError(
            f"cannot write {path}: the store has no bucket {bucket!r}, and metrist makes none", code="cannot_write"
        ) from error
    store.makedirs(path.rpartition("/")[0], exist_ok=True)
