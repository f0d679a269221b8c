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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

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


class SharedFile:
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
