"""Finds the words that an analysis quotes in the text that it quotes them from.

A quote is looked for exactly, then with case, spacing, quotation marks and the like put aside, then by the fewest
edits. What cannot be found even so is not placed: an analysis that quotes words which are not there made them up.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from metrist.metrics.errors.answers import WrittenError, severity_of
from metrist.metrics.errors.fuzzy_matching import Normalised, cut_words, nearest, normalised, parts_words
from metrist.ratings import Error
from metrist.records import Record

How = Literal["exact", "normalised", "fuzzy"]

#: What people put around a quote, as against what belongs to it.
_WRAPPING = " \"'.,;:…"
#: A word of fewer letters stands within others by chance, as `art` does in `party`: only the whole word is meant by it.
FEWEST_LETTERS = 4
_DOTS = r"(?:\[\s*(?:\.{3,}|…)\s*\]|\(\s*(?:\.{3,}|…)\s*\)|\.{3,}|…)"
_GAP = re.compile(rf"\s*{_DOTS}\s*")
_GAP_AT_AN_END = re.compile(rf"^{_DOTS}\s*|\s*{_DOTS}$")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a quote stands. `unique`: nothing else in the text could be meant by it. `similarity` is the share of the
    quote's characters that needed no edit."""

    start: int
    end: int
    how: How
    unique: bool
    similarity: float = 1.0


def place_all(quotes: Sequence[str], text: str) -> list[Place | None]:
    """Each quote's place, None where there is none. The same words quoted again mean their next occurrence."""
    found: list[Place | None] = []
    times: dict[str, int] = {}
    compared = normalised(text)
    for quote in quotes:
        possible = _places(quote, text, compared)
        words = normalised(quote).text.strip()
        turn = times.get(words, 0)
        times[words] = turn + 1
        found.append(possible[min(turn, len(possible) - 1)] if possible else None)
    return found


def places(quote: str, text: str) -> list[Place]:
    """All places that the quote could mean, found in the same way, the likeliest first."""
    return _places(quote, text, normalised(text))


def _places(quote: str, text: str, compared: Normalised) -> list[Place]:
    if not quote.strip():
        return []
    return (
        _exact(quote, text, compared)
        or _alike(quote, text, compared)
        or _with_gaps(quote, compared)
        or _near(quote, compared)
    )


def _exact(quote: str, text: str, compared: Normalised) -> list[Place]:
    # Spaces around a quote help to find it, and are no part of what is wrong.
    before, bare = len(quote) - len(quote.lstrip()), len(quote.strip())
    spans = [(start + before, start + before + bare) for start in _occurrences(quote, text)]
    spans = _not_by_chance(quote, spans, text)
    return _as_places(spans, text, "exact", _stands_alone(quote, compared))


def _alike(quote: str, text: str, compared: Normalised) -> list[Place]:
    """Occurrences once both sides are normalised; also without what people put around a quote."""
    for form in _forms(quote):
        spans = [compared.span(start, start + len(form)) for start in _occurrences(form, compared.text)]
        if spans := _not_by_chance(form, spans, text):
            return _as_places(spans, text, "normalised", _stands_alone(quote, compared))
    return []


def _not_by_chance(form: str, spans: list[tuple[int, int]], text: str) -> list[tuple[int, int]]:
    """Of the occurrences of a short word those that are whole words; all of anything else. Scripts that do not part
    words have no whole ones."""
    word = form.strip(_WRAPPING)
    if len(word) >= FEWEST_LETTERS or not word.isalpha() or not parts_words(word):
        return spans
    return [span for span in spans if not cut_words(text, span)]


def _stands_alone(quote: str, compared: Normalised) -> bool:
    """Whether the quote's words, however it may have been changed on the way, are there only once. Dots may stand for
    words: what was left out at an end is not known."""
    forms = _forms(quote)
    return bool(forms) and not _GAP.search(quote) and compared.text.count(forms[-1]) == 1


