"""One file of things that took long to compute, found again by a hash of what they were computed from.

SQLite in write-ahead mode: several processes read and write at once, and one that is killed loses at most what it was
about to store. Whatever befalls the file, scoring goes on: it is a memory, not a result.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from metrist.errors import ModelError
from metrist.models.options import CACHE

_T = TypeVar("_T")

#: The number is the layout's: another layout is another file, so that versions of metrist can share a folder.
NAME = "models-1.sqlite"
#: How large the file may grow, in GB (10^9 bytes); nothing more is stored then, and what is there is still used.
SIZE_LIMIT = "METRIST_CACHE_GB"
_DEFAULT_LIMIT = 10.0
# Written into the file's head: 'mtrs'.
_OURS = 0x6D747273
#: Seconds to wait for other writers.
_PATIENCE = 60.0
_KEYS_AT_ONCE = 500
_BYTES_AT_ONCE = 32 << 20
_CHECKSUM = 4
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

log = logging.getLogger("metrist")


class _Foreign(sqlite3.DatabaseError):
    """A data base that another program has made."""


def cache_file() -> CacheFile | None:
    """The file in the folder that the environment names, or None where it names none."""
    folder = os.environ.get(CACHE)
    # A connection must not cross a fork, so each process has its own.
    return _of(Path(folder), os.getpid()) if folder else None


@lru_cache(maxsize=8)
def _of(folder: Path, _process: int) -> CacheFile:
    return CacheFile(folder)


@dataclass(frozen=True, slots=True)
class Contents:
    """How many entries a file has, and the bytes that it takes on disk."""

    entries: int
    size: int


class CacheFile:
    """Keys and what is kept under them. No method ever fails for the file's sake; what is wrong is logged once."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._inode: int | None = None
        self._usable = self._growing = True

    def find(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """What is kept under these keys, as far as it is there and whole."""
        found: dict[bytes, bytes] = {}
        for start in range(0, len(keys), _KEYS_AT_ONCE):
            some = keys[start : start + _KEYS_AT_ONCE]
            found.update(self._attempt(lambda connection, some=some: _selected(connection, some)) or {})  # type: ignore[misc]
        return found

    def keep(self, entries: Mapping[bytes, bytes]) -> None:
        """Keep what is given; each group of entries is stored whole or not at all."""
        for group in _groups(entries):
            if self._growing:
                self._attempt(lambda connection, group=group: self._insert(connection, group))  # type: ignore[misc]

    def contents(self) -> Contents:
        """How much there is."""
        count = self._attempt(lambda connection: connection.execute("SELECT count(*) FROM entries").fetchone()[0])
        files = (self.path, Path(f"{self.path}-wal"))
        return Contents(entries=count or 0, size=sum(file.stat().st_size for file in files if file.exists()))

    def clear(self) -> None:
        """Forget everything, and give the space back."""

        def emptied(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM entries")
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

        self._attempt(emptied)

    def close(self) -> None:
        """Let go of the file, which is opened again when it is needed."""
        with self._lock:
            self._close()

    def _attempt(self, work: Callable[[sqlite3.Connection], _T]) -> _T | None:
        """Do the work on the file. A damaged file is set aside and the work tried on a new one; any other fault ends
        the use of the file in this process."""
        with self._lock:
            for _ in range(2):
                if not self._usable:
                    return None
                try:
                    return work(self._opened())
                except (sqlite3.Error, OSError) as fault:
                    self._close()
                    if _is_damaged(fault):
                        self._set_aside(fault)
                    else:
                        self._give_up(fault)
            return None

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._inode = _inode(self.path)
            self._connection = _connected(self.path)
            self._inode = _inode(self.path)
        return self._connection

    def _insert(self, connection: sqlite3.Connection, group: Sequence[tuple[bytes, bytes]]) -> None:
        limit = _limit()
        if _size(connection) > limit * 1e9:
            self._growing = False
            log.warning("%s has reached %g GB and takes no more; %s sets another limit", self.path, limit, SIZE_LIMIT)
            return
        with _transaction(connection):
            # An entry that is there already was found damaged, or another process was first with the same content.
            connection.executemany("INSERT OR REPLACE INTO entries (key, value) VALUES (?, ?)", map(_sealed, group))

    def _set_aside(self, fault: Exception) -> None:
        # Another process may have done so already: only the file that was found damaged is moved.
        if self._inode is None or _inode(self.path) != self._inode:
            return
        aside = _free_name(self.path)
        try:
            os.replace(self.path, aside)
            for suffix in ("-wal", "-shm"):
                with contextlib.suppress(FileNotFoundError):
                    os.replace(f"{self.path}{suffix}", f"{aside}{suffix}")
        except OSError as stuck:
            self._give_up(stuck)
            return
        log.warning("%s was set aside as %s, and a new one begun: %s", self.path, aside.name, fault)

    def _give_up(self, fault: Exception) -> None:
        self._usable = False
        log.warning("%s cannot be used (%s): scoring goes on without keeping what models compute", self.path, fault)

    def _close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
        self._connection = None


def _connected(path: Path) -> sqlite3.Connection:
    end = time.monotonic() + _PATIENCE
    while True:
        connection = sqlite3.connect(path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False)
        try:
            _prepare(connection)
            return connection
        except sqlite3.OperationalError as fault:
            connection.close()
            # Two processes that begin a file at once: turning it to write-ahead mode does not wait for the other.
            if _primary(fault) != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                raise
            time.sleep(0.05)
        except BaseException:
            connection.close()
            raise


def _prepare(connection: sqlite3.Connection) -> None:
    # Looked at before anything is set: a data base of somebody else's stays as it is.
    if _is_foreign(connection):
        raise _Foreign("it is a data base of another program")
    # Vectors are long: larger pages make for fewer of them.
    connection.execute("PRAGMA page_size = 16384")
    connection.execute("PRAGMA journal_mode = WAL")
    # Survives the end of any process; after a power cut the last entries may be missing, never torn.
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"PRAGMA journal_size_limit = {2 * _BYTES_AT_ONCE}")
    with _transaction(connection):
        connection.execute("CREATE TABLE IF NOT EXISTS entries (key BLOB PRIMARY KEY, value BLOB NOT NULL)")
        connection.execute(f"PRAGMA application_id = {_OURS}")


def _is_foreign(connection: sqlite3.Connection) -> bool:
    (made_by,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    return bool(tables) and made_by != _OURS


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def _selected(connection: sqlite3.Connection, keys: Sequence[bytes]) -> dict[bytes, bytes]:
    places = ",".join("?" * len(keys))
    rows = connection.execute(f"SELECT key, value FROM entries WHERE key IN ({places})", keys)
    return {key: value[:-_CHECKSUM] for key, value in rows if _is_whole(value)}


def _sealed(entry: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
    key, value = entry
    return key, value + zlib.crc32(value).to_bytes(_CHECKSUM, "big")


def _is_whole(value: object) -> bool:
    return (
        isinstance(value, bytes)
        and len(value) >= _CHECKSUM
        and zlib.crc32(value[:-_CHECKSUM]).to_bytes(_CHECKSUM, "big") == value[-_CHECKSUM:]
    )


def _groups(entries: Mapping[bytes, bytes]) -> Iterator[list[tuple[bytes, bytes]]]:
    held: list[tuple[bytes, bytes]] = []
    size = 0
    for key, value in entries.items():
        held.append((key, value))
        size += len(value)
        if size > _BYTES_AT_ONCE:
            yield held
            held, size = [], 0
    if held:
        yield held


def _size(connection: sqlite3.Connection) -> int:
    (pages,), (bytes_each,) = (connection.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size"))
    size: int = pages * bytes_each
    return size


def _limit() -> float:
    text = os.environ.get(SIZE_LIMIT) or str(_DEFAULT_LIMIT)
    try:
        limit = float(text)
    except ValueError:
        limit = 0.0
    if not limit > 0:
        raise ModelError(f"{SIZE_LIMIT} must be a number above 0, got {text!r}")
    return limit


def _is_damaged(fault: Exception) -> bool:
    return isinstance(fault, _Foreign) or _primary(fault) in _DAMAGED


def _primary(fault: Exception) -> int | None:
    code: int | None = getattr(fault, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _free_name(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.name}.set-aside-{number}")).exists():
        number += 1
    return aside
