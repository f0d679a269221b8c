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
    forms: dict[int, str] = {}
    for at in sentence.free:
        word, before = sentence[at], sentence[at - 1]
        if word in swap:
            if not (word in ("have", "do") and (before in list_words("modals") or before in ("not", ""))):
                forms[at] = swap[word]
        elif at and word in lexicon.thirds:
            follows_name = at > 1 and sentence.get(at - 1)[:1].isupper()
            if before in ("he", "she", "it", "who", "which") or follows_name:
                forms[at] = lexicon.thirds[word]
        elif word in lexicon.verbs and before in ("they", "we", "you", "i", "people"):
            forms[at] = lexicon.verbs[word][1]
    return sentence.change_any(forms)


def change_verb_form(sentence: SentenceEditor) -> Edit | None:
    """Give a verb a form that its auxiliary or subject does not allow."""
    lexicon = sentence.lexicon
    places = []
    for at in sentence.free:
        word, before = sentence[at], sentence[at - 1]
        if word not in lexicon.forms or word in list_words("auxiliaries") or not at:
            continue
        base, third, past, participle, ing = lexicon.forms[word]
        if before in list_words("modals") or before in _BEFORE_BASE:
            fits = word == base and not (before == "to" and base in lexicon.plurals)
        elif before in _BEFORE_PARTICIPLE:
            fits = word in (participle, ing)
        else:
            fits = before in _PRONOUNS and word in (past, third)
        if fits:
            places.append(at)
    place = sentence.pick(places)
    if place is None:
        return None
    word, before = sentence[place], sentence[place - 1]
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
    return sentence.change(place, sentence.rng.choice(options)) if options else None


def overregularise(sentence: SentenceEditor) -> Edit | None:
    """`goed`, `childs`."""
    lexicon = sentence.lexicon
    nouns = map_arrows("irregular_nouns")
    at = sentence.pick(at for at in sentence.free if sentence[at] in lexicon.irregular or sentence[at] in nouns)
    if at is None:
        return None
    word = sentence[at]
    regular = sentence.rng.choice(nouns[word].split()) if word in nouns else form_past(lexicon.irregular[word])
    return sentence.change(at, regular)


def change_comparison(sentence: SentenceEditor) -> Edit | None:
    """`more better`, `gooder`."""
    comparatives, wrong = list_words("comparatives"), map_arrows("wrong_comparisons")
    compared = comparatives | list_words("superlatives")
    at = sentence.pick(at for at in sentence.free if sentence[at] in compared)
    if at is None:
        return None
    word = sentence[at]
    if word in wrong and sentence.rng.random() < 0.5:
        return sentence.change(at, wrong[word])
    return sentence.change(at, f"{'more' if word in comparatives else 'most'} {word}")


def change_number(sentence: SentenceEditor) -> Edit | None:
    """A plural after `a`, a singular after `many`, a plural of a word that has none."""
    lexicon = sentence.lexicon
    one = {"a", "an", "this", "each", "every", "another", "one"}
    many = {"these", "those", "many", "several", "few", "two", "three", "four", "five", "both", "various"}
    many |= {"are", "were"}
    other_number: dict[int, str] = {}
    for at in sentence.free:
        word, before = sentence[at], sentence[at - 1]
        if before in one and word in lexicon.plurals:
            other_number[at] = lexicon.plurals[word]
        elif before in many and word in lexicon.singulars:
            other_number[at] = lexicon.singulars[word]
    if not other_number:
        masses = [at for at in sentence.free if sentence[at] in list_words("mass_nouns")]
        other_number = {place: sentence[place] + ("es" if sentence[place].endswith("s") else "s") for place in masses}
    return sentence.change_any(other_number)


def change_adverb(sentence: SentenceEditor) -> Edit | None:
    """An adjective for an adverb, or the other way round."""
    lexicon = sentence.lexicon
    others: dict[int, str] = {}
    for at in sentence.free:
        word, before, after = sentence[at], sentence[at - 1], sentence[at + 1]
        if word in lexicon.adjectives:
            if at > 0:
                others[at] = lexicon.adjectives[word]
        elif word in lexicon.adverbs and before in list_words("determiners") and after in lexicon.plurals:
            others[at] = lexicon.adverbs[word]
    return sentence.change_any(others)


def change_pronoun(sentence: SentenceEditor) -> Edit | None:
    """`him is`, `for they`, `them car`."""
    lexicon = sentence.lexicon
    subjects, objects = map_pairs("subjects"), map_pairs("objects")
    owners = {"his": "him", "their": "them", "her": "she"}
    others: dict[int, str] = {}
    for at in sentence.free:
        word, after = sentence[at], sentence[at + 1]
        if word in subjects:
            if after in list_words("auxiliaries") or after in lexicon.verbs or after.endswith("ed"):
                others[at] = subjects[word]
        elif word in objects:
            if at > 0:
                others[at] = objects[word]
        elif word in owners and after in lexicon.plurals:
            others[at] = owners[word]
    return sentence.change_any(others)


