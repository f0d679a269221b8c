"""Load results from a run folder, or from a flat file that a run wrote."""

from __future__ import annotations

import math
import os
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from metrist.errors import InputError, MetristError, RunError, SpecError, agree
from metrist.io import read_rows
from metrist.io.remote import fetch, is_pattern, is_remote
from metrist.metrics.base import NAME, PART, TAKEN_NAMES, Metric
from metrist.metrics.registry import build
from metrist.ratings import Error
from metrist.run.flat_file import COLUMNS, RAW, TOKENS, flat_suffix, is_flat_file
from metrist.run.results import Results
from metrist.scores import Failure, FailureKind, Scores
from metrist.settings import checks_types
from metrist.spec import Spec, parse

if TYPE_CHECKING:
    from metrist.run.run import Run

#: Metrics whose scores are read at once.
_READERS = 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stored:
    """One finished metric of a run or a flat file, in the order of the records."""

    metric: str
    signature: str
    higher_is_better: bool | None
    items: Sequence[str]
    systems: Sequence[str]
    scores: Scores
    name: str | None = None

    @property
    def label(self) -> str:
        """What tables and checks call the metric."""
        return self.name or self.metric


@checks_types
def load(path: str | os.PathLike[str], metrics: Iterable[str | Spec | Metric] = ()) -> Results:
    """The results of a run folder, or of a .jsonl file that `score` or `export` wrote; also by URL (s3://…).

    A metric from outside the catalog (`my_module.Mine`) is imported only if `metrics` names it; otherwise its scores
    are there, and its system scores too where they are plain means.
    """
    from metrist.run.run import open_run  # pyarrow takes long to import.

    if isinstance(path, str) and is_remote(path):
        path = fetch(path) if flat_suffix(Path(path)) else path
    if is_remote(path) or os.path.isdir(path) or not os.path.exists(path):
        return load_run(open_run(path), metrics)
    path = Path(path)
    stored = _read_flat(path)
    first, *others = stored
    for other in others:
        if other.items != first.items or other.systems != first.systems:
            raise RunError(
                f"{path}: {first.label} and {other.label} were scored on different records; score all metrics on the "
                "same input again",
                code="conflict",
            )
    return _make_results(stored, metrics, inputs=path)


def fetch_flat(source: Any) -> Any:
    """The copy of a flat file that is named by its URL; anything else as it is."""
    if (
        isinstance(source, str)
        and is_remote(source)
        and not is_pattern(source)
        and flat_suffix(Path(source)) == ".jsonl"
    ):
        path = fetch(source)
        return os.fspath(path) if is_flat_file(path) else source
    return source


def load_run(run: Run, metrics: Iterable[str | Spec | Metric] = ()) -> Results:
    from metrist.run.tables import release_memory

    finished = run.finished_metrics()
    if not finished or not len(run.view):
        raise RunError(
            f"{run.name} holds no finished metric: run the same `metrist score` again to finish it", code="unfinished"
        )
    stored, notes = list[Stored](), list(run.view.notes)
    for one in run.manifest.inputs:
        if one.skipped:
            rows = agree(one.skipped, "1 bad row was", f"{one.skipped:,} bad rows were")
            notes.append(f"{run.describe_input(one)}: {rows} left out (`skip_bad`)")
    with ThreadPoolExecutor(_READERS) as pool:
        read = list(pool.map(run.read_scores, finished, repeat(run.read_hashes())))
    release_memory()
    for metric, (scores, missing) in zip(finished, read, strict=True):
        version = metric.finished
        assert version is not None
        notes += [*version.notes, *(run.describe_missing(metric, missing) if len(missing) else ())]
        stored.append(
            Stored(
                metric=metric.text,
                name=metric.name,
                signature=version.signature,
                higher_is_better=metric.higher_is_better,
                items=run.view.items,
                systems=run.view.systems,
                scores=scores,
            )
        )
    unfinished = {
        metric.text: metric.label for metric in run.manifest.metrics if not (metric.finished or metric.compares)
    }
    results = _make_results(stored, metrics, inputs=run, notes=[*notes, *run.describe_unfinished()])
    return replace(results, unfinished=unfinished, reference_counts=run.reference_counts, sources=run.sources)


