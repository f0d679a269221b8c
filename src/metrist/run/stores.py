"""The store of a path or of a URL."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from metrist.errors import MetristError
from metrist.io.remote import is_pattern, is_remote
from metrist.run.manifest import MANIFEST
from metrist.run.remote_store import RemoteStore
from metrist.run.store import Store, is_run_folder


def open_store(path: str | os.PathLike[str]) -> Store:
    if isinstance(path, str) and is_remote(path):
        return RemoteStore(path)
    return Store(Path(path))


def is_run(path: Any) -> bool:
    if isinstance(path, str) and is_remote(path):
        store = None if is_pattern(path) else open_store(path)
        try:
            return store is not None and store.read_bytes(MANIFEST) is not None
        except MetristError:  # Whoever reads the URL reports it.
            return False
    return isinstance(path, str | os.PathLike) and is_run_folder(Path(path))
