"""The part of a text that is nearest to a few words: by words where there are several, by characters where there is one
or a script that does not part them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from unicodedata import category, east_asian_width

import numpy as np
from numpy.typing import NDArray

from metrist.metrics.word_edits import Floats, WordTable, edits_along, least_edited

#: A part is near only where edits change at most this share of the words, or of the characters, looked for.
MOST_EDITED = 0.4
#: It is clear which part is meant where any other takes more edits by at least this share.
CLEAR_LEAD = 0.2
#: Fewer characters resemble too many places.
FEWEST_CHARACTERS = 6
#: Sums of shares that are closer than this may be the same.
_ROUNDING = 1e-5
_SHORT_FORM, _LONG_TEXT = 256, 2_000

_WORD = re.compile(r"\w+")
# Thai, Lao, Tibetan, Burmese, Khmer, half-width kana.
_UNPARTED = re.compile("[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\uff66-\uff9f]")


@dataclass(frozen=True, slots=True)
class Nearest:
    """The nearest part; `clear`: no other comes close. `similarity` is the share that needed no edit."""

    start: int
    end: int
    clear: bool
    similarity: float


def nearest(form: str, text: str) -> Nearest | None:
    """The part of the text that takes the fewest edits to turn the form into, if these are few."""
    if len(form) < FEWEST_CHARACTERS or not text:
        return None
    wanted = _WORD.findall(form)
    if len(wanted) > 2 and (words := _words_of(text)).spans:
        return _by_words(wanted, words)
    return _by_characters(form, text)


@dataclass(frozen=True, slots=True)
class _Words:
    """The words of a text: where each stands, and its number among the distinct ones, which are in `table`."""

    spans: tuple[tuple[int, int], ...]
    numbers: NDArray[np.int64]
    table: WordTable


# All quotes of a text are looked for in the same words.
@lru_cache(maxsize=16)
def _words_of(text: str) -> _Words:
    spans = tuple(found.span() for found in _WORD.finditer(text))
    distinct: dict[str, int] = {}
    numbers = [distinct.setdefault(text[start:end], len(distinct)) for start, end in spans]
    return _Words(spans, np.array(numbers, dtype=np.int64), WordTable(list(distinct), _between))


def _by_words(wanted: Sequence[str], words: _Words) -> Nearest | None:
    costs = words.table.edit_shares(wanted)[:, words.numbers]
    least = CLEAR_LEAD * len(wanted)
    ends = _ends(costs, least)
    if not ends:
        return None
    # Of equally near parts the one of most like length: a changed word is part of what was quoted.
    best = min(ends, key=lambda at: (round(ends[at][0], 6), abs(ends[at][1] - len(wanted)), at))
    edited, length = ends[best]
    if edited > MOST_EDITED * len(wanted) or not length:
        return None
    # A part that ends a few words off takes a few edits more in any text; one further off only where words recur.
    apart = [at for at in ends if abs(at - best) >= least]
    lead = all(ends[at][0] - edited >= least for at in apart)
    # A first or last word that was changed could as well be its neighbour.
    first = best - length + 1
    borders = float(costs[0, first]), float(costs[-1, best])
    return Nearest(words.spans[first][0], words.spans[best][1], lead and max(borders) < 0.5, 1 - edited / len(wanted))


def _ends(costs: Floats, least: float) -> dict[int, tuple[float, int]]:
    """(edits, words of the text from the first) of the best alignment that ends at a word, for all words where it takes
    less than `least` edits more than at the best; nothing where the best takes too many. An alignment of few edits
    reaches over few words, so that the rest of the text need not be looked at."""
    about = least_edited(costs)
    wanted = len(costs)
    if about.min() > MOST_EDITED * wanted + _ROUNDING:
        return {}
    most = float(about.min()) + least + _ROUNDING
    reach = wanted + math.ceil(most) + 1
    ends: dict[int, tuple[float, int]] = {}
    column: list[tuple[float, int]] = []
    read = -1
    for at in np.flatnonzero(about <= most).tolist():
        start = max(at - reach, 0)
        if start > read or not column:
            column, read = [(float(k), 0) for k in range(wanted + 1)], start - 1
        for place in range(read + 1, at + 1):
            column = _next_column(column, costs[:, place].tolist())
        read = at
        ends[at] = column[-1]
    return ends


def _next_column(before: Sequence[tuple[float, int]], costs: Sequence[float]) -> list[tuple[float, int]]:
    column = [(0.0, 0)]  # The part may begin anywhere.
    for k, cost in enumerate(costs, 1):
        changed, at_changed = before[k - 1]
        extra, at_extra = before[k]
        missing, at_missing = column[k - 1]
        choices = ((changed + cost, at_changed + 1), (extra + 1.0, at_extra + 1), (missing + 1.0, at_missing))
        column.append(min(choices, key=_edits_of))
    return column


_edits_of = itemgetter(0)


def _between(one: str, other: str) -> int:
    return edits(one, other, anywhere=False)[-1]


def _by_characters(form: str, text: str) -> Nearest | None:
    after = _after(form, text)
    fewest = int(after.min())
    if fewest > MOST_EDITED * len(form):
        return None
    start, end = _best_span(form, text, (np.flatnonzero(after == fewest) + 1).tolist(), fewest)
    least = CLEAR_LEAD * len(form)
    near = np.flatnonzero(after - fewest < least) + 1
    clear = bool((np.abs(near - end) < least).all())
    # A word that was changed matches its place in part: the whole word is meant, and perhaps another.
    first, last = _whole_words(text, start, end)
    return Nearest(first, last, clear and (first, last) == (start, end), 1 - fewest / len(form))


def _after(form: str, text: str) -> NDArray[np.int32]:
    # Row by row is quick for short forms in long texts, character by character for all others.
    if len(form) <= _SHORT_FORM and len(text) > _LONG_TEXT:
        return edits_along(form, text)
    return np.array(edits(form, text, anywhere=True), dtype=np.int32)


def _best_span(form: str, text: str, ends: Sequence[int], fewest: int) -> tuple[int, int]:
    """Of the spans that take the fewest edits the one that cuts no words, and is most like in length."""
    spans = []
    for end in ends:
        behind = text[max(0, end - len(form) - fewest) : end][::-1]
        back = edits(form[::-1], behind, anywhere=False)
        spans += [(end - length, end) for length, edited in enumerate(back, 1) if edited == fewest]
    return min(spans, key=lambda span: (cut_words(text, span), abs(span[1] - span[0] - len(form)), span))


def _whole_words(text: str, start: int, end: int) -> tuple[int, int]:
    while _cuts(text, start):
        start -= 1
    while _cuts(text, end):
        end += 1
    return start, end


def _cuts(text: str, at: int) -> bool:
    """Whether a border here goes through a word; characters of scripts that do not part words are words."""
    return cut_words(text, (at, at)) > 0 and not any(east_asian_width(one) in "WF" for one in text[at - 1 : at + 1])


def parts_words(text: str) -> bool:
    """Whether all characters belong to scripts that put spaces between words. Korean does, and joins particles to
    them."""
    return not any(east_asian_width(one) in "WF" or _UNPARTED.match(one) for one in text)


def cut_words(text: str, span: tuple[int, int]) -> int:
    """How many words the span's borders cut through."""
    return sum(0 < at < len(text) and _ends_letter(text, at) and text[at].isalnum() for at in span)


