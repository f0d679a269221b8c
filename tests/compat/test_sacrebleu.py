"""The drop-ins beside sacreBLEU 2.6: its own expected values, and the package run on the same texts."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import sacrebleu as peer
from sacrebleu import metrics as peer_metrics

from error_codes import raises_code
from metrist.compat import sacrebleu
from metrist.errors import SpecError
from real_records import sample

# The example of sacreBLEU's README; the expected values are those of its test_bleu.py.
OUTPUTS = ["The dog bit the man.", "It wasn't surprising.", "The man had just bitten him."]
REFERENCES = [
    ["The dog bit the man.", "It was not unexpected.", "The man bit him first."],
    ["The dog had bit the man.", "No one was surprised.", "The man had bitten the dog."],
]
RAGGED = [*REFERENCES[:1], ["The dog had bit the man.", None, "The man had bitten the dog."]]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, 48.530827),
        ({"tokenize": "none"}, 49.1919566),
        ({"tokenize": "13a"}, 48.530827),
        ({"tokenize": "intl"}, 43.91623493),
        ({"smooth_method": "none"}, 48.530827),
    ],
)
def test_expected_values_of_bleu(settings, expected):
    assert sacrebleu.corpus_bleu(OUTPUTS, REFERENCES, **settings).score == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("outputs", "references", "expected"),
    [
        (["this is a test"], ["this is a test"], 1.0),
        (["this is a fest"], ["this is a test"], 0.223606797749979),
        (["test"], ["a test"], 0.3678794411714425),
        (["a test"], ["a test"], 1.0),
        (["a little test"], ["a test"], 0.03218297948685433),
    ],
)
def test_expected_values_of_raw_bleu(outputs, references, expected):
    assert sacrebleu.raw_corpus_bleu(outputs, [references], 0.01).score / 100 == pytest.approx(expected, abs=1e-8)


def test_expected_value_of_bleu_from_counts():
    score = sacrebleu.compute_bleu([9, 7, 5, 3], [10, 8, 6, 4], 11, 11)
    assert score.score / 100 == pytest.approx(0.8375922397, abs=1e-8)
    assert sacrebleu.compute_bleu([0, 0, 0, 0], [4, 4, 2, 1], 0, 1, "floor", 0.0).score == 0


@pytest.mark.parametrize(
    ("outputs", "references", "smoothed", "effective"),
    [  # test_chrf.py of sacreBLEU.
        (["a"], ["a"], 16.6667, 100.0),
        ([""], ["reference"], 0.0, 0.0),
        (["a b c"], ["a b c"], 50.0, 100.0),
        (["a b c"], ["abc"], 50.0, 100.0),
        (["a", "b"], ["a", "c"], 8.3333, 50.0),
        (["aa"], ["ab"], 8.3333, 25.0),
    ],
)
def test_expected_values_of_chrf(outputs, references, smoothed, effective):
    for eps_smoothing, expected in ((True, smoothed), (False, effective)):
        score = sacrebleu.corpus_chrf(outputs, [references], beta=3, eps_smoothing=eps_smoothing)
        assert score.score == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("output", "reference", "expected"),
    [  # test_ter.py of sacreBLEU.
        ("aaaa bbbb cccc dddd", "aaaa bbbb cccc dddd", 0),
        ("dddd eeee ffff", "aaaa bbbb cccc", 1),
        ("", "a", 1),
        ("d e f g h a b c", "a b c d e f g h", 1 / 8),
    ],
)
def test_expected_values_of_ter(output, reference, expected):
    assert sacrebleu.TER().corpus_score([output], [[reference]]).score == pytest.approx(100 * expected, abs=1e-3)


SETTINGS = [
    ("BLEU", {}),
    ("BLEU", {"lowercase": True, "tokenize": "intl", "smooth_method": "floor", "smooth_value": 0.2}),
    ("BLEU", {"smooth_method": "add-k", "max_ngram_order": 3}),
    ("BLEU", {"smooth_method": "add-k", "smooth_value": 2.5, "effective_order": True, "tokenize": "char"}),
    ("BLEU", {"smooth_method": "exp", "smooth_value": 3.0, "trg_lang": "zh"}),
    ("CHRF", {}),
    ("CHRF", {"word_order": 2, "lowercase": True}),
    ("CHRF", {"char_order": 4, "beta": 1, "whitespace": True, "eps_smoothing": True}),
    ("TER", {}),
    ("TER", {"normalized": True, "no_punct": True, "asian_support": True, "case_sensitive": True}),
]


def fields(score):
    """What a score holds, apart from how it prints."""
    return {name: value for name, value in vars(score).items() if not name.startswith("_")}


@pytest.mark.parametrize(("name", "settings"), SETTINGS)
@pytest.mark.parametrize("streams", [REFERENCES[:1], REFERENCES, RAGGED])
def test_scores_print_and_sign_as_in_the_package(name, settings, streams):
    ours, theirs = sacrebleu.METRICS[name](**settings), getattr(peer_metrics, name)(**settings)
    score, expected = ours.corpus_score(OUTPUTS, streams), theirs.corpus_score(OUTPUTS, streams)
    assert fields(score) == {
        key: pytest.approx(value) if isinstance(value, float | list) else value
        for key, value in fields(expected).items()
    }
    for short in (False, True):
        signature = theirs.get_signature().format(short)
        assert ours.get_signature().format(short) == signature
    for width in (1, 4):
        for form in ({}, {"score_only": True}, {"signature": str(theirs.get_signature())}):
            assert score.format(width, **form) == expected.format(width, **form)
        as_json = {"signature": str(theirs.get_signature()), "is_json": True}
        assert score.format(width, **as_json) == expected.format(width, **as_json)
    assert repr(score) == repr(expected)
    assert str(ours.get_signature()) == repr(ours.get_signature())


@pytest.mark.parametrize(("name", "settings"), SETTINGS)
def test_real_texts_agree_with_the_package(data, name, settings):
    records = sample(data("wmt23.en-de"), 15)
    outputs = [" ".join(record.output.split()[:20]) for record in records]
    streams = [[" ".join(record.references[0].split()[:20]) for record in records]]
    ours, theirs = sacrebleu.METRICS[name](**settings), getattr(peer_metrics, name)(**settings)
    assert ours.corpus_score(outputs, streams).score == pytest.approx(theirs.corpus_score(outputs, streams).score)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for output, reference in zip(outputs, streams[0], strict=True):
            score, expected = (metric.sentence_score(output, [reference]) for metric in (ours, theirs))
            assert score.score == pytest.approx(expected.score)


@pytest.mark.parametrize("block", [1 << 21, 7])
@pytest.mark.parametrize("name", ["BLEU", "CHRF", "TER"])
def test_intervals_equal_the_packages(monkeypatch, name, block):
    monkeypatch.setattr(sacrebleu, "_MAX_POSITIONS", block)
    monkeypatch.setenv("SACREBLEU_SEED", "77")
    ours, theirs = sacrebleu.METRICS[name](), getattr(peer_metrics, name)()
    outputs, streams = OUTPUTS * 4, [stream * 4 for stream in REFERENCES]
    score, expected = (metric.corpus_score(outputs, streams, n_bootstrap=60) for metric in (ours, theirs))
    assert "μ" in score.format(3)
    assert score.format(3) == expected.format(3)
    assert str(ours.get_signature()) == str(theirs.get_signature())
    monkeypatch.setenv("SACREBLEU_SEED", "None")
    ours.corpus_score(outputs, streams, n_bootstrap=4)
    assert "|seed:none|" in str(ours.get_signature())


@pytest.mark.parametrize("kind", ["bleu", "chrf", "ter"])
def test_functions_agree_with_the_package(kind):
    corpus, sentence = f"corpus_{kind}", f"sentence_{kind}"
    expected = getattr(peer, corpus)(OUTPUTS, REFERENCES)
    assert getattr(sacrebleu, corpus)(OUTPUTS, REFERENCES).score == pytest.approx(expected.score)
    references = [stream[1] for stream in REFERENCES]
    expected = getattr(peer, sentence)(OUTPUTS[1], references)
    assert getattr(sacrebleu, sentence)(OUTPUTS[1], references).score == pytest.approx(expected.score)


def test_references_may_be_given_once():
    metric = sacrebleu.BLEU(references=REFERENCES)
    assert metric.corpus_score(OUTPUTS, None).score == pytest.approx(48.530827)
    with pytest.raises(RuntimeError, match="no references"):
        sacrebleu.BLEU().corpus_score(OUTPUTS, None)
    with pytest.raises(ValueError, match="score something first"):
        sacrebleu.CHRF().get_signature()


@pytest.mark.parametrize(
    ("outputs", "streams", "error", "message"),
    [
        ("one text", REFERENCES, TypeError, "outputs must be a list of texts"),
        (OUTPUTS, OUTPUTS, TypeError, "a reference stream must be a list of texts"),
        (OUTPUTS, [], ValueError, "references must not be empty"),
        ([], [[]], ValueError, "outputs must not be empty"),
        (OUTPUTS, [["a", "b"]], ValueError, "got 2 and 3"),
        (OUTPUTS, [["a", "b", "c"], ["a"]], ValueError, "different lengths: 3, 1"),
        (OUTPUTS, [["a", None, "c"]], TypeError, "output 1 needs at least one reference"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(outputs, streams, error, message):
    with pytest.raises(error, match=message):
        sacrebleu.BLEU().corpus_score(outputs, streams)


def test_sentences_need_one_text():
    with pytest.raises(TypeError, match="must be one text"):
        sacrebleu.CHRF().sentence_score(["a"], ["a"])
    with pytest.raises(TypeError, match="references must be"):
        sacrebleu.CHRF().sentence_score("a", "a")
    with pytest.warns(UserWarning, match="effective_order"):
        sacrebleu.BLEU().sentence_score("a", ["a"])


def test_tokenised_outputs_are_noticed():
    outputs = ["a ."] * 100
    with pytest.warns(UserWarning, match="seem to be tokenised"):
        sacrebleu.corpus_bleu(outputs, [outputs])
    assert sacrebleu.corpus_bleu(outputs, [outputs], force=True, use_effective_order=True).score == pytest.approx(100)


def test_tokenizers_of_other_packages_are_named():
    assert sacrebleu.BLEU(tokenize="spm")._metric.tokenize == "flores101"
    with raises_code(SpecError, "invalid_value", "tokenize"):
        sacrebleu.BLEU(tokenize="spBLEU-1K")
    assert np.isfinite(sacrebleu.BLEU(trg_lang="zh").corpus_score(["你好"], [["你好吗"]]).score)
