"""Faults of what a text says and of how it is written, and changes that do no harm.

Every kind proposes one edit of the original text: some characters are replaced by others. Kinds that exchange words of
a list are for English; the others work in any language with sentences and spaces.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import pairwise
from typing import Literal

from metrist.data.faults.text import (
    WORD,
    Edit,
    EditableText,
    find_pattern,
    list_exchanges,
    match_case,
    quote,
    read_lists,
    split_text,
)

Severity = Literal["minor", "major"]
#: What an error is about. `content` is missing, `excess` is there and should not be.
Concern = Literal["facts", "content", "excess", "order", "language", "style", "terminology", "calculation", "method"]
Proposer = Callable[[EditableText, random.Random], Edit | None]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault, or of a harmless change, which has no severity. `tasks` are the tasks that it is made for
    (empty: all), `needs` what it cannot do without."""

    name: str
    proposer: Proposer
    concern: Concern = "style"
    severity: Severity | None = None
    penalty: float = 0.0
    tasks: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()

    def propose(self, text: EditableText, rng: random.Random) -> Edit | None:
        """An edit that makes the fault; None if it has no place in the text."""
        edit = self.proposer(text, rng)
        return None if edit is None else replace(edit, kind=self.name)


def _exchange(
    text: EditableText, rng: random.Random, words: str, explanation: str, *, is_fact: bool = False
) -> Edit | None:
    """Exchange a word or phrase of a list. The explanation names the `{old}` and the `{new}` one."""
    places = text.find(find_pattern(words))
    if not places:
        return None
    place = rng.choice(places)
    table = list_exchanges(words)
    others = table.get(place[0]) or table.get(place[0].lower()) or table[place[0].capitalize()]
    new = match_case(rng.choice(others), place[0])
    evidence = text.find_evidence(place.start(), place[0]) if is_fact else None
    return text.change(place, new, explanation.format(old=quote(place[0]), new=quote(new)), evidence)


def _insert_sentence(text: EditableText, rng: random.Random, sentence: str, explanation: str) -> Edit | None:
    ends = [end for _, end in text.sentences if text.is_free(end, end)]
    if not ends:
        return None
    at = rng.choice(ends)
    return text.change((at, at), f" {sentence}", explanation)


# ---- Facts

#: One to four capitalised words in a row.
_NAME = re.compile(r"\b[A-Z][a-zà-ÿ]+(?:[ -][A-Z][a-zà-ÿ]+){0,3}\b|\b[A-Z]{2,6}\b")
_NUMBER = re.compile(r"(?<![\w.,])\d{1,3}(?:,\d{3})+(?:\.\d+)?(?![\w])|(?<![\w.,])\d+(?:\.\d+)?(?![\d,.]*\d|\w)")
_YEAR = re.compile(r"(?<![\w.,$£€=*/+])(?<![=*/+-] )(?:1[7-9]|20)\d\d(?![\w%]|[.,]\d| ?[=*/+])")
_AUXILIARY = re.compile(r"\b(?:is|are|was|were|has|have|had|will|would|can|could|should|may|might|must)\b(?! not\b)")
_DENIAL = re.compile(r"(?<=\w) not(?= \w)|(?<=\w)n't\b| never(?= \w)")
#: What stands before the first word of a sentence, where a capital letter does not make a name.
_BEFORE_SENTENCE = re.compile(r"(?:\A|[.!?:;\n…\"“”'‘’(\[–—-])\s*\Z")


@cache
def _not_names() -> frozenset[str]:
    return frozenset(read_lists()["not_names"].split())


def _is_name(text: EditableText, match: re.Match[str]) -> bool:
    """Whether a match is a name rather than an ordinary word at the start of a sentence."""
    starts_sentence = any(match.start() == start for start, _ in text.sentences)
    if not starts_sentence:
        return match[0] not in _not_names()
    return " " in match[0] and match[0].split()[0] not in _not_names()


