"""Put faults of grammar and wording into good English sentences and say exactly where they are.

Each fault edits a list of pieces (words and punctuation with the space before them) and marks the pieces that a
corrector would touch. A missing word is marked on the word that follows the gap, as in the MultiGED annotations.
"""

# Faults share a signature, whether they need the lexicon or not.
# ruff: noqa: ARG001

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

_PIECE = re.compile(r"(\s*)([A-Za-z]+(?:['’-][A-Za-z]+)*|\d[\d.,]*\d|\d|[^\w\s]|\w+)")
_VOWELS = frozenset("aeiou")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_IRREGULAR = """be was been|have had had|do did done|go went gone|take took taken|give gave given|see saw seen
come came come|become became become|begin began begun|write wrote written|speak spoke spoken|break broke broken
choose chose chosen|drive drove driven|eat ate eaten|fall fell fallen|know knew known|grow grew grown|throw threw thrown
show showed shown|wear wore worn|steal stole stolen|rise rose risen|make made made|find found found|say said said
tell told told|think thought thought|bring brought brought|buy bought bought|teach taught taught|catch caught caught
leave left left|lose lost lost|keep kept kept|feel felt felt|meet met met|hold held held|lead led led|pay paid paid
send sent sent|build built built|spend spent spent|stand stood stood|understand understood understood|win won won
sell sold sold|hear heard heard|run ran run|sit sat sat|sleep slept slept|fight fought fought|fly flew flown
draw drew drawn|hide hid hidden|forget forgot forgotten|get got gotten|sing sang sung|drink drank drunk"""
_IRREGULAR_NOUNS = {
    "children": ("childs", "childrens"),
    "men": ("mans", "mens"),
    "women": ("womans", "womens"),
    "people": ("peoples", "peoples"),
    "feet": ("foots", "feets"),
    "teeth": ("tooths", "teeths"),
    "mice": ("mouses", "mices"),
    "lives": ("lifes", "lifes"),
    "wives": ("wifes", "wifes"),
    "leaves": ("leafs", "leafs"),
}
_MASS = _words(
    "information advice equipment furniture research evidence knowledge luggage homework traffic software machinery "
    "progress weather money music news damage happiness behavior violence pollution"
)
_CONFUSIONS = (
    ("their", "there", "they're"),
    ("its", "it's"),
    ("then", "than"),
    ("to", "too"),
    ("your", "you're"),
    ("affect", "effect"),
    ("lose", "loose"),
    ("whose", "who's"),
    ("were", "where"),
    ("of", "off"),
    ("quite", "quiet"),
    ("advice", "advise"),
    ("principal", "principle"),
    ("accept", "except"),
    ("weather", "whether"),
    ("passed", "past"),
    ("threw", "through"),
    ("by", "buy"),
    ("know", "now"),
    ("lead", "led"),
    ("breath", "breathe"),
    ("form", "from"),
    ("this", "these"),
    ("that", "those"),
    ("much", "many"),
    ("less", "fewer"),
    ("a", "an"),
    ("who", "whom"),
    ("as", "like"),
    ("another", "other"),
    ("live", "life"),
    ("rise", "raise"),
    ("economic", "economy"),
    ("different", "difference"),
    ("important", "importance"),
    ("death", "dead"),
    ("success", "succeed"),
    ("safe", "safety"),
    ("political", "politics"),
    ("analysis", "analyses"),
)
_PREPOSITIONS = (
    "in",
    "on",
    "at",
    "for",
    "to",
    "of",
    "with",
    "by",
    "from",
    "about",
    "into",
    "over",
    "between",
    "during",
)
_DETERMINERS = _words("the a an this that these those his her its their our my your each every some any no")
_MODALS = _words("will would can could should must may might to")
_AUXILIARIES = _words("is are was were has have had do does did be been will would can could should")
_SUBJECTS = {"he": "him", "she": "her", "they": "them", "we": "us", "i": "me", "who": "whom"}
_OBJECTS = {"him": "he", "them": "they", "us": "we", "me": "i", "himself": "hisself", "themselves": "theirselves"}
_FUNCTION = _DETERMINERS | _MODALS | _AUXILIARIES | set(_PREPOSITIONS) | _words("and or but if that which who not as")
_COMPARATIVES = _words(
    "better worse bigger smaller larger higher lower older younger easier harder faster slower stronger weaker longer "
    "shorter earlier later greater richer poorer cheaper safer cleaner closer warmer colder"
)
_SUPERLATIVES = _words(
    "best worst biggest smallest largest highest lowest oldest youngest easiest hardest fastest strongest longest "
    "shortest earliest latest greatest richest poorest cheapest closest"
)
_POSITIVES = {
    "better": "gooder",
    "worse": "badder",
    "best": "goodest",
    "worst": "baddest",
    "bigger": "more big",
    "larger": "more large",
    "higher": "more high",
    "older": "more old",
    "easier": "more easy",
    "faster": "more fast",
    "stronger": "more strong",
    "longer": "more long",
    "cheaper": "more cheap",
    "largest": "most large",
    "biggest": "most big",
    "highest": "most high",
}


