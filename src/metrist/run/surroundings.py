"""Where models run, what they keep and what they may cost, for the time of one call. Nothing of it changes a score."""

from __future__ import annotations

import math
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from metrist.errors import RunError
from metrist.models.devices import CACHE, DEVICE
from metrist.runtime import VARIABLES

_VARIABLES = {name: VARIABLES[name] for name in ("batch_tokens", "concurrency", "rpm", "tpm")}
MAX_COST, RUN = VARIABLES["max_cost"], VARIABLES["run_id"]


@contextmanager
def surroundings(
    *,
    device: str | None = None,
    batch_tokens: int | None = None,
    cache: str | os.PathLike[str] | None = None,
    max_cost: float | None = None,
    concurrency: int | None = None,
    rpm: int | None = None,
    tpm: int | None = None,
) -> Iterator[None]:
    """Set the environment variables that models look at, for this process and the workers that it starts, and put them
    back in the end. None leaves one as it is.

    The environment belongs to the whole process: an inner block wins over an outer one, and two threads that ask for
    different things at once disturb each other. Give them processes of their own.
    """
    wanted: dict[str, str] = {}
    if device is not None:
        wanted[DEVICE] = device
    if cache is not None:
        wanted[CACHE] = str(_folder(cache))
    if max_cost is not None:
        wanted[MAX_COST] = repr(_amount(max_cost))
    whole = {"batch_tokens": batch_tokens, "concurrency": concurrency, "rpm": rpm, "tpm": tpm}
    wanted |= {_VARIABLES[name]: str(_checked(name, value)) for name, value in whole.items() if value is not None}
    if max_cost is not None or RUN not in os.environ:
        # What all processes of one call spend is counted together, and apart from what others spend.
        wanted[RUN] = uuid.uuid4().hex
    before = {name: os.environ.get(name) for name in wanted}
    _put(wanted)
    try:
        yield
    finally:
        _put(before)


def _checked(name: str, value: int) -> int:
    if value < 1:
        raise RunError(f"{name} must be at least 1, got {value}")
    return value


def _amount(max_cost: float) -> float:
    if not 0 <= max_cost < math.inf:
        raise RunError(f"max_cost must be an amount in US dollars such as 2.50, got {max_cost!r}")
    return float(max_cost)


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
