"""The folder of a training, and the lock that reserves it for one process.

    DIR/training.json         the settings, written first
    DIR/training.lock         exists while a process trains here
    DIR/checkpoints/          see `metrist.train.checkpoints`
    DIR/config.json, …        tokenizer and model, moved in when training is done, weights last
    DIR/card.md, card.json    written at the very end: a folder with a card is finished
    DIR/card-base.md, NOTICE  the base's card and notices, if the base is in metrist's own format

A second process in the folder would destroy the first one's checkpoints. The lock is an operating-system lock on a
file; it ends with its process, so a killed training blocks nothing.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import IO, Any

from metrist.errors import RunError
from metrist.io.locks import is_at, try_lock
from metrist.io.writer import atomic_write
from metrist.models.numpy_inference import storage
from metrist.models.numpy_inference.export import translate_disk_errors
from metrist.train.distributed import ProcessGroup

LOCK = "training.lock"
_SETTINGS, _CARD, _PAGE, _PART = "training.json", "card.json", "card.md", ".model.part"
#: The card of the base, and of the base's base after it.
BASE_CARD = "card-base.md"
#: In the card of a model whose base has licences of its own.
INHERITED_LICENCE = "that of the base (NOTICE, LICENSE, card-base.md), and that of the training data"
_NOTICES = ("NOTICE", "LICENSE", "LICENCE", "ATTRIBUTION")
Settings = Mapping[str, Any]


class TrainingFolder:
    """A new folder, or one that an earlier run of the same training began."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"

    @property
    def is_begun(self) -> bool:
        return (self.path / _SETTINGS).is_file()

    def check(self, settings: Settings) -> None:
        """Raise an error if the folder holds other files or a training with other settings; write nothing."""
        if self.is_begun:
            try:
                stored = dict(json.loads((self.path / _SETTINGS).read_text(encoding="utf-8")))
            except (OSError, ValueError, TypeError) as fault:
                raise RunError(
                    f"{self.path / _SETTINGS} cannot be read ({fault}); give another `out`", code="unreadable"
                ) from fault
            differences = []
            for name in dict.fromkeys([*stored, *settings]):
                old, new = ("not set" if own.get(name) is None else str(own[name]) for own in (stored, settings))
                if stored.get(name) != settings.get(name):
                    differences.append(f"{name} is {old} there, {new} here")
            if differences:
                raise RunError(
                    f"{self.path} holds a training with other settings: {'; '.join(differences)}. "
                    "Give the same settings to resume it, or another `out`"
                )
        # A process killed before it wrote anything leaves only the lock.
        elif self.path.is_file() or (self.path.exists() and any(path.name != LOCK for path in self.path.iterdir())):
            raise RunError(
                f"{self.path} exists and holds no training; give a new or an empty folder as `out`", code="cannot_write"
            )

    def begin(self, settings: Settings) -> None:
        """Create the folder and store the settings in it."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as fault:
            raise RunError(f"{self.path}: cannot be created: {fault.strerror}", code="cannot_write") from fault
        if not self.is_begun:
            with atomic_write(self.path / _SETTINGS) as file:
                file.write(json.dumps(settings, indent=2) + "\n")

    def card(self) -> dict[str, Any] | None:
        """Return the card of a finished training; None for an unfinished one."""
        path = self.path / _CARD
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None

    def put_model(self, write: Callable[[Path], None], base: Path | None = None) -> None:
        """Let `write` fill a temporary folder, then move its files here, weights last: a folder with weights is
        complete. What the base says about itself comes along."""
        part = self.path / _PART
        shutil.rmtree(part, ignore_errors=True)
        try:
            part.mkdir()
            with translate_disk_errors():
                write(part)
            if base is not None:
                _copy_notices(base, part)
            # Flushed to disk, with the same permissions as the rest of the folder.
            mode = (self.path / _SETTINGS).stat().st_mode
            for path in part.rglob("*"):
                if path.is_file():
                    path.chmod(mode)  # safetensors creates files that only their owner can read.
                    with path.open("rb+") as file:
                        os.fsync(file.fileno())
            for path in sorted(part.iterdir(), key=_weights_last):
                os.replace(path, self.path / path.name)
            part.rmdir()
        except OSError as fault:
            shutil.rmtree(part, ignore_errors=True)  # A full disk needs the space.
            raise RunError(
                f"{self.path}: the model cannot be written: {fault.strerror or fault}", code="cannot_write"
            ) from fault

    def put_exported(self, base: Path, save: Callable[[Path], None], export: Callable[[Path, Path], object]) -> None:
        """Put a model in metrist's own format: `save` writes it as transformers does, and `export` reads that folder
        and writes another. The base's tokenizer, card and notices come along."""

        def write(part: Path) -> None:
            trained = part / "transformers"
            trained.mkdir()
            save(trained)
            # transformers may write the same tokenizer differently.
            shutil.copyfile(base / storage.TOKENIZER, trained / storage.TOKENIZER)
            export(trained, part)
            shutil.rmtree(trained)

        self.put_model(write, base)

    def put_card(self, card: Mapping[str, Any], page: str) -> None:
        with atomic_write(self.path / _PAGE) as file:
            file.write(page)
        with atomic_write(self.path / _CARD) as file:
            file.write(json.dumps(card, indent=2, ensure_ascii=False) + "\n")


def _copy_notices(base: Path, target: Path) -> None:
    """Copy what the base says about itself, and its licences. Those of shipped models are in their distribution."""
    cards = [base / name for name in (_PAGE, BASE_CARD) if (base / name).is_file()]
    if cards:
        text = "\n\n".join(card.read_text(encoding="utf-8").strip() for card in cards)
        (target / BASE_CARD).write_text(text + "\n", encoding="utf-8")
    notices = [path for path in base.iterdir() if path.name.upper().startswith(_NOTICES) and path.is_file()]
    if distribution := storage.find_distribution(base):
        with suppress(metadata.PackageNotFoundError):
            files = metadata.files(distribution) or []
            notices += [Path(str(file.locate())) for file in files if file.name in _NOTICES]
    for path in notices:
        if path.is_file():
            shutil.copyfile(path, target / path.name)


def _weights_last(path: Path) -> tuple[bool, bool]:
    """Sort weights after other files, and the index of sharded weights after its shards."""
    return ".safetensors" in path.name, path.suffix == ".json"


# ---- The lock


@contextmanager
def lock_folder(path: Path, processes: ProcessGroup) -> Iterator[None]:
    """Create the folder if necessary and lock it. The first process of a group holds the lock for all of them."""
    file = _open_locked(path / LOCK) if processes.is_first else None
    try:
        if processes.any(processes.is_first and file is None):
            raise RunError(f"another process is training in {path}; wait until it ends, or give another `out`")
        yield
    finally:
        if file is not None:
            with suppress(OSError):
                (path / LOCK).unlink()  # While still locked: a process that opened it meanwhile sees that it is gone.
            file.close()


def _open_locked(path: Path) -> IO[bytes] | None:
    """Return the locked file, or None if another process has the lock."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            file = path.open("ab")
            try:
                if try_lock(file) is False:
                    file.close()
                    return None
                if is_at(file, path):
                    return file
            except BaseException:
                file.close()
                raise
            file.close()  # The previous holder removed the file after we opened it: try again.
    except OSError as fault:
        raise RunError(f"{path.parent}: cannot be written to: {fault.strerror}", code="cannot_write") from fault
