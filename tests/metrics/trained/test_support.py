"""Sentences beside windows of a source. The model is a stand-in that can be computed by hand: it looks for the words of
a sentence in the window."""

import json
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from error_codes import raises_code
from metrist.errors import ModelError
from metrist.metrics.trained.sentence_metric import Word
from metrist.metrics.trained.support import (
    ErrorSettings,
    SupportReader,
    SupportSettings,
    TokenizedSource,
    choose_window,
)
from metrist.models import windows as window_module
from metrist.models.windows import TokenizedText, list_windows
from metrist.scores import Failure

tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")

#: Words below this number are as common as function words for the choice of windows.
COMMON = 2101
WORDS = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, ".": 4, ",": 6000} | {f"w{n}": n for n in range(5, 6000)}


def make_tokenizer():
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(WORDS, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.encode_special_tokens = True
    return tokenizer


class Overlap:
    """The logit of a span is 4 if all its words are in the window, else minus the number of those that are not."""

    max_tokens = 160
    heads: tuple[str, ...] = ("support",)
    folder: Path | None = None

    def __init__(self):
        self.tokenizer = make_tokenizer()
        self.calls = []

    def encode(self, texts):
        # A lone surrogate is read as a question mark, as by the real encoder.
        clean = [text.encode("utf-8", "replace").decode() for text in texts]
        encodings = [self.tokenizer.encode(text, add_special_tokens=False) for text in clean]
        return [(np.array(e.ids, np.int32), np.array(e.offsets, np.int64).reshape(-1, 2)) for e in encodings]

    def join(self, first, second=None):
        return np.concatenate([[2], first, [3], second, [3]]).astype(np.int32), len(first) + 2

    def score_spans(self, head, sequences, spans):
        assert head == "support"
        self.calls += zip(sequences, spans, strict=True)
        results = []
        for (ids, first), own in zip(sequences, spans, strict=True):
            assert len(ids) <= self.max_tokens
            assert ids[0] == 2
            assert ids[first - 1] == ids[-1] == 3
            window = set(ids[first:-1].tolist())
            missing = [sum(token not in window for token in ids[a:b].tolist()) for a, b in own]
            results.append(np.array([4.0 if not count else -count for count in missing]))
        return results


class MarkingOverlap(Overlap):
    """Marks words, too: a token has the error logit 3 if it is not in the window, else -3, and the support of a
    sentence is the mean over its tokens of 2 for those that are there and -6 for the others."""

    heads = ("support", "errors")

    def score_tokens(self, head, sequences):
        assert tuple(head) == ("support", "errors")
        self.calls += [(sequence, None) for sequence in sequences]
        results = []
        for ids, first in sequences:
            window = set(ids[first:-1].tolist())
            results.append(
                np.array([[2.0, -3.0] if token in window else [-6.0, 3.0] for token in ids[:first].tolist()])
            )
        return results

    def score_spans(self, *_):
        raise AssertionError("the same pass serves both heads")


def make_text(rng, sentences, words=8):
    return " ".join(" ".join(f"w{rng.randrange(COMMON, 6000)}" for _ in range(words)) + "." for _ in range(sentences))


def test_the_window_is_what_the_folder_says_unless_the_metric_says_it(tmp_path):
    SupportSettings(window=130).write(tmp_path)
    source = make_text(random.Random(13), 40)
    for window, longest in ((None, 130), (140, 140), (500, Overlap.max_tokens)):
        model = Overlap()
        model.folder = tmp_path
        read([(source, "w5 w6.")], model, window)
        assert max(len(ids) for (ids, _), _ in model.calls) == longest


def test_logits_are_calibrated_by_the_scale_and_shift_of_the_folder():
    source, output = "w3000 w3001.", "w3000. w3001 w5000. w5000 w5001."
    [result] = read([(source, output)], settings=SupportSettings(scale=0.5, shift=0.25))
    assert logit(result.probabilities) == pytest.approx([2.25, -0.25, -0.75])


COPY_SOURCE = (
    'w3000 w3001 w3002 w3003 w3004 w3005, w3006 w3007. No w3010 w3011 w3012 w3013 w3014 w3015. "w3020 w3021 w3022 w3023'
    ' w3024 w3025!" w3030 w3031 w3032 w3033 w3034 w3035 w3036 w3037,500. w3040 w3041 w3042 w3043 w3044 w3045\n'
    "w3060 w3061 w3062 w3063 w3064 w3065 xyz.\nw3050 w3051 w3052 w3053 w3054 w3055"
)


@pytest.mark.parametrize(
    ("sentence", "copied"),
    [
        ("w3000 w3001 w3002 w3003 w3004 w3005, w3006 w3007.", True),
        ("w3000 w3001 w3002 w3003 w3004 w3005.", True),  # Up to a comma.
        ("“w3000 w3001 w3002 w3003 w3004 w3005!”", True),  # Other marks.
        ("w3000 w3001 w3002 w3003 w3004.", False),  # Short, and it goes on.
        ("w3000 w3001 w3002 w3003 w3004 w3005 w3006 w3007.", False),  # A comma is missing.
        ("w3010 w3011 w3012 w3013 w3014 w3015.", False),  # The source denies it.
        ("w3020 w3021 w3022 w3023 w3024 w3025.", True),
        ("w3030 w3031 w3032 w3033 w3034 w3035 w3036 w3037.", False),  # Part of a number.
        ("w3040 w3041 w3042 w3043 w3044 w3045.", True),  # A line.
        ("w3050 w3051 w3052 w3053 w3054 w3055.", True),  # The last line.
        ("w3050 w3051 w3052 w3053 w3055 w3054.", False),
        ("w3060 w3061 w3062 w3063 w3064 w3065 qqq.", False),  # Unknown words are not equal.
    ],
)
def test_a_sentence_that_is_copied_whole_has_the_probability_of_the_folder_and_is_not_read(sentence, copied):
    model = Overlap()
    settings = SupportSettings(copied=0.875)
    [result] = read([(COPY_SOURCE, f"w3001 w5000. {sentence} w3007.")], model, settings=settings)
    assert (result.probabilities[1] == 0.875) == copied
    assert logit(result.probabilities[[0, 2]]) == pytest.approx([-1, 4])
    assert sum(len(spans) for _, spans in model.calls[:1]) == 3 - copied
    # Without the setting, every sentence is read.
    [read_all] = read([(COPY_SOURCE, f"w3001 w5000. {sentence} w3007.")])
    assert 0.875 not in read_all.probabilities
    assert read_all.spans == result.spans


def test_a_sentence_that_is_repeated_is_read_once_and_has_one_probability():
    model = Overlap()
    output = "w3001 w5000. " * 40 + "w3001. " + "w3001 w5000. " * 2
    [result] = read([("w3000 w3001.", output)], model)
    assert [output[a:b] for a, b in result.spans] == ["w3001 w5000."] * 40 + ["w3001."] + ["w3001 w5000."] * 2
    assert logit(result.probabilities) == pytest.approx([-1.0] * 40 + [4.0] + [-1.0] * 2)
    assert [len(spans) for _, spans in model.calls] == [2]


def test_an_output_of_copied_sentences_needs_no_model():
    model = Overlap()
    [result] = read([(COPY_SOURCE, COPY_SOURCE.split(".")[0] + ".")], model, settings=SupportSettings(copied=0.9))
    assert result.probabilities.tolist() == [0.9]
    assert not model.calls
    assert result.evidence(0)


@pytest.mark.parametrize("count", [1, 2, 5, 12])
def test_the_folder_says_how_many_sentences_are_read_together(count, tmp_path):
    SupportSettings(sentences=count).write(tmp_path)
    rng = random.Random(12)
    source = make_text(rng, 3, 6)
    sentences = [make_text(rng, 1, 4) for _ in range(7)]
    model = Overlap()
    model.folder = tmp_path
    [together] = read([(source, " ".join(sentences))], model)
    sizes = [len(spans) for _, spans in model.calls]
    assert sizes == [count] * (7 // count) + [7 % count] * (7 % count > 0)
    alone = [read([(source, sentence)])[0].probabilities[0] for sentence in sentences]
    assert together.probabilities.tolist() == alone
    # Sentences stand one after the other, from the token after the first, as in the rows of the training.
    (ids, first), spans = model.calls[0]
    assert spans[0][0] == 1
    assert all(before[1] == after[0] for before, after in pairwise(spans))
    assert spans[-1][1] == first - 1
    assert ids[first:-1].tolist() == model.tokenizer.encode(source).ids


@pytest.mark.parametrize(
    ("count", "sizes"),
    [(12, [12]), (13, [13]), (14, [14]), (15, [12, 3]), (24, [12, 12]), (26, [12, 14]), (27, [12, 12, 3])],
)
def test_one_or_two_sentences_more_do_not_take_a_pass_of_their_own(count, sizes):
    model = Overlap()
    output = " ".join(f"w{3000 + n}." for n in range(count))
    read([("w2999 w2998.", output)], model, settings=SupportSettings(sentences=12))
    assert [len(spans) for _, spans in model.calls] == sizes


def test_many_sentences_fill_little_more_than_half_of_a_window_even_if_the_source_is_short():
    model = Overlap()
    model.max_tokens = 512
    output = make_text(random.Random(14), 12, 39)
    read([("w2999 w2998.", output)], model, settings=SupportSettings(sentences=12))
    assert [first - 2 for (_, first), _ in model.calls] == [280, 200]


def test_without_settings_three_sentences_are_read_together():
    model = Overlap()
    read([("w3000 w3001 w3002 w3003.", "w3000. w3001. w3002. w3003.")], model)
    assert [len(spans) for _, spans in model.calls] == [3, 1]
    assert SupportSettings() == SupportSettings(sentences=3)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"metrist_support": 2}',
        '{"metrist_support": 1, "sentences": 0}',
        '{"metrist_support": 1, "sentences": true}',
        '{"metrist_support": 1, "sentences": 1e3}',
        '{"metrist_support": 1, "sentence": 3}',
        '{"metrist_support": 1, "window": 12}',
        '{"metrist_support": 1, "scale": 0}',
        '{"metrist_support": 1, "scale": "1"}',
        '{"metrist_support": 1, "shift": NaN}',
        '{"metrist_support": 1, "copied": 1}',
        '{"metrist_support": 1, "copied": false}',
        "[" * 100_000,
    ],
)
def test_settings_that_cannot_be_used_name_the_file(content, tmp_path):
    path = tmp_path / "support.json"
    path.write_text(content)
    model = Overlap()
    model.folder = tmp_path
    # JSON that cannot be read at all is refused before the settings are.
    is_json = content and not content.startswith("[[")
    code = "unreadable" if is_json else "model_unusable"
    with raises_code(ModelError, code, path):
        read([("w5", "w5.")], model)


