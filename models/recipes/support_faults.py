"""Make supported sentences and faults of the kinds that summarizers make, from a news article and its highlights.

A fault is made in a sentence that may have been shortened, reordered or joined to another, and the same changes are
made to sentences that stay supported: how a sentence looks must not tell whether it is supported. The kinds are

    name       another name of the same type: of the article, or of other articles
    subject    the sentence begins with somebody else, or a pronoun is resolved to somebody else
    roles      two names of one type change places
    number     another number, of the article or of similar size; also number words
    time       another day or month
    opposite   won for lost, refused to for agreed to
    negation   added or dropped
    certainty  a hedge is dropped: may have, allegedly, tried to
    speaker    a quotation is put into the mouth of somebody else
    merged     the end of another sentence of the article, after the same connective
    background a clause about somebody else is put beside a name
    unit       another unit; by the package's own faults (`metrist.data.fault_kinds`), as is
    addition   a clause that nothing supports
"""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from typing import NamedTuple

from metrist.data.fault_kinds import KINDS, Text
from metrist.sentences import split_sentences


def split_words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_WORD = r"[A-Z][A-Za-zÀ-ɏ]+(?:[-’'][A-Z][a-zÀ-ɏ]+)*"
_NAME = re.compile(rf"\b{_WORD}(?: (?:(?:of|de|van|von|al|bin|der|la) )?{_WORD})*")
#: Without May, which is a verb as well.
MONTHS = (
    *("January", "February", "March", "April", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_NUMBER_WORDS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_NATIONS = split_words(
    "American British English Scottish Welsh Irish French German Spanish Italian Portuguese Dutch Belgian Swiss "
    "Russian Ukrainian Polish Turkish Greek Israeli Palestinian Syrian Iraqi Iranian Egyptian Saudi Afghan "
    "Pakistani Indian Chinese Japanese Korean Australian Canadian Mexican Brazilian Argentine Nigerian Kenyan "
    "Swedish Norwegian Danish Austrian Libyan Yemeni Cuban"
)
#: Words with a capital that are no names: they begin sentences.
_NO_NAMES = split_words(
    "The A An In On At It He She They But And I We You His Her This That These Those For As If When There After "
    "Before Mr Mrs Ms Miss Dr Sir Its With From By What Their One Some Many No Not So My Our Your Who Why How Where "
    "While Since During Despite Although Though However Meanwhile Now Then Also Here Both All Each Most More Two "
    "Three Four Five Six Seven Eight Nine Ten Following Police Scroll Click Last Next Just Only Even Such Yet Or To "
    "Of Video Other Another Every First Second According Speaking Asked Still Once Until Because Or Yes Well Let Do "
    "Did Is Are Was Were Has Have Had Can Could Will Would May Don Didn Couldn Wasn Isn Doesn Won It’s There’s "
    "That’s He’s She’s"
)
#: Words before a name that are no part of it.
_TITLES = split_words(
    "Prime Minister President Chancellor Secretary Senator Judge Professor Lord Lady Sergeant Detective Inspector "
    "Captain Lieutenant Colonel General King Queen Prince Princess Pope CEO Governor Mayor Sheriff Chief Rep Sen "
    "Gov Constable Justice Bishop Baroness Dame Attorney Superintendent Officer Former Foreign Home Deputy Defence "
    "Defense"
)
_ROLES = (
    "manager striker actor actress singer boss wife husband son daughter mother father brother sister spokesman "
    "spokeswoman director professor coach captain midfielder defender star player friend lawyer officer detective "
    "leader "
    "secretary minister chairman analyst researcher author victim suspect presenter comedian goalkeeper winger forward "
    "teammate girlfriend boyfriend partner mayor sheriff attorney judge model jockey trainer driver student teacher"
).replace(" ", "|")
#: First names that are words as well.
_FIRST_NAMES = split_words(
    "Mark Bill Frank Jack Grant Will Rose Grace Rob Pat Drew Dean Art Sue Dick Guy Ray Chase Wayne Faith Hope Joy "
    "Chip Nick"
)
#: Last words of names of organisations and places.
_NO_PEOPLE = split_words(
    "City United Town County University Hospital Court Council Street Road Park Island Islands Airport School "
    "College League Cup Party House Times News Post Mail Club Police Department Office Group Bank Center Centre "
    "Stadium Church State Beach River Lake Valley Hills Bay Rovers Wanderers Albion Palace Villa Madrid Germain "
    "Town Athletic Trust Show Awards Act Association Institute Company Inc Ltd Foundation Society Union Force Army "
    "Navy Agency Service Services"
)
_PLACE_BEFORE = re.compile(r"\b(?:in|near|across|throughout|outside|around) $")
_PERSON_BEFORE = re.compile(rf"\b(?:Mr|Mrs|Ms|Miss|Dr|Sir|{'|'.join(sorted(_TITLES))}|{_ROLES}) $")
_PERSON_AFTER = re.compile(
    r",? (?:said|says|told|added|tweeted|wrote|who|revealed|admitted|insisted|explained|believes|died|married|scored)\b"
    r"|, (?:aged )?\d\d\b| \(\d\d\)|['’]s (?:wife|husband|mother|father|lawyer|son|daughter|brother|sister|death)\b"
)
_NUMBER = re.compile(r"(?<![\w.,-])(?P<sign>[$£€]?)(?P<digits>\d[\d,]*(?:\.\d+)?)(?![\w-]|[.,]\d)")
_CONTENT = re.compile(r"[A-Za-zÀ-ɏ]{4,}|\d[\d,.]*\d|\d")
_QUOTE = "'\"‘“’”"


_CLAUSE = re.compile(
    rf"({_NAME.pattern}), ((?:an?|the|who|whose|which|of|from|aged|formerly) [^,.;:{_QUOTE}()]{{6,60}}),(?= )"
)


class Statement(NamedTuple):
    """A sentence about an article with the probability that the article supports it, the characters that it does not
    support, and those that nobody can be sure about."""

    kind: str
    text: str
    label: float
    errors: tuple[tuple[int, int], ...] = ()
    unsure: tuple[tuple[int, int], ...] = ()


class Name(NamedTuple):
    start: int
    end: int
    text: str


def find_names(text: str) -> list[Name]:
    """Return the names in a text, without the word with a capital that begins a sentence."""
    names = []
    for match in _NAME.finditer(text):
        start, words = match.start(), match[0].split()
        while words and (words[0] in _NO_NAMES or words[0] in _TITLES or words[0] in MONTHS or words[0] in DAYS):
            start += len(words.pop(0)) + 1
        if words and words[-1] not in MONTHS and words[-1] not in DAYS:
            name = " ".join(words)
            if len(name) > 2:
                names.append(Name(start, start + len(name), name))
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
                if _PERSON_AFTER.match(text, end) or _PERSON_BEFORE.search(text[max(0, start - 16) : start]):
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
        return name in _NATIONS or (self.counts[name.lower()] > 25 and name not in _FIRST_NAMES)

    def classify(self, name: str) -> str:
        """Return `person`, `place`, `nation` or `other`."""
        if name in _NATIONS:
            return "nation"
        people, places = self._people[name], self._places[name]
        words = name.split()
        looks_so = people > places or (people == places and words[0] in self._first_names)
        if looks_so and len(words) in (2, 3) and not self._is_word(words[0]) and words[-1] not in _NO_PEOPLE:
            return "person"
        return "place" if places > 2 * people and places > 1 else "other"


@dataclass(frozen=True)
class Article:
    """An article with its highlights and the names in it by type."""

    text: str
    highlights: tuple[str, ...]
    corpus: Corpus

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

    def locate(self, text: str) -> list[tuple[Name, str]]:
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
        and (sentence[0].isupper() or sentence[0] in _QUOTE or sentence[0].isdigit())
        and sentence[-1] in "." + _QUOTE
        and not _NO_STATEMENT.search(sentence)
        and sum(sentence.count(mark) for mark in '"“”') % 2 == 0
    )


# ---- Changes that keep a sentence supported


_CONJUNCTIONS = ("But", "And", "So", "Or", "Yet", "Nor", "Then")


def shorten(text: str, rng: random.Random) -> str | None:
    """Drop a clause between commas, or what follows a connective at the end."""
    pattern = rf", (?:who|which|whose|an?|the|aged|of|from|\d+)\b[^,{_QUOTE}]{{3,70}},(?= [a-z])"
    shorter = [text[: match.start()] + text[match.end() :] for match in re.finditer(pattern, text)]
    tail = re.search(r",? (?:after|while|when|because|following|amid|saying|adding|as part of)\b[^.]*\.$", text)
    if tail and not re.search(
        r"\b(?:no|not|never|only|if|unless|until|than|so|first|last)\b|n't|n’t", text[: tail.start()]
    ):
        shorter.append(text[: tail.start()] + ".")
    shorter = [part for part in shorter if len(part.split()) >= 7 and _has_even_quotes(part)]
    return rng.choice(shorter) if shorter else None


def reorder(text: str, rng: random.Random) -> str | None:
    """Move the clause at the beginning to the end, or the one at the end to the beginning."""
    del rng
    if any(mark in text for mark in _QUOTE) or not text.endswith(".") or text.split()[0] in _CONJUNCTIONS:
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
    if not (first.endswith(".") and second.endswith(".")) or any(mark in first + second for mark in _QUOTE):
        return None
    if len(first.split()) + len(second.split()) > 45 or second.split()[0] in _CONJUNCTIONS or not is_statement(second):
        return None
    return first[:-1] + rng.choice((", and ", ", while ", " and ", ", as ")) + _lower_first(second)


def _lower_first(text: str) -> str:
    word = text.split()[0]
    return (
        text[0].lower() + text[1:] if word in _NO_NAMES and word not in ("I", "Mr", "Mrs", "Ms", "Dr", "Sir") else text
    )


def _has_even_quotes(text: str) -> bool:
    return all(text.count(mark) % 2 == 0 for mark in "\"'") and text.count("“") == text.count("”")


# ---- Faults


def swap_name(text: str, article: Article, foreign: dict[str, list[str]], rng: random.Random) -> str | None:
    places = article.locate(text)
    typed = [place for place in places if place[1] != "other"]
    if not typed or rng.random() < 0.15:
        typed = places
    if not typed:
        return None
    name, kind = rng.choice(typed)
    return _put_name(text, name, kind, article, foreign if rng.random() < 0.25 else {}, rng)


def swap_subject(text: str, article: Article, foreign: dict[str, list[str]], rng: random.Random) -> str | None:
    del foreign
    places = [place for place in article.locate(text) if place[0].start == 0 and place[1] in ("person", "nation")]
    return _put_name(text, *places[0], article, {}, rng) if places else None


def _put_name(
    text: str, name: Name, kind: str, article: Article, foreign: dict[str, list[str]], rng: random.Random
) -> str | None:
    """Put another name of this type in the place of a name; of the same length in words where there is one."""
    pool = rng.choices(foreign[kind], k=30) if kind in foreign else article.names[kind]
    others = [other for other in pool if not related(other, name.text) and other not in text]
    if kind == "other":
        # Names of all sorts: only those that follow the same word somewhere fit.
        before = text[: name.start].rpartition(" ")[0].rpartition(" ")[2] + " "
        others = [other for other in others if len(before) > 1 and before + other in article.text]
    alike = [other for other in others if len(other.split()) == len(name.text.split())]
    if foreign:
        alike = [other for other in alike if other not in article.text]
    return text[: name.start] + rng.choice(alike) + text[name.end :] if alike else None


#: What stands between names of a list, or of two sides that are alike.
_BETWEEN = re.compile(r"(?:[\s,&-]|\b(?:and|or|with|vs?\.?|against|to|the)\b)*")


def swap_roles(text: str, article: Article, foreign: dict[str, list[str]], rng: random.Random) -> str | None:
    """Let two names of one type change places, unless they stand side by side or in one list."""
    del foreign
    places = article.locate(text)
    pairs = [
        (first[0], second[0])
        for at, first in enumerate(places)
        for second in places[at + 1 :]
        if first[1] == second[1] != "other"
        and not related(first[0].text, second[0].text)
        and not _BETWEEN.fullmatch(_NAME.sub(",", text[first[0].end : second[0].start]))
    ]
    if not pairs:
        return None
    first, second = rng.choice(pairs)
    return f"{text[: first.start]}{second.text}{text[first.end : second.start]}{first.text}{text[second.end :]}"


def swap_number(text: str, article: Article, foreign: dict[str, list[str]], rng: random.Random) -> str | None:
    del foreign
    words = [match for match in re.finditer(r"\b[a-z]+\b", text) if match[0] in _NUMBER_WORDS]
    numbers = list(_NUMBER.finditer(text))
    if not words and not numbers:
        return None
    match = rng.choice([*words, *numbers])
    if match in words:
        own = sorted({word for word in _NUMBER_WORDS if f" {word} " in article.text} - set(text.split()))
        new = rng.choice(
            own if own and rng.random() < 0.5 else [word for word in _NUMBER_WORDS[:7] if word not in text]
        )
        return text[: match.start()] + new + text[match.end() :]
    shape = _shape(match["digits"])
    same = sorted(
        {
            m["digits"]
            for m in _NUMBER.finditer(article.text)
            if m["sign"] == match["sign"] and _shape(m["digits"]) == shape
        }
    )
    same = [digits for digits in same if digits not in text]
    changed = rng.choice(same) if same and rng.random() < 0.6 else _change_number(match["digits"], rng)
    if changed is None or changed in text:
        return None
    return text[: match.start("digits")] + changed + text[match.end("digits") :]


def _shape(digits: str) -> str:
    """Tell years, decimals, round and other numbers of each length apart."""
    if re.fullmatch(r"(?:19|20)\d\d", digits):
        return "year"
    return re.sub(r"[1-9]", "1", digits) if "0" in digits and "." not in digits else re.sub(r"\d", "1", digits)


def _change_number(digits: str, rng: random.Random) -> str | None:
    """Return another number that looks alike: the same length, marks and zeros at the end."""
    if _shape(digits) == "year":
        return str(int(digits) + rng.choice((-4, -3, -2, -1, 1, 2, 3)))
    body = digits.rstrip("0,") or digits
    at = rng.choice([place for place, mark in enumerate(body) if mark.isdigit()][:2])
    options = [mark for mark in "123456789" if mark != body[at] and abs(int(mark) - int(body[at])) <= 5]
    return digits[:at] + rng.choice(options) + digits[at + 1 :] if len(digits) > 1 or digits != "1" else None


def swap_time(text: str, article: Article, foreign: dict[str, list[str]], rng: random.Random) -> str | None:
    del foreign
    matches = [match for match in re.finditer(r"\b[A-Z][a-z]+\b", text) if match[0] in DAYS or match[0] in MONTHS]
    if not matches:
        return None
    match = rng.choice(matches)
    words = DAYS if match[0] in DAYS else MONTHS
    own = [word for word in words if word in article.text and word not in text]
    new = rng.choice(own if own and rng.random() < 0.6 else [word for word in words if word not in text])
    return text[: match.start()] + new + text[match.end() :]


_OPPOSITES = (
    "won/lost rose/fell increased/decreased increase/decrease higher/lower before/after accepted/rejected best/worst "
    "supports/opposes supported/opposed died/survived arrested/released confirmed/denied allowed/banned north/south "
    "northern/southern east/west eastern/western father/brother mother/sister son/nephew daughter/niece "
    "husband/brother "
    "wife/sister man/woman men/women boy/girl largest/smallest youngest/oldest began/ended begin/end opened/closed "
    "always/never bought/sold buy/sell early/late earlier/later minutes/hours days/weeks months/years "
    "million/billion with/without agreed to/refused to managed to/failed to admitted/denied admits/denies "
    "inside/outside success/failure victory/defeat win/defeat joined/left joining/leaving "
    "praised/criticised backed/opposed approved/rejected ahead of/behind above/below more than/fewer than "
    "first/second morning/evening daily/weekly home/abroad private/public same/different"
)
_PAIRS = [
    tuple(pair.split("/")) for pair in re.findall(r"[a-z]+(?: (?:to|of|than))?/[a-z]+(?: (?:to|of|than))?", _OPPOSITES)
]
_OPPOSITE: dict[str, list[str]] = defaultdict(list)
for _first, _second in _PAIRS:
    _OPPOSITE[_first].append(_second)
    _OPPOSITE[_second].append(_first)
_OPPOSITE_WORD = re.compile(r"\b(?:" + "|".join(sorted(map(re.escape, _OPPOSITE), key=len, reverse=True)) + r")\b")


def swap_opposite(text: str, article: Article, foreign: dict[str, list[str]], rng: random.Random) -> str | None:
    del foreign
    matches = list(_OPPOSITE_WORD.finditer(text))
    if not matches:
        return None
    match = rng.choice(matches)
    new = rng.choice(_OPPOSITE[match[0]])
    # Rare words must not come from frequent ones more often than the other way round: they would tell the fault.
    counts = article.corpus.counts
    if rng.random() > counts[new.split()[0]] / (counts[match[0].split()[0]] + 1):
        return None
    return text[: match.start()] + new + text[match.end() :]


_NEGATION = re.compile(r"\b(?:not|never)\b|n['’]t\b", re.IGNORECASE)
_VERB = re.compile(
    r"\b(?P<verb>is|are|was|were|will|would|could|should|did|does|can)\b(?= [a-z])"
    r"(?! (?:not|never|it|he|she|they|we|you|i|n't)\b)"
    r"|\b(?P<perfect>has|have|had)\b"
    r"(?= (?:been|\w+ed|made|taken|given|seen|said|become|found|won|lost|left|told|come|gone|shown)\b)"
)
_CONTRACTED = {"won't": "will", "won’t": "will", "can't": "can", "can’t": "can", "cannot": "can"}


def change_negation(text: str, article: Article, foreign: dict[str, list[str]], rng: random.Random) -> str | None:
    """Drop a negation, or add one. Most sentences have none: a few of these are enough for both to be as frequent."""
    del article, foreign
    match = _NEGATION.search(text)
    if match:
        for contracted, plain in _CONTRACTED.items():
            if contracted in text:
                return text.replace(contracted, plain, 1)
        if match[0].lower() == "never" and re.match(r" \w+ed\b", text[match.end() :]):
            return text[: match.start()] + text[match.end() + 1 :]
        return re.sub(r" {2,}", " ", text[: match.start()] + text[match.end() :]) if match.start() else None
    verbs = list(_VERB.finditer(text))
    if not verbs:
        return None
    verb = rng.choice(verbs)
    marks = text.count("'") + text.count("’") > 0
    if verb["perfect"] and rng.random() < 0.3:
        added = " never"
    else:
        added = "n't" if marks and verb[0] not in ("will", "can") and rng.random() < 0.5 else " not"
    return text[: verb.end()] + added + text[verb.end() :]


#: What hedges, and what a careless summary makes of it.
_HEDGES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), plain)
    for pattern, plain in (
        (r"\b(?:allegedly|reportedly|apparently|possibly|probably|perhaps) ", ""),
        (r"(?<=[^s']s) (?:may|might|could) have been\b", " were"),
        (r"(?<=[^s]) (?:may|might|could) have been\b", " was"),
        (r"\b(?:may|might|could) have (?=\w+ed\b)", ""),
        (r"(?<=[^s']s) (?:may|might|could) be\b", " are"),
        (r"(?<=[^s]) (?:may|might|could) be\b", " is"),
        (r"\b(?P<be>is|are) (?:believed|thought|alleged|reported|understood) to be\b", r"\g<be>"),
        (r"\b(?:is|was) (?:believed|thought|alleged|reported|understood) to have\b", "has"),
        (r"\b(?:are|were) (?:believed|thought|alleged|reported|understood) to have\b", "have"),
        (r"\b(?:accused|suspected) of\b", "convicted of"),
        (r"\bcharged with\b", "convicted of"),
        (r"\b(?:tried|attempted|hoped|wanted|planned) to\b", "managed to"),
        (r"\b(?:hopes|plans|wants|aims|intends) to\b", "is going to"),
        (r"\b(?:is|are) (?:considering|contemplating)\b", "decided on"),
        (
            r"\b(?:could|may|might) "
            r"(?=(?:face|lose|win|get|become|cause|lead|help|go|make|take|come|cost|return|leave)\b)",
            "will ",
        ),
        (r"\bclose to (?=\w+ing\b)", "now "),
        (r"\bpotential (?=[a-z])", ""),
        (r"\b(?:nearly|almost) (?=[£$\d])", "more than "),
    )
)


