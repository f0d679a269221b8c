"""Select runs, systems and metrics by name, and know the scale of a metric. Errors suggest the nearest known name."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from metrist.errors import RunError, SpecError, did_you_mean
from metrist.evaluate.plans import as_names
from metrist.metrics.base import PART, Metric, PartMetric
from metrist.names import list_distinct
from metrist.report.tables import decimals_for, escape_controls
from metrist.spec import parse, split_list

if TYPE_CHECKING:
    from metrist.run.inputs import InputChange
    from metrist.run.results import Results


def open_run(run: Results | str | os.PathLike[str], metrics: Iterable[str] = ()) -> Results:
    """Return results, loading them from a path if needed. A metric outside the catalog is imported only if the caller
    names it in `metrics`, never because the run names it."""
    if isinstance(run, str | os.PathLike):
        from metrist.run import load

        return load(run, metrics=[text for text in metrics if _is_import_path(text)])
    return run


def holds_results(source: Any) -> bool:
    """Whether a source is results, or a path or URL of them: a run folder, or a file that `metrist score` wrote."""
    from metrist.run.flat_file import is_flat_file
    from metrist.run.results import Results
    from metrist.run.run import is_run

    if not isinstance(source, str | os.PathLike):
        return isinstance(source, Results)
    return is_run(source) or Path(source).is_dir() or is_flat_file(Path(source))


def find_changes(results: Results) -> tuple[list[InputChange], list[str]]:
    """The files that have changed since a run folder scored them, and notes on those that are not there any more."""
    from metrist.run.inputs import find_changed_inputs
    from metrist.run.run import Run

    specs = (m.text if m.label == m.text else f"{m.label}={m.text}" for m in results.metrics)
    return find_changed_inputs(results.inputs, specs) if isinstance(results.inputs, Run) else ([], [])


def select_systems(present: Sequence[str], names: str | Sequence[str] | None) -> list[str]:
    """The named systems in the order of `names`; all of them, in the run's order, if `names` is None."""
    known = list_distinct(present)
    if names is None:
        return known
    chosen = as_names(names)
    for name in chosen:
        if name not in known:
            several = name.split(",")
            is_list = len(several) > 1 and all(one in known for one in several)
            hint = f"; write {' '.join(several)}, without commas" if is_list else did_you_mean(name, known)
            raise RunError(
                f"no system {name!r} in the run, which has {list_some(map(repr, known), 10)}{hint}",
                code="unknown_name",
            )
    return list(chosen)


def list_names(names: str | Iterable[str] | None) -> list[str] | None:
    """The names of metrics, those with commas between them one by one; None stays None."""
    if names is None:
        return None
    return [name for text in ([names] if isinstance(names, str) else names) for name in split_list(text)]


def pools_to_mean(metric: Metric) -> bool:
    """Whether a system's score is the mean of its outputs' scores, and not pooled from statistics as BLEU is. A stored
    metric whose code is not available is treated as if it were."""
    from metrist.run.loading import UnavailableMetric

    return isinstance(metric, UnavailableMetric) or type(metric).pool is Metric.pool


def select_metrics(
    present: Sequence[Metric], names: Iterable[str] | None, unfinished: Mapping[str, str] | None = None
) -> list[Metric]:
    """The metrics with these labels, texts or names; all of them if `names` is None."""
    if names is None:
        return list(present)
    chosen = (find_metric(present, name, unfinished) for name in names)
    return list({metric.label: metric for metric in chosen}.values())


def find_metric(present: Sequence[Metric], name: str, unfinished: Mapping[str, str] | None = None) -> Metric:
    """The run's metric with this label or text. A name alone also finds the only metric of that name, whatever its
    settings, and `judge:fluency` one part of a metric's scores. `unfinished` are the labels of the metrics that the run
    has begun, by their texts."""
    labels = {metric.label: metric for metric in present}
    texts = {metric.text: metric for metric in present}
    if metric := labels.get(name) or texts.get(name) or texts.get(normalize_text(name)):
        return metric
    namesakes = [metric for metric in present if metric.name == name]
    if len(namesakes) == 1:
        return namesakes[0]
    if namesakes:
        raise RunError(
            f"{name!r} could be any of {list_some((repr(m.label) for m in namesakes), 10)}: give its full text",
            code="conflict",
        )
    if unfinished:
        from metrist.run.results import explain_unfinished

        if message := explain_unfinished(unfinished, name, normalize_text(name)):
            raise RunError(message, code="unfinished")
    owner, colon, part = name.rpartition(PART)
    if colon and not re.search(r"[()'\"]", part):
        return PartMetric(find_metric(present, owner, unfinished), part)
    hint = did_you_mean(name, dict.fromkeys([*labels, *(metric.name for metric in present)]))
    raise RunError(
        f"no metric {name!r} in the run, which has {list_some(map(repr, labels), 10)}{hint}", code="unknown_name"
    )


