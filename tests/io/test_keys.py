"""Keys are distinguished in little memory."""

from __future__ import annotations

import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrist.errors import InputError
from metrist.io import dedup
from metrist.io.dedup import DigestIndex, RecordKeys
from metrist.records import Record


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), max_size=60))
def test_numbers_are_given_in_order_of_arrival(digests: list[tuple[int, int]]) -> None:
    numbering = DigestIndex()
    order: dict[tuple[int, int], int] = {}
    for digest in digests:
        assert (digest in numbering) == (digest in order)
        assert numbering.number(*digest) == order.setdefault(digest, len(order))
    assert len(numbering) == len(order)


def test_numbers_stay_when_the_table_grows() -> None:
    numbering = DigestIndex()
    # Steps of 2**16 put many digests into one slot, the hardest case for rehashing.
    digests = [(i << 16, i) for i in range(3000)] + [(-i, i) for i in range(1, 3001)]
    assert [numbering.number(*digest) for digest in digests] == list(range(6000))
    assert [numbering.number(*digest) for digest in digests] == list(range(6000))


def test_a_key_takes_less_than_eighty_bytes() -> None:
    keys, count = RecordKeys(), 20_000
    keys.admit((Record(item="first", system="s", output="o"),), 0, 1)
    tracemalloc.start()
    for i in range(count):
        keys.admit((Record(item=str(i), system="s", output=f"output {i}", source="source"),), 0, i + 2)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used / count < 80


def admit_many(count: int) -> None:
    keys = RecordKeys()
    for i in range(count):
        keys.admit((Record(item=str(i), system="s", output="o"),), 0, i + 1)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full, which is always full")
@pytest.mark.parametrize("buffered", [10, 1 << 12])  # Fewer bytes than Python buffers, and more.
def test_a_full_disk_is_told_with_the_folder_for_temporary_files(
    monkeypatch: pytest.MonkeyPatch, buffered: int
) -> None:
    with open("/dev/full", "w+b") as full:
        monkeypatch.setattr(dedup, "_BUFFERED", buffered)
        monkeypatch.setattr(tempfile, "TemporaryFile", lambda: full)
        monkeypatch.setattr(tempfile, "tempdir", "/some/folder")
        with pytest.raises(InputError, match=r"repeated items.*: /some/folder, .*: No space left on device; .* TMPDIR"):
            admit_many(buffered)
        assert full.closed


def test_without_a_folder_for_temporary_files_the_error_says_where_python_looked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> Any:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(dedup, "_BUFFERED", 10)
    monkeypatch.setattr(tempfile, "TemporaryFile", fail)
    monkeypatch.setattr(tempfile, "tempdir", None)
    with pytest.raises(InputError, match=r"repeated items.*: No usable temporary directory found .*TMPDIR"):
        admit_many(10)
