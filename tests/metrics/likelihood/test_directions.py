from __future__ import annotations

import numpy as np
import pytest

from metrist.metrics.likelihood.layout import DIRECTIONS, collect_pairs, required_fields
from metrist.records import Record


def record(output: str = "out", source: str | None = "src", references: tuple[str, ...] = ("r1", "r2")) -> Record:
    return Record(item="0", system="s", output=output, source=source, references=references)


@pytest.mark.parametrize(
    ("direction", "pairs"),
    [
        ("source->output", [[("src", "out")]]),
        ("reference->output", [[("r1", "out"), ("r2", "out")]]),
        ("output->reference", [[("out", "r1"), ("out", "r2")]]),
        ("f", [[("r1", "out"), ("r2", "out")], [("out", "r1"), ("out", "r2")]]),
    ],
)
def test_a_direction_says_what_is_given_and_what_is_scored(direction, pairs):
    assert list(collect_pairs([record()], direction).pairs) == pairs


def test_a_direction_needs_the_texts_that_it_looks_at():
    assert [required_fields(direction) for direction in DIRECTIONS] == [
        ("source",),
        ("references",),
        ("references",),
        ("references",),
    ]


def test_references_may_be_ragged_and_come_back_to_their_records():
    made = collect_pairs([record(references=("a",)), record(references=("b", "c", "d")), record()], "reference->output")
    assert made.starts.tolist() == [0, 1, 4, 6]
    assert made.records_of_pairs().tolist() == [0, 1, 1, 1, 2, 2]
    values = np.array([[-1.0, -2.0, -3.0, -7.0, -4.0, -2.0]])
    assert made.reduced(values, "mean")[0].tolist() == [-1, -4, -3]
    assert made.reduced(values, "native")[0].tolist() == [-1, -4, -3]
    assert made.reduced(values, "max")[0].tolist() == [-1, -2, -2]


def test_f_is_the_mean_of_both_ways_and_keeps_them_as_parts():
    made = collect_pairs([record(references=("a", "b"))], "f")
    values = np.array([[-1.0, -3.0], [-5.0, -1.0]])  # by reference: F is -3 and -2
    mean, parts = made.reduced(values, "mean")
    assert (mean.tolist(), parts["precision"].tolist(), parts["recall"].tolist()) == ([-2.5], [-2.0], [-3.0])
    best, parts = made.reduced(values, "max")
    assert (best.tolist(), parts["precision"].tolist(), parts["recall"].tolist()) == ([-2.0], [-3.0], [-1.0])


@pytest.mark.parametrize(
    ("direction", "made", "reason"),
    [
        ("source->output", record(output=" \n"), "the output is empty: it has no words to be likely"),
        ("source->output", record(source=""), "the source is empty: it makes no words likely"),
        ("f", record(output=""), "the output is empty: it has no words to be likely"),
        ("f", record(references=("",)), "the reference is empty: it has no words to be likely"),
        ("reference->output", record(references=("a", "\t")), "reference 2 is empty: it has no words to be likely"),
    ],
)
def test_a_record_with_an_empty_text_fails_alone_and_says_which(direction, made, reason):
    found = collect_pairs([record(), made, record()], direction)
    assert found.failures == {1: reason}
    assert found.able == [0, 2]


def test_texts_that_a_direction_does_not_look_at_may_be_empty():
    assert collect_pairs([record(references=("",))], "source->output").failures == {}
    assert collect_pairs([record(source="")], "f").failures == {}


def test_no_record_that_can_be_scored_leaves_no_pair():
    found = collect_pairs([record(output="")], "f")
    assert found.size == 0
    assert found.reduced(np.empty((2, 0)), "max")[0].tolist() == []
