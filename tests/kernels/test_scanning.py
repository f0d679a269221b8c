from __future__ import annotations

import re
import string
import unicodedata
from types import ModuleType

import numpy as np
import pytest
from flavours import both_flavours, compiled, cut, long_texts, needs_compiled, same, texts
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

from metrist.kernels import SEPARATOR, SINGLE, WORD, CharClasses, reference

LATIN = CharClasses(lambda c: WORD if c in string.ascii_lowercase + string.digits else SEPARATOR, case="lower")
SPACES = CharClasses(lambda c: SEPARATOR if c.isspace() else WORD)


def _by_script(character: str) -> int:
    if "CJK" in unicodedata.name(character, "") or character in "!?":
        return SINGLE
    return WORD if unicodedata.category(character)[0] in "LMN" else SEPARATOR


SCRIPTS = CharClasses(_by_script)
several = st.lists(st.one_of(texts, long_texts), max_size=6)


@both_flavours
@given(given_texts=several)
def test_scan_with_latin_classes_cuts_like_a_regular_expression(kernels: ModuleType, given_texts: list[str]) -> None:
    expected = [re.findall("[a-z0-9]+", text.lower()) for text in given_texts]
    assert cut(kernels.scan(given_texts, LATIN)) == expected


@both_flavours
@given(given_texts=several)
def test_scan_with_space_classes_cuts_like_split(kernels: ModuleType, given_texts: list[str]) -> None:
    assert cut(kernels.scan(given_texts, SPACES)) == [text.split() for text in given_texts]


@both_flavours
def test_a_single_character_is_a_token_alone(kernels: ModuleType) -> None:
    assert cut(kernels.scan(["中文 ok!x", "ab?", "日"], SCRIPTS)) == [["中", "文", "ok", "!", "x"], ["ab", "?"], ["日"]]


@needs_compiled
@given(given_texts=several)
def test_compiled_scanners_equal_their_twins(given_texts: list[str]) -> None:
    for classes in (LATIN, SPACES, SCRIPTS):
        assert same(compiled.scan(given_texts, classes), reference.scan(given_texts, classes))
    for name in ("scan_13a", "scan_chrf_words", "characters"):
        assert same(getattr(compiled, name)(given_texts), getattr(reference, name)(given_texts))


@both_flavours
@given(given_texts=several)
def test_13a_cuts_like_sacrebleu(kernels: ModuleType, given_texts: list[str]) -> None:
    tokenizer = Tokenizer13a()
    assert cut(kernels.scan_13a(given_texts)) == [tokenizer(text.rstrip()).split() for text in given_texts]


@both_flavours
@given(word=st.text("a1.,-é'", max_size=12))
def test_13a_cuts_stops_and_dashes_like_sacrebleu(kernels: ModuleType, word: str) -> None:
    assert cut(kernels.scan_13a([word])) == [Tokenizer13a()(word).split()]


@both_flavours
@given(given_texts=several)
def test_chrf_words_are_sacrebleus(kernels: ModuleType, given_texts: list[str]) -> None:
    peer = CHRF(word_order=2)
    assert cut(kernels.scan_chrf_words(given_texts)) == [peer._remove_punctuation(text) for text in given_texts]


@both_flavours
@given(given_texts=several)
def test_characters_are_all_code_points_but_whitespace(kernels: ModuleType, given_texts: list[str]) -> None:
    tokens = kernels.characters(given_texts)
    expected = [[ord(c) for c in text if not c.isspace()] for text in given_texts]
    assert [tokens.listed(t) for t in range(len(given_texts))] == expected
    assert tokens.words == []


@both_flavours
def test_no_texts_and_empty_texts_have_no_tokens(kernels: ModuleType) -> None:
    for scanned in (kernels.scan_13a, kernels.scan_chrf_words, kernels.characters):
        assert scanned([]).starts.tolist() == [0]
        assert scanned(["", " \n", ""]).starts.tolist() == [0, 0, 0, 0]
        assert scanned(["", "a"]).ids.dtype == np.int32


@both_flavours
def test_a_megabyte_without_a_space_is_one_word(kernels: ModuleType) -> None:
    for letter in "aé中😀":
        assert kernels.scan([letter * 1_000_000], SPACES).words == [letter * 1_000_000]
    assert kernels.scan_13a(["1." * 500_000]).lengths.tolist() == [2]


@both_flavours
def test_many_distinct_words_keep_their_numbers(kernels: ModuleType) -> None:
    every = [f"w{i}" * (1 + i % 3) for i in range(30_000)]
    tokens = kernels.scan([" ".join(every), " ".join(reversed(every))], SPACES)
    assert tokens.words == every
    assert tokens.ids.tolist() == [*range(30_000), *reversed(range(30_000))]


@needs_compiled
def test_the_compiled_scanner_refuses_what_is_no_text() -> None:
    with pytest.raises(TypeError, match="texts must be str, got bytes"):
        compiled.scan(["fine", b"not"], SPACES)
    with pytest.raises(TypeError, match="texts must be str, got int"):
        compiled.characters([1])


@both_flavours
def test_a_fault_while_classifying_is_not_swallowed(kernels: ModuleType) -> None:
    def classify(character: str) -> int:
        return WORD if character.isascii() else 7

    with pytest.raises(ValueError, match="must return SEPARATOR, WORD or SINGLE, got 7"):
        kernels.scan(["plain", "中"], CharClasses(classify))