@lru_cache(maxsize=64)
def _find_names(text: str) -> frozenset[str]:
    """The names in a text. A single word at the start of a sentence may be any word."""
    return frozenset(
        match[0]
        for match in _NAME.finditer(text)
        if (" " in match[0] and match[0].split()[0] not in _not_names())
        or not _BEFORE_SENTENCE.search(text[max(0, match.start() - 3) : match.start()])
    )


def propose_entity(text: EditableText, rng: random.Random) -> Edit | None:
    """Replace a name by another one of the source or of the donor."""
    months_and_days = {*list_exchanges("months"), *list_exchanges("days")}
    names = [match for match in text.find(_NAME) if _is_name(text, match) and match[0] not in months_and_days]
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
            return text.change(place, new, explanation, text.find_evidence(place.start(), place[0]))
    return None


def propose_number(text: EditableText, rng: random.Random) -> Edit | None:
    """Change a number, in digits or in words."""
    places = [match for match in text.find(_NUMBER) if not _YEAR.fullmatch(match[0])]
    if not places:
        return _exchange(text, rng, "numbers", "The number is wrong: it should be {old}, not {new}.", is_fact=True)
    place = rng.choice(places)
    number = place[0]
    digits = [at for at, character in enumerate(number) if character.isdigit()]
    for _ in range(20):  # As many digits, commas and decimals.
        at = rng.choice(digits[: max(1, len(digits) - 1)])
        digit = str(rng.randint(1 if at == digits[0] else 0, 9))
        new = number[:at] + digit + number[at + 1 :]
        if new != number:
            break
    else:
        new = f"{number}0"
    explanation = f"The number {new} is wrong: it should be {number}."
    return text.change(place, new, explanation, text.find_evidence(place.start(), number))


def propose_date(text: EditableText, rng: random.Random) -> Edit | None:
    """Change a month, a day of the week or a year. Months and days are found as they are written: `may` is none."""
    years = text.find(_YEAR)
    names = {
        words: [match for match in text.find(find_pattern(words)) if match[0] in list_exchanges(words)]
        for words in ("months", "days")
    }
    lists = [words for words, matches in names.items() if matches]
    if years and (not lists or rng.random() < 0.5):
        place = rng.choice(years)
        new = str(int(place[0]) + rng.choice((-10, -3, -2, -1, 1, 2, 3, 10)))
    elif lists:
        words = rng.choice(lists)
        place = rng.choice(names[words])
        new = rng.choice(list_exchanges(words)[place[0]])
    else:
        return None
    explanation = f"The time {quote(new)} is wrong: it should be {quote(place[0])}."
    return text.change(place, new, explanation, text.find_evidence(place.start(), place[0]))


def propose_unit(text: EditableText, rng: random.Random) -> Edit | None:
    """Change a unit of time, length, weight, money or size."""
    return _exchange(text, rng, "units", "The unit is wrong: it should be {old}, not {new}.", is_fact=True)


def propose_negation(text: EditableText, rng: random.Random) -> Edit | None:
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
    return text.change(place, new, explanation, text.find_evidence(place.start()))


def propose_role_swap(text: EditableText, rng: random.Random) -> Edit | None:
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
    new = f"{second[0]}{text.output[first.end() : second.start()]}{first[0]}"
    explanation = f"{quote(first[0])} and {quote(second[0])} have changed places."
    evidence = text.find_evidence(first.start(), first[0])
    return text.change((first.start(), second.end()), new, explanation, evidence)


def propose_addition(text: EditableText, rng: random.Random) -> Edit | None:
    """Add a statement that nothing supports: a sentence, or a clause at the end of one."""
    explanation = "Nothing in the source says this."
    if rng.random() < 0.5:
        statement = str(rng.choice(read_lists()["additions"]))
        return _insert_sentence(text, rng, f"{statement[0].upper()}{statement[1:]}.", explanation)
    marks = [end - 1 for _, end in text.sentences if text.output[end - 1] in ".!?" and text.is_free(end - 1, end - 1)]
    if not marks:
        return None
    at = rng.choice(marks)
    return text.change((at, at), f", {rng.choice(read_lists()['additions_inside'])}", explanation)


