"""Metrics as users write them: in a module of their own, found through sys.path."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PREAMBLE = """
import os, time
from dataclasses import dataclass
import numpy as np
from metrist import Metric, Score, Scores
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """`module(source)`: an imported module with that source, which workers can import too."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def made(source: str) -> ModuleType:
        (tmp_path / "own_metrics.py").write_text(PREAMBLE + source)
        importlib.invalidate_caches()
        return importlib.import_module("own_metrics")

    yield made
    sys.modules.pop("own_metrics", None)


@pytest.fixture
def rows() -> list[dict[str, Any]]:
    """Three systems on twelve items; names that only ASCII escapes can carry are among them."""
    words = ["the", "cat", "sat", "on", "a", "mat", "and", "then", "it", "slept", "for", "hours"]
    return [
        {
            "item": f"i{n}\ud800\0" if n == 3 else f"i{n}",
            "system": system,
            "output": " ".join(words[n % 5 : n % 5 + size]),
            "references": [" ".join(words[: 3 + n % 4]), "a dog"],
        }
        for n in range(12)
        for size, system in enumerate(("first", "second", "th\u00efrd \udcff"), 3)
    ]
