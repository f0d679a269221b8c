"""Two processes never train in one folder."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from toy_pairs import preference_request

from forked_processes import exit_code, forked
from metrist.errors import RunError
from metrist.train.distributed import ProcessGroup
from metrist.train.fit import fit
from metrist.train.folder import LOCK, lock_folder
from metrist.train.preference import PreferenceTask

FIRST = ProcessGroup(device="cpu")
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks a process to train beside")


def quick(out: Path, base: Path) -> PreferenceTask:
    return preference_request(out, base, recipe={"epochs": 1}, dev=())


def holder_of(folder: Path) -> int:
    """A process that holds the folder until it is killed."""

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
    process = holder_of(tmp_path)
    try:
        with (
            pytest.raises(RunError, match=f"another process is training in {tmp_path}; wait until it ends, or give"),
            lock_folder(tmp_path, FIRST),
        ):
            pass
    finally:
        os.kill(process, signal.SIGKILL)
    assert exit_code(process) == -signal.SIGKILL
    assert (tmp_path / LOCK).exists(), "a killed process cannot clear up"
    with lock_folder(tmp_path, FIRST):
        pass
    assert not (tmp_path / LOCK).exists()


def test_a_training_holds_its_folder_and_leaves_no_lock(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    asked = quick(tmp_path / "out", tiny("bert"))
    with (
        lock_folder(asked.out, FIRST),
        pytest.raises(RunError, match=f"another process is training in {asked.out}"),
    ):
        fit(asked)
    assert not list(asked.out.iterdir()), "the one that was refused wrote nothing"

    class Second:
        """Begins the same training again after the first evaluation of this one."""

        refused: RunError | None = None

        def on_progress(self, _progress: object) -> None:
            try:
                fit(asked)
            except RunError as fault:
                self.refused = fault

        def on_evaluation(self, _evaluation: object, _name: str) -> None:
            pass

        def on_message(self, _remark: str) -> None:
            pass

    callback = Second()
    fit(asked, callback)
    assert str(callback.refused).startswith(f"another process is training in {asked.out}")
    assert not (asked.out / LOCK).exists()
    with lock_folder(asked.out, FIRST):
        fit(asked)  # It is finished, and nothing is written.


def test_a_lock_that_was_left_before_anything_was_written_is_not_in_the_way(
    tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    asked = quick(tmp_path / "out", tiny("bert"))
    asked.out.mkdir()
    (asked.out / LOCK).touch()
    fit(asked)
    assert (asked.out / "card.json").exists()


def test_only_the_first_of_processes_that_train_together_holds_it(tmp_path: Path) -> None:
    class Second(ProcessGroup):
        def any(self, here: bool) -> bool:
            return here

    with lock_folder(tmp_path, FIRST), lock_folder(tmp_path, Second(device="cpu", rank=1, world=2)):
        assert (tmp_path / LOCK).exists()


def test_all_of_processes_that_train_together_hear_that_the_folder_is_taken(tmp_path: Path) -> None:
    class Second(ProcessGroup):
        def any(self, _here: bool) -> bool:
            return True  # The first process says so.

    with (
        pytest.raises(RunError, match="another process is training in"),
        lock_folder(tmp_path, Second(device="cpu", rank=1, world=2)),
    ):
        pass


def test_without_such_locks_training_goes_on_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with lock_folder(tmp_path / "new", FIRST):
        assert (tmp_path / "new").is_dir()
    assert not list((tmp_path / "new").iterdir())


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(RunError, match=r"file/out: cannot be written to: Not a directory"),
        lock_folder(tmp_path / "file" / "out", FIRST),
    ):
        pass
