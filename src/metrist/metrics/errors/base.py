"""The base of metrics that list errors: a score is minus the sum of the penalties.

The parts show what the sum hides: long outputs have room for more errors, and some errors cannot be found in the text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from metrist.errors import agree, format_count
from metrist.metrics.errors.answers import ErrorAnswer
from metrist.metrics.errors.fuzzy_matching import normalise
from metrist.metrics.errors.span_alignment import is_grounded
from metrist.metrics.lexical.tokenizers import tokenise
from metrist.metrics.llm_metric import LLMMetric
from metrist.ratings import Error
from metrist.scores import Score, Scores

Ungrounded = Literal["keep", "drop"]

ERRORS, PER_100_WORDS, WORST = "errors", "penalty_per_100_words", "worst_penalty"
GROUNDED, IN_SOURCE, DROPPED = "grounded", "in_source", "dropped"
PARTIAL, DEFAULT_INSTRUCTION = "partial", "default_instruction"


@dataclass(frozen=True, kw_only=True)
class ErrorMetric(LLMMetric):
    """A metric that lists errors.

    `ungrounded` decides whether errors count whose words are neither in the output nor in the source. (An omission can
    be quoted from the source only.)
    """

    bounds: ClassVar[tuple[float, float]] = (-math.inf, 0.0)
    reports_errors: ClassVar[bool] = True

    ungrounded: Ungrounded = "keep"

    def remarks(self, scores: Scores) -> list[str]:
        def part(name: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
            return np.nan_to_num(scores.parts.get(name, np.zeros(len(scores))))

        remarks = []
        counts = part(ERRORS) + part(DROPPED)
        if total := round(float(counts.sum())):
            in_output, in_source = (round(float((part(name) * counts).sum())) for name in (GROUNDED, IN_SOURCE))
            were = agree(in_output, "was", "were")
            errors = f"{format_count(total, 'error')} ({in_output / total:.1%})"
            remark = f"{in_output:,} of {errors} {were} located in the output"
            if in_source:
                remark += f", {in_source:,} ({in_source / total:.1%}) in the source only"
            if part(DROPPED).any():
                remark += f", {int(part(DROPPED).sum()):,} that were not located were dropped"
            remarks.append(remark)
        if partial := int(part(PARTIAL).sum()):
            answers = format_count(partial, "answer was", "answers were")
            remarks.append(f"{answers} truncated or incomplete; the errors that are complete count")
        if irregular := len(scores.explanations):
            answers = format_count(irregular, "answer was", "answers were")
            remarks.append(
                f"{answers} irregular; {agree(irregular, 'its explanation says', 'their explanations say')} how"
            )
        if default := int(part(DEFAULT_INSTRUCTION).sum()):
            records = format_count(default, "record has", "records have")
            remarks.append(
                f"{records} no instruction; the default one of {agree(default, 'its', 'their')} task was used"
            )
        return [*super().remarks(scores), *(f"{self.label}: {remark}" for remark in remarks)]


def count_words(texts: Sequence[str]) -> list[int]:
    """The number of words of each text; in scripts without spaces each character is a word."""
    lengths: list[int] = tokenise(texts, "unicode").lengths.tolist()
    return lengths


def score_errors(errors: Sequence[Error], answer: ErrorAnswer, words: int, *, ungrounded: Ungrounded) -> Score:
    """The score of an output with so many words, from its errors and the answer that listed them."""
    counted = [error for error in errors if ungrounded == "keep" or is_grounded(error)]
    # The shares of the errors whose words are on either side.
    shares = {
        side: sum(is_grounded(error) and error.side == side for error in errors) / len(errors) if errors else math.nan
        for side in ("output", "source")
    }
    more = {
        GROUNDED: shares["output"],
        IN_SOURCE: shares["source"],
        DROPPED: float(len(errors) - len(counted)),
        PARTIAL: float(answer.partial),
    }
    return sum_penalties(counted, words, more, "; ".join(answer.notes))


def sum_penalties(errors: Sequence[Error], words: int, parts: Mapping[str, float], explanation: str) -> Score:
    """The score of an output with so many words and these errors, with further parts."""
    penalties = [error.penalty or 0.0 for error in errors]
    total = math.fsum(penalties)
    return Score(
        # Subtracting avoids minus zero.
        value=0.0 - total,
        parts={
            ERRORS: float(len(errors)),
            PER_100_WORDS: 100 * total / max(words, 1),
            WORST: max(penalties, default=0.0),
            **parts,
        },
        errors=tuple(errors),
        explanation=explanation or None,
    )


# --- Merging the errors of several analyses of one output


@dataclass(frozen=True, slots=True)
class MergedError:
    """An error, and the penalty that each analysis gives it: 0 in an analysis without this error."""

    error: Error
    penalties: tuple[float, ...]


def merge_errors(analyses: Sequence[Sequence[Error]]) -> tuple[MergedError, ...]:
    """Merge errors of different analyses whose offsets overlap, or whose words are the same if they have no offsets.

    The penalty is their sum over the number of analyses, so that the total is the mean of the analyses' totals. The
    words are those of the error with the median penalty.
    """
    groups: list[dict[int, Error]] = []
    for number, errors in enumerate(analyses):
        for error in errors:
            # To the group that it overlaps most, but never two errors of one analysis to the same group.
            open_groups = [group for group in groups if number not in group]
            shares = [max(_overlap(error, other) for other in group.values()) for group in open_groups]
            best = max(range(len(shares)), key=shares.__getitem__, default=None)
            if best is not None and shares[best] > 0:
                open_groups[best][number] = error
            else:
                groups.append({number: error})
    merged = []
    for group in groups:
        penalties = tuple(group[n].penalty or 0.0 if n in group else 0.0 for n in range(len(analyses)))
        by_penalty = sorted(group.values(), key=lambda error: error.penalty or 0.0)
        error = by_penalty[(len(by_penalty) - 1) // 2]
        if len(analyses) > 1:
            found = f"(found in {len(group)} of {len(analyses)} analyses)"
            penalty = math.fsum(penalties) / len(analyses)
            error = replace(error, penalty=penalty, explanation=f"{error.explanation} {found}".strip())
        merged.append(MergedError(error=error, penalties=penalties))
    return tuple(merged)


def compute_spread(merged: Sequence[MergedError], counted: Sequence[Error]) -> float:
    """The standard deviation of the analyses' total penalties for the errors that count."""
    ids = {id(error) for error in counted}
    rows = [entry.penalties for entry in merged if id(entry.error) in ids]
    return float(np.std([math.fsum(column) for column in zip(*rows, strict=True)])) if rows else 0.0


def _overlap(first: Error, second: Error) -> float:
    """`compute_overlap` on the same side; of errors without offsets, 1 if their words are the same."""
    if first.start is None and second.start is None:
        words = normalise(first.text).text.strip()
        return float(bool(words) and words == normalise(second.text).text.strip())
    return compute_overlap(first, second) if first.side == second.side else 0.0


def compute_overlap(first: Error, second: Error) -> float:
    """The characters that both errors cover, as a share of those that either covers; 0 without offsets."""
    if first.start is None or first.end is None or second.start is None or second.end is None:
        return 0.0
    both = min(first.end, second.end) - max(first.start, second.start)
    return max(both, 0) / max(max(first.end, second.end) - min(first.start, second.start), 1)
