"""One file of things that took long to compute, found again by a hash of what they were computed from.

SQLite in write-ahead mode: several processes read and write at once, and one that is killed loses at most what it was
about to store. Whatever befalls the file, scoring goes on: it is a memory, not a result.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from metrist.errors import ModelError
from metrist.models.options import CACHE
from metrist.models.shared_file import SharedFile, transaction

_T = TypeVar("_T")

#: The number is the layout's: another layout is another file, so that versions of metrist can share a folder.
NAME = "models-1.sqlite"
#: How large the file may grow, in GB (10^9 bytes); nothing more is stored then, and what is there is still used.
SIZE_LIMIT = "METRIST_CACHE_GB"
_DEFAULT_LIMIT = 10.0
_KEYS_AT_ONCE = 500
_BYTES_AT_ONCE = 32 << 20
_CHECKSUM = 4
_TABLE = "CREATE TABLE IF NOT EXISTS entries (key BLOB PRIMARY KEY, value BLOB NOT NULL)"
# Vectors are long: larger pages make for fewer of them.
_SETTINGS = ("page_size = 16384", f"journal_size_limit = {2 * _BYTES_AT_ONCE}")

log = logging.getLogger("metrist")


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
        self._file = SharedFile(self.path, tables=(_TABLE,), settings=_SETTINGS)
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