def misspell(sentence: SentenceEditor) -> Edit | None:
    """Misspell a known word so that no other known word results."""
    known = sentence.lexicon.counts
    places = []
    for at in sentence.free:
        word = sentence.get(at)
        if len(word) > 3 and word[1:].islower() and known[word.lower()] > 2:
            places.append(at)
    place = sentence.pick(places)
    if place is None:
        return None
    for _ in range(8):
        new = _misspell_word(sentence.get(place), sentence.rng)
        if not known[new.lower()]:
            return sentence.change(place, new)
    return None


def _misspell_word(word: str, rng: random.Random) -> str:
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


def confuse(sentence: SentenceEditor) -> Edit | None:
    """`there` for `their`."""
    groups = [group.split() for group in read_lists()["fluency"]["confusions"]]
    others = {word: [other for other in group if other != word] for group in groups for word in group}
    uncertain = {"that", "who", "as", "less", "form", "live", "lead", "this", "by", "another"}
    places = []
    for at in sentence.free:
        if sentence[at] in others and (sentence[at] not in uncertain or sentence.rng.random() < 0.2):
            places.append(at)
    place = sentence.pick(places)
    return None if place is None else sentence.change(place, sentence.rng.choice(others[sentence[place]]))


# ---- Small words and marks


def change_article(sentence: SentenceEditor) -> Edit | None:
    """Drop, exchange or add an article."""
    plurals, singulars = sentence.lexicon.plurals, sentence.lexicon.singulars
    draw = sentence.rng.random()
    if draw < 0.75:
        articles = []
        for at in sentence.free:
            nouns = plurals if draw < 0.5 else singulars
            if sentence[at] in ARTICLES or (sentence[at] == "the" and sentence[at + 1] in nouns):
                articles.append(at)
        if draw < 0.5:
            place = sentence.pick(at for at in articles if 0 < at < len(sentence) - 1)
            return None if place is None else sentence.drop(place)
        return sentence.change_any({at: "an" if sentence[at] == "a" else "a" for at in articles})
    owned = ("his", "her", "their", "it", "they", "he", "she", "this", "each", "every", "my", "our")
    places = []
    for at in sentence.free:
        is_name = sentence.get(at)[:1].isupper() and sentence.get(at)[1:].islower()
        after_preposition = sentence[at - 1] in ("of", "in", "with", "by", "from", "and")
        if at > 0 and (sentence[at] in owned or (is_name and after_preposition)):
            places.append(at)
    place = sentence.pick(places)
    return None if place is None else sentence.insert(place, f"{sentence.rng.choice(('the', 'a', 'the'))} ")


def change_preposition(sentence: SentenceEditor) -> Edit | None:
    """Exchange a preposition, or leave it out."""
    prepositions = read_lists()["fluency"]["prepositions"].split()
    inside = range(1, len(sentence) - 2)
    at = sentence.pick(at for at in sentence.free if sentence[at] in prepositions and at in inside)
    if at is None:
        return None
    word = sentence[at]
    if sentence.rng.random() < 0.2 and word in ("of", "to", "for", "with"):
        return sentence.drop(at)
    alike = ({"to", "into"}, {"in", "during"})
    others = [other for other in prepositions if other != word and {other, word} not in alike]
    return sentence.change(at, sentence.rng.choice(others))


def add_preposition(sentence: SentenceEditor) -> Edit | None:
    """Put a preposition before an object."""
    objects = ("the", "a", "his", "her", "their", "it", "them", "him")
    places = []
    for at in sentence.free:
        after_content = sentence.is_word(at - 1) and sentence[at - 1] not in list_function_words()
        if sentence[at] in objects and after_content:
            places.append(at)
    place = sentence.pick(places)
    if place is None:
        return None
    return sentence.insert(place, f"{sentence.rng.choice(sorted(list_words('prepositions')))} ")


def double_negative(sentence: SentenceEditor) -> Edit | None:
    """`did not see nothing`, `did no see`."""
    negative = {"not", "never", "didn't", "don't", "doesn't", "wasn't", "won't", "can't", "isn't"}
    first = next((at for at in range(len(sentence)) if sentence[at] in negative), None)
    if first is not None:
        after = {"any": "no", "a": "no", "an": "no", "anything": "nothing", "anyone": "no one", "ever": "never"}
        places = [at for at in sentence.free if at > first and sentence[at] in after]
        if places:
            return sentence.change_any({at: after[sentence[at]] for at in places})
    verbs = ("did", "does", "do", "could", "would", "should")
    at = sentence.pick(at for at in sentence.free if sentence[at] in verbs and sentence[at + 1] == "not")
    return None if at is None else sentence.change(at + 1, sentence.rng.choice(("no", "not not", "of")))


