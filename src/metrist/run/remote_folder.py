"""Run folders in object stores: a local working folder whose files are uploaded as they are finished.

Before a run the files of the store are fetched, so that a run that was killed on one machine goes on from another.
While it runs, a thread uploads what is new every few seconds: the manifest, then results, then the pages that list
them. A file that was uploaded half-written by a run that was then killed is found damaged and scored again, as on a
local disk.

One writer at a time: `writer.json` in the store names it and counts its beats. Another run waits to see whether the
count still grows, and takes the folder over if it does not. A writer that finds another's name there stops uploading.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from metrist.errors import MetristError, RunError
from metrist.io.remote import describe_stamp, fetch, is_remote, local_path, open_store
from metrist.run.flat_file import flat_suffix
from metrist.run.run_folder import MANIFEST

#: Seconds between two uploads, and seconds without a beat after which a writer counts as dead.
SYNC_SECONDS = 5.0
STALE_SECONDS = 60.0
WRITER = "writer.json"
#: Copies that a store need not have.
_LOCAL_ONLY = ("columns",)
#: Uploads of one file that may fail in a row before the run ends with an error.
_ATTEMPTS = 3
_P = ParamSpec("_P")
_T = TypeVar("_T")

Stamp = tuple[int, int]


class RemoteFolder:
    """A folder of a store and its local copy, at `path`. Inside a `with` block this process is its writer."""

    def __init__(self, url: str, *, sync_seconds: float | None = None, stale_seconds: float | None = None) -> None:
        self.url = url.rstrip("/")
        self.path = local_path(self.url)
        self._store, self._root = open_store(self.url)
        self._sync_seconds = SYNC_SECONDS if sync_seconds is None else sync_seconds
        self._stale_seconds = STALE_SECONDS if stale_seconds is None else stale_seconds
        self._owner = {"owner": uuid.uuid4().hex, "host": socket.gethostname(), "pid": os.getpid()}
        self._beat, self._next_beat = 0, float("inf")
        self._index_file = self.path.with_name(f"{self.path.name}.metrist-sync")
        #: What was uploaded, or was the same from the beginning.
        self._uploaded: dict[str, Stamp] = {}
        self._error: MetristError | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep_uploading, name="metrist-upload", daemon=True)

    def __enter__(self) -> RemoteFolder:
        self._take_over()
        self.fetch()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        try:
            if self._error is None:
                self.upload()
                self._write_index(self._list_remote())
            self._release()
        except MetristError as error:
            self._error = self._error or error
        if self._error and kind is None:  # Otherwise the first error is the one to report.
            raise self._error

    # ---- Files ----

    def fetch(self) -> None:
        """Copy the files of the store, less those that are known to be the same here. What is only here stays: it was
        finished and not uploaded yet."""
        known = self._read_index()
        remote = self._list_remote()
        for name, info in remote.items():
            target = self.path / name
            self._beat_if_due()
            try:
                if not (target.is_file() and known.get(name) == [*_stamp(target), describe_stamp(info)]):
                    target.parent.mkdir(parents=True, exist_ok=True)
                    self._store.get_file(f"{self._root}/{name}", str(target))
                self._uploaded[name] = _stamp(target)
            except Exception as error:
                raise RunError(f"cannot fetch {self.url}/{name}: {type(error).__name__}: {error}") from error
        self._write_index(remote)

    def _read_index(self) -> dict[str, Any]:
        try:
            index = json.loads(self._index_file.read_text(encoding="utf-8"))
            return index if isinstance(index, dict) else {}
        except (OSError, ValueError):
            return {}

    def _write_index(self, remote: dict[str, Any]) -> None:
        """Note which version of each file the store and this folder have in common."""
        index = {
            name: [*self._uploaded[name], describe_stamp(info)]
            for name, info in remote.items()
            if name in self._uploaded
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._index_file.write_text(json.dumps(index), encoding="utf-8")

    def upload(self) -> None:
        """Upload what is new here and remove from the store what was removed here."""
        self._check_owner()
        present = dict(self._list_local())
        for name in sorted(present, key=_order):
            try:
                stamp = _stamp(self.path / name)
                if self._uploaded.get(name) != stamp:
                    self._beat_if_due()
                    self._put(name)
                    self._uploaded[name] = stamp
            except FileNotFoundError:
                continue  # It was replaced by another file since.
        for name in self._uploaded.keys() - present.keys():
            if not (self.path / name).exists():
                self._remove(name)
                del self._uploaded[name]

    def _list_local(self) -> Iterator[tuple[str, Path]]:
        for folder, folders, files in os.walk(self.path):
            if Path(folder) == self.path:
                folders[:] = [name for name in folders if name not in _LOCAL_ONLY]
            for file in files:
                path = Path(folder, file)
                yield path.relative_to(self.path).as_posix(), path

    def _list_remote(self) -> dict[str, Any]:
        try:
            self._store.invalidate_cache()
            found = self._store.find(self._root, detail=True)
        except FileNotFoundError:
            return {}
        except Exception as error:
            raise RunError(f"cannot read {self.url}: {type(error).__name__}: {error}") from error
        names = {path[len(self._root) :].lstrip("/"): info for path, info in found.items()}
        # A store may belong to a stranger: nothing is written outside of the local folder.
        unsafe = [name for name in names if any(part in ("..", ".") for part in name.split("/")) or "\\" in name]
        if unsafe:
            raise RunError(f"{self.url} holds {unsafe[0]!r}, which is no name of a run folder's file")
        return {
            name: info
            for name, info in names.items()
            if name and name != WRITER and name.split("/")[0] not in _LOCAL_ONLY
        }

    def _put(self, name: str) -> None:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._store.put_file(str(self.path / name), f"{self._root}/{name}")
                return
            except FileNotFoundError:
                raise
            except Exception as error:  # Each store has exceptions of its own.
                if attempt == _ATTEMPTS:
                    raise RunError(
                        f"cannot upload {name} to {self.url} ({type(error).__name__}: {error}): all results are in "
                        f"{self.path}; run the same command again to upload them"
                    ) from error
                time.sleep(attempt * 0.5)

    def _remove(self, name: str) -> None:
        try:
            self._store.rm_file(f"{self._root}/{name}")
        except FileNotFoundError:
            pass
        except Exception as error:
            raise RunError(f"cannot remove {name} from {self.url}: {type(error).__name__}: {error}") from error

    def _keep_uploading(self) -> None:
        while not self._stop.wait(self._sync_seconds):
            try:
                self.upload()
                self._beat_if_due()
            except MetristError as error:
                self._error = error
                return

    # ---- The writer ----

    def _read_owner(self) -> dict[str, Any] | None:
        try:
            self._store.invalidate_cache()
            owner = json.loads(self._store.cat_file(f"{self._root}/{WRITER}"))
            return owner if isinstance(owner, dict) else None
        except (FileNotFoundError, ValueError):
            return None
        except Exception as error:
            raise RunError(f"cannot read {self.url}: {type(error).__name__}: {error}") from error

    def _beat_if_due(self) -> None:
        """Show that the writer is alive, where this is one: also while many files are copied."""
        if time.monotonic() >= self._next_beat:
            self._check_owner()
            self._write_owner()

    def _write_owner(self) -> None:
        self._beat += 1
        self._next_beat = time.monotonic() + self._sync_seconds
        page = json.dumps({**self._owner, "beat": self._beat}).encode("ascii")
        try:
            self._store.makedirs(self._root, exist_ok=True)
            self._store.pipe_file(f"{self._root}/{WRITER}", page)
        except Exception as error:
            raise RunError(f"cannot write to {self.url}: {type(error).__name__}: {error}") from error

    def _take_over(self) -> None:
        other = self._read_owner()
        if other is not None and not self._is_dead_here(other):
            until = time.monotonic() + self._stale_seconds
            while time.monotonic() < until:
                time.sleep(min(1.0, self._stale_seconds / 4))
                now = self._read_owner()
                if now is None:
                    break
                if now != other:
                    raise RunError(
                        f"{self.url} is being written by process {now.get('pid')} on {now.get('host')}: wait until it "
                        "has finished, or name another folder"
                    )
        self._write_owner()
        if len(self._list_remote()) and MANIFEST not in self._list_remote():
            self._release()
            raise RunError(f"{self.url} is not a run folder and not empty: name a new folder")
        time.sleep(min(0.2, self._sync_seconds))  # Of two that take over at once, the later one stays.
        self._check_owner()

    def _is_dead_here(self, other: dict[str, Any]) -> bool:
        """Whether a writer was a process of this machine that has ended."""
        if other.get("host") != self._owner["host"] or not isinstance(other.get("pid"), int):
            return False
        try:
            os.kill(other["pid"], 0)
        except ProcessLookupError:
            return True
        except OSError:
            return False
        return False

    def _check_owner(self) -> None:
        owner = self._read_owner()
        if owner is None or owner.get("owner") != self._owner["owner"]:
            who = f"process {owner.get('pid')} on {owner.get('host')}" if owner else "someone who removed writer.json"
            raise RunError(
                f"{self.url} was taken over by {who}: nothing more is uploaded, and what was scored here is in "
                f"{self.path}"
            )

    def _release(self) -> None:
        owner = self._read_owner()
        if owner and owner.get("owner") == self._owner["owner"]:
            self._remove(WRITER)


def _stamp(path: Path) -> Stamp:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _order(name: str) -> tuple[int, str]:
    """The manifest first, which says that this is a run folder; then shard files, then the pages that list them."""
    if name == MANIFEST:
        return 0, name
    return (2 if name.endswith("complete.json") else 1), name


def fetch_run(url: str) -> Path:
    """Copy a run folder, or a file that a run wrote, from a store, and return the copy."""
    if flat_suffix(Path(url)):
        return fetch(url)
    folder = RemoteFolder(url)
    folder.fetch()
    return folder.path


def writes_remotely(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorate a function with an argument `out`, so that it can also be the URL of a folder or a flat file."""

    @wraps(function)
    def call(*arguments: _P.args, **keywords: _P.kwargs) -> _T:
        out = keywords.get("out")
        if not isinstance(out, str) or not is_remote(out):
            return function(*arguments, **keywords)
        if flat_suffix(Path(out)):
            target = local_path(out)
            target.parent.mkdir(parents=True, exist_ok=True)
            keywords["out"] = target
            store, path = open_store(out)
            result = function(*arguments, **keywords)
            try:
                store.put_file(str(target), path)
            except Exception as error:
                raise RunError(f"cannot upload {target} to {out}: {type(error).__name__}: {error}") from error
            return result
        with RemoteFolder(out) as folder:
            keywords["out"] = f"{folder.path}{os.sep}"
            return function(*arguments, **keywords)

    return call
