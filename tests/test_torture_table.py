"""The table of torture tests counts what is lost."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from torture_table import FAULTS, TortureRow, collect_rows, describe, format_table


def report(row: TortureRow, when: str = "teardown") -> SimpleNamespace:
    return SimpleNamespace(when=when, user_properties=[("other", 1), describe(row)])


@pytest.mark.parametrize(
    ("found", "lost"),
    [
        ({"a": 1, "b": 2}, 0),
        ({"a": 1}, 1),
        ({"a": 1, "b": 3}, 1),
        ({"a": 1, "b": 2, "c": 3}, 1),
        ({}, 2),
    ],
)
def test_whatever_is_missing_different_or_new_is_lost(found: dict[str, int], lost: int) -> None:
    row = TortureRow(FAULTS[0], tried=1, survived=1)
    row.compare({"a": 1, "b": 2}, found)
    assert row.lost == lost
    if lost:
        with pytest.raises(AssertionError, match="lost"):
            row.check()
    else:
        row.check()


def test_a_fault_that_ends_in_an_exception_is_not_survived() -> None:
    row = TortureRow(FAULTS[0])
    with row.attempt():
        pass
    with pytest.raises(KeyError), row.attempt():
        raise KeyError
    assert (row.tried, row.survived) == (2, 1)
    with pytest.raises(AssertionError, match="survived 1 of 2"):
        row.check()
    with pytest.raises(AssertionError, match="not tried"):
        TortureRow(FAULTS[0]).check()


def test_rows_of_one_fault_are_added_up_and_each_test_counts_once() -> None:
    first, second = TortureRow(FAULTS[3], 5, 5, 0), TortureRow(FAULTS[3], 1000, 999, 2)
    reports = [report(first, "call"), report(first), report(TortureRow(FAULTS[1], 1, 1, 0)), report(second), object()]
    rows = collect_rows(reports)
    assert rows == [TortureRow(FAULTS[1], 1, 1, 0), TortureRow(FAULTS[3], 1005, 1004, 2)]
    lines = format_table(rows, complete=True).splitlines()
    assert f"| {FAULTS[3]} | 1,005 | 1,004 | 2 |" in lines
    assert f"| {FAULTS[0]} | not tried | | |" in lines
    assert len(format_table(rows).splitlines()) == 4
