"""The fluency metric. The stand-in model can be computed by hand: `bad` words are wrong, `odd` ones doubtful, and a
sentence loses 2 of its logit for each bad word."""

from __future__ import annotations

import math

import numpy as np
import pytest

import encoder_folders
from error_codes import raises_code
from metrist.errors import ModelError, SpecError
from metrist.metrics.base import Shard
from metrist.metrics.errors.aspect_tables import shipped_tables
from metrist.metrics.registry import build
from metrist.metrics.trained import fluency as module
from metrist.metrics.trained.fluency import Fluency, FluencyReader, Word, merge_words
from metrist.models import loading
from metrist.models.tokenization import replace_surrogates
from metrist.records import Record
from metrist.scores import FailureKind

tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", ".", ",", "good", "bad", "##ly", "odd", "##ness", "fine", "##s"]
BAD, ODD, SUFFIX = WORDS.index("bad"), WORDS.index("odd"), WORDS.index("##ness")


def sigmoid(logit: float) -> float:
    return 1 / (1 + math.exp(-logit))


class Grader:
    """The logit of a sentence is 3, less 2 for each `bad`; that of a token 2 for `bad`, .5 for `odd`, 4 for `##ness`,
    else -3."""

    max_tokens = 40

    def __init__(self):
        self.tokenizer = tokenizers.Tokenizer(
            tokenizers.models.WordPiece({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]")
        )
        self.tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
        self.tokenizer.normalizer = tokenizers.normalizers.Lowercase()
        self.sequences = []

    def encode(self, texts):
        encodings = [self.tokenizer.encode(replace_surrogates(text), add_special_tokens=False) for text in texts]
        return [(np.array(e.ids, np.int32), np.array(e.offsets, np.int64).reshape(-1, 2)) for e in encodings]

    def join(self, first, second=None):
        assert second is None
        return np.array([2, *first, 3], np.int32), len(first) + 2

    def score_tokens(self, heads, sequences):
        assert heads == ("fluency", "tags")
        assert all(ids[0] == 2 and ids[-1] == 3 and len(ids) == first <= self.max_tokens for ids, first in sequences)
        self.sequences += [ids.tolist() for ids, _ in sequences]
        return [self._score(ids.tolist()) for ids, _ in sequences]

    def _score(self, ids):
        table = {BAD: 2.0, ODD: 0.5, SUFFIX: 4.0}
        # Special tokens have numbers that would be noticed in a mean.
        values = [3.0 - 2 * ids.count(BAD) if token > 3 or token == 1 else 1e6 for token in ids]
        return np.array([values, [table.get(token, -3.0) for token in ids]], np.float64).T


@pytest.fixture(autouse=True)
def model(monkeypatch):
    encoder = Grader()
    monkeypatch.setattr(module.loading, "load_text_encoder", lambda *_, **__: encoder)
    return encoder


def score(*outputs, metric=None, **more):
    records = [Record(item=str(i), system="a", output=output, **more) for i, output in enumerate(outputs)]
    return (metric or Fluency()).score(Shard(records))


def test_the_value_is_the_mean_over_sentences_and_the_minimum_is_a_part():
    [result] = score("Good. Bad bad. Fine.")
    expected = [sigmoid(3), sigmoid(-1), sigmoid(3)]
    assert result.value == pytest.approx(np.mean(expected))
    assert dict(result.parts) == pytest.approx(
        {"sentences": 3, "mean": np.mean(expected), "minimum": sigmoid(-1), "faults": 1}
    )
    [lowest] = score("Good. Bad bad. Fine.", metric=Fluency(aggregation="minimum"))
    assert lowest.value == pytest.approx(sigmoid(-1))


def test_errors_have_the_places_of_words_and_neighbours_are_one():
    output = "Good. Fine bad bad, bad good.\nOdd."
    [result] = score(output, metric=Fluency(threshold=0.7))
    places = [(error.start, error.end) for error in result.errors]
    assert [output[start:end] for start, end in places] == ["bad bad", "bad"]
    assert places == [(11, 18), (20, 23)]
    assert all(error.text == output[error.start : error.end] and error.side == "output" for error in result.errors)
    # `odd` has a probability of .62.
    [more] = score(output, metric=Fluency(threshold=0.6))
    assert [error.text for error in more.errors] == ["bad bad", "bad", "Odd"]


def test_pieces_of_a_word_are_one_word_as_doubtful_as_the_worst_of_them():
    [result] = score("fine fineness fines.")
    assert [(error.text, error.start) for error in result.errors] == [("fineness", 5)]
    assert f"{sigmoid(4):.2f}" in result.errors[0].explanation


def test_words_beyond_punctuation_are_apart():
    words = [Word(0, 3, 0.9), Word(3, 4, 0.1), Word(5, 8, 0.8), Word(9, 12, 0.95)]
    assert merge_words("bad, bad bad", words, 0.5) == [Word(0, 3, 0.9), Word(5, 12, 0.95)]


def test_a_repeated_word_is_called_one():
    [result] = score("Good bad bad, fine.")
    assert "“bad” is repeated" in result.errors[0].explanation
    assert "“the” is repeated" in module._explain("Give me the The cat", 12, 15, 0.9)
    assert "repeated" not in module._explain("bathe the cat", 6, 9, 0.9)
    assert "repeated" not in module._explain("the", 0, 3, 0.9)


def test_penalties_follow_doubt_and_the_length_of_the_stretch():
    [result] = score("bad good. bad bad bad bad bad bad bad good fineness.")
    light, heavy, doubtful = result.errors
    assert light.penalty == pytest.approx(0.5 + 4.5 * (sigmoid(2) - 0.5) / 0.5 / 6, abs=0.01)
    assert heavy.penalty == pytest.approx(0.5 + 4.5 * (sigmoid(2) - 0.5) / 0.5, abs=0.01)
    assert [light.severity, heavy.severity, doubtful.severity] == ["minor", "major", "minor"]
    assert all(0.5 <= error.penalty <= 5 for error in result.errors)


@pytest.mark.parametrize(("task", "aspect"), [("summarization", "Fluency"), ("story", "Language"), (None, "Fluency")])
def test_the_aspect_is_one_of_the_tasks_table(task, aspect):
    [result] = score("bad.", task=task)
    assert result.errors[0].aspect == aspect
    if task:
        assert aspect in shipped_tables()[task].names


def test_a_score_depends_neither_on_its_companions_nor_on_its_place(model):
    outputs = ["Good. Bad bad.", "Fine.", "Bad bad. Good.", "Fine."]
    together = score(*outputs)
    for output, result in zip(outputs, together, strict=True):
        [alone] = score(output)
        assert alone.parts == result.parts
        assert alone.errors == result.errors
    # Equal sentences are read once.
    model.sequences.clear()
    score(*outputs)
    assert len(model.sequences) == 3


def test_a_long_sentence_is_judged_in_parts():
    [result] = score("good fine " * 60 + "bad.")
    assert result.parts["sentences"] > 2
    assert [error.text for error in result.errors] == ["bad"]
    assert result.errors[0].start == 600


def test_offsets_survive_odd_characters():
    output = "Good \ud800 😀 ﬁne\u200b bad \x00 bad."
    [result] = score(output)
    assert [output[error.start : error.end] for error in result.errors] == ["bad", "bad"]


@pytest.mark.parametrize("output", ["", "  \n\t ", "\u200b"])
def test_an_output_without_text_fails_with_a_reason(output):
    [result] = score(output)
    assert math.isnan(result.value)
    assert result.failure.kind in (FailureKind.missing_input, FailureKind.other)


def test_signs_without_words_cannot_be_judged():
    [result] = score("?!...")
    assert result.failure.kind is FailureKind.other
    assert "nothing that the model can read" in result.failure


def test_remarks_count_errors():
    scores = score("Bad, bad.", "Good.")
    assert Fluency().remarks(scores) == [
        "fluency: 2 probable errors of language are marked in 1 of 2 outputs; `metrist explain` shows them"
    ]
    assert Fluency().remarks(score("Good.")) == []


def test_the_reader_returns_every_word():
    [[sentence]] = FluencyReader(Grader()).read(["Good odd bad."])
    assert sentence.value == pytest.approx(sigmoid(1))
    assert [(word.start, word.end) for word in sentence.words] == [(0, 4), (5, 8), (9, 12), (12, 13)]


def test_a_real_encoder_serves_both_heads_in_one_pass(tmp_path, monkeypatch):
    """Value and errors are those of the heads on the states of a random model."""
    monkeypatch.undo()
    folder = encoder_folders.export_random(tmp_path / "model", "bert", {"fluency": 1, "tags": 1, "support": 1})
    output = "The cat sat on the mats. Two cats."
    metric = Fluency(model=str(folder), threshold=0.01)
    [result] = metric.score(Shard([Record(item="1", system="a", output=output)]))
    encoder = loading.load_text_encoder(str(folder))
    sequences = [encoder.join(tokens.ids) for tokens in encoder.encode(["The cat sat on the mats.", "Two cats."])]
    values = encoder.score_spans("fluency", sequences, [[(1, len(ids) - 1)] for ids, _ in sequences])
    expected = [sigmoid(float(value[0, 0])) for value in values]
    assert result.value == pytest.approx(np.mean(expected), rel=1e-9)
    assert result.parts["minimum"] == pytest.approx(min(expected), rel=1e-9)
    tags = [rows[1:-1, 0] for rows in encoder.score_tokens("tags", sequences)]
    highest = max(sigmoid(float(logit)) for logits in tags for logit in logits)
    assert any(f"{highest:.2f}" in error.explanation for error in result.errors)
    assert "weights" in metric.facts()


def test_a_model_without_the_heads_says_which_it_has(tmp_path, monkeypatch):
    monkeypatch.undo()
    folder = encoder_folders.export_random(tmp_path / "model", "bert", {"support": 1})
    with raises_code(ModelError, "unknown_name", "'fluency'", "'support'"):
        Fluency(model=str(folder)).score(Shard([Record(item="1", system="a", output="The cat.")]))


@pytest.mark.parametrize("name", ["fluency", "consistency"])
@pytest.mark.parametrize("setting", ["dtype='float16'", "revision='main'", "trust_remote_code=True"])
def test_settings_that_would_change_nothing_are_refused(name: str, setting: str) -> None:
    with raises_code(SpecError, "unknown_name", setting.split("=")[0]):
        build(f"{name}({setting})")


def test_outputs_in_another_language_are_left_out() -> None:
    left, kept = score("Das kostet 30 Euro im Monat.", "It costs 30 euros.")
    assert left.failure is not None
    assert left.failure.kind is FailureKind.other
    assert "German" in left.failure
    assert left.errors == ()
    assert not math.isnan(kept.value)
