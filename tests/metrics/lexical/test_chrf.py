"""chrF and chrF++ against sacrebleu 2.6, computed on the spot."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from peer_sacrebleu import (
    TOLERANCE,
    assert_agrees,
    assert_pools,
    characters,
    odd_records,
    ragged,
    records_of,
)
from sacrebleu.metrics import CHRF

from error_codes import raises_code
from metrist.errors import SpecError
from metrist.metrics.base import Shard
from metrist.metrics.lexical.chrf import Chrf
from metrist.metrics.registry import build
from real_records import record, sample

VARIANTS = [
    {},
    {"word_order": 2},
    {"word_order": 1, "char_order": 3},
    {"char_order": 1},
    {"char_order": 10, "word_order": 4},
    {"beta": 1},
    {"beta": 3.5, "word_order": 2},
    {"lowercase": True, "word_order": 2},
    {"whitespace": True},
    {"whitespace": True, "lowercase": True, "eps_smoothing": True},
    {"eps_smoothing": True},
    {"eps_smoothing": True, "word_order": 2, "beta": 1},
]


def peer(metric: Chrf) -> CHRF:
    """sacrebleu's chrF with the same settings."""
    names = ("char_order", "word_order", "beta", "lowercase", "whitespace", "eps_smoothing")
    return CHRF(**{name: getattr(metric, name) for name in names})


def agree(metric: Chrf, records):
    return assert_agrees(metric, peer(metric), peer(metric), records)


@pytest.mark.parametrize("metric", [Chrf(), Chrf(word_order=2)], ids=lambda metric: metric.text)
@pytest.mark.parametrize("name", ["summeval", "wmt19-darr.kk-en"])
def test_english_agrees_with_sacrebleu(data, name, metric):
    agree(metric, sample(data(name), 40))


@pytest.mark.parametrize("language", ["de", "en", "es", "fr", "id", "ru", "tr"])
def test_other_languages_agree_with_sacrebleu(data, language):
    agree(Chrf(word_order=2, lowercase=True), sample(data(f"multi-summeval.{language}"), 60))


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_every_variant_agrees_with_sacrebleu_on_ragged_references(data, settings):
    agree(Chrf(**settings), ragged(sample(data("summeval"), 12)))


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_every_variant_agrees_with_sacrebleu_on_odd_texts(settings):
    agree(Chrf(**settings), odd_records())
    agree(Chrf(**settings), [record("", "")])
    agree(Chrf(**settings), [record("", "a b"), record("a b", "")])


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@settings(max_examples=30)
@given(records=records_of(characters()))
def test_any_text_agrees_with_sacrebleu(variant, records):
    agree(Chrf(**variant), records)


def test_words_alone_agree_with_sacrebleu():
    # sacrebleu takes no character order of 0 at its command line, but its class does.
    agree(Chrf(char_order=0, word_order=3), odd_records())


def test_max_is_native_and_mean_averages_over_references():
    records, one = odd_records(), peer(Chrf())
    native, best, mean = (Chrf(reduce=r).score(Shard(records)) for r in ("native", "max", "mean"))
    assert (native.values == best.values).all()
    assert (native.stats == best.stats).all()
    for score, r in zip(mean, records, strict=True):
        each = [one.sentence_score(r.output, [reference]).score for reference in r.references]
        assert score.value == pytest.approx(np.mean(each), abs=TOLERANCE)
        rows = [Chrf().score(Shard([record(r.output, reference)])).stats[0] for reference in r.references]
        assert score.stats == pytest.approx(np.mean(rows, axis=0), abs=TOLERANCE)


def test_parts_are_mean_precision_and_recall_of_the_orders_that_count():
    # "abcd" against "abxx", by hand: 2 of 4, 1 of 3, 0 of 2 and 0 of 1 n-grams; longer ones do not exist.
    score = Chrf().score(Shard([record("abcd", "abxx")]))[0]
    assert score.parts["precision"] == pytest.approx(100 * (2 / 4 + 1 / 3) / 4)
    assert score.parts["recall"] == pytest.approx(100 * (2 / 4 + 1 / 3) / 4)
    assert score.stats == (4, 4, 2, 3, 3, 1, 2, 2, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1)


@pytest.mark.parametrize("metric", [Chrf(), Chrf(eps_smoothing=True, word_order=2)], ids=lambda metric: metric.text)
def test_pool_takes_many_sums_at_once(metric):
    assert_pools(metric, peer(metric), odd_records(20))


def test_a_whole_number_for_beta_makes_the_same_metric():
    assert build("chrf(beta=2)").text == "chrf"
    assert build("chrf(beta=3)") == build("chrf(beta=3.0)")
    assert build("chrf(beta=3)").text == "chrf(beta=3.0)"


@pytest.mark.parametrize(
    ("made", "code", "values"),
    [
        ({"char_order": -1}, "invalid_value", ("char_order", "0 to 16", "-1")),
        ({"word_order": 17}, "invalid_value", ("word_order", "0 to 16", "17")),
        ({"char_order": 0}, "conflict", ("char_order", "word_order")),
        ({"beta": 0}, "invalid_value", ("beta", "got 0")),
        ({"beta": float("inf")}, "invalid_value", ("beta", "got inf")),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(made, code, values):
    with raises_code(SpecError, code, *values):
        Chrf(**made)
