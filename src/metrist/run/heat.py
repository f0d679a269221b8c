"""Which outputs of a run a heat map shows, and what its metrics said of their tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from metrist.errors import RunError, did_you_mean
from metrist.metrics.base import Metric
from metrist.report.heat import Heat, Output, Reading
from metrist.scores import Scores

_FIELDS = ("condition", "target", "pieces", "logprobs")


def heat(
    items: Sequence[str],
    systems: Sequence[str],
    metrics: Sequence[tuple[Metric, Scores]],
    *,
    item: str | None,
    system: str | None,
    limit: int,
) -> Heat:
    """The outputs that have readings, the worst of each metric first."""
    told = [(metric, scores) for metric, scores in metrics if scores.tokens]
    if not told:
        texts = ", ".join(metric.text for metric, _ in metrics)
        raise RunError(
            f"this run has no readings of single tokens by {texts}: score it again with `metrist score --tokens` (in "
            "Python tokens=True), by a metric that gives them, such as likelihood or bartscore"
        )
    _check_known("item", item, items)
    _check_known("system", system, systems)
    outputs, notes = list[Output](), list[str]()
    for metric, scores in told:
        there = [n for n in scores.tokens if item in (None, items[n]) and system in (None, systems[n])]
        places = _worst_first(there, metric, scores)
        outputs += [_output(items[n], systems[n], metric, scores, n) for n in places[:limit]]
        if len(places) > limit:
            notes.append(f"{metric.text}: {limit:,} of {len(places):,} outputs, the worst first")
    return Heat(outputs=outputs, notes=notes)


def _worst_first(places: Sequence[int], metric: Metric, scores: Scores) -> list[int]:
    sign = -1 if metric.higher_is_better is False else 1
    # A failed output may have readings too, but no value to stand before others by.
    return sorted(places, key=lambda n: (n in scores.failures, sign * scores.values[n]))


def _check_known(what: str, name: str | None, known: Sequence[str]) -> None:
    if name is not None and name not in known:
        raise RunError(f"this run has no {what} {name!r}{did_you_mean(name, dict.fromkeys(known))}")


def _output(item: str, system: str, metric: Metric, scores: Scores, place: int) -> Output:
    try:
        readings = tuple(map(_reading, scores.tokens[place]))
    except (TypeError, KeyError, ValueError, AttributeError):
        raise RunError(
            f"what {metric.text} says of the tokens of item {item!r} of system {system!r} cannot be drawn: wanted a "
            f"list of readings, each with {', '.join(_FIELDS)}"
        ) from None
    return Output(item=item, system=system, metric=metric.text, value=float(scores.values[place]), readings=readings)


def _reading(row: Mapping[str, Any]) -> Reading:
    logprobs = tuple(math.nan if number is None else float(number) for number in row["logprobs"])
    pieces = tuple(map(str, row["pieces"]))
    if len(pieces) != len(logprobs):
        raise ValueError("as many pieces as numbers")
    # What else a metric notes of a reading, such as the prompt, tells it from others.
    more = [f"{key}: {value}" for key, value in row.items() if key not in _FIELDS and value is not None]
    label = f"{row['target']}, given {row['condition']}" if row["condition"] else str(row["target"])
    return Reading(label="; ".join([label, *more]), pieces=pieces, logprobs=logprobs)
