"""What a source says instead: words that it does not support, compared with the passage that comes nearest to them.

Numbers, dates, names and negations are compared one by one; English. Only what the texts themselves show is said, so
that a reader can check it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

from metrist.metrics.errors.facts import FUNCTION_WORDS, NUMBER_WORDS, CharacterSpan, Fact, find_facts, split_words
from metrist.sentences import split_sentences

_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
_NEGATION = re.compile(
    r"\b(?:not|never|no|none|nobody|nothing|neither|nor|without|cannot)\b|(?<=\w)n['’]t\b", re.IGNORECASE
)
#: Words of amounts, which a source may write as signs.
_AMOUNTS = frozenset(split_words("cent cents dollar dollars euro euros percent pound pounds"))
#: Endings that are left out when words are compared.
_ENDINGS = split_words("ations ation ingly edly ments ment ings ing ies ied ers ed es er ly s y e")
#: The fewest letters that an ending leaves, and letters of which a word of substance has at least so many.
_SHORTEST_STEM, _SHORTEST_WORD = 3, 4
#: Most words and findings that an explanation lists.
_MOST_WORDS, _MOST_FINDINGS = 4, 3
#: A passage says the same with or without a negation if it has at least this share of the sentence's words.
_SAME_STATEMENT = 0.6
#: Kinds of which a passage may well have one about something else; characters near a fact that say what it is about.
_COUNTS, _NEAR = ("number", "ordinal", "code", "name"), 60
_BOTH = 2
#: The share of a sentence's words that a sentence of the source about the same has, at least.
_SAME_SUBJECT = 0.4
#: Sources whose words are kept: several outputs share one.
_SOURCES = 64
#: Words whose stems are kept.
_STEMS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceDifference:
    """Something that the source says differently or not at all; `fact` of the output should be `replacement`."""

    text: str
    fact: Fact | None = None
    replacement: str = ""


def compare(
    output: str, marked: CharacterSpan, sentence: CharacterSpan, source: str, passage: CharacterSpan | None
) -> tuple[list[str], str]:
    """Compare marked words of a sentence with the nearest passage of the source and with the source as a whole: what is
    wrong with them, and the words that the source has in their place; empty if it gives none."""
    findings = list(_compare_facts(output, marked, sentence, source, passage))
    if passage is not None and (marked == sentence or not findings):
        findings += _compare_negation(output, marked, sentence, source, passage)
    replaced = [finding for finding in findings if finding.replacement and finding.fact is not None]
    words = _replace(output, marked, [replace(finding, replacement="") for finding in replaced])
    if not findings or replaced:
        findings += _find_unknown_words(words, source, "occurs nowhere in the source", "occur nowhere in the source")
    if not findings and passage is not None and marked != sentence:
        near, where = source[slice(*passage)], "in the nearest passage"
        findings += _find_unknown_words(words, near, f"does not occur {where}", f"do not occur {where}")
    # A correction that leaves something else wrong is none.
    revision = _replace(output, marked, replaced) if replaced and len(replaced) == len(findings) else ""
    return [finding.text for finding in findings[:_MOST_FINDINGS]], revision


def _replace(output: str, marked: CharacterSpan, findings: Sequence[SourceDifference]) -> str:
    """The marked words with the source's numbers and names."""
    pieces, at = [], marked[0]
    for finding in sorted(findings, key=lambda finding: finding.fact.start if finding.fact else 0):
        assert finding.fact is not None
        pieces += [output[at : finding.fact.start], finding.replacement]
        at = finding.fact.end
    return "".join([*pieces, output[at : marked[1]]])


# --- Facts


class AlignedText(NamedTuple):
    """A text in which the numbers and dates that a source has, too, are written as there; and the places of those that
    were written otherwise, here and in the original text."""

    text: str
    places: tuple[tuple[CharacterSpan, CharacterSpan], ...]

    def restore(self, span: CharacterSpan) -> CharacterSpan:
        """Characters of the original text; what covers a part of a number covers all of it."""
        start, end = span
        shift_start = shift_end = 0
        for (first, last), (old_first, old_last) in self.places:
            if first >= end:
                break
            if last <= start:
                shift_start = old_last - last
            elif first < start:
                start, shift_start = old_first, 0
            if last <= end:
                shift_end = old_last - last
            else:
                end, shift_end = old_last, 0
        return start + shift_start, end + shift_end


def align_values(output: str, source: str) -> AlignedText:
    """Write the numbers, amounts and dates of an output as its source does where the values are equal, so that a model
    need not know that "30 euros" are "€30"."""
    index = _index(source)
    pieces: list[str] = []
    places = []
    at = length = 0
    for fact in _list_values(output):
        equal = [other for other in index.values if fact.is_same(other)]
        if not equal or any(other.text == fact.text for other in equal):
            continue
        before, text = output[at : fact.start], equal[0].text
        start = length + len(before)
        at, length = fact.end, start + len(text)
        pieces += [before, text]
        places.append(((start, length), (fact.start, fact.end)))
    return AlignedText("".join([*pieces, output[at:]]), tuple(places))


