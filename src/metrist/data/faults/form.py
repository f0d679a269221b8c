"""Faults of how a text is written, calculated, translated or completed, and changes that do no harm."""

from __future__ import annotations

import random
import re
from itertools import pairwise

from metrist.data.faults.text import (
    WORD,
    Edit,
    Text,
    exchange,
    insert_sentence,
    match_case,
    quote,
    read_lists,
    register_harmless,
    register_kind,
)

_EQUATION = re.compile(
    r"(?P<left>\d[\d,]*(?:\.\d+)?)\s*(?P<operator>[-+*/x×÷−])\s*(?P<right>\d[\d,]*(?:\.\d+)?)\s*=\s*[$£€]?\s*"
    r"(?P<result>-?\d[\d,]*(?:\.\d+)?)"
)


_KEYS = {
    "a": "sq", "b": "vn", "c": "xv", "d": "sf", "e": "wr", "f": "dg", "g": "fh", "h": "gj", "i": "uo", "j": "hk",
    "k": "jl", "l": "k", "m": "n", "n": "bm", "o": "ip", "p": "o", "q": "w", "r": "et", "s": "ad", "t": "ry", "u": "yi",
    "v": "cb", "w": "qe", "x": "zc", "y": "tu", "z": "x",
}  # fmt: skip


def _misspell(word: str, rng: random.Random) -> str:
    at = rng.randrange(1, len(word) - 1)
    way = rng.randrange(4)
    if way == 0 and word[at] != word[at + 1]:
        return word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    if way == 1:
        return word[:at] + word[at + 1 :]
    if way == 2:
        return word[:at] + word[at] + word[at:]
    near = _KEYS.get(word[at].lower())
    return word[:at] + (rng.choice(near) if near else word[at] * 2) + word[at + 1 :]


@register_kind("language", "minor", 1.0)
def propose_spelling(text: Text, rng: random.Random) -> Edit | None:
    """Misspell a word of at least four letters."""
    places = [match for match in text.words if len(match[0]) >= 4 and text.is_free(*match.span())]
    if not places:
        return None
    place = rng.choice(places)
    new = _misspell(place[0], rng)
    if new == place[0]:
        return None
    return Edit(
        kind="spelling", start=place.start(), end=place.end(), text=new,
        explanation=f"{quote(new)} is misspelt: it should be {quote(place[0])}.",
    )  # fmt: skip


@register_kind("language", "minor", 1.0, needs=("English",))
def propose_agreement(text: Text, rng: random.Random) -> Edit | None:
    """Give a verb the form that does not agree with its subject."""
    return exchange(
        text,
        rng,
        "agreement",
        "agreement",
        lambda old, new: f"{quote(new)} does not agree with its subject: {quote(old)}.",
    )


@register_kind("language", "minor", 1.0, needs=("English",))
def propose_tense(text: Text, rng: random.Random) -> Edit | None:
    """Change the tense of one verb."""
    return exchange(
        text,
        rng,
        "tenses",
        "tense",
        lambda old, new: f"The tense of {quote(new)} does not fit: it should be {quote(old)}.",
    )


@register_kind("language", "minor", 0.5)
def propose_punctuation(text: Text, rng: random.Random) -> Edit | None:
    """Run two sentences together, drop a comma or an apostrophe, or put a comma where none belongs."""
    ways = [
        (match, ", " + match["next"].lower(), "Two sentences are run together.")
        for match in text.find(re.compile(r"(?<=[a-z])\. (?P<next>[A-Z])(?=[a-z])"))
    ]
    ways += [(match, "", "A comma is missing.") for match in text.find(re.compile(r"(?<=\w),(?= \w)"))]
    ways += [
        (match, "", "An apostrophe is missing.") for match in text.find(re.compile(r"(?<=\w)['’](?=s\b|t\b|re\b)"))
    ]
    ways += [
        (match, ",", "A comma stands where none belongs.")
        for match in text.find(re.compile(r"(?<= the)(?= [a-z]{4})|(?<= of)(?= [a-z]{4})"))
    ]
    if not ways:
        return None
    place, new, explanation = rng.choice(ways)
    return Edit(kind="punctuation", start=place.start(), end=place.end(), text=new, explanation=explanation)


