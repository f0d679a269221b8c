"""Token weights: document frequencies against bert-score's, idf files, stop words, priors, and token spans."""

from __future__ import annotations

import gzip
import json
import lzma
import math

import numpy as np
import pytest

from error_codes import raises_code
from metrist.errors import InputError
from metrist.metrics.token_weights import (
    DocumentFrequencies,
    content_word_weights,
    find_spans,
    make_weigher,
    prior_weights,
    read_stop_words,
    read_texts,
)
from word_model import WordModel


class Letters:
    """Stands in for a tokenizer of transformers: letters as tokens."""

    model_max_length = 100

    def encode(self, text, **_):
        return list(map(ord, text))


def test_idf_agrees_with_bert_score():
    from bert_score.utils import get_idf_dict

    texts = ["the cat", "a dog", "the dog and the cat", "zebra"]
    expected = get_idf_dict(texts, Letters(), nthreads=0)
    frequencies = DocumentFrequencies.count(Letters().encode(text) for text in texts)
    tokens = np.array([ord(letter) for letter in "the zebra said no!"])
    assert frequencies.documents == 4
    assert frequencies.idf(tokens) == pytest.approx([expected[token] for token in tokens], abs=1e-12)


def test_plain_files_give_their_lines_without_the_blank_ones(tmp_path):
    (tmp_path / "a.txt").write_text("one \n\n  two\none\n", encoding="utf-8")
    assert read_texts(str(tmp_path / "a.txt")) == ["one", "two", "one"]


def rows(*values):
    return "\n".join(json.dumps(row) for row in values) + "\n"


def test_record_files_give_each_items_references_once_however_many_systems_there_are(tmp_path):
    path = tmp_path / "records.jsonl"
    shared = {"item": "1", "references": ["a", "b"]}
    path.write_text(rows({**shared, "system": "x"}, {**shared, "system": "y"}, {"item": "2", "references": ["a"]}))
    assert read_texts(str(path)) == ["a", "b", "a"]


def test_record_files_without_references_give_their_outputs(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_text(rows({"item": "1", "output": "a"}, {"item": "1", "output": "b"}))
    assert read_texts(str(path)) == ["a", "b"]


@pytest.mark.parametrize(("suffix", "opener"), [(".gz", gzip.open), (".xz", lzma.open)])
def test_compressed_files_are_read(tmp_path, suffix, opener):
    path = tmp_path / f"records.jsonl{suffix}"
    with opener(path, "wt") as file:
        file.write(rows({"item": "1", "references": ["é"]}))
    assert read_texts(str(path)) == ["é"]


@pytest.mark.parametrize(
    ("name", "content", "code", "value"),
    [
        ("a.txt", " \n", "no_data", "a.txt"),
        ("a.jsonl", "{}\n", "no_data", "a.jsonl"),
        ("a.jsonl", '{"item": 1}\n{', "unreadable", "a.jsonl:2"),
        ("a.jsonl", "[1]\n", "invalid_value", "a.jsonl:1"),
        ("a.jsonl", '{"references": "x"}\n', "invalid_value", "references"),
        ("a.xz", "no xz", "unreadable", "a.xz"),
    ],
)
def test_files_that_cannot_be_read_are_refused_with_their_place(tmp_path, name, content, code, value):
    (tmp_path / name).write_text(content)
    with raises_code(InputError, code, value):
        read_texts(str(tmp_path / name))


def test_a_missing_file_is_named():
    with raises_code(InputError, "unreadable", "nowhere.txt"):
        read_texts("nowhere.txt")


@pytest.mark.parametrize(
    ("text", "pieces", "spans"),
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
def test_pieces_are_found_in_their_text_whatever_marks_the_tokenizer_puts(text, pieces, spans):
    assert find_spans(text, pieces) == spans


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
    frequencies = DocumentFrequencies.count([["<s>", "a", "a"], ["<s>", "b"], ["<s>", "a"]])
    weights = frequencies.idf(["<s>", "a", "b", "new"])
    assert weights == pytest.approx([0, math.log(4 / 3), math.log(4 / 2), math.log(4)])


def test_a_prefix_weighs_nothing_under_every_weighting():
    model, tokens = WordModel(), np.array([0, 7, 1, 1, 2])
    target = "__de__ haus haus"  # tokens: <s> __de__ haus haus </s>
    frequencies = DocumentFrequencies.count([["<s>", "haus", "</s>"], ["<s>", "</s>"]])
    expected = {
        "uniform": [1, 0, 1, 1, 1],
        "stopwords": [1, 0, 1, 1, 1],
        "prior": [0.2, 0, 0.4, 0.4, 0.2],
        "idf": [0, 0, math.log(3 / 2), math.log(3 / 2), 0],
    }
    for weighting, weights in expected.items():
        weigh = make_weigher(weighting, model, frequencies=frequencies, prefix="__de__ ")
        assert weigh is not None
        assert weigh(target, tokens).tolist() == pytest.approx(weights), weighting


def test_uniform_weights_need_not_be_computed():
    assert make_weigher("uniform", WordModel()) is None