# ---- What is missing or too much, and the order of sentences


def propose_omission(text: EditableText, rng: random.Random) -> Edit | None:
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
    place = rng.choice(spans)
    left_out = text.output[slice(*place)]
    return text.change(place, "", f"It lacks {quote(left_out)}.", text.find_passage(left_out))


def propose_repetition(text: EditableText, rng: random.Random) -> Edit | None:
    """Say a sentence twice, or a run of words of the only one."""
    if len(text.sentences) > 1:
        start, end = rng.choice(text.sentences)
        repeated = text.output[start:end]
        return _insert_sentence(text, rng, repeated, f"{quote(repeated)} is said twice.")
    runs = [
        (first.start(), last.end())
        for first, last in zip(text.words, text.words[2:], strict=False)
        if text.is_free(last.end(), last.end())
    ]
    if not runs:
        return None
    start, end = rng.choice(runs)
    repeated = text.output[start:end]
    return text.change((end, end), f" {repeated}", f"{quote(repeated)} is said twice.")


def propose_unrelated(text: EditableText, rng: random.Random) -> Edit | None:
    """Insert a sentence of the donor."""
    sentences = [text.donor_output[start:end] for start, end in split_text(text.donor_output)]
    sentences = [sentence for sentence in sentences if len(sentence) > 20 and sentence not in text.output]
    if not sentences:
        return None
    sentence = " ".join(rng.choice(sentences).split())
    return _insert_sentence(text, rng, sentence, "This has nothing to do with the subject.")


def propose_contradiction(text: EditableText, rng: random.Random) -> Edit | None:
    """Say the opposite by a single word."""
    return _exchange(text, rng, "opposites", "This is wrong: it should be {old}, not {new}.", is_fact=True)


def propose_shuffle(text: EditableText, rng: random.Random) -> Edit | None:
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
    return text.change((start, end), new, "The sentences are in an order that hides how they hang together.")


# ---- Language and style

_KEYS = {
    "a": "sq", "b": "vn", "c": "xv", "d": "sf", "e": "wr", "f": "dg", "g": "fh", "h": "gj", "i": "uo", "j": "hk",
    "k": "jl", "l": "k", "m": "n", "n": "bm", "o": "ip", "p": "o", "q": "w", "r": "et", "s": "ad", "t": "ry", "u": "yi",
    "v": "cb", "w": "qe", "x": "zc", "y": "tu", "z": "x",
}  # fmt: skip


def propose_spelling(text: EditableText, rng: random.Random) -> Edit | None:
    """Misspell a word of at least four letters."""
    places = text.find_words(4)
    if not places:
        return None
    place = rng.choice(places)
    word = place[0]
    at = rng.randrange(1, len(word) - 1)
    way = rng.randrange(4)
    if way == 0 and word[at] != word[at + 1]:
        new = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    elif way == 1:
        new = word[:at] + word[at + 1 :]
    elif way == 2:
        new = word[:at] + word[at] + word[at:]
    else:
        near = _KEYS.get(word[at].lower())
        new = word[:at] + (rng.choice(near) if near else word[at] * 2) + word[at + 1 :]
    return None if new == word else text.change(place, new, f"{quote(new)} is misspelt: it should be {quote(word)}.")


def propose_agreement(text: EditableText, rng: random.Random) -> Edit | None:
    """Give a verb the form that does not agree with its subject."""
    return _exchange(text, rng, "agreement", "{new} does not agree with its subject: {old}.")


def propose_tense(text: EditableText, rng: random.Random) -> Edit | None:
    """Change the tense of one verb."""
    return _exchange(text, rng, "tenses", "The tense of {new} does not fit: it should be {old}.")


