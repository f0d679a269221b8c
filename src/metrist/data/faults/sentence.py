"""English sentences as words, and what is known about words from good sentences."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import pairwise

from metrist.data.faults.text import Edit, EditableText, match_case, read_lists

TOKEN = re.compile(r"[A-Za-z]+(?:['’-][A-Za-z]+)*|\d[\d.,]*\d|\d|[^\w\s]|\w+")
VOWELS = frozenset("aeiou")
ARTICLES = ("a", "an")


@cache
def list_words(name: str) -> frozenset[str]:
    return frozenset(read_lists()["fluency"][name].split())


@cache
def list_function_words() -> frozenset[str]:
    return frozenset().union(*map(list_words, ("determiners", "modals", "auxiliaries", "prepositions", "connectives")))


@cache
def map_arrows(name: str) -> Mapping[str, str]:
    return dict(row.split(" -> ") for row in read_lists()["fluency"][name])


@cache
def map_pairs(name: str) -> Mapping[str, str]:
    return dict(pair.split() for pair in read_lists()["fluency"][name].split("|"))


# ---- Words

Forms = tuple[str, str, str, str, str]


@dataclass(slots=True)
class Lexicon:
    """What the faults need to know about words, counted in good sentences."""

    counts: Counter[str] = field(default_factory=Counter)
    #: base -> (base, third person, past, participle, -ing)
    verbs: dict[str, Forms] = field(default_factory=dict)
    #: The same by any form, the base by the third person, and by a past or participle that is not regular.
    forms: dict[str, Forms] = field(default_factory=dict)
    thirds: dict[str, str] = field(default_factory=dict)
    irregular: dict[str, str] = field(default_factory=dict)
    plurals: dict[str, str] = field(default_factory=dict)
    singulars: dict[str, str] = field(default_factory=dict)
    adverbs: dict[str, str] = field(default_factory=dict)
    adjectives: dict[str, str] = field(default_factory=dict)
    #: Content words by their last two letters, for replacement by a stray word of the same kind.
    content: dict[str, list[str]] = field(default_factory=dict)
    foreign: Sequence[str] = ()


def build_lexicon(sentences: Iterable[str], foreign: Sequence[str] = ()) -> Lexicon:
    """Count the words of good sentences; `foreign` are words of other languages."""
    counts: Counter[str] = Counter()
    after_article: Counter[str] = Counter()
    lower: Counter[str] = Counter()
    for sentence in sentences:
        tokens = TOKEN.findall(sentence)
        words = [token.lower() for token in tokens]
        counts.update(words)
        lower.update(token for token in tokens if token.islower())
        after_article.update(second for first, second in pairwise(words) if first in ARTICLES)
    lexicon = Lexicon(counts=counts, foreign=list(foreign))
    for entry in read_lists()["fluency"]["irregular_verbs"].strip().replace("\n", "|").split("|"):
        base, past, participle = entry.split()
        lexicon.verbs[base] = (base, _third_person(base), past, participle, _ing(base))
    for word, count in counts.items():
        if count < 4 or len(word) < 3 or not word.isalpha() or word in list_function_words():
            continue
        forms = (word, _third_person(word), form_past(word), form_past(word), _ing(word))
        if word not in lexicon.verbs and all(counts[form] >= 4 for form in forms):
            lexicon.verbs[word] = forms
        plural = _third_person(word)
        if counts[plural] >= 3 and after_article[word] >= 2:
            lexicon.plurals[word], lexicon.singulars[plural] = plural, word
        if counts[word + "ly"] >= 3 and not word.endswith("ly"):
            lexicon.adverbs[word], lexicon.adjectives[word + "ly"] = word + "ly", word
        if len(word) > 4 and lower[word] > 5:
            lexicon.content.setdefault(word[-2:], []).append(word)
    ambiguous = ("be", "was", "been", "had", "did", "done", "come", "run", "left", "felt")
    for forms in lexicon.verbs.values():
        lexicon.forms |= dict.fromkeys(forms, forms)
        lexicon.thirds[forms[1]] = forms[0]
        irregular = [form for form in forms[2:4] if not form.endswith("ed") and form not in ambiguous]
        lexicon.irregular |= dict.fromkeys(irregular, forms[0])
    return lexicon


def _third_person(base: str) -> str:
    if base in ("have", "be"):
        return {"have": "has", "be": "is"}[base]
    if base.endswith(("s", "x", "z", "ch", "sh", "o")):
        return base + "es"
    return base[:-1] + "ies" if base.endswith("y") and base[-2:-1] not in VOWELS else base + "s"


def _double_last(base: str) -> str:
    short = len(base) in (3, 4) and base[-1] not in "aeiouwxy" and base[-2] in VOWELS and base[-3] not in VOWELS
    return base + base[-1] if short else base


def form_past(base: str) -> str:
    if base.endswith("e"):
        return base + "d"
    return base[:-1] + "ied" if base.endswith("y") and base[-2:-1] not in VOWELS else _double_last(base) + "ed"


def _ing(base: str) -> str:
    silent = base.endswith("e") and not base.endswith(("ee", "ye", "oe")) and len(base) > 2
    return (base[:-1] if silent else _double_last(base)) + "ing"


# ---- Sentences


@dataclass(frozen=True)
class SentenceEditor:
    """A sentence as words and marks, with what proposes edits of it: chance, and what is known about words. An edit
    that touches an earlier one is None."""

    text: EditableText
    rng: random.Random
    lexicon: Lexicon

    @cached_property
    def tokens(self) -> list[re.Match[str]]:
        return list(TOKEN.finditer(self.text.output))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, at: int) -> str:
        """A word in small letters; nothing before the first and after the last one."""
        return self.tokens[at][0].lower() if 0 <= at < len(self.tokens) else ""

    def get(self, at: int) -> str:
        return self.tokens[at][0]

    def texts(self, first: int, last: int) -> list[str]:
        return [token[0] for token in self.tokens[first:last]]

    def is_word(self, at: int) -> bool:
        return 0 <= at < len(self.tokens) and self.tokens[at][0][0].isalpha()

    @cached_property
    def free(self) -> list[int]:
        """The words that no other edit touches."""
        return [at for at, token in enumerate(self.tokens) if self.is_word(at) and self.text.is_free(*token.span())]

    def pick(self, places: Iterable[int]) -> int | None:
        """One of these places by chance; None if there is none."""
        places = list(places)
        return self.rng.choice(places) if places else None

    def edit(self, first: int, last: int, new: str) -> Edit | None:
        """Replace some tokens."""
        return self._edit_span(self.tokens[first].start(), self.tokens[last - 1].end(), new)

    def change(self, at: int, new: str) -> Edit | None:
        """Replace a word by another one that is written as large."""
        return self.edit(at, at + 1, match_case(new, self.get(at)))

    def change_any(self, words: Mapping[int, str]) -> Edit | None:
        """Change one of these words, drawn by chance, into the one that is given for it."""
        at = self.pick(words)
        return None if at is None else self.change(at, words[at])

    def drop(self, at: int) -> Edit | None:
        """Leave a word out with the space after it."""
        return self._edit_span(self.tokens[at].start(), self.tokens[at + 1].start(), "")

    def insert(self, at: int, new: str) -> Edit | None:
        """Put something before a token."""
        start = self.tokens[at].start()
        return self._edit_span(start, start, new)

    def _edit_span(self, start: int, end: int, new: str) -> Edit | None:
        return self.text.change((start, end), new) if self.text.is_free(start, end) else None