def read(pairs, model=None, window=512, settings=None):
    return SupportReader(model or Overlap(), window=window, threshold=0.5, override=settings).read(pairs)


def logit(probabilities):
    return np.log(probabilities / (1 - probabilities))


def test_every_sentence_of_the_source_supports_itself_wherever_it_is():
    rng = random.Random(3)
    source = make_text(rng, 200)
    tokens = source.split(". ")
    for sentence in (0, 3, 17, 18, 19, 100, 198, 199):
        output = tokens[sentence].rstrip(".") + "."
        [result] = read([(source, output)])
        assert logit(result.probabilities) == pytest.approx([4.0])


def test_an_unsupported_sentence_gets_the_best_of_all_windows():
    rng = random.Random(4)
    source = make_text(rng, 120)
    words = source.replace(".", "").split()
    for at in range(0, len(words) - 12, 37):
        # Six neighbouring words of the source and two of elsewhere: the best window lacks only those two.
        output = " ".join([*words[at : at + 6], "w2200x", "w2201x"]) + "."
        model = Overlap()
        [result] = read([(source, output)], model)
        assert logit(result.probabilities) == pytest.approx([-2.0])
        seen = [token for (ids, first), _ in model.calls for token in ids[first:-1].tolist()]
        assert set(seen) == set(model.tokenizer.encode(source).ids)