def propose_punctuation(text: EditableText, rng: random.Random) -> Edit | None:
    """Run two sentences together, drop a comma or an apostrophe, or put a comma where none belongs."""
    ways = [
        (match, ", " + match["next"].lower(), "Two sentences are run together.")
        for match in text.find(re.compile(r"(?<=[a-z])\. (?P<next>[A-Z])(?=[a-z])"))
    ]
    for pattern, new, explanation in (
        (r"(?<=\w),(?= \w)", "", "A comma is missing."),
        (r"(?<=\w)['’](?=s\b|t\b|re\b)", "", "An apostrophe is missing."),
        (r"(?<= the)(?= [a-z]{4})|(?<= of)(?= [a-z]{4})", ",", "A comma stands where none belongs."),
    ):
        ways += [(match, new, explanation) for match in text.find(re.compile(pattern))]
    return text.change(*rng.choice(ways)) if ways else None


def propose_capitalisation(text: EditableText, rng: random.Random) -> Edit | None:
    """Write a name or the start of a sentence small, or an ordinary word with a capital letter."""
    places = text.find_words(3)
    capitals = [match for match in places if match[0][0].isupper() and match[0][1:].islower()]
    chosen = capitals if capitals and rng.random() < 0.7 else [match for match in places if match[0].islower()]
    if not chosen:
        return None
    place = rng.choice(chosen)
    new = place[0][0].swapcase() + place[0][1:]
    return None if new == place[0] else text.change(place, new, f"It should be written {quote(place[0])}.")


def propose_word_order(text: EditableText, rng: random.Random) -> Edit | None:
    """Exchange two neighbouring words."""
    pairs = [
        (first, second)
        for first, second in pairwise(text.words)
        if text.output[first.end() : second.start()] == " "
        and first[0].lower() != second[0].lower()
        and text.is_free(first.start(), second.end())
    ]
    if not pairs:
        return None
    first, second = rng.choice(pairs)
    new = f"{match_case(second[0], first[0])} {first[0] if first[0] == 'I' else first[0].lower()}"
    if new == f"{first[0]} {second[0]}":
        return None
    return text.change((first.start(), second.end()), new, "The words are in the wrong order.")


def propose_register(text: EditableText, rng: random.Random) -> Edit | None:
    """Replace a plain word by slang or by officialese."""
    return _exchange(text, rng, "register", "The tone of {new} does not fit; plainly: {old}.")


# ---- Calculations and translations

_EQUATION = re.compile(
    r"(?P<left>\d[\d,]*(?:\.\d+)?)\s*(?P<operator>[-+*/x×÷−])\s*(?P<right>\d[\d,]*(?:\.\d+)?)\s*=\s*[$£€]?\s*"
    r"(?P<result>-?\d[\d,]*(?:\.\d+)?)"
)


def propose_arithmetic(text: EditableText, rng: random.Random) -> Edit | None:
    """Change the result of a calculation."""
    places = [match for match in _EQUATION.finditer(text.output) if text.is_free(*match.span("result"))]
    if not places:
        return None
    place = rng.choice(places)
    right = place["result"]
    decimals = len(right.partition(".")[2])
    step = 10.0**-decimals
    value = float(right.replace(",", "")) + rng.choice([step, -step, 2 * step, 10 * step, -10 * step])
    new = f"{value:,.{decimals}f}" if "," in right else f"{value:.{decimals}f}"
    calculation = text.output[place.start() : place.start("result")].strip().rstrip("=$£€ ")
    return text.change(place.span("result"), new, f"{calculation} is {right}, not {new}.")


def propose_operator(text: EditableText, rng: random.Random) -> Edit | None:
    """Calculate with the wrong operation."""
    places = [match for match in _EQUATION.finditer(text.output) if text.is_free(*match.span("operator"))]
    if not places:
        return None
    place = rng.choice(places)
    old = place["operator"]
    new = rng.choice([sign for sign in "+-*/" if sign not in (old, {"x": "*", "×": "*", "÷": "/", "−": "-"}.get(old))])
    return text.change(place.span("operator"), new, f"The step needs {quote(old)}, not {quote(new)}.")