def change_punctuation(sentence: SentenceEditor) -> Edit | None:
    """Drop an apostrophe, or put a mark where none may be."""
    draw = sentence.rng.random()
    if draw < 0.5:
        shortened = re.compile(r"[A-Za-z]+['’](?:s|t|re|ve|ll|m|d)")
        places = [at for at in sentence.free if shortened.fullmatch(sentence.get(at))]
        return sentence.change_any({at: re.sub("['’]", "", sentence.get(at)) for at in places})
    inside = [at for at in sentence.free if at < len(sentence) - 1]
    if draw < 0.8:  # Between determiner and noun, or preposition and object.
        small = list_words("determiners") | list_words("prepositions")
        before_word = [at for at in inside if at + 2 < len(sentence) and sentence.is_word(at + 1)]
        at = sentence.pick(at for at in before_word if sentence[at] in small)
        return None if at is None else sentence.edit(at, at + 1, f"{sentence.get(at)},")
    at = sentence.pick(inside)
    if at is None:
        return None
    return sentence.edit(at, at + 1, sentence.get(at) + sentence.rng.choice((",", ";", ".", ",,", "?")))


# ---- Order, gaps and repetitions


def swap_neighbours(sentence: SentenceEditor) -> Edit | None:
    places = []
    for at in sentence.free:
        first, second = sentence[at], sentence[at + 1]
        apart = (first in list_function_words()) != (second in list_function_words())
        if sentence.is_word(at + 1) and first != second and apart and "not" not in (first, second):
            places.append(at)
    place = sentence.pick(places)
    return (
        None if place is None else sentence.edit(place, place + 2, f"{sentence.get(place + 1)} {sentence.get(place)}")
    )


def move_word(sentence: SentenceEditor) -> Edit | None:
    at = sentence.pick(at for at in sentence.free if at > 0 and not sentence.get(at)[:1].isupper())
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
    places = []
    for at in sentence.free:
        if not 0 < at < len(sentence) - 1 or not sentence.is_word(at + 1):
            continue
        word, before = sentence[at], sentence[at - 1]
        if word in list_words("auxiliaries") or word in ("to", "of", "than"):
            fits = True
        elif word in map_pairs("subjects"):
            fits = sentence[at + 1] in list_words("auxiliaries")
        else:
            fits = before in ("a", "an", "the", "of", "his", "their") and word in sentence.lexicon.plurals
        if fits:
            places.append(at)
    place = sentence.pick(places)
    return None if place is None else sentence.drop(place)


def repeat_word(sentence: SentenceEditor) -> Edit | None:
    at = sentence.pick(at for at in sentence.free if sentence[at] not in ("had", "that", "very", "so"))
    if at is None:
        return None
    last = at + sentence.rng.choice((1, 1, 1, 2, 3))
    if not all(sentence.is_word(place) for place in range(at, last)):
        last = at + 1
    words = sentence.texts(at, last)
    return sentence.edit(at, last, " ".join([*words, words[0].lower(), *words[1:]]))


def merge_words(sentence: SentenceEditor) -> Edit | None:
    before_word = [at for at in sentence.free if sentence.is_word(at + 1)]
    counts = sentence.lexicon.counts
    at = sentence.pick(at for at in before_word if not counts[sentence[at] + sentence[at + 1]])
    return None if at is None else sentence.edit(at, at + 2, "".join(sentence.texts(at, at + 2)))


def split_word(sentence: SentenceEditor) -> Edit | None:
    at = sentence.pick(at for at in sentence.free if len(sentence[at]) > 6 and sentence[at].isalpha())
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
    foreign = sentence.lexicon.foreign
    if not foreign:
        return None
    long_words = (at for at in sentence.free if len(sentence[at]) > 3)
    at = sentence.pick(at for at in long_words if sentence[at] not in list_function_words())
    return None if at is None else sentence.change(at, sentence.rng.choice(foreign))


def place_stray_word(sentence: SentenceEditor) -> Edit | None:
    """Replace a content word by another of the same ending: grammatical perhaps, but not what anyone would write."""
    long_words = (at for at in sentence.free if sentence.get(at).islower() and len(sentence[at]) > 4)
    at = sentence.pick(at for at in long_words if sentence[at] not in list_function_words())
    if at is None:
        return None
    return sentence.change(at, sentence.rng.choice(sentence.lexicon.content.get(sentence[at][-2:]) or ["thing"]))


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
        auxiliaries = [at for at in sentence.free if sentence[at] in list_words("auxiliaries")]
        at = sentence.pick(at for at in auxiliaries if all(map(sentence.is_word, range(at + 1, at + 4))))
        if at is None:
            return None
        end = next((place for place in range(at + 1, len(sentence)) if not sentence.is_word(place)), len(sentence))
        return sentence.edit(at, end, " ".join([*sentence.texts(at + 1, end), sentence.get(at)]))
    if draw < 0.7:
        adjectives = [at for at in sentence.free if sentence[at] in lexicon.adverbs]
        at = sentence.pick(at for at in adjectives if sentence[at + 1] in lexicon.plurals)
        return None if at is None else sentence.edit(at, at + 2, f"{sentence.get(at + 1)} {sentence.get(at)}")
    before_word = (at for at in sentence.free if sentence.is_word(at + 1))
    at = sentence.pick(at for at in before_word if re.fullmatch(r"[a-z]+['’]s", sentence[at]))
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
