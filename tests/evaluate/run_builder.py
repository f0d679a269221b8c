"""Build runs from plain numbers, so that the expected results are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from metrist.metrics.base import Metric
from metrist.run.results import Results
from metrist.scores import Score, Scores


@dataclass(frozen=True)
class Quality(Metric):
    """Higher is better, from 0 to 1."""

    catalog_name = "quality"
    bounds = (0.0, 1.0)
    strict: bool = False
    scale: int = 1


@dataclass(frozen=True)
class Errors(Metric):
    """Lower is better, in percent, without an upper bound."""

    catalog_name = "errors"
    higher_is_better = False
    bounds = (0.0, np.inf)


@dataclass(frozen=True)
class Size(Metric):
    """Has no better side."""

    catalog_name = "size"
    higher_is_better = None
    bounds = (0.0, np.inf)


METRICS = {metric.text: metric for metric in (Quality(), Quality(strict=True), Quality(scale=2), Errors(), Size())}
_SHORT = {"strict": "quality(strict=True)", "scaled": "quality(scale=2)"}

Values = Mapping[str, Sequence[float | None]]


def make_run(*, items: Sequence[str] | None = None, signature: str = "1", **columns: Values) -> Results:
    """`make_run(quality={"a": [0.1, 0.2], "b": [0.3, None]})`: None is a failed score; items are numbered."""
    columns = {_SHORT.get(text, text): values for text, values in columns.items()}
    first = next(iter(columns.values()))
    names = items or [str(number) for number in range(max(map(len, first.values())))]
    return Results(
        items=[names[at] for values in first.values() for at in range(len(values))],
        systems=[system for system, values in first.items() for _ in values],
        metrics=tuple(METRICS[text] for text in columns),
        scores={text: _scores([v for values in result.values() for v in values]) for text, result in columns.items()},
        signatures={text: f"{text} | version {signature}" for text in columns},
    )


def _scores(values: Sequence[float | None]) -> Scores:
    return Scores.of(Score(value=np.nan, failure="empty") if value is None else value for value in values)


def noisy(mean: float, seed: int, items: int = 80, spread: float = 0.1) -> list[float]:
    """Values about a mean, the same for the same seed."""
    return np.random.default_rng(seed).normal(mean, spread, items).tolist()