def test_windows_are_read_only_as_long_as_a_sentence_is_unsupported():
    rng = random.Random(5)
    source = make_text(rng, 300)
    sentences = [sentence.strip() + "." for sentence in source.split(".")[:-1]]
    model = Overlap()
    [result] = read([(source, f"{sentences[150]} {sentences[151]}")], model)
    assert (result.probabilities > 0.9).all()
    assert len(model.calls) == 1
    model = Overlap()
    [result] = read([(source, f"{sentences[150]} w6 w7 w8. {sentences[151]}")], model)
    assert (result.probabilities > 0.9).tolist() == [True, False, True]
    # What is supported is not read again: only the sentence in the middle is.
    assert [len(spans) for _, spans in model.calls[1:]] == [1] * (len(model.calls) - 1)


def test_of_a_long_source_the_passages_that_bear_on_the_sentences_are_read_in_one_pass():
    rng = random.Random(8)
    sentences = [make_text(rng, 1) for _ in range(200)]
    source = " ".join(sentences)
    # Words of three sentences far apart: no window has them all.
    joined = " ".join(word for at in (190, 20, 90) for word in sentences[at].split()[2:4]) + "."
    outputs = [joined, f"{sentences[50]} w6. {sentences[199]}"]
    settings = SupportSettings(passages=True)
    model = Overlap()
    results = read([(source, output) for output in outputs], model, 128, settings)
    assert logit(read([(source, joined)], window=128)[0].probabilities).max() < 0
    assert logit(results[0].probabilities) == pytest.approx([4.0])
    assert logit(results[1].probabilities) == pytest.approx([4.0, -1.0, 4.0])
    assert len(model.calls) == len(outputs)
    for (ids, first), _ in model.calls:
        # Whole sentences in their order, as many as fit.
        text = model.tokenizer.decode(ids[first:-1].tolist()).replace(" .", ".")
        places = [sentences.index(sentence.strip() + ".") for sentence in text.split(".")[:-1]]
        assert places == sorted(set(places))
        assert len(ids) + len(model.tokenizer.encode(sentences[0]).ids) > 128


