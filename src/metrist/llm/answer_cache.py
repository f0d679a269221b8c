"""Answers of LLMs, kept in one file so that none is paid for twice.

An answer is committed before anybody uses it, so a process that is killed loses none that it had (SQLite's write-ahead
mode, synchronous NORMAL: 0.1 ms an answer, where FULL takes 3.5). After each batch of questions the file is brought to
disk, so a power cut loses at most the answers of the batch under way. A fault of the file ends the run before more is
spent: what cannot be kept would be paid for again.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from metrist.errors import ModelError
from metrist.llm import options
from metrist.llm.questions import Question, answer_of_json, answer_to_json, has_all_asked_for
from metrist.llm.talk import Completion
from metrist.models.sqlite_store import SqliteFile, transaction

_T = TypeVar("_T")

#: The number is the layout's: another layout is another file, so that versions of metrist can share a folder.
NAME = "answers-1.sqlite"
_TABLES = (
    "CREATE TABLE IF NOT EXISTS answers (key BLOB PRIMARY KEY, llm TEXT NOT NULL, question BLOB NOT NULL, "
    "answer BLOB NOT NULL, arrived REAL NOT NULL)",
    "CREATE TABLE IF NOT EXISTS spending (run TEXT NOT NULL, process TEXT NOT NULL, paid REAL NOT NULL, "
    "reserved REAL NOT NULL, changed REAL NOT NULL, PRIMARY KEY (run, process))",
)
_KEYS_AT_ONCE = 500
_CHECKSUM = 4
#: Days for which it is remembered what a run spent.
_SPENDING_KEPT = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """An answer in the cache, with its question and when it came (seconds since 1970)."""

    question: Question
    answer: Completion
    arrived: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """How many answers there are, of which LLMs, and the bytes that they take on disk."""

    answers: Mapping[str, int]
    size: int


def answer_cache() -> AnswerCache:
    """The cache in the folder that the environment names."""
    # A connection must not cross a fork, so each process has its own.
    return _of(options.cache_folder().absolute(), os.getpid())


@lru_cache(maxsize=8)
def _of(folder: Path, _process: int) -> AnswerCache:
    return AnswerCache(folder)


class AnswerCache:
    """Questions and their answers. Whatever is wrong with the file is raised as ModelError; a file that is damaged or
    another program's is set aside, and one entry that is damaged is as good as none."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self._file = SqliteFile(self.path, tables=_TABLES, settings=("journal_size_limit = 67108864",))

    @property
    def begun(self) -> bool:
        """Whether there is a file yet."""
        return self.path.exists()

    def find(self, questions: Sequence[Question]) -> dict[bytes, Completion]:
        """The answers that are there with all that was asked for, by the question's key."""
        by_key = {question.key: question for question in questions}
        keys = list(by_key)
        found: dict[bytes, Completion] = {}
        for start in range(0, len(keys), _KEYS_AT_ONCE):
            some = keys[start : start + _KEYS_AT_ONCE]
            found.update(self.work(lambda connection, some=some: _selected(connection, some)))  # type: ignore[misc]
        return {key: answer for key, answer in found.items() if has_all_asked_for(by_key[key], answer)}

    def keep(self, kept: Sequence[Kept]) -> list[Completion]:
        """Store answers, and give those that now stand for their questions: where another process was first, its own,
        so that all later runs say the same."""

        def stored(connection: sqlite3.Connection) -> list[Completion]:
            with transaction(connection):
                return [_stored(connection, one) for one in kept]

        return self.work(stored)

    def check(self) -> None:
        """Write something, so that a file that takes nothing is found before anything is paid for."""
        old = time.time() - _SPENDING_KEPT * 86_400

        def forgotten(connection: sqlite3.Connection) -> None:
            with transaction(connection):
                connection.execute("DELETE FROM spending WHERE changed < ?", (old,))
                # Deleting nothing writes nothing: the version is a number in the file's head that nobody reads.
                (number,) = connection.execute("PRAGMA user_version").fetchone()
                connection.execute(f"PRAGMA user_version = {(number + 1) % 1_000_000}")

        self.work(forgotten)

    def sync(self) -> None:
        """Bring what was stored to the disk itself."""
        self.work(lambda connection: connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall())

    def each(self, llm: str | None = None) -> Iterator[Kept]:
        """All answers, or one LLM's, in the order in which they were stored."""
        # Page by page: whoever reads slowly must not hold up those who write.
        rows = self._looked(lambda connection: _page(connection, -1, llm))
        while rows:
            whole = (_kept(*row[1:]) for row in rows)
            yield from (kept for kept in whole if kept is not None)
            rows = self._looked(lambda connection, last=rows[-1][0]: _page(connection, last, llm))  # type: ignore[misc]

    def contents(self) -> Contents:
        """How much there is."""
        counted = "SELECT llm, count(*) FROM answers GROUP BY llm ORDER BY llm"
        answers = dict(self._looked(lambda connection: connection.execute(counted).fetchall()))
        return Contents(answers=answers, size=self._file.size())

    def clear(self, llm: str | None = None) -> int:
        """Forget all answers, or one LLM's, and give the space back; how many they were."""

        def emptied(connection: sqlite3.Connection) -> int:
            count = connection.execute("DELETE FROM answers WHERE ? IN (llm, '')", (llm or "",)).rowcount
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            return count

        return self._looked(emptied)

    def close(self) -> None:
        """Let go of the file, which is opened again when it is needed."""
        self._file.close()

    def work(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Do the work on the file."""
        try:
            return self._file.work(work)
        except (sqlite3.Error, OSError) as fault:
            raise ModelError(
                f"answers of LLMs cannot be kept in {self.path} ({_why(fault)}), and nothing is asked that could not "
                f"be kept; make room, or name another folder by {options.CACHE}"
            ) from fault

    def _looked(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Look at the file, or change it by hand, while nothing is asked."""
        try:
            return self._file.work(work)
        except (sqlite3.Error, OSError) as fault:
            raise ModelError(f"the answers in {self.path} cannot be looked at or changed: {_why(fault)}") from fault


def _why(fault: sqlite3.Error | OSError) -> str:
    return fault.strerror if isinstance(fault, OSError) and fault.strerror else str(fault)


def _selected(connection: sqlite3.Connection, keys: Sequence[bytes]) -> dict[bytes, Completion]:
    places = ",".join("?" * len(keys))
    rows = connection.execute(f"SELECT key, answer FROM answers WHERE key IN ({places})", keys)
    found = ((key, _answer(blob)) for key, blob in rows)
    return {key: answer for key, answer in found if answer is not None}


def _stored(connection: sqlite3.Connection, kept: Kept) -> Completion:
    key = kept.question.key
    rows = connection.execute("SELECT answer FROM answers WHERE key = ?", (key,)).fetchall()
    before = _answer(rows[0][0]) if rows else None
    if before is not None and has_all_asked_for(kept.question, before):
        return before
    question, answer = _packed(kept.question.to_json()), _packed(answer_to_json(kept.answer))
    row = (key, kept.question.llm, question, answer, kept.arrived)
    connection.execute(
        "INSERT OR REPLACE INTO answers (key, llm, question, answer, arrived) VALUES (?, ?, ?, ?, ?)", row
    )
    return kept.answer


def _page(connection: sqlite3.Connection, last: int, llm: str | None) -> list[tuple[int, bytes, bytes, float]]:
    wanted = "SELECT rowid, question, answer, arrived FROM answers WHERE rowid > ? AND ? IN (llm, '')"
    return connection.execute(f"{wanted} ORDER BY rowid LIMIT 1000", (last, llm or "")).fetchall()


def _kept(question: bytes, answer: bytes, arrived: float) -> Kept | None:
    asked, answered = _unpacked(question), _answer(answer)
    if asked is None or answered is None:
        return None
    return Kept(question=Question.of_json(asked), answer=answered, arrived=arrived)


def _answer(blob: bytes) -> Completion | None:
    data = _unpacked(blob)
    try:
        return None if data is None else answer_of_json(data)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _packed(data: Any) -> bytes:
    squeezed = zlib.compress(json.dumps(data, separators=(",", ":"), default=dict).encode("ascii"), level=1)
    return squeezed + zlib.crc32(squeezed).to_bytes(_CHECKSUM, "big")


def _unpacked(blob: Any) -> Any:
    """What was packed, or None where a byte of it has changed."""
    if not isinstance(blob, bytes) or len(blob) < _CHECKSUM:
        return None
    squeezed, seal = blob[:-_CHECKSUM], blob[-_CHECKSUM:]
    whole = zlib.crc32(squeezed).to_bytes(_CHECKSUM, "big") == seal
    return json.loads(zlib.decompress(squeezed)) if whole else None
