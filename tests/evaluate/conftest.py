"""Shared fixtures of the tests of evaluations."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from metrist.evaluate.meta import thresholds


@pytest.fixture(scope="module", autouse=True)
def _few_threshold_draws(request: pytest.FixtureRequest) -> Iterator[None]:
    """How far chosen tie thresholds flatter a metric is estimated from 10 resamples instead of 100, which take half of
    the time of a meta-evaluation. The tests of thresholds use all."""
    with pytest.MonkeyPatch.context() as patch:
        if request.module.__name__ != "test_meta_ties":
            patch.setattr(thresholds, "_DRAWS", 10)
        yield
