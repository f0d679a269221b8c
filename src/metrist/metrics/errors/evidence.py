"""What a source says instead: words that it does not support, compared with the passage that comes nearest to them.

Numbers, dates, names and negations are compared one by one; English. Only what the texts themselves show is said, so
that a reader can check it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, NamedTuple

CharacterSpan = tuple[int, int]
#: A percentage and an amount of money are numbers of different kinds, which do not contradict each other.
Kind = Literal["number", "percentage", "money", "year", "month", "day", "name"]

_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
#: Numbers with separators of thousands, decimals and signs; a full stop or comma at the end is not part of one.
_DIGITS = re.compile(
    r"(?P<money>[$£€¥]\s?)?(?<![\w.,])\d{1,3}(?:,\d{3})+(?:\.\d+)?(?!\w)|"
    r"(?P<sum>[$£€¥]\s?)?(?<![\w.,])\d+(?:\.\d+)?(?![\d]|[.,]\d)"
)
_PERCENT = re.compile(r"\s?(?:%|percent\b|per cent\b)")
_SCALE = re.compile(r"[\s-]?(hundred|thousand|million|billion|trillion|k|m|bn)\b", re.IGNORECASE)
_SCALES = {
    "hundred": 1e2, "thousand": 1e3, "k": 1e3, "million": 1e6, "m": 1e6, "billion": 1e9, "bn": 1e9, "trillion": 1e12,
}  # fmt: skip


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_UNITS = _words(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_TENS = _words("twenty thirty forty fifty sixty seventy eighty ninety")
_NUMBER_WORDS = {word: float(number) for number, word in enumerate(_UNITS)} | {
    word: 20.0 + 10 * number for number, word in enumerate(_TENS)
}
_WRITTEN = re.compile(
    # "one" is more often a pronoun or an article than a number.
    rf"\b(?:(?:{'|'.join(_TENS)})(?:[ -](?:{'|'.join(_UNITS[1:10])}))?|{'|'.join(_UNITS[2:])})\b",
    re.IGNORECASE,
)
_MONTHS = _words("January February March April May June July August September October November December")
_DAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
#: "May" and "March" begin sentences as other words too; those of dates have a capital letter.
_MONTH = re.compile(rf"\b(?:{'|'.join(_MONTHS)})\b")
_DAY = re.compile(rf"\b(?:{'|'.join(_DAYS)})\b")
_FIRST_YEAR, _LAST_YEAR = 1500, 2100
_CAPITAL = re.compile(r"\b[A-Z][\w’'-]*\w(?:\s+(?:(?:of|de|van|von|bin|al|la|the)\s+)?[A-Z][\w’'-]*\w)*|\b[A-Z]{2,}\b")
_NEGATION = re.compile(
    r"\b(?:not|never|no|none|nobody|nothing|neither|nor|without|cannot)\b|(?<=\w)n['’]t\b", re.IGNORECASE
)
#: Words that say nothing about a text.
_FUNCTION_WORDS = frozenset(
    _words(
        "a about above after again against all also although always am among an and another any are around as at be "
        "became because been before began behind being below between both but by came can come could did do does "
        "doing done down during each either else enough even ever every few first for from further gave get give "
        "given go goes going gone got had has have having he held her here hers herself him himself his how however i "
        "if in instead into is it its itself just kept last later least less like made make many may me might mine "
        "more most much must my myself near need neither never new next no none nor not nothing now of off often on "
        "once one only onto or other others our ours out over own per perhaps put quite rather really said same say "
        "says several shall she should since so some soon still such take taken than that the their theirs them "
        "themselves then there these they this those though through thus to together too took toward towards under "
        "until up upon us use used very via want was way we well went were what when where whether which while who "
        "whom whose why will with within without would yes yet you your yours"
    )
)
#: Words of amounts, which a source may write as signs.
_AMOUNTS = frozenset(_words("cent dollar dollars euro euros percent pound pounds")) | _SCALES.keys()
_TITLES = frozenset(
    _words(
        "mr mrs ms miss dr sir lord lady president mayor minister prime chancellor governor senator secretary judge "
        "captain general colonel professor doctor coach chief king queen prince princess pope director"
    )
)
#: What does not begin a name; "New York" does.
_NOT_IN_NAMES = (_FUNCTION_WORDS | _TITLES) - {"new"}
#: Endings that are left out when words are compared.
_ENDINGS = _words("ations ation ingly edly ments ment ings ing ies ied ers ed es er ly s y e")
#: The fewest letters that an ending leaves, and letters of which a word of substance has at least so many.
_SHORTEST_STEM, _SHORTEST_WORD = 3, 4
#: Most words and findings that an explanation lists.
_MOST_WORDS, _MOST_FINDINGS = 4, 3
#: A passage says the same with or without a negation if it has at least this share of the sentence's words.
_SAME_STATEMENT = 0.6
#: Sources whose words are kept: several outputs share one.
_SOURCES = 64


class Fact(NamedTuple):
    """A number, date or name at characters `start` to `end` of a text."""

    kind: Kind
    start: int
    end: int
    text: str
    #: Equal for equal facts, however they are written.
    value: str | float


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceDifference:
    """Something that the source says differently or not at all; `fact` of the output should be `replacement`."""

    text: str
    fact: Fact | None = None
    replacement: str = ""


class SourceComparison(NamedTuple):
    """What is wrong with marked words, and the words that the source has in their place; empty if it gives none."""

    findings: list[str]
    revision: str


def compare(
    output: str, marked: CharacterSpan, sentence: CharacterSpan, source: str, passage: CharacterSpan | None
) -> SourceComparison:
    """Compare marked words of a sentence with the nearest passage of the source and with the source as a whole."""
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
    return SourceComparison([finding.text for finding in findings[:_MOST_FINDINGS]], revision)


def _replace(output: str, marked: CharacterSpan, findings: Sequence[SourceDifference]) -> str:
    """The marked words with the source's numbers and names."""
    pieces, at = [], marked[0]
    for finding in sorted(findings, key=lambda finding: finding.fact.start if finding.fact else 0):
        assert finding.fact is not None
        pieces += [output[at : finding.fact.start], finding.replacement]
        at = finding.fact.end
    return "".join([*pieces, output[at : marked[1]]])


