"""What a metric says: one output's `Score`, and `Scores`, the same as columns for a whole shard."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from metrist.ratings import Error

Column = NDArray[np.float64]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One output's score. `value` is NaN exactly when `failure` says why."""

    value: float
    parts: Mapping[str, float] = field(default_factory=dict)
    stats: tuple[float, ...] = ()
    errors: tuple[Error, ...] = ()
    explanation: str | None = None
    failure: str | None = None
    raw: str | None = None
    tokens: Any = None
    usage: Any = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scores(Sequence[Score]):
    """A block of scores: numbers as columns, and what few scores carry as sparse maps from position.

    `stats` has one row of numbers per output; sums of rows are what `Metric.pool` turns into a system score. Where a
    metric gives none they are (value, 1), which pools to the mean. A failed output has a row of zeros.
    """

    values: Column
    parts: Mapping[str, Column] = field(default_factory=dict)
    stats: Column = field(default_factory=lambda: np.empty((0, 0)))
    errors: Mapping[int, tuple[Error, ...]] = field(default_factory=dict)
    explanations: Mapping[int, str] = field(default_factory=dict)
    failures: Mapping[int, str] = field(default_factory=dict)
    raws: Mapping[int, str] = field(default_factory=dict)
    tokens: Mapping[int, Any] = field(default_factory=dict)
    usages: Mapping[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.stats.size == 0:
            object.__setattr__(self, "stats", _mean_stats(self.values))
        if len(self.stats) != len(self.values) or any(len(p) != len(self.values) for p in self.parts.values()):
            raise ValueError("values, parts and stats of a block of scores must have one row per output")
        silent = set(np.flatnonzero(np.isnan(self.values)).tolist()) ^ set(self.failures)
        if silent:
            raise ValueError(f"score {min(silent)} must be NaN exactly when a failure says why")

    @staticmethod
    def of(rows: Iterable[float | Score]) -> Scores:
        """A block from plain numbers or single scores, whichever a small metric finds easier."""
        scores = [row if isinstance(row, Score) else Score(value=float(row)) for row in rows]
        names = dict.fromkeys(name for score in scores for name in score.parts)
        return Scores(
            values=np.array([score.value for score in scores], dtype=np.float64),
            parts={n: np.array([s.parts.get(n, math.nan) for s in scores], dtype=np.float64) for n in names},
            stats=_stacked([score.stats for score in scores]),
            errors={i: s.errors for i, s in enumerate(scores) if s.errors},
            explanations=_present(s.explanation for s in scores),
            failures=_present(s.failure for s in scores),
            raws=_present(s.raw for s in scores),
            tokens=_present(s.tokens for s in scores),
            usages=_present(s.usage for s in scores),
        )

    @staticmethod
    def join(blocks: Sequence[Scores]) -> Scores:
        """One block out of several, in their order. All must come from one metric."""
        starts = np.cumsum([0, *map(len, blocks)]).tolist()
        names = dict.fromkeys(name for block in blocks for name in block.parts)

        def sparse(name: str) -> dict[int, Any]:
            maps: Iterator[tuple[int, Mapping[int, Any]]] = zip(
                starts, (getattr(block, name) for block in blocks), strict=False
            )
            return {start + i: value for start, found in maps for i, value in found.items()}

        return Scores(
            values=np.concatenate([block.values for block in blocks]),
            parts={n: np.concatenate([b.parts.get(n, np.full(len(b), np.nan)) for b in blocks]) for n in names},
            stats=_joined_stats([block.stats for block in blocks]),
            **{name: sparse(name) for name in _SPARSE},
        )

    def spread(self, size: int, positions: Sequence[int], failures: Mapping[int, str]) -> Scores:
        """The same scores laid out in a block of `size`, with a failure in each place that they leave free."""
        at = np.asarray(positions, dtype=np.intp)

        def placed(column: Column, empty: float) -> Column:
            wide = np.full((size, *column.shape[1:]), empty)
            wide[at] = column
            return wide

        moved = {name: {int(at[i]): v for i, v in getattr(self, name).items()} for name in _SPARSE}
        moved["failures"].update(failures)
        return Scores(
            values=placed(self.values, np.nan),
            parts={name: placed(column, np.nan) for name, column in self.parts.items()},
            stats=placed(self.stats, 0.0),
            **moved,
        )

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
        )


_SPARSE = ("errors", "explanations", "failures", "raws", "tokens", "usages")


def _mean_stats(values: Column) -> Column:
    scored = ~np.isnan(values)
    return np.stack([np.where(scored, values, 0.0), scored.astype(np.float64)], axis=1)


def _stacked(rows: Sequence[tuple[float, ...]]) -> Column:
    width = max(map(len, rows), default=0)
    empty = (0.0,) * width
    return np.array([row or empty for row in rows], dtype=np.float64).reshape(len(rows), width)


def _joined_stats(blocks: Sequence[Column]) -> Column:
    # A block in which every output failed cannot know the width of its metric's rows: its zeros are widened.
    width = max((block.shape[1] for block in blocks), default=0)
    return np.concatenate([np.pad(block, ((0, 0), (0, width - block.shape[1]))) for block in blocks])


def _present(values: Iterable[_T | None]) -> dict[int, _T]:
    return {i: value for i, value in enumerate(values) if value is not None}
