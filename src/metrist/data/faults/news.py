"""News articles and what they say: names by type, sentences that could stand in a summary, and changes that keep a
sentence supported."""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import NamedTuple

from metrist.data.faults.text import Span, read_lists
from metrist.sentences import split_sentences

_WORD = r"[A-Z][A-Za-zÀ-ɏ]+(?:[-’'][A-Z][a-zÀ-ɏ]+)*"
NAME = re.compile(rf"\b{_WORD}(?: (?:(?:of|de|van|von|al|bin|der|la) )?{_WORD})*")
_PLACE_BEFORE = re.compile(r"\b(?:in|near|across|throughout|outside|around) $")
_PERSON_AFTER = re.compile(
    r",? (?:said|says|told|added|tweeted|wrote|who|revealed|admitted|insisted|explained|believes|died|married|scored)\b"
    r"|, (?:aged )?\d\d\b| \(\d\d\)|['’]s (?:wife|husband|mother|father|lawyer|son|daughter|brother|sister|death)\b"
)
_NUMBER = re.compile(r"\d[\d,.]*\d|\d")
_CONTENT = re.compile(rf"[A-Za-zÀ-ɏ]{{4,}}|{_NUMBER.pattern}")
QUOTES = "'\"‘“’”"
_CLAUSE = re.compile(
    rf"({NAME.pattern}), ((?:an?|the|who|whose|which|of|from|aged|formerly) [^,.;:{QUOTES}()]{{6,60}}),(?= )"
)


@cache
def list_news_words(name: str) -> frozenset[str]:
    return frozenset(read_lists()["news"][name].split())


@cache
def list_days() -> tuple[str, ...]:
    return tuple(read_lists()["days"].split())


@cache
def list_months() -> tuple[str, ...]:
    """Without May, which is a verb as well."""
    return tuple(month for month in read_lists()["months"].split() if month != "May")


@cache
def _person_before() -> re.Pattern[str]:
    words = [*sorted(list_news_words("titles")), *sorted(list_news_words("roles"))]
    return re.compile(rf"\b(?:Mr|Mrs|Ms|Miss|Dr|Sir|{'|'.join(words)}) $")


class Statement(NamedTuple):
    """A sentence about an article with the probability that the article supports it, the characters that it does not
    support, and those that nobody can be sure about."""

    kind: str
    text: str
    label: float
    errors: tuple[tuple[int, int], ...] = ()
    unsure: tuple[tuple[int, int], ...] = ()


class NamedSpan(NamedTuple):
    start: int
    end: int
    text: str


def find_names(text: str) -> list[NamedSpan]:
    """Return the names in a text, without the word with a capital that begins a sentence."""
    names = []
    for match in NAME.finditer(text):
        start, words = match.start(), match[0].split()
        while words and (
            words[0] in list_news_words("no_names")
            or words[0] in list_news_words("titles")
            or words[0] in list_months()
            or words[0] in list_days()
        ):
            start += len(words.pop(0)) + 1
        if words and words[-1] not in list_months() and words[-1] not in list_days():
            name = " ".join(words)
            if len(name) > 2:
                names.append(NamedSpan(start, start + len(name), name))
    return names


def content_words(text: str) -> set[str]:
    return {word.lower() for word in _CONTENT.findall(text)}


def related(first: str, second: str) -> bool:
    """Whether two names share a word, as a full name and a family name do."""
    return bool(set(first.lower().split()) & set(second.lower().split()))