def drop_hedge(text: str, article: Article, foreign: dict[str, list[str]], rng: random.Random) -> str | None:
    del article, foreign
    changed = [one for pattern, plain in _HEDGES if (one := pattern.sub(plain, text, count=1)) != text]
    if not changed:
        return None
    result = rng.choice(changed)
    return result[0].upper() + result[1:]


_RESULTS = re.compile(r"\b(?:managed to|convicted of|going to|decided on|more than|will)\b")


def is_marked(text: str) -> bool:
    """Whether a sentence has words that faults add or drop: a negation, a hedge, or what replaces one."""
    return bool(has_negation(text) or _RESULTS.search(text) or any(pattern.search(text) for pattern, _ in _HEDGES))


def has_negation(text: str) -> bool:
    return _NEGATION.search(text) is not None


_CONNECTIVE = re.compile(
    r"[^.]{18,},? (after|before|while|when|because|following|during|against|despite) ([^.]{12,})\."
)


def merge_sentences(text: str, article: Article, foreign: dict[str, list[str]], rng: random.Random) -> str | None:
    """Replace what follows a connective at the end by what follows it in another sentence of the article."""
    del foreign
    match = _CONNECTIVE.fullmatch(text)
    if match is None or any(mark in text for mark in _QUOTE):
        return None
    tails = []
    for sentence in article.sentences:
        other = _CONNECTIVE.fullmatch(sentence)
        if (
            other
            and other[1] == match[1]
            and not any(mark in other[2] for mark in _QUOTE)
            and len(other[2].split()) <= 16
        ):
            shared = content_words(other[2]) & content_words(text)
            if len(shared) <= 0.34 * len(content_words(other[2])):
                tails.append(other[2])
    return f"{text[: match.start(2)]}{rng.choice(tails)}." if tails else None


