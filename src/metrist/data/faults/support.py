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
    unit       another unit
    addition   a clause that nothing supports
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial

from metrist.data.faults.kinds import KINDS
from metrist.data.faults.news import (
    NAME,
    QUOTES,
    Article,
    NamedSpan,
    Statement,
    content_words,
    insert_clause,
    list_days,
    list_months,
    list_news_words,
    related,
)
from metrist.data.faults.text import EditableText, apply_edits, find_changes, read_lists
from metrist.sentences import split_sentences

_NUMBER_WORDS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_NUMBER = re.compile(r"(?<![\w.,-])(?P<sign>[$£€]?)(?P<digits>\d[\d,]*(?:\.\d+)?)(?![\w-]|[.,]\d)")


@cache
def _read_opposites() -> tuple[Mapping[str, list[str]], re.Pattern[str]]:
    """The opposites of each word or phrase, and a pattern of all of them."""
    opposites: dict[str, list[str]] = {}
    for pair in read_lists()["news"]["opposites"]:
        for word, other in (pair.split("/"), reversed(pair.split("/"))):
            opposites.setdefault(word, []).append(other)
    words = sorted(map(re.escape, opposites), key=len, reverse=True)
    return opposites, re.compile(rf"\b(?:{'|'.join(words)})\b")


@cache
def _list_hedges() -> Sequence[tuple[re.Pattern[str], str]]:
    return [(re.compile(pattern), plain) for pattern, plain in read_lists()["news"]["hedges"]]


# ---- Faults


def swap_name(text: str, article: Article, rng: random.Random) -> str | None:
    places = article.locate(text)
    typed = [place for place in places if place[1] != "other"]
    if not typed or rng.random() < 0.15:
        typed = places
    if not typed:
        return None
    name, kind = rng.choice(typed)
    return _put_name(text, name, kind, article, article.foreign if rng.random() < 0.25 else {}, rng)


def swap_subject(text: str, article: Article, rng: random.Random) -> str | None:
    places = [place for place in article.locate(text) if place[0].start == 0 and place[1] in ("person", "nation")]
    return _put_name(text, *places[0], article, {}, rng) if places else None


