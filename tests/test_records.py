"""Records: frozen, small, and picklable."""

from __future__ import annotations

import math
import pickle
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from metrist.errors import InputError
from metrist.records import Record, records_from_lists


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


# ---- Records from lists ----


def test_lists_become_records_numbered_from_one() -> None:
    records = records_from_lists(["a", "b"], ["x", ["y", "z"]], ["s", "t"])
    assert [(r.item, r.system, r.output, r.references, r.source) for r in records] == [
        ("1", "predictions", "a", ("x",), "s"),
        ("2", "predictions", "b", ("y", "z"), "t"),
    ]
    assert [(r.item, r.system, r.output) for r in records_from_lists({"v1": ["a"], "v2": ["b"]})] == [
        ("1", "v1", "a"),
        ("1", "v2", "b"),
    ]
    assert records_from_lists(iter(["a"]), (("x",),), system="mine")[0].system == "mine"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("outputs.jsonl",),
            r"must be a list of texts, got 'outputs.jsonl' \(str\); a file is read with",
        ),
        ((b"a",), r"predictions must be a list of texts, got b'a' \(bytes\)"),
        ((3,), r"predictions must be a list of texts, got 3 \(int\)"),
        ((["a", None],), r"predictions\[1\] must be a text, got None"),
        ((["a", math.nan],), r"predictions\[1\] must be a text, got nan \(float\)"),
        (([],), "predictions is empty"),
        (({},), "predictions is empty"),
        ((["a"], "x"), r"references must be a list, got 'x' \(str\)"),
        ((["a"], ["x", "y"]), r"references: expected an entry for each prediction \(1\), got 2"),
        ((["a", "b"], [["x", "y"]]), r"got 1; each entry is a set .* zip\(\*references\)"),
        ((["a"], [["x", 3]]), r"references\[0\]\[1\] must be a text, got 3"),
        ((["a"], [3]), r"references\[0\] must be a list of texts, got 3"),
        ((["a"], ["x"], ["s", "t"]), r"sources: expected one for each prediction \(1\), got 2"),
        (({"v1": ["a"], "v2": ["b", "c"]},), r"predictions\['v1'\]: expected 2 texts, as of another system, got 1"),
    ],
)
def test_lists_that_do_not_fit_are_refused_with_the_reason(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        records_from_lists(*arguments)
