"""The store of a run by its URL, through fsspec: the same files as in a local folder.

Object stores have no rename and no append. A part is put whole under its hash, and each logged result is an object of
its own. The manifest is written only where it is still the one that was read: S3 compares the two itself (If-Match);
elsewhere they are compared just before.

One writer at a time: `writer.json` names it and counts its beats. Another one waits to see whether the count still
grows, and takes the folder over if it does not. A writer that finds another's name there writes nothing more.
"""

from __future__ import annotations

import io
import json
import os
import secrets
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from metrist.errors import RunError
from metrist.io.remote import call_store, make_folder, open_store, put_bytes
from metrist.run.manifest import LOG, MANIFEST, Manifest, Part, check_name, decode_manifest, format_manifest
from metrist.run.store import ENTRIES, Store
from metrist.runtime import is_process_alive

#: Seconds between two beats of a writer, and seconds without one after which it counts as dead.
BEAT_SECONDS = 5.0
STALE_SECONDS = 60.0
WRITER = "writer.json"
#: Bytes up to which a part is read at once.
_SMALL_FILE = 1 << 20
#: How often a manifest is changed that someone else has changed meanwhile.
_COMMITS = 5
#: How often a page is read that seems to be half-written, and seconds before the next time.
_READINGS = 3
_READING_SECONDS = 0.5
#: What S3 answers where a condition does not hold, and what servers answer that know no conditions.
_CONFLICT = ("PreconditionFailed", "ConditionalRequestConflict", "412", "409", "NoSuchKey")
_NO_CONDITIONS = ("NotImplemented", "501")


class FileVersion(NamedTuple):
    """A file as it was read; no data: there was none. `tag` is what S3 calls this version."""

    data: bytes | None
    tag: str | None = None


