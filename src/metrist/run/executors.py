"""Which CUDA cards a run can share out, found without importing torch."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

from metrist.errors import RunError, did_you_mean
from metrist.metrics.base import Metric
from metrist.models.devices import device
from metrist.run.tasks import Done as Done
from metrist.run.tasks import Executor, Serial
from metrist.run.tasks import Outcome as Outcome
from metrist.run.tasks import Task as Task
from metrist.run.worker_pool import VISIBLE, Processes, cores

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


# Which executor a run gets when it is named by a word, or not at all.


def choose(executor: str | Executor | None, metrics: Sequence[Metric]) -> tuple[Executor, list[str]]:
    """The executor, and notes for the user. By default all cores, or one process per card where a metric holds a model;
    metrics that cannot leave this process stay in it."""
    holds_model = any(metric.resident for metric in metrics)
    chosen = _beside_models(executor) if holds_model else _named_choice(executor)
    if isinstance(chosen, Processes):
        stuck = [metric.text for metric in metrics if not _travels(metric)]
        if stuck:
            return Serial(), [
                f"{', '.join(stuck)} cannot travel to worker processes and was scored in this one: define it in a "
                "module that can be imported to use all cores"
            ]
    return chosen, []


def _beside_models(executor: str | Executor | None) -> Executor:
    """Without cards to share out a model stays in this process: its library uses all cores by itself, and a second one
    would only take memory. Lexical metrics of the same run go along: beside a model they take next to no time."""
    chosen = _named_choice(executor)
    if not isinstance(chosen, Processes) or chosen.cards:
        return chosen
    found = cards()
    if executor is None or executor == "processes":
        return Processes(workers=len(found), cards=found) if len(found) > 1 else Serial()
    return replace(chosen, cards=found)


def _named_choice(executor: str | Executor | None) -> Executor:
    if executor is None:
        return Processes() if cores() > 1 and sys.executable else Serial()
    if isinstance(executor, str):
        known: dict[str, Executor] = {"serial": Serial(), "processes": Processes()}
        if executor not in known:
            hint = did_you_mean(executor, known)
            raise RunError(f"no executor named {executor!r}: wanted 'serial', 'processes' or an object{hint}")
        return known[executor]
    if not hasattr(executor, "map"):
        raise RunError(f"an executor needs a method map(metrics, tasks), {type(executor).__name__} has none")
    return executor


def _travels(metric: Metric) -> bool:
    # What the main program defines is pickled by name, and that name means the worker's own program over there.
    try:
        return b"__main__" not in pickle.dumps(metric)
    except Exception:
        return False
