"""Records: frozen, small, and picklable."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError

import pytest

from metrist.records import Record


def test_a_record_can_be_pickled() -> None:
    record = Record(item="1", system="a", output="\ud800\0", references=("x", "y"), extra={"doc": "d1"})
    assert pickle.loads(pickle.dumps(record)) == record


def test_a_record_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Record(item="1", system="a", output="b").output = "c"  # type: ignore[misc]


def test_no_references_means_that_references_are_lacking_but_an_empty_source_is_a_source() -> None:
    record = Record(item="1", system="a", output="b", source="")
    assert record.lacks("references")
    assert record.lacks("instruction")
    assert not record.lacks("source")