def _align(text: EditableText, rng: random.Random) -> tuple[re.Match[str], re.Match[str]] | None:
    """A word of the output and the word of the source at about the same share of the text, both of them long."""
    known = {match[0].lower() for match in text.words}
    sources = [match for match in WORD.finditer(text.source) if len(match[0]) >= 4 and match[0].lower() not in known]
    words = text.find_words(4)
    if not sources or not words:
        return None
    word = rng.choice(words)
    share = word.start() / max(1, len(text.output))
    near = min(sources, key=lambda match: abs(match.start() / max(1, len(text.source)) - share))
    return word, near


def propose_untranslated(text: EditableText, rng: random.Random) -> Edit | None:
    """Leave a word in the language of the source. Words are aligned by where they stand."""
    pair = _align(text, rng)
    if pair is None:
        return None
    word, near = pair
    explanation = f"{quote(near[0])} is left in the language of the source: {quote(word[0])}."
    return text.change(word, near[0], explanation, near.span())


def propose_mistranslated(text: EditableText, rng: random.Random) -> Edit | None:
    """Replace a word by one of the donor's translation with the same ending."""
    pair = _align(text, rng)
    if pair is None:
        return None
    word, near = pair
    others = {
        other for other in WORD.findall(text.donor_output)
        if len(other) >= 4 and other[0].isupper() == word[0][0].isupper() and other not in text.output
    }  # fmt: skip
    alike = {other for other in others if other[-2:] == word[0][-2:]} or others
    if not alike:
        return None
    new = rng.choice(sorted(alike))
    return text.change(word, new, f"{quote(new)} is a wrong translation: it should be {quote(word[0])}.", near.span())


# ---- Texts that are unfinished or cannot be read


