"""Run folders in object stores: a local working folder whose files are uploaded as they are finished.

Before a run the files of the store are fetched, so that a run that was killed on one machine goes on from another.
While it runs, a thread uploads what is new every few seconds: the manifest, then results, then the pages that list
them. A file that was uploaded half-written by a run that was then killed is found damaged and scored again, as on a
local disk. An index beside the local folder says which version of each file both sides had in common. Readers have a
local folder of their own, so that they never touch the files of a run that is being written.

One writer at a time: `writer.json` in the store names it and counts its beats. Another run waits to see whether the
count still grows, and takes the folder over if it does not. A writer that finds another's name there stops uploading.
"""

from __future__ import annotations

import filecmp
import json
import os
import shutil
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

from metrist.errors import InputError, MetristError, RunError
from metrist.io.remote import (
    describe_stamp,
    fetch,
    has_version,
    is_pattern,
    is_remote,
    local_folder,
    local_path,
    open_store,
    retry,
)
from metrist.llm.budget import is_process_alive
from metrist.run.flat_file import flat_suffix, is_flat_file
from metrist.run.run_folder import MANIFEST
from metrist.run.shard_file import decode
from metrist.run.view import FOLDER as INPUTS
from metrist.run.view import RunInput, View

#: Seconds between two uploads, and seconds without a beat after which a writer counts as dead.
SYNC_SECONDS = 5.0
STALE_SECONDS = 60.0
WRITER = "writer.json"
#: A folder with one of these is a run folder: the manifest of `score`, or that of `prefer`.
_MANIFESTS = (MANIFEST, f"preferences/shards/{MANIFEST}")
#: Copies that a store need not have.
_LOCAL_ONLY = ("columns",)
#: How often a reader fetches what has changed in a folder while it was fetched.
_ROUNDS = 5
#: How often a page is read that seems to be half-written, and seconds before the next time.
_READINGS = 3
_READING_SECONDS = 0.5
_P = ParamSpec("_P")
_T = TypeVar("_T")

Stamp = tuple[int, int]