class Corpus:
    """What many articles tell about names and words."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.counts: Counter[str] = Counter()
        self._people: Counter[str] = Counter()
        self._places: Counter[str] = Counter()
        family_names: dict[str, set[str]] = defaultdict(set)
        for text in texts:
            self.counts.update(re.findall(r"[a-z]+", text))
            names = find_names(text)
            single = {name for _, _, name in names if " " not in name}
            for start, end, name in names:
                first, _, last = name.partition(" ")
                if _PERSON_AFTER.match(text, end) or _person_before().search(text[max(0, start - 16) : start]):
                    self._people[name] += 1
                    family_names[first].add(last)
                elif _PLACE_BEFORE.search(text[max(0, start - 12) : start]):
                    self._places[name] += 1
                elif last in single:
                    family_names[first].add(last)
        self._first_names = {
            first
            for first, last in family_names.items()
            if len(last - {""}) >= 4 and self._people[first] >= self._places[first] and not self._is_word(first)
        }

    def _is_word(self, name: str) -> bool:
        """Whether a word with a capital is frequent without one: `Department`, not `Bernard`."""
        return name in list_news_words("nations") or (
            self.counts[name.lower()] > 25 and name not in list_news_words("first_names")
        )

    def classify(self, name: str) -> str:
        """Return `person`, `place`, `nation` or `other`."""
        if name in list_news_words("nations"):
            return "nation"
        people, places = self._people[name], self._places[name]
        words = name.split()
        looks_so = people > places or (people == places and words[0] in self._first_names)
        if (
            looks_so
            and len(words) in (2, 3)
            and not self._is_word(words[0])
            and words[-1] not in list_news_words("no_people")
        ):
            return "person"
        return "place" if places > 2 * people and places > 1 else "other"


@dataclass(frozen=True)
class Article:
    """An article with its highlights and the names in it by type."""

    text: str
    highlights: tuple[str, ...]
    corpus: Corpus
    #: Names of other articles by type.
    foreign: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @cached_property
    def sentences(self) -> list[str]:
        """The sentences that could stand in a summary."""
        result = []
        for start, end in split_sentences(self.text):
            sentence = re.sub(r" \.$", ".", self.text[start:end])
            if is_statement(sentence):
                result.append(sentence)
        return result

    @cached_property
    def names(self) -> dict[str, list[str]]:
        """The distinct names by type; a family name has the type of the full name."""
        text = self.text
        # A word with a capital that occurs at the beginning of sentences only, or without a capital too, is no name.
        names = {
            name
            for start, _, name in find_names(text)
            if start > 1 and (text[start - 2].islower() or text[start - 2] == ",")
        }
        lower = set(re.findall(r"[a-z]+", text))
        people = {name for name in names if self.corpus.classify(name) == "person"}
        family = {name.split()[-1] for name in people}
        result = defaultdict(list)
        for name in sorted(names):
            if " " in name or name.lower() not in lower:
                result["person" if name in people or name in family else self.corpus.classify(name)].append(name)
        return result

    @cached_property
    def type_of(self) -> dict[str, str]:
        return {name: kind for kind, names in self.names.items() for name in names}

    @cached_property
    def main_person(self) -> str | None:
        counts = Counter(name.text for name in find_names(self.text) if self.type_of.get(name.text) == "person")
        return counts.most_common(1)[0][0] if counts else None

    @cached_property
    def words(self) -> set[str]:
        return content_words(self.text)

    @cached_property
    def clauses(self) -> list[tuple[str, str]]:
        """Names with a clause between commas behind them: `Jean Pascal, the former champion,`."""
        return [(match[1], match[2]) for match in _CLAUSE.finditer(self.text) if match[1] in self.type_of]

    def locate(self, text: str) -> list[tuple[NamedSpan, str]]:
        """Return the names of a sentence with their types."""
        names = [
            name for name in find_names(text) if name.text in self.type_of and text[name.end : name.end + 1] != "-"
        ]
        return [(name, self.type_of[name.text]) for name in names]


_NO_STATEMENT = re.compile(
    r"scroll down|click here|click for|share this|mailonline\.|e-?mail us|[|]"
    r"|\((?:left|right|pictured|above|centre|center)|"
    r"\bpictured\b|\bfile (?:photo|image)|^\W*\w+(?: \w+){0,3}: |^(?:Above|Left|Right)\b",
    re.IGNORECASE,
)


def is_statement(sentence: str) -> bool:
    """Whether a sentence of an article could stand in a summary: no caption, question or remnant."""
    words = sentence.split()
    return (
        7 <= len(words) <= 42
        and (sentence[0].isupper() or sentence[0] in QUOTES or sentence[0].isdigit())
        and sentence[-1] in "." + QUOTES
        and not _NO_STATEMENT.search(sentence)
        and sum(sentence.count(mark) for mark in '"“”') % 2 == 0
    )


# ---- Changes that keep a sentence supported


_CONJUNCTIONS = ("But", "And", "So", "Or", "Yet", "Nor", "Then")


def shorten(text: str, rng: random.Random) -> str | None:
    """Drop a clause between commas, or what follows a connective at the end."""
    pattern = rf", (?:who|which|whose|an?|the|aged|of|from|\d+)\b[^,{QUOTES}]{{3,70}},(?= [a-z])"
    shorter = [text[: match.start()] + text[match.end() :] for match in re.finditer(pattern, text)]
    tail = re.search(r",? (?:after|while|when|because|following|amid|saying|adding|as part of)\b[^.]*\.$", text)
    if tail and not re.search(
        r"\b(?:no|not|never|only|if|unless|until|than|so|first|last)\b|n't|n’t", text[: tail.start()]
    ):
        shorter.append(text[: tail.start()] + ".")
    whole = []
    for part in shorter:
        has_even_quotes = all(part.count(mark) % 2 == 0 for mark in "\"'") and part.count("“") == part.count("”")
        if len(part.split()) >= 7 and has_even_quotes:
            whole.append(part)
    return rng.choice(whole) if whole else None


def reorder(text: str) -> str | None:
    """Move the clause at the beginning to the end, or the one at the end to the beginning."""
    if any(mark in text for mark in QUOTES) or not text.endswith(".") or text.split()[0] in _CONJUNCTIONS:
        return None
    first = re.fullmatch(
        r"(After|When|While|Before|Following|During|Despite|Since|On|In|At) ([^,]{8,80}), ([^,]{20,}(?:, .*)?)\.", text
    )
    if first:
        rest = first[3]
        return f"{rest[0].upper()}{rest[1:]} {first[1].lower()} {first[2]}."
    last = re.fullmatch(r"([^,]{20,}?),? (after|when|while|before|following|during|despite) ([^,]{8,80})\.", text)
    if last and not re.search(
        r"\b(?:is|are|was|were|be|been|shortly|soon|days?|hours?|minutes?|weeks?|months?|years?|and)$", last[1]
    ):
        return f"{last[2].capitalize()} {last[3]}, {_lower_first(last[1])}."
    return None


def rename(text: str, article: Article, rng: random.Random) -> str | None:
    """Replace a person's name by another form of it in the article: Austin for Steve Austin."""
    options = []
    for name, kind in article.locate(text):
        if kind == "person":
            forms = [
                form
                for form in article.names["person"]
                if form != name.text and form.split()[-1] == name.text.split()[-1]
            ]
            holders = {form for form in [*forms, name.text] if " " in form}
            if forms and len(holders) == 1:
                options.append(text[: name.start] + rng.choice(forms) + text[name.end :])
    return rng.choice(options) if options else None