def _make_results(
    stored: Sequence[Stored], metrics: Iterable[str | Spec | Metric], inputs: Any, notes: Sequence[str] = ()
) -> Results:
    # A name of this run is not an import path, whatever dots it has.
    names = {name for one in stored if (name := one.name)}
    requested = [metric for metric in metrics if not (isinstance(metric, str) and metric in names)]
    named = {text: metric for metric in map(build, requested) for text in (metric.text, str(metric.full_spec()))}
    # Two runs at once may have given one name to two metrics.
    taken = Counter(one.label for one in stored)
    built = tuple(
        (
            named.get(one.metric) or build_stored_metric(one.metric, one.signature, one.higher_is_better, one.scores)
        ).named(one.name if one.name and taken[one.name] == 1 and one.name.lower() not in TAKEN_NAMES else None)
        for one in stored
    )
    scores = {metric.label: one.scores for metric, one in zip(built, stored, strict=True)}
    signatures = {metric.label: one.signature for metric, one in zip(built, stored, strict=True)}
    remarks = (remark for metric in built for remark in metric.remarks(scores[metric.label]))
    return Results(
        items=stored[0].items,
        systems=stored[0].systems,
        metrics=built,
        scores=scores,
        signatures=signatures,
        notes=(*notes, *remarks),
        inputs=inputs,
    )


@checks_types
def export(
    run: str | os.PathLike[str], out: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None
) -> Results:
    """Write a run folder as a flat file: the same bytes as if `score` had been given this file. `progress` is called
    with the number of records written and of all."""
    results = load(run)
    results.write(out, progress)
    return results


# ---- Reading a .jsonl file ----


@dataclass(eq=False)
class _MetricRows:
    """One metric's rows of a flat file, gathered as columns; `width` is that of their statistics."""

    signature: str
    width: int
    items: list[str] = field(default_factory=list)
    systems: list[str] = field(default_factory=list)
    parts: dict[str, array[float]] = field(default_factory=dict)
    _values: array[float] = field(default_factory=lambda: array("d"))
    _stats: array[float] = field(default_factory=lambda: array("d"))
    _sparse: dict[int, Mapping[str, Any]] = field(default_factory=dict)

    def add(self, row: Mapping[str, Any], names: dict[str, str]) -> None:
        position = len(self.items)
        if row["signature"] != self.signature:
            raise ValueError(f"it has the signature {row['signature']!r}, the lines before have {self.signature!r}")
        if len(row["stats"]) != self.width:
            raise ValueError(f"it has {len(row['stats'])} stats, the lines before have {self.width}")
        self.items.append(names.setdefault(row["item"], row["item"]))
        self.systems.append(names.setdefault(row["system"], row["system"]))
        self._values.append(_read_number(row["value"]))
        self._stats.extend(map(_read_number, row["stats"]))
        for name, value in row["parts"].items():
            self._part(name, position).append(_read_number(value))
        optional = (row["explanation"], row["failure"], row.get(RAW), row.get(TOKENS))
        if row["errors"] or any(value is not None for value in optional):
            self._sparse[position] = row

    def finish(self, metric: str) -> Stored:
        size = len(self.items)
        names = {"explanations": "explanation", "raws": RAW, "tokens": TOKENS, "failures": "failure"}
        sparse: dict[str, Any] = {
            column: {n: row[key] for n, row in self._sparse.items() if row.get(key) is not None}
            for column, key in names.items()
        }
        sparse["failures"] = {n: Failure(FailureKind.other, text) for n, text in sparse["failures"].items()}
        errors = {
            n: tuple(Error(**error) for error in row["errors"]) for n, row in self._sparse.items() if row["errors"]
        }
        scores = Scores(
            values=np.array(self._values),
            parts={name: np.array(self._part(name, size)) for name in self.parts},
            stats=np.array(self._stats).reshape(size, self.width),
            errors=errors,
            **sparse,
        )
        text = _find_text(metric, self.signature)
        # A flat file does not say whether higher is better, and a guess could reverse a comparison.
        return Stored(
            metric=text,
            name=metric if metric != text and NAME.fullmatch(metric) else None,
            signature=self.signature,
            higher_is_better=None,
            items=self.items,
            systems=self.systems,
            scores=scores,
        )

    def _part(self, name: str, size: int) -> array[float]:
        column = self.parts.setdefault(name, array("d"))
        column.extend([np.nan] * (size - len(column)))
        return column