@dataclass(slots=True)
class Piece:
    gap: str
    text: str
    bad: bool = False

    @property
    def low(self) -> str:
        return self.text.lower()

    @property
    def word(self) -> bool:
        return self.text[0].isalpha()


Pieces = list[Piece]


@dataclass(slots=True)
class Lexicon:
    """What the faults need to know about words, counted in good sentences."""

    counts: Counter[str] = field(default_factory=Counter)
    #: form -> (base, third person, past, participle, -ing)
    verbs: dict[str, tuple[str, str, str, str, str]] = field(default_factory=dict)
    plurals: dict[str, str] = field(default_factory=dict)
    singulars: dict[str, str] = field(default_factory=dict)
    adverbs: dict[str, str] = field(default_factory=dict)
    adjectives: dict[str, str] = field(default_factory=dict)
    #: content words by their last two letters, for replacement by a stray word of the same kind
    content: dict[str, list[str]] = field(default_factory=dict)
    foreign: list[str] = field(default_factory=list)


def split_pieces(text: str) -> Pieces:
    return [Piece(gap, word) for gap, word in _PIECE.findall(text)]


def join_pieces(pieces: Iterable[Piece]) -> tuple[str, list[list[int]]]:
    """Return the text and the character spans of the pieces marked as faulty; neighbours are one span."""
    text, spans, open_span = "", list[list[int]](), False
    for piece in pieces:
        gap = piece.gap if text else ""
        start = len(text) + len(gap)
        text += gap + piece.text
        if piece.bad and open_span:
            spans[-1][1] = len(text)
        elif piece.bad:
            spans.append([start, len(text)])
        open_span = piece.bad
    return text, spans


def _third_person(base: str) -> str:
    if base == "have":
        return "has"
    if base == "be":
        return "is"
    if base.endswith(("s", "x", "z", "ch", "sh", "o")):
        return base + "es"
    if base.endswith("y") and base[-2:-1] not in _VOWELS:
        return base[:-1] + "ies"
    return base + "s"


def _doubled(base: str) -> bool:
    return len(base) in (3, 4) and base[-1] not in "aeiouwxy" and base[-2] in _VOWELS and base[-3] not in _VOWELS


def _past(base: str) -> str:
    if base.endswith("e"):
        return base + "d"
    if base.endswith("y") and base[-2:-1] not in _VOWELS:
        return base[:-1] + "ied"
    return base + (base[-1] if _doubled(base) else "") + "ed"


def _ing(base: str) -> str:
    if base.endswith("e") and not base.endswith(("ee", "ye", "oe")) and len(base) > 2:
        return base[:-1] + "ing"
    return base + (base[-1] if _doubled(base) else "") + "ing"


def build_lexicon(sentences: Iterable[str], foreign: Sequence[str]) -> Lexicon:
    counts: Counter[str] = Counter()
    after_article: Counter[str] = Counter()
    lower: Counter[str] = Counter()
    for sentence in sentences:
        pieces = split_pieces(sentence)
        words = [piece.low for piece in pieces]
        counts.update(words)
        lower.update(piece.text for piece in pieces if piece.text.islower())
        after_article.update(second for first, second in pairwise(words) if first in ("a", "an"))
    lexicon = Lexicon(counts=counts, foreign=list(foreign))
    for entry in _IRREGULAR.replace("\n", "|").split("|"):
        base, past, participle = entry.split()
        lexicon.verbs[base] = (base, _third_person(base), past, participle, _ing(base))
    for word, count in counts.items():
        if count < 4 or len(word) < 3 or not word.isalpha() or word in _FUNCTION:
            continue
        forms = (word, _third_person(word), _past(word), _past(word), _ing(word))
        if word not in lexicon.verbs and all(counts[form] >= 4 for form in forms):
            lexicon.verbs[word] = forms
        plural = _third_person(word)
        if counts[plural] >= 3 and after_article[word] >= 2:
            lexicon.plurals[word], lexicon.singulars[plural] = plural, word
        if counts[word + "ly"] >= 3 and not word.endswith("ly"):
            lexicon.adverbs[word], lexicon.adjectives[word + "ly"] = word + "ly", word
        if len(word) > 4 and lower[word] > 5:
            lexicon.content.setdefault(word[-2:], []).append(word)
    return lexicon


