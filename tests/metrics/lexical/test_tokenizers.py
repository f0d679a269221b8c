from __future__ import annotations

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rouge_score.tokenize import tokenize as rouge_score_tokenize

from metrist.metrics.base import Shard
from metrist.metrics.lexical.tokenizers import stem, stem_shard, tokenise
from metrist.metrics.registry import build
from metrist.records import Record

any_text = st.text(st.one_of(st.characters(), st.sampled_from("aB1_ é'İK中あ")), max_size=30)


def cut(text: str, tokenizer: str) -> list[str]:
    tokens = tokenise(["", text], tokenizer)
    return [tokens.words[i] for i in tokens.ids]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The cat's 3 hats_are red!", ["the", "cat", "s", "3", "hats", "are", "red"]),
        ("Café CAFÉ cafe\u0301", ["café", "café", "cafe\u0301"]),
        ("Žydų valstybė", ["žydų", "valstybė"]),
        ("Привет, мир", ["привет", "мир"]),
        ("बिल्ली चटाई", ["बिल्ली", "चटाई"]),
        ("قطة على السجادة", ["قطة", "على", "السجادة"]),
        ("한국어 문장", ["한국어", "문장"]),
        ("我有2只猫。", ["我", "有", "2", "只", "猫"]),
        ("東京タワーへ行く", ["東", "京", "タ", "ワ", "ー", "へ", "行", "く"]),
        ("ラーメン", ["ラ", "ー", "メ", "ン"]),
        ("人々〇", ["人", "々", "〇"]),
        ("แมว๒ตัว", ["แ", "ม", "ว", "๒", "ต", "ั", "ว"]),
        ("ແມວ", ["ແ", "ມ", "ວ"]),
        ("❤️ 👩‍👧 …", []),
        ("x\x00y\ud800z", ["x", "y", "z"]),
        ("İstanbul", ["i\u0307stanbul"]),
    ],
)
def test_the_unicode_tokenizer_keeps_words_of_any_script(text, words):
    assert cut(text, "unicode") == words


@given(any_text)
def test_the_unicode_tokenizer_keeps_every_ascii_letter_and_digit(text):
    stored = [c for c in "".join(cut(text, "unicode")) if c in string.ascii_lowercase + string.digits]
    assert stored == [c for c in text.lower() if c in string.ascii_lowercase + string.digits]


@given(any_text)
def test_the_rouge_score_tokenizer_cuts_as_the_package_does(text):
    assert cut(text, "rouge-score") == rouge_score_tokenize(text, None)


@given(any_text.map(lambda text: f"the {text} An a"))
def test_the_squad_tokenizer_follows_the_published_rule(text):
    # The evaluation script's four steps, one after the other.
    bare = "".join(c for c in text.lower() if c not in string.punctuation)
    assert cut(text, "squad") == re.sub(r"\b(?:a|an|the)\b", " ", bare).split()


def test_short_words_are_not_stemmed_where_that_is_asked():
    shard = Shard([Record(item="0", system="a", output="ties was running", references=("x",))])
    words = [stem_shard(shard, "unicode", longer_than=3).words, stem_shard(shard, "unicode").words]
    assert [w[:3] for w in words] == [[stem("ties"), "was", "run"], [stem("ties"), "wa", "run"]]


def test_the_unicode_version_is_part_of_the_signature():
    assert list(build("rougeL").facts()) == ["unicode"]
    assert build("rougeL(tokenizer='rouge-score')").facts() == {}