def test_a_source_that_fits_is_read_whole_rather_than_in_passages():
    rng = random.Random(9)
    source = make_text(rng, 6)
    model = Overlap()
    read([(source, source.split(".")[3] + ".")], model, 128, SupportSettings(passages=True))
    [((ids, first), _)] = model.calls
    assert ids[first:-1].tolist() == model.tokenizer.encode(source).ids


def test_results_do_not_depend_on_the_other_pairs():
    rng = random.Random(6)
    sources = [make_text(rng, count) for count in (1, 5, 40, 90)]
    outputs = [make_text(rng, 2), *(" ".join(source.split()[2:14]) for source in sources), make_text(rng, 30)]
    pairs = [(source, output) for source in sources for output in outputs] * 2
    together = read(pairs)
    for pair, result in zip(pairs, together, strict=True):
        [alone] = read([pair])
        np.testing.assert_array_equal(alone.probabilities, result.probabilities)
        assert alone.spans == result.spans


def test_each_text_is_tokenized_once():
    rng = random.Random(7)
    source, outputs = make_text(rng, 9), [make_text(rng, 2) for _ in range(5)]
    texts = []

    class Recorder(Overlap):
        def encode(self, given):
            texts.extend(given)
            return super().encode(given)

    model = Recorder()
    read([(source, output) for output in outputs] * 3, model)
    assert sorted(texts) == sorted([source, *outputs])


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 100, 449, 1000, 4001])
@pytest.mark.parametrize("room", [64, 100, 449])
def test_windows_cover_the_source(length, room):
    for start in range(0, max(length - room, 0) + 1, 23):
        first = (start, min(start + room, length))
        windows = list_windows(length, [first], room)
        assert all(0 <= a < b <= length and b - a <= room for a, b in windows)
        covered = sorted([first, *windows])
        assert covered[0][0] == 0
        windows_of_rest = list_windows(length, covered[::2], room)
        assert {at for a, b in [*covered[::2], *windows_of_rest] for at in range(a, b)} == set(range(length))
        assert max(end for _, end in covered) == length
        # Neighbours overlap, so that no statement is cut in two in every window.
        assert all(second[0] <= a[1] - 16 for a, second in pairwise(covered))


def test_the_first_window_has_most_of_the_rare_words():
    rng = np.random.default_rng(8)
    for _ in range(50):
        source = rng.integers(COMMON - 300, COMMON + 300, 700).astype(np.int32)
        sentence = rng.choice(source, 20).astype(np.int32)
        start, end = choose_window(source, sentence, 200)
        wanted = {token for token in sentence.tolist() if token >= COMMON}
        counts = {at: sum(t in wanted for t in source[at : at + 200].tolist()) for at in [*range(0, 500, 16), 500]}
        assert end - start == 200
        assert counts[start] == max(counts.values())


def test_places_of_sentences_are_exact():
    text = "  w5 w6 w7.\n\nw8 w9 (w10)  . ...  w11 w12 "
    [result] = read([("w5 w6", text)])
    assert [text[a:b] for a, b in result.spans] == ["w5 w6 w7.", "w8 w9 (w10)  . ...", "w11 w12"]


def test_a_text_without_a_sentence_end_is_judged_in_parts_between_words():
    rng = random.Random(9)
    words = [f"w{rng.randrange(5, 6000)}" for _ in range(1000)]
    output = " ".join(words)
    [result] = read([(output, output)])
    assert len(result.spans) == 25
    assert " ".join(output[a:b] for a, b in result.spans) == output
    assert (result.probabilities > 0.9).all()