def _set(piece: Piece, text: str) -> None:
    piece.text = text[:1].upper() + text[1:] if piece.text[:1].isupper() else text
    piece.bad = True


def _pick(pieces: Pieces, rng: random.Random, fits: Callable[[int], bool]) -> int | None:
    places = [i for i, piece in enumerate(pieces) if piece.word and not piece.bad and fits(i)]
    return rng.choice(places) if places else None


def _low(pieces: Pieces, i: int) -> str:
    return pieces[i].low if 0 <= i < len(pieces) else ""


def change_agreement(pieces: Pieces, rng: random.Random, lexicon: Lexicon) -> bool:
    swap = {
        "is": "are",
        "are": "is",
        "was": "were",
        "were": "was",
        "has": "have",
        "have": "has",
        "does": "do",
        "do": "does",
    }
    singular, plural = {"he", "she", "it", "who", "which"}, {"they", "we", "you", "i", "people"}
    by_third = {forms[1]: forms[0] for forms in lexicon.verbs.values()}

    def fits(i: int) -> bool:
        word, before = pieces[i].low, _low(pieces, i - 1)
        if word in swap:
            return not (word in ("have", "do") and (before in _MODALS or before in ("not", "")))
        if i and word in by_third:
            return before in singular or (pieces[i - 1].text[:1].isupper() and i > 1)
        return word in lexicon.verbs and before in plural

    i = _pick(pieces, rng, fits)
    if i is None:
        return False
    word = pieces[i].low
    _set(pieces[i], swap.get(word) or by_third.get(word) or lexicon.verbs[word][1])
    return True


def change_verb_form(pieces: Pieces, rng: random.Random, lexicon: Lexicon) -> bool:
    forms_of = {form: forms for forms in lexicon.verbs.values() for form in forms}

    def fits(i: int) -> bool:
        word, before = pieces[i].low, _low(pieces, i - 1)
        if word not in forms_of or word in _AUXILIARIES or i == 0:
            return False
        base, third, past, participle, ing = forms_of[word]
        if before in _MODALS or before in ("did", "didn't", "not", "don't", "doesn't", "can't", "cannot"):
            return word == base and not (before == "to" and base in lexicon.plurals)
        if before in ("has", "have", "had", "was", "were", "been", "being", "is", "are"):
            return word in (participle, ing)
        return before in ("he", "she", "they", "we", "i", "who", "it") and word in (past, third)

    i = _pick(pieces, rng, fits)
    if i is None:
        return False
    word, before = pieces[i].low, _low(pieces, i - 1)
    base, third, past, participle, ing = forms_of[word]
    if word == base:
        options = [third, past, ing]
    elif before in ("has", "have", "had"):
        options = [base, ing, past if past != participle else third]
    elif word == ing or (word == participle and before not in ("he", "she", "they", "we", "i", "who", "it")):
        options = [base, third]
    else:
        options = [
            ing,
            base if before not in ("they", "we", "i", "who") else ing,
            participle if participle != past else ing,
        ]
    options = [option for option in options if option != word]
    if not options:
        return False
    _set(pieces[i], rng.choice(options))
    return True


def overregularise(pieces: Pieces, rng: random.Random, lexicon: Lexicon) -> bool:
    pasts = {
        form: forms[0]
        for forms in lexicon.verbs.values()
        for form in forms[2:4]
        if not form.endswith("ed")
        and form not in ("be", "was", "been", "had", "did", "done", "come", "run", "left", "felt")
    }
    i = _pick(pieces, rng, lambda i: pieces[i].low in pasts or pieces[i].low in _IRREGULAR_NOUNS)
    if i is None:
        return False
    word = pieces[i].low
    _set(pieces[i], rng.choice(_IRREGULAR_NOUNS[word]) if word in _IRREGULAR_NOUNS else _past(pasts[word]))
    return True


