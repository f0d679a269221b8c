"""Faults of grammar and wording in good English sentences, for training data of fluency.

    lexicon = build_lexicon(good_sentences, foreign_words)
    damaged = damage("She has gone home.", 1, random.Random(0), lexicon)
    damaged.text, damaged.spans, damaged.remains, damaged.names

A fault is an edit that a corrector would undo. It is marked on the new words; a missing word is marked on the word that
follows the gap, as in the MultiGED annotations.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from metrist.data.faults.sentence import (
    ARTICLES,
    VOWELS,
    Lexicon,
    SentenceEditor,
    form_past,
    list_function_words,
    list_words,
    map_arrows,
    map_pairs,
)
from metrist.data.faults.text import Edit, EditableText, Span, apply_edits, find_changes, read_lists

_PRONOUNS = ("he", "she", "they", "we", "i", "who", "it")
#: Words after which a verb has its base form, and those after which it is a participle.
_BEFORE_BASE = ("did", "didn't", "not", "don't", "doesn't", "can't", "cannot")
_BEFORE_PARTICIPLE = ("has", "have", "had", "was", "were", "been", "being", "is", "are")
#: The most acceptable a long sentence can be with a fault, the least, and the words of a sentence that is not long.
_MOST_REMAINS, _LEAST_REMAINS, _LONG = 0.7, 0.02, 20

Proposer = Callable[[SentenceEditor], Edit | None]


# ---- Forms of words


def change_agreement(sentence: SentenceEditor) -> Edit | None:
    """Give a verb the form that does not agree with its subject."""
    lexicon = sentence.lexicon
    swap = {word: other for pair in map_pairs("agreement").items() for word, other in (pair, pair[::-1])}

    def fits(at: int) -> bool:
        word, before = sentence[at], sentence[at - 1]
        if word in swap:
            return not (word in ("have", "do") and (before in list_words("modals") or before in ("not", "")))
        if at and word in lexicon.thirds:
            return before in ("he", "she", "it", "who", "which") or (at > 1 and sentence.get(at - 1)[:1].isupper())
        return word in lexicon.verbs and before in ("they", "we", "you", "i", "people")

    def choose(at: int) -> str:
        word = sentence[at]
        return swap.get(word) or lexicon.thirds.get(word) or lexicon.verbs[word][1]

    return sentence.exchange(fits, choose)


def change_verb_form(sentence: SentenceEditor) -> Edit | None:
    """Give a verb a form that its auxiliary or subject does not allow."""

    lexicon = sentence.lexicon

    def fits(at: int) -> bool:
        word, before = sentence[at], sentence[at - 1]
        if word not in lexicon.forms or word in list_words("auxiliaries") or not at:
            return False
        base, third, past, participle, ing = lexicon.forms[word]
        if before in list_words("modals") or before in _BEFORE_BASE:
            return word == base and not (before == "to" and base in lexicon.plurals)
        if before in _BEFORE_PARTICIPLE:
            return word in (participle, ing)
        return before in _PRONOUNS and word in (past, third)

    def choose(at: int) -> str | None:
        word, before = sentence[at], sentence[at - 1]
        base, third, past, participle, ing = lexicon.forms[word]
        if word == base:
            options = [third, past, ing]
        elif before in ("has", "have", "had"):
            options = [base, ing, past if past != participle else third]
        elif word == ing or (word == participle and before not in _PRONOUNS):
            options = [base, third]
        else:
            plural = before in ("they", "we", "i", "who")
            options = [ing, ing if plural else base, participle if participle != past else ing]
        options = [option for option in options if option != word]
        return sentence.rng.choice(options) if options else None

    return sentence.exchange(fits, choose)


def overregularise(sentence: SentenceEditor) -> Edit | None:
    """`goed`, `childs`."""
    lexicon = sentence.lexicon
    nouns = map_arrows("irregular_nouns")

    def choose(at: int) -> str:
        word = sentence[at]
        return sentence.rng.choice(nouns[word].split()) if word in nouns else form_past(lexicon.irregular[word])

    return sentence.exchange(lambda at: sentence[at] in lexicon.irregular or sentence[at] in nouns, choose)


def change_comparison(sentence: SentenceEditor) -> Edit | None:
    """`more better`, `gooder`."""
    comparatives, wrong = list_words("comparatives"), map_arrows("wrong_comparisons")

    def choose(at: int) -> str:
        word = sentence[at]
        if word in wrong and sentence.rng.random() < 0.5:
            return wrong[word]
        return f"{'more' if word in comparatives else 'most'} {word}"

    return sentence.exchange(lambda at: sentence[at] in comparatives | list_words("superlatives"), choose)


def change_number(sentence: SentenceEditor) -> Edit | None:
    """A plural after `a`, a singular after `many`, a plural of a word that has none."""
    lexicon = sentence.lexicon
    one = {"a", "an", "this", "each", "every", "another", "one"}
    many = {"these", "those", "many", "several", "few", "two", "three", "four", "five", "both", "various"}
    many |= {"are", "were"}

    def fits(at: int) -> bool:
        word, before = sentence[at], sentence[at - 1]
        return (before in one and word in lexicon.plurals) or (before in many and word in lexicon.singulars)

    def choose(at: int) -> str:
        word = sentence[at]
        return lexicon.plurals[word] if sentence[at - 1] in one else lexicon.singulars[word]

    if sentence.find(fits):
        return sentence.exchange(fits, choose)
    return sentence.exchange(
        lambda at: sentence[at] in list_words("mass_nouns"),
        lambda at: sentence[at] + ("es" if sentence[at].endswith("s") else "s"),
    )


def change_adverb(sentence: SentenceEditor) -> Edit | None:
    """An adjective for an adverb, or the other way round."""

    lexicon = sentence.lexicon

    def fits(at: int) -> bool:
        word = sentence[at]
        if word in lexicon.adjectives:
            return at > 0
        return (
            word in lexicon.adverbs
            and sentence[at - 1] in list_words("determiners")
            and sentence[at + 1] in lexicon.plurals
        )

    return sentence.exchange(fits, lambda at: lexicon.adjectives.get(sentence[at]) or lexicon.adverbs[sentence[at]])


def change_pronoun(sentence: SentenceEditor) -> Edit | None:
    """`him is`, `for they`, `them car`."""
    lexicon = sentence.lexicon
    subjects, objects = map_pairs("subjects"), map_pairs("objects")
    owners = {"his": "him", "their": "them", "her": "she"}

    def fits(at: int) -> bool:
        word, after = sentence[at], sentence[at + 1]
        if word in subjects:
            return after in list_words("auxiliaries") or after in lexicon.verbs or after.endswith("ed")
        return at > 0 if word in objects else word in owners and after in lexicon.plurals

    def choose(at: int) -> str:
        word = sentence[at]
        return subjects.get(word) or objects.get(word) or owners[word]

    return sentence.exchange(fits, choose)


def misspell(sentence: SentenceEditor) -> Edit | None:
    """Misspell a known word so that no other known word results."""

    lexicon, rng = sentence.lexicon, sentence.rng

    def change(word: str) -> str:
        k, draw = rng.randrange(1, len(word) - 1), rng.random()
        if draw < 0.25:
            return word[:k] + word[k + 1 :]
        if draw < 0.45:
            return word[:k] + word[k + 1] + word[k] + word[k + 2 :]
        if draw < 0.6:
            return word[:k] + word[k] + word[k:]
        if draw < 0.8 and word[k] in VOWELS:
            return word[:k] + rng.choice("aeiou") + word[k + 1 :]
        if draw < 0.9:
            return word[:k] + rng.choice("abcdefghijklmnoprstuvwy") + word[k + 1 :]
        return word[:k] + rng.choice("aeilnorst") + word[k:]

    def fits(at: int) -> bool:
        word = sentence.get(at)
        return len(word) > 3 and word[1:].islower() and lexicon.counts[word.lower()] > 2

    def choose(at: int) -> str | None:
        changed = (change(sentence.get(at)) for _ in range(8))
        return next((new for new in changed if not lexicon.counts[new.lower()]), None)

    return sentence.exchange(fits, choose)


def confuse(sentence: SentenceEditor) -> Edit | None:
    """`there` for `their`."""
    groups = [group.split() for group in read_lists()["fluency"]["confusions"]]
    others = {word: [other for other in group if other != word] for group in groups for word in group}
    uncertain = {"that", "who", "as", "less", "form", "live", "lead", "this", "by", "another"}
    return sentence.exchange(
        lambda at: sentence[at] in others and (sentence[at] not in uncertain or sentence.rng.random() < 0.2),
        lambda at: sentence.rng.choice(others[sentence[at]]),
    )


# ---- Small words and marks


def change_article(sentence: SentenceEditor) -> Edit | None:
    """Drop, exchange or add an article."""
    lexicon = sentence.lexicon
    draw = sentence.rng.random()
    if draw < 0.5:

        def is_needed(at: int) -> bool:
            needed = sentence[at] in ARTICLES or (sentence[at] == "the" and sentence[at + 1] in lexicon.plurals)
            return 0 < at < len(sentence) - 1 and needed

        at = sentence.pick(is_needed)
        return None if at is None else sentence.drop(at)
    if draw < 0.75:
        return sentence.exchange(
            lambda at: sentence[at] in ARTICLES or (sentence[at] == "the" and sentence[at + 1] in lexicon.singulars),
            lambda at: "an" if sentence[at] == "a" else "a",
        )

    def needs_none(at: int) -> bool:
        owned = ("his", "her", "their", "it", "they", "he", "she", "this", "each", "every", "my", "our")
        name = sentence.get(at)[:1].isupper() and sentence.get(at)[1:].islower()
        return at > 0 and (
            sentence[at] in owned or (name and sentence[at - 1] in ("of", "in", "with", "by", "from", "and"))
        )

    at = sentence.pick(needs_none)
    return None if at is None else sentence.insert(at, f"{sentence.rng.choice(('the', 'a', 'the'))} ")


def change_preposition(sentence: SentenceEditor) -> Edit | None:
    """Exchange a preposition, or leave it out."""
    prepositions = read_lists()["fluency"]["prepositions"].split()
    at = sentence.pick(lambda at: sentence[at] in prepositions and 0 < at < len(sentence) - 2)
    if at is None:
        return None
    word = sentence[at]
    if sentence.rng.random() < 0.2 and word in ("of", "to", "for", "with"):
        return sentence.drop(at)
    alike = ({"to", "into"}, {"in", "during"})
    return sentence.change(
        at, sentence.rng.choice([other for other in prepositions if other != word and {other, word} not in alike])
    )


def add_preposition(sentence: SentenceEditor) -> Edit | None:
    """Put a preposition before an object."""
    objects = ("the", "a", "his", "her", "their", "it", "them", "him")

    def fits(at: int) -> bool:
        return sentence[at] in objects and sentence.is_word(at - 1) and sentence[at - 1] not in list_function_words()

    at = sentence.pick(fits)
    return None if at is None else sentence.insert(at, f"{sentence.rng.choice(sorted(list_words('prepositions')))} ")


def double_negative(sentence: SentenceEditor) -> Edit | None:
    """`did not see nothing`, `did no see`."""
    negative = {"not", "never", "didn't", "don't", "doesn't", "wasn't", "won't", "can't", "isn't"}
    first = next((at for at in range(len(sentence)) if sentence[at] in negative), None)
    if first is not None:
        after = {"any": "no", "a": "no", "an": "no", "anything": "nothing", "anyone": "no one", "ever": "never"}
        if sentence.find(lambda at: at > first and sentence[at] in after):
            return sentence.exchange(lambda at: at > first and sentence[at] in after, lambda at: after[sentence[at]])
    verbs = ("did", "does", "do", "could", "would", "should")
    at = sentence.pick(lambda at: sentence[at] in verbs and sentence[at + 1] == "not")
    return None if at is None else sentence.change(at + 1, sentence.rng.choice(("no", "not not", "of")))


def change_punctuation(sentence: SentenceEditor) -> Edit | None:
    """Drop an apostrophe, or put a mark where none may be."""
    draw = sentence.rng.random()
    if draw < 0.5:
        return sentence.exchange(
            lambda at: bool(re.fullmatch(r"[A-Za-z]+['’](?:s|t|re|ve|ll|m|d)", sentence.get(at))),
            lambda at: re.sub("['’]", "", sentence.get(at)),
        )
    if draw < 0.8:  # Between determiner and noun, or preposition and object.
        small = list_words("determiners") | list_words("prepositions")
        at = sentence.pick(lambda at: sentence[at] in small and at + 2 < len(sentence) and sentence.is_word(at + 1))
        return None if at is None else sentence.edit(at, at + 1, f"{sentence.get(at)},")
    at = sentence.pick(lambda at: at < len(sentence) - 1)
    return (
        None
        if at is None
        else sentence.edit(at, at + 1, sentence.get(at) + sentence.rng.choice((",", ";", ".", ",,", "?")))
    )


# ---- Order, gaps and repetitions


def swap_neighbours(sentence: SentenceEditor) -> Edit | None:
    def fits(at: int) -> bool:
        first, second = sentence[at], sentence[at + 1]
        apart = (first in list_function_words()) != (second in list_function_words())
        return sentence.is_word(at + 1) and first != second and apart and "not" not in (first, second)

    at = sentence.pick(fits)
    return None if at is None else sentence.edit(at, at + 2, f"{sentence.get(at + 1)} {sentence.get(at)}")


def move_word(sentence: SentenceEditor) -> Edit | None:
    at = sentence.pick(lambda at: at > 0 and not sentence.get(at)[:1].isupper())
    if at is None or len(sentence) < 8:
        return None
    target = at + sentence.rng.choice((-4, -3, -2, 2, 3, 4))
    if not 0 < target < len(sentence) - 1:
        return None
    first, last = min(at, target), max(at, target)
    window = sentence.texts(first, last + 1)
    moved = [*window[1:], window[0]] if target > at else [window[-1], *window[:-1]]
    return sentence.edit(first, last + 1, " ".join(moved))


def drop_word(sentence: SentenceEditor) -> Edit | None:
    """Drop a word that a sentence cannot do without: an auxiliary, infinitive `to`, `of`, a subject, a noun."""

    def fits(at: int) -> bool:
        if not 0 < at < len(sentence) - 1 or not sentence.is_word(at + 1):
            return False
        word = sentence[at]
        if word in list_words("auxiliaries") or word in ("to", "of", "than"):
            return True
        if word in map_pairs("subjects"):
            return sentence[at + 1] in list_words("auxiliaries")
        return sentence[at - 1] in ("a", "an", "the", "of", "his", "their") and word in sentence.lexicon.plurals

    at = sentence.pick(fits)
    return None if at is None else sentence.drop(at)


def repeat_word(sentence: SentenceEditor) -> Edit | None:
    at = sentence.pick(lambda at: sentence[at] not in ("had", "that", "very", "so"))
    if at is None:
        return None
    last = at + sentence.rng.choice((1, 1, 1, 2, 3))
    if not all(sentence.is_word(place) for place in range(at, last)):
        last = at + 1
    words = sentence.texts(at, last)
    return sentence.edit(at, last, " ".join([*words, words[0].lower(), *words[1:]]))


def merge_words(sentence: SentenceEditor) -> Edit | None:
    at = sentence.pick(
        lambda at: sentence.is_word(at + 1) and not sentence.lexicon.counts[sentence[at] + sentence[at + 1]]
    )
    return None if at is None else sentence.edit(at, at + 2, "".join(sentence.texts(at, at + 2)))


def split_word(sentence: SentenceEditor) -> Edit | None:
    at = sentence.pick(lambda at: len(sentence[at]) > 6 and sentence[at].isalpha())
    if at is None:
        return None
    place = sentence.rng.randrange(2, len(sentence[at]) - 2)
    return sentence.edit(at, at + 1, f"{sentence.get(at)[:place]} {sentence.get(at)[place:]}")


def shuffle_window(sentence: SentenceEditor) -> Edit | None:
    size = sentence.rng.randrange(4, 9)
    if len(sentence) < size + 2:
        return None
    first = sentence.rng.randrange(0, len(sentence) - size)
    return _shuffle(sentence, first, first + size)


def scramble(sentence: SentenceEditor) -> Edit | None:
    return _shuffle(sentence, 0, len(sentence) - 1) if len(sentence) > 5 else None


def _shuffle(sentence: SentenceEditor, first: int, last: int) -> Edit | None:
    texts = sentence.texts(first, last)
    sentence.rng.shuffle(texts)
    return sentence.edit(first, last, " ".join(texts))


def truncate(sentence: SentenceEditor) -> Edit | None:
    """Break off after a small word."""
    places = [
        at
        for at in range(4, len(sentence) - 3)
        if sentence[at] in list_function_words() and sentence[at] not in ("that", "not", "no", "over")
    ]
    if not places:
        return None
    at = sentence.rng.choice(places)
    end = sentence.get(len(sentence) - 1)
    stop = end if sentence.rng.random() < 0.4 and not end[0].isalpha() else ""
    return sentence.edit(at, len(sentence), sentence.get(at) + stop)


def loop(sentence: SentenceEditor) -> Edit | None:
    """Repeat a phrase as degenerate generation does."""
    rng = sentence.rng
    if len(sentence) < 8:
        return None
    size = rng.randrange(2, 6)
    first = rng.randrange(1, len(sentence) - size)
    tokens = sentence.tokens
    phrase = sentence.text.output[tokens[first].start() : tokens[first + size - 1].end()]
    joint = rng.choice((" ", " ", " and ", ", "))
    return sentence.edit(first, first + size, joint.join([phrase] * (1 + rng.choice((1, 1, 2, 3)))))


# ---- Words that do not belong here


def leave_foreign(sentence: SentenceEditor) -> Edit | None:
    """Replace a content word by one of another language, as a translator that gave up."""
    lexicon = sentence.lexicon
    return sentence.exchange(
        lambda at: bool(lexicon.foreign) and sentence[at] not in list_function_words() and len(sentence[at]) > 3,
        lambda _: sentence.rng.choice(lexicon.foreign),
    )


def place_stray_word(sentence: SentenceEditor) -> Edit | None:
    """Replace a content word by another of the same ending: grammatical perhaps, but not what anyone would write."""
    return sentence.exchange(
        lambda at: sentence.get(at).islower() and sentence[at] not in list_function_words() and len(sentence[at]) > 4,
        lambda at: sentence.rng.choice(sentence.lexicon.content.get(sentence[at][-2:]) or ["thing"]),
    )


def write_telegram(sentence: SentenceEditor) -> Edit | None:
    """Drop all articles, or most function words."""
    drop = {"a", "an", "the"} if sentence.rng.random() < 0.6 else list_function_words()
    pieces: list[str] = []
    for at, token in enumerate(sentence.tokens):
        if sentence[at] not in drop or at + 1 == len(sentence):
            gap = sentence.text.output[sentence.tokens[at - 1].end() : token.start()] if pieces else ""
            pieces.append(gap + token[0])
    return sentence.edit(0, len(sentence), "".join(pieces)) if len(sentence) - len(pieces) > 1 else None


def translate_literally(sentence: SentenceEditor) -> Edit | None:
    """Word order and function words of another language: verb last, adjective after noun, `of the` for the genitive."""
    lexicon = sentence.lexicon
    draw = sentence.rng.random()
    if draw < 0.35:
        at = sentence.pick(
            lambda at: sentence[at] in list_words("auxiliaries") and all(map(sentence.is_word, range(at + 1, at + 4)))
        )
        if at is None:
            return None
        end = next((place for place in range(at + 1, len(sentence)) if not sentence.is_word(place)), len(sentence))
        return sentence.edit(at, end, " ".join([*sentence.texts(at + 1, end), sentence.get(at)]))
    if draw < 0.7:
        at = sentence.pick(lambda at: sentence[at] in lexicon.adverbs and sentence[at + 1] in lexicon.plurals)
        return None if at is None else sentence.edit(at, at + 2, f"{sentence.get(at + 1)} {sentence.get(at)}")
    at = sentence.pick(lambda at: bool(re.fullmatch(r"[a-z]+['’]s", sentence[at])) and sentence.is_word(at + 1))
    if at is None:
        return None
    return sentence.edit(at, at + 2, f"the {sentence.get(at + 1)} of the {sentence.get(at)[:-2]}")


# ---- All of them


class Fault(NamedTuple):
    """`weight` is how often it is drawn, `remains` how acceptable a sentence of twenty words stays, 0 to 1."""

    propose: Proposer
    weight: float
    remains: float


FAULTS: Mapping[str, Fault] = {
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
    "stray words": Fault(place_stray_word, 1.5, 0.15),
    "telegram": Fault(write_telegram, 1.5, 0.2),
    "literal translation": Fault(translate_literally, 5, 0.25),
}


class DamagedSentence(NamedTuple):
    """A sentence with faults: where they are, how acceptable it remains, and their names."""

    text: str
    spans: tuple[Span, ...]
    remains: float
    names: list[str]


def damage(text: str, count: int, rng: random.Random, lexicon: Lexicon) -> DamagedSentence | None:
    """Put so many faults into a sentence; None if they do not fit."""
    sentence = SentenceEditor(EditableText(output=text), rng, lexicon)
    edits: dict[str, Edit] = {}
    remains = 1.0
    weights = {name: fault.weight for name, fault in FAULTS.items()}
    for _ in range(count * 6):
        if len(edits) == count:
            break
        name = rng.choices(list(weights), list(weights.values()))[0]
        edit = None if name in edits else FAULTS[name].propose(sentence)
        if edit is None or edit.text == text[edit.start : edit.end]:
            continue
        remains *= FAULTS[name].remains if not edits else 0.6
        edits[name] = edit
        taken = (*sentence.text.taken, (edit.start, edit.end))
        sentence = SentenceEditor(EditableText(output=text, taken=taken), rng, lexicon)
    if len(edits) < count:
        return None
    if len(sentence) > _LONG and remains > 0.1:  # One slip weighs less in a long sentence.
        remains = min(_MOST_REMAINS, remains * (1 + 0.01 * (len(sentence) - _LONG)))
    new = apply_edits(text, edits.values())
    return DamagedSentence(new, find_changes(text, new), max(_LEAST_REMAINS, remains), list(edits))
