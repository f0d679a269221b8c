"""Metrics as users write them: in a module of their own, found through sys.path."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

PREAMBLE = """
import os, signal, time
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
