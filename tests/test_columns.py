"""Large arrays in files without a name."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from metrist import columns
from metrist.columns import move_to_disk, release_pages, stack_rows


def is_mapped(array: Any) -> bool:
    while array is not None and not isinstance(array, mmap.mmap):
        array = getattr(array, "base", None)
    return array is not None


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "_LARGE", 1000)


@pytest.mark.usefixtures("small_limit")
def test_a_large_array_is_mapped_and_survives_the_release_of_its_pages() -> None:
    array = np.random.default_rng(0).random(1000)
    moved = move_to_disk(array)
    assert is_mapped(moved)
    release_pages(moved)
    assert moved.tolist() == array.tolist()
    assert not moved.flags.writeable


def test_a_small_array_stays_in_memory() -> None:
    array = np.arange(1000)
    assert move_to_disk(array) is array


@pytest.mark.usefixtures("small_limit")
def test_rows_are_stacked_in_a_file_or_in_memory() -> None:
    def rows(size: int) -> Iterator[np.ndarray[Any, np.dtype[np.float64]]]:
        for number in range(3):
            yield np.full((1, size), float(number))

    for size in (2, 2000):
        stacked = stack_rows(partial(rows, size), (3, size), np.dtype(np.float64))
        assert is_mapped(stacked) == (size == 2000)
        assert stacked[:, [0, -1]].tolist() == [[0, 0], [1, 1], [2, 2]]


@pytest.mark.usefixtures("small_limit")
def test_without_room_for_a_file_the_array_stays_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(columns, "TemporaryFile", fail)
    moved = move_to_disk(np.arange(1000))
    assert not is_mapped(moved)
    assert moved.tolist() == list(range(1000))