def snap_to_values(output: str, span: CharacterSpan) -> CharacterSpan:
    """Marked characters with the whole of each number, amount or date that they touch."""
    start, end = span
    touched = [f for f in _list_values(output) if f.start < end and f.end > start]
    return min([start, *(fact.start for fact in touched)]), max([end, *(fact.end for fact in touched)])


class Contradiction(NamedTuple):
    """A fact of an output, what the source says in its place, and the sentence of the source that says so."""

    fact: Fact
    source_fact: Fact
    passage: CharacterSpan


def find_contradictions(output: str, sentence: CharacterSpan, source: str) -> list[Contradiction]:
    """The numbers, amounts and dates of a sentence for which the most similar sentence of the source gives another
    value. Values that the source has elsewhere count if the same words stand on both sides of either."""
    index = _index(source)
    facts = [fact for fact in _list_values(output) if sentence[0] <= fact.start < sentence[1]]
    # What did not happen then may have happened at another time.
    if not facts or not index.values or _NEGATION.search(output, *sentence):
        return []
    unknown = [fact for fact in facts if not index.has_value(fact)]
    # The sentence of the source that shares most words with this one, if it shares enough.
    own = {stem for stem in _list_stems(output[slice(*sentence)]) if not stem[0].isdigit()}
    shared = [(len(own & stems), span) for span, stems in index.sentences]
    most, aligned = max(shared, key=lambda pair: pair[0], default=(0, (0, 0)))
    if not most or most < _SAME_SUBJECT * len(own):
        return []
    there = [fact for fact in index.values if aligned[0] <= fact.start < aligned[1]]
    candidates = _list_candidates(facts, there)
    found = []
    for fact in facts:
        if any(fact.equals(other) or fact.agrees(other) for other in there):
            continue
        other = _find_counterpart(output, fact, source, candidates)
        if other and (fact in unknown or _count_neighbours(output, fact, source, other) == _BOTH):
            found.append(Contradiction(fact, fact.narrow(other), aligned))
    return found


@lru_cache(maxsize=1)
def _list_values(text: str) -> list[Fact]:
    return find_facts(text, (0, len(text)), names=False)


def _compare_facts(
    output: str, marked: CharacterSpan, sentence: CharacterSpan, source: str, passage: CharacterSpan | None
) -> Iterator[SourceDifference]:
    index = _index(source)
    in_sentence = find_facts(output, sentence)
    in_passage = find_facts(source, passage) if passage is not None else []
    candidates = _list_candidates(in_sentence, in_passage)
    for fact in in_sentence:
        if fact.start >= marked[1] or fact.end <= marked[0] or any(map(fact.equals, in_passage)):
            continue
        is_name = fact.kind == "name"
        is_known = all(map(index.has_word, _WORD.findall(fact.text))) if is_name else index.has_value(fact)
        other = _find_counterpart(output, fact, source, candidates)
        if other is not None and not (is_known and is_name):
            yield describe_difference(fact, fact.narrow(other))
        elif not is_known:
            what = fact.kind if fact.kind in ("name", "date", "time") else "number"
            what = "date" if fact.kind == "weekday" else what
            yield SourceDifference(text=f"The {what} “{fact.text}” does not occur in the source.")
        elif passage is not None and marked != sentence:
            yield SourceDifference(text=f"“{fact.text}” occurs in the source, but not in the nearest passage.")


def describe_difference(fact: Fact, other: Fact) -> SourceDifference:
    """That the source has another value than the output."""
    return SourceDifference(
        text=f"The source says “{other.text}”, not “{fact.text}” (characters {other.start} to {other.end}).",
        fact=fact,
        replacement=other.text,
    )


def _list_candidates(facts: Sequence[Fact], there: Sequence[Fact]) -> list[Fact]:
    """Facts of a passage that a sentence does not have: what it says too is not what it has wrong."""
    return [other for other in there if not any(fact.equals(other) for fact in facts)]


def _find_counterpart(output: str, fact: Fact, source: str, candidates: Sequence[Fact]) -> Fact | None:
    """The fact of the passage that stands where this one stands in the sentence: of the same kind, beside the same
    words. A percentage, date or amount needs no such word if the passage has one only."""
    same = [other for other in candidates if fact.differs(other)]
    around = _context(output, fact)

    def rank(other: Fact) -> tuple[bool, bool, int, int]:
        beside = _count_neighbours(output, fact, source, other)
        alike = fact.unit == other.unit and fact.factor == other.factor
        is_measure = fact.kind == "number" and bool(fact.unit)
        return beside > 0 or (is_measure and alike), alike, beside, len(around & _context(source, other))

    best = max(same, key=rank, default=None)
    if best and rank(best)[0]:
        return best
    return best if len(same) == 1 and fact.kind not in _COUNTS else None


def _count_neighbours(output: str, fact: Fact, source: str, other: Fact) -> int:
    """On how many sides of both facts the same word stands."""
    pairs = zip(_neighbours(output, fact), _neighbours(source, other), strict=True)
    return sum(bool(mine) and mine == theirs for mine, theirs in pairs)


