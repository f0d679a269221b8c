"""Make good texts worse on purpose, each function in a way that one criterion is about."""

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


def split_sentences(text: str) -> list[str]:
    return [sentence for sentence in _SENTENCE.split(text) if sentence.strip()]


def add_slips(text: str, vocabulary: Sequence[str], rng: random.Random) -> str:
    """Add one to three slips of the pen."""
    words = text.split()
    for _ in range(rng.choice((1, 1, 2, 3))):
        if len(words) >= 4:
            slip = rng.choices(_SLIPS, _OFTEN)[0]
            words = slip(words, rng) if slip is not _replace_by_stray else _replace_by_stray(words, rng, vocabulary)
    return " ".join(words)


def disorder(text: str, strangers: Sequence[str], rng: random.Random) -> str:
    """Shuffle the sentences, replace one by that of another text, or repeat one."""
    parts = split_sentences(text)
    draw = rng.random()
    if draw < 0.45:
        rng.shuffle(parts)
    elif draw < 0.75:
        parts[rng.randrange(len(parts))] = rng.choice(strangers)
    else:
        parts.insert(rng.randrange(len(parts)), rng.choice(parts))
    return " ".join(parts)


def falsify(text: str, elsewhere: str, rng: random.Random) -> str | None:
    """Change a name or number, or negate a verb; return None if there is nothing to change."""
    if rng.random() < 0.3:
        return _negate(text)
    own, others = list(_NAMED.finditer(text)), _NAMED.findall(elsewhere)
    if not own or not others:
        return None
    place = rng.choice(own)
    similar = [name for name in others if name != place[0] and name[0].isdigit() == place[0][0].isdigit()]
    return text[: place.start()] + rng.choice(similar) + text[place.end() :] if similar else None


def break_up(text: str, rng: random.Random) -> str:
    """Break a text as weak summarizers do: repeat words, drop the end, shorten sentences or run them together."""
    parts = split_sentences(text)
    return rng.choice((_loop, _cut_off, _cut_down, _run_together))(parts, rng)


def _loop(parts: Words, rng: random.Random) -> str:
    words = " ".join(parts).split()
    length = rng.randint(1, min(8, len(words)))
    end = rng.randint(length, len(words))
    return " ".join([*words[:end], *words[end - length : end] * rng.randint(1, 3), *words[end:]])


def _cut_off(parts: Words, rng: random.Random) -> str:
    last = parts[-1].split()
    return " ".join([*parts[:-1], *last[: max(1, int(len(last) * rng.uniform(0.2, 0.8)))]])


def _cut_down(parts: Words, rng: random.Random) -> str:
    """Remove words from the middle of every sentence."""
    remaining = []
    for part in parts:
        words = part.split()
        count = max(1, int(len(words) * rng.uniform(0.15, 0.5)))
        at = rng.randint(0, max(0, len(words) - count - 1))
        remaining += words[:at] + words[at + count :]
    return " ".join(remaining)


def _run_together(parts: Words, rng: random.Random) -> str:
    """Join the beginning of each sentence with the end of the next."""
    halves = [part.split() for part in parts]
    glued = []
    for first, second in zip(halves, halves[1:] + halves[:1], strict=True):
        glued.append(" ".join(first[: rng.randint(1, len(first))] + second[rng.randint(0, len(second) - 1) :]))
    return " ".join(glued[: max(1, len(parts) - 1)])


def _negate(text: str) -> str | None:
    for word, denial in _DENIALS:
        if f" {word} " in text:
            return text.replace(f" {word} ", f" {denial} ", 1)
    return None


def _swap(words: Words, rng: random.Random) -> Words:
    at = rng.randrange(len(words) - 1)
    return [*words[:at], words[at + 1], words[at], *words[at + 2 :]]


def _drop(words: Words, rng: random.Random) -> Words:
    at = rng.randrange(len(words))
    return [*words[:at], *words[at + 1 :]]


def _double(words: Words, rng: random.Random) -> Words:
    at = rng.randrange(len(words))
    return [*words[:at], words[at], *words[at:]]


def _move(words: Words, rng: random.Random) -> Words:
    rest = list(words)
    moved = rest.pop(rng.randrange(len(rest)))
    rest.insert(rng.randrange(len(rest)), moved)
    return rest


def _replace_by_stray(words: Words, rng: random.Random, vocabulary: Sequence[str] = ("of",)) -> Words:
    at = rng.randrange(len(words))
    return [*words[:at], rng.choice(vocabulary), *words[at + 1 :]]


def _wrong_form(words: Words, rng: random.Random) -> Words:
    at = rng.randrange(len(words))
    word = words[at]
    shorter = next((word[: -len(end)] for end in ("ing", "ed", "ly", "s") if word.endswith(end)), None)
    return [*words[:at], shorter or (f"{word}s" if word.isalpha() else word), *words[at + 1 :]]


def _drop_small_word(words: Words, rng: random.Random) -> Words:
    places = [at for at, word in enumerate(words) if word.lower() in _SMALL]
    gone = rng.choice(places) if places else len(words)
    return [word for at, word in enumerate(words) if at != gone]


def _cut_short(words: Words, rng: random.Random) -> Words:
    return words[: max(3, len(words) - rng.randrange(1, 4))]


_SLIPS: tuple[Callable[[Words, random.Random], Words], ...] = (
    _swap, _drop, _double, _move, _replace_by_stray, _wrong_form, _drop_small_word, _cut_short,
)  # fmt: skip
_OFTEN = (20, 20, 15, 10, 10, 10, 7, 8)
