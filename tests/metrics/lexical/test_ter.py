"""TER against sacrebleu 2.6, computed on the spot. sacrebleu scores 4 to 140 pairs a second, so samples are small."""

from __future__ import annotations

from functools import partial
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from peer_sacrebleu import (
    TOLERANCE,
    assert_agrees,
    assert_pools,
    characters,
    corpus_score,
    odd_records,
    ragged,
    records_of,
)
from sacrebleu.metrics import TER

from metrist.metrics.base import Shard
from metrist.metrics.lexical.ter import Ter
from real_records import record, sample

FLAGS = ("normalized", "no_punct", "asian_support", "case_sensitive")
VARIANTS = [dict(zip(FLAGS, chosen, strict=True)) for chosen in product((False, True), repeat=len(FLAGS))]


def peer(metric: Ter) -> TER:
    """sacrebleu's TER with the same settings."""
    return TER(**{flag: getattr(metric, flag) for flag in FLAGS})


def agree(metric: Ter, records):
    return assert_agrees(metric, peer(metric), peer(metric), records)


def test_translations_agree_with_sacrebleu(data):
    agree(Ter(), sample(data("wmt19-darr.kk-en"), 8))


@pytest.mark.parametrize("language", ["de", "en", "ru", "tr"])
def test_other_languages_agree_with_sacrebleu(data, language):
    agree(Ter(normalized=True), sample(data(f"multi-summeval.{language}"), 2))


def test_summaries_with_several_references_agree_with_sacrebleu(data):
    records = [record(r.output, *r.references[:2]) for r in sample(data("summeval"), 2)]
    agree(Ter(), ragged(records))


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_every_variant_agrees_with_sacrebleu_on_odd_texts(variant):
    agree(Ter(**variant), odd_records(60))


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@settings(max_examples=20)
@given(records=records_of(characters()))
def test_any_text_agrees_with_sacrebleu(variant, records):
    agree(Ter(**variant), records)


@settings(max_examples=80)
@given(records=records_of(st.lists(st.sampled_from("abcd"), max_size=14).map(" ".join)))
def test_words_in_any_order_agree_with_sacrebleu(records):
    agree(Ter(), records)


def test_empty_texts_score_as_in_sacrebleu():
    result = agree(Ter(), [record("", ""), record("a b", ""), record("", "a b"), record("a", "", "a b")])
    assert result.values.tolist() == [0.0, 100.0, 100.0, 100.0]
    for alone in (record("", ""), record("a b", "")):
        agree(Ter(), [alone])


def test_normalized_references_are_treated_twice_as_in_sacrebleu():
    result = agree(Ter(normalized=True), [record("cost: x.,5", "cost: x.,5")])
    assert result.values.tolist() > [0.0]


def test_native_sets_the_fewest_edits_against_the_mean_reference_length():
    score = Ter().score(Shard([record("a b c", "a b c d", "a b c e f g")]))[0]
    assert score.parts == {"edits": 1, "reference_length": 5}
    assert score.stats == (1, 5, 1)
    assert score.value == 100 * 1 / 5


def test_max_keeps_the_best_reference_which_is_the_one_with_the_lowest_rate():
    records, one = odd_records(60), peer(Ter())
    result = Ter(reduce="max").score(Shard(records))

    def rate(output: str, reference: str) -> float:
        return one.sentence_score(output, [reference]).score

    best = [min(r.references, key=partial(rate, r.output)) for r in records]
    alone = [record(r.output, reference) for r, reference in zip(records, best, strict=True)]
    expected = [one.sentence_score(r.output, list(r.references)).score for r in alone]
    np.testing.assert_allclose(result.values, expected, rtol=0, atol=TOLERANCE)
    assert Ter().pool(result.stats.sum(axis=0)) == pytest.approx(corpus_score(one, alone), abs=TOLERANCE)


def test_mean_averages_values_and_statistics_over_references():
    records, one = odd_records(60), peer(Ter())
    for score, r in zip(Ter(reduce="mean").score(Shard(records)), records, strict=True):
        each = [one.sentence_score(r.output, [reference]) for reference in r.references]
        assert score.value == pytest.approx(np.mean([x.score for x in each]), abs=TOLERANCE)
        rows = [[x.num_edits, x.ref_length, 1] for x in each]
        assert score.stats == pytest.approx(np.mean(rows, axis=0), abs=TOLERANCE)


def test_pool_takes_many_sums_at_once():
    assert_pools(Ter(), peer(Ter()), odd_records(10))


def test_lower_is_better_and_there_is_no_upper_bound():
    assert Ter.higher_is_better is False
    assert Ter.bounds == (0, np.inf)
    assert Ter().score(Shard([record("a b c d e", "x")])).values.tolist() == [500.0]
