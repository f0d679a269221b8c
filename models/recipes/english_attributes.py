"""Pairs that ask for an attribute of a text in a user's own words, each once in both directions.

`english_wordings.toml` has the wordings. Two outputs differ in an attribute as they are (`attribute_pairs`), or one
text is written in two ways (`style_pairs`): the outputs alone never tell which one is better.
"""

from __future__ import annotations

import math
import random
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from damage import split_sentences
from english_made_pairs import Fields, Pair

from metrist import criteria

# ---- Wordings

_WORDINGS = tomllib.loads((Path(__file__).parent / "english_wordings.toml").read_text(encoding="utf-8"))


def word_instruction(criterion: str, rng: random.Random) -> str:
    """Draw a wording of a criterion; an instruction stays as it is."""
    other = _WORDINGS["criteria"].get(criterion, ())
    known = criteria.known(criterion)
    if known is None:
        return rng.choice(other) if other else criterion
    if not other or rng.random() < 0.45:
        return rng.choices(known.instructions, (2, 1, 1))[0]
    return rng.choice(other)


# ---- Attributes, asked both ways


def _words(text: str) -> list[str]:
    return re.findall(r"[A-Za-z']+", text)


def _rate(pattern: str) -> Callable[[str], float]:
    compiled = re.compile(pattern, re.IGNORECASE)
    return lambda text: len(compiled.findall(text)) / max(8, len(_words(text)))


def _mean_length(text: str) -> float:
    words = _words(text)
    return sum(map(len, words)) / max(1, len(words))


def _list_items(text: str) -> float:
    return min(4, len(re.findall(r"(?m)^\s*(?:[-*•]|\d+[.)])\s", text)))


_INFORMAL = _rate(
    r"\b(?:\w+n't|\w+'(?:re|ll|ve|m|d)|gonna|wanna|yeah|ok|okay|hey|kids?|guys?|cool|awesome|stuff|lots?)\b|!"
)
_POLITE = _rate(r"\b(?:please|thank|thanks|sorry|kindly|appreciate|welcome|glad|happy to)\b")
_HEDGES = _rate(
    r"\b(?:may|might|could|perhaps|possibly|likely|seems?|appears?|probably|suggests?|often|sometimes|generally|typically)\b"
)
_GLAD = _rate(
    r"\b(?:good|great|excellent|best|happy|loved?|wonderful|success\w*|enjoy\w*|beautiful|improv\w*|win|won|benefit\w*|safe)\b"
)
_SAD = _rate(
    r"\b(?:bad|worst|kill\w*|dead|death|died?|attack\w*|fail\w*|loss|lost|terrible|injur\w*|crash\w*|war|fear\w*|sad|poor"
    r"|murder\w*|accus\w*|problem\w*|danger\w*)\b"
)
#: How texts are compared in an attribute, and the least difference. `english_wordings.toml` has the wordings.
ATTRIBUTES: dict[str, tuple[Callable[[str], float], float]] = {
    "length": (lambda text: math.log(1 + len(_words(text))), 0.45),
    "word length": (_mean_length, 0.45),
    "formality": (lambda text: -_INFORMAL(text), 0.03),
    "politeness": (_POLITE, 0.02),
    # Not the numbers of a list.
    "numbers": (_rate(r"\d+(?![\d.]*[.)]\s)"), 0.03),
    "question": (lambda text: min(1, text.count("?")), 0.5),
    "hedging": (_HEDGES, 0.03),
    "mood": (lambda text: _GLAD(text) - _SAD(text), 0.14),
    "list": (_list_items, 1.5),
    "first person": (_rate(r"\b(?:I|me|my|we|our)\b"), 0.05),
    "address": (_rate(r"\b(?:you|your|yours|yourself)\b"), 0.05),
    "sentence length": (lambda text: len(_words(text)) / max(1, len(split_sentences(text))), 6),
    "sentences": (lambda text: min(8, len(split_sentences(text))), 2),
    "example": (_rate(r"\b(?:for example|for instance|such as|e\.g\.)"), 0.01),
    "quotation": (lambda text: min(2, len(re.findall(r'["“”]', text))), 2),
}


