"""Good texts made worse on purpose, each in a way that one criterion is about."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

_SENTENCE = re.compile(r"(?<=[.!?])\s+")
#: Names and numbers that do not begin the text.
_NAMED = re.compile(r"(?<!^)\b(?:[A-Z][a-z]+(?: [A-Z][a-z]+)*|\d[\d,.]*)\b")
_SMALL = frozenset(
    {"the", "a", "an", "of", "to", "in", "is", "was", "and", "for", "has", "have", "are", "were", "that"}
)
_DENIALS = (("is", "is not"), ("was", "was not"), ("has", "has not"), ("will", "will not"), ("are", "are not"))
Words = list[str]


def sentences(text: str) -> list[str]:
    return [one for one in _SENTENCE.split(text) if one.strip()]


def ungrammatical(text: str, vocabulary: Sequence[str], rng: random.Random) -> str:
    """One to three slips of the pen."""
    words = text.split()
    for _ in range(rng.choice((1, 1, 2, 3))):
        if len(words) >= 4:
            slip = rng.choices(_SLIPS, _OFTEN)[0]
            words = slip(words, rng) if slip is not _stray else _stray(words, rng, vocabulary)
    return " ".join(words)


def disordered(text: str, strangers: Sequence[str], rng: random.Random) -> str:
    """Its sentences in another order, or one of them a stranger's, or one said twice."""
    parts = sentences(text)
    draw = rng.random()
    if draw < 0.45:
        rng.shuffle(parts)
    elif draw < 0.75:
        parts[rng.randrange(len(parts))] = rng.choice(strangers)
    else:
        parts.insert(rng.randrange(len(parts)), rng.choice(parts))
    return " ".join(parts)


def untrue(text: str, elsewhere: str, rng: random.Random) -> str | None:
    """With another name or number in it, or with a denial; None where there is nothing to change."""
    if rng.random() < 0.3:
        return _denied(text)
    mine, others = list(_NAMED.finditer(text)), _NAMED.findall(elsewhere)
    if not mine or not others:
        return None
    place = rng.choice(mine)
    like = [one for one in others if one != place[0] and one[0].isdigit() == place[0][0].isdigit()]
    return text[: place.start()] + rng.choice(like) + text[place.end() :] if like else None


def broken(text: str, rng: random.Random) -> str:
    """As weak summarisers break it: a run of words said again, the end missing, sentences cut down or run together."""
    parts = sentences(text)
    return rng.choice((_looped, _cut_off, _cut_down, _run_together))(parts, rng)


def _looped(parts: Words, rng: random.Random) -> str:
    words = " ".join(parts).split()
    length = rng.randint(1, min(8, len(words)))
    end = rng.randint(length, len(words))
    return " ".join([*words[:end], *words[end - length : end] * rng.randint(1, 3), *words[end:]])


def _cut_off(parts: Words, rng: random.Random) -> str:
    last = parts[-1].split()
    return " ".join([*parts[:-1], *last[: max(1, int(len(last) * rng.uniform(0.2, 0.8)))]])


def _cut_down(parts: Words, rng: random.Random) -> str:
    """Some words gone out of the middle of every sentence."""
    kept = []
    for part in parts:
        words = part.split()
        gone = max(1, int(len(words) * rng.uniform(0.15, 0.5)))
        at = rng.randint(0, max(0, len(words) - gone - 1))
        kept += words[:at] + words[at + gone :]
    return " ".join(kept)


def _run_together(parts: Words, rng: random.Random) -> str:
    """The beginning of each sentence with the end of the next."""
    halves = [part.split() for part in parts]
    glued = []
    for one, other in zip(halves, halves[1:] + halves[:1], strict=True):
        glued.append(" ".join(one[: rng.randint(1, len(one))] + other[rng.randint(0, len(other) - 1) :]))
    return " ".join(glued[: max(1, len(parts) - 1)])


def _denied(text: str) -> str | None:
    for word, denial in _DENIALS:
        if f" {word} " in text:
            return text.replace(f" {word} ", f" {denial} ", 1)
    return None


def _swapped(words: Words, rng: random.Random) -> Words:
    at = rng.randrange(len(words) - 1)
    return [*words[:at], words[at + 1], words[at], *words[at + 2 :]]


def _dropped(words: Words, rng: random.Random) -> Words:
    at = rng.randrange(len(words))
    return [*words[:at], *words[at + 1 :]]


def _doubled(words: Words, rng: random.Random) -> Words:
    at = rng.randrange(len(words))
    return [*words[:at], words[at], *words[at:]]


def _moved(words: Words, rng: random.Random) -> Words:
    rest = list(words)
    moved = rest.pop(rng.randrange(len(rest)))
    rest.insert(rng.randrange(len(rest)), moved)
    return rest


def _stray(words: Words, rng: random.Random, vocabulary: Sequence[str] = ("of",)) -> Words:
    at = rng.randrange(len(words))
    return [*words[:at], rng.choice(vocabulary), *words[at + 1 :]]


def _wrong_form(words: Words, rng: random.Random) -> Words:
    at = rng.randrange(len(words))
    word = words[at]
    shorter = next((word[: -len(end)] for end in ("ing", "ed", "ly", "s") if word.endswith(end)), None)
    return [*words[:at], shorter or (f"{word}s" if word.isalpha() else word), *words[at + 1 :]]


def _small_word_dropped(words: Words, rng: random.Random) -> Words:
    places = [at for at, word in enumerate(words) if word.lower() in _SMALL]
    gone = rng.choice(places) if places else len(words)
    return [word for at, word in enumerate(words) if at != gone]


def _cut_short(words: Words, rng: random.Random) -> Words:
    return words[: max(3, len(words) - rng.randrange(1, 4))]


_SLIPS: tuple[Callable[[Words, random.Random], Words], ...] = (
    _swapped, _dropped, _doubled, _moved, _stray, _wrong_form, _small_word_dropped, _cut_short,
)  # fmt: skip
_OFTEN = (20, 20, 15, 10, 10, 10, 7, 8)