def join(first: str, second: str, rng: random.Random) -> str | None:
    """Join two sentences to one."""
    if not (first.endswith(".") and second.endswith(".")) or any(mark in first + second for mark in QUOTES):
        return None
    if len(first.split()) + len(second.split()) > 45 or second.split()[0] in _CONJUNCTIONS or not is_statement(second):
        return None
    return first[:-1] + rng.choice((", and ", ", while ", " and ", ", as ")) + _lower_first(second)


def _lower_first(text: str) -> str:
    word = text.split()[0]
    return (
        text[0].lower() + text[1:]
        if word in list_news_words("no_names") and word not in ("I", "Mr", "Mrs", "Ms", "Dr", "Sir")
        else text
    )


def insert_clause(text: str, article: Article, rng: random.Random, *, right: bool) -> str | None:
    """Put a clause beside a name: one that stands beside it elsewhere in the article, or if not `right`, one about
    somebody else."""
    options = []
    for name, kind in article.locate(text):
        if kind in ("person", "place") and re.match(r" [a-z]", text[name.end :]):
            own = [clause for owner, clause in article.clauses if owner.split()[-1] == name.text.split()[-1]]
            chosen = own
            if not right:
                chosen = [
                    clause
                    for owner, clause in article.clauses
                    if not related(owner, name.text) and article.type_of[owner] == kind and clause not in own
                ]
            fitting = [
                clause for clause in chosen if clause not in text and (kind == "person" or not clause.startswith("who"))
            ]
            options += [(name, clause) for clause in fitting]
    if not options:
        return None
    name, clause = rng.choice(options)
    return f"{text[: name.end]}, {clause},{text[name.end :]}"


