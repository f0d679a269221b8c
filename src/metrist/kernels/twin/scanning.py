"""Texts into tokens."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence

import numpy as np

from metrist.kernels.tokens import SEPARATOR, SINGLE, CharClasses, Tokens, from_lists, starts_of

_MARKS = frozenset(string.punctuation)

# The rules of mteval-v13a. Each is applied once, from left to right, to what the one before it left.
_ENTITIES = (("&quot;", '"'), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">"))
SYMBOLS_13A = frozenset(string.punctuation) - frozenset("',-.")
_SYMBOL = re.compile(f"([{re.escape(''.join(sorted(SYMBOLS_13A)))}])")
_STOP_AFTER_NON_DIGIT = re.compile(r"([^0-9])([.,])")
_STOP_BEFORE_NON_DIGIT = re.compile(r"([.,])([^0-9])")
_DASH_AFTER_DIGIT = re.compile(r"([0-9])-")


def scan(texts: Sequence[str], classes: CharClasses) -> Tokens:
    spacing = _Spacing(classes)
    if classes.case == "lower":
        texts = [text.lower() for text in texts]
    return from_lists([[token for token in text.translate(spacing).split(" ") if token] for text in texts])


def scan_13a(texts: Sequence[str]) -> Tokens:
    return from_lists([_words_13a(text) for text in texts])


def scan_chrf_words(texts: Sequence[str]) -> Tokens:
    return from_lists([[part for word in text.split() for part in _without_mark(word)] for text in texts])


def characters(texts: Sequence[str]) -> Tokens:
    bare = ["".join(text.split()) for text in texts]
    ids = np.frombuffer("".join(bare).encode("utf-32-le", "surrogatepass"), dtype="<i4").astype(np.int32)
    return Tokens(ids, starts_of(map(len, bare)), [])


class _Spacing(dict[int, str]):
    """A table for `str.translate` that puts spaces where tokens end; it learns a character when it first meets it."""

    def __init__(self, classes: CharClasses) -> None:
        super().__init__()
        self._classes = classes

    def __missing__(self, code_point: int) -> str:
        character, kind = chr(code_point), self._classes[code_point]
        spaced = " " if kind == SEPARATOR else f" {character} " if kind == SINGLE else character
        self[code_point] = spaced
        return spaced


def _words_13a(text: str) -> list[str]:
    text = _SYMBOL.sub(r" \1 ", f" {cleaned_13a(text)} ")
    text = _STOP_AFTER_NON_DIGIT.sub(r"\1 \2 ", text)
    text = _STOP_BEFORE_NON_DIGIT.sub(r" \1 \2", text)
    return _DASH_AFTER_DIGIT.sub(r"\1 - ", text).split()


def cleaned_13a(text: str) -> str:
    """The text without the markup and the line breaks that mteval removes before it looks for words."""
    text = text.rstrip().replace("<skipped>", "").replace("-\n", "").replace("\n", " ")
    for entity, character in _ENTITIES:
        text = text.replace(entity, character)
    return text


def _without_mark(word: str) -> tuple[str, ...]:
    """chrF++ takes one punctuation mark off a word, from its end rather than from its beginning."""
    if len(word) > 1 and word[-1] in _MARKS:
        return word[:-1], word[-1]
    if len(word) > 1 and word[0] in _MARKS:
        return word[0], word[1:]
    return (word,)
