"""Reads grades out of a judge's answer: only such as the rubric offers, and only the judge's own.

The judge ends its answer with a JSON object that carries the mark of the prompt's fences as its last member. No text of
the record holds that mark, so an object that has it was not copied from one. A judge that forgets the mark is read by
its last object, unless a text of the record looks as if it gave grades itself: then nobody could say whose they are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from metrist.llm.messages import TokenChoice
from metrist.metrics.answer_parsing import FoundObject, broken_off, objects_in
from metrist.metrics.judge.rubrics import MARK, REASONS, Aspect, Level
from metrist.metrics.llm_metric import Unreadable
from metrist.metrics.prompt_layout import plain_letters

_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Grades:
    """What an answer grades. `faults` says of each aspect without a grade why it has none; `spans` says where in the
    answer the grades stand."""

    levels: Mapping[str, Level]
    faults: Mapping[str, str]
    spans: Mapping[str, tuple[int, int]]
    reasons: str
    repaired: bool

    def need(self, names: Iterable[str]) -> None:
        """Refuse an answer in which one of these aspects has no grade."""
        if wanting := [self.faults[name] for name in names if name in self.faults]:
            raise Unreadable("; ".join(wanting))


def read_grades(answer: str, aspects: Sequence[Aspect], mark: str, texts: Sequence[str]) -> Grades:
    """The judge's own grades. `texts` are those of the record that stood in the prompt."""
    own = own_object(answer, mark, [aspect.name for aspect in aspects], texts)
    levels: dict[str, Level] = {}
    faults: dict[str, str] = {}
    for aspect in aspects:
        try:
            levels[aspect.name] = _level(aspect, own)
        except Unreadable as fault:
            faults[aspect.name] = str(fault)
    spans = {name: own.spans[name.lower()] for name in levels}
    return Grades(levels=levels, faults=faults, spans=spans, reasons=_reasons(answer, own), repaired=own.repaired)


def own_object(answer: str, mark: str, keys: Sequence[str], texts: Sequence[str]) -> FoundObject:
    """The last object that carries the mark; without one, the last of all if the texts leave no doubt whose it is."""
    found = objects_in(answer)
    if not found:
        raise Unreadable("the answer has no JSON object")
    marked = [one for one in found if str(one.values.get(MARK)).strip() == mark]
    if not marked and planted(keys, texts):
        raise Unreadable(
            f"the answer lacks the {MARK} that it was to carry, and a text of the record looks as if it gave grades "
            "itself: whose these are cannot be told"
        )
    own = (marked or found)[-1]
    graded = {key.lower() for key in keys}
    # Where the judge quotes a text without escapes, its own grades break off, and what is next may be the text's.
    if own.broken & graded:
        raise Unreadable("a JSON object with grades breaks off in the answer: whose the next ones are is not sure")
    # A judge that thinks again means its last grades: those before are a draft.
    if broken_off(answer, own.end) & {*graded, REASONS, MARK}:
        raise Unreadable(
            "the last JSON object of the answer breaks off: the grades before it need not be the final ones"
        )
    return own


def planted(keys: Iterable[str], texts: Iterable[str]) -> bool:
    """Whether one of the texts has something that could be read as a grade, whatever letters it is dressed up in."""
    names = "|".join(re.escape(plain_letters(key)) for key in keys)
    pattern = re.compile(rf"(?:{names})\W*[:=]")
    return any(pattern.search(plain_letters(text)) for text in texts)


def _level(aspect: Aspect, own: FoundObject) -> Level:
    key = aspect.name.lower()
    if key not in own.values:
        raise Unreadable(f"the answer has no grade for {aspect.name}")
    given = own.values[key]
    if key in own.contradicted:
        raise Unreadable(f"the answer grades {aspect.name} twice, and differently")
    for level in aspect.levels:
        if _says(given, level, aspect.categorical):
            return level
    raise Unreadable(f"{aspect.name}: got {_shown(given)}, wanted one of {aspect.offered}")


def _says(given: Any, level: Level, categorical: bool) -> bool:
    if categorical:
        return isinstance(given, str) and given.strip().lower() == level.name.lower()
    if isinstance(given, str) and _NUMBER.fullmatch(given.strip()):
        return float(given) == level.value
    return isinstance(given, float) and given == level.value


def _shown(given: Any) -> str:
    text = f"{given:g}" if isinstance(given, float) else repr(given)
    return text if len(text) <= 40 else f"{text[:40]}…"


def _reasons(answer: str, own: FoundObject) -> str:
    """The reasons within the object, or what stands before it."""
    said = own.values.get(REASONS)
    before = re.sub(r"```\w*\s*$", "", answer[: own.start])
    return said.strip() if isinstance(said, str) and said.strip() else before.strip()


