"""Expected numbers come from rouge-score 0.1.2, computed on the spot."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer

from error_codes import raises_code
from metrist.errors import SpecError
from metrist.metrics.base import Shard
from metrist.metrics.lexical import rouge
from metrist.metrics.lexical.rouge import RougeL, RougeLsum, RougeN
from metrist.metrics.registry import build
from metrist.records import Record
from real_records import record, sample

TYPES = ("rouge1", "rouge2", "rouge4", "rougeL", "rougeLsum")
SETS = {
    "summeval": 27,  # with 11 references each
    "wmt19-darr.kk-en": 500,
    "multi-summeval.de": 60,
    "multi-summeval.tr": 60,
}


def largest_difference(records: list[Record], stem: bool) -> float:
    peer = RougeScorer(TYPES, use_stemmer=stem)
    expected = [peer.score_multi(r.references, r.output) for r in records]
    shard = Shard(records)
    worst = 0.0
    for name in TYPES:
        scores = build(f"{name}(stem={stem}, tokenizer='rouge-score')").score(shard)
        ours = np.stack([*scores.parts.values(), scores.values], axis=1)
        theirs = [[e[name].precision, e[name].recall, e[name].fmeasure, e[name].fmeasure] for e in expected]
        worst = max(worst, float(np.abs(ours - theirs).max()))
    return worst


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("stem", [False, True], ids=["plain", "stemmed"])
def test_agrees_with_rouge_score_on_human_judged_data(data, name, stem):
    assert largest_difference(sample(data(name), SETS[name]), stem) <= 1e-9


@pytest.mark.parametrize("stem", [False, True], ids=["plain", "stemmed"])
def test_agrees_with_rouge_score_on_texts_of_several_lines(data, stem):
    def broken(text: str) -> str:
        return re.sub(r"(?<=[.,]) ", "\n", text)

    records = [record(broken(r.output), *map(broken, r.references)) for r in sample(data("summeval"), 25)]
    assert any(r.output.count("\n") > 2 for r in records)
    assert largest_difference(records, stem) <= 1e-9


few_words = st.lists(st.sampled_from(["a", "b", "c", "running", "runs", "é", ".", "\n", "\n\n", "İ"]), max_size=14)
small_text = few_words.map(" ".join)


@given(output=small_text, references=st.lists(small_text, min_size=1, max_size=3))
def test_agrees_with_rouge_score_on_small_odd_texts(output, references):
    records = [record(output, *references)]
    assert largest_difference(records, stem=False) <= 1e-9
    assert largest_difference(records, stem=True) <= 1e-9


@pytest.mark.parametrize(
    ("output", "reference"),
    [
        ("Кошка сидела на ковре", "Кошка лежала на ковре"),
        ("猫坐在垫子上", "猫躺在垫子上"),
        ("बिल्ली चटाई पर बैठी", "बिल्ली चटाई पर सोई"),
        ("ネコがマットに座った", "ネコがマットで寝た"),
        ("แมวนั่งบนเสื่อ", "แมวนอนบนเสื่อ"),
    ],
    ids=["Russian", "Chinese", "Hindi", "Japanese", "Thai"],
)
def test_text_in_other_scripts_does_not_score_zero_by_default(output, reference):
    shard = Shard([record(output, reference)])
    for metric in (RougeN(order=1), RougeN(order=2), RougeL(), RougeLsum()):
        assert 0 < metric.score(shard)[0].value < 1
    assert RougeL(tokenizer="rouge-score").score(shard)[0].value == 0


def test_the_mean_over_references_is_the_mean_of_scores_with_one_reference_each():
    records = [record("a b c d", "a b", "c d e f g", "x"), record("a", "a")]
    for cls in (RougeL, RougeLsum, RougeN):
        mean = cls(reduce="mean").score(Shard(records))
        alone = cls().score(Shard([record("a b c d", text) for text in records[0].references]))
        assert mean.values[0] == pytest.approx(alone.values.mean(), abs=1e-15)
        assert mean.parts["recall"][0] == pytest.approx(alone.parts["recall"].mean(), abs=1e-15)
        assert mean.values[1] == 1


def test_the_best_reference_is_the_native_way():
    records = [record("a b c", "a", "a b", "c b a")]
    best, native = (RougeL(reduce=how).score(Shard(records)) for how in ("max", "native"))
    assert best[0] == native[0]


def test_of_equally_good_references_the_first_gives_the_parts():
    # f is 2/3 with both; precision 1 with the first, recall 1 with the second.
    score = RougeN(order=1).score(Shard([record("a b", "a b c d", "a")]))[0]
    assert score.parts == {"precision": 1.0, "recall": 0.5, "f": 2 / 3}


def test_orders_share_one_count_of_matches(monkeypatch):
    calls = []
    counted = rouge.clipped_matches
    monkeypatch.setattr(rouge, "clipped_matches", lambda *args: calls.append(args[-1]) or counted(*args))
    shard = Shard([record("a b c", "a b d")])
    values = [build(name).score(shard)[0].value for name in ("rouge1", "rouge2", "rouge1(reduce='mean')")]
    assert values == [2 / 3, 0.5, 2 / 3]
    assert calls == [2]


def test_an_order_outside_one_to_nine_is_refused():
    with raises_code(SpecError, "invalid_value", "1", "9"):
        RougeN(order=10)


def test_the_order_is_part_of_the_name_and_not_a_setting():
    assert RougeN(order=3, stem=True).text == "rouge3(stem=True)"
    assert build("rouge3(stem=True)") == RougeN(order=3, stem=True)
    with raises_code(SpecError, "conflict", "rouge3", "order"):
        build("rouge3(order=2)")


def test_an_unknown_tokenizer_is_refused():
    with raises_code(SpecError, "invalid_value", "'unicod'", "did you mean 'unicode'"):
        build("rougeL(tokenizer='unicod')")
