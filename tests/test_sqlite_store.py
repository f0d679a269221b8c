"""A file that may not be written can still be read."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from metrist.errors import ModelError
from metrist.llm import gateway
from metrist.llm.cache import FILE_NAME, AnswerCache, open_cache
from metrist.llm.messages import Sampling
from metrist.sqlite_store import SqliteStore
from scripted_llm import Scripted, say


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


def test_a_file_with_a_journal_is_not_read_as_if_nobody_changed_it(
    unwritable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways: list[str] = []
    connect = sqlite3.connect

    def unopenable(address: object, **more: object) -> sqlite3.Connection:
        if more.get("uri"):
            ways.append(str(address).partition("?")[2])
            return connect(":memory:")
        return connect(str(address), isolation_level=None, check_same_thread=False)

    def closed(_: sqlite3.Connection) -> None:
        raise sqlite3.OperationalError("unable to open database file")

    cache = AnswerCache(unwritable)
    monkeypatch.setattr("metrist.sqlite_store.sqlite3.connect", unopenable)
    for journal, tried in ((b"", ["mode=ro", "mode=ro&immutable=1"]), (b"not empty", ["mode=ro"])):
        Path(f"{cache.path}-wal").write_bytes(journal)
        ways.clear()
        with monkeypatch.context() as patched:
            patched.setattr(SqliteStore, "_prepare", _refuse)
            patched.setattr("metrist.sqlite_store._check_ours", closed)
            with pytest.raises(ModelError, match="attempt to write a readonly database"):
                cache.contents()
        assert ways == tried


def _refuse(_: SqliteStore, connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA query_only = 1")
    connection.execute("CREATE TABLE refused (a)")


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
    parser = gateway.AnswerParser("1.0", lambda *_: False)
    assert gateway.complete(llm, say("two"), Sampling(), parser=parser) == answers
    assert AnswerCache(unwritable).contents().unreadable == {}
