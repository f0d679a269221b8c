"""The tasks that outputs are made for, by whatever name a data set has for them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources


def task_named(name: str | None) -> str | None:
    """The task of that name, as metrist calls it; None where it is not known."""
    return _by_name().get(_plain((name or "").split("/")[0]))


@cache
def _by_name() -> Mapping[str, str]:
    file = resources.files("metrist.metrics") / "tasks.toml"
    known: Mapping[str, list[str]] = tomllib.loads(file.read_text(encoding="utf-8"))
    return {_plain(name): task for task, names in known.items() for name in (task, *names)}


def _plain(name: str) -> str:
    return name.strip().lower().replace("-", "_").replace(" ", "_")