def change_article(pieces: Pieces, rng: random.Random, lexicon: Lexicon) -> bool:
    kind = rng.random()
    if kind < 0.5:  # drop one

        def dropped(i: int) -> bool:
            word, after = pieces[i].low, _low(pieces, i + 1)
            return 0 < i < len(pieces) - 1 and (word in ("a", "an") or (word == "the" and after in lexicon.plurals))

        i = _pick(pieces, rng, dropped)
        if i is None:
            return False
        pieces[i + 1].bad = True
        del pieces[i]
        return True
    if kind < 0.75:  # exchange one
        i = _pick(
            pieces,
            rng,
            lambda i: (
                pieces[i].low in ("a", "an") or (pieces[i].low == "the" and _low(pieces, i + 1) in lexicon.singulars)
            ),
        )
        if i is None:
            return False
        word = pieces[i].low
        _set(pieces[i], "a" if word == "the" else "an" if word == "a" else "a")
        return True
    places = [  # add one
        i
        for i in range(1, len(pieces))
        if pieces[i].low in ("his", "her", "their", "it", "they", "he", "she", "this", "each", "every", "my", "our")
        or (
            pieces[i].text[:1].isupper()
            and pieces[i].text[1:].islower()
            and pieces[i - 1].low in ("of", "in", "with", "by", "from", "and")
        )
    ]
    if not places:
        return False
    pieces.insert(rng.choice(places), Piece(" ", rng.choice(("the", "a", "the")), True))
    return True


def change_preposition(pieces: Pieces, rng: random.Random, lexicon: Lexicon) -> bool:
    i = _pick(pieces, rng, lambda i: pieces[i].low in _PREPOSITIONS and 0 < i < len(pieces) - 2)
    if i is None:
        return False
    word = pieces[i].low
    others = [
        other for other in _PREPOSITIONS if other != word and {other, word} not in ({"to", "into"}, {"in", "during"})
    ]
    draw = rng.random()
    if draw < 0.2 and word in ("of", "to", "for", "with"):
        pieces[i + 1].bad = True
        del pieces[i]
    else:
        _set(pieces[i], rng.choice(others))
    return True


def add_preposition(pieces: Pieces, rng: random.Random, lexicon: Lexicon) -> bool:
    places = [
        i
        for i in range(1, len(pieces))
        if pieces[i].low in ("the", "a", "his", "her", "their", "it", "them", "him")
        and pieces[i - 1].word
        and pieces[i - 1].low not in _FUNCTION
    ]
    if not places:
        return False
    pieces.insert(rng.choice(places), Piece(" ", rng.choice(_PREPOSITIONS), True))
    return True


def swap_neighbours(pieces: Pieces, rng: random.Random, lexicon: Lexicon) -> bool:
    def fits(i: int) -> bool:
        if i + 1 >= len(pieces) or not pieces[i + 1].word or pieces[i + 1].bad:
            return False
        first, second = pieces[i].low, pieces[i + 1].low
        return first != second and (first in _FUNCTION) != (second in _FUNCTION) and "not" not in (first, second)

    i = _pick(pieces, rng, fits)
    if i is None:
        return False
    first, second = pieces[i], pieces[i + 1]
    first.text, second.text = second.text, first.text
    first.bad = second.bad = True
    return True


def move_word(pieces: Pieces, rng: random.Random, lexicon: Lexicon) -> bool:
    i = _pick(pieces, rng, lambda i: i > 0 and not pieces[i].text[:1].isupper())
    if i is None or len(pieces) < 8:
        return False
    moved = pieces.pop(i)
    target = i + rng.choice((-4, -3, -2, 2, 3, 4))
    if not 0 < target < len(pieces) - 1:
        return False
    moved.bad, moved.gap = True, " "
    pieces.insert(target, moved)
    return True


def drop_word(pieces: Pieces, rng: random.Random, lexicon: Lexicon) -> bool:
    """Drop a word that a sentence cannot do without: an auxiliary, infinitive `to`, `of`, a subject, a noun."""

    def fits(i: int) -> bool:
        if not 0 < i < len(pieces) - 1 or not pieces[i + 1].word:
            return False
        word, before = pieces[i].low, _low(pieces, i - 1)
        if word in _AUXILIARIES or word in ("to", "of", "than"):
            return True
        if word in _SUBJECTS:
            return _low(pieces, i + 1) in _AUXILIARIES
        return before in ("a", "an", "the", "of", "his", "their") and word in lexicon.plurals

    i = _pick(pieces, rng, fits)
    if i is None:
        return False
    pieces[i + 1].bad = True
    del pieces[i]
    return True


