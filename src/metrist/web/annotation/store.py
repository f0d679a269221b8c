"""The log of clicks: append-only, in SQLite, on disk before a click is acknowledged.

A click has an id that the page chose. A page that got no answer sends the click again under the same id, and it counts
once. Nothing is ever changed or deleted: taking a click back is another click. Several processes may use one log.

A small file beside the log says how many clicks it has, so that a log that was deleted, emptied or replaced by an older
one is not taken for a new one. It is written after the commit and before the click is acknowledged: it never says more
than is on disk, and never less than was acknowledged, whenever the process is killed.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from metrist.errors import InputError, RunError
from metrist.io.locks import lock

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_BUSY_SECONDS = 30.0
_TABLE = """
CREATE TABLE IF NOT EXISTS clicks (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    rater TEXT NOT NULL,
    task TEXT NOT NULL,
    kind TEXT NOT NULL,
    content TEXT NOT NULL,
    time REAL NOT NULL,
    checksum INTEGER
) STRICT
"""
#: The number of the last click that there ever was.
_LAST = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'clicks'"
_COUNT_DIGITS = 19


@dataclass(frozen=True, slots=True, kw_only=True)
class Click:
    """What a rater did to a task. `kind` is set, mark, unmark, done, skip or undo; `content` depends on it.

    `number` is its place in the log, counted from 1; 0 if it is not stored yet.
    """

    id: str
    rater: str
    task: str
    kind: str
    content: dict[str, Any]
    number: int = 0
    time: float = 0.0


class ClickStore:
    """The log in one file. Methods may be called from any thread."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._count_path = count_path(self.path)
        self._lock = threading.Lock()
        try:
            # Before clicks are counted: others may add some meanwhile.
            acknowledged = 0
            with suppress(FileNotFoundError):
                acknowledged = _parse_count(self._count_path.read_bytes()[:_COUNT_DIGITS])
            if acknowledged and not (self.path.exists() and self.path.stat().st_size):
                raise self._miss(0, acknowledged)  # SQLite would make a new one, and delete a journal without its log.
            self._connection = sqlite3.connect(
                self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            self._connection.execute("PRAGMA trusted_schema=OFF")
            foreign = self._connection.execute("SELECT name FROM sqlite_master WHERE type NOT IN ('table', 'index')")
            if (found := foreign.fetchone()) is not None:
                self._connection.close()
                raise RunError(f"{self.path}: the log of clicks has a trigger or a view, {found[0]!r:.60}: not ours")
            self._connection.execute("PRAGMA journal_mode=WAL")
            # An acknowledged click survives a power cut: every commit waits for the disk.
            self._connection.execute("PRAGMA synchronous=FULL")
            self._connection.execute(_TABLE)
            self._inode = self.path.stat().st_ino
            # In one statement: another process may add a click between two.
            stored, last = self._connection.execute(f"SELECT count(*), ({_LAST}) FROM clicks").fetchone()
            if stored < acknowledged:
                self._connection.close()
                raise self._miss(stored, acknowledged)
            #: Numbers whose clicks somebody deleted, and then the count, to go on without them.
            self._deleted = last - stored
            if stored > acknowledged:
                self._raise_count()
        except (sqlite3.Error, OSError, ValueError) as error:  # ValueError: a damaged file's schema is no UTF-8.
            if hasattr(self, "_connection"):
                self._connection.close()  # It may hold a lock on the file.
            raise RunError(f"{self.path}: the log of clicks cannot be opened: {error}", code="unreadable") from None

    def append(self, click: Click) -> Click:
        """Store a click and return it with its number. If its id is known, return the stored one."""
        _check_id(click.id)
        with self.lock() as connection:
            known = self._find(connection, click.id)
            if known is None:
                return self._insert(connection, click)
            if any(getattr(known, name) != getattr(click, name) for name in ("rater", "task", "kind", "content")):
                raise InputError(f"the id {click.id!r} was used for another click", code="invalid_value")
            return known

    def undo(self, click_id: str, rater: str) -> Click | None:
        """Take back the rater's last click that still counts, and return the click that does so; None if there is none.

        Which one is taken back is decided and stored in one transaction, so that sending this again, or from two tabs,
        never takes back more than was asked for.
        """
        _check_id(click_id)
        with self.lock() as connection:
            known = self._find(connection, click_id)
            if known is not None:
                if known.kind != "undo" or known.rater != rater:
                    raise InputError(f"the id {click_id!r} was used for another click", code="invalid_value")
                return known
            row = connection.execute(
                "SELECT * FROM clicks AS c WHERE rater = ? AND kind != 'undo' AND NOT EXISTS (SELECT 1 FROM clicks AS u"
                " WHERE u.rater = c.rater AND u.kind = 'undo' AND json_extract(u.content, '$.target') = c.id)"
                " ORDER BY number DESC LIMIT 1",
                (rater,),
            ).fetchone()
            if row is None:
                return None
            target = _parse(row)
            undo = Click(id=click_id, rater=rater, task=target.task, kind="undo", content={"target": target.id})
            return self._insert(connection, undo)

    def read(self, after: int = 0) -> list[Click]:
        """Return the clicks after this number, in their order."""
        with self._lock:
            try:
                rows = self._connection.execute("SELECT * FROM clicks WHERE number > ? ORDER BY number", (after,))
                return [_parse(row) for row in rows]
            except (sqlite3.Error, ValueError, TypeError, RecursionError) as error:
                raise RunError(f"{self.path}: the log of clicks is damaged: {error}", code="damaged") from None

    def close(self) -> None:
        """Move everything into the main file, and close it."""
        with self._lock:
            # Another process may use the log: nothing is lost then, and the next one to close it does this.
            with suppress(sqlite3.Error):
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._connection.close()

    def __enter__(self) -> ClickStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def lock(self) -> Iterator[sqlite3.Connection]:
        """Keep all other threads and processes from writing to the log while the block, a transaction, runs."""
        with self._lock:
            try:
                if self.path.stat().st_ino != self._inode:  # SQLite would go on writing to what nobody can read.
                    raise FileNotFoundError("another file has taken its place")
                self._connection.execute("BEGIN IMMEDIATE")
                try:
                    yield self._connection
                except BaseException:
                    self._connection.execute("ROLLBACK")
                    raise
                self._connection.execute("COMMIT")
                self._raise_count()
            except (sqlite3.Error, OSError) as error:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise RunError(f"cannot write the log of clicks, {self.path}: {error}", code="cannot_write") from None

    def _raise_count(self) -> None:
        """Note how many clicks are on disk, unless another process has noted more."""
        (last,) = self._connection.execute(_LAST).fetchone()
        count = int(last) - self._deleted
        handle = os.open(self._count_path, os.O_RDWR | os.O_CREAT, 0o600)
        with os.fdopen(handle, "r+b", buffering=0) as file:
            lock(file, wait=True)
            if count > _parse_count(file.read(_COUNT_DIGITS)):
                # In place and of one width: a file that is killed here has the old number or the new one.
                file.seek(0)
                file.write(f"{count:0{_COUNT_DIGITS}}\n".encode())
                os.fsync(file.fileno())

    def _miss(self, stored: int, acknowledged: int) -> RunError:
        return RunError(
            f"{self.path}: {acknowledged:,} clicks were acknowledged, and the log has {stored:,}: restore it from a "
            f"copy, or delete {self._count_path} to go on without the others",
            code="damaged",
        )

    def _find(self, connection: sqlite3.Connection, click_id: str) -> Click | None:
        row = connection.execute("SELECT * FROM clicks WHERE id = ?", (click_id,)).fetchone()
        return None if row is None else _parse(row)

    def _insert(self, connection: sqlite3.Connection, click: Click) -> Click:
        now = time.time()
        content = json.dumps(click.content, sort_keys=True)
        cursor = connection.execute(
            "INSERT INTO clicks (id, rater, task, kind, content, time, checksum) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (click.id, click.rater, click.task, click.kind, content, now, _sum_up(click, content)),
        )
        return replace(click, number=cursor.lastrowid or 0, time=now)


def count_path(path: Path) -> Path:
    """Return the file that says how many clicks a log has."""
    return path.with_suffix(".count")


def _parse_count(content: bytes) -> int:
    """Return the number in a count file; 0 if it was created and not written. ValueError if it is another file."""
    return int(content.strip(b"\0 \n") or b"0")


def _check_id(click_id: str) -> None:
    if not _ID.fullmatch(click_id):
        raise InputError(f"an id has 1 to 64 letters, digits, - and _, got {click_id!r:.80}", code="invalid_value")


def _sum_up(click: Click, content: str) -> int:
    """A checksum of what a click says."""
    text = "\n".join((click.id, click.rater, click.task, click.kind, content))
    return zlib.crc32(text.encode("utf-8", "surrogatepass"))


def _parse(row: tuple[Any, ...]) -> Click:
    number, click_id, rater, task, kind, content, moment, checksum = row
    click = Click(
        id=click_id, rater=rater, task=task, kind=kind, content=json.loads(content), number=number, time=moment
    )
    if checksum != _sum_up(click, content):
        raise RunError(f"click {number} does not match its checksum: restore the log from a copy", code="damaged")
    return click