class RemoteFolder:
    """A folder of a store and its local copy, at `path`. Inside a `with` block this process is its writer.

    A copy that is only `for_reading` is another folder beside that of the writer: paths from it to the copies of inputs
    are the same.
    """

    def __init__(
        self,
        url: str,
        *,
        for_reading: bool = False,
        sync_seconds: float | None = None,
        stale_seconds: float | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        place = local_path(self.url)
        self.path = place.with_name(f"{place.name}.metrist-read") if for_reading else place
        self._for_reading = for_reading
        self._store, self._root = open_store(self.url)
        self._sync_seconds = SYNC_SECONDS if sync_seconds is None else sync_seconds
        self._stale_seconds = STALE_SECONDS if stale_seconds is None else stale_seconds
        self._index_file = self.path.with_name(f"{self.path.name}.metrist-sync")
        #: What was uploaded, or was the same from the beginning.
        self._uploaded: dict[str, Stamp] = {}
        #: The error of the last upload, if it failed.
        self._error: MetristError | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep_uploading, name="metrist-upload", daemon=True)

    def __enter__(self) -> RemoteFolder:
        self._writer = _Writer(self.url, self.path, self._sync_seconds, self._stale_seconds)
        self._writer.take_over()
        try:
            files = self._list_remote()
            if files and not any(name in files for name in _MANIFESTS):
                raise RunError(f"{self.url} is not a run folder and not empty: name a new folder")
            self.fetch()
        except BaseException:
            self._writer.release()
            raise
        _writers[self.path] = self._writer
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        _writers.pop(self.path, None)
        try:
            self.upload()  # Also after one that failed: the store may be there again.
            self._error = None
        except MetristError as error:
            self._error = error
        finally:
            self._writer.release()
        if self._error and kind is None:  # Otherwise the first error is the one to report.
            raise self._error

    # ---- Files ----

    def fetch(self) -> bool:
        """Make the local files those of the store, and return whether it holds a run.

        A run may be written while a reader fetches it, so that a page comes that lists files which were not there
        before: readers look again, and fetch what has changed.
        """
        remote = self._list_remote()
        for _ in range(_ROUNDS):
            has_run = self._fetch_files(remote)
            if not self._for_reading or not has_run:
                return has_run
            fetched, remote = remote, self._list_remote()
            changed = _find_changes(fetched, remote)
            missing = [name for name in fetched if not (self.path / name).is_file()]
            if not changed and not missing:
                return True
        if missing or any(_order(name)[0] != 1 for name in changed):
            raise RunError(f"{self.url} changed each time while it was read: try again when it is no longer written")
        return True  # Only results were added that no page lists yet.

    def _fetch_files(self, remote: dict[str, Any]) -> bool:
        """Fetch the files that a list of the store names, and return whether it names a run.

        Files that were removed from the store are removed here, unless they have changed since. Other files that are
        only here stay, and so do a writer's files that have changed only here: they were finished and not uploaded yet.
        Files of a writer that have changed on both sides are compared (see `_choose_version`).
        """
        known, conflicts = self._read_index(), list[str]()
        for name in known.keys() - remote.keys():
            if _find_stamp(self.path / name) == tuple(known[name][:2]):
                self._remove_copy(name)
        if self._for_reading and MANIFEST not in remote:
            shutil.rmtree(self.path, ignore_errors=True)
            return False
        for name, info in remote.items():
            target, entry = self.path / name, known.get(name, (None, None, None))
            stamp = _find_stamp(target)
            if stamp and entry[2] == describe_stamp(info):
                is_same = stamp == tuple(entry[:2])
                if not is_same and not self._for_reading:
                    continue
                if is_same and has_version(info):
                    self._uploaded[name] = stamp
                    continue
            is_changed_here = stamp is not None and stamp != tuple(entry[:2])
            if not self._get(name, compare=is_changed_here and not self._for_reading):
                conflicts.append(name)
        if conflicts:
            raise RunError(
                f"{', '.join(conflicts[:5])}{' …' if len(conflicts) > 5 else ''}: the versions in {self.url} and in "
                f"{self.path} differ, and both have changed since they were the same. Neither was overwritten: delete "
                "the local file to go on with that of the store, or copy it to the store to go on with yours"
            )
        if MANIFEST in known and MANIFEST not in remote:
            self._drop_run()
        self._write_index(remote)
        return MANIFEST in remote

    def _remove_copy(self, name: str) -> None:
        """Remove a local file, and the folders that it was alone in."""
        path = self.path / name
        path.unlink(missing_ok=True)
        for folder in path.parents:
            if not folder.is_relative_to(self.path):
                break
            with suppress(OSError):
                folder.rmdir()

    def _drop_run(self) -> None:
        """Remove what is left here of a run that was deleted from the store, unless it has results."""
        if any(self._list_local()):
            raise RunError(
                f"{self.path} holds files that were not uploaded, of a run that is no longer in {self.url}: move or "
                "delete them"
            )
        shutil.rmtree(self.path, ignore_errors=True)

    def _get(self, name: str, *, compare: bool) -> bool:
        """Fetch a file. One that is to be compared replaces the local version only if that loses nothing; False: it
        could lose something."""
        target = self.path / name
        part = self._index_file.with_name(f"{self._index_file.name}.{os.getpid()}-{threading.get_ident()}.part")
        try:
            part.parent.mkdir(parents=True, exist_ok=True)
            try:
                _retry(f"fetch {self.url}/{name}", self._store.get_file, f"{self._root}/{name}", os.fspath(part))
            except FileNotFoundError:  # It was removed since.
                return True
            target.parent.mkdir(parents=True, exist_ok=True)
            if compare and filecmp.cmp(target, part, shallow=False):
                stamp = _find_stamp(target)
            elif compare and (version := _choose_version(name, target.read_bytes(), part.read_bytes())) != "store":
                return version == "local"
            else:
                stamp = _find_stamp(part)
                os.replace(part, target)
        except OSError as error:
            raise RunError(f"cannot write {target}: {error.strerror}") from error
        finally:
            with suppress(OSError):
                part.unlink()
        if stamp:
            self._uploaded[name] = stamp
        return True

    def _read_index(self) -> dict[str, Any]:
        try:
            index = json.loads(self._index_file.read_text(encoding="utf-8"))
            return {name: [size, changed, version] for name, (size, changed, version) in index.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}

    def _write_index(self, remote: dict[str, Any]) -> None:
        """Note which version of each file the store and this folder have in common."""
        index = {
            name: [*self._uploaded[name], describe_stamp(info)]
            for name, info in remote.items()
            if name in self._uploaded
        }
        part = self._index_file.with_name(f"{self._index_file.name}.{uuid.uuid4().hex}.part")
        try:
            part.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps(index), encoding="utf-8")
            os.replace(part, self._index_file)
        except OSError as error:
            raise RunError(f"cannot write {self._index_file}: {error.strerror}") from error

    def upload(self) -> None:
        """Upload what is new here and remove from the store what was removed here."""
        self._writer.check()
        present = dict(self._list_local())
        before = dict(self._uploaded)
        for name in sorted(present, key=_order):
            stamp = _find_stamp(present[name])
            if stamp and self._uploaded.get(name) != stamp and self._put(name):
                self._uploaded[name] = stamp
        for name in self._uploaded.keys() - present.keys():
            if not (self.path / name).exists():
                with suppress(FileNotFoundError):
                    _retry(f"remove {name} from {self.url}", self._store.rm_file, f"{self._root}/{name}")
                del self._uploaded[name]
        if self._uploaded != before:
            self._write_index(self._list_remote())

    def _list_local(self) -> Iterator[tuple[str, Path]]:
        for folder, folders, files in os.walk(self.path):
            if Path(folder) == self.path:
                folders[:] = [name for name in folders if name not in _LOCAL_ONLY]
            for file in files:
                path = Path(folder, file)
                yield path.relative_to(self.path).as_posix(), path

    def _list_remote(self) -> dict[str, Any]:
        def find() -> dict[str, Any]:
            self._store.invalidate_cache()
            return dict(self._store.find(self._root, detail=True))

        try:
            files = _retry(f"read {self.url}", find)
        except FileNotFoundError:
            return {}
        names = {path[len(self._root) :].lstrip("/"): info for path, info in files.items()}
        # A store may belong to a stranger: nothing is written outside of the local folder.
        unsafe = [name for name in names if any(part in ("..", ".") for part in name.split("/")) or "\\" in name]
        if unsafe:
            raise RunError(f"{self.url} holds {unsafe[0]!r}, which is no name of a run folder's file")
        return {
            name: info
            for name, info in names.items()
            if name and name != WRITER and name.split("/")[0] not in _LOCAL_ONLY
        }

    def _put(self, name: str) -> bool:
        """Upload a file; False if it is no longer here."""
        try:
            put_file(self._store, self.path / name, f"{self._root}/{name}")
        except FileNotFoundError:
            return False
        except RunError as error:
            raise RunError(
                f"{error}: all results are in {self.path}; run the same command again to upload them"
            ) from error
        return True

    def _keep_uploading(self) -> None:
        while not self._stop.wait(self._sync_seconds) and not self._writer.lost:
            try:
                self.upload()
                self._error = None
            except MetristError as error:
                self._error = error
            except OSError as error:
                self._error = RunError(f"cannot read {self.path}: {error}")


