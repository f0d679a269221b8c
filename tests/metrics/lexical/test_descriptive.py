"""Expected numbers come from sets of tuples, one output at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from error_codes import raises_code
from metrist.errors import SpecError
from metrist.metrics.base import Shard
from metrist.metrics.lexical.descriptive import CopyRate, Distinct, Length
from metrist.metrics.registry import build
from real_records import record

texts = st.lists(st.sampled_from("abc"), max_size=12).map(" ".join)
orders = st.integers(1, 4)


def grams(text: str, order: int) -> list[tuple[str, ...]]:
    words = text.split()
    return [tuple(words[i : i + order]) for i in range(len(words) - order + 1)]


def share(some: int, all_: int) -> float:
    return some / all_ if all_ else np.nan


@given(st.lists(texts, min_size=1, max_size=6), orders)
def test_distinct_is_the_share_of_different_sequences(outputs, order):
    scores = Distinct(order=order).score(Shard([record(output) for output in outputs]))
    expected = [share(len(set(grams(o, order))), len(grams(o, order))) for o in outputs]
    np.testing.assert_array_equal(scores.values, expected)


@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=6), orders)
def test_copy_rate_is_the_share_of_sequences_that_stand_in_the_source(pairs, order):
    scores = CopyRate(order=order).score(Shard([record(output, source=source) for output, source in pairs]))
    expected = [
        share(sum(gram in grams(source, order) for gram in grams(output, order)), len(grams(output, order)))
        for output, source in pairs
    ]
    np.testing.assert_array_equal(scores.values, expected)


def test_an_output_that_is_too_short_fails_with_the_reason():
    shard = Shard([record("one", source="one two"), record("", source="x"), record("one two", source="one two")])
    for metric in (Distinct(), CopyRate()):
        scores = metric.score(shard)
        assert dict(scores.failures) == dict.fromkeys((0, 1), "the output has no sequence of 2 words")
        assert scores.values[2] == 1
        assert metric.pool(scores.stats.sum(axis=0)) == 1
    assert Distinct(order=1).score(shard)[1].failure == "the output has no word"


def test_length_counts_words_or_characters():
    shard = Shard([record("Two words."), record(""), record("我有猫"), record("e\u0301 ")])
    assert Length().score(shard).values.tolist() == [2, 0, 3, 1]
    assert Length(unit="characters").score(shard).values.tolist() == [10, 0, 3, 3]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("distinct(order=0)", ("1 to 9", "got 0")),
        ("copy_rate(order=10)", ("1 to 9", "got 10")),
        ("length(unit='tokens')", ("'words', 'characters'", "'tokens'")),
    ],
)
def test_a_wrong_setting_is_refused(text, values):
    with raises_code(SpecError, "invalid_value", *values):
        build(text)
