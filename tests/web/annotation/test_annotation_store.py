"""The log of clicks: ids count once, undo is a click, and what was acknowledged survives kill -9."""

from __future__ import annotations

import multiprocessing
import os
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
from metrist.web.annotation import store as store_module
from metrist.web.annotation.store import Click, ClickStore

FORK = multiprocessing.get_context("fork")


def click(number: int, prefix: str = "c", rater: str = "r1", value: int = 1) -> Click:
    return Click(id=f"{prefix}{number}", rater=rater, task="t1", kind="set", content={"name": "x", "value": value})


def test_a_click_that_is_sent_twice_counts_once(tmp_path: Path) -> None:
    with ClickStore(tmp_path / "log") as store:
        first = store.append(click(1))
        assert store.append(click(1)) == first
        store.append(click(2))
        assert [own.id for own in store.read()] == ["c1", "c2"]
        with raises_code(InputError, "invalid_value", "c1"):
            store.append(click(1, value=2))


def test_two_stores_on_one_file_see_each_others_clicks(tmp_path: Path) -> None:
    with ClickStore(tmp_path / "log") as one, ClickStore(tmp_path / "log") as other:
        one.append(click(1))
        other.append(click(2))
        assert [own.number for own in one.read(after=1)] == [2]


def test_undo_takes_back_one_click_of_the_rater_however_often_it_is_sent(tmp_path: Path) -> None:
    with ClickStore(tmp_path / "log") as store:
        for own in (click(1), click(2), click(3, rater="r2")):
            store.append(own)
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
        store.append(click(1))
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("UPDATE clicks SET content = replace(content, '1', '2')")
        raw.commit()
    with ClickStore(path) as store, raises_code(RunError, "damaged", "click 1"):
        store.read()


# ---- Clicks that are lost


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fill(path: Path, clicks: int, moment: str, prefix: str = "c") -> None:
    """Store this many clicks, and one more that is killed at this moment."""
    store = ClickStore(path)
    for number in range(clicks):
        store.append(click(number, prefix))
    match moment:
        case "before the commit":
            ClickStore._insert = die  # type: ignore[assignment]
        case "after the commit":
            ClickStore._raise_count = die  # type: ignore[method-assign]
        case "before the count is written":
            store_module.lock = die  # type: ignore[assignment]
        case "after the count is written":
            os.fsync = die
    store.append(click(clicks, prefix))


MOMENTS = {
    "before the commit": False,
    "after the commit": True,
    "before the count is written": True,
    "after the count is written": True,
}


@pytest.mark.parametrize(("moment", "stored"), MOMENTS.items())
@pytest.mark.parametrize("clicks", [0, 3])
def test_a_log_is_whole_whenever_its_process_is_killed(tmp_path: Path, moment: str, stored: bool, clicks: int) -> None:
    process = FORK.Process(target=fill, args=(tmp_path / "log", clicks, moment))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    # What was acknowledged is missed before anybody has opened the log again ...
    lose(tmp_path, clicks)
    # ... and so is the last click, once it was sent again.
    with ClickStore(tmp_path / "log") as store:
        assert len(store.read()) == clicks + stored
        assert store.append(click(clicks)).number == clicks + 1
    lose(tmp_path, clicks + 1)


def lose(folder: Path, acknowledged: int) -> None:
    """Check that a log whose clicks are gone is refused, and put it back."""
    kept = {path: path.read_bytes() for path in folder.iterdir()}
    for path in kept:
        if path.suffix != ".count":
            path.unlink()
    if acknowledged:
        with raises_code(RunError, "damaged", "log.count"):
            ClickStore(folder / "log")
        assert acknowledged <= int((folder / "log.count").read_text()) <= acknowledged + 1
    for path, content in kept.items():
        path.write_bytes(content)


def test_a_log_that_lost_clicks_is_refused_until_its_count_is_deleted(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with ClickStore(path) as store:
        store.append(click(1))
    older = path.read_bytes()
    with ClickStore(path) as store:
        store.append(click(2))
        store.append(click(3))
    whole = path.read_bytes()
    for content in (None, b"", older, _without(tmp_path, whole, 1), _without(tmp_path, whole, 1, 2, 3)):
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
        with raises_code(RunError, "damaged", path, "3 clicks"):
            ClickStore(path)
    (tmp_path / "log.count").unlink()
    for number in (4, 5):
        with ClickStore(path) as store:
            store.append(click(number))
    (tmp_path / "log.count").write_bytes(b"many")
    with raises_code(RunError, "unreadable", path):
        ClickStore(path)
    (tmp_path / "log.count").write_bytes(b"\0" * 20)  # As a power cut leaves a new file.
    with ClickStore(path) as store:
        assert [own.id for own in store.read()] == ["c4", "c5"]


def _without(folder: Path, content: bytes, *numbers: int) -> bytes:
    """The log without some clicks, as somebody's SQLite deletes them."""
    copy = folder / "copy"
    copy.write_bytes(content)
    with closing(sqlite3.connect(copy)) as raw:
        raw.executemany("DELETE FROM clicks WHERE number = ?", [(number,) for number in numbers])
        raw.commit()
        raw.execute("PRAGMA journal_mode=DELETE")
    return copy.read_bytes()


def test_processes_that_share_a_log_count_all_clicks(tmp_path: Path) -> None:
    processes = [FORK.Process(target=fill, args=(tmp_path / "log", 20, "never", prefix)) for prefix in "abc"]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert int((tmp_path / "log.count").read_text()) == 63