# The expected grade: each level of a numeric scale times the probability that the model gave it where it wrote the
# grade (Liu et al., 2023: G-Eval), so that a judge that wavers between 3 and 4 says so.
#
# Levels are whole numbers of one or two digits. A model whose tokens are single digits writes 10 as two of them: the
# probability of the second is then taken from the next token, which is known for the grade that was written. For other
# grades it is not, and where they carry weight the expectation is refused.


_DIGITS = re.compile(r"[\s\"'“:]*(?P<digits>\d+)(?P<after>[\s\"'”,}]*)")
#: Up to this share of probability may lie on beginnings of grades whose ends are not known.
_UNCLEAR = 0.01


@dataclass(frozen=True, slots=True)
class Expected:
    """The mean grade, and the probability that lay on anything but a grade of the scale."""

    value: float
    outside: float


def unfit(aspect: Aspect) -> str | None:
    """Why the aspect's scale has no expectation; None where it has one."""
    if aspect.categorical:
        return "its levels are categories"
    if any(not re.fullmatch(r"\d{1,2}", level.name) for level in aspect.levels):
        return "its levels must be whole numbers from 0 to 99, which a model writes as one token or two"
    return None


def expected_grade(tokens: Sequence[TokenChoice], span: tuple[int, int], aspect: Aspect) -> Expected:
    """The expectation at the grade that stands at `span` of the text that the tokens spell."""
    at, first = _token_at(tokens, span)
    mass, unclear = _masses(tokens[at], first, _continued(tokens, at), aspect)
    inside = math.fsum(mass.values())
    if not inside:
        raise Unreadable(f"{aspect.name}: none of the model's likely tokens is a grade of the rubric")
    if unclear > _UNCLEAR * inside:
        raise Unreadable(
            f"{aspect.name}: the model writes digits one by one, and some of the probability lies on one that may "
            "begin a longer grade; take a scale of one digit, or method='answer'"
        )
    values = {level.name: level.value for level in aspect.levels}
    mean = math.fsum(values[name] * p for name, p in mass.items()) / inside
    return Expected(mean, min(1.0, max(0.0, 1.0 - inside)))


def spelled(tokens: Sequence[TokenChoice]) -> str:
    """The text of the tokens."""
    return "".join(token.text for token in tokens)


def _token_at(tokens: Sequence[TokenChoice], span: tuple[int, int]) -> tuple[int, str]:
    """The number of the token in which the grade begins, and the grade's digits in it."""
    grade = re.search(r"\d+", spelled(tokens)[slice(*span)])
    place = span[0] + (grade.start() if grade else 0)
    start = 0
    for number, token in enumerate(tokens):
        end = start + len(token.text)
        if start <= place < end:
            found = _DIGITS.fullmatch(token.text)
            if found is None:
                break
            return number, found["digits"]
        start = end
    raise Unreadable("the grade stands in a token together with other words: its probability cannot be told")


def _continued(tokens: Sequence[TokenChoice], at: int) -> Mapping[str, float]:
    """How likely the next token was to go on with another digit, by digit."""
    if at + 1 == len(tokens):
        return {}
    found: dict[str, float] = {}
    for text, p in _weighed(tokens[at + 1]):
        if text[:1].isdigit():
            found[text[0]] = found.get(text[0], 0.0) + p
    return found


def _masses(
    token: TokenChoice, chosen: str, continued: Mapping[str, float], aspect: Aspect
) -> tuple[dict[str, float], float]:
    """The probability of each level, and of beginnings that could become several."""
    # In the rubric's order, not in that of a set: sums must not differ in the last digit from process to process.
    names = [level.name for level in aspect.levels]
    read = [(found, p) for text, p in _weighed(token) if (found := _DIGITS.fullmatch(text))]
    written = {found["digits"] for found, _ in read}
    mass = dict.fromkeys(names, 0.0)
    unclear = 0.0
    for found, p in read:
        digits = found["digits"]
        longer = {name for name in names if len(name) > len(digits) and name.startswith(digits)}
        if digits == chosen and longer and not found["after"]:
            for name in longer:
                mass[name] += p * continued.get(name[len(digits)], 0.0)
            if digits in names:
                mass[digits] += p * max(0.0, 1.0 - sum(continued.values()))
        elif longer and not found["after"] and not longer <= written:
            unclear += p
        elif digits in names:
            mass[digits] += p
    return {name: p for name, p in mass.items() if p > 0}, unclear


def _weighed(token: TokenChoice) -> Iterator[tuple[str, float]]:
    """The token that was written and its alternatives, each once, with their probabilities."""
    seen = {token.text: token.logprob, **dict(token.alternatives)}
    # What is no number says nothing of its token.
    return ((text, math.exp(min(0.0, logprob))) for text, logprob in seen.items() if math.isfinite(logprob))
