"""The log of clicks: ids count once, undo is a click, and what was acknowledged survives kill -9."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from error_codes import raises_code
from metrist.errors import InputError, RunError
from metrist.web.annotation.store import Click, ClickStore


def click(number: int, rater: str = "r1", **content: Any) -> Click:
    return Click(id=f"c{number}", rater=rater, task="t1", kind="set", content=content or {"name": "x", "value": 1})


def test_a_click_that_is_sent_twice_counts_once(tmp_path: Path) -> None:
    with ClickStore(tmp_path / "log") as store:
        first = store.append(click(1))
        assert store.append(click(1)) == first
        store.append(click(2))
        assert [own.id for own in store.read()] == ["c1", "c2"]
        with raises_code(InputError, "invalid_value", "c1"):
            store.append(click(1, name="x", value=2))


def test_two_stores_on_one_file_see_each_others_clicks(tmp_path: Path) -> None:
    with ClickStore(tmp_path / "log") as one, ClickStore(tmp_path / "log") as other:
        one.append(click(1))
        other.append(click(2))
        assert [own.number for own in one.read(after=1)] == [2]


def test_undo_takes_back_one_click_of_the_rater_however_often_it_is_sent(tmp_path: Path) -> None:
    with ClickStore(tmp_path / "log") as store:
        store.append(click(1))
        store.append(click(2))
        store.append(click(3, rater="r2"))
        for _ in range(2):
            undo = store.undo("u1", "r1")
            assert undo is not None
            assert undo.content == {"target": "c2"}
        second = store.undo("u2", "r1")
        assert second is not None
        assert second.content == {"target": "c1"}
        assert store.undo("u3", "r1") is None
        assert len(store.read()) == 5


@pytest.mark.parametrize("wrong", ["", "x" * 65, "a b", "\ud800", "é"])
def test_a_strange_id_is_refused(tmp_path: Path, wrong: str) -> None:
    with ClickStore(tmp_path / "log") as store:
        with raises_code(InputError, "invalid_value"):
            store.append(Click(id=wrong, rater="r", task="t", kind="set", content={}))
        with raises_code(InputError, "invalid_value"):
            store.undo(wrong, "r")


def test_texts_that_utf8_cannot_encode_are_kept(tmp_path: Path) -> None:
    with ClickStore(tmp_path / "log") as store:
        store.append(Click(id="c", rater="r", task="t", kind="note", content={"text": "\ud800\0\u202e"}))
        assert store.read()[0].content == {"text": "\ud800\0\u202e"}


def test_a_file_that_is_no_log_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"no database" * 1000)
    with raises_code(RunError, "unreadable", tmp_path):
        ClickStore(tmp_path / "log")


def test_a_file_that_was_deleted_or_replaced_takes_no_clicks(tmp_path: Path) -> None:
    with ClickStore(tmp_path / "log") as store:
        (tmp_path / "log").rename(tmp_path / "old")
        with raises_code(RunError, "cannot_write", tmp_path):
            store.append(click(1))
        (tmp_path / "log").touch()
        with raises_code(RunError, "cannot_write", tmp_path):
            store.append(click(1))
        (tmp_path / "old").rename(tmp_path / "log")
        assert store.append(click(1)).number == 1


def test_acknowledged_clicks_survive_kill_9(tmp_path: Path, popen: Callable[..., subprocess.Popen[Any]]) -> None:
    program = textwrap.dedent("""
        import sys
        from metrist.web.annotation.store import Click, ClickStore
        store = ClickStore(sys.argv[1])
        for number in range(10**6):
            store.append(Click(id=f"c{number}", rater="r", task="t", kind="set", content={"value": number}))
            print(number, flush=True)
    """)
    process = popen([sys.executable, "-c", program, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for _ in range(20):
        process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    acknowledged = 20 + len(process.communicate()[0].splitlines())
    with ClickStore(tmp_path / "log") as store:
        numbers = [own.content["value"] for own in store.read()]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) >= acknowledged - 1  # The last line may have been cut off.


def test_a_changed_click_is_found(tmp_path: Path) -> None:
    path = tmp_path / "clicks.sqlite"
    with ClickStore(path) as store:
        store.append(Click(id="a", rater="r", task="t", kind="set", content={"value": 1}))
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("UPDATE clicks SET content = replace(content, '1', '2')")
        raw.commit()
    with ClickStore(path) as store, raises_code(RunError, "damaged", "click 1"):
        store.read()