def repeat_word(pieces: Pieces, rng: random.Random, lexicon: Lexicon) -> bool:
    i = _pick(pieces, rng, lambda i: pieces[i].low not in ("had", "that", "very", "so"))
    if i is None:
        return False
    size = rng.choice((1, 1, 1, 2, 3))
    copy = [
        Piece(piece.gap or " ", piece.low if k == 0 else piece.text, True)
        for k, piece in enumerate(pieces[i : i + size])
    ]
    if not all(piece.word for piece in copy):
        copy = copy[:1]
    pieces[i + len(copy) : i + len(copy)] = copy
    return True


def misspell(pieces: Pieces, rng: random.Random, lexicon: Lexicon) -> bool:
    i = _pick(
        pieces,
        rng,
        lambda i: len(pieces[i].text) > 3 and pieces[i].text[1:].islower() and lexicon.counts[pieces[i].low] > 2,
    )
    if i is None:
        return False
    word = pieces[i].text
    for _ in range(8):
        k, draw = rng.randrange(1, len(word) - 1), rng.random()
        if draw < 0.25:
            new = word[:k] + word[k + 1 :]
        elif draw < 0.45:
            new = word[:k] + word[k + 1] + word[k] + word[k + 2 :]
        elif draw < 0.6:
            new = word[:k] + word[k] + word[k:]
        elif draw < 0.8 and word[k] in _VOWELS:
            new = word[:k] + rng.choice("aeiou") + word[k + 1 :]
        elif draw < 0.9:
            new = word[:k] + rng.choice("abcdefghijklmnoprstuvwy") + word[k + 1 :]
        else:
            new = word[:k] + rng.choice("aeilnorst") + word[k:]
        if lexicon.counts[new.lower()] == 0:
            _set(pieces[i], new)
            return True
    return False


def confuse(pieces: Pieces, rng: random.Random, lexicon: Lexicon) -> bool:
    sets = {word: [other for other in group if other != word] for group in _CONFUSIONS for word in group}
    uncertain = {"that", "who", "as", "less", "form", "live", "lead", "this", "by", "another"}
    i = _pick(pieces, rng, lambda i: pieces[i].low in sets and (pieces[i].low not in uncertain or rng.random() < 0.2))
    if i is None:
        return False
    _set(pieces[i], rng.choice(sets[pieces[i].low]))
    return True


def merge_words(pieces: Pieces, rng: random.Random, lexicon: Lexicon) -> bool:
    def fits(i: int) -> bool:
        return (
            i + 1 < len(pieces)
            and pieces[i + 1].word
            and pieces[i + 1].gap == " "
            and not lexicon.counts[pieces[i].low + pieces[i + 1].low]
        )

    i = _pick(pieces, rng, fits)
    if i is None:
        return False
    _set(pieces[i], pieces[i].text + pieces[i + 1].text)
    del pieces[i + 1]
    return True


def split_word(pieces: Pieces, rng: random.Random, lexicon: Lexicon) -> bool:
    i = _pick(pieces, rng, lambda i: len(pieces[i].text) > 6 and pieces[i].text.isalpha())
    if i is None:
        return False
    word = pieces[i].text
    k = rng.randrange(2, len(word) - 2)
    pieces[i : i + 1] = [Piece(pieces[i].gap, word[:k], True), Piece(" ", word[k:], True)]
    return True


def change_pronoun(pieces: Pieces, rng: random.Random, lexicon: Lexicon) -> bool:
    def fits(i: int) -> bool:
        word, after = pieces[i].low, _low(pieces, i + 1)
        if word in _SUBJECTS:
            return after in _AUXILIARIES or after in lexicon.verbs or after.endswith("ed")
        if word in _OBJECTS:
            return i > 0
        return word in ("his", "their", "her") and after in lexicon.plurals

    i = _pick(pieces, rng, fits)
    if i is None:
        return False
    word = pieces[i].low
    if word in ("his", "their", "her") and word not in _OBJECTS:
        _set(pieces[i], {"his": "him", "their": "them", "her": "she"}[word])
    else:
        _set(pieces[i], _SUBJECTS.get(word) or _OBJECTS[word])
    return True