class _Writer:
    """The page that names the writer of a folder, and this process as that writer.

    The page is renewed by a thread of its own, with its own connection to the store, however long other calls take.
    """

    def __init__(self, url: str, path: Path, beat_seconds: float, stale_seconds: float) -> None:
        self.name = describe_process()
        #: Why this process is no longer the writer.
        self.lost: RunError | None = None
        self._url, self._path = url, path
        self._store, root = open_store(url, is_shared=False)
        self._page = f"{root}/{WRITER}"
        self._beat_seconds, self._stale_seconds = beat_seconds, stale_seconds
        self._beat = 0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep_beating, name="metrist-beat", daemon=True)

    def take_over(self) -> None:
        """Become the writer, or raise an error if another one is alive."""
        other = self._read()
        if other is not None and not self._has_ended(other):
            until = time.monotonic() + self._stale_seconds
            while time.monotonic() < until:
                time.sleep(min(1.0, self._stale_seconds / 4))
                now = self._read()
                if now is None:
                    break
                if now != other:
                    raise RunError(
                        f"{self._url} is being written by process {now.get('pid')} on {now.get('host')}: wait until it "
                        "has finished, or name another folder"
                    )
        self._write()
        time.sleep(min(0.2, self._beat_seconds))  # Of two that take over at once, the later one stays.
        self.check()
        self._thread.start()

    def check(self) -> None:
        """Raise an error if another process has become the writer."""
        if self.lost:
            raise self.lost
        with self._lock:
            owner = self._read()
        if owner is None or owner.get("owner") != self.name["owner"]:
            who = f"process {owner.get('pid')} on {owner.get('host')}" if owner else "someone who removed writer.json"
            self.lost = RunError(
                f"{self._url} was taken over by {who}: nothing more is uploaded, and what was scored here is in "
                f"{self._path}"
            )
            raise self.lost

    def release(self) -> None:
        """Be the writer no longer. A page that cannot be removed now is taken over when it is old."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        with suppress(RunError, FileNotFoundError):
            self.check()
            _retry(f"write to {self._url}", self._store.rm_file, self._page)

    def _keep_beating(self) -> None:
        while not self._stop.wait(self._beat_seconds) and not self.lost:
            with suppress(RunError):  # The store may be there again for the next beat.
                self.check()
                self._write()

    def _read(self) -> dict[str, Any] | None:
        """The page as it is; None without one, and an empty one for one that is damaged."""

        def read() -> Any:
            self._store.invalidate_cache()
            return self._store.cat_file(self._page)

        for attempt in range(_READINGS):
            try:
                owner = json.loads(_retry(f"read {self._url}", read))
                return owner if isinstance(owner, dict) else {}
            except FileNotFoundError:
                return None
            except ValueError:  # Perhaps it is being written.
                time.sleep((attempt + 1) * _READING_SECONDS)
        return {}

    def _write(self) -> None:
        self._beat += 1
        page = json.dumps({**self.name, "beat": self._beat}).encode("ascii")

        def write() -> None:
            try:
                self._store.pipe_file(self._page, page)
            except Exception as error:
                _make_folder(self._store, self._page, error)
                self._store.pipe_file(self._page, page)

        with self._lock:
            try:
                _retry(f"write to {self._url}", write)
            except FileNotFoundError as error:
                raise RunError(f"cannot write to {self._url}: {error}") from error

    def _has_ended(self, other: dict[str, Any]) -> bool:
        """Whether a writer was a process that could be seen from here and has ended."""
        places = ("host", "boot", "pid_namespace")
        is_here = all(self.name[place] and other.get(place) == self.name[place] for place in places)
        return is_here and isinstance(other.get("pid"), int) and is_process_alive(other["pid"]) is False


#: The writers of this process, by local folder.
_writers: dict[Path, _Writer] = {}


def check_writer(path: Path) -> None:
    """Raise an error if a local folder, or one above it, belongs to a store where another process is now the writer."""
    for folder in (path, *path.parents) if _writers else ():
        if (writer := _writers.get(folder)) and writer.lost:
            raise writer.lost


def describe_process() -> dict[str, Any]:
    """What tells this process from others. A number names one process only within one start of one machine, and within
    one container."""
    return {
        "owner": uuid.uuid4().hex,
        "host": socket.gethostname(),
        "boot": _read_or_none(lambda: Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()),
        "pid_namespace": _read_or_none(lambda: os.readlink("/proc/self/ns/pid")),
        "pid": os.getpid(),
    }


def _read_or_none(read: Callable[[], str]) -> str | None:
    try:
        return read()
    except (OSError, ValueError):
        return None


def put_file(store: Any, local: Path, remote: str) -> None:
    """Upload a file and make the folder for it where a store needs one. FileNotFoundError: there is no local file."""

    def put() -> None:
        try:
            store.put_file(os.fspath(local), remote)
        except Exception as error:
            if not local.exists():
                raise FileNotFoundError(local) from None
            _make_folder(store, remote, error)
            store.put_file(os.fspath(local), remote)

    try:
        _retry(f"upload {local.name} to {remote}", put)
    except FileNotFoundError as error:
        if local.exists():
            raise RunError(f"cannot upload {local.name} to {remote}: {error}") from error
        raise


def _make_folder(store: Any, path: str, error: Exception) -> None:
    """Make the folder of a file that could not be written because of `error`. A bucket, whose name is before the first
    slash, is not made: it may be misspelt. A key that may not look at its bucket sees none, whatever the error was."""
    bucket = path.partition("/")[0]
    if bucket and not store.exists(bucket):
        if not isinstance(error, FileNotFoundError):
            raise error
        raise RunError(f"cannot write {path}: the store has no bucket {bucket!r}, and metrist makes none") from error
    store.makedirs(path.rpartition("/")[0], exist_ok=True)


def _retry(action: str, call: Callable[..., _T], *arguments: str) -> _T:
    """Call a store, again if it fails. FileNotFoundError is an answer."""
    try:
        return retry(call, *arguments)
    except (FileNotFoundError, MetristError):
        raise
    except Exception as error:
        raise RunError(f"cannot {action}: {type(error).__name__}: {error}") from error


def _choose_version(name: str, local: bytes, store: bytes) -> Literal["store", "local"] | None:
    """Which of two versions of a file to go on with; None: only the user can tell.

    Shard files of one name hold scores of the same records by the same version of a metric, and timings are no results,
    so that either will do. A page of a finished metric is made again from the shard files, which stay on both sides. A
    version that is damaged, as by a run that was killed during an upload, counts for nothing; results of which both are
    damaged are scored again.
    """
    folders = name.split("/")[:-1]
    if "timings" in folders:
        return "store"
    is_local_whole, is_store_whole = _is_whole(name, local), _is_whole(name, store)
    if is_local_whole != is_store_whole:
        return "local" if is_local_whole else "store"
    if "results" not in folders:
        return None
    if name.endswith(".jsonl") or not is_store_whole:
        return "store"
    pages = [json.loads(data) for data in (local, store)]
    first, second = ({key: page.get(key) for key in ("metric", "signature")} for page in pages)
    return "store" if first == second else None


def _is_whole(name: str, data: bytes) -> bool:
    """Whether a file is as a run writes it, as far as it can tell of itself."""
    try:
        if name.endswith(".json"):
            return isinstance(json.loads(data), dict)
        if "results" in name.split("/"):
            decode(data)
        elif name.startswith(f"{INPUTS}/"):
            RunInput.decode(data)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return False
    return True


def _find_changes(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    """The files of a store that were added, removed or replaced between two lists."""
    versions = [{(name, describe_stamp(info)) for name, info in files.items()} for files in (before, after)]
    return {name for name, _ in versions[0] ^ versions[1]}


def _find_stamp(path: Path) -> Stamp | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def _order(name: str) -> tuple[int, str]:
    """The manifest first, which says that this is a run folder; then shard files, then the pages that list them."""
    if name in _MANIFESTS:
        return 0, name
    return (2 if name.endswith("complete.json") else 1), name


#: The URLs of the copies for reading that this process made.
_urls: dict[Path, str] = {}


def find_run(url: str) -> Path | None:
    """Copy a run folder from a store, for reading, and return the copy; None if there is no run."""
    folder = RemoteFolder(url, for_reading=True)
    _urls[folder.path] = folder.url
    return folder.path if folder.fetch() else None


def find_url(path: Path) -> str | None:
    """The URL of a run folder that this process copied to a path; None for any other path."""
    return _urls.get(path)


def fetch_copy(place: Any) -> Any:
    """Copy what a run wrote from the URL of its folder, with its inputs, or of its flat file, and return the path of
    the copy; anything else, such as the URL of a file with records, as it is."""
    if not is_remote(place) or is_pattern(place):
        return place
    if suffix := flat_suffix(Path(place)):
        if suffix != ".jsonl" or not is_flat_file(path := fetch(place)):
            return place
        _urls[path] = place
        return os.fspath(path)
    folder = find_run(place) if _has_manifest(place) else None
    if folder is None:
        return place
    fetch_inputs(place, folder)
    return os.fspath(folder)


def _has_manifest(url: str) -> bool:
    """Whether a URL is that of a run folder, as far as the store tells. A key may be allowed to read files and not to
    list them; where the store cannot be reached, whoever reads the URL reports it."""
    store, root = open_store(url.rstrip("/"))

    def look() -> bool:
        store.invalidate_cache()
        try:
            return bool(store.info(f"{root}/{MANIFEST}").get("type") != "directory")
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return False

    try:
        return retry(look)
    except Exception:
        return False


def fetch_inputs(url: str, run: Path) -> None:
    """Copy the inputs of a run to where its copy looks for them. Only those in the same bucket: a run folder does not
    choose which servers are asked. Inputs that cannot be read are left out: readers of the folder miss them."""
    bucket = local_path(url).relative_to(local_folder()).parts[:2]
    for source in View.read(run).inputs:
        if source.name is None or source.path is None or not is_remote(source.name):
            continue
        with suppress(InputError):
            place = local_path(source.name)
            is_near = place.relative_to(local_folder()).parts[:2] == bucket
            if is_near and place == Path(os.path.normpath(run / source.path)):
                fetch(source.name)


def fetch_run(url: str) -> Path:
    """Copy a run folder, or a file that a run wrote, from a store, for reading, and return the copy."""
    if flat_suffix(Path(url)):
        return fetch(url)
    path = find_run(url)
    if path is None:
        raise RunError(f"there is no run at {url}: it has no manifest.json")
    return path


def writes_remotely(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorate a function with an argument `out`, so that it can also be the URL of a folder or a flat file."""

    @wraps(function)
    def call(*arguments: _P.args, **keywords: _P.kwargs) -> _T:
        out = keywords.get("out")
        if not isinstance(out, str) or not is_remote(out):
            return function(*arguments, **keywords)
        if flat_suffix(Path(out)):
            target = local_path(out)
            store, path = open_store(out)
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise RunError(f"cannot write {target}: {error.strerror}") from error
            keywords["out"] = target
            result = function(*arguments, **keywords)
            try:
                put_file(store, target, path)
            except RunError as error:
                raise RunError(f"{error}: all results are in {target}") from error
            return result
        with RemoteFolder(out) as folder:
            keywords["out"] = f"{folder.path}{os.sep}"
            return function(*arguments, **keywords)

    return call
