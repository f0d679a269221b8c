"""Rows of columns are put one after another, as Python joins them."""

from __future__ import annotations

from itertools import accumulate
from types import ModuleType

import numpy as np
import pytest
from flavours import both_flavours, compiled, needs_compiled
from hypothesis import given
from hypothesis import strategies as st

NUMBERS = st.integers(-(2**63), 2**63 - 1)


@both_flavours
@given(rows=st.lists(st.tuples(st.binary(max_size=5), NUMBERS, st.binary(max_size=3)), max_size=9), text=st.binary())
def test_columns_are_joined_as_python_joins_them(
    kernels: ModuleType, rows: list[tuple[bytes, int, bytes]], text: bytes
) -> None:
    def column(number: int) -> tuple[memoryview, np.ndarray]:
        texts = [b"before", *(row[number] for row in rows)]
        return memoryview(b"".join(texts) + b"after"), np.array(list(accumulate(map(len, texts))), np.int32)

    numbers = np.array([row[1] for row in rows], np.int64)
    blocks: list[bytes] = []
    kernels.join_columns(
        [column(0), text, numbers, column(2), b"\n"], len(rows), lambda block: blocks.append(bytes(block))
    )
    assert b"".join(blocks) == b"".join(first + text + b"%d" % number + last + b"\n" for first, number, last in rows)


@needs_compiled
@pytest.mark.parametrize(
    "column",
    [
        np.zeros(3, np.int64),
        (memoryview(b"abc"), np.array([0, 1], np.int32)),
        (memoryview(b"abc"), np.array([0, 2, 4], np.int32)),
        (memoryview(b"abc"), np.array([0, 3, 2], np.int32)),
        (memoryview(b"abc"), np.array([-1, 1, 2], np.int32)),
        (memoryview(b"abc"),),
    ],
)
def test_columns_of_other_sizes_are_refused(column: object) -> None:
    assert compiled is not None
    with pytest.raises(ValueError, match=r"must|pair"):
        compiled.join_columns([b"a", column], 2, print)