def test_texts_that_cannot_be_read_fail_with_a_reason():
    results = read([("w5 w6", "..."), ("w5 w6", "xyz qqq"), ("xyz", "w5"), ("w5", "w5")])
    assert [str(result) for result in results[:3] if isinstance(result, Failure)] == [
        "the output has nothing that the model can read",
        "the output has nothing that the model can read",
        "the source has nothing that the model can read",
    ]
    assert not isinstance(results[3], Failure)


def test_long_texts_are_tokenized_in_parts_with_the_same_result(monkeypatch):
    rng = random.Random(10)
    text = make_text(rng, 60) + "\n\n" + "x" * 300 + " \ud800 é 漢 " + make_text(rng, 3)
    [whole] = TokenizedText.read([text], Overlap())
    monkeypatch.setattr(window_module, "_CHARACTERS", 120)
    other = make_text(rng, 2)
    first, parts, last = TokenizedText.read([other, text, other], Overlap())
    np.testing.assert_array_equal(first.ids, last.ids)
    known = whole.ids != 1
    assert known.sum() > 500
    np.testing.assert_array_equal(whole.ids[known], parts.ids[parts.ids != 1])
    np.testing.assert_array_equal(whole.starts[known], parts.starts[parts.ids != 1])
    for start, end, token in zip(parts.starts, parts.ends, parts.ids, strict=True):
        assert token == 1 or WORDS[text[start:end]] == token


def test_the_evidence_is_the_passage_with_most_of_the_rare_words():
    source_text = "w3000 w10 w11. w3001 w3002 w12 is here.\nw3001 w3000 w3000 w3000\nw3000 again. w3000."
    [source] = TokenizedSource.read([source_text], Overlap())

    def find(*words):
        place = source.find_passage(np.array(words, np.int32))
        return place and source_text[slice(*place)]

    assert find(3001, 3002) == "w3001 w3002 w12 is here."
    # 3001 is in fewer passages than 3000, and a word counts once.
    assert find(3001, 3000) == "w3001 w3000 w3000 w3000"
    assert find(3000) == "w3000 w10 w11."
    assert find(10, 11) is None
    assert find(4000) is None


def test_a_very_long_source_is_read_whole_in_few_rounds():
    rng = random.Random(11)
    source = make_text(rng, 4000)
    rounds = []

    class Counter(Overlap):
        def score_spans(self, head, sequences, spans):
            rounds.append(len(sequences))
            return super().score_spans(head, sequences, spans)

    model = Counter()
    [result] = read([(source, "w5 w6 w7.")], model)
    assert result.probabilities[0] < 0.5
    assert rounds[:4] == [1, 1, 2, 4]
    assert len(rounds) < 12
    seen = {int(token) for (ids, first), _ in model.calls for token in ids[first:-1]}
    assert seen == set(model.tokenizer.encode(source).ids)


def read_all(reader, pairs):
    return reader.read(pairs)


SURE = 1 / (1 + np.exp(-3))


def test_a_model_with_a_head_for_errors_marks_words_in_the_same_pass():
    output = " w3000 w5000  w5001 w3001. w3002 w3003."
    model = MarkingOverlap()
    [result] = read_all(SupportReader(model, threshold=0.5), [("w3000 w3001 w3002 w3003.", output)])
    assert logit(result.probabilities) == pytest.approx([(3 * 2 - 2 * 6) / 5, 2])
    [mark] = result.find_marks(0, supported=False)
    assert (output[mark.start : mark.end], mark.probability) == ("w5000  w5001", pytest.approx(SURE))
    assert result.find_marks(1, supported=False) == []
    assert len(model.calls) == 1


def test_what_one_window_supports_is_not_marked():
    rng = random.Random(5)
    words = make_text(rng, 60).split()
    # The sentence shares its words with two ends of a source that no window holds together.
    source = " ".join(["w3000 w3001.", *words, "w3002 w3003."])
    output = "w3000 w3001 w3002 w3003 w5999."
    model = MarkingOverlap()
    [result] = read_all(SupportReader(model, threshold=0.9), [(source, output)])
    assert len(model.calls) > 1
    [mark] = result.find_marks(0, supported=False)
    assert output[mark.start : mark.end] == "w5999"