def add_background(text: str, article: Article, foreign: dict[str, list[str]], rng: random.Random) -> str | None:
    """Put a clause about somebody else beside a name."""
    del foreign
    return _insert_clause(text, article, rng, right=False)


def add_known_background(text: str, article: Article, rng: random.Random) -> str | None:
    """Put the clause that stands beside a name elsewhere in the article beside it."""
    return _insert_clause(text, article, rng, right=True)


def _insert_clause(text: str, article: Article, rng: random.Random, *, right: bool) -> str | None:
    options = []
    for name, kind in article.locate(text):
        if kind in ("person", "place") and re.match(r" [a-z]", text[name.end :]):
            own = [clause for owner, clause in article.clauses if owner.split()[-1] == name.text.split()[-1]]
            chosen = (
                own
                if right
                else [
                    clause
                    for owner, clause in article.clauses
                    if not related(owner, name.text) and article.type_of[owner] == kind and clause not in own
                ]
            )
            fitting = [
                clause for clause in chosen if clause not in text and (kind == "person" or not clause.startswith("who"))
            ]
            options += [(name, clause) for clause in fitting]
    if not options:
        return None
    name, clause = rng.choice(options)
    return f"{text[: name.end]}, {clause},{text[name.end :]}"


def change_unit(text: str, article: Article, foreign: dict[str, list[str]], rng: random.Random) -> str | None:
    del foreign
    return _apply_package_fault("unit", text, article, rng)


