"""Parse the grades in a judge's answer: only grades that the rubric offers, and only the judge's own.

The answer ends with a JSON object that carries the mark of the prompt's fences as its last member. No text of the
record contains that mark, so an object that has it was not copied from one. If the judge forgets the mark, its last
object is used, unless a text of the record seems to contain grades itself.

The expected grade (G-Eval, Liu et al., 2023) weighs each level of a numeric scale by the probability that the model
gave it. Levels are whole numbers of one or two digits. A model with single-digit tokens writes 10 as two tokens: the
probability of the second comes from the next token, which is known only for the grade that was written. If other such
grades carry weight, the expectation is refused."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from metrist.llm.messages import TokenChoice
from metrist.metrics.answer_parsing import JsonObject, find_broken_keys, find_objects, is_cut_off
from metrist.metrics.judge.rubrics import MARK_KEY, REASONS_KEY, Aspect, Level
from metrist.metrics.llm_metric import UnparsableAnswer
from metrist.metrics.prompt_layout import fold_lookalikes

_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?")
_DIGITS = re.compile(r"[\s\"'“:]*(?P<digits>\d+)(?P<after>[\s\"'”,}]*)")
#: The largest share of probability on beginnings of grades whose ends are unknown.
_MAX_UNCLEAR = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Grades:
    """The grades of an answer. `problems` says why an aspect has no grade; `spans` has the offsets of the grades."""

    levels: Mapping[str, Level]
    problems: Mapping[str, str]
    spans: Mapping[str, tuple[int, int]]
    reasons: str
    repaired: bool

    def require(self, names: Iterable[str]) -> None:
        """Reject the answer if one of these aspects has no grade."""
        if problems := [self.problems[name] for name in names if name in self.problems]:
            raise UnparsableAnswer("; ".join(problems))


def parse_grades(answer: str, aspects: Sequence[Aspect], mark: str, texts: Sequence[str]) -> Grades:
    """The judge's own grades. `texts` are the record's texts in the prompt."""
    graded = find_own_object(answer, mark, [aspect.name for aspect in aspects], texts)
    levels: dict[str, Level] = {}
    problems: dict[str, str] = {}
    for aspect in aspects:
        name, key = aspect.name, aspect.name.lower()
        grade = graded.values.get(key)
        level = _find_level(aspect, grade)
        if key not in graded.values:
            problems[name] = f"the answer has no grade for {name}"
        elif key in graded.contradicted:
            problems[name] = f"the answer has two different grades for {name}"
        elif level is None:
            text = f"{grade:g}" if isinstance(grade, float) else repr(grade)
            text = text if len(text) <= 40 else f"{text[:40]}…"
            problems[name] = f"{name}: got {text}, expected one of {aspect.choices}"
        else:
            levels[name] = level
    # The reasons inside the object, or the text before it.
    reasons = graded.values.get(REASONS_KEY)
    if not isinstance(reasons, str) or not reasons.strip():
        reasons = re.sub(r"```\w*\s*$", "", answer[: graded.start])
    return Grades(
        levels=levels,
        problems=problems,
        spans={name: graded.spans[name.lower()] for name in levels},
        reasons=reasons.strip(),
        repaired=graded.repaired,
    )


def find_own_object(answer: str, mark: str, keys: Sequence[str], texts: Sequence[str]) -> JsonObject:
    """The last object that carries the mark; without one, the last object if the texts leave no doubt about it."""
    objects = find_objects(answer)
    if not objects:
        if is_cut_off(answer):
            raise UnparsableAnswer("the answer ends before its JSON object is closed")
        raise UnparsableAnswer("the answer has no JSON object")
    marked = [candidate for candidate in objects if str(candidate.values.get(MARK_KEY)).strip() == mark]
    if not marked and has_planted_grade(keys, texts):
        raise UnparsableAnswer(
            f"the answer lacks the required {MARK_KEY}, and a text of the record seems to contain grades: the grades "
            "cannot be attributed to the judge"
        )
    own = (marked or objects)[-1]
    graded = {key.lower() for key in keys}
    # If the judge quotes a text without escaping, its own object is not closed, and the next may be the text's.
    if own.broken & graded:
        raise UnparsableAnswer("a JSON object with grades is not closed: the next one may not be the judge's own")
    # A judge that reconsiders means its last grades; those before are a draft.
    if find_broken_keys(answer, own.end) & {*graded, REASONS_KEY, MARK_KEY}:
        raise UnparsableAnswer("the last JSON object is not closed: the grades before it may not be final")
    return own


def has_planted_grade(keys: Iterable[str], texts: Iterable[str]) -> bool:
    """Whether a text contains something that could be parsed as a grade, also in look-alike letters."""
    names = "|".join(re.escape(fold_lookalikes(key)) for key in keys)
    pattern = re.compile(rf"(?:{names})\W*[:=]")
    return any(pattern.search(fold_lookalikes(text)) for text in texts)


def _find_level(aspect: Aspect, grade: Any) -> Level | None:
    """The level that a grade names: in words on a categorical scale, else as a number or its text."""
    if not aspect.categorical and isinstance(grade, str) and _NUMBER.fullmatch(grade.strip()):
        grade = float(grade)
    for level in aspect.levels:
        if aspect.categorical and isinstance(grade, str) and grade.strip().lower() == level.name.lower():
            return level
        if not aspect.categorical and isinstance(grade, float) and grade == level.value:
            return level
    return None


@dataclass(frozen=True, slots=True)
class ExpectedGrade:
    """The mean grade, and the probability of anything but a grade of the scale."""

    value: float
    outside: float


def find_scale_problem(aspect: Aspect) -> str | None:
    """Why the aspect's scale has no expectation; None if it has one."""
    if aspect.categorical:
        return "its levels are categories"
    if any(not re.fullmatch(r"\d{1,2}", level.name) for level in aspect.levels):
        return "its levels must be whole numbers from 0 to 99, which a model writes as one or two tokens"
    return None