def _put_name(
    text: str, name: NamedSpan, kind: str, article: Article, foreign: Mapping[str, Sequence[str]], rng: random.Random
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


def swap_roles(text: str, article: Article, rng: random.Random) -> str | None:
    """Let two names of one type change places, unless they stand side by side or in one list."""
    places = article.locate(text)
    pairs = [
        (first[0], second[0])
        for at, first in enumerate(places)
        for second in places[at + 1 :]
        if first[1] == second[1] != "other"
        and not related(first[0].text, second[0].text)
        and not _BETWEEN.fullmatch(NAME.sub(",", text[first[0].end : second[0].start]))
    ]
    if not pairs:
        return None
    first, second = rng.choice(pairs)
    return f"{text[: first.start]}{second.text}{text[first.end : second.start]}{first.text}{text[second.end :]}"


def swap_number(text: str, article: Article, rng: random.Random) -> str | None:
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
    alike = {other["digits"] for other in _NUMBER.finditer(article.text) if other["sign"] == match["sign"]}
    same = [digits for digits in sorted(alike) if _shape(digits) == shape and digits not in text]
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


def swap_time(text: str, article: Article, rng: random.Random) -> str | None:
    matches = [
        match for match in re.finditer(r"\b[A-Z][a-z]+\b", text) if match[0] in list_days() or match[0] in list_months()
    ]
    if not matches:
        return None
    match = rng.choice(matches)
    words = list_days() if match[0] in list_days() else list_months()
    own = [word for word in words if word in article.text and word not in text]
    new = rng.choice(own if own and rng.random() < 0.6 else [word for word in words if word not in text])
    return text[: match.start()] + new + text[match.end() :]


def swap_opposite(text: str, article: Article, rng: random.Random) -> str | None:
    opposites, pattern = _read_opposites()
    matches = list(pattern.finditer(text))
    if not matches:
        return None
    match = rng.choice(matches)
    new = rng.choice(opposites[match[0]])
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


def change_negation(text: str, article: Article, rng: random.Random) -> str | None:  # noqa: ARG001
    """Drop a negation, or add one. Most sentences have none: a few of these are enough for both to be as frequent."""
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


def drop_hedge(text: str, article: Article, rng: random.Random) -> str | None:  # noqa: ARG001
    changed = [one for pattern, plain in _list_hedges() if (one := pattern.sub(plain, text, count=1)) != text]
    if not changed:
        return None
    result = rng.choice(changed)
    return result[0].upper() + result[1:]


_RESULTS = re.compile(r"\b(?:managed to|convicted of|going to|decided on|more than|will)\b")


def is_marked(text: str) -> bool:
    """Whether a sentence has words that faults add or drop: a negation, a hedge, or what replaces one."""
    return bool(
        _NEGATION.search(text) or _RESULTS.search(text) or any(pattern.search(text) for pattern, _ in _list_hedges())
    )


_CONNECTIVE = re.compile(
    r"[^.]{18,},? (after|before|while|when|because|following|during|against|despite) ([^.]{12,})\."
)


def merge_sentences(text: str, article: Article, rng: random.Random) -> str | None:
    """Replace what follows a connective at the end by what follows it in another sentence of the article."""
    match = _CONNECTIVE.fullmatch(text)
    if match is None or any(mark in text for mark in QUOTES):
        return None
    tails = []
    for sentence in article.sentences:
        other = _CONNECTIVE.fullmatch(sentence)
        if (
            other
            and other[1] == match[1]
            and not any(mark in other[2] for mark in QUOTES)
            and len(other[2].split()) <= 16
        ):
            shared = content_words(other[2]) & content_words(text)
            if len(shared) <= 0.34 * len(content_words(other[2])):
                tails.append(other[2])
    return f"{text[: match.start(2)]}{rng.choice(tails)}." if tails else None


def apply_kind(text: str, article: Article, rng: random.Random, kind: str) -> str | None:
    """Put a fault of any text into a sentence, which stays one: of the additions, only clauses at its end count."""
    edit = KINDS[kind].propose(EditableText(output=text, source=article.text), rng)
    changed = None if edit is None else apply_edits(text, [edit])
    if kind == "addition" and changed and len(split_sentences(changed)) != len(split_sentences(text)):
        return None
    return changed


Fault = Callable[[str, Article, random.Random], str | None]
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
    "background": (partial(insert_clause, right=False), 4.0, 0.0),
    "unit": (partial(apply_kind, kind="unit"), 0.6, 0.0),
    "addition": (partial(apply_kind, kind="addition"), 0.15, 0.0),
}


def break_sentence(text: str, article: Article, rng: random.Random) -> Statement | None:
    """Return the sentence with one fault, of a kind that fits it."""
    weights = {kind: weight for kind, (_, weight, _) in FAULTS.items()}
    negated = _NEGATION.search(text) is not None
    if negated:
        weights["negation"] *= 4
    while weights:
        kind = rng.choices(list(weights), list(weights.values()))[0]
        del weights[kind]
        # A negation that is added is seen: it is no last resort.
        if kind == "negation" and not negated and len(weights) < len(FAULTS) - 1:
            continue
        # So is a clause that is added, which fits everywhere.
        if kind == "addition" and rng.random() < 0.85:
            continue
        change, _, label = FAULTS[kind]
        changed = change(text, article, rng)
        if changed and changed != text:
            return Statement(kind, changed, label, find_changes(text, changed))
    return None


# ---- Quotations

_SPEAKER = rf"(?:(?:Mr|Mrs|Ms|Miss|Dr|Sir) )?{NAME.pattern}"
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
            small = inside.split()[0] in list_news_words("no_names")
            return f"{name} said {inside[0].lower() if small else inside[0]}{inside[1:]}."
        if form == 1:
            return f"{open_mark}{inside},{close_mark} said {name}."
        return f"{name} said: {open_mark}{inside}.{close_mark}"

    other = rng.choice(others)
    right, wrong = write(who), write(other)
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