def _forms(quote: str) -> list[str]:
    """What the quote may stand for, from the least changed on."""
    whole = normalised(quote).text.strip()
    bare = _GAP_AT_AN_END.sub("", whole).strip()
    forms = [whole, bare]
    for form in (whole, bare):
        if len(form) > 2 and form[0] == form[-1] and form[0] in "\"'":
            forms.append(form[1:-1].strip())
    return [form for form in dict.fromkeys([*forms, bare.strip(_WRAPPING)]) if form]


def _with_gaps(quote: str, compared: Normalised) -> list[Place]:
    """A quote with dots for words left out: from its first piece to its last, all pieces in order."""
    # A piece may be a mark alone, such as the comma that the quote begins with.
    whole = [normalised(piece).text.strip() for piece in _GAP.split(quote)]
    pieces = [piece.strip(_WRAPPING) or piece for piece in whole if piece]
    if len(pieces) < 2:
        return []
    spans = []
    for start in _occurrences(pieces[0], compared.text):
        end = start + len(pieces[0])
        for piece in pieces[1:]:
            at = compared.text.find(piece, end)
            if at < 0:
                break
            end = at + len(piece)
        else:
            spans.append((start, end))
    once = all(compared.text.count(piece) == 1 for piece in pieces)
    shortest_first = sorted(spans, key=lambda span: span[1] - span[0])
    return [Place(*compared.span(*span), "normalised", once) for span in shortest_first]


def _near(quote: str, compared: Normalised) -> list[Place]:
    """The place that takes the fewest edits, if these are few."""
    found = nearest(_forms(quote)[-1], compared.text) if _forms(quote) else None
    if found is None:
        return []
    # Dots stand for words: how far the quote went on is not known.
    clear = found.clear and not _GAP.search(quote)
    return [Place(*compared.span(found.start, found.end), "fuzzy", clear, found.similarity)]


def _occurrences(form: str, text: str) -> Iterator[int]:
    at = text.find(form) if form else -1
    while at >= 0:
        yield at
        at = text.find(form, at + 1)


def _as_places(spans: Sequence[tuple[int, int]], text: str, how: How, alone: bool) -> list[Place]:
    """Occurrences that are whole words come first: `in` is rather the word than a part of `finding`, and where it is
    only a part another word may be meant."""
    ordered = sorted((cut_words(text, span) > 0, span) for span in spans)
    return [Place(*span, how, alone and len(spans) == 1 and not cut) for cut, span in ordered]


# Errors in an answer's words become errors with places in the text that they are about.


UNNAMED = "unspecified"


def grounded(errors: Sequence[WrittenError], record: Record) -> tuple[Error, ...]:
    """The errors with their places in the output, or in the source where only that has the words: what was left out of
    an output can be quoted from nowhere else. An error that cannot be placed keeps the words that were given for it."""
    found = place_all([error.location for error in errors], record.output)
    return tuple(
        _placed(error, place, record) if place else _unplaced(error, record)
        for error, place in zip(errors, found, strict=True)
    )


def is_grounded(error: Error) -> bool:
    """Whether the words that an error is about were found."""
    return error.start is not None


def _placed(error: WrittenError, place: Place, record: Record) -> Error:
    return replace(_error(error), text=record.output[place.start : place.end], start=place.start, end=place.end)


def _unplaced(error: WrittenError, record: Record) -> Error:
    source = record.source or ""
    found = [place for place in places(error.location, source) if place.how != "fuzzy"] if source else []
    if not found:
        return _error(error)
    start, end = found[0].start, found[0].end
    return replace(_error(error), text=source[start:end], start=start, end=end, side="source")


def _error(error: WrittenError) -> Error:
    return Error(
        aspect=error.aspect.strip() or UNNAMED,
        severity=severity_of(error.severity),
        penalty=error.penalty,
        explanation=error.explanation.strip(),
        revision=error.revision.strip(),
        text=error.location.strip(),
    )
