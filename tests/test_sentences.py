"""Sentences by their places in a text. Expected splits were made by hand."""

import random
import re
from itertools import pairwise

import pytest

from metrist.sentences import split_sentences


@pytest.mark.parametrize(
    "sentences",
    [
        ["Mr. Smith joined the U.S. Army.", "He said no.", "It cost $1.50 on Jan. 5."],
        ["J. K. Rowling wrote it.", "She moved to the U.S.", "The end."],
        ["I met him at 5 p.m.", "He left."],
        ["“Go away!” she said.", "(Really?)", "Yes"],
        ["Well ... maybe not.", "Really!?", "Yes."],
        ["1. Buy milk.", "2. Go home."],
        ["No. 5 won.", "No.", "It did not."],
        ["paul merson is back .", "u.s. officials agree . :)"],
        ["no sentence end at all"],
        ["See e.g. Fig. 3 of Lee et al. 2020 for that."],
    ],
)
def test_prose(sentences):
    text = "  ".join(sentences) + " "
    assert [text[a:b] for a, b in split_sentences(text)] == sentences


def test_lines_are_sentences_unless_a_long_line_goes_on_with_a_small_letter():
    text = "Name: Ada\nBorn: 1815\r\n\r\nA sentence that an editor broke after forty characters\nand that goes on.\nEnd"
    assert [text[a:b] for a, b in split_sentences(text)] == [
        "Name: Ada",
        "Born: 1815",
        "A sentence that an editor broke after forty characters\nand that goes on.",
        "End",
    ]


def test_lines_in_small_letters_only_are_kept_apart():
    text = "the first of the highlights has quite a few words in it\nthe second has none"
    assert len(split_sentences(text)) == 2


def test_full_width_marks_end_sentences():
    text = "他走了。“好！”她说"
    assert [text[a:b] for a, b in split_sentences(text)] == ["他走了。", "“好！”", "她说"]


@pytest.mark.parametrize("text", ["", " \n ", "...", "— !? …", "\x00"])
def test_a_text_without_words_has_no_sentences(text):
    assert split_sentences(text) == []


def test_sentences_hold_all_words_in_order_without_overlap():
    rng = random.Random(1)
    for _ in range(300):
        pieces = [rng.choice([*"aB1 .!?…\n\r\"')。！\x85", "Mr.", "U.S.", " The ", "e.g."]) for _ in range(60)]
        text = "".join(pieces)
        spans = split_sentences(text)
        assert all(a < b and text[a:b].strip() == text[a:b] for a, b in spans)
        assert all(first[1] <= second[0] for first, second in pairwise(spans))
        inside = {at for a, b in spans for at in range(a, b)}
        assert all(match.start() in inside for match in re.finditer(r"\w", text))


@pytest.mark.parametrize("piece", [".", ". ", ".'", "\n", "Mr. ", "1. ", " ", "a", '."'])
def test_a_hostile_text_takes_linear_time(piece):
    # Quadratic time would take minutes here.
    split_sentences(piece * (300_000 // len(piece)))
