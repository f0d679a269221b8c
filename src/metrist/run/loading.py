"""Load results from a run folder, or from a flat file that a run wrote."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from metrist.errors import MetristError, RunError, agree
from metrist.io.remote import fetch, is_pattern, is_remote
from metrist.metrics.base import TAKEN_NAMES, Metric
from metrist.metrics.registry import build
from metrist.run.flat_file import Stored, flat_suffix, is_flat_file, read_flat
from metrist.run.results import Results
from metrist.scores import Scores
from metrist.settings import checks_types
from metrist.spec import Spec

if TYPE_CHECKING:
    from metrist.run.run import Run

#: Metrics whose scores are read at once.
_READERS = 2


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
    stored = read_flat(path)
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
