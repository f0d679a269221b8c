"""What all tests share: the folder of real human judgments, which not every machine has."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("METRIST_TEST_DATA") or ROOT / ".." / "shared" / "data")

# Shared machines are slow at times: a deadline would fail tests for the neighbour's work.
settings.register_profile("metrist", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("metrist")


@pytest.fixture(scope="session")
def data() -> Callable[[str], Path]:
    """`data("summeval")`: the path of a data set, or a skip that says what is missing."""

    def path(name: str) -> Path:
        found = DATA / f"{name}.jsonl.xz"
        if not found.exists():
            pytest.skip(f"{found.name} is not in {DATA} (METRIST_TEST_DATA names the folder)")
        return found

    return path