def vary(text: str, article: Article, others: Sequence[str], rng: random.Random) -> tuple[str, str]:
    """Return what was changed in a sentence, and its new form, which is supported as well; half stay as they are."""
    kinds = ("shortened", "reordered", "renamed", "background", "joined")
    if rng.random() < 0.6:
        # Any two sentences can be joined: the other changes come first more often.
        for kind in sorted(kinds, key=lambda kind: rng.random() + (kind == "joined") * 0.5):
            match kind:
                case "shortened":
                    changed = shorten(text, rng)
                case "reordered":
                    changed = reorder(text)
                case "renamed":
                    changed = rename(text, article, rng)
                case "background":
                    changed = insert_clause(text, article, rng, right=True)
                case _:
                    changed = join(text, rng.choice(others), rng) if others else None
            if changed:
                return kind, changed
    return "plain", text


# ---- What a passage says of a sentence


def find_facts(text: str, known: set[str], ordinary: frozenset[str]) -> tuple[Span, ...]:
    """Return the words of names and the numbers of a text that are not known; those side by side as one. An ordinary
    word with a capital is no name: it begins a sentence or stands in a title."""
    places = [
        (name.start + match.start(), name.start + match.end())
        for name in find_names(text)
        for match in re.finditer(r"\S+", name.text)
        if match[0][0].isupper() and match[0].lower() not in ordinary
    ]
    places += [match.span() for match in _NUMBER.finditer(text)]
    spans: list[tuple[int, int]] = []
    for start, end in sorted(set(places)):
        if text[start:end].lower() in known:
            continue
        if spans and text[spans[-1][1] : start] == " ":
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))
    return tuple(spans)


def find_words(text: str, words: set[str], *, known: bool) -> tuple[Span, ...]:
    """Return the words of substance of a text that are known, or those that are not."""
    return tuple(match.span() for match in _CONTENT.finditer(text) if (match[0].lower() in words) is known)


def drop_variants(output: Sequence[Statement]) -> list[Statement]:
    """Drop sentences that repeat most words of an earlier one: two versions of a sentence, one of them broken, would
    tell each other apart."""
    result: list[Statement] = []
    known: list[set[str]] = []
    for statement in output:
        words = content_words(statement.text)
        if not any(len(words & other) > 0.6 * min(len(words), len(other)) for other in known):
            result.append(statement)
            known.append(words)
    return result


def list_facts(text: str) -> set[str]:
    """Return the words of names, and the numbers."""
    names = {word.lower() for name in find_names(text) for word in name.text.split() if word[0].isupper()}
    return names | set(_NUMBER.findall(text))


def covers(window: str, text: str) -> bool:
    words = content_words(text)
    lower = {word.lower() for word in re.findall(r"\w+", window)}
    return len(words & content_words(window)) >= 0.7 * len(words) and list_facts(text) <= lower | list_facts(window)


def is_missing(text: str, window: str) -> bool:
    """Whether a window lacks most words and a name or number of a sentence."""
    words = content_words(text)
    lower = {word.lower() for word in re.findall(r"\w+", window)} | list_facts(window)
    return len(words & content_words(window)) <= 0.5 * len(words) and not list_facts(text) <= lower
