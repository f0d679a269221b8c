"""Edits between a few words and very many, all at once: what comparing them one by one in Python would take seconds for
in a text of thousands of words."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from unicodedata import category, east_asian_width

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
#: Words of up to so many characters are compared together: one bit for each.
_LONGEST = 63
#: So many words at a time, which keeps what is in hand small.
_AT_ONCE = 32


class WordTable:
    """Words made ready to be compared with others. `edits` counts those of words too long to be compared together."""

    def __init__(self, words: Sequence[str], edits: Callable[[str, str], int]) -> None:
        self._words, self._edits = words, edits
        self._lengths = np.array([len(word) for word in words], dtype=np.int64)
        # Longest first, so that at each place the words that have not ended are the first ones.
        order = np.argsort(-self._lengths, kind="stable")
        self._order = order[self._lengths[order] <= _LONGEST]
        self._long = order[self._lengths[order] > _LONGEST]
        self._alphabet, self._columns = _by_place([words[n] for n in self._order])

    def edit_shares(self, wanted: Sequence[str]) -> Floats:
        """A row for each wanted word, a column for each word: the fewest edits between the two over the length of the
        longer."""
        found = np.empty((len(wanted), len(self._words)))
        for start in range(0, len(wanted), _AT_ONCE):
            found[start : start + _AT_ONCE] = self._edited(wanted[start : start + _AT_ONCE])
        longer = np.maximum(self._lengths, np.array([[len(one)] for one in wanted]))
        shares: Floats = np.minimum(found / longer, 1.0)
        return shares

    def _edited(self, wanted: Sequence[str]) -> NDArray[np.int64]:
        found = np.empty((len(wanted), len(self._words)), dtype=np.int64)
        short = [n for n, one in enumerate(wanted) if len(one) <= _LONGEST]
        if short:
            found[np.ix_(np.array(short), self._order)] = self._together([wanted[n] for n in short])
        for row, one in enumerate(wanted):
            for column in self._long if len(one) <= _LONGEST else range(len(self._words)):
                found[row, column] = self._edits(one, self._words[column])
        return found

    def _together(self, wanted: Sequence[str]) -> NDArray[np.int64]:
        """Myers' bit-parallel algorithm, a wanted word's characters in the bits: a step for each place of the words."""
        masks = self._masks(wanted)
        sizes = np.array([[len(one)] for one in wanted], dtype=np.uint64)
        one = np.uint64(1)
        last = one << (sizes - one)
        whole = last | (last - one)
        rises = np.repeat(whole, len(self._order), axis=1)
        falls = np.zeros_like(rises)
        edited = np.repeat(sizes.astype(np.int64), len(self._order), axis=1)
        for column in self._columns:
            live = np.s_[:, : len(column)]
            mask, rising, falling = masks[:, column], rises[live], falls[live]
            same = mask | falling
            diagonal = (((mask & rising) + rising) ^ rising) | mask
            up, down = falling | (whole & ~(diagonal | rising)), rising & diagonal
            edited[live] += ((up & last) > 0).astype(np.int64) - ((down & last) > 0)
            up, down = ((up << one) | one) & whole, (down << one) & whole
            rises[live], falls[live] = down | (whole & ~(same | up)), up & same
        return edited

    def _masks(self, wanted: Sequence[str]) -> NDArray[np.uint64]:
        """By the numbers of the words' characters, the bits where a wanted word has them."""
        masks = np.zeros((len(wanted), len(self._alphabet) + 1), dtype=np.uint64)
        for row, one in enumerate(wanted):
            for at, character in enumerate(one):
                masks[row, self._alphabet.get(character, -1)] |= np.uint64(1 << at)
        # What no word has is nowhere in them.
        masks[:, -1] = 0
        return masks


def _by_place(words: Sequence[str]) -> tuple[dict[str, int], list[NDArray[np.int64]]]:
    """A number for each character, and for each place the numbers of the characters that words have there."""
    alphabet = {character: n for n, character in enumerate(dict.fromkeys("".join(words)))}
    columns: list[list[int]] = [[] for _ in range(len(words[0]) if words else 0)]
    for word in words:
        for place, character in enumerate(word):
            columns[place].append(alphabet[character])
    return alphabet, [np.array(column, dtype=np.int64) for column in columns]


