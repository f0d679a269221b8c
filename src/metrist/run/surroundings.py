"""Where models run and what they keep, for the time of one call. Nothing of it changes a score."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from metrist.errors import RunError
from metrist.models.options import BATCH_TOKENS, CACHE, DEVICE


@contextmanager
def surroundings(
    *,
    device: str | None = None,
    batch_tokens: int | None = None,
    cache: str | os.PathLike[str] | None = None,
) -> Iterator[None]:
    """Set the environment variables that models look at, for this process and the workers that it starts, and put them
    back in the end. None leaves one as it is.

    The environment belongs to the whole process: an inner block wins over an outer one, and two threads that ask for
    different things at once disturb each other. Give them processes of their own.
    """
    wanted: dict[str, str] = {}
    if device is not None:
        wanted[DEVICE] = device
    if batch_tokens is not None:
        wanted[BATCH_TOKENS] = str(_checked(batch_tokens))
    if cache is not None:
        wanted[CACHE] = str(_folder(cache))
    before = {name: os.environ.get(name) for name in wanted}
    _put(wanted)
    try:
        yield
    finally:
        _put(before)


def _checked(batch_tokens: int) -> int:
    if batch_tokens < 1:
        raise RunError(f"batch_tokens must be at least 1, got {batch_tokens}")
    return batch_tokens


def _folder(cache: str | os.PathLike[str]) -> Path:
    path = Path(cache)
    if path.exists() and not path.is_dir():
        raise RunError(f"cannot keep what models computed in {path}: it is a file, wanted a folder")
    # Workers, and whoever changes the folder in between, must find the same place.
    return path.absolute()


def _put(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
