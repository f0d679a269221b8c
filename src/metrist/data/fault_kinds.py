"""The kinds of faults that `metrist.data.perturbations` puts into good texts, and changes that do no harm.

Every kind proposes one edit of the original text: some characters are replaced by others. Kinds that exchange words of
a list are for English; the others work in any language with sentences and spaces.
"""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib import resources
from itertools import pairwise
from typing import Any, Literal

from metrist.sentences import split_sentences

Span = tuple[int, int]
Severity = Literal["minor", "major"]
#: What an error is about. `content` is missing, `excess` is there and should not be.
Concern = Literal["facts", "content", "excess", "order", "language", "style", "terminology", "calculation", "method"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """Characters `start` to `end` of the original output replaced by `text`, with what is wrong about it. `evidence` is
    the place in the source that shows the fault."""

    kind: str
    start: int
    end: int
    text: str
    explanation: str
    evidence: Span | None = None


# ---- Texts


@dataclass(frozen=True)
class Text:
    """An output that is to be changed, with what is around it. `donor` is another record, whose sentences and names do
    not belong here."""

    output: str
    source: str = ""
    donor_output: str = ""
    donor_source: str = ""
    #: Places that earlier edits occupy.
    taken: tuple[Span, ...] = field(default=())

    def is_free(self, start: int, end: int) -> bool:
        """Whether no other edit touches this place."""
        return all(end < first or start > last for first, last in self.taken)

    @property
    def sentences(self) -> tuple[Span, ...]:
        return _split(self.output)

    @property
    def words(self) -> tuple[re.Match[str], ...]:
        return _find_words(self.output)

    def find(self, pattern: re.Pattern[str]) -> list[re.Match[str]]:
        """The free places that match."""
        return [match for match in pattern.finditer(self.output) if self.is_free(*match.span())]

    def find_evidence(self, at: int, word: str = "") -> Span | None:
        """The sentence of the source that shares most words with the output's sentence at a place. It has the given
        word if any sentence has it."""
        start, end = self.sentence_around(at)
        return self.find_passage(self.output[start:end], word)

    def find_passage(self, statement: str, word: str = "") -> Span | None:
        words = {word.lower() for word in _WORD.findall(statement) if len(word) > 3}
        has_word = re.compile(rf"(?<!\w){re.escape(word)}(?!\w)")
        best, most = None, (False, 0.0)
        for (start, end), found in _index_sentences(self.source):
            rank = bool(word and has_word.search(self.source, start, end)), len(words & found) / (len(found) + 5) ** 0.5
            if rank > most:
                best, most = (start, end), rank
        return best

    def sentence_around(self, at: int) -> Span:
        return next((span for span in self.sentences if span[0] <= at < span[1]), (0, len(self.output)))


# Several faults are put into one text, and several outputs share a source.
@lru_cache(maxsize=64)
def _split(text: str) -> tuple[Span, ...]:
    return tuple(split_sentences(text))


@lru_cache(maxsize=64)
def _find_words(text: str) -> tuple[re.Match[str], ...]:
    return tuple(_WORD.finditer(text))


@lru_cache(maxsize=64)
def _index_sentences(source: str) -> tuple[tuple[Span, frozenset[str]], ...]:
    """The sentences of a source with their words of more than three letters."""
    return tuple(
        ((start, end), frozenset(word.lower() for word in _WORD.findall(source[start:end]) if len(word) > 3))
        for start, end in split_sentences(source)
    )


_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")
#: One to four capitalised words in a row.
_NAME = re.compile(r"\b[A-Z][a-zà-ÿ]+(?:[ -][A-Z][a-zà-ÿ]+){0,3}\b|\b[A-Z]{2,6}\b")
_NUMBER = re.compile(r"(?<![\w.,])\d{1,3}(?:,\d{3})+(?:\.\d+)?(?![\w])|(?<![\w.,])\d+(?:\.\d+)?(?![\d,.]*\d|\w)")
_YEAR = re.compile(r"(?<![\w.,$£€=*/+])(?<![=*/+-] )(?:1[7-9]|20)\d\d(?![\w%]|[.,]\d| ?[=*/+])")
_EQUATION = re.compile(
    r"(?P<left>\d[\d,]*(?:\.\d+)?)\s*(?P<operator>[-+*/x×÷−])\s*(?P<right>\d[\d,]*(?:\.\d+)?)\s*=\s*[$£€]?\s*"
    r"(?P<result>-?\d[\d,]*(?:\.\d+)?)"
)
_AUXILIARY = re.compile(r"\b(?:is|are|was|were|has|have|had|will|would|can|could|should|may|might|must)\b(?! not\b)")
_DENIAL = re.compile(r"(?<=\w) not(?= \w)|(?<=\w)n't\b| never(?= \w)")


@cache
def _lists() -> Mapping[str, Any]:
    text = (resources.files("metrist.data") / "english_words.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@cache
def _not_names() -> frozenset[str]:
    return frozenset(_lists()["not_names"].split())


@cache
def _exchanges(name: str) -> Mapping[str, tuple[str, ...]]:
    """What each word or phrase of a list may be exchanged for."""
    table: dict[str, list[str]] = {}
    rows = _lists()[name]
    for row in [rows] if isinstance(rows, str) else rows:
        if " -> " in row:
            before, after = row.split(" -> ")
            table.setdefault(before, []).append(after)
            continue
        group = row.split()
        for word in group:
            table.setdefault(word, []).extend(other for other in group if other != word)
    return {word: tuple(others) for word, others in table.items()}


@cache
def _pattern(name: str) -> re.Pattern[str]:
    phrases = sorted(_exchanges(name), key=len, reverse=True)
    return re.compile(rf"(?<![\w'’])(?:{'|'.join(map(re.escape, phrases))})(?![\w'’])", re.IGNORECASE)


def _match_case(new: str, old: str) -> str:
    if len(old) > 1 and old.isupper():
        return new.upper()
    return new[:1].upper() + new[1:] if old[:1].isupper() else new


def quote(text: str, limit: int = 80) -> str:
    text = " ".join(text.split())
    return f"“{text if len(text) <= limit else text[: limit - 1] + '…'}”"


# ---- Kinds

Proposer = Callable[[Text, random.Random], Edit | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of fault. `tasks` are the tasks that it is made for (empty: all), `needs` what it cannot do without."""

    name: str
    concern: Concern
    severity: Severity
    penalty: float
    propose: Proposer
    tasks: frozenset[str] = frozenset()
    needs: frozenset[str] = frozenset()


_KINDS: dict[str, Kind] = {}
_HARMLESS: dict[str, Proposer] = {}


def _kind(
    concern: Concern, severity: Severity, penalty: float, *, tasks: Iterable[str] = (), needs: Iterable[str] = ()
) -> Callable[[Proposer], Proposer]:
    def register(propose: Proposer) -> Proposer:
        name = propose.__name__.removeprefix("propose_")
        _KINDS[name] = Kind(
            name=name, concern=concern, severity=severity, penalty=penalty, propose=propose,
            tasks=frozenset(tasks), needs=frozenset(needs),
        )  # fmt: skip
        return propose

    return register


def _harmless(propose: Proposer) -> Proposer:
    _HARMLESS[propose.__name__.removeprefix("propose_")] = propose
    return propose


def _exchange(text: Text, rng: random.Random, name: str, kind: str, explain: Callable[[str, str], str]) -> Edit | None:
    """Exchange a word or phrase of a list."""
    places = text.find(_pattern(name))
    if not places:
        return None
    place = rng.choice(places)
    table = _exchanges(name)
    others = table.get(place[0]) or table.get(place[0].lower()) or table[place[0].capitalize()]
    new = _match_case(rng.choice(others), place[0])
    return Edit(
        kind=kind, start=place.start(), end=place.end(), text=new, explanation=explain(place[0], new),
        evidence=text.find_evidence(place.start(), place[0]) if _is_about_facts(kind) else None,
    )  # fmt: skip


def _is_about_facts(kind: str) -> bool:
    return kind in _KINDS and _KINDS[kind].concern == "facts"


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


@_kind("facts", "major", 4.0, needs=("English",))
def propose_entity(text: Text, rng: random.Random) -> Edit | None:
    """Replace a name by another one of the source or of the donor."""
    names = [match for match in text.find(_NAME) if _is_name(text, match)]
    months_and_days = {*_exchanges("months"), *_exchanges("days")}
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


@_kind("facts", "major", 3.0)
def propose_number(text: Text, rng: random.Random) -> Edit | None:
    """Change a number, in digits or in words."""
    places = [match for match in text.find(_NUMBER) if not _YEAR.fullmatch(match[0])]
    if not places:
        return _exchange(text, rng, "numbers", "number", _contradict("The number"))
    place = rng.choice(places)
    new = _change_number(place[0], rng)
    return Edit(
        kind="number", start=place.start(), end=place.end(), text=new,
        explanation=f"The number {new} is wrong: it should be {place[0]}.",
        evidence=text.find_evidence(place.start(), place[0]),
    )  # fmt: skip


@_kind("facts", "major", 3.0)
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
        new = rng.choice(_exchanges(name)[place[0]])
    else:
        return None
    return Edit(
        kind="date", start=place.start(), end=place.end(), text=new,
        explanation=f"The time {quote(new)} is wrong: it should be {quote(place[0])}.",
        evidence=text.find_evidence(place.start(), place[0]),
    )  # fmt: skip


def _find_capitals(text: Text, name: str) -> list[re.Match[str]]:
    """Places of a list of names as they are written: `may` is no month."""
    return [match for match in text.find(_pattern(name)) if match[0] in _exchanges(name)]


@_kind("facts", "major", 3.0, needs=("English",))
def propose_unit(text: Text, rng: random.Random) -> Edit | None:
    """Change a unit of time, length, weight, money or size."""
    return _exchange(text, rng, "units", "unit", _contradict("The unit"))


@_kind("facts", "major", 4.0, needs=("English",))
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


@_kind("facts", "major", 4.0, needs=("English",))
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


def _insert_sentence(text: Text, rng: random.Random, kind: str, sentence: str, explanation: str) -> Edit | None:
    """Insert a sentence after another one."""
    ends = [end for _, end in text.sentences if text.is_free(end, end)]
    if not ends:
        return None
    at = rng.choice(ends)
    return Edit(kind=kind, start=at, end=at, text=f" {sentence}", explanation=explanation)


@_kind("facts", "major", 3.0, needs=("English",))
def propose_addition(text: Text, rng: random.Random) -> Edit | None:
    """Add a statement that nothing supports: a sentence, or a clause at the end of one."""
    if rng.random() < 0.5:
        statement = str(rng.choice(_lists()["additions"]))
        sentence = f"{statement[0].upper()}{statement[1:]}."
        return _insert_sentence(text, rng, "addition", sentence, "Nothing in the source says this.")
    marks = [end - 1 for _, end in text.sentences if text.output[end - 1] in ".!?" and text.is_free(end - 1, end - 1)]
    if not marks:
        return None
    at = rng.choice(marks)
    clause = f", {rng.choice(_lists()['additions_inside'])}"
    return Edit(kind="addition", start=at, end=at, text=clause, explanation="Nothing in the source says this.")


@_kind("content", "major", 3.0)
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


@_kind("excess", "minor", 1.5)
def propose_repetition(text: Text, rng: random.Random) -> Edit | None:
    """Say a sentence twice, or a run of words of the only one."""
    if len(text.sentences) > 1:
        start, end = rng.choice(text.sentences)
        repeated = text.output[start:end]
        return _insert_sentence(text, rng, "repetition", repeated, f"{quote(repeated)} is said twice.")
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


@_kind("excess", "major", 3.0, needs=("donor",))
def propose_unrelated(text: Text, rng: random.Random) -> Edit | None:
    """Insert a sentence of the donor."""
    sentences = [text.donor_output[start:end] for start, end in _split(text.donor_output)]
    sentences = [sentence for sentence in sentences if len(sentence) > 20 and sentence not in text.output]
    if not sentences:
        return None
    return _insert_sentence(
        text, rng, "unrelated", " ".join(rng.choice(sentences).split()), "This has nothing to do with the subject."
    )


@_kind("facts", "major", 4.0, needs=("English",))
def propose_contradiction(text: Text, rng: random.Random) -> Edit | None:
    """Say the opposite by a single word."""
    return _exchange(text, rng, "opposites", "contradiction", _contradict("This"))


@_kind("order", "minor", 2.0)
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


_KEYS = {
    "a": "sq", "b": "vn", "c": "xv", "d": "sf", "e": "wr", "f": "dg", "g": "fh", "h": "gj", "i": "uo", "j": "hk",
    "k": "jl", "l": "k", "m": "n", "n": "bm", "o": "ip", "p": "o", "q": "w", "r": "et", "s": "ad", "t": "ry", "u": "yi",
    "v": "cb", "w": "qe", "x": "zc", "y": "tu", "z": "x",
}  # fmt: skip


def _misspell(word: str, rng: random.Random) -> str:
    at = rng.randrange(1, len(word) - 1)
    way = rng.randrange(4)
    if way == 0 and word[at] != word[at + 1]:
        return word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    if way == 1:
        return word[:at] + word[at + 1 :]
    if way == 2:
        return word[:at] + word[at] + word[at:]
    near = _KEYS.get(word[at].lower())
    return word[:at] + (rng.choice(near) if near else word[at] * 2) + word[at + 1 :]


@_kind("language", "minor", 1.0)
def propose_spelling(text: Text, rng: random.Random) -> Edit | None:
    """Misspell a word of at least four letters."""
    places = [match for match in text.words if len(match[0]) >= 4 and text.is_free(*match.span())]
    if not places:
        return None
    place = rng.choice(places)
    new = _misspell(place[0], rng)
    if new == place[0]:
        return None
    return Edit(
        kind="spelling", start=place.start(), end=place.end(), text=new,
        explanation=f"{quote(new)} is misspelt: it should be {quote(place[0])}.",
    )  # fmt: skip


@_kind("language", "minor", 1.0, needs=("English",))
def propose_agreement(text: Text, rng: random.Random) -> Edit | None:
    """Give a verb the form that does not agree with its subject."""
    return _exchange(
        text,
        rng,
        "agreement",
        "agreement",
        lambda old, new: f"{quote(new)} does not agree with its subject: {quote(old)}.",
    )


@_kind("language", "minor", 1.0, needs=("English",))
def propose_tense(text: Text, rng: random.Random) -> Edit | None:
    """Change the tense of one verb."""
    return _exchange(
        text,
        rng,
        "tenses",
        "tense",
        lambda old, new: f"The tense of {quote(new)} does not fit: it should be {quote(old)}.",
    )


@_kind("language", "minor", 0.5)
def propose_punctuation(text: Text, rng: random.Random) -> Edit | None:
    """Run two sentences together, drop a comma or an apostrophe, or put a comma where none belongs."""
    ways = [
        (match, ", " + match["next"].lower(), "Two sentences are run together.")
        for match in text.find(re.compile(r"(?<=[a-z])\. (?P<next>[A-Z])(?=[a-z])"))
    ]
    ways += [(match, "", "A comma is missing.") for match in text.find(re.compile(r"(?<=\w),(?= \w)"))]
    ways += [
        (match, "", "An apostrophe is missing.") for match in text.find(re.compile(r"(?<=\w)['’](?=s\b|t\b|re\b)"))
    ]
    ways += [
        (match, ",", "A comma stands where none belongs.")
        for match in text.find(re.compile(r"(?<= the)(?= [a-z]{4})|(?<= of)(?= [a-z]{4})"))
    ]
    if not ways:
        return None
    place, new, explanation = rng.choice(ways)
    return Edit(kind="punctuation", start=place.start(), end=place.end(), text=new, explanation=explanation)


@_kind("language", "minor", 0.5)
def propose_capitalisation(text: Text, rng: random.Random) -> Edit | None:
    """Write a name or the start of a sentence small, or an ordinary word with a capital letter."""
    places = [match for match in text.words if len(match[0]) > 2 and text.is_free(*match.span())]
    capitals = [match for match in places if match[0][0].isupper() and match[0][1:].islower()]
    chosen = capitals if capitals and rng.random() < 0.7 else [match for match in places if match[0].islower()]
    if not chosen:
        return None
    place = rng.choice(chosen)
    new = place[0][0].swapcase() + place[0][1:]
    if new == place[0]:
        return None
    return Edit(
        kind="capitalisation", start=place.start(), end=place.end(), text=new,
        explanation=f"It should be written {quote(place[0])}.",
    )  # fmt: skip


@_kind("language", "minor", 1.0)
def propose_word_order(text: Text, rng: random.Random) -> Edit | None:
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
    new = f"{_match_case(second[0], first[0])} {first[0] if first[0] == 'I' else first[0].lower()}"
    if new == text.output[first.start() : second.end()]:
        return None
    return Edit(
        kind="word_order",
        start=first.start(),
        end=second.end(),
        text=new,
        explanation="The words are in the wrong order.",
    )


@_kind("style", "minor", 1.0, needs=("English",))
def propose_register(text: Text, rng: random.Random) -> Edit | None:
    """Replace a plain word by slang or by officialese."""
    return _exchange(
        text,
        rng,
        "register",
        "register",
        lambda old, new: f"The tone of {quote(new)} does not fit; plainly: {quote(old)}.",
    )


def _format_like(value: float, model: str) -> str:
    decimals = len(model.partition(".")[2])
    return f"{value:,.{decimals}f}" if "," in model else f"{value:.{decimals}f}"


@_kind("calculation", "major", 4.0, tasks=("math",))
def propose_arithmetic(text: Text, rng: random.Random) -> Edit | None:
    """Change the result of a calculation."""
    places = [match for match in _EQUATION.finditer(text.output) if text.is_free(*match.span("result"))]
    if not places:
        return None
    place = rng.choice(places)
    right = place["result"]
    value = float(right.replace(",", ""))
    step = 10.0 ** -len(right.partition(".")[2])
    slip = rng.choice([step, -step, 2 * step, 10 * step, -10 * step])
    new = _format_like(value + slip, right)
    start, end = place.span("result")
    calculation = text.output[place.start() : start].strip().rstrip("=$£€ ")
    return Edit(kind="arithmetic", start=start, end=end, text=new, explanation=f"{calculation} is {right}, not {new}.")


@_kind("method", "major", 4.0, tasks=("math",))
def propose_operator(text: Text, rng: random.Random) -> Edit | None:
    """Calculate with the wrong operation."""
    places = [match for match in _EQUATION.finditer(text.output) if text.is_free(*match.span("operator"))]
    if not places:
        return None
    place = rng.choice(places)
    old = place["operator"]
    new = rng.choice([sign for sign in "+-*/" if sign not in (old, {"x": "*", "×": "*", "÷": "/", "−": "-"}.get(old))])
    start, end = place.span("operator")
    return Edit(
        kind="operator", start=start, end=end, text=new,
        explanation=f"The step needs {quote(old)}, not {quote(new)}.",
    )  # fmt: skip


def _align(text: Text, rng: random.Random) -> tuple[re.Match[str], re.Match[str]] | None:
    """A word of the output and the word of the source at about the same share of the text, both of them long."""
    sources = [match for match in _WORD.finditer(text.source) if len(match[0]) >= 4]
    words = [match for match in text.words if len(match[0]) >= 4 and text.is_free(*match.span())]
    known = {match[0].lower() for match in text.words}
    sources = [match for match in sources if match[0].lower() not in known]
    if not sources or not words:
        return None
    word = rng.choice(words)
    share = word.start() / max(1, len(text.output))
    near = min(sources, key=lambda match: abs(match.start() / max(1, len(text.source)) - share))
    return word, near


@_kind("facts", "major", 3.0, tasks=("translation",), needs=("source",))
def propose_untranslated(text: Text, rng: random.Random) -> Edit | None:
    """Leave a word in the language of the source. Words are aligned by where they stand."""
    pair = _align(text, rng)
    if pair is None:
        return None
    word, near = pair
    return Edit(
        kind="untranslated", start=word.start(), end=word.end(), text=near[0],
        explanation=f"{quote(near[0])} is left in the language of the source: {quote(word[0])}.", evidence=near.span(),
    )  # fmt: skip


@_kind("facts", "major", 3.0, tasks=("translation",), needs=("source", "donor"))
def propose_mistranslated(text: Text, rng: random.Random) -> Edit | None:
    """Replace a word by one of the donor's translation with the same ending."""
    pair = _align(text, rng)
    if pair is None:
        return None
    word, near = pair
    others = {
        other for other in _WORD.findall(text.donor_output)
        if len(other) >= 4 and other[0].isupper() == word[0][0].isupper() and other not in text.output
    }  # fmt: skip
    alike = {other for other in others if other[-2:] == word[0][-2:]} or others
    if not alike:
        return None
    new = rng.choice(sorted(alike))
    return Edit(
        kind="mistranslated", start=word.start(), end=word.end(), text=new,
        explanation=f"{quote(new)} is a wrong translation: it should be {quote(word[0])}.", evidence=near.span(),
    )  # fmt: skip


@_kind("content", "major", 4.0)
def propose_truncation(text: Text, rng: random.Random) -> Edit | None:
    """Break off in the middle of a sentence, after at least a third of the text."""
    least = len(text.output) // 3
    cuts = [match.end() for match in text.words[:-1] if match.end() > least]
    cuts = [cut for cut in cuts if text.output[cut : cut + 1] == " " and text.is_free(cut, len(text.output))]
    if not cuts:
        return None
    cut = rng.choice(cuts)
    missing = text.output[cut:]
    return Edit(
        kind="truncation", start=cut, end=len(text.output), text="", explanation="The text breaks off.",
        evidence=text.find_passage(missing),
    )  # fmt: skip


@_kind("content", "major", 5.0)
def propose_empty(text: Text, rng: random.Random) -> Edit | None:  # noqa: ARG001
    """Leave nothing."""
    if not text.output.strip() or not text.is_free(0, len(text.output)):
        return None
    return Edit(kind="empty", start=0, end=len(text.output), text="", explanation="There is no text.")


@_kind("language", "major", 5.0)
def propose_gibberish(text: Text, rng: random.Random) -> Edit | None:
    """Replace a sentence by letters without meaning."""
    spans = [span for span in text.sentences if text.is_free(*span)]
    if not spans:
        return None
    start, end = rng.choice(spans)
    letters = "abcdefghijklmnopqrstuvwxyz"

    def scramble(match: re.Match[str]) -> str:
        return _match_case("".join(rng.choices(letters, k=len(match[0]))), match[0])

    new = _WORD.sub(scramble, text.output[start:end])
    if new == text.output[start:end]:
        return None
    return Edit(kind="gibberish", start=start, end=end, text=new, explanation="This cannot be read.")


# ---- Changes that do no harm


@_harmless
def propose_paraphrase(text: Text, rng: random.Random) -> Edit | None:
    """Say a word or phrase in another way that means the same."""
    return _exchange(text, rng, "paraphrases", "paraphrase", lambda *_: "The meaning is the same.")


@_harmless
def propose_quotation_marks(text: Text, rng: random.Random) -> Edit | None:
    """Write straight marks curly, or curly ones straight."""
    table = {"'": "’", "’": "'", "“": '"', "”": '"', "—": " - ", "–": "-"}
    places = text.find(re.compile("['’“”—–]"))
    if not places:
        return None
    place = rng.choice(places)
    return Edit(
        kind="quotation_marks", start=place.start(), end=place.end(), text=table[place[0]],
        explanation="Only the form of a mark differs.",
    )  # fmt: skip


@_harmless
def propose_spaces(text: Text, rng: random.Random) -> Edit | None:
    """Put two spaces between sentences or words."""
    places = text.find(re.compile(r"(?<=\S) (?=\S)"))
    if not places:
        return None
    place = rng.choice(places)
    return Edit(
        kind="spaces", start=place.start(), end=place.end(), text="  ", explanation="There is only one more space."
    )


@_harmless
def propose_lower_case(text: Text, rng: random.Random) -> Edit | None:  # noqa: ARG001
    """Write the whole text in small letters."""
    new = text.output.lower()
    if new == text.output or not text.is_free(0, len(text.output)):
        return None
    return Edit(kind="lower_case", start=0, end=len(text.output), text=new, explanation="Only capital letters differ.")


@_harmless
def propose_padding(text: Text, rng: random.Random) -> Edit | None:
    """Add a sentence that says nothing."""
    return _insert_sentence(text, rng, "padding", str(rng.choice(_lists()["padding"])), "The sentence says nothing.")


#: Faults by name.
KINDS: Mapping[str, Kind] = _KINDS
#: Changes after which a score should stay about the same, by name.
HARMLESS: Mapping[str, Proposer] = _HARMLESS
