"""Records in memory are checked by columns; if that fails, they are checked row by row."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metrist import Record, read_records
from metrist.errors import InputError
from metrist.io.dedup import read_distinct_records

RECORDS = [Record(item=str(i), system=system, output="a", references=("b",)) for i in range(3) for system in "xy"]


def test_distinct_records_come_back_as_they_are():
    assert list(read_distinct_records(RECORDS) or ()) == RECORDS
    reader = read_records(RECORDS)
    assert all(record is read for record, read in zip(RECORDS, reader, strict=True))
    assert len(list(reader)) == len(RECORDS)  # A list can be read again.


@pytest.mark.parametrize(
    "change",
    [
        {"item": 1},
        {"system": None},
        {"output": b"a"},
        {"source": 1},
        {"task": 1},
        {"references": ["b"]},
        {"references": (1,)},
    ],
    ids=str,
)
def test_a_malformed_record_is_rejected(change):
    rows = [*RECORDS, replace(RECORDS[0], **{"item": "9", **change})]
    assert read_distinct_records(rows) is None
    with pytest.raises(InputError, match=next(iter(change))):
        list(read_records(rows))


def test_a_repeated_record_is_read_once_and_a_changed_one_is_rejected():
    assert list(read_records([*RECORDS, RECORDS[2]])) == RECORDS
    with pytest.raises(InputError, match="output"):
        list(read_records([*RECORDS, replace(RECORDS[2], output="other")]))