def add_clause(text: str, article: Article, foreign: dict[str, list[str]], rng: random.Random) -> str | None:
    """Add a clause that nothing supports to the end of a sentence."""
    del foreign
    changed = _apply_package_fault("addition", text, article, rng)
    return changed if changed and len(split_sentences(changed)) == len(split_sentences(text)) else None


def _apply_package_fault(kind: str, text: str, article: Article, rng: random.Random) -> str | None:
    edit = KINDS[kind].propose(Text(output=text, source=article.text), rng)
    return None if edit is None else text[: edit.start] + edit.text + text[edit.end :]


Fault = Callable[[str, Article, dict[str, list[str]], random.Random], str | None]
#: Faults with how often each is tried first, and the label of the result.
FAULTS: dict[str, tuple[Fault, float, float]] = {
    "name": (swap_name, 2.6, 0.0),
    "subject": (swap_subject, 4.0, 0.0),
    "roles": (swap_roles, 2.0, 0.0),
    "number": (swap_number, 1.5, 0.0),
    "time": (swap_time, 1.5, 0.0),
    "opposite": (swap_opposite, 1.2, 0.0),
    "negation": (change_negation, 1.0, 0.0),
    "certainty": (drop_hedge, 4.0, 0.1),
    "merged": (merge_sentences, 4.0, 0.05),
    "background": (add_background, 4.0, 0.0),
    "unit": (change_unit, 0.6, 0.0),
    "addition": (add_clause, 0.15, 0.0),
}


