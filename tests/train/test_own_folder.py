"""Two processes never train in the same folder."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest
from toy_pairs import preference_request

from error_codes import raises_code
from forked_processes import exit_code, forked
from metrist.errors import RunError
from metrist.train.distributed import ProcessGroup
from metrist.train.fit import fit
from metrist.train.folder import LOCK, lock_folder
from metrist.train.preference import PreferenceTask
from metrist.train.task import NoCallback

FIRST = ProcessGroup(device="cpu")
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks a second training process")


def quick(out: Path, base: Path) -> PreferenceTask:
    return preference_request(out, base, recipe={"epochs": 1}, dev=())


def start_holder(folder: Path) -> int:
    """Start a process that locks the folder until it is killed."""

    def hold() -> None:
        with lock_folder(folder, FIRST):
            (folder / "training.json").touch()
            time.sleep(100)

    process = forked(hold)
    until = time.monotonic() + 50
    while not (folder / "training.json").exists() and time.monotonic() < until:
        time.sleep(0.001)
    return process


@needs_fork
def test_a_second_process_is_refused_until_the_first_one_is_dead(tmp_path: Path) -> None:
    process = start_holder(tmp_path)
    try:
        with (
            raises_code(RunError, "run_failed", tmp_path),
            lock_folder(tmp_path, FIRST),
        ):
            pass
    finally:
        os.kill(process, signal.SIGKILL)
    assert exit_code(process) == -signal.SIGKILL
    assert (tmp_path / LOCK).exists(), "a killed process cannot remove its lock"
    with lock_folder(tmp_path, FIRST):
        pass
    assert not (tmp_path / LOCK).exists()


def test_a_training_holds_its_folder_and_leaves_no_lock(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    task = quick(tmp_path / "out", tiny("bert"))
    with (
        lock_folder(task.out, FIRST),
        raises_code(RunError, "run_failed", task.out),
    ):
        fit(task)
    assert not list(task.out.iterdir()), "the refused training wrote something"

    class Second(NoCallback):
        """Starts the same training again while this one runs."""

        refused: RunError | None = None

        def on_progress(self, _progress: object) -> None:
            try:
                fit(task)
            except RunError as fault:
                self.refused = fault

    callback = Second()
    fit(task, callback)
    assert str(callback.refused).startswith(f"another process is training in {task.out}")
    assert not (task.out / LOCK).exists()
    with lock_folder(task.out, FIRST):
        fit(task)  # It is finished: nothing is written.


def test_a_stale_lock_in_an_empty_folder_is_ignored(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    task = quick(tmp_path / "out", tiny("bert"))
    task.out.mkdir()
    (task.out / LOCK).touch()
    fit(task)
    assert (task.out / "card.json").exists()


def test_only_the_first_process_of_a_group_locks(tmp_path: Path) -> None:
    class Second(ProcessGroup):
        def any(self, here: bool) -> bool:
            return here

    with lock_folder(tmp_path, FIRST), lock_folder(tmp_path, Second(device="cpu", rank=1, world=2)):
        assert (tmp_path / LOCK).exists()


def test_all_processes_of_a_group_learn_that_the_folder_is_locked(tmp_path: Path) -> None:
    class Second(ProcessGroup):
        def any(self, _here: bool) -> bool:
            return True  # The first process says so.

    with (
        raises_code(RunError, "run_failed"),
        lock_folder(tmp_path, Second(device="cpu", rank=1, world=2)),
    ):
        pass


def test_training_works_without_fcntl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with lock_folder(tmp_path / "new", FIRST):
        assert (tmp_path / "new").is_dir()
    assert not list((tmp_path / "new").iterdir())


def test_a_folder_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        raises_code(RunError, "cannot_write", "file/out"),
        lock_folder(tmp_path / "file" / "out", FIRST),
    ):
        pass


def test_the_file_of_a_lock_is_closed_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[IO[bytes]] = []

    def fail(file: IO[bytes]) -> bool:
        opened.append(file)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("metrist.train.folder.try_lock", fail)
    with raises_code(RunError, "cannot_write", "Input/output error"), lock_folder(tmp_path, FIRST):
        pass
    assert opened[0].closed


def test_a_folder_without_locks_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fcntl = pytest.importorskip("fcntl")

    def fail(*_: object) -> None:  # As some network drives do.
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", fail)
    with lock_folder(tmp_path, FIRST):
        assert (tmp_path / LOCK).exists()
