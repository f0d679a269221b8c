"""Pairs that ask for an attribute of a text in a user's own words, each once in both directions.

`english_wordings.toml` has the wordings. Two outputs differ in an attribute as they are (`attribute_pairs`), or one
text is written in two ways (`style_pairs`): the outputs alone never tell which one is better.
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from made_pairs import WORDINGS, Fields, Pair
from sets import draw, list_sentences

from metrist import criteria


def word_instruction(criterion: str, rng: random.Random) -> str:
    """Draw a wording of a criterion; an instruction stays as it is."""
    other = WORDINGS["criteria"].get(criterion, ())
    known = criteria.known(criterion)
    if known is None:
        return rng.choice(other) if other else criterion
    if not other or rng.random() < 0.45:
        return rng.choices(known.instructions, (2, 1, 1))[0]
    return rng.choice(other)


# ---- Attributes of two texts


def _list_words(text: str) -> list[str]:
    return re.findall(r"[A-Za-z']+", text)


def _rate(name: str) -> Callable[[str], float]:
    facts = WORDINGS["rates"][name]
    pattern = re.compile(facts["pattern"], re.IGNORECASE)
    return lambda text: facts.get("sign", 1) * len(pattern.findall(text)) / max(8, len(_list_words(text)))


#: How texts are compared in an attribute, and the least difference.
ATTRIBUTES: dict[str, tuple[Callable[[str], float], float]] = {
    "length": (lambda text: math.log(1 + len(_list_words(text))), 0.45),
    "word length": (lambda text: len("".join(_list_words(text))) / max(1, len(_list_words(text))), 0.45),
    "question": (lambda text: min(1, text.count("?")), 0.5),
    "mood": (lambda text: _rate("glad")(text) - _rate("sad")(text), 0.14),
    "list": (lambda text: min(4, len(re.findall(r"(?m)^\s*(?:[-*•]|\d+[.)])\s", text))), 1.5),
    "sentence length": (lambda text: len(_list_words(text)) / max(1, len(list_sentences(text))), 6),
    "sentences": (lambda text: min(8, len(list_sentences(text))), 2),
    "quotation": (lambda text: min(2, len(re.findall(r'["“”]', text))), 2),
    **{name: (_rate(name), facts["least"]) for name, facts in WORDINGS["rates"].items() if name not in ("glad", "sad")},
}


def attribute_pairs(pairs: Sequence[Pair], rng: random.Random, each: int = 1100) -> Iterator[Pair]:
    """Yield the outputs of pairs as two pairs: one with a wish that one output meets better, one with its opposite."""
    counts: Counter[str] = Counter()
    for old in draw(pairs, len(pairs), rng):
        first, second = old.good, old.bad
        sizes = sorted((len(_list_words(first)), len(_list_words(second))))
        if sizes[0] < 2 or sizes[1] > 160:
            continue
        context = _keep_context(old.context, 150, 0.4, rng)
        if rng.random() < 0.12 and counts["mention"] < 3 * each:
            own = sorted(
                word for word in set(_list_words(first)) if len(word) > 4 and word.lower() not in second.lower()
            )
            if own:
                counts["mention"] += 1
                word = rng.choice(own)
                wishes = (rng.choice(WORDINGS["asked"][name]).format(word) for name in ("mention", "avoid"))
                yield from _ask_both("attribute mention", wishes, context, first, second)
            continue
        lacking = [name for name in ATTRIBUTES if counts[name] < each]
        for name in draw(lacking, 6, rng):
            value, least = ATTRIBUTES[name]
            difference = value(first) - value(second)
            if abs(difference) >= least:
                counts[name] += 1
                more, less = (first, second) if difference > 0 else (second, first)
                yield from _ask_both(f"attribute {name}", _make_wishes(name, rng), context, more, less)
                break


def _ask_both(kind: str, wishes: Iterator[str], context: Fields, more: str, less: str) -> Iterator[Pair]:
    yield Pair(kind, next(wishes), context, more, less)
    yield Pair(kind, next(wishes), context, less, more)


def _make_wishes(attribute: str, rng: random.Random) -> Iterator[str]:
    """Draw whole wishes, or adjectives in a sentence that asks for them: for more of an attribute, and for less."""
    wordings = WORDINGS["attributes"][attribute]
    for direction in ("more", "less"):
        if not wordings[direction] or rng.random() < 0.55:
            yield rng.choice(wordings[f"{direction}_wishes"])
        else:
            wish: str = rng.choice(WORDINGS["asked"]["adjective"]).format(rng.choice(wordings[direction]))
            yield wish[0].upper() + wish[1:]


def _keep_context(context: Fields, most: int, share: float, rng: random.Random) -> Fields:
    short = sum(len(text.split()) for _, text in context) < most
    return context if short and rng.random() < share else ()


# ---- One text, written in two ways

_STYLES = WORDINGS["styles"]


def style_pairs(pairs: Sequence[Pair], rng: random.Random, each: int = 900) -> Iterator[Pair]:
    """Write outputs in two ways that differ in one attribute, and ask for each of them."""
    counts: Counter[str] = Counter()
    for old in draw(pairs, len(pairs), rng):
        text = " ".join(list_sentences(old.good)[: rng.randint(1, 4)])
        if not 6 <= len(text.split()) <= 80 or "\n" in text or not text[0].isupper():
            continue
        context = _keep_context(old.context, 60, 0.3, rng)
        lacking = [name for name in STYLES if counts[name] < each]
        if not lacking:
            return
        for name in draw(lacking, 4, rng):
            more, less = STYLES[name](text, rng)
            if more.split() != less.split():
                counts[name] += 1
                yield from _ask_both(f"style {name}", _make_wishes(name, rng), context, more, less)
                break


def _exchange(text: str, name: str, most: int, rng: random.Random, *, back: bool = False) -> str:
    """Exchange at most some words of a list."""
    for row in draw(_STYLES[name], len(_STYLES[name]), rng):
        old, new = row.split(" -> ")[:: -1 if back else 1]
        text, times = re.subn(rf"\b{re.escape(old)}\b", new, text, count=1)
        most -= times
        if most <= 0:
            break
    return text


def _begin(text: str, name: str, rng: random.Random) -> str:
    beginning, word = rng.choice(_STYLES[name]), text.split()[0]
    small = beginning and word not in ("I", "I'm") and word[1:].islower()
    return beginning + (text[0].lower() + text[1:] if small else text)


def _write_formal(text: str, rng: random.Random) -> tuple[str, str]:
    formal = _exchange(_exchange(text, "contractions", 9, rng, back=True), "learned", rng.randint(0, 2), rng)
    casual = _begin(_exchange(text, "contractions", 9, rng), "openings", rng)
    return formal.replace("!", "."), casual + rng.choice(_STYLES["endings"])


def _write_cautious(text: str, rng: random.Random) -> tuple[str, str]:
    written = []
    for words, beginnings in (("hedged", "cautious"), ("asserted", "firm")):
        changed = _exchange(text, words, 4, rng)
        written.append(_begin(changed, beginnings, rng) if rng.random() < 0.5 or changed == text else changed)
    plain = rng.random()
    return (written[0], text) if plain < 0.3 else (text, written[1]) if plain < 0.45 else (written[0], written[1])


def _write_polite(text: str, rng: random.Random) -> tuple[str, str]:
    more = rng.choice(_STYLES["thanks"]) + text + rng.choice(_STYLES["wishes"])
    return more, rng.choice(_STYLES["curt"]) + text


def _write_numbers(text: str, rng: random.Random) -> tuple[str, str]:
    return text, re.sub(r"\d+(?:[.,]\d+)*", lambda _: rng.choice(_STYLES["amounts"]), text)


def _write_list(text: str, rng: random.Random) -> tuple[str, str]:
    parts = list_sentences(text)
    mark = rng.choice(("- ", "* ", "{}. ", "{}) "))
    return "\n".join(mark.format(number) + part for number, part in enumerate(parts, 1)) if len(
        parts
    ) > 2 else text, text


#: Functions that write a text with more and with less of an attribute.
STYLES: dict[str, Callable[[str, random.Random], tuple[str, str]]] = {
    "formality": _write_formal,
    "word length": lambda text, rng: (_exchange(text, "learned", 8, rng), text),
    "hedging": _write_cautious,
    "politeness": _write_polite,
    "numbers": _write_numbers,
    "list": _write_list,
    "first person": lambda text, rng: (_begin(text, "personal", rng), _begin(text, "neutral", rng)),
    "question": lambda text, rng: (text + ("" if "?" in text else rng.choice(_STYLES["questions"])), text),
    "enthusiasm": lambda text, rng: (
        rng.choice(_STYLES["excited"]) + re.sub(r"\.(?=\s|$)", "!", text),
        text.replace("!", "."),
    ),
}
