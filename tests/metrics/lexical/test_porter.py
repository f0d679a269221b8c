"""Expected stems come from nltk's PorterStemmer in its default mode, and from Porter's paper."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nltk.stem.porter import PorterStemmer

from metrist.metrics.lexical.tokenizers import stem
from real_records import rows

PEER = PorterStemmer()
ENDINGS = [
    "s",
    "sses",
    "ies",
    "ied",
    "eed",
    "ed",
    "ing",
    "y",
    "ational",
    "tional",
    "enci",
    "anci",
    "izer",
    "bli",
    "alli",
    "entli",
    "eli",
    "ousli",
    "ization",
    "ation",
    "ator",
    "alism",
    "iveness",
    "fulness",
    "ousness",
    "aliti",
    "iviti",
    "biliti",
    "fulli",
    "logi",
    "icate",
    "ative",
    "alize",
    "iciti",
    "ical",
    "ful",
    "ness",
    "al",
    "ance",
    "ence",
    "er",
    "ic",
    "able",
    "ible",
    "ant",
    "ement",
    "ment",
    "ent",
    "sion",
    "tion",
    "ion",
    "ou",
    "ism",
    "ate",
    "iti",
    "ous",
    "ive",
    "ize",
    "e",
    "ll",
    "at",
    "bl",
    "iz",
]

letters = st.text("aeiouybcdlsztwx", max_size=5)
built = st.builds(lambda start, ends: start + "".join(ends), letters, st.lists(st.sampled_from(ENDINGS), max_size=3))


@pytest.mark.parametrize("name", ["summeval", "wmt19-darr.kk-en"])
def test_agrees_with_nltk_on_all_words_of_human_judged_data(data, name):
    result = rows(data(name))
    texts = [text for row in result for text in (*row.get("outputs", [row.get("output", "")]), *row["references"])]
    words = set(re.findall(r"\w+", " ".join(texts)))
    assert len(words) > 3000
    assert [word for word in words if stem(word) != PEER.stem(word)] == []


@given(built)
def test_agrees_with_nltk_on_words_made_of_endings(word):
    assert stem(word) == PEER.stem(word)


@given(st.text(st.characters(categories=["L", "N", "M"]), max_size=12))
def test_agrees_with_nltk_on_words_of_any_script(word):
    assert stem(word) == PEER.stem(word)


@pytest.mark.parametrize(
    ("word", "expected"),
    [("caresses", "caress"), ("ponies", "poni"), ("agreed", "agre"), ("hopping", "hop"), ("sky", "sky")],
)
def test_gives_the_stems_of_the_paper(word, expected):
    assert stem(word) == expected


def test_a_very_long_word_is_no_trouble():
    assert stem("y" * 100_000 + "ing").startswith("yyy")
