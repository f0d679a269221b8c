"""Set up an annotation project from files and, where metrics' scores or explanations are needed, a run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from metrist.documents import read_text
from metrist.errors import InputError, RunError, check_known
from metrist.io import Reader, read_records
from metrist.ratings import Error
from metrist.records import Record
from metrist.run import load
from metrist.run.inputs import read_inputs
from metrist.run.results import Results
from metrist.run.run import is_run
from metrist.web.annotation.plan import Order, Pick
from metrist.web.annotation.project import Project, assign_tasks, create_project, read_attention
from metrist.web.annotation.sampling import add_scores, list_units, measure_disagreement, sample_units
from metrist.web.annotation.schemas import load_schemas

#: (item, system)
Key = tuple[str, str]
#: Bytes of the guidelines.
_LARGEST_GUIDELINES = 200_000


def set_up(
    folder: str | os.PathLike[str],
    files: Sequence[str] | Reader,
    schema: str | Sequence[str],
    *,
    raters: int | Sequence[str] = 1,
    aspects: Sequence[str] = (),
    points: int = 5,
    table: str | None = None,
    count: int | None = None,
    pick: Pick = "random",
    order: Order = "random",
    run: str | os.PathLike[str] | None = None,
    metrics: Sequence[str] = (),
    systems: Sequence[str] = (),
    overlap: int | None = None,
    share: float = 1.0,
    attention: Sequence[str] = (),
    guidelines: str | os.PathLike[str] | None = None,
    show_references: bool = False,
    seed: int = 0,
    **reading: Any,
) -> Project:
    """Create a project in a new folder.

    `files` may be a run folder, whose inputs are read then. What several schemas ask is asked at once. `raters` are
    names, or a number of raters named r1, r2 and so on. `pick="disagreement"` needs a run with the scores of two
    metrics, `order="informative"` a run or files with scores, and the questionnaire a run with a metric that lists
    errors, unless the files have errors. `guidelines` is a text file. The other settings are
    those of `load_schemas`, `sample_units` and `assign_tasks`; `reading` are options of `read_records`.
    """
    if isinstance(files, list | tuple) and len(files) == 1 and is_run(files[0]):
        run = run or files[0]
        files = read_inputs(files[0], **reading)
    reader = files if isinstance(files, Reader) else read_records(list(files), **reading)
    names = [schema] if isinstance(schema, str) else list(schema)
    text = (
        read_text(Path(guidelines), InputError, largest=_LARGEST_GUIDELINES).strip() if guidelines is not None else ""
    )
    if "errors" in names and table is None:
        records, analyses, stored, task = _read(reader, systems)
        loaded = load_schemas(names, aspects=aspects, points=points, task=task)
    else:
        # The schema first: a mistake in it is found before a long file is read.
        loaded = load_schemas(names, aspects=aspects, points=points, table=table)
        records, analyses, stored, _ = _read(reader, systems)
    results = load(run) if run is not None else None
    scores = {} if loaded.kind == "questionnaire" else _collect_scores(results, metrics, stored)
    if loaded.kind == "questionnaire":
        analyses = _list_analyses(results, metrics, analyses)
        records = [record for record in records if (record.item, record.system) in analyses]
        if not records:
            raise InputError("no output has an analysis: the run or the files must list errors", code="invalid_value")
    rng = np.random.default_rng(seed)
    for_sample, for_order = rng.spawn(2)
    if order == "informative" and not scores:
        raise InputError("`order=informative` needs scores of metrics: name a run with `run`", code="missing_value")
    units = list_units(records, pairs=loaded.kind == "pairwise")
    disagreement = None
    if pick == "disagreement":
        if results is None:
            raise RunError("`pick=disagreement` needs the scores of a run: name one with `run`", code="missing_value")
        disagreement = measure_disagreement(results, metrics)
    sample = add_scores(sample_units(units, count, pick, for_sample, disagreement), scores)
    checks = read_attention(list(read_records(list(attention)).entries()) if attention else [], loaded)
    if loaded.kind == "questionnaire":
        sample = [replace(task, errors=analyses.get((task.item, task.systems[0]), ())) for task in sample]
    tasks = [replace(task, id=f"t{number}") for number, task in enumerate([*sample, *checks], 1)]
    people = [f"r{number}" for number in range(1, raters + 1)] if isinstance(raters, int) else list(raters)
    assignments = assign_tasks(tasks, people, for_order, overlap=overlap, share=share, by_item=order == "random")
    return create_project(
        folder,
        loaded,
        tasks,
        assignments,
        pick=pick,
        seed=seed,
        inputs=reader.names,
        show_references=show_references,
        guidelines=text,
        metrics=list(scores),
        order=order,
    )


def _read(
    reader: Reader, systems: Sequence[str]
) -> tuple[list[Record], dict[Key, tuple[Error, ...]], dict[str, dict[Key, float]], str | None]:
    """Return the records of the systems that take part, the errors of each, the scores that the files have by metric,
    and the task that all records share."""
    records: list[Record] = []
    errors: dict[Key, list[Error]] = {}
    scores: dict[str, dict[Key, float]] = {}
    for entry in reader.entries():
        records.extend(record for record in entry.new if not systems or record.system in systems)
        for record in entry.new:
            errors.setdefault((record.item, record.system), [])
        for located in entry.errors:
            errors.setdefault((located.item, located.system), []).append(located.error)
        for score in entry.scores:
            scores.setdefault(score.metric, {})[score.item, score.system] = score.value
    missing = set(systems) - {record.system for record in records}
    if missing:
        raise InputError(f"no outputs of the system {min(missing)!r}", code="unknown_name")
    if not records:
        raise InputError("the files have no outputs", code="no_data")
    tasks = {record.task for record in records}
    task = tasks.pop() if len(tasks) == 1 else None
    return records, {key: tuple(listed) for key, listed in errors.items()}, scores, task


def _collect_scores(
    results: Results | None, metrics: Sequence[str], stored: Mapping[str, Mapping[Key, float]]
) -> Mapping[str, Mapping[Key, float]]:
    """Return the scores of the named metrics, of all by default, by output: those of the run, or those that the files
    have."""
    if results is None:
        for name in metrics:
            check_known("metric", name, stored)
        return {name: stored[name] for name in metrics or stored}
    keys = list(zip(results.items, results.systems, strict=True))
    labels = [results.metric(name).label for name in metrics] or list(results.scores)
    return {label: dict(zip(keys, results.scores[label].values.tolist(), strict=True)) for label in labels}


def _list_analyses(
    results: Results | None, metrics: Sequence[str], stored: dict[Key, tuple[Error, ...]]
) -> dict[Key, tuple[Error, ...]]:
    """Return the errors that a metric of the run lists by output, none for an output in which it finds none, or those
    that the files have."""
    if results is None:
        if not any(stored.values()):
            raise RunError("the questionnaire asks about analyses: give a run whose metric lists errors, with `run`")
        return stored
    explaining = [metric.label for metric in results.metrics if results.scores[metric.label].errors]
    labels = [results.metric(name).label for name in metrics] or explaining
    if len(labels) != 1 or labels[0] not in explaining:
        shown = ", ".join(explaining) or "none"
        raise RunError(f"name one metric with errors for the questionnaire with `metrics`; this run has {shown}")
    block = results.scores[labels[0]]
    keys = enumerate(zip(results.items, results.systems, strict=True))
    # An analysis that failed says nothing; one without errors may overlook some.
    return {key: tuple(block.errors.get(row, ())) for row, key in keys if row not in block.failures}
