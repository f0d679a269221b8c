"""Keys are distinguished in little memory."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

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