def _ends_letter(text: str, at: int) -> bool:
    """Whether a letter or digit ends here, with the marks on it."""
    while at > 1 and text[at - 1] >= "\u0300" and category(text[at - 1]).startswith("M"):
        at -= 1
    return text[at - 1].isalnum()


def edits(form: str, text: str, *, anywhere: bool) -> list[int]:
    """After each character of the text, the fewest edits that turn the form into a part of the text that ends there and
    begins anywhere, or at the text's start. Myers' bit-parallel algorithm: one step per character, whatever the form's
    length."""
    masks: dict[str, int] = {}
    for at, character in enumerate(form):
        masks[character] = masks.get(character, 0) | 1 << at
    whole, last = (1 << len(form)) - 1, 1 << len(form) - 1
    rises, falls, edited = whole, 0, len(form)
    found = []
    for character in text:
        mask = masks.get(character, 0)
        same = mask | falls
        diagonal = (((mask & rises) + rises) ^ rises) | mask
        up, down = falls | (whole & ~(diagonal | rises)), rises & diagonal
        edited += 1 if up & last else -1 if down & last else 0
        found.append(edited)
        up = (up << 1 | (not anywhere)) & whole
        down = (down << 1) & whole
        rises, falls = down | (whole & ~(same | up)), up & same
    return found