def describe_other_settings(present: Sequence[Metric], names: Iterable[str] | None) -> list[str]:
    """A note for each name of a metric that selects other settings than the name alone stands for."""
    notes = []
    for name in names or ():
        metric = find_metric(present, name)
        if metric.name == name and name not in (metric.label, metric.text) and normalize_text(name) != metric.text:
            notes.append(f"{name} selects {metric.label}, the only metric of that name in the run.")
    return notes


def has_metric(run: Results, metric: Metric) -> bool:
    """Whether a run has this metric, by its text, or another under the same label; signatures decide between them."""
    own = metric.metric if isinstance(metric, PartMetric) else metric
    known = [m for m in run.metrics if own.text == m.text or own.label == m.label]
    if known and isinstance(metric, PartMetric):
        return metric.part in run.scores[known[0].label].parts
    return bool(known)


def list_owners(columns: Iterable[Metric]) -> list[Metric]:
    """The metrics of columns, each once: the aspects of a rubric are parts of a metric."""
    owners = (column.metric if isinstance(column, PartMetric) else column for column in columns)
    return list({metric.label: metric for metric in owners}.values())


def find_signature(run: Results, metric: Metric) -> str:
    """The signature of a run's metric; a part has that of its metric."""
    own = metric.metric if isinstance(metric, PartMetric) else metric
    return run.signatures[run.metric(own).label]


def check_signatures(metric: Metric, runs: Mapping[str, Results], *, force: bool = False) -> list[str]:
    """Refuse to compare numbers that were computed differently; with `force`, return a warning instead."""
    (first, signature), *others = ((name, find_signature(run, metric)) for name, run in runs.items())
    for name, other in others:
        if other != signature:
            difference = (
                f"{metric.label} was not computed alike: {first} has the signature {escape_controls(signature)!r}, "
                f"{name} has {escape_controls(other)!r}"
            )
            if force:
                return [f"NOT COMPARABLE: {difference}."]
            raise RunError(
                f"{difference}; score one of them again with the other's settings and version", code="conflict"
            )
    return []


def normalize_text(text: str) -> str:
    """The text as metrist prints it, with sorted settings and without defaults; unchanged if it names no metric."""
    from metrist.metrics.registry import build

    try:
        return build(text, allow_import=False, disable_risky_llms=True).text
    except SpecError:
        return text


def _is_import_path(text: str) -> bool:
    try:
        return "." in parse(text).name
    except SpecError:
        return False


def list_some(entries: Iterable[str], most: int = 5, noun: str = "") -> str:
    """List entries for a message: of very many the first, and how many more there are."""
    shown = list(entries)
    more = f" and {len(shown) - most:,} more{noun and ' ' + noun}" if len(shown) > most else ""
    return ", ".join(shown[:most]) + more


def warn_off_scale(metric: Metric, kind: Literal["minimum", "maximum"], threshold: float, typical: float) -> str | None:
    """A warning for a threshold outside the metric's bounds, or one that looks like a share where the metric counts in
    percent; None otherwise. `typical` is a score of the run."""
    low, high = metric.bounds
    if not low <= threshold <= high:
        fate = "never" if (threshold > high) is (kind == "minimum") else "always"
        hint = f"; did you mean {threshold / 100:g}?" if 1 < threshold <= 100 and high == 1 else ""
        return f"{metric.label} ranges from {low:g} to {high:g}: a {kind} of {threshold:g} is {fate} met{hint}"
    # An error rate counts in percent as well; it starts at 0 and has no upper bound.
    error_rate = math.isinf(high) and metric.higher_is_better is False
    if 0 < threshold <= 1 and low == 0 and (high == 100 or error_rate) and typical > 1:
        return (
            f"{metric.label} counts in percent (here {typical:.1f}): a {kind} of {threshold:g} means {threshold:g} %; "
            f"did you mean {100 * threshold:g}?"
        )
    return None


def choose_decimals(metric: Metric, *scores: float) -> int:
    """The number of decimals for a metric's scores, by its bounds, or by these scores if it is unbounded."""
    bounds = metric.bounds if all(map(math.isfinite, metric.bounds)) else scores
    return decimals_for(min(bounds), max(bounds)) if bounds else 3


def find_decimals(metric: Metric, runs: Sequence[Results]) -> int:
    """The number of decimals for a metric's scores in these runs."""
    values = np.concatenate([run[metric].values for run in runs if has_metric(run, metric)])
    finite = values[np.isfinite(values)]
    return choose_decimals(metric, *((finite.min(), finite.max()) if len(finite) else ()))


def list_decimals(runs: Sequence[Results]) -> dict[str, int]:
    """The number of decimals for the scores of each metric of the first run."""
    return {metric.label: find_decimals(metric, runs) for metric in runs[0].columns}