def _read_flat(path: Path) -> list[Stored]:
    if flat_suffix(path) != ".jsonl":
        raise RunError(f"{path}: expected a run folder or a .jsonl file that metrist wrote", code="invalid_value")
    by_metric: dict[str, _MetricRows] = {}
    names: dict[str, str] = {}
    for location, row in read_rows(path):
        if missing := [name for name in COLUMNS if name not in row]:
            raise InputError(
                f"{location}: {missing[0]!r} is missing: expected a line that `metrist score` wrote",
                code="invalid_value",
            )
        try:
            if wrong := [name for name in ("metric", "signature", "item", "system") if not isinstance(row[name], str)]:
                raise TypeError(f"{wrong[0]!r} must be a string")
            if row["metric"] not in by_metric:
                by_metric[row["metric"]] = _MetricRows(row["signature"], len(row["stats"]))
            by_metric[row["metric"]].add(row, names)
        except (TypeError, ValueError, AttributeError, OverflowError) as error:
            raise InputError(f"{location}: not a line that `metrist score` wrote: {error}") from None
    if not by_metric:
        raise RunError(f"{path} holds no scores", code="no_data")
    stored = []
    for metric, rows in by_metric.items():
        owner, _, part = metric.rpartition(PART)
        if owner in by_metric and part in by_metric[owner].parts and rows.signature == by_metric[owner].signature:
            continue  # A column of its own in the file; its numbers are those of the metric's part.
        try:
            stored.append(rows.finish(metric))
        except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
            raise InputError(f"{path}: the lines of {metric} are not what `metrist score` wrote: {error}") from None
    return stored


def _find_text(label: str, signature: str) -> str:
    """The text of the metric that a flat file calls `label`. A short name does not say what the metric is, but the
    signature begins with its name and all its settings."""
    pieces = signature.split(" | ")
    for end in range(1, len(pieces) + 1):  # A setting may hold the separator.
        try:
            spec = parse(" | ".join(pieces[:end]))
        except SpecError:
            continue
        try:
            return build(spec, allow_import=False, disable_risky_llms=True).text
        except MetristError:
            return str(spec) if NAME.fullmatch(label) and spec.name != label else label
    return label


def _read_number(value: float | None) -> float:
    return np.nan if value is None else value


# ---- Metrics of stored results ----


def build_stored_metric(text: str, signature: str, higher_is_better: bool | None, scores: Scores) -> Metric:
    """The metric that a stored text names. Code is never imported because a file says so: a metric from outside the
    catalog is replaced by one that knows only what the file says."""
    try:
        known = build(text, allow_import=False, disable_risky_llms=True)
    except MetristError:
        # The direction belongs to the class, as for every metric; so each of these has a class of its own.
        cls: Any = type("StoredMetric", (UnavailableMetric,), {"higher_is_better": higher_is_better})
        metric: Metric = cls(text, signature, scores)
        return metric
    if len(scores.failures) < len(scores):  # Where nothing was scored, the width of the rows is not known.
        try:
            with np.errstate(all="ignore"):
                known.pool(np.zeros((1, 1, scores.width)))
        except (IndexError, ValueError):
            raise RunError(
                f"{known.text}: the stored statistics have {scores.width} columns, which are not those of "
                "this metric: the file was changed, or another program wrote it",
                code="changed",
            ) from None
    return known


class UnavailableMetric(Metric):
    """A metric whose code is not available. It pools where that needs no code: scores whose statistics are (value, 1)
    pool to their mean."""

    def __init__(self, text: str, signature: str, scores: Scores) -> None:
        self._text = text
        self._signature = signature
        self._aspects = tuple[str, ...]()
        if text.startswith("judge(") and not re.search(r"\baspect=", text):
            # All parts of its scores but two are aspects, unless there is one only.
            aspects = tuple(name for name in scores.parts if name not in ("default_instruction", "outside"))
            self._aspects = aspects if len(aspects) > 1 else ()
        means = Scores(values=scores.values, failures=scores.failures).stats
        self._pools_to_mean = np.array_equal(scores.stats, means)

    @property
    def name(self) -> str:
        return self._text

    @property
    def text(self) -> str:
        return self._text

    @property
    def signature(self) -> str:
        return self._signature

    @property
    def aspect_parts(self) -> Mapping[str, tuple[float, float]]:
        return dict.fromkeys(self._aspects, (-math.inf, math.inf))

    def pool(self, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        if not self._pools_to_mean:
            raise RunError(
                f"{self._text} pools its scores by its own code: name it to have it imported (-m {self._text!r}, or "
                f"load(path, metrics=[{self._text!r}]))",
                code="metric_failed",
            )
        return super().pool(sums)
