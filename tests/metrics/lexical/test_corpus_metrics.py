"""What holds alike for the metrics whose system score is not a mean: bleu, chrf and ter."""

from __future__ import annotations

import numpy as np
import pytest
from peer_sacrebleu import record

from metrist.errors import NeedsError
from metrist.metrics.base import Shard
from metrist.metrics.registry import build

NAMES = ("bleu", "chrf", "ter")
TEXTS = [f"{name}(reduce='{reduce}')" for name in NAMES for reduce in ("native", "max", "mean")]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_scored_pools_to_nan_but_empty_texts_to_zero(name: str) -> None:
    metric = build(name)
    empty = metric.score(Shard([record("", "")])).stats
    assert metric.pool(empty).tolist() == [0.0]
    assert np.isnan(metric.pool(0 * empty)).all()


@pytest.mark.parametrize("text", TEXTS)
def test_an_empty_shard_gives_no_scores(text: str) -> None:
    assert len(build(text).score(Shard([]))) == 0


@pytest.mark.parametrize("text", TEXTS)
def test_a_record_without_references_is_refused(text: str) -> None:
    with pytest.raises(NeedsError, match="record 1 of the shard has no references"):
        build(text).score(Shard([record("a", "b"), record("a")]))