def attribute_pairs(pairs: Sequence[Pair], rng: random.Random, each: int = 1100) -> Iterator[Pair]:
    """Yield the outputs of pairs as two pairs: one with a wish that one output meets better, one with its opposite."""
    counts: Counter[str] = Counter()
    frequency = Counter(word for pair in pairs[:20_000] for word in set(map(str.lower, _words(pair.good))))
    for pair in rng.sample(pairs, len(pairs)):
        first, second = pair.good, pair.bad
        if min(len(_words(first)), len(_words(second))) < 2 or max(len(_words(first)), len(_words(second))) > 160:
            continue
        context = pair.context if rng.random() < 0.4 and _count_words(pair.context) < 150 else ()
        if rng.random() < 0.12:
            yield from _mentions(context, first, second, frequency, counts, 3 * each, rng)
            continue
        lacking = [name for name in ATTRIBUTES if counts[name] < each]
        for name in rng.sample(lacking, min(6, len(lacking))):
            value, least = ATTRIBUTES[name]
            difference = value(first) - value(second)
            if abs(difference) >= least:
                counts[name] += 1
                more, less = (first, second) if difference > 0 else (second, first)
                yield Pair(f"attribute {name}", _wish(name, "more", rng), context, more, less)
                yield Pair(f"attribute {name}", _wish(name, "less", rng), context, less, more)
                break


def _wish(attribute: str, direction: str, rng: random.Random) -> str:
    """Draw a whole wish, or an adjective in a sentence that asks for it."""
    wordings = _WORDINGS["attributes"][attribute]
    if not wordings[direction] or rng.random() < 0.55:
        return str(rng.choice(wordings[f"{direction}_wishes"]))
    wish: str = rng.choice(_WORDINGS["asked"]["adjective"]).format(rng.choice(wordings[direction]))
    return wish[0].upper() + wish[1:]


def _mentions(
    context: Fields,
    first: str,
    second: str,
    frequency: Counter[str],
    counts: Counter[str],
    most: int,
    rng: random.Random,
) -> Iterator[Pair]:
    own = [word for word in set(_words(first)) if len(word) > 3 and frequency[word.lower()] < 400]
    own = sorted(word for word in own if word.lower() not in second.lower())
    if own and counts["mention"] < most:
        counts["mention"] += 1
        word = rng.choice(own)
        yield Pair("attribute mention", rng.choice(_WORDINGS["asked"]["mention"]).format(word), context, first, second)
        yield Pair("attribute mention", rng.choice(_WORDINGS["asked"]["avoid"]).format(word), context, second, first)


def _count_words(context: Fields) -> int:
    return sum(len(text.split()) for _, text in context)


# ---- One text, written in two ways