def compute_expected_grade(tokens: Sequence[TokenChoice], span: tuple[int, int], aspect: Aspect) -> ExpectedGrade:
    """The expectation at the grade at offsets `span` of the tokens' text."""
    at, digits = _find_grade_token(tokens, span)
    # The probability that the next token continues with another digit, by digit.
    next_digits: dict[str, float] = {}
    for token in tokens[at + 1 : at + 2]:
        for text, p in _token_probabilities(token):
            if text[:1].isdigit():
                next_digits[text[0]] = next_digits.get(text[0], 0.0) + p
    mass, unclear = _level_probabilities(tokens[at], digits, next_digits, aspect)
    inside = math.fsum(mass.values())
    if not inside:
        raise UnparsableAnswer(f"{aspect.name}: none of the model's likely tokens is a grade of the rubric")
    if unclear > _MAX_UNCLEAR * inside:
        raise UnparsableAnswer(
            f"{aspect.name}: the model writes digits one by one, and some probability lies on a digit that may begin a "
            "longer grade; use a scale of one digit, or method='answer'"
        )
    values = {level.name: level.value for level in aspect.levels}
    mean = math.fsum(values[name] * p for name, p in mass.items()) / inside
    return ExpectedGrade(mean, min(1.0, max(0.0, 1.0 - inside)))


def join_tokens(tokens: Sequence[TokenChoice]) -> str:
    """The text of the tokens."""
    return "".join(token.text for token in tokens)


def _find_grade_token(tokens: Sequence[TokenChoice], span: tuple[int, int]) -> tuple[int, str]:
    """The index of the token in which the grade begins, and the grade's digits in it."""
    grade = re.search(r"\d+", join_tokens(tokens)[slice(*span)])
    offset = span[0] + (grade.start() if grade else 0)
    start = 0
    for index, token in enumerate(tokens):
        end = start + len(token.text)
        if start <= offset < end:
            match = _DIGITS.fullmatch(token.text)
            if match is None:
                break
            return index, match["digits"]
        start = end
    raise UnparsableAnswer("the grade shares a token with other words, so its probability is unknown")


def _level_probabilities(
    token: TokenChoice, written_digits: str, next_digits: Mapping[str, float], aspect: Aspect
) -> tuple[dict[str, float], float]:
    """The probability of each level, and of beginnings that could become several."""
    # In the rubric's order, not a set's: sums must not differ in the last digit between processes.
    names = [level.name for level in aspect.levels]
    candidates = [(match, p) for text, p in _token_probabilities(token) if (match := _DIGITS.fullmatch(text))]
    candidate_digits = {match["digits"] for match, _ in candidates}
    mass = dict.fromkeys(names, 0.0)
    unclear = 0.0
    for match, p in candidates:
        digits = match["digits"]
        longer = {name for name in names if len(name) > len(digits) and name.startswith(digits)}
        if digits == written_digits and longer and not match["after"]:
            for name in longer:
                mass[name] += p * next_digits.get(name[len(digits)], 0.0)
            if digits in names:
                mass[digits] += p * max(0.0, 1.0 - sum(next_digits.values()))
        elif longer and not match["after"] and not longer <= candidate_digits:
            unclear += p
        elif digits in names:
            mass[digits] += p
    return {name: p for name, p in mass.items() if p > 0}, unclear


def _token_probabilities(token: TokenChoice) -> Iterator[tuple[str, float]]:
    """The written token and its alternatives, each once, with their probabilities."""
    logprobs = {token.text: token.logprob, **dict(token.alternatives)}
    return ((text, math.exp(min(0.0, logprob))) for text, logprob in logprobs.items() if math.isfinite(logprob))
