"""One SQLite file that several processes read and write at once.

In write-ahead mode: a process that is killed loses at most what it was about to store. A file that is damaged, or that
another program made, is set aside with a remark, and a new one begun.
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
from metrist.models.devices import CACHE

_T = TypeVar("_T")

# Written into the file's head: 'mtrs'.
_OURS = 0x6D747273
#: Seconds to wait for other writers.
_PATIENCE = 60.0
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_UNWRITABLE = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM)

log = logging.getLogger("metrist")


class _Foreign(sqlite3.DatabaseError):
    """A data base that another program has made."""


class SqliteFile:
    """A file and the connection to it, opened when it is first needed. `tables` are the statements that make what is to
    be in it; `settings` are pragmas."""

    def __init__(self, path: Path, *, tables: tuple[str, ...], settings: tuple[str, ...] = ()) -> None:
        self.path = path
        self._tables = tables
        self._settings = settings
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._inode: int | None = None

    def work(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Do the work on the file. A damaged file is set aside and the work tried on a new one; any other fault is
        raised, as sqlite3.Error or OSError."""
        with self._lock:
            try:
                return self._tried(work)
            except (sqlite3.Error, OSError) as fault:
                if not _is_damaged(fault):
                    raise
                self._set_aside(fault)
            return self._tried(work)

    def close(self) -> None:
        """Let go of the file, which is opened again when it is needed."""
        with self._lock:
            if self._connection is not None:
                with contextlib.suppress(sqlite3.Error):
                    self._connection.close()
            self._connection = None

    def size(self) -> int:
        """The bytes that it takes on disk."""
        files = (self.path, self._journal)
        return sum(file.stat().st_size for file in files if file.exists())

    def _tried(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        try:
            return work(self._opened())
        except (sqlite3.Error, OSError):
            self.close()
            raise

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._inode = _inode(self.path)
            self._connection = self._connected()
            self._inode = _inode(self.path)
        return self._connection

    def _connected(self) -> sqlite3.Connection:
        end = time.monotonic() + _PATIENCE
        while True:
            connection = sqlite3.connect(self.path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False)
            try:
                self._prepare(connection)
                return connection
            except sqlite3.OperationalError as fault:
                connection.close()
                if _primary(fault) in _UNWRITABLE and self.path.is_file():
                    return self._read_only(fault)
                # Two processes that begin a file at once: turning it to write-ahead mode does not wait for the other.
                if _primary(fault) != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                    raise
                time.sleep(0.05)
            except BaseException:
                connection.close()
                raise

    def _read_only(self, fault: sqlite3.OperationalError) -> sqlite3.Connection:
        """What may not be written can still be read; whoever then writes is told."""
        settled = not self._journal.exists() or not self._journal.stat().st_size
        # In a folder that cannot be written, a file without a journal is read as one that nobody changes.
        for how in ("mode=ro", "mode=ro&immutable=1") if settled else ("mode=ro",):
            address = f"{self.path.absolute().as_uri()}?{how}"
            connection = sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False)
            try:
                if _is_foreign(connection):
                    raise _Foreign("it is a data base of another program")
                return connection
            except sqlite3.OperationalError:
                connection.close()
            except BaseException:
                connection.close()
                raise
        raise fault

    @property
    def _journal(self) -> Path:
        return Path(f"{self.path}-wal")

    def _prepare(self, connection: sqlite3.Connection) -> None:
        # Looked at before anything is set: a data base of somebody else's stays as it is.
        if _is_foreign(connection):
            raise _Foreign("it is a data base of another program")
        for setting in self._settings:
            connection.execute(f"PRAGMA {setting}")
        connection.execute("PRAGMA journal_mode = WAL")
        # Survives the end of any process; after a power cut the last entries may be missing, never torn.
        connection.execute("PRAGMA synchronous = NORMAL")
        with transaction(connection):
            for table in self._tables:
                connection.execute(table)
            connection.execute(f"PRAGMA application_id = {_OURS}")

    def _set_aside(self, fault: Exception) -> None:
        # Another process may have done so already: only the file that was found damaged is moved.
        if self._inode is None or _inode(self.path) != self._inode:
            return
        aside = _free_name(self.path)
        os.replace(self.path, aside)
        for suffix in ("-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.replace(f"{self.path}{suffix}", f"{aside}{suffix}")
        log.warning("%s was set aside as %s, and a new one begun: %s", self.path, aside.name, fault)


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All that is done inside, or nothing; other writers wait."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def _is_foreign(connection: sqlite3.Connection) -> bool:
    # Tables first: they and the mark come in one transaction, and another process may end it between the two looks.
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    (made_by,) = connection.execute("PRAGMA application_id").fetchone()
    return bool(tables) and made_by != _OURS


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


# One file of things that took long to compute, found again by a hash of what they were computed from.
#
# SQLite in write-ahead mode: several processes read and write at once, and one that is killed loses at most what it was
# about to store. Whatever befalls the file, scoring goes on: it is a memory, not a result.


#: The number is the layout's: another layout is another file, so that versions of metrist can share a folder.
CACHE_NAME = "models-1.sqlite"
#: How large the file may grow, in GB (10^9 bytes); nothing more is stored then, and what is there is still used.
SIZE_LIMIT = "METRIST_CACHE_GB"
_DEFAULT_LIMIT = 10.0
_KEYS_AT_ONCE = 500
_BYTES_AT_ONCE = 32 << 20
_CHECKSUM = 4
_TABLE = "CREATE TABLE IF NOT EXISTS entries (key BLOB PRIMARY KEY, value BLOB NOT NULL)"
# Vectors are long: larger pages make for fewer of them.
_SETTINGS = ("page_size = 16384", f"journal_size_limit = {2 * _BYTES_AT_ONCE}")


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
        self.path = folder / CACHE_NAME
        self._file = SqliteFile(self.path, tables=(_TABLE,), settings=_SETTINGS)
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
        return Contents(entries=count or 0, size=self._file.size())

    def clear(self) -> None:
        """Forget everything, and give the space back."""

        def emptied(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM entries")
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

        self._attempt(emptied)

    def close(self) -> None:
        """Let go of the file, which is opened again when it is needed."""
        self._file.close()

    def _attempt(self, work: Callable[[sqlite3.Connection], _T]) -> _T | None:
        """Do the work on the file. A damaged file is set aside and the work tried on a new one; any other fault ends
        the use of the file in this process."""
        if not self._usable:
            return None
        try:
            return self._file.work(work)
        except (sqlite3.Error, OSError) as fault:
            self._usable = False
            log.warning("%s cannot be used (%s): scoring goes on without keeping what models compute", self.path, fault)
            return None

    def _insert(self, connection: sqlite3.Connection, group: Sequence[tuple[bytes, bytes]]) -> None:
        limit = _limit()
        if _size(connection) > limit * 1e9:
            self._growing = False
            log.warning("%s has reached %g GB and takes no more; %s sets another limit", self.path, limit, SIZE_LIMIT)
            return
        with transaction(connection):
            # An entry that is there already was found damaged, or another process was first with the same content.
            connection.executemany("INSERT OR REPLACE INTO entries (key, value) VALUES (?, ?)", map(_sealed, group))


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