def change_comparison(pieces: Pieces, rng: random.Random, lexicon: Lexicon) -> bool:
    i = _pick(pieces, rng, lambda i: pieces[i].low in _COMPARATIVES or pieces[i].low in _SUPERLATIVES)
    if i is None:
        return False
    word = pieces[i].low
    if word in _POSITIVES and rng.random() < 0.5:
        first, *rest = _POSITIVES[word].split()
        gap = pieces[i].gap
        pieces[i : i + 1] = [Piece(gap, first, True), *(Piece(" ", text, True) for text in rest)]
    else:
        pieces[i].bad = True
        pieces.insert(i, Piece(pieces[i].gap, "more" if word in _COMPARATIVES else "most", True))
        pieces[i + 1].gap = " "
    return True


def change_number(pieces: Pieces, rng: random.Random, lexicon: Lexicon) -> bool:
    one = {"a", "an", "this", "each", "every", "another", "one"}
    many = {
        "these",
        "those",
        "many",
        "several",
        "few",
        "two",
        "three",
        "four",
        "five",
        "both",
        "various",
        "are",
        "were",
    }

    def fits(i: int) -> bool:
        word, before = pieces[i].low, _low(pieces, i - 1)
        return (before in one and word in lexicon.plurals) or (before in many and word in lexicon.singulars)

    i = _pick(pieces, rng, fits)
    if i is None:
        i = _pick(pieces, rng, lambda i: pieces[i].low in _MASS)
        if i is None:
            return False
        _set(pieces[i], pieces[i].low + ("es" if pieces[i].low.endswith("s") else "s"))
        return True
    word = pieces[i].low
    _set(pieces[i], lexicon.plurals[word] if _low(pieces, i - 1) in one else lexicon.singulars[word])
    return True


def change_adverb(pieces: Pieces, rng: random.Random, lexicon: Lexicon) -> bool:
    def fits(i: int) -> bool:
        word, before, after = pieces[i].low, _low(pieces, i - 1), _low(pieces, i + 1)
        if word in lexicon.adjectives:
            return i > 0
        return word in lexicon.adverbs and before in _DETERMINERS and after in lexicon.plurals

    i = _pick(pieces, rng, fits)
    if i is None:
        return False
    word = pieces[i].low
    _set(pieces[i], lexicon.adjectives.get(word) or lexicon.adverbs[word])
    return True


def double_negative(pieces: Pieces, rng: random.Random, lexicon: Lexicon) -> bool:
    negative = {"not", "never", "didn't", "don't", "doesn't", "wasn't", "won't", "can't", "isn't"}
    places = [i for i, piece in enumerate(pieces) if piece.low in negative]
    if places:
        i = _pick(
            pieces, rng, lambda i: i > places[0] and pieces[i].low in ("any", "a", "an", "anything", "anyone", "ever")
        )
        if i is not None:
            change = {"anything": "nothing", "anyone": "no one", "ever": "never"}
            _set(pieces[i], change.get(pieces[i].low, "no"))
            return True
    i = _pick(
        pieces,
        rng,
        lambda i: pieces[i].low in ("did", "does", "do", "could", "would", "should") and _low(pieces, i + 1) == "not",
    )
    if i is None:
        return False
    pieces[i].bad = pieces[i + 1].bad = True
    pieces[i + 1].text = rng.choice(("no", "not not", "of"))
    return True


def change_punctuation(pieces: Pieces, rng: random.Random, lexicon: Lexicon) -> bool:
    draw = rng.random()
    if draw < 0.5:  # an apostrophe goes
        i = _pick(pieces, rng, lambda i: bool(re.fullmatch(r"[A-Za-z]+['’](?:s|t|re|ve|ll|m|d)", pieces[i].text)))
        if i is None:
            return False
        _set(pieces[i], re.sub("['’]", "", pieces[i].text))
        return True
    if draw < 0.8:  # a comma where none may be: between determiner and noun, preposition and object
        i = _pick(
            pieces,
            rng,
            lambda i: (
                (pieces[i].low in _DETERMINERS or pieces[i].low in _PREPOSITIONS)
                and i + 2 < len(pieces)
                and pieces[i + 1].word
            ),
        )
        if i is None:
            return False
        pieces.insert(i + 1, Piece("", ",", True))
        return True
    i = rng.randrange(1, len(pieces))
    pieces.insert(i, Piece("", rng.choice((",", ";", ".", ",,", "?")), True))
    return True


