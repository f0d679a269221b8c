"""BLEU against sacrebleu 2.6, computed on the spot."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
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
from sacrebleu.metrics import BLEU

from error_codes import raises_code
from metrist.errors import SpecError
from metrist.metrics.base import Shard
from metrist.metrics.lexical.bleu import Bleu
from metrist.metrics.registry import build
from real_records import record, sample

OWN_TOKENIZERS = ("13a", "intl", "zh", "char", "none")
SMOOTHINGS = [
    {"smooth": "exp"},
    {"smooth": "none"},
    {"smooth": "floor"},
    {"smooth": "floor", "smooth_value": 0.0},
    {"smooth": "floor", "smooth_value": 0.5},
    {"smooth": "add-k"},
    {"smooth": "add-k", "smooth_value": 0.0},
    {"smooth": "add-k", "smooth_value": 2.5},
]


def peers(metric: Bleu) -> tuple[BLEU, BLEU]:
    """sacrebleu's BLEU with the same settings, for sentences (effective order) and for corpora."""
    same: dict[str, Any] = {
        "tokenize": metric.tokenize,
        "lowercase": metric.lowercase,
        "smooth_method": metric.smooth,
        "smooth_value": metric.smooth_value,
        "max_ngram_order": metric.max_order,
        "force": True,
    }
    return BLEU(**same, effective_order=True), BLEU(**same)


@pytest.mark.parametrize("name", ["summeval", "wmt19-darr.kk-en"])
def test_english_agrees_with_sacrebleu(data, name):
    assert_agrees(Bleu(), *peers(Bleu()), sample(data(name), 200))


@pytest.mark.parametrize("language", ["de", "en", "es", "fr", "id", "ru", "tr"])
def test_other_languages_agree_with_sacrebleu(data, language):
    metric = Bleu(lowercase=True)
    assert_agrees(metric, *peers(metric), sample(data(f"multi-summeval.{language}"), 100))


@pytest.mark.parametrize("tokenize", OWN_TOKENIZERS)
def test_ragged_references_agree_with_sacrebleu_under_every_tokenizer(data, tokenize):
    metric = Bleu(tokenize=tokenize)
    assert_agrees(metric, *peers(metric), ragged(sample(data("summeval"), 44)))


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("tokenize", OWN_TOKENIZERS)
def test_odd_texts_agree_with_sacrebleu(tokenize, lowercase):
    metric = Bleu(tokenize=tokenize, lowercase=lowercase)
    assert_agrees(metric, *peers(metric), odd_records())


@pytest.mark.parametrize("max_order", [1, 2, 4, 7])
@pytest.mark.parametrize("smoothing", SMOOTHINGS, ids=str)
def test_every_smoothing_and_order_agrees_with_sacrebleu(smoothing, max_order):
    metric = Bleu(max_order=max_order, **smoothing)
    records = odd_records(80)
    assert_agrees(metric, *peers(metric), records)
    for few in (records[:3], [record("a b c", "d e f")], [record("", "")], [record("a b", "a b c d e f")]):
        assert_agrees(metric, *peers(metric), few)


@pytest.mark.parametrize("tokenize", OWN_TOKENIZERS)
@settings(max_examples=60)
@given(records=records_of(characters(exclude_categories=["Cn"])))
def test_any_text_agrees_with_sacrebleu(tokenize, records):
    metric = Bleu(tokenize=tokenize)
    assert_agrees(metric, *peers(metric), records)


def test_parts_are_those_that_sacrebleu_reports():
    records = odd_records()
    result = Bleu().score(Shard(records))
    for score, r in zip(result, records, strict=True):
        expected = peers(Bleu())[0].sentence_score(r.output, list(r.references))
        precisions = [score.parts[f"precision_{n}"] for n in (1, 2, 3, 4)]
        assert precisions == pytest.approx(expected.precisions, abs=TOLERANCE)
        assert score.parts["brevity_penalty"] == pytest.approx(expected.bp, abs=TOLERANCE)
        assert (score.parts["output_length"], score.parts["reference_length"]) == (expected.sys_len, expected.ref_len)
        assert score.stats == (expected.sys_len, expected.ref_len, *expected.counts, *expected.totals, 1)


def test_max_keeps_the_statistics_of_the_best_reference_alone():
    records, (sentence, corpus) = odd_records(), peers(Bleu())
    result = Bleu(reduce="max").score(Shard(records))

    def score(output: str, reference: str) -> float:
        return sentence.sentence_score(output, [reference]).score

    best = [max(r.references, key=partial(score, r.output)) for r in records]
    alone = [record(r.output, reference) for r, reference in zip(records, best, strict=True)]
    expected = [sentence.sentence_score(r.output, list(r.references)).score for r in alone]
    np.testing.assert_allclose(result.values, expected, rtol=0, atol=TOLERANCE)
    pooled = Bleu(reduce="max").pool(result.stats.sum(axis=0))
    assert pooled == pytest.approx(corpus_score(corpus, alone), abs=TOLERANCE)


def test_mean_averages_values_parts_and_statistics_over_references():
    records, sentence = odd_records(), peers(Bleu())[0]
    result = Bleu(reduce="mean").score(Shard(records))
    for score, r in zip(result, records, strict=True):
        each = [sentence.sentence_score(r.output, [reference]) for reference in r.references]
        assert score.value == pytest.approx(np.mean([one.score for one in each]), abs=TOLERANCE)
        assert score.parts["brevity_penalty"] == pytest.approx(np.mean([one.bp for one in each]), abs=TOLERANCE)
        rows = [[one.sys_len, one.ref_len, *one.counts, *one.totals, 1] for one in each]
        assert score.stats == pytest.approx(np.mean(rows, axis=0), abs=TOLERANCE)


@pytest.mark.parametrize("smoothing", SMOOTHINGS, ids=str)
def test_pool_takes_many_sums_at_once(smoothing):
    assert_pools(Bleu(**smoothing), peers(Bleu(**smoothing))[1], odd_records(30))


def test_a_perfect_output_scores_100_and_not_a_little_more():
    assert Bleu().score(Shard([record("a b c d e", "a b c d e")])).values.tolist() == [100.0]


def test_the_signature_says_all_settings():
    metric = build("bleu(tokenize='intl', smooth='floor', smooth_value=1)")
    assert metric.signature.startswith("bleu(tokenize='intl', lowercase=False, smooth='floor', smooth_value=1.0, ")
    assert "| unicode 1" in metric.signature


@pytest.mark.parametrize(
    ("made", "code", "values"),
    [
        ({"tokenize": "13b"}, "invalid_value", ("tokenize", "'13b'", "did you mean '13a'")),
        ({"max_order": 0}, "invalid_value", ("max_order", "1 to 16", "got 0")),
        ({"smooth_value": 1.0}, "conflict", ("smooth_value", "smooth='exp'")),
        ({"smooth": "floor", "smooth_value": 2}, "invalid_value", ("0 to 1", "got 2")),
        ({"smooth": "add-k", "smooth_value": -1}, "invalid_value", ("smooth_value", "got -1")),
        ({"smooth": "add-k", "smooth_value": float("nan")}, "invalid_value", ("smooth_value", "got nan")),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(made, code, values):
    with raises_code(SpecError, code, *values):
        Bleu(**made)