@register_kind("language", "minor", 0.5)
def propose_capitalisation(text: Text, rng: random.Random) -> Edit | None:
    """Write a name or the start of a sentence small, or an ordinary word with a capital letter."""
    places = [match for match in text.words if len(match[0]) > 2 and text.is_free(*match.span())]
    capitals = [match for match in places if match[0][0].isupper() and match[0][1:].islower()]
    chosen = capitals if capitals and rng.random() < 0.7 else [match for match in places if match[0].islower()]
    if not chosen:
        return None
    place = rng.choice(chosen)
    new = place[0][0].swapcase() + place[0][1:]
    if new == place[0]:
        return None
    return Edit(
        kind="capitalisation", start=place.start(), end=place.end(), text=new,
        explanation=f"It should be written {quote(place[0])}.",
    )  # fmt: skip


@register_kind("language", "minor", 1.0)
def propose_word_order(text: Text, rng: random.Random) -> Edit | None:
    """Exchange two neighbouring words."""
    pairs = [
        (first, second)
        for first, second in pairwise(text.words)
        if text.output[first.end() : second.start()] == " "
        and first[0].lower() != second[0].lower()
        and text.is_free(first.start(), second.end())
    ]
    if not pairs:
        return None
    first, second = rng.choice(pairs)
    new = f"{match_case(second[0], first[0])} {first[0] if first[0] == 'I' else first[0].lower()}"
    if new == text.output[first.start() : second.end()]:
        return None
    return Edit(
        kind="word_order",
        start=first.start(),
        end=second.end(),
        text=new,
        explanation="The words are in the wrong order.",
    )


@register_kind("style", "minor", 1.0, needs=("English",))
def propose_register(text: Text, rng: random.Random) -> Edit | None:
    """Replace a plain word by slang or by officialese."""
    return exchange(
        text,
        rng,
        "register",
        "register",
        lambda old, new: f"The tone of {quote(new)} does not fit; plainly: {quote(old)}.",
    )


def _format_like(value: float, model: str) -> str:
    decimals = len(model.partition(".")[2])
    return f"{value:,.{decimals}f}" if "," in model else f"{value:.{decimals}f}"


@register_kind("calculation", "major", 4.0, tasks=("math",))
def propose_arithmetic(text: Text, rng: random.Random) -> Edit | None:
    """Change the result of a calculation."""
    places = [match for match in _EQUATION.finditer(text.output) if text.is_free(*match.span("result"))]
    if not places:
        return None
    place = rng.choice(places)
    right = place["result"]
    value = float(right.replace(",", ""))
    step = 10.0 ** -len(right.partition(".")[2])
    slip = rng.choice([step, -step, 2 * step, 10 * step, -10 * step])
    new = _format_like(value + slip, right)
    start, end = place.span("result")
    calculation = text.output[place.start() : start].strip().rstrip("=$£€ ")
    return Edit(kind="arithmetic", start=start, end=end, text=new, explanation=f"{calculation} is {right}, not {new}.")


@register_kind("method", "major", 4.0, tasks=("math",))
def propose_operator(text: Text, rng: random.Random) -> Edit | None:
    """Calculate with the wrong operation."""
    places = [match for match in _EQUATION.finditer(text.output) if text.is_free(*match.span("operator"))]
    if not places:
        return None
    place = rng.choice(places)
    old = place["operator"]
    new = rng.choice([sign for sign in "+-*/" if sign not in (old, {"x": "*", "×": "*", "÷": "/", "−": "-"}.get(old))])
    start, end = place.span("operator")
    return Edit(
        kind="operator", start=start, end=end, text=new,
        explanation=f"The step needs {quote(old)}, not {quote(new)}.",
    )  # fmt: skip


def _align(text: Text, rng: random.Random) -> tuple[re.Match[str], re.Match[str]] | None:
    """A word of the output and the word of the source at about the same share of the text, both of them long."""
    sources = [match for match in WORD.finditer(text.source) if len(match[0]) >= 4]
    words = [match for match in text.words if len(match[0]) >= 4 and text.is_free(*match.span())]
    known = {match[0].lower() for match in text.words}
    sources = [match for match in sources if match[0].lower() not in known]
    if not sources or not words:
        return None
    word = rng.choice(words)
    share = word.start() / max(1, len(text.output))
    near = min(sources, key=lambda match: abs(match.start() / max(1, len(text.source)) - share))
    return word, near


@register_kind("facts", "major", 3.0, tasks=("translation",), needs=("source",))
def propose_untranslated(text: Text, rng: random.Random) -> Edit | None:
    """Leave a word in the language of the source. Words are aligned by where they stand."""
    pair = _align(text, rng)
    if pair is None:
        return None
    word, near = pair
    return Edit(
        kind="untranslated", start=word.start(), end=word.end(), text=near[0],
        explanation=f"{quote(near[0])} is left in the language of the source: {quote(word[0])}.", evidence=near.span(),
    )  # fmt: skip


