"""Rows of columns are put one after another, as Python joins and writes them."""

from __future__ import annotations

import math
from itertools import accumulate
from types import ModuleType

import numpy as np
import pytest
from flavours import both_flavours, compiled, needs_compiled
from hypothesis import given
from hypothesis import strategies as st

NUMBERS = st.floats() | st.integers(-(2**60), 2**60).map(float) | st.fractions(0, 100, max_denominator=200).map(float)
Columns = list[object]


def join(kernels: ModuleType, columns: Columns, rows: int) -> bytes:
    blocks: list[bytes] = []
    kernels.join_columns(columns, rows, lambda block: blocks.append(bytes(block)))
    return b"".join(blocks)


def text_column(texts: list[bytes]) -> tuple[memoryview, np.ndarray]:
    texts = [b"before", *texts]
    return memoryview(b"".join(texts) + b"after"), np.array(list(accumulate(map(len, texts))), np.int32)


def write(number: float, *, short: bool) -> bytes:
    if math.isnan(number):
        return b"null"
    if math.isinf(number):
        return b"1e999" if number > 0 else b"-1e999"
    whole = short and repr(number).endswith(".0") and repr(number) != "-0.0"
    return (str(int(number)) if whole else repr(number)).encode("ascii")


@both_flavours
@given(rows=st.lists(st.tuples(st.binary(max_size=40), NUMBERS, st.binary(max_size=3)), max_size=9), text=st.binary())
def test_columns_are_joined_as_python_joins_them(
    kernels: ModuleType, rows: list[tuple[bytes, float, bytes]], text: bytes
) -> None:
    firsts, numbers, lasts = ([row[column] for row in rows] for column in range(3))
    floats = np.array(numbers, np.float64)
    columns = [text_column(firsts), text, b",", (floats, False), text, (floats, True), text_column(lasts), b"\n"]
    expected = [
        first + text + b"," + write(number, short=False) + text + write(number, short=True) + last + b"\n"
        for first, number, last in rows
    ]
    assert join(kernels, columns, len(rows)) == b"".join(expected)


@both_flavours
def test_numbers_near_the_ends_of_their_exponents_are_written_as_python_writes_them(kernels: ModuleType) -> None:
    powers = np.ldexp(1.0, np.arange(-1074, 1024))
    tens = np.array([float(f"{digits}e{exponent}") for exponent in range(-324, 309) for digits in (1, 9.5, 1.25)])
    numbers = np.concatenate(
        [powers, np.nextafter(powers, 0), np.nextafter(powers, np.inf), tens, 1 / np.arange(1, 99)]
    )
    for signed in (numbers, -numbers):
        lines = join(kernels, [(signed, False), b"\n"], len(signed)).splitlines()
        assert lines == [write(number, short=False) for number in signed.tolist()]


@both_flavours
def test_rows_past_one_block_are_all_written(kernels: ModuleType) -> None:
    numbers, long = np.arange(9_000.0) / 7, b"x" * 100
    joined = join(kernels, [long, (numbers, False), text_column([long * 3] * 9_000), b"\n"], 9_000)
    assert joined == b"".join(long + repr(number).encode() + long * 3 + b"\n" for number in numbers.tolist())


@needs_compiled
def test_a_block_cannot_be_kept_and_a_failing_writer_ends_the_call() -> None:
    kept: list[memoryview] = []
    compiled.join_columns([b"a"], 2, kept.append)
    with pytest.raises(ValueError, match="released"):
        bytes(kept[0])
    with pytest.raises(ZeroDivisionError):
        compiled.join_columns([b"a"], 2, lambda _: 1 / 0)


@needs_compiled
@pytest.mark.parametrize(
    "column",
    [
        np.zeros(2),
        (np.zeros(3), False),
        (memoryview(b"abc"), np.array([0, 1], np.int32)),
        (memoryview(b"abc"), np.array([0, 2, 4], np.int32)),
        (memoryview(b"abc"), np.array([0, 3, 2], np.int32)),
        (memoryview(b"abc"), np.array([-1, 1, 2], np.int32)),
        (memoryview(b"abc"),),
    ],
)
def test_columns_of_other_sizes_are_refused(column: object) -> None:
    with pytest.raises(ValueError, match=r"must|pair"):
        compiled.join_columns([b"a", column], 2, print)
