"""A training has its folder to itself: a second process in it would destroy the first one's checkpoints.

The lock is the operating system's, on a file of the folder. It ends with the process that holds it, however that ends,
so that a training which was killed leaves nothing in the way; the file itself says nothing.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from metrist.errors import RunError
from metrist.io.writer import atomic_write
from metrist.models.numpy_inference.export import translate_disk_errors
from metrist.train.distributed import ProcessGroup

LOCK = "training.lock"


@contextmanager
def lock_folder(path: Path, processes: ProcessGroup) -> Iterator[None]:
    """Hold the folder, which is made if need be. Of processes that train together the first one holds it for all."""
    with _held(path / LOCK, wanted=processes.is_first) as is_mine:
        if processes.any(not is_mine):
            raise RunError(f"another process is training in {path}; wait until it ends, or give another --out")
        yield


@contextmanager
def _held(path: Path, *, wanted: bool) -> Iterator[bool]:
    """Whether the lock on this file, if it is wanted at all, is held inside."""
    if not wanted:
        yield True
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = _locked(path)
    except OSError as fault:
        raise RunError(f"{path.parent}: cannot be written to: {fault.strerror}") from fault
    try:
        yield file is not None
    finally:
        if file is not None:
            with suppress(OSError):
                path.unlink()  # Before the lock ends: who opened the file in the meantime sees that it is gone.
            file.close()


def _locked(path: Path) -> IO[bytes] | None:
    """The file, locked; None where another process has the lock."""
    while True:
        file = path.open("ab")
        try:
            if not _lock(file):
                file.close()
                return None
            if _is_there(path, file):
                return file
        except BaseException:
            file.close()
            raise
        file.close()  # Its last holder removed it between opening and locking.


def _lock(file: IO[bytes]) -> bool:
    try:
        fcntl: Any = import_module("fcntl")
    except ImportError:
        return True  # Windows has no such locks; there, people take care themselves.
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # Some network file systems have no locks.
    return True


def _is_there(path: Path, file: IO[bytes]) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    return False


# The folder of one training: what was asked for, its checkpoints, and in the end the model with its card.
#
# DIR/training.json         what was asked for, written first
# DIR/training.lock         while a process trains here, see `metrist.train.folder`
# DIR/checkpoints/          see `metrist.train.checkpoints`
# DIR/config.json, …        the tokenizer and the model, moved in when training is done, the weights last
# DIR/card.md, card.json    written at the very end: a folder with a card is finished


_ASKED, _CARD, _PAGE, _PART = "training.json", "card.json", "card.md", ".model.part"
Settings = Mapping[str, Any]


class TrainingFolder:
    """A new folder, or one that an earlier run of the same training left."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"

    @property
    def is_begun(self) -> bool:
        return (self.path / _ASKED).is_file()

    def check(self, asked: Settings) -> None:
        """Refuse a folder that holds something else, or a training with other settings; nothing is written."""
        if self.is_begun:
            differing = _differing(self._asked(), asked)
            if differing:
                raise RunError(
                    f"{self.path} holds a training with other settings: {'; '.join(differing)}. "
                    "Give the same settings to go on with it, or another --out"
                )
        elif self.path.exists() and not self._is_empty():
            raise RunError(f"{self.path} exists and holds no training; give a new or an empty folder as --out")

    def begin(self, asked: Settings) -> None:
        """Note what was asked for."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as fault:
            raise RunError(f"{self.path}: cannot be made: {fault.strerror}") from fault
        if not self.is_begun:
            with atomic_write(self.path / _ASKED) as file:
                file.write(json.dumps(asked, indent=2) + "\n")

    def card(self) -> dict[str, Any] | None:
        """The card of a finished training; None for one that is not."""
        path = self.path / _CARD
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None

    def put_model(self, write: Callable[[Path], None]) -> None:
        """Move in what `write` writes into a folder. Weights come last, so that no one takes half a model for one."""
        part = self.path / _PART
        shutil.rmtree(part, ignore_errors=True)
        try:
            part.mkdir()
            with translate_disk_errors():
                write(part)
            self._settle(part)
            for path in sorted(part.iterdir(), key=_weights_last):
                os.replace(path, self.path / path.name)
            part.rmdir()
        except OSError as fault:
            shutil.rmtree(part, ignore_errors=True)  # A disk that is full needs the space.
            raise RunError(f"{self.path}: the model cannot be written: {fault.strerror or fault}") from fault

    def put_card(self, card: Mapping[str, Any], page: str) -> None:
        with atomic_write(self.path / _PAGE) as file:
            file.write(page)
        with atomic_write(self.path / _CARD) as file:
            file.write(json.dumps(card, indent=2, ensure_ascii=False) + "\n")

    def _settle(self, part: Path) -> None:
        """Bring the files to the disk, readable for whoever can read the rest of the folder."""
        mode = (self.path / _ASKED).stat().st_mode
        for path in part.rglob("*"):
            if path.is_file():
                path.chmod(mode)  # safetensors makes files that only their owner can read.
                with path.open("rb+") as file:
                    os.fsync(file.fileno())

    def _is_empty(self) -> bool:
        # The lock alone was left by a process that was killed before it wrote anything.
        return self.path.is_dir() and all(found.name == LOCK for found in self.path.iterdir())

    def _asked(self) -> dict[str, Any]:
        try:
            return dict(json.loads((self.path / _ASKED).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as fault:
            raise RunError(f"{self.path / _ASKED} cannot be read ({fault}); give another --out") from fault


def _weights_last(path: Path) -> tuple[bool, bool]:
    """And the index of weights in several files after those."""
    return ".safetensors" in path.name, path.suffix == ".json"


def _differing(there: Settings, here: Settings) -> list[str]:
    names = [*there, *(name for name in here if name not in there)]
    pairs = [(name, there.get(name), here.get(name)) for name in names]
    return [f"{name} is {_said(old)} there, {_said(new)} here" for name, old, new in pairs if old != new]


def _said(value: Any) -> str:
    return "not set" if value is None else str(value)