# --- Facts


def _compare_facts(
    output: str, marked: CharacterSpan, sentence: CharacterSpan, source: str, passage: CharacterSpan | None
) -> Iterator[SourceDifference]:
    known = _index(source)
    in_sentence = find_facts(output, sentence)
    in_passage = find_facts(source, passage) if passage is not None else []
    said = {(fact.kind, fact.value) for fact in in_sentence}
    # What the sentence says too is not what it has wrong.
    candidates = [fact for fact in in_passage if (fact.kind, fact.value) not in said]
    for fact in in_sentence:
        if fact.start < marked[0] or fact.end > marked[1]:
            continue
        if any((fact.kind, fact.value) == (other.kind, other.value) for other in in_passage):
            continue
        is_known = known.has(fact)
        other = _find_counterpart(output, fact, source, candidates)
        if other is not None and not (is_known and fact.kind == "name"):
            yield SourceDifference(
                text=f"The source says “{other.text}”, not “{fact.text}” (characters {other.start} to {other.end}).",
                fact=fact,
                replacement=other.text,
            )
        elif not is_known:
            what = "name" if fact.kind == "name" else "number" if fact.kind not in ("month", "day") else "date"
            yield SourceDifference(text=f"The {what} “{fact.text}” does not occur in the source.")
        elif passage is not None and marked != sentence:
            yield SourceDifference(text=f"“{fact.text}” occurs in the source, but not in the nearest passage.")


def find_facts(text: str, span: CharacterSpan) -> list[Fact]:
    """The numbers, dates and names within these characters of a text, in order."""
    start, end = span
    facts = [*_find_numbers(text, start, end), *_find_dates(text, start, end)]
    taken = [(fact.start, fact.end) for fact in facts]
    for name in _find_names(text, start, end):
        if not any(name.start < last and first < name.end for first, last in taken):
            facts.append(name)
    return sorted(facts, key=lambda fact: fact.start)


def _find_numbers(text: str, start: int, end: int) -> Iterator[Fact]:
    for match in _DIGITS.finditer(text, start, end):
        money = bool(match["money"] or match["sum"])
        digits = match[0].lstrip("$£€¥ ").replace(",", "")
        value, last = float(digits), match.end()
        if scale := _SCALE.match(text, last, end):
            value, last = value * _SCALES[scale[1].lower()], scale.end()
        kind: Kind = "money" if money else "number"
        if percent := _PERCENT.match(text, last, end):
            kind, last = "percentage", percent.end()
        elif not money and len(digits) == 4 and digits.isdigit() and _FIRST_YEAR <= value <= _LAST_YEAR and not scale:
            kind = "year"
        yield Fact(kind, match.start(), last, text[match.start() : last], value)
    for match in _WRITTEN.finditer(text, start, end):
        value = sum(_NUMBER_WORDS[word] for word in re.split(r"[ -]", match[0].lower()))
        last = match.end()
        if scale := _SCALE.match(text, last, end):
            value, last = value * _SCALES[scale[1].lower()], scale.end()
        yield Fact("number", match.start(), last, text[match.start() : last], value)


