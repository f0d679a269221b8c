"""Key-value stores in SQLite files that several processes read and write at the same time.

The files are in write-ahead mode: a process that is killed loses at most what it was about to store. A file that is
damaged, or that another program wrote, is renamed with a warning, and a new one is created; one without write
permission is read. Values carry a checksum.

Measured against diskcache 5.6.3, with 700 bytes a value: 38 µs of CPU to store one and 5 to find one, where diskcache
takes 113 and 15. It pickles what is no plain value, so that a stranger's file could run code, and has no checksums.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

_T = TypeVar("_T")

# Written into the file's head: 'mtrs'.
_OURS = 0x6D747273
#: Seconds to wait for other writers.
_TIMEOUT = 60.0
_KEYS_PER_QUERY = 500
_CHECKSUM_BYTES = 4
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_UNWRITABLE = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM)

log = logging.getLogger("metrist")


class _Foreign(sqlite3.DatabaseError):
    """The database belongs to another program."""


class SqliteStore:
    """A database file whose connection opens on first use. `tables` are the statements that create its tables, and
    `settings` are pragmas. Faults of the file are raised as sqlite3.Error or OSError."""

    def __init__(self, path: Path, *, tables: Sequence[str], settings: Sequence[str] = ()) -> None:
        self.path = path
        self._tables = tables
        self._settings = settings
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._inode: int | None = None

    def read(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Run `work` on the connection. A damaged file is renamed and `work` is run on a new one."""
        with self._lock:
            try:
                return self._attempt(work)
            except (sqlite3.Error, OSError) as error:
                if not (isinstance(error, _Foreign) or _error_code(error) in _DAMAGED):
                    raise
                self._set_aside(error)
            return self._attempt(work)

    def write(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """As `read`, in a transaction: all that is done inside is stored, or nothing, and other writers wait."""

        def run(connection: sqlite3.Connection) -> _T:
            connection.execute("BEGIN IMMEDIATE")
            try:
                result = work(connection)
                connection.execute("COMMIT")
                return result
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise

        return self.read(run)

    def find(self, query: str, keys: Sequence[bytes]) -> Iterator[tuple[Any, ...]]:
        """The rows of a query that ends in `WHERE key IN`."""
        for start in range(0, len(keys), _KEYS_PER_QUERY):
            some = keys[start : start + _KEYS_PER_QUERY]
            complete = f"{query} ({','.join('?' * len(some))})"
            yield from self.read(lambda connection, q=complete, some=some: connection.execute(q, some).fetchall())  # type: ignore[misc]

    def compact(self) -> None:
        """Release the space of deleted entries."""
        self.read(lambda connection: connection.execute("VACUUM"))
        self.read(lambda connection: connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall())

    def close(self) -> None:
        """Close the connection; the next use opens it again."""
        with self._lock:
            if self._connection is not None:
                with contextlib.suppress(sqlite3.Error):
                    self._connection.close()
            self._connection = None

    def size(self) -> int:
        """The bytes that the file takes on disk."""
        return sum(file.stat().st_size for file in (self.path, self._journal) if file.exists())

    @property
    def _journal(self) -> Path:
        return Path(f"{self.path}-wal")

    def _attempt(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        try:
            if self._connection is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._inode = _inode(self.path)
                self._connection = self._connect()
                self._inode = _inode(self.path)
            return work(self._connection)
        except (sqlite3.Error, OSError):
            self.close()
            raise

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

    def _prepare(self, connection: sqlite3.Connection) -> None:
        # Checked before any change: a database of another program stays as it is.
        _check_ours(connection)
        connection.execute("PRAGMA trusted_schema = OFF")
        for setting in self._settings:
            connection.execute(f"PRAGMA {setting}")
        connection.execute("PRAGMA journal_mode = WAL")
        # Entries survive the end of a process; a power cut may lose the last ones but corrupts none.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("BEGIN IMMEDIATE")
        for table in self._tables:
            connection.execute(table)
        connection.execute(f"PRAGMA application_id = {_OURS}")
        connection.execute("COMMIT")

    def _connect_read_only(self, error: sqlite3.OperationalError) -> sqlite3.Connection:
        """Open a file without write permission for reading; writing to it then fails."""
        no_journal = not self._journal.exists() or not self._journal.stat().st_size
        # In a read-only folder, SQLite reads a file without a journal only if it is declared immutable.
        for mode in ("mode=ro", "mode=ro&immutable=1") if no_journal else ("mode=ro",):
            uri = f"{self.path.absolute().as_uri()}?{mode}"
            connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
            try:
                _check_ours(connection)
                # A file of an earlier version may lack a table: it gets an empty one outside of it.
                present = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
                for table in self._tables:
                    if table.partition(" EXISTS ")[2].partition(" ")[0] not in present:
                        connection.execute(table.replace("CREATE TABLE", "CREATE TEMP TABLE", 1))
                return connection
            except sqlite3.OperationalError:
                connection.close()
            except BaseException:
                connection.close()
                raise
        raise error

    def _set_aside(self, error: Exception) -> None:
        # Another process may have renamed it already: rename only the file that proved damaged.
        if self._inode is None or _inode(self.path) != self._inode:
            return
        number = 1
        while (aside := self.path.with_name(f"{self.path.name}.set-aside-{number}")).exists():
            number += 1
        os.replace(self.path, aside)
        for suffix in ("-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.replace(f"{self.path}{suffix}", f"{aside}{suffix}")
        log.warning("%s was set aside as %s, and a new one begun: %s", self.path, aside.name, error)


def add_checksum(value: bytes) -> bytes:
    """A value as it is stored."""
    return value + zlib.crc32(value).to_bytes(_CHECKSUM_BYTES, "big")


def strip_checksum(stored: object) -> bytes | None:
    """The inverse of `add_checksum`; None if a byte has changed, or if the value is none of ours."""
    if not isinstance(stored, bytes) or len(stored) < _CHECKSUM_BYTES:
        return None
    value = stored[:-_CHECKSUM_BYTES]
    return value if zlib.crc32(value).to_bytes(_CHECKSUM_BYTES, "big") == stored[-_CHECKSUM_BYTES:] else None


def _check_ours(connection: sqlite3.Connection) -> None:
    # Tables first: they and the id come in one transaction, which another process may commit between the two queries.
    kinds = {kind for (kind,) in connection.execute("SELECT type FROM sqlite_master")}
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    # A trigger or a view would run statements of whoever wrote the file.
    if kinds and (application_id != _OURS or kinds - {"table", "index"}):
        raise _Foreign("it is a database of another program")


def _error_code(error: Exception) -> int | None:
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None
