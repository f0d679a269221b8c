"""Scores: `Score` for one output, `Scores` for a block of outputs as columns, and `Failure` where there is no score."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from metrist.ratings import Error

Column = NDArray[np.float64]
_T = TypeVar("_T")
#: What a message quotes; an apostrophe within a word is no quotation mark.
_QUOTED = re.compile(r"""(?<!\w)(['"]).*?\1(?!\w)""", re.DOTALL)


class FailureKind(StrEnum):
    """Why there is no score. Code decides on the kind, never on the words of the message."""

    #: A server did not answer; the same request may succeed later.
    transient = "transient"
    #: A server or model rejected the request.
    refused = "refused"
    #: The answer could not be parsed.
    unparsable = "unparsable"
    #: The text does not fit the model's context.
    too_long = "too_long"
    #: The record lacks a field, or the field is empty.
    missing_input = "missing_input"
    #: The question was not asked because an earlier one failed.
    not_asked = "not_asked"
    #: A content filter withheld the answer.
    filtered = "filtered"
    #: The metric returned None or NaN.
    not_scored = "not_scored"
    #: The output is in the run, and the metric has not been asked for it yet.
    pending = "pending"
    other = "other"

    @property
    def is_retryable(self) -> bool:
        """Whether a resumed run should try again."""
        return self in (FailureKind.transient, FailureKind.not_asked)


class Failure(str):
    """Why there is no score: a message with a kind.

    It is a string, so that it can be printed, searched and written to JSON like any message; `kind` is what code
    decides on. Failures with equal messages are equal.
    """

    __slots__ = ("_kind",)
    _kind: FailureKind

    def __new__(cls, kind: FailureKind | str, message: str) -> Failure:
        failure = super().__new__(cls, message)
        failure._kind = FailureKind(kind)
        return failure

    @property
    def kind(self) -> FailureKind:
        """What went wrong, as one of a closed set."""
        return self._kind

    @property
    def message(self) -> str:
        """The message as a plain string."""
        return str(self)

    @property
    def reason(self) -> Failure:
        """The failure without what it quotes, such as an answer or the name of an item."""
        return Failure(self.kind, _QUOTED.sub("…", self))

    @classmethod
    def of(cls, failure: str) -> Failure:
        """The failure itself, or a plain message as a failure of kind `other`."""
        return failure if isinstance(failure, Failure) else cls(FailureKind.other, failure)

    @classmethod
    def combine(cls, failures: Iterable[str | None]) -> Failure:
        """Several failures as one, with each distinct message once. It is retryable if any of them is."""
        distinct = [cls.of(failure) for failure in dict.fromkeys(failures) if failure is not None]
        kinds = [failure.kind for failure in distinct]
        retryable = [kind for kind in kinds if kind.is_retryable]
        kind = min(retryable) if retryable else kinds[0] if len(set(kinds)) == 1 else FailureKind.other
        return cls(kind, "; ".join(distinct))

    def __repr__(self) -> str:
        return f"Failure({self.kind.value!r}, {str.__repr__(self)})"

    def __reduce__(self) -> tuple[type[Failure], tuple[str, str]]:
        return Failure, (self.kind.value, str(self))


def count_reasons(failures: Iterable[str]) -> list[tuple[Failure, int]]:
    """Failures and how often they occur, the most frequent first. Those that differ in what they quote alone are one,
    without that."""
    messages: dict[tuple[FailureKind, str], list[Failure]] = {}
    for failure in map(Failure.of, failures):
        messages.setdefault((failure.kind, failure.reason), []).append(failure)
    groups = sorted(messages.values(), key=len, reverse=True)
    return [(group[0] if len(set(group)) == 1 else group[0].reason, len(group)) for group in groups]


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One output's score. `value` is NaN exactly when `failure` says why.

    `incomplete` marks a score that exists although some of the requests behind it failed and may succeed later: a
    resumed run computes it again. A `failure` given as plain text has the kind `other`.
    """

    value: float
    parts: Mapping[str, float] = field(default_factory=dict)
    stats: tuple[float, ...] = ()
    errors: tuple[Error, ...] = ()
    explanation: str | None = None
    failure: Failure | None = None
    raw: str | None = None
    tokens: Any = None
    usage: Any = None
    incomplete: bool = False

    def __post_init__(self) -> None:
        if self.failure is not None and type(self.failure) is not Failure:
            object.__setattr__(self, "failure", Failure.of(self.failure))

    @classmethod
    def failed(cls, message: str, kind: FailureKind | str | None = None, **fields: Any) -> Score:
        """No score, and why. Without `kind`, a `Failure` keeps its own and plain text has the kind `other`."""
        failure = Failure.of(message) if kind is None else Failure(kind, message)
        return cls(value=math.nan, failure=failure, **fields)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scores(Sequence[Score]):
    """A block of scores: numbers as columns, and what only some scores carry as maps from position.

    `stats` has one row of numbers per output; sums of rows are what `Metric.pool` turns into a system score. Where a
    metric gives none they are (value, 1), which pools to the mean. A failed output has a row of zeros. `incomplete`
    holds the positions of incomplete scores.
    """

    values: Column
    parts: Mapping[str, Column] = field(default_factory=dict)
    stats: Column = field(default_factory=lambda: np.empty((0, 0)))
    errors: Mapping[int, tuple[Error, ...]] = field(default_factory=dict)
    explanations: Mapping[int, str] = field(default_factory=dict)
    failures: Mapping[int, Failure] = field(default_factory=dict)
    raws: Mapping[int, str] = field(default_factory=dict)
    tokens: Mapping[int, Any] = field(default_factory=dict)
    usages: Mapping[int, Any] = field(default_factory=dict)
    incomplete: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if isinstance(self.stats, np.ndarray) and self.stats.size == 0:
            object.__setattr__(self, "stats", plain_stats(self.values))
        parts = self.parts.values() if isinstance(self.parts, dict) else ()  # Others are not read yet.
        if len(self.stats) != len(self.values) or any(len(part) != len(self.values) for part in parts):
            raise ValueError("values, parts and stats of a block of scores must have one row per output")
        unscored = np.flatnonzero(np.isnan(self.values))
        object.__setattr__(self, "failures", {i: Failure.of(failure) for i, failure in self.failures.items()})
        mismatches = set(unscored.tolist()) ^ set(self.failures)
        if mismatches:
            first = min(mismatches)
            expected = "no value, or no failure" if first in self.failures else "a failure that says why it is NaN"
            raise ValueError(f"score {first} must have {expected}")

    @staticmethod
    def of(rows: Iterable[float | Score]) -> Scores:
        """A block from plain numbers or single scores, whichever a metric finds easier to return."""
        scores = [row if isinstance(row, Score) else Score(value=float(row)) for row in rows]
        names = dict.fromkeys(name for score in scores for name in score.parts)
        # Outputs without statistics get zeros.
        width = max((len(score.stats) for score in scores), default=0)
        empty = (0.0,) * width
        stats = [score.stats or empty for score in scores]
        return Scores(
            values=np.array([score.value for score in scores], dtype=np.float64),
            parts={n: np.array([s.parts.get(n, math.nan) for s in scores], dtype=np.float64) for n in names},
            stats=np.array(stats, dtype=np.float64).reshape(len(scores), width),
            errors={i: score.errors for i, score in enumerate(scores) if score.errors},
            explanations=_present(score.explanation for score in scores),
            failures=_present(score.failure for score in scores),
            raws=_present(score.raw for score in scores),
            tokens=_present(score.tokens for score in scores),
            usages=_present(score.usage for score in scores),
            incomplete=frozenset(i for i, score in enumerate(scores) if score.incomplete),
        )

    @staticmethod
    def join(blocks: Sequence[Scores]) -> Scores:
        """One block out of several, in their order. All must come from one metric."""
        starts = np.cumsum([0, *map(len, blocks)]).tolist()[:-1]
        names = dict.fromkeys(name for block in blocks for name in block.parts)
        # A block in which every output failed cannot know the width of its metric's rows: its zeros are widened.
        width = max((block.stats.shape[1] for block in blocks), default=0)
        offset_blocks = list(zip(starts, blocks, strict=True))
        return Scores(
            values=np.concatenate([block.values for block in blocks]),
            parts={n: np.concatenate([b.parts.get(n, np.full(len(b), np.nan)) for b in blocks]) for n in names},
            stats=np.concatenate([np.pad(b.stats, ((0, 0), (0, width - b.stats.shape[1]))) for b in blocks]),
            incomplete=frozenset(start + i for start, block in offset_blocks for i in block.incomplete),
            **{
                name: {start + i: value for start, block in offset_blocks for i, value in getattr(block, name).items()}
                for name in _SPARSE
            },
        )

    def take(self, positions: Sequence[int]) -> Scores:
        """The scores at these positions, in their order."""
        return self._select(np.asarray(positions, dtype=np.intp), positions)

    def block(self, start: int, stop: int) -> Scores:
        """The scores between two positions."""
        return self._select(slice(start, stop), range(start, stop))

    def _select(self, rows: NDArray[np.intp] | slice, positions: Sequence[int]) -> Scores:
        """The scores at some rows of the columns, which are at these positions of the maps."""
        sparse = {
            name: {n: column[i] for n, i in enumerate(positions) if i in column} if column else {}
            for name in _SPARSE
            for column in (getattr(self, name),)
        }
        incomplete = (n for n, i in enumerate(positions) if i in self.incomplete) if self.incomplete else ()
        return Scores(
            values=self.values[rows],
            parts={name: column[rows] for name, column in self.parts.items()},
            stats=np.asarray(self._take_stats(rows), np.float64),
            incomplete=frozenset(incomplete),
            **sparse,
        )

    def spread(self, size: int, positions: Sequence[int], failures: Mapping[int, str]) -> Scores:
        """The same scores in a block of `size`: score i moves to `positions[i]`, and `failures` fill the rest."""
        at = np.asarray(positions, dtype=np.intp)
        values, stats = np.full(size, np.nan), np.zeros((size, self.stats.shape[1]))
        values[at], stats[at] = self.values, self.stats
        parts = {name: np.full(size, np.nan) for name in self.parts}
        for name, column in self.parts.items():
            parts[name][at] = column
        sparse = {name: {int(at[i]): v for i, v in getattr(self, name).items()} for name in _SPARSE}
        sparse["failures"].update(failures)
        return Scores(
            values=values,
            parts=parts,
            stats=stats,
            incomplete=frozenset(int(at[i]) for i in self.incomplete),
            **sparse,
        )

    @property
    def width(self) -> int:
        """The number of statistics of a score."""
        return int(self.stats.shape[1])

    def _take_stats(self, rows: slice | NDArray[np.intp]) -> NDArray[Any]:
        return self.stats[rows]

    @property
    def pending(self) -> int:
        """The number of outputs that the metric was not asked for yet: they have no score, and did not fail."""
        return sum(failure.kind is FailureKind.pending for failure in self.failures.values())

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        i = range(len(self))[index]
        return Score(
            value=float(self.values[i]),
            parts={name: float(column[i]) for name, column in self.parts.items()},
            stats=tuple(self.stats[i].tolist()),
            errors=self.errors.get(i, ()),
            explanation=self.explanations.get(i),
            failure=self.failures.get(i),
            raw=self.raws.get(i),
            tokens=self.tokens.get(i),
            usage=self.usages.get(i),
            incomplete=i in self.incomplete,
        )


def plain_stats(values: Column) -> Column:
    """The statistics of a metric that gives none: (value, 1), which pools to the mean, or zeros without a score."""
    scored = ~np.isnan(values)
    return np.stack([np.where(scored, values, 0.0), scored.astype(np.float64)], axis=-1)


def take_stats(scores: Scores, rows: slice | NDArray[np.intp]) -> NDArray[Any]:
    """Some rows of the statistics. Those of a run are read from it, and whole numbers have a narrow type: do not
    calculate with them."""
    return scores._take_stats(rows)


_SPARSE = ("errors", "explanations", "failures", "raws", "tokens", "usages")


def _present(values: Iterable[_T | None]) -> dict[int, _T]:
    return {i: value for i, value in enumerate(values) if value is not None}
