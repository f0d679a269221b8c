"""Locate quoted words in the text they were quoted from.

A quote is searched exactly, then ignoring case, spacing and kinds of quotation marks, then by edit distance. A quote
that cannot be found in any of these ways gets no position: the analysis invented the words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from metrist.metrics.errors.answers import WrittenError, parse_severity
from metrist.metrics.errors.fuzzy_matching import (
    NormalisedText,
    count_cut_words,
    find_nearest,
    normalise,
    separates_words,
)
from metrist.ratings import Error
from metrist.records import Record

MatchKind = Literal["exact", "normalised", "fuzzy"]

UNNAMED = "unspecified"
#: What people put around a quote, as opposed to what belongs to it.
_WRAPPING = " \"'.,;:…"
#: A shorter word occurs inside others by chance, as `art` does in `party`: only the whole word counts.
MIN_LETTERS = 4
_DOTS = r"(?:\[\s*(?:\.{3,}|…)\s*\]|\(\s*(?:\.{3,}|…)\s*\)|\.{3,}|…)"
_ELLIPSIS = re.compile(rf"\s*{_DOTS}\s*")
_OUTER_ELLIPSIS = re.compile(rf"^{_DOTS}\s*|\s*{_DOTS}$")


@dataclass(frozen=True, slots=True)
class SpanMatch:
    """The position of a quote. `unique`: nothing else in the text could be meant. `similarity`: the share of the
    quote's characters that needed no edit."""

    start: int
    end: int
    how: MatchKind
    unique: bool
    similarity: float = 1.0


def align_quotes(quotes: Sequence[str], text: str) -> list[SpanMatch | None]:
    """The position of each quote, or None. Words that are quoted again refer to their next occurrence."""
    aligned: list[SpanMatch | None] = []
    repetitions: dict[str, int] = {}
    for quote in quotes:
        matches = find_matches(quote, text)
        words = normalise(quote).text.strip()
        repetition = repetitions.get(words, 0)
        repetitions[words] = repetition + 1
        aligned.append(matches[min(repetition, len(matches) - 1)] if matches else None)
    return aligned


def find_matches(quote: str, text: str) -> list[SpanMatch]:
    """All positions that the quote could refer to, found by the same method, the most likely first."""
    if not quote.strip():
        return []
    normalised = normalise(text)
    forms = _quote_forms(quote)
    # Dots stand for words: where the quote ended is unknown.
    has_dots = _ELLIPSIS.search(quote) is not None
    occurs_once = bool(forms) and not has_dots and normalised.text.count(forms[-1]) == 1
    # Spaces around a quote help to find it and are not part of the error.
    leading, length = len(quote) - len(quote.lstrip()), len(quote.strip())
    spans = [(start + leading, start + leading + length) for start in _occurrences(quote, text)]
    if spans := _drop_chance_matches(quote, spans, text):
        return _order_matches(spans, text, "exact", occurs_once)
    for form in forms:
        starts = _occurrences(form, normalised.text)
        spans = [normalised.original_span(start, start + len(form)) for start in starts]
        if spans := _drop_chance_matches(form, spans, text):
            return _order_matches(spans, text, "normalised", occurs_once)
    if matches := _find_with_ellipsis(quote, normalised):
        return matches
    nearest = find_nearest(forms[-1], normalised.text) if forms else None
    if nearest is None:
        return []
    span = normalised.original_span(nearest.start, nearest.end)
    return [SpanMatch(*span, "fuzzy", nearest.clear and not has_dots, nearest.similarity)]


def _find_with_ellipsis(quote: str, normalised: NormalisedText) -> list[SpanMatch]:
    """Match a quote with dots for omitted words: from its first piece to its last, all pieces in order."""
    # A piece may be a single punctuation mark, such as a comma at the start of the quote.
    stripped = [normalise(piece).text.strip() for piece in _ELLIPSIS.split(quote)]
    pieces = [piece.strip(_WRAPPING) or piece for piece in stripped if piece]
    if len(pieces) < 2:
        return []
    spans = []
    for start in _occurrences(pieces[0], normalised.text):
        end = start + len(pieces[0])
        for piece in pieces[1:]:
            at = normalised.text.find(piece, end)
            if at < 0:
                break
            end = at + len(piece)
        else:
            spans.append((start, end))
    unique = all(normalised.text.count(piece) == 1 for piece in pieces)
    shortest_first = sorted(spans, key=lambda span: span[1] - span[0])
    return [SpanMatch(*normalised.original_span(*span), "normalised", unique) for span in shortest_first]


def _drop_chance_matches(form: str, spans: list[tuple[int, int]], text: str) -> list[tuple[int, int]]:
    """Of the occurrences of a short word, keep those that are whole words; keep all occurrences of anything else.
    Scripts that do not separate words have no whole ones."""
    word = form.strip(_WRAPPING)
    if len(word) >= MIN_LETTERS or not word.isalpha() or not separates_words(word):
        return spans
    return [span for span in spans if not count_cut_words(text, span)]


def _quote_forms(quote: str) -> list[str]:
    """What the quote may stand for, the least changed first."""
    full = normalise(quote).text.strip()
    bare = _OUTER_ELLIPSIS.sub("", full).strip()
    forms = [full, bare]
    for form in (full, bare):
        if len(form) > 2 and form[0] == form[-1] and form[0] in "\"'":
            forms.append(form[1:-1].strip())
    return [form for form in dict.fromkeys([*forms, bare.strip(_WRAPPING)]) if form]


def _occurrences(form: str, text: str) -> Iterator[int]:
    at = text.find(form) if form else -1
    while at >= 0:
        yield at
        at = text.find(form, at + 1)


def _order_matches(spans: Sequence[tuple[int, int]], text: str, how: MatchKind, occurs_once: bool) -> list[SpanMatch]:
    """Put whole words first: `in` is more likely the word than a part of `finding`, and where it is only a part,
    another word may be meant."""
    ordered = sorted((count_cut_words(text, span) > 0, span) for span in spans)
    return [SpanMatch(*span, how, occurs_once and len(spans) == 1 and not cut) for cut, span in ordered]


def ground_errors(errors: Sequence[WrittenError], record: Record) -> tuple[Error, ...]:
    """Give errors their offsets in the output, or in the source where only the source has the words: an omission can
    be quoted from nowhere else. An error that cannot be located keeps the words given for it."""
    source, grounded = record.source or "", []
    matches = align_quotes([error.location for error in errors], record.output)
    for written, match in zip(errors, matches, strict=True):
        error = Error(
            aspect=written.aspect.strip() or UNNAMED,
            severity=parse_severity(written.severity),
            penalty=written.penalty,
            explanation=written.explanation.strip(),
            revision=written.revision.strip(),
            text=written.location.strip(),
        )
        if match is not None:
            start, end = match.start, match.end
            error = replace(error, text=record.output[start:end], start=start, end=end)
        elif in_source := [m for m in find_matches(written.location, source) if m.how != "fuzzy"]:
            start, end = in_source[0].start, in_source[0].end
            error = replace(error, text=source[start:end], start=start, end=end, side="source")
        grounded.append(error)
    return tuple(grounded)


def is_grounded(error: Error) -> bool:
    """Whether the error's words were found."""
    return error.start is not None
