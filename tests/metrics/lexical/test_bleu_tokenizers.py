"""BLEU's tokenizers against sacrebleu 2.6, token by token."""

from __future__ import annotations

import importlib.metadata
import unicodedata
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from peer_sacrebleu import ODD_TEXTS, characters
from sacrebleu.metrics import BLEU

from error_codes import raises_code
from metrist.errors import MissingExtra, RunError
from metrist.metrics.base import Shard, pairs_of
from metrist.metrics.lexical import bleu
from metrist.metrics.lexical.bleu import Bleu
from real_records import record

OWN = list(bleu._TOKENIZERS)


def cut(tokenize: str, texts: list[str]) -> list[list[str]]:
    """The tokens of each text, as words again."""
    shard = Shard([record(text, text) for text in texts])
    tokens = bleu.bleu_tokens(shard, tokenize, lowercase=False)
    number = {text: i for i, text in enumerate(pairs_of(shard).texts)}
    word = chr if tokenize == "char" else tokens.words.__getitem__
    result = [tokens.ids[tokens.starts[number[t]] : tokens.starts[number[t] + 1]] for t in texts]
    return [[word(i) for i in ids.tolist()] for ids in result]


def peer(tokenize: str, texts: list[str]) -> list[list[str]]:
    cut_by_peer = BLEU(tokenize=tokenize).tokenizer
    return [cut_by_peer(text.rstrip()).split() for text in texts]


@pytest.mark.parametrize("tokenize", OWN)
def test_odd_texts_are_cut_as_sacrebleu_cuts_them(tokenize):
    assert cut(tokenize, ODD_TEXTS) == peer(tokenize, ODD_TEXTS)


@pytest.mark.parametrize("tokenize", OWN)
@given(texts=st.lists(characters(exclude_categories=["Cn"]), min_size=1, max_size=6))
def test_any_text_is_cut_as_sacrebleu_cuts_it(tokenize, texts):
    assert cut(tokenize, texts) == peer(tokenize, texts)


@pytest.mark.parametrize("tokenize", OWN)
def test_every_character_is_cut_as_sacrebleu_cuts_it(tokenize):
    # Characters that this Python's Unicode does not know yet may be known to sacrebleu's: intl's signature says which.
    known = [chr(c) for c in range(0x30000) if unicodedata.category(chr(c)) not in ("Cn", "Co", "Cs")]
    # Of the long rows of ideographs and syllables a part will do.
    telling = [c for i, c in enumerate(known) if i % 20 == 0 or unicodedata.category(c) != "Lo"]
    text = ["".join(f"a{c}1{c}b{c} " for c in telling)]
    assert cut(tokenize, text) == peer(tokenize, text)


def test_published_chinese_scores_split_quotes_but_not_extension_b():
    assert cut("zh", ["“a”\U00020000\U00020001中文"]) == [["“", "a", "”", "\U00020000\U00020001", "中", "文"]]


def test_a_sacrebleu_tokenizer_is_used_and_named_in_the_signature(monkeypatch):
    spaced = SimpleNamespace(tokenizer=" ".join)
    monkeypatch.setattr("sacrebleu.metrics.bleu.BLEU", lambda **_settings: spaced)
    shard = Shard([record("今日は\ud800", "今日も"), record("b c", "a c")])
    by_characters = Bleu(tokenize="char").score(Shard([record("今日は?", "今日も"), record("b c", "a c")]))
    assert Bleu(tokenize="ja-mecab").score(shard).values.tolist() == by_characters.values.tolist()
    assert Bleu(tokenize="ja-mecab").facts() == {"sacrebleu": importlib.metadata.version("sacrebleu")}


@pytest.mark.parametrize("tokenize", bleu.FROM_SACREBLEU)
def test_without_sacrebleu_the_extra_is_asked_for(monkeypatch, tokenize):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    values = f"bleu(tokenize='{tokenize}')", "'metrist[languages]'"
    with raises_code(MissingExtra, "missing_dependency", *values):
        Bleu(tokenize=tokenize).score(Shard([record("a", "a")]))
    with raises_code(MissingExtra, "missing_dependency", *values):
        _ = Bleu(tokenize=tokenize).signature


@pytest.mark.parametrize(
    ("tokenize", "fault", "error", "values"),
    [
        ("ko-mecab", RuntimeError("no MeCab"), MissingExtra, ["'metrist[languages]'"]),
        ("ko-mecab", ImportError("no sentencepiece"), MissingExtra, ["'metrist[languages]'"]),
        ("flores200", OSError("no route to host"), RunError, ["'flores200'", "no route to host"]),
    ],
)
def test_a_library_or_a_model_that_is_missing_is_named(monkeypatch, tokenize, fault, error, values):
    def broken(**_settings):
        raise fault

    monkeypatch.setattr("sacrebleu.metrics.bleu.BLEU", broken)
    with raises_code(error, error.code, *values):
        Bleu(tokenize=tokenize).score(Shard([record("a", "a")]))