def shuffle_window(pieces: Pieces, rng: random.Random, lexicon: Lexicon) -> bool:
    size = rng.randrange(4, 9)
    if len(pieces) < size + 2:
        return False
    start = rng.randrange(0, len(pieces) - size)
    window = pieces[start : start + size]
    texts = [piece.text for piece in window]
    rng.shuffle(texts)
    for piece, text in zip(window, texts, strict=True):
        piece.bad = piece.bad or piece.text != text
        piece.text = text
        piece.gap = piece.gap or " "
    return True


def scramble(pieces: Pieces, rng: random.Random, lexicon: Lexicon) -> bool:
    body = pieces[:-1]
    texts = [piece.text for piece in body]
    rng.shuffle(texts)
    for piece, text in zip(body, texts, strict=True):
        piece.text, piece.bad, piece.gap = text, True, piece.gap or " "
    return len(body) > 4


def truncate(pieces: Pieces, rng: random.Random, lexicon: Lexicon) -> bool:
    places = [
        i
        for i in range(4, len(pieces) - 3)
        if pieces[i].low in _FUNCTION and pieces[i].low not in ("that", "not", "no", "over")
    ]
    if not places:
        return False
    i = rng.choice(places)
    end = pieces[-1]
    del pieces[i + 1 :]
    pieces[i].bad = True
    if rng.random() < 0.4 and not end.word:
        pieces.append(Piece("", end.text))
    return True


def loop(pieces: Pieces, rng: random.Random, lexicon: Lexicon) -> bool:
    """Repeat a phrase as degenerate generation does."""
    if len(pieces) < 8:
        return False
    size = rng.randrange(2, 6)
    start = rng.randrange(1, len(pieces) - size)
    phrase = pieces[start : start + size]
    times = rng.choice((1, 1, 2, 3))
    joint = rng.choice((None, None, "and", ","))
    copies: Pieces = []
    for _ in range(times):
        if joint:
            copies.append(Piece("" if joint == "," else " ", joint, True))
        copies += [Piece(piece.gap or (" " if piece.word else ""), piece.text, True) for piece in phrase]
    pieces[start + size : start + size] = copies
    return True


def leave_foreign(pieces: Pieces, rng: random.Random, lexicon: Lexicon) -> bool:
    """Replace one to three content words by words of another language, as a translator that gave up."""
    places = [
        i
        for i, piece in enumerate(pieces)
        if piece.word and piece.low not in _FUNCTION and len(piece.text) > 3 and not piece.bad
    ]
    if not places or not lexicon.foreign:
        return False
    for i in rng.sample(places, min(len(places), rng.choice((1, 1, 2, 3)))):
        _set(pieces[i], rng.choice(lexicon.foreign))
    return True


def place_stray_words(pieces: Pieces, rng: random.Random, lexicon: Lexicon) -> bool:
    """Replace content words by others of the same ending: grammatical perhaps, but not what anyone would write."""
    places = [
        i
        for i, piece in enumerate(pieces)
        if piece.text.islower() and piece.low not in _FUNCTION and len(piece.text) > 4 and not piece.bad
    ]
    if not places:
        return False
    for i in rng.sample(places, min(len(places), rng.choice((1, 2, 2, 3)))):
        pieces[i].text = rng.choice(lexicon.content.get(pieces[i].low[-2:]) or ["thing"])
        pieces[i].bad = True
    return True


def write_telegram(pieces: Pieces, rng: random.Random, lexicon: Lexicon) -> bool:
    """Drop all articles, or most function words."""
    drop = {"a", "an", "the"} if rng.random() < 0.6 else _FUNCTION
    gone = [i for i, piece in enumerate(pieces) if piece.low in drop and i + 1 < len(pieces)]
    if len(gone) < 2:
        return False
    for i in reversed(gone):
        pieces[i + 1].bad = True
        del pieces[i]
    return True


