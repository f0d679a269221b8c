"""Agreement on errors by characters: precision, recall and F1 of a metric's errors against the humans'.

Each character of an output has the severity of the most severe error that covers it, once by the humans and once by the
metric. A character that both mark earns a credit: 1 if the severities agree, `partial` (a half, as in the WMT quality-
estimation tasks of 2023 to 2025) if they differ; an unstated severity agrees with any. Then

    precision = credit over the characters that the metric marks
    recall    = credit over the characters that humans mark
    F1        = their harmonic mean

over all outputs together (micro), so that an output counts by its marked characters. For a single severity, only
characters of that severity count as marked, on either side.

Errors without a position, or of no length, cover no character: they are counted and left out. Errors of several raters
of an output are combined, and the most severe wins.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from metrist.errors import RunError
from metrist.stats import Codes, Floats
from metrist.stats.gold import sum_by_code
from metrist.stats.measures import divide
from metrist.stats.resampling import bootstrap_scores, interval, pool_rows

UNSTATED = -1
#: Marks of a character: clean, an error of unstated severity, or severity + 2.
_CLEAN, _UNSTATED, _SEVERITIES = 0, 1, 2


#: The characters that a rater marks, as the bits of a number, by text.
Marks = Mapping[Hashable, int]


def compare_marks(one: Marks, other: Marks) -> float:
    """The share of the marked characters that only one of two raters marked: one minus Dice's coefficient; 0 where
    neither marked any."""
    total = sum(bits.bit_count() for own in (one, other) for bits in own.values())
    shared = sum((bits & other.get(text, 0)).bit_count() for text, bits in one.items())
    return 1 - 2 * shared / total if total else 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ErrorColumns:
    """Errors as columns: output, characters start to end (exclusive), severity (0 and up, a larger code is more severe;
    -1 unstated). `unplaced` counts those without a position in the text."""

    output: Codes
    start: Codes
    end: Codes
    severity: Codes
    unplaced: int

    @staticmethod
    def of(output: ArrayLike, start: ArrayLike, end: ArrayLike, severity: ArrayLike) -> ErrorColumns:
        """Make errors from long columns; an offset of -1 is unknown."""
        outputs, starts, ends, severities = (np.asarray(c, dtype=np.intp) for c in (output, start, end, severity))
        known = (starts >= 0) & (ends >= 0)
        if np.any(known & (ends < starts)):
            raise RunError("an error must end after it starts", code="invalid_value")
        positioned = known & (ends > starts)
        return ErrorColumns(
            output=outputs[positioned],
            start=starts[positioned],
            end=ends[positioned],
            severity=severities[positioned],
            unplaced=int(np.count_nonzero(~positioned)),
        )


class IntervalEstimate(NamedTuple):
    """A value with its bootstrap interval."""

    value: float
    low: float
    high: float


class Figures(NamedTuple):
    """Precision is NaN if the metric marks nothing, recall if humans mark nothing, F1 if neither marks anything."""

    precision: IntervalEstimate
    recall: IntervalEstimate
    f1: IntervalEstimate


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ErrorAgreement:
    """The figures overall and per severity code, and the number of errors on both sides without a position."""

    overall: Figures
    by_severity: dict[int, Figures]
    human_unplaced: int
    predicted_unplaced: int


def error_agreement(
    human: ErrorColumns,
    predicted: ErrorColumns,
    origin: Codes,
    draws: int,
    rng: np.random.Generator,
    partial: float = 0.5,
    confidence: float = 0.95,
) -> ErrorAgreement:
    """Measure the agreement of predicted with human errors, over outputs that both sides examined.

    `origin` holds, per output, the code of what is resampled for intervals: the output itself, or its item.
    """
    stated = np.unique(np.concatenate([human.severity, predicted.severity])).tolist()
    severities = [code for code in stated if code != UNSTATED]
    tables = count_characters(human, predicted, len(origin), severities, partial)
    units, unit = np.unique(origin, return_inverse=True)
    stats = np.zeros((len(tables), len(units), 3))
    np.add.at(stats.swapaxes(0, 1), unit, tables.swapaxes(0, 1))
    values = pool_rows(stats, figures)
    resampled = bootstrap_scores(stats, figures, draws, rng).reshape(draws, len(tables), 3)

    def estimates(table: int) -> Figures:
        own = [float(value) for value in values[table]]
        limits = [interval(resampled[:, table, i], confidence, len(units), value) for i, value in enumerate(own)]
        return Figures(*(IntervalEstimate(value, *limits[i]) for i, value in enumerate(own)))

    return ErrorAgreement(
        overall=estimates(0),
        by_severity={severity: estimates(table) for table, severity in enumerate(severities, 1)},
        human_unplaced=human.unplaced,
        predicted_unplaced=predicted.unplaced,
    )


def count_characters(
    human: ErrorColumns, predicted: ErrorColumns, outputs: int, severities: Sequence[int], partial: float
) -> Floats:
    """Return rows (tables, outputs, 3) for `figures`: the credit, the characters that the metric marks, and those that
    humans mark; one table of all severities, and one of each that is named."""
    # Stretches of text between the ends of errors, instead of characters, make the work depend on the number of errors,
    # not on their length.
    width = int(max(human.end.max(initial=0), predicted.end.max(initial=0))) + 1
    sides = [(side, side.output * width + side.start, side.output * width + side.end) for side in (human, predicted)]
    cuts = np.unique(np.concatenate([ends for _, *both in sides for ends in both]))
    length = np.diff(cuts).astype(np.float64)
    output = cuts[:-1] // width
    sided = []
    for side, start, end in sides:
        begin, stop = np.searchsorted(cuts, [start, end])
        mark = np.full(max(0, len(cuts) - 1), _CLEAN, dtype=np.intp)
        code = np.where(side.severity == UNSTATED, _UNSTATED, side.severity + _SEVERITIES)
        # The numbers from each begin up to its stop, one range after the other.
        sizes = stop - begin
        shifts = np.repeat(begin - (np.cumsum(sizes) - sizes), sizes)
        np.maximum.at(mark, np.arange(len(shifts)) + shifts, np.repeat(code, sizes))
        sided.append(mark)
    by_human, by_metric = sided
    differ = (by_human != by_metric) & (by_human != _UNSTATED) & (by_metric != _UNSTATED)
    worth = length * np.where(differ, partial, 1.0)
    marks = [(by_human != _CLEAN, by_metric != _CLEAN)]
    marks += [(by_human == severity + _SEVERITIES, by_metric == severity + _SEVERITIES) for severity in severities]
    tables = []
    for marked_human, marked_metric in marks:
        columns = (worth * (marked_human & marked_metric), length * marked_metric, length * marked_human)
        tables.append(np.stack([sum_by_code(column, output, outputs) for column in columns], axis=1))
    return np.stack(tables)


def figures(sums: Floats) -> Floats:
    """Return precision, recall and F1 (..., 3) of summed rows (..., 3)."""
    credit, marked_metric, marked_human = np.moveaxis(sums, -1, 0)
    # The harmonic mean of the two quotients, multiplied out: 0 rather than undefined if nothing matches.
    f1 = divide(2 * credit, marked_metric + marked_human)
    return np.stack([divide(credit, marked_metric), divide(credit, marked_human), f1], axis=-1)


# ---- Score reductions on gold references, where an error analyst should find nothing wrong (TIGERScore, Table 21)


class ReductionShares(NamedTuple):
    """Shares of the references that were scored, NaN if none was.

    The paper's second column is headed "> -2" and explained as a reduction of at most 1; the two readings differ if
    penalties come in halves, so both are here.
    """

    unreduced: float
    above_minus_two: float
    at_most_one: float
    scored: int


def reduction_shares(scores: ArrayLike) -> ReductionShares:
    """Return how often an error analyst deducted nothing, less than 2, or at most 1; a score is minus the sum of
    penalties, and NaN if the analyst failed."""
    values = np.asarray(scores, np.float64).ravel()
    known = values[~np.isnan(values)]
    masks = known == 0, known > -2, known >= -1
    unreduced, above_minus_two, at_most_one = (float(mask.mean()) if len(mask) else np.nan for mask in masks)
    return ReductionShares(unreduced, above_minus_two, at_most_one, len(known))
