from __future__ import annotations

import math

import numpy as np
import pytest

from metrist.metrics.model_metric import find_spans
from metrist.metrics.token_weights import Rarity, content_word_weights, make_weigher, prior_weights, read_stop_words
from word_model import WordModel


@pytest.mark.parametrize(
    ("text", "pieces", "found"),
    [
        ("The cat sat.", ["<s>", "The", " cat", " sat", ".", "</s>"], [None, (0, 3), (4, 7), (8, 11), (11, 12), None]),
        ("The cats", ["▁The", "▁cat", "s", "</s>"], [(0, 3), (4, 7), (7, 8), None]),
        ("The cats", ["ĠThe", "Ġcat", "s"], [(0, 3), (4, 7), (7, 8)]),
        ("The cats", ["the", "cat", "##s"], [(0, 3), (4, 7), (7, 8)]),
        ("a # b", ["a", "#", "b"], [(0, 1), (2, 3), (4, 5)]),
        ("a ## b", ["a", "##", "b"], [(0, 1), (2, 4), (5, 6)]),
        ("a é b", ["a", "<unk>", "b"], [(0, 1), None, (4, 5)]),
        ("a " * 20 + "zebra", ["a", "zebra", "a"], [(0, 1), None, (2, 3)]),
        ("", ["<s>", "</s>"], [None, None]),
        ("x", ["", " ", "▁", "x"], [None, None, None, (0, 1)]),
        ("İx", ["İ", "x"], [(0, 1), (1, 2)]),
    ],
)
def test_pieces_are_found_in_their_text_whatever_marks_the_tokenizer_puts(text, pieces, found):
    assert find_spans(text, pieces) == found


def test_tokens_within_stop_words_weigh_nothing():
    text = "They’re not the theatre, aren't they"
    pieces = ["<s>", "They", "’", "re", "not", "the", "the", "atre", ",", "aren", "'t", "they", "</s>"]
    assert content_word_weights(text, pieces).tolist() == [1, 0, 0, 0, 1, 0, 1, 1, 1, 1, 1, 0, 1]


def test_the_stop_words_leave_negations_alone():
    assert {"the", "of", "and", "they're", "which"} <= read_stop_words()
    assert not {"not", "no", "never", "isn't", "cannot"} & read_stop_words()


def test_the_prior_is_the_share_of_a_token_among_its_texts_tokens():
    assert prior_weights(np.array([5, 7, 5, 9])).tolist() == [0.5, 0.25, 0.5, 0.25]


def test_rare_pieces_weigh_more_and_those_of_every_text_nothing():
    rarity = Rarity.of([["<s>", "a", "a"], ["<s>", "b"], ["<s>", "a"]])
    weights = [rarity.weight(piece) for piece in ("<s>", "a", "b", "new")]
    assert weights == pytest.approx([0, math.log(4 / 3), math.log(4 / 2), math.log(4)])


def test_a_prefix_weighs_nothing_under_every_weighting():
    model, tokens = WordModel(), np.array([0, 7, 1, 1, 2])
    target = "__de__ haus haus"  # tokens: <s> __de__ haus haus </s>
    rarity = Rarity.of([["<s>", "haus", "</s>"], ["<s>", "</s>"]])
    expected = {
        "uniform": [1, 0, 1, 1, 1],
        "stopwords": [1, 0, 1, 1, 1],
        "prior": [0.2, 0, 0.4, 0.4, 0.2],
        "idf": [0, 0, math.log(3 / 2), math.log(3 / 2), 0],
    }
    for weighting, weights in expected.items():
        weigh = make_weigher(weighting, model, rarity=rarity, prefix="__de__ ")
        assert weigh is not None
        assert weigh(target, tokens).tolist() == pytest.approx(weights), weighting


def test_uniform_weights_need_not_be_computed():
    assert make_weigher("uniform", WordModel()) is None
