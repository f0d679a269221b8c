"""A file that several processes share: what is damaged or foreign is set aside, and what may not be written is read."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from metrist.errors import ModelError
from metrist.llm import gateway
from metrist.llm.cache import FILE_NAME, AnswerCache, open_cache
from metrist.llm.messages import Sampling
from metrist.sqlite_store import SqliteStore, add_checksum, strip_checksum
from scripted_llm import Scripted, say

TABLE = "CREATE TABLE IF NOT EXISTS entries (key BLOB PRIMARY KEY, value BLOB NOT NULL)"
ENTRIES = [(bytes([n // 256, n % 256]), b"x" * 2000) for n in range(1200)]


def insert(store: SqliteStore) -> None:
    store.write(lambda connection: connection.executemany("INSERT INTO entries VALUES (?, ?)", ENTRIES))


def find(store: SqliteStore) -> list[tuple[Any, ...]]:
    """All entries, more than one query takes."""
    return sorted(store.find("SELECT key, value FROM entries WHERE key IN", [key for key, _ in ENTRIES]))


@pytest.mark.parametrize("damage", [b"no data base at all" * 100, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_damaged_file_is_set_aside(tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_bytes(damage)
    store = SqliteStore(tmp_path / "file", tables=(TABLE,))
    insert(store)
    assert find(store) == ENTRIES
    assert (tmp_path / "file.set-aside-1").read_bytes() == damage
    (message,) = caplog.messages
    assert "file.set-aside-1" in message


def test_a_file_that_is_damaged_while_it_is_used_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = SqliteStore(tmp_path / "file", tables=(TABLE,))
    insert(store)
    store.close()
    assert os.listdir(tmp_path) == ["file"]
    with open(tmp_path / "file", "r+b") as file:
        file.seek(4096)
        file.write(b"\xee" * 4096 * 40)
    assert len(find(store)) < len(ENTRIES)
    insert(store)
    assert find(store) == ENTRIES
    assert "set aside" in caplog.text


def test_another_program_s_data_base_is_set_aside_untouched(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with closing(sqlite3.connect(tmp_path / "file")) as theirs:
        theirs.execute("CREATE TABLE entries (thesis TEXT)")
    before = (tmp_path / "file").read_bytes()
    insert(SqliteStore(tmp_path / "file", tables=(TABLE,)))
    assert (tmp_path / "file.set-aside-1").read_bytes() == before
    assert "another program" in caplog.text


def test_what_fails_in_a_transaction_leaves_nothing(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "file", tables=(TABLE,))
    insert(store)
    with pytest.raises(sqlite3.IntegrityError):
        store.write(
            lambda connection: connection.executemany("INSERT INTO entries VALUES (?, ?)", [(b"k", b""), ENTRIES[0]])
        )
    assert store.read(lambda connection: connection.execute("SELECT count(*) FROM entries").fetchone()) == (1200,)


def test_a_value_whose_byte_has_changed_is_none() -> None:
    stored = add_checksum(b"value")
    assert strip_checksum(stored) == b"value"
    assert [strip_checksum(other) for other in (stored[:-1], b"V" + stored[1:], b"", None, "value")] == [None] * 5


@pytest.fixture
def unwritable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a cache with two answers, of which SQLite says what it says of a file that may not be written."""
    monkeypatch.setenv("METRIST_LLM_CACHE", str(tmp_path))
    gateway.complete(Scripted(), say("one", "two"), Sampling())
    prepare = SqliteStore._prepare

    def forbidden(self: SqliteStore, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA query_only = 1")
        prepare(self, connection)

    monkeypatch.setattr(SqliteStore, "_prepare", forbidden)
    return tmp_path


def test_answers_are_counted_and_read_where_nothing_may_be_written(unwritable: Path) -> None:
    cache = AnswerCache(unwritable)
    assert cache.contents().answers == {"scripted": 2}
    assert [entry.completion.text for entry in cache.entries()] == ["ONE", "TWO"]
    cache.close()


def test_what_would_change_such_a_file_says_what_is_wrong(unwritable: Path) -> None:
    cache = AnswerCache(unwritable)
    message = r"answers in .*sqlite: attempt to write a readonly database"
    with pytest.raises(ModelError, match=message):
        cache.clear()
    with pytest.raises(ModelError, match=r"\(attempt to write a readonly database\)"):
        cache.check_writable()
    cache.close()


def test_a_run_whose_answers_are_all_there_needs_no_more(unwritable: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METRIST_LLM_CACHE", str(unwritable / "."))
    assert [answer.text for answer in gateway.complete(Scripted(), say("two"), Sampling())] == ["TWO"]


def test_a_file_of_an_earlier_version_is_read_where_no_table_can_be_added(
    unwritable: Path,
) -> None:
    with closing(sqlite3.connect(unwritable / FILE_NAME)) as connection, connection:
        connection.execute("DROP TABLE unreadable")
    open_cache().close()
    llm = Scripted()
    answers = gateway.complete(llm, say("two"), Sampling())
    assert [answer.text for answer in answers] == ["TWO"]
    # That it cannot be read cannot be noted, which is no fault of the run.
    parser = gateway.AnswerParser(lambda *_: False)
    assert gateway.complete(llm, say("two"), Sampling(), parser=parser) == answers
    assert AnswerCache(unwritable).contents().unreadable == {}