def break_sentence(text: str, article: Article, foreign: dict[str, list[str]], rng: random.Random) -> Statement | None:
    """Return the sentence with one fault, of a kind that fits it."""
    weights = {kind: weight for kind, (_, weight, _) in FAULTS.items()}
    if has_negation(text):
        weights["negation"] *= 4
    while weights:
        kind = rng.choices(list(weights), list(weights.values()))[0]
        del weights[kind]
        # A negation that is added is seen: it is no last resort.
        if kind == "negation" and not has_negation(text) and len(weights) < len(FAULTS) - 1:
            continue
        # So is a clause that is added, which fits everywhere.
        if kind == "addition" and rng.random() < 0.85:
            continue
        change, _, label = FAULTS[kind]
        changed = change(text, article, foreign, rng)
        if changed and changed != text:
            return Statement(kind, changed, label, find_changes(text, changed))
    return None


_PART = re.compile(r"\w+(?:['’-]\w+)*|[^\w\s]")


def find_changes(original: str, changed: str) -> tuple[tuple[int, int], ...]:
    """Return the characters of the words that are new in a changed text. Where words were only left out, the word that
    follows the gap stands for them."""
    old, new = (
        [(match.start(), match.end(), match[0]) for match in _PART.finditer(text)] for text in (original, changed)
    )
    spans = []
    matcher = SequenceMatcher(None, [word.lower() for _, _, word in old], [word.lower() for _, _, word in new], False)
    for operation, _, _, first, last in matcher.get_opcodes():
        if operation == "equal":
            continue
        if operation == "delete":
            last = first + 1
        words = [place for place in new[first:last] if place[2][0].isalnum()]
        if words:
            spans.append((words[0][0], words[-1][1]))
    return tuple(spans)