def _find_dates(text: str, start: int, end: int) -> Iterator[Fact]:
    for match in _MONTH.finditer(text, start, end):
        yield Fact("month", *match.span(), match[0], match[0])
    for match in _DAY.finditer(text, start, end):
        yield Fact("day", *match.span(), match[0], match[0])


def _find_names(text: str, start: int, end: int) -> Iterator[Fact]:
    """Words with capital letters, without titles. The first word of a sentence has one anyway: alone, it is not taken
    for a name."""
    for match in _CAPITAL.finditer(text, start, end):
        words = list(re.finditer(r"\S+", match[0]))
        skipped = next((n for n, word in enumerate(words) if word[0].lower() not in _NOT_IN_NAMES), len(words))
        before = text[start : match.start()].rstrip(" \"'“‘(\n")
        begins_sentence = not before or before[-1] in ".!?:…"
        if skipped == len(words) or (len(words) == 1 and begins_sentence):
            continue
        first = match.start() + words[skipped].start()
        name = re.sub(r"['’]s$", "", text[first : match.end()])
        yield Fact("name", first, first + len(name), name, " ".join(name.lower().split()))


def _find_counterpart(output: str, fact: Fact, source: str, candidates: Sequence[Fact]) -> Fact | None:
    """The fact of the passage that stands where this one stands in the sentence: of the same kind, beside the same
    word. A year, percentage, date or amount needs no such word if the passage has one only."""
    same = [other for other in candidates if other.kind == fact.kind and other.value != fact.value]
    own = _neighbours(output, fact)
    ranked = [
        (
            sum(bool(mine) and mine == theirs for mine, theirs in zip(own, _neighbours(source, other), strict=True)),
            other,
        )
        for other in same
    ]
    best = max((rank for rank, _ in ranked), default=0)
    first = [other for rank, other in ranked if rank == best]
    if best and len(first) == 1:
        return first[0]
    return same[0] if len(same) == 1 and fact.kind not in ("number", "name") else None


def _neighbours(text: str, fact: Fact) -> tuple[str, ...]:
    """The words before and after a fact; empty if there is none or it says nothing."""
    before = _WORD.findall(text[max(0, fact.start - 40) : fact.start])[-1:]
    after = _WORD.findall(text[fact.end : fact.end + 40])[:1]
    words = [word[0].lower() if word else "" for word in (before, after)]
    # A preposition says little about a name, and something about a number ("12 to 3").
    vague = _FUNCTION_WORDS if fact.kind == "name" else frozenset()
    return tuple("" if word in vague else _stem(word) for word in words)


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
        and word.lower() not in _FUNCTION_WORDS | _AMOUNTS | _NUMBER_WORDS.keys()
        and not known.has_word(word)
    )
    if not words:
        return
    quoted = [f"“{word}”" for word in list(words)[:_MOST_WORDS]]
    listed = quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} and {quoted[-1]}"
    yield SourceDifference(text=f"{listed} {singular if len(quoted) == 1 else plural}.")


def _list_stems(text: str) -> list[str]:
    words = (word.lower() for word in _WORD.findall(text))
    return [_stem(word) for word in words if word not in _FUNCTION_WORDS and not word.endswith(("n't", "n’t"))]


def _stem(word: str) -> str:
    word = re.sub(r"['’]s?$", "", word)
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= _SHORTEST_STEM:
            return word[: -len(ending)]
    return word


@dataclass(frozen=True, eq=False)
class _SourceIndex:
    """What occurs in a source: stems of words, and values of numbers and dates."""

    stems: frozenset[str]
    values: frozenset[tuple[str, str | float]]

    def has(self, fact: Fact) -> bool:
        if fact.kind == "name":
            return all(self.has_word(word) for word in _WORD.findall(fact.text))
        if (fact.kind, fact.value) in self.values:
            return True
        # "$5" is "5 dollars", and what looks like a year may be a plain number.
        amounts = ("number", "money", "year")
        return fact.kind in amounts and any((kind, fact.value) in self.values for kind in amounts)

    def has_word(self, word: str) -> bool:
        return _stem(word.lower()) in self.stems or ("-" in word and all(map(self.has_word, word.split("-"))))


@lru_cache(maxsize=_SOURCES)
def _index(source: str) -> _SourceIndex:
    words = _WORD.findall(source)
    parts = [part for word in words if "-" in word for part in word.split("-")]
    facts = [*_find_numbers(source, 0, len(source)), *_find_dates(source, 0, len(source))]
    return _SourceIndex(
        frozenset(_stem(word.lower()) for word in [*words, *parts]),
        frozenset((fact.kind, fact.value) for fact in facts),
    )