@register_kind("facts", "major", 3.0, tasks=("translation",), needs=("source", "donor"))
def propose_mistranslated(text: Text, rng: random.Random) -> Edit | None:
    """Replace a word by one of the donor's translation with the same ending."""
    pair = _align(text, rng)
    if pair is None:
        return None
    word, near = pair
    others = {
        other for other in WORD.findall(text.donor_output)
        if len(other) >= 4 and other[0].isupper() == word[0][0].isupper() and other not in text.output
    }  # fmt: skip
    alike = {other for other in others if other[-2:] == word[0][-2:]} or others
    if not alike:
        return None
    new = rng.choice(sorted(alike))
    return Edit(
        kind="mistranslated", start=word.start(), end=word.end(), text=new,
        explanation=f"{quote(new)} is a wrong translation: it should be {quote(word[0])}.", evidence=near.span(),
    )  # fmt: skip


@register_kind("content", "major", 4.0)
def propose_truncation(text: Text, rng: random.Random) -> Edit | None:
    """Break off in the middle of a sentence, after at least a third of the text."""
    least = len(text.output) // 3
    cuts = [match.end() for match in text.words[:-1] if match.end() > least]
    cuts = [cut for cut in cuts if text.output[cut : cut + 1] == " " and text.is_free(cut, len(text.output))]
    if not cuts:
        return None
    cut = rng.choice(cuts)
    missing = text.output[cut:]
    return Edit(
        kind="truncation", start=cut, end=len(text.output), text="", explanation="The text breaks off.",
        evidence=text.find_passage(missing),
    )  # fmt: skip


@register_kind("content", "major", 5.0)
def propose_empty(text: Text, rng: random.Random) -> Edit | None:  # noqa: ARG001
    """Leave nothing."""
    if not text.output.strip() or not text.is_free(0, len(text.output)):
        return None
    return Edit(kind="empty", start=0, end=len(text.output), text="", explanation="There is no text.")


@register_kind("language", "major", 5.0)
def propose_gibberish(text: Text, rng: random.Random) -> Edit | None:
    """Replace a sentence by letters without meaning."""
    spans = [span for span in text.sentences if text.is_free(*span)]
    if not spans:
        return None
    start, end = rng.choice(spans)
    letters = "abcdefghijklmnopqrstuvwxyz"

    def scramble(match: re.Match[str]) -> str:
        return match_case("".join(rng.choices(letters, k=len(match[0]))), match[0])

    new = WORD.sub(scramble, text.output[start:end])
    if new == text.output[start:end]:
        return None
    return Edit(kind="gibberish", start=start, end=end, text=new, explanation="This cannot be read.")


# ---- Changes that do no harm


@register_harmless
def propose_paraphrase(text: Text, rng: random.Random) -> Edit | None:
    """Say a word or phrase in another way that means the same."""
    return exchange(text, rng, "paraphrases", "paraphrase", lambda *_: "The meaning is the same.")


@register_harmless
def propose_quotation_marks(text: Text, rng: random.Random) -> Edit | None:
    """Write straight marks curly, or curly ones straight."""
    table = {"'": "’", "’": "'", "“": '"', "”": '"', "—": " - ", "–": "-"}
    places = text.find(re.compile("['’“”—–]"))
    if not places:
        return None
    place = rng.choice(places)
    return Edit(
        kind="quotation_marks", start=place.start(), end=place.end(), text=table[place[0]],
        explanation="Only the form of a mark differs.",
    )  # fmt: skip


@register_harmless
def propose_spaces(text: Text, rng: random.Random) -> Edit | None:
    """Put two spaces between sentences or words."""
    places = text.find(re.compile(r"(?<=\S) (?=\S)"))
    if not places:
        return None
    place = rng.choice(places)
    return Edit(
        kind="spaces", start=place.start(), end=place.end(), text="  ", explanation="There is only one more space."
    )


@register_harmless
def propose_lower_case(text: Text, rng: random.Random) -> Edit | None:  # noqa: ARG001
    """Write the whole text in small letters."""
    new = text.output.lower()
    if new == text.output or not text.is_free(0, len(text.output)):
        return None
    return Edit(kind="lower_case", start=0, end=len(text.output), text=new, explanation="Only capital letters differ.")


@register_harmless
def propose_padding(text: Text, rng: random.Random) -> Edit | None:
    """Add a sentence that says nothing."""
    return insert_sentence(text, rng, "padding", str(rng.choice(read_lists()["padding"])), "The sentence says nothing.")
