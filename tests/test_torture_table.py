"""The table of torture tests counts what is lost."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from torture_table import FAULTS, TortureRow, collect_rows, describe, format_table


@pytest.mark.parametrize("found", [{"a": 1}, {"a": 1, "b": 3}, {"a": 1, "b": 2, "c": 3}])
def test_whatever_is_missing_different_or_new_is_lost(found: dict[str, int]) -> None:
    row = TortureRow(FAULTS[0], tried=1, survived=1)
    row.compare({"a": 1, "b": 2}, {"a": 1, "b": 2})
    row.check()
    row.compare({"a": 1, "b": 2}, found)
    with pytest.raises(AssertionError, match="lost 1"):
        row.check()


def test_a_fault_that_ends_in_an_exception_or_is_not_tried_is_not_survived() -> None:
    row = TortureRow(FAULTS[0])
    with row.attempt():
        pass
    with pytest.raises(KeyError), row.attempt():
        raise KeyError
    for failed in (row, TortureRow(FAULTS[0])):
        with pytest.raises(AssertionError):
            failed.check()


def test_rows_of_one_fault_are_added_up_and_each_test_counts_once() -> None:
    counts = [("call", 5, 5, 0), ("teardown", 5, 5, 0), ("teardown", 1000, 999, 2)]
    reports = [SimpleNamespace(when=when, user_properties=[describe(TortureRow(FAULTS[3], *n))]) for when, *n in counts]
    rows = collect_rows([*reports, object()])
    assert rows == [TortureRow(FAULTS[3], 1005, 1004, 2)]
    assert f"| {FAULTS[3]} | 1,005 | 1,004 | 2 |" in format_table(rows)
