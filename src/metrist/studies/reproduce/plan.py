"""What the rows of learned metrics would take: time, LLM requests, and the weights and data that are missing."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from typing import Any

from metrist.errors import MetristError, RunError
from metrist.report.tables import Count, Table, name_columns
from metrist.run.estimate import estimate_run
from metrist.studies.reproduce.figures import DataFolder, find_data_folder
from metrist.studies.reproduce.page import describe_missing, read_tables
from metrist.studies.reproduce.published import PublishedBlock, select_tables


def plan_tables(
    tables: Sequence[str] = (),
    data: str | os.PathLike[str] | None = None,
    scores: str | os.PathLike[str] | None = None,
    models: str | os.PathLike[str] | None = None,
    metrics: Sequence[str] = (),
    limit: int | None = None,
) -> Table:
    """Return a row for each learned metric and data set of these tables. No model is downloaded, no LLM is asked."""
    if models is None:
        raise RunError(
            "only rows of learned metrics are planned: name a file of models, `models`", code="missing_value"
        )
    folder = DataFolder(find_data_folder(data), scores, limit)
    rows: list[list[Any]] = [
        [name, *row]
        for name, published in read_tables(select_tables(tables), models, metrics).items()
        for block in (published.blocks if published else ())
        if block.learned or block.missing
        for row in _plan_block(block, folder)
    ]
    head = name_columns("table", "row", "data", right=("outputs",)) + name_columns("state", "time", "metric")
    notes = ["Times are estimated on a few outputs on this machine; nothing was downloaded or written."]
    return Table(title="what learned metrics would take", columns=head, rows=rows, notes=notes)


def _plan_block(block: PublishedBlock, folder: DataFolder) -> Iterator[list[Any]]:
    for data in block.printed:
        if block.missing or not folder.has(data):
            yield [block.label, data, "", describe_missing(block), "", block.metric]
            continue
        records = folder.select_block(data, block)
        try:
            state, time = _estimate(records, block, folder, data)
        except MetristError as error:
            state, time = f"not ready: {error}", ""
        yield [block.label, data, Count(len(records)), state, time, block.metric]


def _estimate(records: Sequence[Any], block: PublishedBlock, folder: DataFolder, data: str) -> tuple[str, str]:
    """Return the state of a block on a data set, and the time or the number of requests."""
    run = estimate_run(records, block.metric, out=folder.run_folder(data, block))
    stored = sum(run.stored.values())
    if stored >= len(records):
        return "scored before", ""
    state = f"{stored:,} scored before" if stored else "ready"
    if run.calls.by_llm:
        return state, f"{sum(llm.calls - llm.answered for llm in run.calls.by_llm.values()):,} requests"
    time = run.times[0]
    if time.reason:
        return f"not ready: {time.reason}", ""
    return state, _format_time(time.seconds)


def _format_time(seconds: float) -> str:
    if math.isnan(seconds):
        return ""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
