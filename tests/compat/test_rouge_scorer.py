"""`RougeScorer` beside the package rouge-score 0.1.2: its own expected values, and the package on the same texts."""

from __future__ import annotations

import numpy as np
import pytest
from rouge_score import rouge_scorer as peer
from rouge_score import scoring as peer_scoring

from metrist.compat import rouge_scorer
from metrist.compat.rouge_scorer import BootstrapAggregator, RougeScorer, Score
from real_records import sample

KINDS = ["rouge1", "rouge2", "rouge4", "rouge9", "rougeL", "rougeLsum"]
ODD = [
    "",
    " \n ",
    "a",
    "The cat's hats, 17% of 3.5 — naïve İstanbul!",
    "running runs ran\n\neasily studies\nfairly skies dying",
    "the the the cat\nthe cat the\ncat",
    "我喜欢猫 and cats",
    "\ud800 lone",
]


@pytest.mark.parametrize(
    ("kind", "target", "prediction", "expected"),
    [  # The package's rouge_scorer_test.py.
        ("rouge1", "testing one two", "testing", (1, 1 / 3, 1 / 2)),
        ("rouge2", "testing one two", "testing one", (1, 1 / 2, 2 / 3)),
        ("rougeL", "testing one two", "testing one", (1, 2 / 3, 4 / 5)),
        ("rougeL", "testing one two", "testing two", (1, 2 / 3, 4 / 5)),
        ("rouge1", "testing one two", "", (0, 0, 0)),
        ("rougeLsum", "testing one two", "", (0, 0, 0)),
    ],
)
def test_expected_values_of_the_package(kind, target, prediction, expected):
    assert RougeScorer([kind]).score(target, prediction)[kind] == pytest.approx(expected)


def test_expected_values_with_several_targets():
    # testRougeAllMulti of the package's rouge_scorer_test.py.
    result = RougeScorer(["rouge1", "rouge2", "rougeL"]).score_multi(["first text", "first something"], "text first")
    assert [result[kind].fmeasure for kind in ("rouge1", "rouge2", "rougeL")] == [1, 0, 0.5]


@pytest.mark.parametrize("kind", ["rougen", "rouge0", "rouge10", "rouge1x"])
def test_unknown_kinds_are_refused_as_in_the_package(kind):
    with pytest.raises(ValueError, match="Invalid rouge type"):
        RougeScorer([kind]).score("testing one two", "testing")


@pytest.mark.parametrize("stem", [False, True])
@pytest.mark.parametrize("name", ["summeval", "multi-summeval.de"])
def test_real_texts_equal_the_package(data, name, stem):
    ours, theirs = (module.RougeScorer(KINDS, use_stemmer=stem) for module in (rouge_scorer, peer))
    records = sample(data(name), 12)
    for record in records:
        output = record.output.replace(". ", ".\n")
        expected = theirs.score(record.references[0], output)
        assert ours.score(record.references[0], output) == {kind: tuple(expected[kind]) for kind in KINDS}
        several = theirs.score_multi(record.references[:3], output)
        assert ours.score_multi(record.references[:3], output) == {kind: tuple(several[kind]) for kind in KINDS}
    targets, outputs = [record.references[0] for record in records], [record.output for record in records]
    assert ours.score_many(targets, outputs) == [ours.score(*pair) for pair in zip(targets, outputs, strict=True)]


@pytest.mark.parametrize("stem", [False, True])
def test_odd_texts_equal_the_package(stem):
    ours, theirs = (module.RougeScorer(KINDS, use_stemmer=stem) for module in (rouge_scorer, peer))
    for target in ODD:
        for prediction in ODD:
            expected = theirs.score(target, prediction)
            assert ours.score(target, prediction) == {kind: tuple(expected[kind]) for kind in KINDS}


class Letters:
    def tokenize(self, text: str) -> list[str]:
        return [letter for letter in text if letter != " "]


def test_a_tokenizer_of_the_users_own():
    ours, theirs = (module.RougeScorer(KINDS, tokenizer=Letters()) for module in (rouge_scorer, peer))
    expected = theirs.score("我喜欢猫", "我不喜欢\n狗")
    assert ours.score("我喜欢猫", "我不喜欢\n狗") == {kind: tuple(expected[kind]) for kind in KINDS}


def test_sentences_are_split_on_request():
    # testRougeLSumSentenceSplitting of the package, which needs a model of NLTK.
    target, prediction = "First sentence. Second Sentence.", "Second sentence. First Sentence."
    assert RougeScorer(["rougeLsum"]).score(target, prediction)["rougeLsum"].fmeasure == 0.5
    split = RougeScorer(["rougeLsum"], use_stemmer=True, split_summaries=True)
    assert split.score(target, prediction)["rougeLsum"].fmeasure == 1


def test_a_single_text_in_place_of_a_list_is_refused():
    with pytest.raises(TypeError, match="rouge_types must be a list"):
        RougeScorer("rouge1")
    scorer = RougeScorer(["rouge1"])
    with pytest.raises(TypeError, match="targets must be a list"):
        scorer.score_multi("a b", "a")
    with pytest.raises(ValueError, match="as many targets as predictions, got 2 and 1"):
        scorer.score_many(["a", "b"], ["a"])
    with pytest.raises(ValueError, match="at least one target"):
        scorer.score_multi([], "a")


def add_three(aggregator, score):
    for values in ((1, 1 / 3, 1 / 2), (0, 0, 0), (1, 1, 1)):
        aggregator.add_scores({"rouge1": score(*values)})
    return aggregator


def test_expected_intervals_of_the_package():
    # testConsistentPercentiles and testLargeConfidence of the package's scoring_test.py, with its seed.
    np.random.seed(123)
    result = add_three(BootstrapAggregator(confidence_interval=0.9), Score).aggregate()["rouge1"]
    assert [part.precision for part in result] == pytest.approx([1 / 3, 2 / 3, 3 / 3])
    assert [part.recall for part in result] == pytest.approx([1 / 9, 4 / 9, 7 / 9])
    assert [part.fmeasure for part in result] == pytest.approx([1 / 6, 3 / 6, 5 / 6])
    result = add_three(BootstrapAggregator(confidence_interval=0.0), Score).aggregate()["rouge1"]
    assert result.low == result.mid == result.high == pytest.approx((2 / 3, 4 / 9, 3 / 6))


@pytest.mark.parametrize("block", [1 << 21, 7])
def test_a_seed_gives_the_intervals_of_the_package(monkeypatch, block):
    monkeypatch.setattr(rouge_scorer, "_MAX_POSITIONS", block)
    ours, theirs = BootstrapAggregator(0.95, 200), peer_scoring.BootstrapAggregator(0.95, 200)
    rng = np.random.default_rng(1)
    for values in rng.random((30, 3)):
        for aggregator in (ours, theirs):
            aggregator.add_scores({"rouge1": Score(*values), "rougeL": Score(*values[::-1])})
    np.random.seed(7)
    expected = theirs.aggregate()
    np.random.seed(7)
    result = ours.aggregate()
    for kind in ("rouge1", "rougeL"):
        assert np.array(result[kind]) == pytest.approx(np.array(expected[kind]))
        assert isinstance(result[kind].low, Score)


@pytest.mark.parametrize("arguments", [(1.5, 10), (-0.1, 10), (0.5, 0)])
def test_intervals_that_make_no_sense_are_refused(arguments):
    with pytest.raises(ValueError, match="must be"):
        BootstrapAggregator(*arguments)
