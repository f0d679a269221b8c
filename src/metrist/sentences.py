"""Sentences of a text, by their places in it.

Rules instead of a model: sentence ends, abbreviations, initials, numbered lists and line breaks, in time linear in the
length of the text. Made for English; full stops of Chinese and Japanese end sentences as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

Span = tuple[int, int]

#: A run of end marks with what closes a quotation, before white space; a run of full-width marks; line breaks. Each run
#: is tried at its beginning only: a megabyte of dots takes no longer than a megabyte of words.
_END = re.compile(
    r"(?<![.!?…])[.!?…]++[\"'’”»)\]]*+(?=\s|\Z)|(?<![。！？])[。！？]++[”』」）]*+|[\n\r\v\f\x85\u2028\u2029]++"
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Abbreviations that another word follows.
_TITLES = _words(
    "mr mrs ms dr prof st mt lt sgt capt cpt col gen sen rep gov rev hon pres messrs vs fig figs eq sec approx cf e.g "
    "i.e viz dept est"
)
#: Abbreviations that may end a sentence.
_FINAL = _words(
    "jr sr inc ltd co corp etc al a.m p.m u.s u.k u.n ph.d b.c a.d jan feb mar apr jun jul aug sep sept oct nov dec"
)
#: Words that begin a sentence rather than continue a name: only they end one after `U.S.` or `J.`.
_STARTERS = _words(
    "the a an in on at it he she they we i you but and so this that these those his her its their our my there here "
    "when while after before as if for from by with what who how why no not one some many most however meanwhile"
)
_LAST_WORD = re.compile(r"[^\W\d_](?:[\w.]*\w)?\Z")
_FIRST_WORD = re.compile(r"[\s\"'‘“«(\[]*(\w+)")
_CLOSING = "\"'’”»)]"
_ANY_WORD = re.compile(r"\w")
#: A line that is at least this long may have been broken in the middle of a sentence.
_WRAPPED = 40


def split_sentences(text: str) -> list[Span]:
    """Start and end of each sentence without the white space around it. Pieces without a letter or digit belong to the
    sentence before them; a text without any has no sentences."""
    spans: list[Span] = []
    for start, end in _split(text):
        if _ANY_WORD.search(text, start, end):
            spans.append((start, end))
        elif spans:
            spans[-1] = spans[-1][0], end
    return spans


def _split(text: str) -> Iterator[Span]:
    start = 0
    cased = text != text.lower()
    for match in _END.finditer(text):
        if match[0][0].isspace():
            if _continues(text, start, match.start(), match.end(), cased):
                continue
            end = match.start()
        else:
            end = match.end()
            if match[0] == "." and _abbreviates(text, start, match.start(), end):
                continue
            # “Go!” she said; or a pause … within a sentence.
            if cased and (match[0][-1] in _CLOSING or len(match[0]) > 1 or match[0] == "…") and _goes_on(text, end):
                continue
        if span := _strip(text, start, end):
            yield span
        start = match.end()
    if span := _strip(text, start, len(text)):
        yield span


def _strip(text: str, start: int, end: int) -> Span | None:
    piece = text[start:end]
    start += len(piece) - len(piece.lstrip())
    end -= len(piece) - len(piece.rstrip())
    return (start, end) if start < end else None


def _continues(text: str, start: int, end: int, after: int, cased: bool) -> bool:
    """Whether a line break lies within a sentence: after a long line without an end mark, before a small letter."""
    if not cased or after - end > 2 or after >= len(text) or not text[after].islower():
        return False
    line = text[max(start, text.rfind("\n", start, end) + 1) : end].rstrip()
    return len(line) >= _WRAPPED and line[-1] not in ".!?…:;"


def _goes_on(text: str, after: int) -> bool:
    """Whether a word with a small first letter follows on the same line."""
    at = after
    while at < len(text) and at < after + 3 and text[at] in " \t\xa0":
        at += 1
    return at < len(text) and text[at].islower()


def _abbreviates(text: str, start: int, dot: int, after: int) -> bool:
    """Whether the full stop at `dot` belongs to an abbreviation or a number of a list, and the sentence goes on."""
    following = _FIRST_WORD.match(text, after, after + 60)
    if text[max(start, dot - 4) : dot].strip().isdigit() and not text[start : max(start, dot - 4)].strip():
        return True
    # A word is looked for in the few characters before the full stop: the sentence may be very long.
    found = _LAST_WORD.search(text[max(start, dot - 16) : dot])
    if found is None or following is None:
        return False
    word, next_word = found[0].lower(), following[1]
    if word in _TITLES:
        return True
    if word == "no" and next_word[0].isdigit():
        return True
    if word in _FINAL or len(word) == 1 or re.fullmatch(r"(?:[^\W\d_]\.)+[^\W\d_]", word):
        return not (next_word[0].isupper() and next_word.lower() in _STARTERS)
    return False
