"""Rows of tables that were written apart and merged into one part."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from metrist.run.score_tables import read_scores_table, scores_table
from metrist.scores import Failure, FailureKind, Scores

FAILED = Scores(values=np.array([np.nan]), failures={0: Failure(FailureKind.refused, "no")})


def merge(*blocks: Scores) -> Scores:
    """The blocks as one chunk of a part, as merging small parts leaves them."""
    tables = [scores_table("m", np.zeros((len(block), 16), np.uint8), block) for block in blocks]
    file = io.BytesIO()
    pq.write_table(pa.concat_tables(tables), file)
    return read_scores_table(pq.read_table(file))


@pytest.mark.parametrize("stats", [[[7.0]], [[7.0, 8.0]], [[7.0, 8.0, 9.0]]])
def test_an_output_that_failed_does_not_take_the_statistics_of_others(stats: list[list[float]]) -> None:
    scored = Scores(values=np.array([0.5]), parts={"a": np.array([0.5])}, stats=np.array(stats))
    for merged in (merge(scored, FAILED), merge(FAILED, scored)):
        row = int(np.flatnonzero(~np.isnan(merged.values))[0])
        assert merged.stats[row][: len(stats[0])].tolist() == stats[0]
        assert not merged.stats[1 - row].any()
        assert merged.parts["a"][row] == 0.5
        assert np.isnan(merged.parts["a"][1 - row])


def test_blocks_with_other_parts_keep_them() -> None:
    blocks = [Scores(values=np.array([n]), parts={name: np.array([n])}) for n, name in ((1.0, "a"), (2.0, "b"))]
    parts = merge(*blocks).parts
    assert np.array_equal(parts["a"], [1.0, np.nan], equal_nan=True)
    assert np.array_equal(parts["b"], [np.nan, 2.0], equal_nan=True)
