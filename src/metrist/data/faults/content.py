"""Faults of what a text says: facts, what is missing or too much, and the order of sentences."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import cache, lru_cache
from itertools import pairwise

from metrist.data.faults.text import (
    Edit,
    Text,
    exchange,
    find_pattern,
    insert_sentence,
    list_exchanges,
    quote,
    read_lists,
    register_kind,
    split_text,
)

#: One to four capitalised words in a row.
_NAME = re.compile(r"\b[A-Z][a-zà-ÿ]+(?:[ -][A-Z][a-zà-ÿ]+){0,3}\b|\b[A-Z]{2,6}\b")
_NUMBER = re.compile(r"(?<![\w.,])\d{1,3}(?:,\d{3})+(?:\.\d+)?(?![\w])|(?<![\w.,])\d+(?:\.\d+)?(?![\d,.]*\d|\w)")
_YEAR = re.compile(r"(?<![\w.,$£€=*/+])(?<![=*/+-] )(?:1[7-9]|20)\d\d(?![\w%]|[.,]\d| ?[=*/+])")
_AUXILIARY = re.compile(r"\b(?:is|are|was|were|has|have|had|will|would|can|could|should|may|might|must)\b(?! not\b)")
_DENIAL = re.compile(r"(?<=\w) not(?= \w)|(?<=\w)n't\b| never(?= \w)")


@cache
def _not_names() -> frozenset[str]:
    return frozenset(read_lists()["not_names"].split())


def _contradict(what: str) -> Callable[[str, str], str]:
    return lambda old, new: f"{what} is wrong: it should be {quote(old)}, not {quote(new)}."


def _is_name(text: Text, match: re.Match[str]) -> bool:
    """Whether a match is a name rather than an ordinary word at the start of a sentence."""
    starts_sentence = any(match.start() == start for start, _ in text.sentences)
    if not starts_sentence:
        return match[0] not in _not_names()
    return " " in match[0] and match[0].split()[0] not in _not_names()


#: What stands before the first word of a sentence, where a capital letter does not make a name.
_BEFORE_SENTENCE = re.compile(r"(?:\A|[.!?:;\n…\"“”'‘’(\[–—-])\s*\Z")


@lru_cache(maxsize=64)
def _find_names(text: str) -> frozenset[str]:
    """The names in a text. A single word at the start of a sentence may be any word."""
    return frozenset(
        match[0]
        for match in _NAME.finditer(text)
        if (" " in match[0] and match[0].split()[0] not in _not_names())
        or not _BEFORE_SENTENCE.search(text[max(0, match.start() - 3) : match.start()])
    )


@register_kind("facts", "major", 4.0, needs=("English",))
def propose_entity(text: Text, rng: random.Random) -> Edit | None:
    """Replace a name by another one of the source or of the donor."""
    names = [match for match in text.find(_NAME) if _is_name(text, match)]
    months_and_days = {*list_exchanges("months"), *list_exchanges("days")}
    names = [match for match in names if match[0] not in months_and_days]
    if not names:
        return None
    place = rng.choice(names)
    for pool in (text.source, text.donor_source, text.donor_output):
        others = {
            name for name in _find_names(pool)
            if len(name.split()) == len(place[0].split()) and name.isupper() == place[0].isupper()
            and name not in text.output and name not in _not_names() and name not in months_and_days
        }  # fmt: skip
        if others:
            new = rng.choice(sorted(others))
            explanation = f"The name {quote(new)} is wrong here: it should be {quote(place[0])}."
            return Edit(
                kind="entity", start=place.start(), end=place.end(), text=new, explanation=explanation,
                evidence=text.find_evidence(place.start(), place[0]),
            )  # fmt: skip
    return None


def _change_number(number: str, rng: random.Random) -> str:
    """Another number of the same form: as many digits, commas and decimals."""
    digits = [at for at, character in enumerate(number) if character.isdigit()]
    for _ in range(20):
        at = rng.choice(digits[: max(1, len(digits) - 1)])
        low = 1 if at == digits[0] else 0
        digit = str(rng.randint(low, 9))
        changed = number[:at] + digit + number[at + 1 :]
        if changed != number:
            return changed
    return f"{number}0"


@register_kind("facts", "major", 3.0)
def propose_number(text: Text, rng: random.Random) -> Edit | None:
    """Change a number, in digits or in words."""
    places = [match for match in text.find(_NUMBER) if not _YEAR.fullmatch(match[0])]
    if not places:
        return exchange(text, rng, "numbers", "number", _contradict("The number"))
    place = rng.choice(places)
    new = _change_number(place[0], rng)
    return Edit(
        kind="number", start=place.start(), end=place.end(), text=new,
        explanation=f"The number {new} is wrong: it should be {place[0]}.",
        evidence=text.find_evidence(place.start(), place[0]),
    )  # fmt: skip


@register_kind("facts", "major", 3.0)
def propose_date(text: Text, rng: random.Random) -> Edit | None:
    """Change a month, a day of the week or a year."""
    years = text.find(_YEAR)
    lists = [name for name in ("months", "days") if _find_capitals(text, name)]
    if years and (not lists or rng.random() < 0.5):
        place = rng.choice(years)
        new = str(int(place[0]) + rng.choice((-10, -3, -2, -1, 1, 2, 3, 10)))
    elif lists:
        name = rng.choice(lists)
        place = rng.choice(_find_capitals(text, name))
        new = rng.choice(list_exchanges(name)[place[0]])
    else:
        return None
    return Edit(
        kind="date", start=place.start(), end=place.end(), text=new,
        explanation=f"The time {quote(new)} is wrong: it should be {quote(place[0])}.",
        evidence=text.find_evidence(place.start(), place[0]),
    )  # fmt: skip


def _find_capitals(text: Text, name: str) -> list[re.Match[str]]:
    """Places of a list of names as they are written: `may` is no month."""
    return [match for match in text.find(find_pattern(name)) if match[0] in list_exchanges(name)]


@register_kind("facts", "major", 3.0, needs=("English",))
def propose_unit(text: Text, rng: random.Random) -> Edit | None:
    """Change a unit of time, length, weight, money or size."""
    return exchange(text, rng, "units", "unit", _contradict("The unit"))


@register_kind("facts", "major", 4.0, needs=("English",))
def propose_negation(text: Text, rng: random.Random) -> Edit | None:
    """Deny a statement, or take a denial out."""
    denials, verbs = text.find(_DENIAL), text.find(_AUXILIARY)
    if denials and (not verbs or rng.random() < 0.5):
        place, new = rng.choice(denials), ""
        explanation = "The statement is the opposite of what is true: the denial is missing."
    elif verbs:
        place = rng.choice(verbs)
        new = f"{place[0]} not"
        explanation = "The statement is denied, though it is true."
    else:
        return None
    start, end = text.sentence_around(place.start())
    return Edit(
        kind="negation", start=place.start(), end=place.end(), text=new, explanation=explanation,
        evidence=text.find_passage(text.output[start:end]),
    )  # fmt: skip


@register_kind("facts", "major", 4.0, needs=("English",))
def propose_role_swap(text: Text, rng: random.Random) -> Edit | None:
    """Exchange two names of one sentence."""
    swaps = []
    for start, end in text.sentences:
        names = [match for match in _NAME.finditer(text.output, start, end) if _is_name(text, match)]
        for first, second in pairwise(names):
            if first[0] != second[0] and text.is_free(first.start(), second.end()):
                swaps.append((first, second))
    if not swaps:
        return None
    first, second = rng.choice(swaps)
    between = text.output[first.end() : second.start()]
    return Edit(
        kind="role_swap", start=first.start(), end=second.end(), text=f"{second[0]}{between}{first[0]}",
        explanation=f"{quote(first[0])} and {quote(second[0])} have changed places.",
        evidence=text.find_evidence(first.start(), first[0]),
    )  # fmt: skip


@register_kind("facts", "major", 3.0, needs=("English",))
def propose_addition(text: Text, rng: random.Random) -> Edit | None:
    """Add a statement that nothing supports: a sentence, or a clause at the end of one."""
    if rng.random() < 0.5:
        statement = str(rng.choice(read_lists()["additions"]))
        sentence = f"{statement[0].upper()}{statement[1:]}."
        return insert_sentence(text, rng, "addition", sentence, "Nothing in the source says this.")
    marks = [end - 1 for _, end in text.sentences if text.output[end - 1] in ".!?" and text.is_free(end - 1, end - 1)]
    if not marks:
        return None
    at = rng.choice(marks)
    clause = f", {rng.choice(read_lists()['additions_inside'])}"
    return Edit(kind="addition", start=at, end=at, text=clause, explanation="Nothing in the source says this.")


@register_kind("content", "major", 3.0)
def propose_omission(text: Text, rng: random.Random) -> Edit | None:
    """Leave out a sentence, or the part of the only one after a comma."""
    if len(text.sentences) > 1:
        spans = [
            (text.sentences[number - 1][1] if number else start, end if number else text.sentences[1][0])
            for number, (start, end) in enumerate(text.sentences)
        ]
    else:
        spans = [match.span() for match in re.finditer(r",[^,.!?]{12,}(?=[.!?]\s*\Z|,)", text.output)]
    spans = [span for span in spans if text.is_free(*span)]
    if not spans:
        return None
    start, end = rng.choice(spans)
    left_out = text.output[start:end]
    return Edit(
        kind="omission", start=start, end=end, text="", explanation=f"It lacks {quote(left_out)}.",
        evidence=text.find_passage(left_out),
    )  # fmt: skip


@register_kind("excess", "minor", 1.5)
def propose_repetition(text: Text, rng: random.Random) -> Edit | None:
    """Say a sentence twice, or a run of words of the only one."""
    if len(text.sentences) > 1:
        start, end = rng.choice(text.sentences)
        repeated = text.output[start:end]
        return insert_sentence(text, rng, "repetition", repeated, f"{quote(repeated)} is said twice.")
    runs = [
        (text.words[at].start(), text.words[at + 2].end())
        for at in range(len(text.words) - 2)
        if text.is_free(text.words[at + 2].end(), text.words[at + 2].end())
    ]
    if not runs:
        return None
    start, end = rng.choice(runs)
    repeated = text.output[start:end]
    return Edit(
        kind="repetition", start=end, end=end, text=f" {repeated}", explanation=f"{quote(repeated)} is said twice."
    )


@register_kind("excess", "major", 3.0, needs=("donor",))
def propose_unrelated(text: Text, rng: random.Random) -> Edit | None:
    """Insert a sentence of the donor."""
    sentences = [text.donor_output[start:end] for start, end in split_text(text.donor_output)]
    sentences = [sentence for sentence in sentences if len(sentence) > 20 and sentence not in text.output]
    if not sentences:
        return None
    return insert_sentence(
        text, rng, "unrelated", " ".join(rng.choice(sentences).split()), "This has nothing to do with the subject."
    )


@register_kind("facts", "major", 4.0, needs=("English",))
def propose_contradiction(text: Text, rng: random.Random) -> Edit | None:
    """Say the opposite by a single word."""
    return exchange(text, rng, "opposites", "contradiction", _contradict("This"))


@register_kind("order", "minor", 2.0)
def propose_shuffle(text: Text, rng: random.Random) -> Edit | None:
    """Put three or more sentences in a row into another order; two if there are only two."""
    spans = text.sentences
    if len(spans) < 2:
        return None
    size = min(len(spans), rng.randint(3, 5)) if len(spans) > 2 else 2
    first = rng.randrange(len(spans) - size + 1)
    part = spans[first : first + size]
    start, end = part[0][0], part[-1][1]
    if not text.is_free(start, end):
        return None
    order = list(range(size))
    while order == sorted(order):
        rng.shuffle(order)
    pieces = [text.output[a:b] for a, b in part]
    gaps = [text.output[a[1] : b[0]] for a, b in pairwise(part)] + [""]
    new = "".join(pieces[number] + gap for number, gap in zip(order, gaps, strict=True))
    if new == text.output[start:end]:
        return None
    return Edit(
        kind="shuffle", start=start, end=end, text=new,
        explanation="The sentences are in an order that hides how they hang together.",
    )  # fmt: skip