_CONTRACTIONS = {
    "do not": "don't", "does not": "doesn't", "did not": "didn't", "is not": "isn't", "are not": "aren't",
    "was not": "wasn't", "cannot": "can't", "will not": "won't", "it is": "it's", "that is": "that's",
    "they are": "they're", "we are": "we're", "you are": "you're", "I am": "I'm", "I have": "I've",
    "there is": "there's", "would not": "wouldn't", "should not": "shouldn't", "could not": "couldn't",
    "has not": "hasn't", "have not": "haven't", "let us": "let's",
}  # fmt: skip
#: Everyday words, and what a formal or learned text says.
_LEARNED = {
    "use": "utilize", "uses": "utilizes", "used": "utilized", "using": "utilizing", "help": "facilitate",
    "helps": "facilitates", "show": "demonstrate", "shows": "demonstrates", "showed": "demonstrated",
    "start": "commence", "started": "commenced", "end": "conclude", "ended": "concluded",
    "many": "numerous", "enough": "sufficient", "also": "additionally", "because": "due to the fact that",
    "try": "endeavour", "tried": "endeavoured", "need": "require", "needs": "requires", "get": "obtain",
    "gets": "obtains", "got": "obtained", "big": "substantial", "small": "minuscule", "house": "residence",
    "home": "domicile", "doctor": "physician", "buy": "purchase", "bought": "purchased", "ask": "inquire",
    "asked": "inquired", "tell": "inform", "make": "construct",
    "made": "constructed", "find": "ascertain", "found": "ascertained", "give": "provide", "gives": "provides",
    "gave": "provided", "keep": "retain", "kept": "retained", "people": "individuals", "kids": "children",
    "job": "occupation", "work": "employment", "money": "monetary resources", "food": "nutrition",
    "change": "modification", "changes": "modifications", "better": "superior", "worse": "inferior",
    "before": "prior to", "after": "subsequent to", "good": "beneficial", "bad": "detrimental", "hard": "arduous",
    "easy": "effortless", "fast": "expeditious", "live": "reside", "lives": "resides", "see": "perceive",
    "way": "methodology", "ways": "methodologies", "whole": "entire", "part": "component", "parts": "components",
    "later": "subsequently", "now": "at present",
}  # fmt: skip
_OPENINGS = ("Hey, ", "So, ", "Well, ", "Oh, ", "Okay, so ", "Hi there, ", "Yeah, ", "You know, ")
_ENDINGS = ("", "", " You know?", " Ok?", " Pretty cool, huh?", " That's it, really.", " Crazy stuff!")
_CAUTIOUS = (
    "Perhaps ",
    "It seems that ",
    "Possibly ",
    "It may be that ",
    "One could say that ",
    "As far as is known, ",
)
_FIRM = (
    "Clearly, ",
    "There is no doubt that ",
    "Certainly, ",
    "Of course ",
    "It is a fact that ",
    "Without question, ",
)
_HEDGED = ((" is ", " may be "), (" are ", " may be "), (" will ", " might "), (" can ", " could perhaps "),
           (" was ", " may have been "), (" were ", " may have been "), (" has ", " probably has "))  # fmt: skip
_ASSERTED = ((" is ", " is definitely "), (" are ", " are certainly "), (" will ", " will surely "),
             (" can ", " can always "), (" was ", " was undoubtedly "), (" has ", " clearly has "))  # fmt: skip
_THANKS = ("Thank you for asking. ", "I am glad that you ask. ", "Thanks a lot for your message! ", "With pleasure. ",
           "How kind of you to write. ", "Welcome, and thanks for your patience. ")  # fmt: skip
_CURT = ("", "", "Listen. ", "Look it up next time. ", "Obvious. ")
_WISHES = (" Please let me know if I can do anything else.", " I hope that this helps, and have a lovely day.",
           " Thank you, and do not hesitate to ask.", " All the best to you!", "")  # fmt: skip
_PERSONAL = ("I think that ", "In my experience, ", "I have found that ", "We believe that ", "If you ask me, ")
_NEUTRAL = ("It is known that ", "According to the sources, ", "Generally, ", "", "")
_QUESTIONS = (" What do you think?", " Would you like to know more?", " Have you heard of it?", " Does that answer it?")
_AMOUNTS = ("some", "several", "many", "a few")
_EXCITED = ("Wow! ", "Amazing! ", "This is so exciting! ", "Guess what! ", "Incredible! ")


def style_pairs(pairs: Sequence[Pair], rng: random.Random, each: int = 900) -> Iterator[Pair]:
    """Write outputs in two ways that differ in one attribute, and ask for each of them."""
    counts: Counter[str] = Counter()
    for pair in rng.sample(pairs, len(pairs)):
        text = " ".join(split_sentences(pair.good)[: rng.randint(1, 4)])
        if not 6 <= len(text.split()) <= 80 or "\n" in text or not text[0].isupper():
            continue
        context = pair.context if rng.random() < 0.3 and _count_words(pair.context) < 60 else ()
        lacking = [name for name in STYLES if counts[name] < each]
        if not lacking:
            return
        for name in rng.sample(lacking, min(4, len(lacking))):
            more, less = STYLES[name](text, rng)
            if more.split() != less.split():
                counts[name] += 1
                yield Pair(f"style {name}", _wish(name, "more", rng), context, more, less)
                yield Pair(f"style {name}", _wish(name, "less", rng), context, less, more)
                break


