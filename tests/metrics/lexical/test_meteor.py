"""Expected numbers come from nltk.translate.meteor_score on the same words, computed on the spot."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nltk.translate.meteor_score import meteor_score
from nltk_wordnet import nltk_reads

from error_codes import raises_code
from metrist.errors import InputError, SpecError
from metrist.metrics.base import Shard
from metrist.metrics.lexical.meteor import Meteor
from metrist.metrics.lexical.tokenizers import tokenise
from metrist.metrics.registry import build
from metrist.records import Record
from real_records import record, sample


class NoSynonyms:
    def synsets(self, _word: str) -> list[str]:
        return []


def cut(text: str) -> list[str]:
    tokens = tokenise([text], "unicode")
    return [tokens.words[i] for i in tokens.ids]


def expected(records: list[Record], wordnet: object, **settings: float) -> list[float]:
    return [meteor_score(list(map(cut, r.references)), cut(r.output), wordnet=wordnet, **settings) for r in records]


@pytest.mark.parametrize(("name", "count"), [("summeval", 30), ("wmt19-darr.lt-en", 300), ("multi-summeval.de", 30)])
def test_agrees_with_nltk_on_human_judged_data(data, name, count):
    records = sample(data(name), count)
    assert Meteor().score(Shard(records)).values == pytest.approx(expected(records, NoSynonyms()), abs=1e-9)


words = st.lists(st.sampled_from(["a", "b", "run", "running", "runs", "car", "auto", "men", "man", "bought", "buy"]))


@given(st.lists(st.tuples(words, st.lists(words, min_size=1, max_size=3)), min_size=1, max_size=4))
def test_agrees_with_nltk_on_small_texts_scored_together(texts):
    records = [record(" ".join(output), *map(" ".join, references)) for output, references in texts]
    assert Meteor().score(Shard(records)).values == pytest.approx(expected(records, NoSynonyms()), abs=1e-12)


def test_agrees_with_nltk_on_synonyms(small_wordnet, tmp_path):
    metric = Meteor(wordnet=str(small_wordnet))

    @given(words, words)
    def agrees(output, reference):
        records = [record(" ".join(output), " ".join(reference))]
        assert metric.score(Shard(records)).values == pytest.approx(expected(records, reader), abs=1e-12)

    with nltk_reads(small_wordnet, tmp_path) as reader:
        agrees()


def test_agrees_with_nltk_on_real_synonyms(data, debian_wordnet, tmp_path):
    records = [*sample(data("summeval"), 15), *sample(data("wmt19-darr.lt-en"), 150)]
    scores = Meteor(wordnet=str(debian_wordnet)).score(Shard(records))
    with nltk_reads(debian_wordnet, tmp_path) as reader:
        assert scores.values == pytest.approx(expected(records, reader), abs=1e-9)
    assert (scores.values > Meteor().score(Shard(records)).values).any()


def test_other_parameters_agree_with_nltk():
    records = [record("the cat sat on a mat", "a cat was sitting on the mat")]
    settings = {"alpha": 0.7, "beta": 1.5, "gamma": 0.25}
    assert Meteor(**settings).score(Shard(records)).values == pytest.approx(expected(records, NoSynonyms(), **settings))


def test_the_parts_explain_the_value():
    # Three of four words on either side, in two chunks: the penalty is 0.5 * (2 / 3) ** 3.
    score = Meteor().score(Shard([record("a b x c", "a b c y")]))[0]
    assert score.parts == pytest.approx({"precision": 0.75, "recall": 0.75, "f": 0.75, "penalty": 4 / 27})
    assert score.value == pytest.approx(0.75 * (1 - 4 / 27))


def test_the_mean_over_references_averages_the_parts_too():
    both = Meteor(reduce="mean").score(Shard([record("a b", "a b", "c")]))[0]
    alone = Meteor().score(Shard([record("a b", "a b")]))[0]
    assert both.value == pytest.approx(alone.value / 2)
    assert both.parts["recall"] == pytest.approx(0.5)


def test_synonyms_are_part_of_the_signature(small_wordnet):
    assert " | synonyms " in Meteor(wordnet=str(small_wordnet)).signature
    assert "synonyms" not in Meteor().signature


def test_a_wrong_folder_or_parameter_is_refused(tmp_path):
    with raises_code(InputError, "unreadable", "index.noun"):
        Meteor(wordnet=str(tmp_path)).score(Shard([record("a", "a")]))
    with raises_code(SpecError, "invalid_value", "alpha", "0 to 1", "got 2"):
        build("meteor(alpha=2)")
