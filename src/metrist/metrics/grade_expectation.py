"""The expected grade: each level of a numeric scale times the probability that the model gave it where it wrote the
grade (Liu et al., 2023: G-Eval), so that a judge that wavers between 3 and 4 says so.

Levels are whole numbers of one or two digits. A model whose tokens are single digits writes 10 as two of them: the
probability of the second is then taken from the next token, which is known for the grade that was written. For other
grades it is not, and where they carry weight the expectation is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from metrist.llm.talk import TokenChoice
from metrist.metrics.judging import Unreadable
from metrist.metrics.rubrics import Aspect

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
