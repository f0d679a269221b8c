"""Results read back, from a run folder or from a flat file that a run wrote."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from metrist.errors import InputError, RunError
from metrist.io import read_rows
from metrist.metrics.base import Metric
from metrist.metrics.registry import build
from metrist.run.flat_file import COLUMNS, RAW, TOKENS, flat_suffix
from metrist.run.results import Results, metric_of, remarks
from metrist.run.run_folder import Contents, RunFolder, Stored, is_run_folder
from metrist.run.shard_file import scores_remarks
from metrist.scores import Scores
from metrist.spec import Spec


def load(path: str | os.PathLike[str], metrics: Iterable[str | Spec | Metric] = ()) -> Results:
    """The results of a run folder, or of a .jsonl file that `score` or `export` wrote.

    A metric from outside the catalog (`my_module.Mine`) is imported only if `metrics` names it; otherwise its scores
    are there, and its system scores too where they are plain means.
    """
    place = Path(path)
    if place.is_dir() and not is_run_folder(place):
        raise RunError(f"{place} is not a run folder: it has no manifest.json")
    if not place.exists():
        raise RunError(f"there is no run at {place}")
    contents = RunFolder(place).read() if place.is_dir() else Contents(stored=_flat(place), unfinished=[], outdated=[])
    stored = contents.stored
    _check_same_records(place, stored)
    named = {metric.text: metric for metric in map(build, metrics)}
    known = tuple(named.get(one.metric) or _metric(one) for one in stored)
    scores = {one.metric: one.scores for one in stored}
    return Results(
        items=stored[0].items,
        systems=stored[0].systems,
        metrics=known,
        scores=scores,
        signatures={one.metric: one.signature for one in stored},
        notes=(*_notes(contents), *remarks(known, scores)),
        unfinished=tuple(contents.unfinished),
    )


def export(run: str | os.PathLike[str], out: str | os.PathLike[str]) -> Results:
    """Write a run folder flat: the same bytes as if `score` had been given this file."""
    results = load(run)
    results.write(out)
    return results


def _notes(contents: Contents) -> list[str]:
    unfinished = [
        f"{text} is left out, because it is not finished: run the same `metrist score` again"
        for text in contents.unfinished
    ]
    outdated = [
        f"{text}: these are the scores of an earlier run; a later one, of other records or of another version of the "
        "metric, was not finished: run `metrist score` again"
        for text in contents.outdated
    ]
    return unfinished + outdated


def _metric(stored: Stored) -> Metric:
    return metric_of(stored.metric, stored.signature, stored.higher_is_better, stored.scores)


def _check_same_records(place: Path, stored: Sequence[Stored]) -> None:
    first = stored[0]
    for other in stored[1:]:
        if other.items != first.items or other.systems != first.systems:
            raise RunError(
                f"{place}: {first.metric} and {other.metric} were scored on different records; "
                "score all metrics on the same input again"
            )
        if other.content != first.content:
            raise RunError(
                f"{place}: {first.metric} and {other.metric} were scored on records of the same names with different "
                "texts; score all metrics on the same input again"
            )


class _Columns:
    """One metric's lines of a flat file, gathered as columns."""

    def __init__(self, signature: str, width: int) -> None:
        self.signature = signature
        self.items: list[str] = []
        self.systems: list[str] = []
        self._width = width
        self._values = array("d")
        self._stats = array("d")
        self._parts: dict[str, array[float]] = {}
        self._remarks: dict[int, Mapping[str, Any]] = {}

    def add(self, row: Mapping[str, Any], names: dict[str, str]) -> None:
        at = len(self.items)
        if row["signature"] != self.signature:
            raise ValueError(f"it has the signature {row['signature']!r}, the lines before have {self.signature!r}")
        if len(row["stats"]) != self._width:
            raise ValueError(f"it has {len(row['stats'])} stats, the lines before have {self._width}")
        self.items.append(names.setdefault(row["item"], row["item"]))
        self.systems.append(names.setdefault(row["system"], row["system"]))
        self._values.append(_number(row["value"]))
        self._stats.extend(map(_number, row["stats"]))
        for name, value in row["parts"].items():
            self._part(name, at).append(_number(value))
        sparse = (row["explanation"], row["failure"], row.get(RAW), row.get(TOKENS))
        if row["errors"] or any(remark is not None for remark in sparse):
            self._remarks[at] = row

    def stored(self, metric: str) -> Stored:
        size = len(self.items)
        scores = Scores(
            values=np.array(self._values),
            parts={name: np.array(self._part(name, size)) for name in self._parts},
            stats=np.array(self._stats).reshape(size, self._width),
            **scores_remarks(self._remarks),
        )
        # A flat file does not say whether higher is better, and guessing could turn a comparison round.
        return Stored(
            metric=metric,
            signature=self.signature,
            higher_is_better=None,
            items=self.items,
            systems=self.systems,
            scores=scores,
        )

    def _part(self, name: str, size: int) -> array[float]:
        column = self._parts.setdefault(name, array("d"))
        column.extend([np.nan] * (size - len(column)))
        return column


def _flat(path: Path) -> list[Stored]:
    if flat_suffix(path) != ".jsonl":
        raise RunError(f"{path}: wanted a run folder or a .jsonl file that metrist wrote")
    columns: dict[str, _Columns] = {}
    names: dict[str, str] = {}
    for place, row in read_rows(path):
        if missing := [name for name in COLUMNS if name not in row]:
            raise InputError(f"{place}: {missing[0]!r} is missing: wanted a line that `metrist score` wrote")
        try:
            metric = columns.get(row["metric"]) or columns.setdefault(
                row["metric"], _Columns(row["signature"], len(row["stats"]))
            )
            metric.add(row, names)
        except (TypeError, ValueError, AttributeError) as fault:
            raise InputError(f"{place}: not a line that `metrist score` wrote: {fault}") from None
    if not columns:
        raise RunError(f"{path} holds no scores")
    return [_whole(path, metric, found) for metric, found in columns.items()]


def _whole(path: Path, metric: str, columns: _Columns) -> Stored:
    try:
        return columns.stored(metric)
    except (TypeError, ValueError) as fault:
        raise InputError(f"{path}: the lines of {metric} are not what `metrist score` wrote: {fault}") from None


def _number(value: float | None) -> float:
    return np.nan if value is None else value
