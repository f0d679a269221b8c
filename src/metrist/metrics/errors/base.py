"""What metrics that find errors have in common: a score is minus the sum of the penalties, and its parts say what such
a sum hides: that long outputs have room for more errors, and whether the errors can be found in the output at all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from metrist.metrics.base import check_choice
from metrist.metrics.errors.answers import ErrorAnswer
from metrist.metrics.errors.fuzzy_matching import normalise
from metrist.metrics.errors.span_alignment import is_grounded
from metrist.metrics.lexical.tokenizers import tokenise
from metrist.metrics.llm_metric import LLMMetric
from metrist.ratings import Error, Side
from metrist.scores import Score, Scores

Ungrounded = Literal["keep", "drop"]

ERRORS, PER_100_WORDS, WORST = "errors", "penalty_per_100_words", "worst_penalty"
GROUNDED, IN_SOURCE, DROPPED = "grounded", "in_source", "dropped"
PARTIAL, DEFAULT_INSTRUCTION = "partial", "default_instruction"


@dataclass(frozen=True, kw_only=True)
class ErrorMetric(LLMMetric):
    """A metric that finds errors. `ungrounded` says what becomes of those whose words are neither in the output nor in
    the source: what was left out of an output can be quoted from the source alone."""

    bounds: ClassVar[tuple[float, float]] = (-math.inf, 0.0)

    ungrounded: Ungrounded = "keep"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "ungrounded", ("keep", "drop"))

    def remarks(self, scores: Scores) -> list[str]:
        """Besides coverage and cost: how many errors could be placed, and which answers were not as they should be."""
        return [*super().remarks(scores), *(f"{self.text}: {said}" for said in _said_of(scores))]


def count_words(texts: Sequence[str]) -> list[int]:
    """How many words each text has; in scripts without spaces each character is one."""
    lengths: list[int] = tokenise(texts, "unicode").lengths.tolist()
    return lengths


def score_errors(errors: Sequence[Error], answer: ErrorAnswer, words: int, *, ungrounded: Ungrounded) -> Score:
    """The score of an output with so many words, from its errors and the answer that named them."""
    kept = filter_errors(errors, ungrounded)
    penalties = [error.penalty or 0.0 for error in kept]
    total = math.fsum(penalties)
    return Score(
        # Nothing is subtracted from nothing: not the minus zero that negating would leave.
        value=0.0 - total,
        parts={
            ERRORS: float(len(kept)),
            PER_100_WORDS: 100 * total / max(words, 1),
            WORST: max(penalties, default=0.0),
            GROUNDED: _share(errors, "output"),
            IN_SOURCE: _share(errors, "source"),
            DROPPED: float(len(errors) - len(kept)),
            PARTIAL: float(answer.partial),
        },
        errors=tuple(kept),
        explanation="; ".join(answer.notes) or None,
    )


def filter_errors(errors: Sequence[Error], ungrounded: Ungrounded) -> list[Error]:
    """The errors that count."""
    return [error for error in errors if ungrounded == "keep" or is_grounded(error)]


def _share(errors: Sequence[Error], side: Side) -> float:
    """The share of the errors whose words were found on that side; NaN where there are no errors."""
    found = sum(is_grounded(error) and error.side == side for error in errors)
    return found / len(errors) if errors else math.nan


def _said_of(scores: Scores) -> list[str]:
    def part(name: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.nan_to_num(scores.parts.get(name, np.zeros(len(scores))))

    found = part(ERRORS) + part(DROPPED)
    total = round(float(found.sum()))
    placed, elsewhere = (round(float((part(name) * found).sum())) for name in (GROUNDED, IN_SOURCE))
    said = []
    if total:
        only = f", {elsewhere:,} ({elsewhere / total:.1%}) in the source only" if elsewhere else ""
        lost = f", {int(part(DROPPED).sum()):,} without a place were dropped" if part(DROPPED).any() else ""
        said.append(f"{placed:,} of {total:,} errors ({placed / total:.1%}) stand in the output{only}{lost}")
    if partial := int(part(PARTIAL).sum()):
        said.append(f"{partial:,} answers were cut off or incomplete; their scores count what was complete")
    if noted := len(scores.explanations):
        said.append(f"{noted:,} answers were odd in some way; their explanations say how")
    if default := int(part(DEFAULT_INSTRUCTION).sum()):
        said.append(f"{default:,} records have no instruction; they were judged under their task's default one")
    return said


# Errors of several analyses of one output, put together: those about the same words become one.


@dataclass(frozen=True, slots=True)
class MergedError:
    """One error for several, and what each analysis takes off for it: 0 where it did not find it."""

    error: Error
    penalties: tuple[float, ...]


def merge_errors(analyses: Sequence[Sequence[Error]]) -> tuple[MergedError, ...]:
    """One error for those of different analyses whose places overlap, or whose words are the same where they have no
    place. Its penalty is their sum over the number of analyses, so that all penalties together are the analyses' mean;
    the words are those of the one with the middle penalty."""
    groups: list[dict[int, Error]] = []
    for number, errors in enumerate(analyses):
        for error in errors:
            _put(groups, number, error)
    return tuple(_merged(group, len(analyses)) for group in groups)


def compute_spread(found: Sequence[MergedError], counted: Sequence[Error]) -> float:
    """The standard deviation between the analyses of what they take off for the errors that count."""
    ids = {id(error) for error in counted}
    rows = [one.penalties for one in found if id(one.error) in ids]
    return float(np.std([math.fsum(column) for column in zip(*rows, strict=True)])) if rows else 0.0


def _merged(group: Mapping[int, Error], analyses: int) -> MergedError:
    penalties = (group[n].penalty or 0.0 if n in group else 0.0 for n in range(analyses))
    return MergedError(_one(list(group.values()), analyses), tuple(penalties))


def _put(groups: list[dict[int, Error]], number: int, error: Error) -> None:
    """Add the error to the group that it overlaps most, but never two errors of one analysis to the same group."""
    open_groups = [group for group in groups if number not in group]
    shares = [max(_shared(error, other) for other in group.values()) for group in open_groups]
    best = max(range(len(shares)), key=shares.__getitem__, default=None)
    if best is not None and shares[best] > 0:
        open_groups[best][number] = error
    else:
        groups.append({number: error})


def _shared(one: Error, other: Error) -> float:
    """How many characters of the two are the same, as a share of all that they cover."""
    if one.start is None or one.end is None or other.start is None or other.end is None:
        same = one.start is other.start is None and _words(one) == _words(other)
        return float(same and bool(_words(one)))
    if one.side != other.side:
        return 0.0
    both = min(one.end, other.end) - max(one.start, other.start)
    return max(both, 0) / max(max(one.end, other.end) - min(one.start, other.start), 1)


def _words(error: Error) -> str:
    return normalise(error.text).text.strip()


def _one(errors: Sequence[Error], analyses: int) -> Error:
    if analyses == 1:
        return errors[0]
    by_penalty = sorted(errors, key=lambda error: error.penalty or 0.0)
    middle = by_penalty[(len(by_penalty) - 1) // 2]
    penalty = math.fsum(error.penalty or 0.0 for error in errors) / analyses
    found = f"{middle.explanation} (found in {len(errors)} of {analyses} analyses)".strip()
    return replace(middle, penalty=penalty, explanation=found)
