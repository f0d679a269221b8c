"""Expected numbers come from the published SQuAD rule, spelled out with counters."""

from __future__ import annotations

import re
import string
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from error_codes import raises_code
from metrist.errors import SpecError
from metrist.metrics.base import Shard
from metrist.metrics.lexical.answer import Exact, TokenF1
from metrist.metrics.registry import build
from real_records import record

answers = st.lists(st.sampled_from(["The", "a", "cat", "cat,", "Cat.", "an", "dog", "–the", "U.S."]), max_size=6).map(
    " ".join
)
reference_lists = st.lists(answers, min_size=1, max_size=3)


def normalised(text: str) -> str:
    bare = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(?:a|an|the)\b", " ", bare).split())


def squad_f1(output: str, reference: str) -> float:
    ours, theirs = normalised(output).split(), normalised(reference).split()
    if not ours or not theirs:
        return float(ours == theirs)
    shared = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * shared / (len(ours) + len(theirs))


@given(answers, reference_lists)
def test_token_f1_is_squads_f1_with_the_best_reference(output, references):
    score = TokenF1().score(Shard([record(output, *references)]))[0]
    assert score.value == pytest.approx(max(squad_f1(output, reference) for reference in references))


@given(answers, reference_lists)
def test_the_mean_of_token_f1_is_the_mean_over_references(output, references):
    score = TokenF1(reduce="mean").score(Shard([record(output, *references)]))[0]
    assert score.value == pytest.approx(sum(squad_f1(output, r) for r in references) / len(references))


def test_token_f1_tells_precision_and_recall():
    assert TokenF1().score(Shard([record("not guilty", "guilty")]))[0].parts == {"precision": 0.5, "recall": 1.0}


def test_token_f1_of_chinese_answers_wants_the_unicode_tokenizer():
    shard = Shard([record("北京市", "北京")])
    assert TokenF1().score(shard)[0].value == 0
    assert TokenF1(tokenizer="unicode").score(shard)[0].value == pytest.approx(0.8)


@given(answers, reference_lists)
def test_exact_is_one_when_any_reference_is_equal(output, references):
    shard = Shard([record(output, *references)])
    assert Exact().score(shard)[0].value == float(output in references)
    assert Exact(normalise="squad").score(shard)[0].value == float(normalised(output) in map(normalised, references))


@pytest.mark.parametrize(
    ("normalise", "output", "reference", "equal"),
    [
        ("none", "Paris", "paris", 0),
        ("none", "Paris ", "Paris", 0),
        ("case", " New  PARIS\n", "new paris", 1),
        ("case", "Straße", "STRASSE", 1),
        ("case", "Paris.", "Paris", 0),
        ("squad", "the Paris.", "paris", 1),
    ],
)
def test_what_counts_as_equal_is_a_setting(normalise, output, reference, equal):
    assert Exact(normalise=normalise).score(Shard([record(output, reference)]))[0].value == equal


def test_the_mean_of_exact_is_the_share_of_equal_references():
    assert Exact(reduce="mean").score(Shard([record("a", "a", "b", "c", "a")]))[0].value == 0.5


def test_an_unknown_way_to_normalise_is_refused():
    with raises_code(SpecError, "invalid_value", "'none', 'case', 'squad'", "'squat'", "did you mean 'squad'"):
        build("exact(normalise='squat')")
