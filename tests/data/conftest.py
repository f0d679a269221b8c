"""HEAP's pairs, which take a second to read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from metrist.data.pairs import GoodBad, read_good_bad


@pytest.fixture(scope="session")
def published_pairs(data: Callable[[str], Path]) -> list[GoodBad]:
    """The authors' pairs as they were published."""
    return read_good_bad(data("heap-pairs"))
