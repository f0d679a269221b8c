"""MoverScore against its definition, written out: vectors of plain transformers, one text at a time, and the cheapest
plan by brute force over all pairings of equal units."""

from __future__ import annotations

import string
from functools import cache
from itertools import permutations
from math import lcm, log

import numpy as np
import pytest

from metrist.metrics.base import Shard
from metrist.metrics.embedding import moverscore
from metrist.metrics.embedding.moverscore import MoverScore
from real_records import record


@cache
def read(folder):
    from transformers import AutoModel, AutoTokenizer

    return AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


def words(folder, text, keep="first pieces"):
    """Pieces and vectors of the tokens that count."""
    import torch

    model, tokenizer = read(folder)
    ids = tokenizer(text)["input_ids"]
    with torch.no_grad():
        vectors = model(input_ids=torch.tensor([ids]))[0][0].numpy()
    pieces = tokenizer.convert_ids_to_tokens(ids)
    dropped = {"<s>", "</s>", "[CLS]", "[SEP]", *string.punctuation}
    selected = [
        place
        for place, piece in enumerate(pieces)
        if piece.removeprefix("##") not in dropped and (keep == "all" or not piece.startswith("##"))
    ]
    return [pieces[place] for place in selected], vectors[selected].astype(np.float64)


def brute_force(first, second):
    """1 / (1 + cost) of the cheapest plan between vectors that weigh the same on each side."""
    first, second = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in (first, second))
    costs = np.linalg.norm(first[:, None] - second, axis=2)
    units = lcm(len(first), len(second))
    rows = np.repeat(np.arange(len(first)), units // len(first))
    columns = np.repeat(np.arange(len(second)), units // len(second))
    best = min(costs[rows, columns[list(order)]].sum() for order in permutations(range(units)))
    return 1 / (1 + best / units)


@pytest.mark.parametrize(
    ("output", "reference"),
    [
        ("the old cat", "a dog, ran!"),
        ("the old cat sat on mat", "not very good"),
        ("catxyz dog.", "a cat"),
        ("paris", "london - the city"),
        ("the the the dog", "dog the"),
    ],
)
def test_small_texts_cost_what_the_best_pairing_of_their_words_costs(tiny, output, reference):
    folder = tiny("bert")
    expected = brute_force(words(folder, output)[1], words(folder, reference)[1])
    scores = MoverScore(model=str(folder)).score(Shard([record(output, reference)]))
    assert scores.values[0] == pytest.approx(expected, abs=1e-5)
    assert scores.parts["distance"][0] == pytest.approx(1 / expected - 1, abs=1e-5)


def test_all_pieces_of_a_word_can_count(tiny):
    folder, texts = tiny("bert"), ("catxy", "a dog")
    expected = brute_force(*(words(folder, text, "all")[1] for text in texts))
    metric = MoverScore(model=str(folder), subwords="keep")
    assert metric.score(Shard([record(*texts)])).values[0] == pytest.approx(expected, abs=1e-5)
    assert MoverScore(model=str(folder)).score(Shard([record(*texts)])).values[0] != pytest.approx(expected, abs=1e-4)


def test_sequences_of_words_are_moved_as_their_mean(tiny):
    folder = tiny("bert")
    first, second = words(folder, "the old cat sat")[1], words(folder, "a dog ran")[1]
    pairs = [(vectors[:-1] + vectors[1:]) / 2 for vectors in (first, second)]
    metric = MoverScore(model=str(folder), ngram=2)
    scores = metric.score(Shard([record("the old cat sat", "a dog ran"), record("the old cat sat", "dog")]))
    assert scores.values[0] == pytest.approx(brute_force(*pairs), abs=1e-5)
    # A text of fewer words than that is one sequence.
    assert scores.values[1] == pytest.approx(brute_force(pairs[0], words(folder, "dog")[1]), abs=1e-5)


def test_words_weigh_by_how_few_texts_have_them(tiny, tmp_path):
    folder = tiny("bert")
    texts = ["the cat", "the dog", "the cat sat", "the mat"]
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    metric = MoverScore(model=str(folder), idf=str(tmp_path / "texts.txt"))
    value = metric.score(Shard([record("the cat dog", "mat")])).values[0]
    # Against a single word all goes there: 'the' is in every text and weighs nothing.
    (_, cat, dog), mat = words(folder, "the cat dog")[1], words(folder, "mat")[1][0]
    weights = np.array([log(5 / 3), log(5 / 2)])
    unit = [vector / np.linalg.norm(vector) for vector in (cat, dog, mat)]
    distance = weights / weights.sum() @ [np.linalg.norm(unit[0] - unit[2]), np.linalg.norm(unit[1] - unit[2])]
    assert value == pytest.approx(1 / (1 + distance), abs=1e-5)


def test_a_text_beside_itself_scores_1_and_references_are_reduced(tiny):
    metric = MoverScore(model=str(tiny("bert")))
    text, second = "she said that it was not very good", "the old cat"
    alone = metric.score(Shard([record(text, second)])).values[0]
    assert alone < 0.9
    for reduce, expected in (("native", 1), ("max", 1), ("mean", (1 + alone) / 2)):
        scores = MoverScore(model=str(tiny("bert")), reduce=reduce).score(Shard([record(text, text, second)]))
        assert scores.values[0] == pytest.approx(expected, abs=1e-6)


def test_texts_without_words_and_texts_with_too_many_fail(tiny, monkeypatch):
    monkeypatch.setattr(moverscore, "MAX_WORDS", 5)
    metric = MoverScore(model=str(tiny("bert")))
    long = "the cat sat on the mat"
    scores = metric.score(
        Shard([record("...", "a cat"), record(long, "a"), record("a", "!", long), record("a", long, "a")])
    )
    too_long = "a text of 6 words is too long for an exact distance; the limit is 5"
    assert scores.failures == {0: "the output has no token to compare", 1: too_long, 2: too_long}
    assert scores.values[3] == pytest.approx(1)
    assert scores.parts["cut_tokens"].tolist() == [0] * 4
