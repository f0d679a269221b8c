"""HEAP's pairs, and their honest split, which take a while."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from metrist.data.pairs import GoodBad, read_good_bad
from metrist.data.splits import DEFAULT_SHARES, assign_sides
from metrist.data.text_overlap import SplitUnit


@pytest.fixture(scope="session")
def published_pairs(data: Callable[[str], Path]) -> list[GoodBad]:
    """The authors' pairs as they were published."""
    return read_good_bad(data("heap-pairs"))


@pytest.fixture(scope="session")
def honest_sides(published_pairs: list[GoodBad]) -> list[str | None]:
    """As the HEAP study splits them, which does not look for texts inside others."""
    return assign_sides([SplitUnit.from_pair(pair) for pair in published_pairs], DEFAULT_SHARES, inside=0)
