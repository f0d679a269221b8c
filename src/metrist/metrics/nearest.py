"""The part of a text that is nearest to a few words: by words where there are several, by characters where there is one
or a script that does not part them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from unicodedata import east_asian_width

#: A part is near only where edits change at most this share of the words, or of the characters, looked for.
MOST_EDITED = 0.4
#: It is clear which part is meant where any other takes more edits by at least this share.
CLEAR_LEAD = 0.2
#: Fewer characters resemble too many places.
FEWEST_CHARACTERS = 6

_WORD = re.compile(r"\w+")


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
    wanted, words = _WORD.findall(form), list(_WORD.finditer(text))
    if len(wanted) > 2 and words:
        return _by_words(wanted, words)
    return _by_characters(form, text)


def _by_words(wanted: Sequence[str], words: Sequence[re.Match[str]]) -> Nearest | None:
    costs: dict[tuple[str, str], float] = {}
    # (edits, words of the text from the first) of the best alignment that ends at each word of the text.
    column: list[tuple[float, int]] = [(float(k), 0) for k in range(len(wanted) + 1)]
    ends: list[tuple[float, int]] = []
    for word in words:
        column = _next_column(column, wanted, word.group(), costs)
        ends.append(column[-1])
    # Of equally near parts the one of most like length: a changed word is part of what was quoted.
    best = min(range(len(ends)), key=lambda at: (round(ends[at][0], 6), abs(ends[at][1] - len(wanted))))
    edited, length = ends[best]
    if edited > MOST_EDITED * len(wanted) or not length:
        return None
    least = CLEAR_LEAD * len(wanted)
    # A part that ends a few words off takes a few edits more in any text; one further off only where words recur.
    apart = [at for at in range(len(ends)) if abs(at - best) >= least]
    first, last = words[best - length + 1], words[best]
    # A first or last word that was changed could as well be its neighbour.
    borders = _cost(wanted[0], first.group(), costs), _cost(wanted[-1], last.group(), costs)
    lead = all(ends[at][0] - edited >= least for at in apart)
    return Nearest(first.start(), last.end(), lead and max(borders) < 0.5, 1 - edited / len(wanted))


def _next_column(
    before: Sequence[tuple[float, int]], wanted: Sequence[str], word: str, costs: dict[tuple[str, str], float]
) -> list[tuple[float, int]]:
    column = [(0.0, 0)]  # The part may begin anywhere.
    for k, one in enumerate(wanted, 1):
        changed, at_changed = before[k - 1]
        extra, at_extra = before[k]
        missing, at_missing = column[k - 1]
        choices = (
            (changed + _cost(one, word, costs), at_changed + 1),
            (extra + 1.0, at_extra + 1),
            (missing + 1.0, at_missing),
        )
        column.append(min(choices, key=lambda choice: choice[0]))
    return column


def _cost(one: str, other: str, costs: dict[tuple[str, str], float]) -> float:
    if one == other:
        return 0.0
    if (one, other) not in costs:
        costs[one, other] = min(1.0, edits(one, other, anywhere=False)[-1] / max(len(one), len(other)))
    return costs[one, other]


def _by_characters(form: str, text: str) -> Nearest | None:
    after = edits(form, text, anywhere=True)
    fewest = min(after)
    if fewest > MOST_EDITED * len(form):
        return None
    start, end = _best_span(form, text, after, fewest)
    least = CLEAR_LEAD * len(form)
    clear = all(edited - fewest >= least for at, edited in enumerate(after, 1) if abs(at - end) >= least)
    # A word that was changed matches its place in part: the whole word is meant, and perhaps another.
    first, last = _whole_words(text, start, end)
    return Nearest(first, last, clear and (first, last) == (start, end), 1 - fewest / len(form))


def _best_span(form: str, text: str, after: Sequence[int], fewest: int) -> tuple[int, int]:
    """Of the spans that take the fewest edits the one that cuts no words, and is most like in length."""
    spans = []
    for end in (at for at, edited in enumerate(after, 1) if edited == fewest):
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


def cut_words(text: str, span: tuple[int, int]) -> int:
    """How many words the span's borders cut through."""
    return sum(0 < at < len(text) and text[at - 1].isalnum() and text[at].isalnum() for at in span)


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