def vary(text: str, article: Article, others: Sequence[str], rng: random.Random) -> tuple[str, str]:
    """Return what was changed in a sentence, and its new form, which is supported as well; half stay as they are."""
    changes: list[tuple[str, Callable[[], str | None]]] = [
        ("shortened", lambda: shorten(text, rng)),
        ("reordered", lambda: reorder(text, rng)),
        ("renamed", lambda: rename(text, article, rng)),
        ("background", lambda: add_known_background(text, article, rng)),
        ("joined", lambda: join(text, rng.choice(others), rng) if others else None),
    ]
    if rng.random() < 0.6:
        # Any two sentences can be joined: the other changes come first more often.
        order = sorted(range(5), key=lambda at: rng.random() + (at == 4) * 0.5)
        for kind, change in (changes[at] for at in order):
            if changed := change():
                return kind, changed
    return "plain", text


# ---- Quotations

_SPEAKER = rf"(?:(?:Mr|Mrs|Ms|Miss|Dr|Sir) )?{_NAME.pattern}"
_QUOTED = r"(?P<quote>['\"‘“](?:[^'\"“”‘’]|(?<=\w)['’](?=\w)){25,220}(?:['\"’”]|\.$))"
_SAID_AFTER = re.compile(rf"{_QUOTED},? (?:said|says|added|explained) (?P<who>{_SPEAKER})\b.*")
_WHO_AFTER = re.compile(rf"{_QUOTED},? (?P<who>{_SPEAKER}) (?:said|says|added|told|explained)\b.*")
_WHO_BEFORE = re.compile(
    rf"(?P<who>{_SPEAKER})(?:, [^,]{{3,60}},)? "
    rf"(?:said|says|added|told [\w ]{{3,30}}|explained)(?: that)?[:,]? {_QUOTED}.*"
)
_FIRST_PERSON = re.compile(r"\b(?:I|me|my|we|us|our|you|your|I'm|I've|we're|we've)\b", re.IGNORECASE)