class Files:
    """The files of a folder in a store, by their names in it. A call that fails is repeated."""

    def __init__(self, url: str, *, is_shared: bool = True) -> None:
        self.url = url
        self._store, self._root = open_store(url, is_shared=is_shared)
        protocols = self._store.protocol
        self._has_conditions = "s3" in ([protocols] if isinstance(protocols, str) else protocols)

    def _place(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _call(self, action: str, name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        return call_store(f"{action} {self.url}/{name}".rstrip("/"), call, *arguments)

    def read(self, name: str) -> bytes | None:
        """The bytes of a file; None if there is none."""
        return self.read_version(name, with_tag=False).data

    def read_version(self, name: str, *, with_tag: bool = True) -> FileVersion:
        """A file with what tells whether it has changed since."""
        path = self._place(name)

        def read() -> FileVersion:
            self._store.invalidate_cache()  # A library may remember an earlier version.
            # The tag is read first: if the file changes before its bytes are read, the tag is no longer valid.
            tag = self._store.info(path).get("ETag") if with_tag and self._has_conditions else None
            return FileVersion(bytes(self._store.cat_file(path)), tag)

        try:
            return self._call("read", name, read)  # type: ignore[no-any-return]
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return FileVersion(None)

    def open(self, name: str) -> Any:
        """A file for pyarrow. A large one is read in ranges."""
        path = self._place(name)

        def read_range(start: int, end: int) -> bytes:
            return bytes(self._store.cat_file(path, start=start, end=end))

        def read_whole_range(start: int, end: int) -> bytes:
            data = read_range(start, end)
            if len(data) < end - start:
                raise OSError(f"only {len(data):,} of {end - start:,} bytes came")
            return data

        data = self._call("read", name, read_range, 0, _SMALL_FILE)
        if len(data) < _SMALL_FILE:
            return pa.BufferReader(data)
        size = self._call("read", name, self._store.info, path)["size"]
        return _RangeFile(size, lambda start, end: self._call("read", name, read_whole_range, start, end))

    def write(self, name: str, data: bytes) -> None:
        """Put a file. A process that is killed meanwhile may leave half of it in a store with folders."""
        put_bytes(self._store, self._place(name), data)

    def write_if(self, name: str, data: bytes, before: FileVersion) -> bool:
        """Put a file, at once, where there is still the version that was read before; False if there is another."""
        if self._has_conditions:
            condition = {"IfNoneMatch": "*"} if before.data is None else {"IfMatch": before.tag}
            code = self._call("write", name, self._put_if, self._place(name), data, condition)
            if code in _CONFLICT:  # By ourselves, if the answer to an earlier attempt was lost.
                return self.read(name) == data
            if code is None:
                return True
            self._has_conditions = False
        if self.read(name) != before.data:
            return False
        if self._store.async_impl:  # Object stores show a file when it is whole.
            self.write(name, data)
            return True
        part = f".{name}.{secrets.token_hex(6)}.part"
        self.write(part, data)
        try:
            self._call("write", name, self._store.mv, self._place(part), self._place(name))
        except FileNotFoundError as error:
            if self.read(name) != data:  # It was not an earlier attempt that moved it.
                raise RunError(f"cannot write {self.url}/{name}: {error}", code="cannot_write") from error
        return True

    def _put_if(self, path: str, data: bytes, condition: dict[str, Any]) -> str | None:
        """Put a file on a condition of S3, and return the code of the answer where it refuses this."""
        try:
            self._store.pipe_file(path, data, **condition)
        except Exception as error:
            response = getattr(error.__cause__, "response", None) or {}
            code = str(response.get("Error", {}).get("Code"))
            if code in (*_CONFLICT, *_NO_CONDITIONS):
                return code
            if isinstance(error, FileNotFoundError):
                make_folder(self._store, path, error)
            raise
        return None

    def find(self, folder: str) -> list[str]:
        def list_paths() -> list[str]:
            self._store.invalidate_cache()
            return list(self._store.find(self._place(folder)))

        try:
            names = [path[len(self._root) :].lstrip("/") for path in self._call("read", folder, list_paths)]
        except FileNotFoundError:
            return []
        names = [name for name in names if name and not name.endswith("/")]  # Some stores list folders, too.
        for name in names:
            if any(part in ("", ".", "..") for part in name.split("/")) or "\\" in name:
                raise RunError(f"{self.url} holds {name!r}, which is no name of a run's file")
        return sorted(names)

    def list_entries(self) -> set[str]:
        """The names of the files and folders in the folder itself."""

        def list_names() -> set[str]:
            self._store.invalidate_cache()
            return {path.rstrip("/").rpartition("/")[2] for path in self._store.ls(self._root, detail=False)}

        try:
            return self._call("read", "", list_names)  # type: ignore[no-any-return]
        except (FileNotFoundError, NotADirectoryError):
            return set()

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._call("remove", name, self._store.rm_file, self._place(name))


class _RangeFile(io.RawIOBase):
    """A file that is read in ranges, as pyarrow asks for them."""

    def __init__(self, size: int, read_range: Callable[[int, int], bytes]) -> None:
        self._size, self._read_range, self._position = size, read_range, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = start + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        end = self._size if size is None or size < 0 else min(self._position + size, self._size)
        data = self._read_range(self._position, end) if end > self._position else b""
        self._position += len(data)
        return data


class RemoteStore(Store):
    """A run in an object store, at a URL. Opening it writes nothing."""

    path: Any
    is_local = False

    def __init__(self, url: str) -> None:
        place: Any = url.rstrip("/")
        super().__init__(place)
        self._files = Files(place)
        self._lease: Lease | None = None
        #: The objects of the log.
        self._logged: list[str] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteStore, (self.path,)

    @property
    def name(self) -> str:
        return str(self.path)

    def check(self) -> None:
        if self._files.read(MANIFEST) is None:
            entries = self._files.list_entries() - {*ENTRIES, WRITER}
            if others := [name for name in entries if not name.endswith(".part")]:
                raise RunError(
                    f"{self.path} is not a run folder and not empty (it holds {min(others)!r}): name a new folder",
                    code="invalid_value",
                )

    def update(self, change: Callable[[Manifest], Manifest]) -> Manifest:
        with self._hold_lease() as lease:
            for _ in range(_COMMITS):
                before = self._files.read_version(MANIFEST)
                old = Manifest() if before.data is None else decode_manifest(before.data, self.name)
                new = change(old)
                lease.check()
                if before.data is not None and new == old:
                    return new
                if self._files.write_if(MANIFEST, format_manifest(new), before):
                    return new
        raise RunError(
            f"{self.path} was changed each time while it was written: run the same command again", code="changed"
        )

    # ---- Files

    def read_bytes(self, name: str) -> bytes | None:
        return self._files.read(name)

    def write_bytes(self, name: str, data: bytes | memoryview) -> None:
        self._check_lease()
        self._files.write(name, bytes(data))

    def list_files(self, folder: str) -> list[str]:
        return [name for name in self._files.find(folder) if name != WRITER]

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            self._check_lease()
            self._files.remove(name)

    def _append_log(self, data: bytes) -> None:
        name = f"{LOG}/{os.getpid()}-{secrets.token_hex(6)}.log"
        self.write_bytes(name, data)
        self._logged.append(name)

    def clear_log(self) -> None:
        self.delete(self._logged)
        self._logged = []

    def open_file(self, name: str) -> Any:
        file = self._files.open(name)
        if isinstance(file, pa.BufferReader):
            check_name(f"{self.path}/{name}", file.read())
            file.seek(0)
        return file

    def check_part(self, folder: str, part: Part) -> None:
        """A small part is compared with its name whenever it is opened, a large one page by page by pyarrow."""

    # ---- Writers

    @contextmanager
    def write(self) -> Iterator[None]:
        """Be the writer of the folder, which first saves and removes what a killed one has left."""
        with self._hold_lease() as lease:
            # The manifest gets another end: a writer that has lost its lease and does not know it can then commit
            # nothing any more, and the parts that it has not listed can be deleted.
            for _ in range(_COMMITS if lease.is_taken_over else 0):
                before = self._files.read_version(MANIFEST)
                if before.data is None:
                    break
                end = b"\n" if before.data.endswith(b"\n\n") else b"\n\n"
                if self._files.write_if(MANIFEST, before.data.rstrip() + end, before):
                    break
            self.recover()
            self._written.clear()
            try:
                yield
            except BaseException:
                self._discard_unlisted()
                raise

    def hold_parts(self) -> None:
        """Readers take no lease: a part that is no longer listed stays until the next writer comes."""

    def _has_readers(self) -> bool:
        return False

    def discard(self, names: Iterable[str]) -> None:
        """There is no other writer; a reader of a part that was listed has to open the run again."""
        manifest = self.read_manifest()
        listed = set(manifest.list_parts()) if manifest else set[str]()
        self.delete(name for name in names if name not in listed)

    @contextmanager
    def _lock_out_others(self) -> Iterator[None]:
        with self.write():
            yield

    def is_alone(self) -> bool:
        return True

    def _delete_folder(self) -> None:
        """Object stores have no folders; other stores keep empty ones."""

    @contextmanager
    def _hold_lease(self) -> Iterator[Lease]:
        if self._lease:
            yield self._lease
            return
        lease = Lease(self.path)
        lease.take()
        self._lease = lease
        try:
            yield lease
        finally:
            self._lease = None
            lease.release()

    def _check_lease(self) -> None:
        if self._lease and self._lease.lost:
            raise self._lease.lost


class Lease:
    """The page that names the writer of a folder, and this process as that writer.

    The page is renewed by a thread of its own, with its own connection to the store, however long other calls take.
    """

    def __init__(self, url: str) -> None:
        self.name = describe_process()
        #: Why this process is no longer the writer.
        self.lost: RunError | None = None
        #: Whether an earlier writer had not given up the lease.
        self.is_taken_over = False
        self._url = url
        self._files = Files(url, is_shared=False)
        self._beat = 0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep_beating, name="metrist-beat", daemon=True)

    def take(self) -> None:
        """Become the writer, or raise an error if another one is alive."""
        while True:
            version, other = self._read()
            if other is not None:
                self.is_taken_over = True
                version = self._wait(version, other)
            if self._files.write_if(WRITER, self._make_page(), version):
                break
        time.sleep(min(0.2, BEAT_SECONDS))  # Without conditions, the later one of two at once stays.
        self.check()
        self._thread.start()

    def _wait(self, version: FileVersion, other: dict[str, Any]) -> FileVersion:
        """Wait until a writer has given up the lease or is silent for long; an error if it is alive."""
        places = ("host", "boot", "pid_namespace")
        is_here = all(self.name[place] and other.get(place) == self.name[place] for place in places)
        has_ended = is_here and isinstance(other.get("pid"), int) and is_process_alive(other["pid"]) is False
        until = time.monotonic() + (0 if has_ended else STALE_SECONDS)
        while time.monotonic() < until:
            time.sleep(min(1.0, STALE_SECONDS / 4))
            version, now = self._read()
            if now is None:
                self.is_taken_over = False
                break
            if now != other:
                raise RunError(
                    f"{self._url} is being written by process {now.get('pid')} on {now.get('host')}: wait until it "
                    "has finished, or name another folder",
                    code="in_use",
                )
        return version

    def check(self) -> None:
        """Raise an error if another process has become the writer."""
        if self.lost:
            raise self.lost
        with self._lock:
            _, owner = self._read(with_tag=False)
        if owner is None or owner.get("owner") != self.name["owner"]:
            who = f"process {owner.get('pid')} on {owner.get('host')}" if owner else f"someone who removed {WRITER}"
            self.lost = RunError(
                f"{self._url} was taken over by {who}: nothing more is written; run the same command again for what is "
                "missing",
                code="in_use",
            )
            raise self.lost

    def release(self) -> None:
        """Be the writer no longer. A page that cannot be removed now is taken over when it is old."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        with suppress(RunError):
            self.check()
            self._files.remove(WRITER)

    def _keep_beating(self) -> None:
        while not self._stop.wait(BEAT_SECONDS) and not self.lost:
            with suppress(RunError):  # The store may be there again for the next beat.
                self.check()
                with self._lock:
                    self._files.write(WRITER, self._make_page())

    def _read(self, *, with_tag: bool = True) -> tuple[FileVersion, dict[str, Any] | None]:
        """The page as it is; None without one, and an empty one for one that is damaged."""
        for attempt in range(_READINGS):
            version = self._files.read_version(WRITER, with_tag=with_tag)
            if version.data is None:
                return version, None
            try:
                owner = json.loads(version.data)
                return version, owner if isinstance(owner, dict) else {}
            except ValueError:  # Perhaps it is being written.
                time.sleep((attempt + 1) * _READING_SECONDS)
        return version, {}

    def _make_page(self) -> bytes:
        self._beat += 1
        return json.dumps({**self.name, "beat": self._beat}).encode("ascii")


def describe_process() -> dict[str, Any]:
    """Facts that identify this process. A process number is unique only until the machine restarts, and within one
    container."""
    boot = namespace = None
    with suppress(OSError, ValueError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    with suppress(OSError, ValueError):
        namespace = os.readlink("/proc/self/ns/pid")
    return {
        "owner": uuid.uuid4().hex,
        "host": socket.gethostname(),
        "boot": boot,
        "pid_namespace": namespace,
        "pid": os.getpid(),
    }
