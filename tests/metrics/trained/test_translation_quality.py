"""Translation quality: what is read, how numbers become a value, and which tokens become errors. The model is a
stand-in whose numbers can be computed by hand; the shipped one is tested where it is installed."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from error_codes import raises_code
from metrist import Record
from metrist.errors import ModelError, SpecError
from metrist.metrics import registry
from metrist.metrics.base import Shard
from metrist.metrics.trained import translation_quality
from metrist.metrics.trained.translation_quality import Combination, TranslationQuality, align_sentences, mark_errors
from metrist.models.text_encoder import EncodedText
from metrist.models.windows import TokenizedText
from metrist.scores import FailureKind

UNKNOWN, CLS, SEP = 0, 1, 2
WEIGHTS = {
    "source": {"constant": 0.0, "quality": 1.0, "ranking": 0.0, "marked": 0.0, "chrf": 0.0},
    "both": {"constant": 0.5, "quality": 1.0, "ranking": 0.0, "marked": 0.0, "chrf": 2.0},
    "reference": {"constant": -0.5, "quality": 1.0, "ranking": 0.0, "marked": 0.0, "chrf": 0.0},
}


class WordOverlap:
    """Reads words at white space. The quality of a token is 1 if it occurs after the output, else -1; a token that does
    not is an error of probability .88, a major one (.95) if it begins with an x."""

    heads = ("translation",)
    max_tokens = 40
    sizes = SimpleNamespace(end_token=SEP)

    def __init__(self):
        self.words = ["<unk>", "<s>", "</s>"]
        self.tokenizer = SimpleNamespace(token_to_id=self.words.index)
        self.sequences = []
        self.alone = []

    def number(self, word):
        if word == "?":
            return UNKNOWN
        if word not in self.words:
            self.words.append(word)
        return self.words.index(word)

    def encode(self, texts):
        results = []
        for text in texts:
            ids, offsets, at = [], [], 0
            for word in text.split():
                start = text.index(word, at)
                # As in SentencePiece, the white space before a word belongs to it.
                offsets.append((max(at, start - 1), start + len(word)))
                at = start + len(word)
                ids.append(self.number(word))
            results.append(EncodedText(np.array(ids, np.int32), np.array(offsets, np.int64).reshape(-1, 2)))
        return results

    def join(self, first, second=None):
        parts = [[CLS], first, [SEP]] if second is None else [[CLS], first, [SEP], second, [SEP]]
        return np.concatenate(parts).astype(np.int32), len(first) + 2

    def score_tokens(self, head, sequences):
        assert head == "translation"
        self.sequences += sequences
        results = []
        for ids, first in sequences:
            assert len(ids) <= self.max_tokens
            assert ids[0] == CLS
            assert ids[first - 1] == ids[-1] == SEP
            rest = set(ids[first:].tolist())
            rows = []
            for token in ids[:first].tolist():
                known = token in rest
                major = not known and self.words[token].startswith("x")
                rows.append([1.0 if known else -1.0, 0.0, -2.0 if known else 2.0, 3.0 if major else -3.0])
            results.append(np.array(rows))
        return results

    def read_states(self, sequences, layer=None):
        """Equal words have equal states, of the length 2, and others are at right angles to them. Those of layer 3 are
        all equal."""
        self.alone += sequences
        return [2 * np.eye(200, dtype=np.float32)[ids * (layer != 3)] for ids, _ in sequences]


@pytest.fixture
def model(monkeypatch):
    model = WordOverlap()
    monkeypatch.setattr(translation_quality.loading, "load_text_encoder", lambda *_, **__: model)
    combination = Combination(weights=WEIGHTS, threshold=0.5, languages=frozenset({"en", "de"}))
    monkeypatch.setattr(translation_quality, "read_combination", lambda _: combination)
    return model


def score(*records, **settings):
    return TranslationQuality(**settings).score(Shard(records))


def record(output, source=None, references=(), **fields):
    return Record(item="1", system="a", output=output, source=source, references=references, **fields)


def logistic(number):
    return 1 / (1 + math.exp(-number))


def words(model, sequence):
    ids, first = sequence
    return [model.words[token] for token in ids.tolist()], first


def test_source_and_reference_are_read_after_the_output(model):
    scores = score(record("a b", "s t", ("r",)), record("a b", "s t"), record("a b", None, ("r",)))
    assert [words(model, sequence) for sequence in model.sequences] == [
        (["<s>", "a", "b", "</s>", "r", "</s>", "s", "t", "</s>"], 4),
        (["<s>", "a", "b", "</s>", "s", "t", "</s>"], 4),
        (["<s>", "a", "b", "</s>", "r", "</s>"], 4),
    ]
    assert scores.parts["uses_source"].tolist() == [1, 1, 0]
    assert scores.parts["uses_reference"].tolist() == [1, 0, 1]


@pytest.mark.usefixtures("model")
def test_the_value_combines_the_numbers_of_its_mode():
    scores = score(
        record("a b c d", "a b c x"),
        record("a b c d", "a b c x", ("a b c d",)),
        record("a b c d", None, ("a b y z",)),
    )
    # Three of four words are in the source: quality (3 - 1) / 4. chrF of equal texts is 1.
    assert scores.values == pytest.approx([logistic(0.5), logistic(0.5 + 1 + 2), logistic(-0.5 + 0)])
    assert scores.parts["quality"] == pytest.approx([0.5, 1.0, 0.0])
    assert "chrf" not in score(record("a b", "a b")).parts


def test_several_references_are_averaged_and_equal_ones_are_read_once(model):
    [both] = score(record("a b", None, ("a b", "a c", "a b", " ")))
    assert len(model.sequences) == 2
    # b is in one of two references.
    assert both.parts["quality"] == pytest.approx((1 + 0) / 2)


@pytest.fixture
def matching(monkeypatch, model):
    """The stand-in with weights for matched tokens."""
    weights = {mode: {**own, "reference_precision": 1.0, "source_recall": 2.0} for mode, own in WEIGHTS.items()}
    combination = Combination(weights=weights, threshold=0.5)
    monkeypatch.setattr(translation_quality, "read_combination", lambda _: combination)
    return model


def test_tokens_are_matched_with_those_of_reference_and_source(matching):
    results = score(
        record("a b c d", "a b", ("a b c x y",)),
        record("a b c d", "a b x y"),
        record("a b c d", None, ("x y", "a d x x", "a b")),
    )
    assert results.parts["reference_precision"] == pytest.approx([3 / 4, np.nan, 2 / 4], nan_ok=True)
    # The third reference matches better than the second: (2 / 4 + 2 / 2) against (2 / 4 + 2 / 4).
    assert results.parts["reference_recall"] == pytest.approx([3 / 5, np.nan, 1.0], nan_ok=True)
    assert results.parts["source_precision"] == pytest.approx([2 / 4, 2 / 4, np.nan], nan_ok=True)
    assert results.parts["source_recall"] == pytest.approx([1.0, 2 / 4, np.nan], nan_ok=True)
    # Two of four words are in the second record's source: its quality is 0.
    assert results.values[1] == pytest.approx(logistic(2 * 2 / 4))
    # Each text was read once, alone.
    read = [tuple(words(matching, sequence)[0][1:-1]) for sequence in matching.alone]
    assert sorted(read) == sorted(
        tuple(text.split()) for text in ("a b c d", "a b c x y", "a b", "a b x y", "x y", "a d x x")
    )


@pytest.mark.usefixtures("matching")
def test_matches_are_those_of_the_layer_that_the_model_names(monkeypatch):
    combination = translation_quality.read_combination("")
    monkeypatch.setattr(translation_quality, "read_combination", lambda _: replace(combination, layer=3))
    [result] = score(record("a b c d", None, ("x y",)))
    assert result.parts["reference_precision"] == pytest.approx(1.0)


@pytest.mark.usefixtures("matching")
@pytest.mark.parametrize("references", [(), (" ".join(f"o{n}" for n in range(0, 100, 2)),)])
def test_windows_are_matched_as_one_text(references):
    output = " ".join(f"o{n}" for n in range(100))
    [result] = score(record(output, output, references))
    assert result.parts["windows"] > 1
    # Output and source are cut at the same places.
    assert result.parts["source_precision"] == pytest.approx(1.0)
    if references:
        assert result.parts["reference_precision"] == pytest.approx(0.5, abs=0.06)


@pytest.mark.usefixtures("matching")
def test_matches_do_not_depend_on_companions():
    records = [record("a b c", "a x", ("b c",)), record("c d", "a x"), record("b", None, ("b c", "a"))]
    together = score(*records)
    for number, own in enumerate(records):
        assert score(own).values[0] == together.values[number]


def test_tokens_are_not_matched_without_a_weight(model):
    [result] = score(record("a b", "a", ("b",)))
    assert model.alone == []
    assert "reference_precision" not in result.parts


def test_references_can_be_left_out(model):
    [result] = score(record("a b", "a b", ("z",)), references=False)
    assert words(model, model.sequences[0])[0] == ["<s>", "a", "b", "</s>", "a", "b", "</s>"]
    assert result.value == pytest.approx(logistic(1.0))


@pytest.mark.usefixtures("model")
def test_a_record_without_anything_to_compare_has_no_score():
    scores = score(record("a b"), record(" \n", "s"), record("a", "  ", ("",)), record("a", "a"))
    assert [scores.failures[i].kind for i in range(3)] == [FailureKind.missing_input] * 3
    assert not math.isnan(scores.values[3])
    assert all(scores.failures[i].kind is FailureKind.missing_input for i in score(record("a", None)).failures)


@pytest.mark.usefixtures("model")
def test_words_that_the_model_marks_become_errors_with_offsets():
    output = "a  good xbad xworse b fine"
    [result] = score(record(output, "a b"))
    marked = [(error.text, output[error.start : error.end], error.severity, error.penalty) for error in result.errors]
    # A run of tokens is one error, and a major one if any of its tokens is.
    assert marked == [("good xbad xworse",) * 2 + ("major", 5.0), ("fine", "fine", "minor", 1.0)]
    assert not score(record("a b", "a b")).errors
    assert not score(record(output, "a b"), threshold=0.9).errors


def test_errors_leave_out_white_space_and_empty_tokens():
    offsets = np.array([[0, 2], [2, 3], [3, 3], [3, 6]])
    errors = list(mark_errors("ab cd ", offsets, np.array([0.1, 0.9, 0.9, 0.1]), np.zeros(4), 0.5))
    assert errors == []
    [error] = mark_errors("ab cd ", offsets, np.array([0.1, 0.9, 0.9, 0.8]), np.zeros(4), 0.5)
    assert (error.start, error.end, error.text) == (3, 5, "cd")


@pytest.mark.parametrize("references", [(), ("r " * 90,)])
def test_long_texts_are_read_whole_in_windows_at_the_same_places(model, references):
    output = " ".join(f"o{n}" for n in range(100))
    source = " ".join(f"o{n}" for n in range(100))
    [result] = score(record(output, source, references))
    read = [word for sequence in model.sequences for word in words(model, sequence)[0][1 : sequence[1] - 1]]
    assert read == output.split()
    assert result.parts["windows"] == len(model.sequences) > 1
    # The windows of source and output are the same words.
    assert result.parts["quality"] == pytest.approx(1.0)


def test_windows_begin_at_sentences_where_they_can(model):
    sentence = "one two three four five six seven eight nine."
    text = " ".join([sentence] * 6)
    score(record(text, text))
    assert len(model.sequences) > 1
    for ids, first in model.sequences:
        assert model.words[ids[1]] == "one"
        assert model.words[ids[first - 2]] == "nine."


@pytest.mark.usefixtures("model")
def test_a_short_output_beside_a_very_long_source_fits():
    [result] = score(record("a b", "s " * 5000))
    assert not math.isnan(result.value)
    assert score(record("a " * 5000, "s"))[0].parts["windows"] > 100


COPY = "The dog sleeps in the garden"


@pytest.mark.usefixtures("model")
def test_a_copy_of_the_source_is_no_translation():
    output = f" {COPY.upper()}! "
    [result] = score(record(output, f"{COPY}."))
    assert result.value == 0
    [error] = result.errors
    assert (error.severity, output[error.start : error.end]) == ("major", f"{COPY.upper()}!")
    assert "1 of 1 output repeats its source" in " ".join(TranslationQuality().remarks(score(record(output, COPY))))
    # Names and numbers are the same in most languages, and sometimes a whole text is.
    for other in (record("Angela Merkel 2017", "Angela Merkel 2017"), record(COPY, COPY, (COPY,))):
        assert score(other)[0].value > 0.5
    # Neither time nor memory explodes with texts that repeat one word.
    assert score(record("a " * 50_000, "a " * 50_000))[0].value == 0
    # The same words in another order, or a source that only contains the words.
    assert score(record("garden the in sleeps dog the", COPY))[0].value > 0


def test_errors_are_widened_to_words_but_not_in_scripts_without_spaces():
    text = "Der Hund schläft. 狗在花园里睡觉"
    offsets = np.array([[0, 8], [8, 11], [11, 13], [13, 16], [16, 17], [17, 20], [20, 23], [23, 25]])
    marked = list(mark_errors(text, offsets, np.array([0, 0, 0.9, 0, 0, 0, 0.9, 0]), np.zeros(8), 0.5))
    assert [(error.text, text[error.start : error.end]) for error in marked] == [("schläft",) * 2, ("花园里",) * 2]
    # Two marked pieces of one word are one error.
    assert len(list(mark_errors(text, offsets, np.array([0, 0.9, 0, 0.9, 0, 0, 0, 0]), np.zeros(8), 0.5))) == 1


@pytest.mark.usefixtures("model")
def test_remarks_tell_what_was_missing():
    metric = TranslationQuality()
    scores = score(record("a", "a"), record("a", None, ("a",)), record("? ? b", "a b"), record("o " * 50, "o " * 50))
    remarks = " ".join(metric.remarks(scores))
    assert "1 of 4 outputs was judged by references alone" in remarks
    assert "3 of 4 outputs were judged without a reference" in remarks
    assert "1 of 4 outputs was too long" in remarks
    assert "1 of 4 outputs has many characters that the model does not know" in remarks
    assert metric.remarks(score(record("a", "a"))) == []


@pytest.mark.usefixtures("model")
def test_misuse_names_other_tasks_and_languages():
    metric = TranslationQuality()
    assert metric.describe_misuse([record("a", "a", language="en-de", task="translation")]) == []
    assert metric.describe_misuse([record("a", "a", language="en_US-deu")]) == []
    [warning] = metric.describe_misuse([record("a", "a", language="et-en")])
    assert "from or into et" in warning
    [warning] = metric.describe_misuse([record("a", "a", task="summarization")])
    assert "'summarization'" in warning


def test_another_kind_of_model_is_refused(model, monkeypatch):
    monkeypatch.setattr(model, "heads", ("support",))
    with raises_code(ModelError, "unknown_name", "'translation'"):
        score(record("a", "a"))


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"translation": []},
        {"translation": {"weights": WEIGHTS}},
        {"translation": {"weights": {"source": WEIGHTS["source"]}, "threshold": 0.5}},
        {"translation": {"weights": {**WEIGHTS, "both": {**WEIGHTS["both"], "chrf": math.nan}}, "threshold": 0.5}},
        {"translation": {"weights": WEIGHTS, "threshold": 2}},
        {"translation": {"weights": WEIGHTS, "threshold": 0.5, "layer": 13}, "layers": 12},
        {"translation": {"weights": WEIGHTS, "threshold": 0.5, "layer": True}, "layers": 12},
    ],
)
def test_a_damaged_configuration_is_refused(monkeypatch, config):
    monkeypatch.setattr(translation_quality, "find_weights", lambda _: SimpleNamespace(config=config))
    with raises_code(ModelError, "invalid_value", "config.json"):
        translation_quality.read_combination("somewhere")


def test_the_configuration_gives_weights_threshold_and_languages(monkeypatch):
    config = {"translation": {"weights": WEIGHTS, "threshold": 0.4, "languages": ["en", "de"]}}
    monkeypatch.setattr(translation_quality, "find_weights", lambda _: SimpleNamespace(config=config))
    combination = translation_quality.read_combination("somewhere")
    weights = {
        mode: {**own, **dict.fromkeys(translation_quality.OPTIONAL_FEATURES, 0.0)} for mode, own in WEIGHTS.items()
    }
    assert combination == Combination(weights=weights, threshold=0.4, languages=frozenset({"en", "de"}))
    assert combination.combine("source", {"quality": 1e9}) == pytest.approx(1)
    assert combination.combine("source", {"quality": -1e9}) == pytest.approx(0)


def test_settings_are_checked():
    assert registry.build("translation_quality(threshold=0.3)").text == "translation_quality(threshold=0.3)"
    with raises_code(SpecError, "invalid_value", "threshold", "1.5"):
        TranslationQuality(threshold=1.5)


@pytest.mark.parametrize(
    ("output", "source", "groups"),
    [
        ("The cat sat. It ran off.", "Die Katze sass. Sie lief weg.", [((0, 3), (0, 3)), ((3, 6), (3, 6))]),
        # Two sentences for one: their lengths together are those of the other.
        (
            "Yes. A long sentence about many a thing.",
            "Ja. Ein langer Satz. Er sagt sehr vieles.",
            [((0, 1), (0, 1)), ((1, 8), (1, 8))],
        ),
        ("One sentence.", "Ann sat still. Bob ran off. Cid ate fish. Dan hid here.", []),
    ],
)
def test_sentences_stand_beside_those_that_they_translate(output, source, groups):
    own, other = TokenizedText.read([output, source], WordOverlap())
    assert align_sentences(own, other, 20) == groups


def test_each_sentence_counts_as_much_without_a_reference(model, monkeypatch):
    combination = translation_quality.read_combination("")
    monkeypatch.setattr(translation_quality, "read_combination", lambda _: replace(combination, sentences=True))
    [result] = score(record("Good dogs run home fast. Bad.", "Good dogs run home fast. Poor cats."))
    # The first sentence is all in its source (1), the second is not (-1).
    assert result.parts["quality"] == pytest.approx(0.0)
    assert result.parts["windows"] == 1
    assert len(model.sequences) == 2