def _replace_words(text: str, words: dict[str, str], most: int) -> tuple[str, int]:
    """Replace at most some words; return how many were."""
    count = 0
    for old, new in words.items():
        if count < most:
            text, times = re.subn(rf"\b{re.escape(old)}\b", new, text, count=1)
            count += times
    return text, count


def _lower_first(text: str) -> str:
    """Return the text for the middle of a sentence."""
    word = text.split()[0]
    return text if word in ("I", "I'm") or not word[1:].islower() else text[0].lower() + text[1:]


def _write_formal(text: str, rng: random.Random) -> tuple[str, str]:
    formal, _ = _replace_words(text, {short: full for full, short in _CONTRACTIONS.items()}, 9)
    formal, _ = _replace_words(formal, _LEARNED, rng.randint(0, 2))
    casual, _ = _replace_words(text, _CONTRACTIONS, 9)
    casual = rng.choice(_OPENINGS) + _lower_first(casual)
    return formal.replace("!", "."), casual + rng.choice(_ENDINGS)


def _write_learned(text: str, rng: random.Random) -> tuple[str, str]:
    learned, count = _replace_words(text, dict(rng.sample(list(_LEARNED.items()), len(_LEARNED))), 8)
    return (learned, text) if count >= 2 else (text, text)


def _write_cautious(text: str, rng: random.Random) -> tuple[str, str]:
    cautious, firm = text, text
    for marks, side in ((_HEDGED, 0), (_ASSERTED, 1)):
        changed = (cautious, firm)[side]
        for old, new in rng.sample(marks, len(marks))[:4]:
            changed = changed.replace(old, new, 1)
        if rng.random() < 0.5 or changed == text:
            changed = rng.choice((_CAUTIOUS, _FIRM)[side]) + _lower_first(changed)
        cautious, firm = (changed, firm) if side == 0 else (cautious, changed)
    plain = rng.random()
    return (cautious, text) if plain < 0.3 else (text, firm) if plain < 0.45 else (cautious, firm)


def _write_polite(text: str, rng: random.Random) -> tuple[str, str]:
    return rng.choice(_THANKS) + text + rng.choice(_WISHES), rng.choice(_CURT) + text


def _write_numbers(text: str, rng: random.Random) -> tuple[str, str]:
    number = re.compile(r"\d+(?:[.,]\d+)*")
    return text, number.sub(lambda _: rng.choice(_AMOUNTS), text) if len(number.findall(text)) <= 3 else text


def _write_list(text: str, rng: random.Random) -> tuple[str, str]:
    parts = split_sentences(text)
    if len(parts) < 3:
        return text, text
    mark = rng.choice(("- ", "* ", "{}. ", "{}) "))
    return "\n".join(mark.format(number) + part for number, part in enumerate(parts, 1)), text


def _write_personal(text: str, rng: random.Random) -> tuple[str, str]:
    plain = _lower_first(text)
    neutral = rng.choice(_NEUTRAL)
    return rng.choice(_PERSONAL) + plain, neutral + plain if neutral else text


def _write_question(text: str, rng: random.Random) -> tuple[str, str]:
    return (text + rng.choice(_QUESTIONS), text) if "?" not in text else (text, text)


def _write_excited(text: str, rng: random.Random) -> tuple[str, str]:
    return rng.choice(_EXCITED) + re.sub(r"\.(?=\s|$)", "!", text), text.replace("!", ".")


#: Functions that write a text with more and with less of an attribute.
STYLES: dict[str, Callable[[str, random.Random], tuple[str, str]]] = {
    "formality": _write_formal,
    "word length": _write_learned,
    "hedging": _write_cautious,
    "politeness": _write_polite,
    "numbers": _write_numbers,
    "list": _write_list,
    "first person": _write_personal,
    "question": _write_question,
    "enthusiasm": _write_excited,
}