def propose_truncation(text: EditableText, rng: random.Random) -> Edit | None:
    """Break off in the middle of a sentence, after at least a third of the text."""
    end = len(text.output)
    cuts = [match.end() for match in text.words[:-1] if match.end() > end // 3]
    cuts = [cut for cut in cuts if text.output[cut : cut + 1] == " " and text.is_free(cut, end)]
    if not cuts:
        return None
    cut = rng.choice(cuts)
    return text.change((cut, end), "", "The text breaks off.", text.find_passage(text.output[cut:]))


def propose_empty(text: EditableText, rng: random.Random) -> Edit | None:  # noqa: ARG001
    """Leave nothing."""
    whole = (0, len(text.output))
    return text.change(whole, "", "There is no text.") if text.output.strip() and text.is_free(*whole) else None


def propose_gibberish(text: EditableText, rng: random.Random) -> Edit | None:
    """Replace a sentence by letters without meaning."""
    spans = [span for span in text.sentences if text.is_free(*span)]
    if not spans:
        return None
    place = rng.choice(spans)
    letters = "abcdefghijklmnopqrstuvwxyz"

    def scramble(match: re.Match[str]) -> str:
        return match_case("".join(rng.choices(letters, k=len(match[0]))), match[0])

    sentence = text.output[slice(*place)]
    new = WORD.sub(scramble, sentence)
    return None if new == sentence else text.change(place, new, "This cannot be read.")


# ---- Changes that do no harm


def propose_paraphrase(text: EditableText, rng: random.Random) -> Edit | None:
    """Say a word or phrase in another way that means the same."""
    return _exchange(text, rng, "paraphrases", "The meaning is the same.")


def propose_quotation_marks(text: EditableText, rng: random.Random) -> Edit | None:
    """Write straight marks curly, or curly ones straight."""
    table = {"'": "’", "’": "'", "“": '"', "”": '"', "—": " - ", "–": "-"}
    places = text.find(re.compile("['’“”—–]"))
    if not places:
        return None
    place = rng.choice(places)
    return text.change(place, table[place[0]], "Only the form of a mark differs.")


def propose_spaces(text: EditableText, rng: random.Random) -> Edit | None:
    """Put two spaces between sentences or words."""
    places = text.find(re.compile(r"(?<=\S) (?=\S)"))
    return text.change(rng.choice(places), "  ", "There is only one more space.") if places else None


def propose_lower_case(text: EditableText, rng: random.Random) -> Edit | None:  # noqa: ARG001
    """Write the whole text in small letters."""
    new, whole = text.output.lower(), (0, len(text.output))
    if new == text.output or not text.is_free(*whole):
        return None
    return text.change(whole, new, "Only capital letters differ.")


def propose_padding(text: EditableText, rng: random.Random) -> Edit | None:
    """Add a sentence that says nothing."""
    return _insert_sentence(text, rng, str(rng.choice(read_lists()["padding"])), "The sentence says nothing.")


# ---- All of them

#: The order of the kinds decides what is drawn for a seed.
_FAULTS = (
    Kind("entity", propose_entity, "facts", "major", 4.0, needs=("English",)),
    Kind("number", propose_number, "facts", "major", 3.0),
    Kind("date", propose_date, "facts", "major", 3.0),
    Kind("unit", propose_unit, "facts", "major", 3.0, needs=("English",)),
    Kind("negation", propose_negation, "facts", "major", 4.0, needs=("English",)),
    Kind("role_swap", propose_role_swap, "facts", "major", 4.0, needs=("English",)),
    Kind("addition", propose_addition, "facts", "major", 3.0, needs=("English",)),
    Kind("omission", propose_omission, "content", "major", 3.0),
    Kind("repetition", propose_repetition, "excess", "minor", 1.5),
    Kind("unrelated", propose_unrelated, "excess", "major", 3.0, needs=("donor",)),
    Kind("contradiction", propose_contradiction, "facts", "major", 4.0, needs=("English",)),
    Kind("shuffle", propose_shuffle, "order", "minor", 2.0),
    Kind("spelling", propose_spelling, "language", "minor", 1.0),
    Kind("agreement", propose_agreement, "language", "minor", 1.0, needs=("English",)),
    Kind("tense", propose_tense, "language", "minor", 1.0, needs=("English",)),
    Kind("punctuation", propose_punctuation, "language", "minor", 0.5),
    Kind("capitalisation", propose_capitalisation, "language", "minor", 0.5),
    Kind("word_order", propose_word_order, "language", "minor", 1.0),
    Kind("register", propose_register, "style", "minor", 1.0, needs=("English",)),
    Kind("arithmetic", propose_arithmetic, "calculation", "major", 4.0, tasks=("math",)),
    Kind("operator", propose_operator, "method", "major", 4.0, tasks=("math",)),
    Kind("untranslated", propose_untranslated, "facts", "major", 3.0, tasks=("translation",), needs=("source",)),
    Kind(
        "mistranslated", propose_mistranslated, "facts", "major", 3.0, tasks=("translation",), needs=("source", "donor")
    ),
    Kind("truncation", propose_truncation, "content", "major", 4.0),
    Kind("empty", propose_empty, "content", "major", 5.0),
    Kind("gibberish", propose_gibberish, "language", "major", 5.0),
)
#: Changes after which a score should stay about the same.
_HARMLESS = (
    Kind("paraphrase", propose_paraphrase, needs=("English",)),
    Kind("quotation_marks", propose_quotation_marks),
    Kind("spaces", propose_spaces),
    Kind("lower_case", propose_lower_case),
    Kind("padding", propose_padding, needs=("English",)),
)
KINDS: dict[str, Kind] = {kind.name: kind for kind in _FAULTS}
HARMLESS: dict[str, Kind] = {kind.name: kind for kind in _HARMLESS}
