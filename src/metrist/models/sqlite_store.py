"""SQLite files that several processes read and write at the same time, and the cache of model outputs in one of them.

The files are in write-ahead mode: a process that is killed loses at most what it was about to store. A file that is
damaged, or that another program wrote, is renamed with a warning, and a new one is created.
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

_T = TypeVar("_T")

# Written into the file's head: 'mtrs'.
_OURS = 0x6D747273
#: Seconds to wait for other writers.
_TIMEOUT = 60.0
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_UNWRITABLE = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM)

log = logging.getLogger("metrist")


class _Foreign(sqlite3.DatabaseError):
    """The database belongs to another program."""


class SqliteFile:
    """A database file whose connection opens on first use. `tables` are the statements that create its tables, and
    `settings` are pragmas."""

    def __init__(self, path: Path, *, tables: tuple[str, ...], settings: tuple[str, ...] = ()) -> None:
        self.path = path
        self._tables = tables
        self._settings = settings
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._inode: int | None = None

    def work(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Run `work` on the connection. A damaged file is renamed and `work` is run on a new one; other errors are
        raised as sqlite3.Error or OSError."""
        with self._lock:
            try:
                return self._run_once(work)
            except (sqlite3.Error, OSError) as error:
                if not _is_damaged(error):
                    raise
                self._set_aside(error)
            return self._run_once(work)

    def close(self) -> None:
        """Close the connection; the next use opens it again."""
        with self._lock:
            if self._connection is not None:
                with contextlib.suppress(sqlite3.Error):
                    self._connection.close()
            self._connection = None

    def size(self) -> int:
        """Return the bytes that the file takes on disk."""
        files = (self.path, self._journal)
        return sum(file.stat().st_size for file in files if file.exists())

    def _run_once(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        try:
            return work(self._connect_once())
        except (sqlite3.Error, OSError):
            self.close()
            raise

    def _connect_once(self) -> sqlite3.Connection:
        if self._connection is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._inode = _inode(self.path)
            self._connection = self._connect()
            self._inode = _inode(self.path)
        return self._connection

    def _connect(self) -> sqlite3.Connection:
        deadline = time.monotonic() + _TIMEOUT
        while True:
            connection = sqlite3.connect(self.path, timeout=_TIMEOUT, isolation_level=None, check_same_thread=False)
            try:
                self._prepare(connection)
                return connection
            except sqlite3.OperationalError as error:
                connection.close()
                if _error_code(error) in _UNWRITABLE and self.path.is_file():
                    return self._connect_read_only(error)
                # Switching to write-ahead mode does not wait for another process that creates the same file.
                if _error_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            except BaseException:
                connection.close()
                raise

    def _connect_read_only(self, error: sqlite3.OperationalError) -> sqlite3.Connection:
        """Open a file without write permission for reading; writing to it then fails."""
        no_journal = not self._journal.exists() or not self._journal.stat().st_size
        # In a read-only folder, SQLite reads a file without a journal only if it is declared immutable.
        for mode in ("mode=ro", "mode=ro&immutable=1") if no_journal else ("mode=ro",):
            uri = f"{self.path.absolute().as_uri()}?{mode}"
            connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
            try:
                if _is_foreign(connection):
                    raise _Foreign("it is a database of another program")
                self._add_missing_tables(connection)
                return connection
            except sqlite3.OperationalError:
                connection.close()
            except BaseException:
                connection.close()
                raise
        raise error

    def _add_missing_tables(self, connection: sqlite3.Connection) -> None:
        """Give a file that an earlier version wrote, and that cannot be changed, empty tables outside of it."""
        present = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        for table in self._tables:
            if table.partition(" EXISTS ")[2].partition(" ")[0] not in present:
                connection.execute(table.replace("CREATE TABLE", "CREATE TEMP TABLE", 1))

    @property
    def _journal(self) -> Path:
        return Path(f"{self.path}-wal")

    def _prepare(self, connection: sqlite3.Connection) -> None:
        # Checked before any change: a database of another program stays as it is.
        if _is_foreign(connection):
            raise _Foreign("it is a database of another program")
        connection.execute("PRAGMA trusted_schema = OFF")
        for setting in self._settings:
            connection.execute(f"PRAGMA {setting}")
        connection.execute("PRAGMA journal_mode = WAL")
        # Entries survive the end of a process; a power cut may lose the last ones but corrupts none.
        connection.execute("PRAGMA synchronous = NORMAL")
        with transaction(connection):
            for table in self._tables:
                connection.execute(table)
            connection.execute(f"PRAGMA application_id = {_OURS}")

    def _set_aside(self, error: Exception) -> None:
        # Another process may have renamed it already: rename only the file that proved damaged.
        if self._inode is None or _inode(self.path) != self._inode:
            return
        aside = _free_name(self.path)
        os.replace(self.path, aside)
        for suffix in ("-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.replace(f"{self.path}{suffix}", f"{aside}{suffix}")
        log.warning("%s was set aside as %s, and a new one begun: %s", self.path, aside.name, error)


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit what is done inside, or nothing of it; other writers wait."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def _is_foreign(connection: sqlite3.Connection) -> bool:
    # Tables first: they and the id come in one transaction, which another process may commit between the two queries.
    kinds = {kind for (kind,) in connection.execute("SELECT type FROM sqlite_master")}
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    # A trigger or a view would run statements of whoever wrote the file.
    return bool(kinds) and (application_id != _OURS or bool(kinds - {"table", "index"}))


def _is_damaged(error: Exception) -> bool:
    return isinstance(error, _Foreign) or _error_code(error) in _DAMAGED


def _error_code(error: Exception) -> int | None:
    code: int | None = getattr(error, "sqlite_errorcode", None)
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


#: The number is that of the file's layout, so that versions of metrist with another layout can share a folder.
CACHE_NAME = "models-1.sqlite"
_KEYS_PER_QUERY = 500
_BYTES_PER_WRITE = 32 << 20
_CHECKSUM = 4
_TABLE = "CREATE TABLE IF NOT EXISTS entries (key BLOB PRIMARY KEY, value BLOB NOT NULL)"
# Vectors are long: larger pages make for fewer of them.
_SETTINGS = ("page_size = 16384", f"journal_size_limit = {2 * _BYTES_PER_WRITE}")


def open_cache(folder: Path, limit_gb: float = 10.0) -> CacheFile:
    """Return this process's cache in the folder. A connection must not cross a fork, so each process has its own."""
    return _open_cache(folder, limit_gb, os.getpid())


@lru_cache(maxsize=8)
def _open_cache(folder: Path, limit_gb: float, _process: int) -> CacheFile:
    return CacheFile(folder, limit_gb)


@dataclass(frozen=True, slots=True)
class CacheContents:
    """The entries of a cache, and the bytes that it takes on disk."""

    entries: int
    size: int


class CacheFile:
    """A key-value cache. Above `limit_gb` (10^9 bytes) it stores nothing more. No method fails because of the file:
    scoring goes on without it, and the problem is logged once."""

    def __init__(self, folder: Path, limit_gb: float = 10.0) -> None:
        self.path = folder / CACHE_NAME
        self._limit_gb = limit_gb
        self._file = SqliteFile(self.path, tables=(_TABLE,), settings=_SETTINGS)
        self._usable = self._growing = True

    def find(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the intact entries under these keys."""
        entries: dict[bytes, bytes] = {}
        for start in range(0, len(keys), _KEYS_PER_QUERY):
            some = keys[start : start + _KEYS_PER_QUERY]
            entries.update(self._attempt(lambda connection, some=some: _select(connection, some)) or {})  # type: ignore[misc]
        return entries

    def keep(self, entries: Mapping[bytes, bytes]) -> None:
        """Store the entries; each group of them is stored whole or not at all."""
        for group in _group_entries(entries):
            if self._growing:
                self._attempt(lambda connection, group=group: self._insert(connection, group))  # type: ignore[misc]

    def contents(self) -> CacheContents:
        """Count the entries and their bytes."""
        count = self._attempt(lambda connection: connection.execute("SELECT count(*) FROM entries").fetchone()[0])
        return CacheContents(entries=count or 0, size=self._file.size())

    def clear(self) -> None:
        """Delete all entries and release their space."""

        def delete(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM entries")
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

        self._attempt(delete)

    def close(self) -> None:
        """Close the connection; the next use opens it again."""
        self._file.close()

    def _attempt(self, work: Callable[[sqlite3.Connection], _T]) -> _T | None:
        """Run `work` on the file; an error ends the use of the file in this process."""
        if not self._usable:
            return None
        try:
            return self._file.work(work)
        except (sqlite3.Error, OSError) as error:
            self._usable = False
            log.warning("%s cannot be used (%s): scoring goes on without caching model outputs", self.path, error)
            return None

    def _insert(self, connection: sqlite3.Connection, group: Sequence[tuple[bytes, bytes]]) -> None:
        (pages,), (page_size,) = (
            connection.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size")
        )
        if pages * page_size > self._limit_gb * 1e9:
            self._growing = False
            log.warning(
                "%s has reached %g GB and takes no more; METRIST_CACHE_GB sets another limit", self.path, self._limit_gb
            )
            return
        with transaction(connection):
            # An existing entry is damaged, or another process stored the same content first.
            connection.executemany("INSERT OR REPLACE INTO entries (key, value) VALUES (?, ?)", map(_seal, group))


def _select(connection: sqlite3.Connection, keys: Sequence[bytes]) -> dict[bytes, bytes]:
    placeholders = ",".join("?" * len(keys))
    rows = connection.execute(f"SELECT key, value FROM entries WHERE key IN ({placeholders})", keys)
    return {key: value[:-_CHECKSUM] for key, value in rows if _is_intact(value)}


def _seal(entry: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
    key, value = entry
    return key, value + zlib.crc32(value).to_bytes(_CHECKSUM, "big")


def _is_intact(value: object) -> bool:
    return (
        isinstance(value, bytes)
        and len(value) >= _CHECKSUM
        and zlib.crc32(value[:-_CHECKSUM]).to_bytes(_CHECKSUM, "big") == value[-_CHECKSUM:]
    )


def _group_entries(entries: Mapping[bytes, bytes]) -> Iterator[list[tuple[bytes, bytes]]]:
    group: list[tuple[bytes, bytes]] = []
    size = 0
    for key, value in entries.items():
        group.append((key, value))
        size += len(value)
        if size > _BYTES_PER_WRITE:
            yield group
            group, size = [], 0
    if group:
        yield group