def test_repeated_sentences_are_marked_wherever_they_stand():
    output = "w5000 w3000. w3001. w5000 w3000."
    [result] = read_all(SupportReader(MarkingOverlap(), threshold=0.5), [("w3000 w3001.", output)])
    marks = [result.find_marks(i, supported=False) for i in range(3)]
    assert [[(mark.start, mark.end) for mark in own] for own in marks] == [[(0, 5)], [], [(20, 25)]]


def test_errors_json_says_how_words_are_marked(tmp_path):
    pair = ("w3000 w3001.", "w3000 w5000.")

    def mark(supported=False, **facts):
        (tmp_path / "errors.json").write_text(json.dumps({"metrist_errors": 1, **facts}))
        model = MarkingOverlap()
        model.folder = tmp_path
        [result] = read_all(SupportReader(model, threshold=0.5), [pair])
        return [word.probability for word in result.find_marks(0, supported=supported)]

    assert mark() == [pytest.approx(SURE)]
    assert mark(scale=0.5, shift=0.25) == [pytest.approx(1 / (1 + np.exp(-1.75)))]
    assert mark(threshold=0.97) == []
    assert mark(supported=True) == [pytest.approx(SURE)]
    assert mark(supported=True, sure=0.96) == []
    # The support of the sentence is about .2: above .1 it has no marks.
    assert mark(sentence=0.1) == []
    assert mark(sentence=0.5) == [pytest.approx(SURE)]


@pytest.mark.parametrize(
    ("probabilities", "marked"), [([0.7, 0.4, 0.2], ["w1 w2"]), ([0.4, 0.2, 0.7], ["w1", "w3"]), ([0.6, 0.4, 0.2], [])]
)
def test_a_sure_word_of_a_supported_sentence_brings_the_less_sure_ones(probabilities, marked):
    text = "w1 w2 w3."
    [result] = read_all(SupportReader(MarkingOverlap(), threshold=0.5), [("w1 w2 w3.", text)])
    words = [Word(3 * i, 3 * i + 2, probability) for i, probability in enumerate(probabilities)]
    result = replace(result, words=[words], marking=ErrorSettings(threshold=0.3, sure=0.6))
    marks = result.find_marks(0, supported=True)
    assert [text[mark.start : mark.end] for mark in marks] == marked
    assert max((mark.probability for mark in marks), default=0.7) == 0.7


def test_a_model_without_that_head_marks_no_words():
    [result] = read([("w3000.", "w5000 w3000.")])
    assert result.find_marks(0, supported=False) == []
    assert result.marking is None


@pytest.mark.parametrize(
    "content",
    [
        "{}",
        '{"metrist_errors": 2}',
        '{"metrist_errors": 1, "treshold": 0.5}',
        '{"metrist_errors": 1, "threshold": 1}',
        '{"metrist_errors": 1, "threshold": 0.8, "sure": 0.7}',
        '{"metrist_errors": 1, "sentence": 1.5}',
        '{"metrist_errors": 1, "scale": 0}',
        "[",
    ],
)
def test_settings_of_errors_that_cannot_be_used_name_the_file(content, tmp_path):
    path = tmp_path / "errors.json"
    path.write_text(content)
    with raises_code(ModelError, "unreadable" if content != "[" else "model_unusable", path):
        ErrorSettings.read(tmp_path)


def test_one_pass_for_both_heads_gives_the_support_of_one_head_alone(tmp_path):
    from metrist.models.loading import load_text_encoder
    from tiny_text_encoders import write_text_encoder

    both = load_text_encoder(str(write_text_encoder(tmp_path / "both" / "model", heads=("support", "errors"))))
    source = "the dog sat on the mat . the cat ran under the tree . john was in paris ."
    output = "the dog ran on the tree. mary was in london. a big cat sat."
    [marked] = read_all(SupportReader(both, threshold=0.5), [(source, output)])
    alone = NoErrors(both)
    [plain] = read_all(SupportReader(alone, threshold=0.5), [(source, output)])
    np.testing.assert_allclose(marked.probabilities, plain.probabilities, rtol=1e-9)
    assert [[output[w.start : w.end] for w in words] for words in marked.words] == [
        ["the", "dog", "ran", "on", "the", "tree", "."],
        ["mary", "was", "in", "london", "."],
        ["a", "big", "cat", "sat", "."],
    ]
    assert plain.words == [[], [], []]


class NoErrors:
    """An encoder without its head for errors."""

    heads = ("support",)

    def __init__(self, encoder):
        self.encoder = encoder

    def __getattr__(self, name):
        return getattr(self.encoder, name)
