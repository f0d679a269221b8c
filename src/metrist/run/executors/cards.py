"""Which CUDA cards a run can share out, found without importing torch."""

from __future__ import annotations

import os
import re
import subprocess
from itertools import takewhile

from metrist.models.devices import device

VISIBLE = "CUDA_VISIBLE_DEVICES"
#: Seconds after which `nvidia-smi` is given up; a driver that hangs is no card to use.
_PATIENCE = 20


def cards() -> tuple[str, ...]:
    """The names under which CUDA knows the cards that models may spread over; none where a device is set that is one
    ('cpu', 'cuda:1'), or that spreads by itself ('map')."""
    if device() not in ("auto", "cuda"):
        return ()
    visible = os.environ.get(VISIBLE)
    return _listed() if visible is None else _named(visible)


def _named(visible: str) -> tuple[str, ...]:
    # CUDA itself sees the cards up to the first name that is none.
    names = (name.strip() for name in visible.split(","))
    return tuple(dict.fromkeys(takewhile(lambda name: name and not name.startswith("-"), names)))


def _listed() -> tuple[str, ...]:
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, timeout=_PATIENCE, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    # One line a card, 'GPU 0: …'; parts of a card are listed under it, further in.
    return tuple(str(n) for n, _ in enumerate(re.findall(rb"^GPU \d+:", listing, re.MULTILINE)))