def translate_literally(pieces: Pieces, rng: random.Random, lexicon: Lexicon) -> bool:
    """Word order and function words of another language: verb last, adjective after noun, `of the` for the genitive."""
    changes = 0
    draw = rng.random()
    if draw < 0.35:
        i = _pick(pieces, rng, lambda i: pieces[i].low in _AUXILIARIES and i + 4 < len(pieces) and pieces[i + 1].word)
        if i is not None:
            end = next((k for k in range(i + 1, len(pieces)) if not pieces[k].word), len(pieces))
            if end - i > 2:
                moved = pieces.pop(i)
                moved.bad = True
                pieces.insert(end - 1, moved)
                changes += 1
    elif draw < 0.7:
        for i in range(1, len(pieces) - 1):
            if pieces[i].low in lexicon.adverbs and pieces[i + 1].low in lexicon.plurals and not pieces[i].bad:
                pieces[i].text, pieces[i + 1].text = pieces[i + 1].text, pieces[i].text
                pieces[i].bad = pieces[i + 1].bad = True
                changes += 1
    else:
        i = _pick(
            pieces,
            rng,
            lambda i: (
                bool(re.fullmatch(r"[A-Za-z]+['’]s", pieces[i].text)) and i + 1 < len(pieces) and pieces[i + 1].word
            ),
        )
        if i is not None:
            owner, owned = pieces[i].text[:-2], pieces[i + 1].text
            pieces[i : i + 2] = [
                Piece(pieces[i].gap, t, True) if k == 0 else Piece(" ", t, True)
                for k, t in enumerate(("the", owned, "of", "the", owner))
            ]
            changes += 1
    return changes > 0


@dataclass(frozen=True, slots=True)
class Fault:
    edit: Callable[[Pieces, random.Random, Lexicon], bool]
    #: how often it is drawn
    weight: float
    #: how acceptable a sentence of twenty words remains with this fault, 0 to 1
    remains: float


FAULTS: dict[str, Fault] = {
    "agreement": Fault(change_agreement, 7, 0.3),
    "verb form": Fault(change_verb_form, 6, 0.25),
    "over-regular form": Fault(overregularise, 3, 0.3),
    "article": Fault(change_article, 4, 0.4),
    "preposition": Fault(change_preposition, 2.5, 0.4),
    "needless preposition": Fault(add_preposition, 1.5, 0.35),
    "neighbours swapped": Fault(swap_neighbours, 1.5, 0.2),
    "word moved": Fault(move_word, 1.5, 0.2),
    "missing word": Fault(drop_word, 3, 0.3),
    "repeated word": Fault(repeat_word, 1.2, 0.35),
    "spelling": Fault(misspell, 2.5, 0.45),
    "confused words": Fault(confuse, 2.5, 0.4),
    "merged words": Fault(merge_words, 0.8, 0.45),
    "split word": Fault(split_word, 0.8, 0.4),
    "pronoun": Fault(change_pronoun, 5, 0.3),
    "comparison": Fault(change_comparison, 9, 0.3),
    "number": Fault(change_number, 5, 0.35),
    "adverb": Fault(change_adverb, 6, 0.4),
    "negation": Fault(double_negative, 4, 0.35),
    "punctuation": Fault(change_punctuation, 2.5, 0.6),
    "shuffled words": Fault(shuffle_window, 1.5, 0.08),
    "scrambled": Fault(scramble, 0.4, 0.02),
    "cut off": Fault(truncate, 1.2, 0.3),
    "loop": Fault(loop, 1.2, 0.15),
    "foreign words": Fault(leave_foreign, 0.8, 0.2),
    "stray words": Fault(place_stray_words, 1.5, 0.15),
    "telegram": Fault(write_telegram, 1.5, 0.2),
    "literal translation": Fault(translate_literally, 5, 0.25),
}


def damage(
    text: str, count: int, rng: random.Random, lexicon: Lexicon
) -> tuple[str, list[list[int]], float, list[str]] | None:
    """Return the sentence with `count` faults, their spans, how acceptable it remains, and the names of the faults."""
    pieces = split_pieces(text)
    names, remains = list[str](), 1.0
    for _ in range(count * 6):
        if len(names) == count:
            break
        name = rng.choices(list(FAULTS), [fault.weight for fault in FAULTS.values()])[0]
        before = [Piece(piece.gap, piece.text, piece.bad) for piece in pieces]
        if not FAULTS[name].edit(pieces, rng, lexicon) or join_pieces(pieces)[0] == join_pieces(before)[0]:
            pieces = before
            continue
        names.append(name)
        remains *= FAULTS[name].remains if len(names) == 1 else 0.6
    new, spans = join_pieces(pieces)
    if len(names) < count or not spans or new == text:
        return None
    if len(pieces) > 20 and remains > 0.1:  # one slip weighs less in a long sentence
        remains = min(0.7, remains * (1 + 0.01 * (len(pieces) - 20)))
    return new, spans, max(0.02, remains), names