def quote(sentence: str, article: Article, rng: random.Random) -> list[Statement]:
    """Return a quotation of the sentence with its speaker, and with another speaker of the article."""
    match = next(
        (found for pattern in (_SAID_AFTER, _WHO_AFTER, _WHO_BEFORE) if (found := pattern.fullmatch(sentence))), None
    )
    if match is None:
        return []
    who = re.sub(r"^(?:Mr|Mrs|Ms|Miss|Dr|Sir) ", "", match["who"])
    if article.type_of.get(who) != "person":
        return []
    others = [name for name in article.names["person"] if not related(name, who) and len(name.split()) <= 3]
    if not others:
        return []
    inside = match["quote"][1:-1].rstrip(",.")
    open_mark = match["quote"][0]
    close_mark = {"‘": "’", "“": "”"}.get(open_mark, open_mark)
    form = rng.randrange(3)

    def write(name: str) -> str:
        if form == 0 and not _FIRST_PERSON.search(inside):
            return f"{name} said {inside[0].lower() if inside.split()[0] in _NO_NAMES else inside[0]}{inside[1:]}."
        if form == 1:
            return f"{open_mark}{inside},{close_mark} said {name}."
        return f"{name} said: {open_mark}{inside}.{close_mark}"

    right, wrong = write(who), write(other := rng.choice(others))
    place = wrong.find(other)
    return [Statement("speaker", right, 0.97), Statement("speaker", wrong, 0.0, ((place, place + len(other)),))]


def resolve_pronouns(article: Article, rng: random.Random) -> list[list[Statement]]:
    """Return highlights that begin with a pronoun, with the name of the person before and with another name."""
    result = []
    person: str | None = None
    for highlight in article.highlights:
        first = article.locate(highlight)
        if first and first[0][0].start == 0 and first[0][1] == "person":
            person = first[0][0].text
        elif person and (match := re.match(r"(?:He|She) (?=[a-z])", highlight)):
            others = [name for name in article.names["person"] if not related(name, person) and " " in name]
            if others and not first:
                rest, other = highlight[match.end() :], rng.choice(others)
                result.append(
                    [
                        Statement("subject", f"{person} {rest}", 0.9),
                        Statement("subject", f"{other} {rest}", 0.0, ((0, len(other)),)),
                    ]
                )
        elif first:
            person = None
    return result