def _neighbours(text: str, fact: Fact) -> tuple[str, ...]:
    """The words before and after a fact; empty if there is none or it says nothing."""
    before = _WORD.findall(text[max(0, fact.start - 40) : fact.start])[-1:]
    after = _WORD.findall(text[fact.end : fact.end + 40])[:1]
    words = [word[0].lower() if word else "" for word in (before, after)]
    # A preposition says little about a name, and something about a number ("12 to 3").
    vague = FUNCTION_WORDS if fact.kind == "name" else frozenset()
    return tuple("" if word in vague else _stem(word) for word in words)


def _context(text: str, fact: Fact) -> frozenset[str]:
    """The words of substance near a fact."""
    near = f"{text[max(0, fact.start - _NEAR) : fact.start]} {text[fact.end : fact.end + _NEAR]}"
    return frozenset(_list_stems(near))


# --- Negation and words


def _compare_negation(
    output: str, marked: CharacterSpan, sentence: CharacterSpan, source: str, passage: CharacterSpan
) -> Iterator[SourceDifference]:
    """A negation that one of two like statements has; if only some words are marked, they must have to do with it."""
    statement, other = output[slice(*sentence)], source[slice(*passage)]
    words, others = _list_stems(statement), set(_list_stems(other))
    if not words or sum(word in others for word in words) < _SAME_STATEMENT * len(words):
        return
    denied, denied_there = _NEGATION.search(statement), _NEGATION.search(other)
    if denied and not denied_there:
        start, end = (sentence[0] + at for at in denied.span())
        if start < marked[1] and end > marked[0]:
            yield SourceDifference(text=f"The output says “{_quote_negation(statement, denied)}”, the source does not.")
    elif denied_there and not denied:
        start, end = (passage[0] + at for at in denied_there.span())
        beside = {_stem(word.lower()) for word in _WORD.findall(source[max(start - 15, 0) : start])[-1:]}
        beside |= {_stem(word.lower()) for word in _WORD.findall(source[end : end + 30])[:1]}
        own = {_stem(word.lower()) for word in _WORD.findall(output[slice(*marked)])}
        if marked == sentence or own & beside:
            said = _quote_negation(other, denied_there)
            yield SourceDifference(text=f"The source says “{said}” (characters {start} to {end}), the output does not.")


def _quote_negation(text: str, match: re.Match[str]) -> str:
    """The negation, with its verb if it is attached to one."""
    start = match.start()
    while match[0].lower().startswith("n") and start > 0 and text[start - 1].isalpha() and len(match[0]) == 3:
        start -= 1
    return text[start : match.end()]


def _find_unknown_words(marked: str, source: str, singular: str, plural: str) -> Iterator[SourceDifference]:
    """The words of substance that a text does not have, with what is said about one and about several."""
    known = _index(source)
    words = dict.fromkeys(
        word
        for word in _WORD.findall(marked)
        if len(word) >= _SHORTEST_WORD
        and word.lower() not in FUNCTION_WORDS | _AMOUNTS | NUMBER_WORDS.keys()
        and not known.has_word(word)
    )
    if not words:
        return
    quoted = [f"“{word}”" for word in list(words)[:_MOST_WORDS]]
    listed = quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} and {quoted[-1]}"
    yield SourceDifference(text=f"{listed} {singular if len(quoted) == 1 else plural}.")


def _list_stems(text: str) -> list[str]:
    words = (word.lower() for word in _WORD.findall(text))
    return [_stem(word) for word in words if word not in FUNCTION_WORDS and not word.endswith(("n't", "n’t"))]


@lru_cache(maxsize=_STEMS)
def _stem(word: str) -> str:
    if "'" in word or "’" in word:
        word = re.sub(r"['’]s?$", "", word)
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= _SHORTEST_STEM:
            return word[: -len(ending)]
    return word


@dataclass(frozen=True, eq=False)
class _SourceIndex:
    """What occurs in a source: numbers and dates, stems of words, and sentences."""

    text: str

    @cached_property
    def values(self) -> list[Fact]:
        return find_facts(self.text, (0, len(self.text)), names=False)

    @cached_property
    def stems(self) -> frozenset[str]:
        words = _WORD.findall(self.text)
        parts = [part for word in words if "-" in word for part in word.split("-")]
        return frozenset(_stem(word.lower()) for word in [*words, *parts])

    @cached_property
    def sentences(self) -> list[tuple[CharacterSpan, frozenset[str]]]:
        return [(span, frozenset(_list_stems(self.text[slice(*span)]))) for span in split_sentences(self.text)]

    def has_value(self, fact: Fact) -> bool:
        return any(map(fact.equals, self.values))

    def has_word(self, word: str) -> bool:
        return _stem(word.lower()) in self.stems or ("-" in word and all(map(self.has_word, word.split("-"))))


_index = lru_cache(maxsize=_SOURCES)(_SourceIndex)
