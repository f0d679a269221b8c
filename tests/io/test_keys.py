"""Keys are distinguished in little memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from metrist.io.dedup import FirstKeys, RecordKeys, place_of, split_place
from metrist.records import Record, RecordColumns


@given(st.lists(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3)), max_size=40), max_size=12))
def test_the_first_value_of_each_key_is_kept(blocks: list[list[tuple[int, int]]]) -> None:
    keys, firsts = FirstKeys(), dict[int, int]()
    for block in blocks:
        expected = [firsts.setdefault(key, value) for key, value in block]
        pairs = np.array(block, np.uint64).reshape(-1, 2)
        assert keys.settle(pairs[:, 0], pairs[:, 1]).tolist() == expected
    assert sorted(keys.values.tolist()) == sorted(firsts.values())


def make_columns(pairs: Sequence[tuple[str, str]], outputs: Sequence[str]) -> RecordColumns:
    return RecordColumns.of([Record(item=i, system=s, output=o) for (i, s), o in zip(pairs, outputs, strict=True)])


KEYS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("st")), min_size=1, max_size=2, unique=True)
ROWS = st.lists(st.tuples(KEYS, st.lists(st.sampled_from("xy"), min_size=2, max_size=2)), max_size=12)


@given(st.lists(ROWS, max_size=4))
def test_rows_are_admitted_as_one_after_the_other(blocks: list[list[tuple[list[tuple[str, str]], list[str]]]]) -> None:
    keys, known, line = RecordKeys(), dict[tuple[str, str], tuple[str, int]](), 0
    for block in blocks:
        pairs, outputs, rows, lines = list[tuple[str, str]](), list[str](), list[int](), list[int]()
        new, repeated, conflicts = list[int](), list[int](), list[tuple[int, int]]()
        for number, (row, texts) in enumerate(block):
            line += 1
            start = len(pairs)
            pairs += row
            outputs += texts[: len(row)]
            rows += [number] * len(row)
            lines += [line] * len(row)
            clash = [n for n in range(start, len(pairs)) if known.get(pairs[n], (outputs[n],))[0] != outputs[n]]
            if clash:
                conflicts.append((clash[0], known[pairs[clash[0]]][1]))
                continue
            for n in range(start, len(pairs)):
                (repeated if pairs[n] in known else new).append(n)
                known.setdefault(pairs[n], (outputs[n], line))
        admitted = keys.admit(make_columns(pairs, outputs), rows, place_of(0, lines))
        assert [list(part) for part in admitted] == [new, repeated, conflicts]


def test_a_place_is_a_file_and_a_line() -> None:
    assert [split_place(place) for place in place_of(70_000, [1, 2**39]).tolist()] == [(70_000, 1), (70_000, 2**39)]


def test_a_key_takes_less_than_fifty_bytes() -> None:
    keys, size = RecordKeys(), 1 << 12
    tracemalloc.start()
    for start in range(0, 10 * size, size):
        items = [str(i) for i in range(start, start + size)]
        columns = make_columns([(item, "s") for item in items], items)
        keys.admit(columns, range(size), place_of(0, range(start, start + size)))
    del items, columns
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used / (10 * size) < 50