def edits_along(form: str, text: str) -> NDArray[np.int32]:
    """After each character of the text, the fewest edits that turn the form into a part of the text that ends there and
    begins anywhere: the textbook's table, a row at a time."""
    characters = _codes(text)
    along = np.arange(len(text) + 1, dtype=np.int32)
    row = np.zeros(len(text) + 1, dtype=np.int32)
    for character in _codes(form):
        made = row + np.int32(1)
        np.minimum(made[1:], row[:-1] + (characters != character), out=made[1:])
        # A character of the text that is passed over costs one more than the place before it.
        row = np.minimum.accumulate(made - along) + along
    return row[1:]


def least_edited(costs: Floats) -> Floats:
    """After each word of a text (a column), the least that wanted words (rows) cost against some words that end there:
    a changed word costs its share of edits, one too many or too few costs 1. Right but for rounding."""
    along = np.arange(costs.shape[1] + 1, dtype=np.float64)
    row = np.zeros(costs.shape[1] + 1)
    for changes in costs:
        made = row + 1.0
        np.minimum(made[1:], row[:-1] + changes, out=made[1:])
        row = np.minimum.accumulate(made - along) + along
    return row[1:]


def _codes(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)


# The part of a text that is nearest to a few words: by words where there are several, by characters where there is one
# or a script that does not part them.


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


# Text as a reader compares it: case, kinds of quotation marks, dashes and spaces put aside, with the way back.


_ALIKE = {
    **dict.fromkeys("“”„‟«»″＂❝❞", '"'),
    **dict.fromkeys("‘’‚‛‹›′´`＇", "'"),
    **dict.fromkeys("‐‑‒–—―−﹣－", "-"),
}
# Most of a text in Latin script: nothing but capitals needs a look there.
_EASY = re.compile(r"[!-_a-~]+(?: [!-_a-~]+)*")
_VOICED = "\uff9e\uff9f"


@dataclass(frozen=True, slots=True)
class Normalised:
    """`text` is compared; its character k comes from those of the original from `origins[k]` up to `ends[k]`."""

    text: str
    origins: tuple[int, ...]
    ends: tuple[int, ...]

    def span(self, start: int, end: int) -> tuple[int, int]:
        """The original characters that these came from."""
        return self.origins[start], self.ends[end - 1]


@lru_cache(maxsize=256)
def normalised(text: str) -> Normalised:
    """Lower case, compatible and composed forms made one, marks unified, runs of white space one space, invisible
    characters out."""
    pieces: list[str] = []
    origins: list[int] = []
    ends: list[int] = []
    at, spaced = 0, False
    while at < len(text):
        easy = _easy_end(text, at)
        if easy > at:
            pieces.append(text[at:easy].lower())
            origins += range(at, easy)
            ends += range(at + 1, easy + 1)
            at, spaced = easy, False
            continue
        end = _cluster_end(text, at)
        for plain in _plain(text[at:end]):
            if plain == " " and spaced:
                continue
            spaced = plain == " "
            pieces.append(plain)
            origins.append(at)
            ends.append(end)
        at = end
    return Normalised("".join(pieces), tuple(origins), tuple(ends))


def _easy_end(text: str, at: int) -> int:
    """Where the easy characters from here on end; the last of them may have marks that follow."""
    found = _EASY.match(text, at)
    if found is None:
        return at
    end = found.end()
    return end - (end < len(text) and _joins(text[end]))


def _cluster_end(text: str, at: int) -> int:
    """Where a character ends together with the marks on it: they may be written as one character or as several."""
    end = at + 1
    while end < len(text) and _joins(text[end]):
        end += 1
    return end


def _joins(character: str) -> bool:
    return character >= "\u0300" and _is_joined(character)


@lru_cache(maxsize=4096)
def _is_joined(character: str) -> bool:
    # The vowels and end consonants of Korean syllables, and the voicing of half-width kana, are no marks by category.
    return unicodedata.category(character).startswith("M") or "\u1160" <= character <= "\u11ff" or character in _VOICED


@lru_cache(maxsize=4096)
def _plain(cluster: str) -> str:
    first = cluster[0]
    alone = _alone(first)
    if alone is not None:
        return alone + (_plain(cluster[1:]) if len(cluster) > 1 else "")
    composed = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", cluster).casefold())
    return "".join(_ALIKE.get(one, one) for one in composed)


def _alone(character: str) -> str | None:
    """What stands for a character whatever follows it; None where marks may change it."""
    if character.isspace():
        return " "
    if character in _ALIKE:
        return _ALIKE[character]
    # Zero-width joiners, byte order marks, directions.
    return "" if unicodedata.category(character) == "Cf" else None
