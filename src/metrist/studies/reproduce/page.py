"""The page of published tables: `reproduce` computes its sections, `format_page` writes them as Markdown."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from metrist.errors import MetristError, RunError, check_known, format_count
from metrist.evaluate.meta.evaluate import meta_evaluate
from metrist.evaluate.meta.results import Figure
from metrist.report.tables import Change, Column, Count, Estimate, Number, Table, name_columns
from metrist.run.estimate import estimate_run
from metrist.studies.reproduce.agreement import METRICS_TABLE, make_agreement_table
from metrist.studies.reproduce.figures import DataFolder, ReproducedFigure, find_data_folder, reproduce_block
from metrist.studies.reproduce.models import ModelNames, add_models, needs_models
from metrist.studies.reproduce.published import (
    MEAN,
    NO_DATA,
    RELIABILITY,
    PublishedBlock,
    PublishedTable,
    list_tables,
    read_published_table,
    read_table_file,
    select_tables,
)
from metrist.studies.reproduce.sections import PageSection
from metrist.studies.reproduce.shipped import (
    LIKELIHOOD_TABLE,
    PREFERENCE_TABLE,
    STRESS_TABLE,
    make_likelihood_table,
    make_preference_table,
    make_stress_table,
)

_HEAD = """\
# Published tables, reproduced

<!-- Written by `metrist reproduce` (`make tables`); edit src/metrist/studies/reproduce, not this page. -->

Recompute the tables of several papers from the same human judgments, and compare the numbers:

```sh
metrist reproduce --data DATA -o tables.md
```

This page is the output. It has lexical metrics, scores stored with the data, and the shipped models. The papers are
TIGERScore (001 in the names of tables) and BARTScore (002; Yuan, Neubig and Liu 2021). n is the number of outputs with
both a human judgment and a score, or of pairs that raters compared. The data sets are public but not part of metrist:
`--data` or the environment variable METRIST_TEST_DATA names their folder. Rows of learned metrics (BARTScore,
TIGERScore and others) are added by [`--models FILE`](../guides/reliability.md#published-tables-with-models), where
their weights are at hand.
"""


def reproduce(
    tables: Sequence[str] = (),
    data: str | os.PathLike[str] | None = None,
    scores: str | os.PathLike[str] | None = None,
    keep: Collection[str] = (),
    only: Collection[str] = (),
    models: str | os.PathLike[str] | None = None,
    metrics: Sequence[str] = (),
    limit: int | None = None,
) -> Iterator[PageSection]:
    """Compute the tables of these names (all if there are none), one at a time. Rows whose data set is not in the
    folder say so. Scores are kept in the folder `scores`, so that another time computes only what has changed. In
    the table of shipped metrics, the columns `keep`, and the rows of other data sets than `only`, stay as published.

    `models` is a file that names models for the rows of learned metrics. `metrics` keeps the rows with these labels,
    `limit` the first items of each data set, in the tables of papers."""
    folder = DataFolder(find_data_folder(data), scores, limit)
    published = read_tables(select_tables(tables), models, metrics)
    return (_make_section(name, table, folder, keep, only) for name, table in published.items())


def list_contents() -> Table:
    """All tables, with their data sets and the rows that need a file of models."""
    rows: list[list[Any]] = []
    for name in list_tables():
        content = read_table_file(name)
        blocks = content.get("blocks", ())
        data = {entry["data"] for entry in (content, *content.get("sets", ())) if "data" in entry}
        data.update(data for block in blocks for data in block["printed"])
        rows.append([name, content["title"], Count(len(data)), Count(sum(map(needs_models, blocks)))])
    rows.append([RELIABILITY, "A reliability study of ratings and scores of your own", "", ""])
    head = name_columns("table", "what it has", right=("data sets", "rows with models"))
    return Table(title="Published tables", columns=head, rows=rows)


def read_tables(
    names: Sequence[str], models: str | os.PathLike[str] | None, metrics: Sequence[str]
) -> dict[str, PublishedTable | None]:
    """The tables of papers with the rows that were asked for; None for a table with a form of its own, which is left
    out if rows were named."""
    own_forms = (METRICS_TABLE, LIKELIHOOD_TABLE, PREFERENCE_TABLE, STRESS_TABLE, WMT23_TABLE)
    papers = [name for name in list_tables() if name not in own_forms]
    model_names = None if models is None else ModelNames.read(models, papers)
    tables = {name: add_models(name, read_published_table(name), model_names) for name in names if name in papers}
    if metrics:
        labels = {block.label: None for table in tables.values() for block in table.blocks}
        learned = {
            block["label"] for name in tables for block in read_table_file(name)["blocks"] if needs_models(block)
        }
        for label in metrics:
            if label in learned and label not in labels:
                raise RunError(f"the row {label!r} needs a file of models, `models`", code="missing_value")
            check_known("row of these tables", label, labels, RunError)
        tables = {
            name: replace(table, blocks=tuple(block for block in table.blocks if block.label in metrics))
            for name, table in tables.items()
        }
    kept = {name: tables.get(name) for name in names if (tables[name].blocks if name in tables else not metrics)}
    if not kept:
        raise RunError(f"{', '.join(names)}: all rows need a file of models, `models`", code="missing_value")
    return kept


def format_page(sections: Iterable[PageSection]) -> str:
    return f"{_HEAD}\n{format_sections(sections)}"


def format_sections(sections: Iterable[PageSection]) -> str:
    """The tables without the head of the page."""
    texts = []
    for section in sections:
        command = f"`metrist reproduce --table {section.name}`"
        opening = f"{section.caption} {section.summary}".strip()
        texts.append(f"## {section.title}\n\n{opening} Command: {command}.\n\n{section.table.render('markdown')}\n")
    return "\n".join(texts)


def _make_section(
    name: str, published: PublishedTable | None, folder: DataFolder, keep: Collection[str], only: Collection[str]
) -> PageSection:
    makers: dict[str, Callable[[DataFolder], PageSection]] = {
        METRICS_TABLE: partial(make_agreement_table, keep=keep, only=only),
        LIKELIHOOD_TABLE: make_likelihood_table,
        PREFERENCE_TABLE: make_preference_table,
        STRESS_TABLE: make_stress_table,
        WMT23_TABLE: make_wmt23_table,
    }
    if published is None:
        return makers[name](folder)
    limited = [] if folder.limit is None else [f"Only the first {format_count(folder.limit, 'item')} of each data set."]
    figures = [figure for block in published.blocks for figure in reproduce_block(block, folder, published.scale)]
    return PageSection(
        name=name,
        title=published.title,
        caption=published.caption,
        summary=summarize(figures),
        table=Table(
            columns=_COLUMNS,
            rows=[_format_row(figure, published.decimals) for figure in figures],
            notes=[*limited, *published.notes],
        ),
    )


# A paper's figures next to ours.

#: On a scale to 1: figures within the first are the same; a difference above the second needs an explanation.
SAME = 0.005
EXPLAINED_ABOVE = 0.03

_COLUMNS = (
    *name_columns("metric", "data", "aspect", "measure", right=("n", "paper", "ours", "difference")),
    *name_columns("computed as", "note"),
)
_REFERENCES = {
    "all": "",
    "first": "first reference only",
    "source": "source as reference",
    "gold": "references as outputs",
}
_LINES = {"whole": "", "sentences": "one sentence per line"}


def _format_row(figure: ReproducedFigure, decimals: int) -> list[Any]:
    block = figure.block
    settings = [
        f"stored {block.stored}" if block.stored else block.metric,
        block.part,
        _REFERENCES[block.references],
        _LINES[block.lines],
        f"without {' and '.join(block.exclude)}" if block.exclude else "",
    ]
    return [
        block.label,
        figure.data,
        "mean of all" if figure.aspect == MEAN else figure.aspect,
        f"{figure.measure}, by item" if block.group == "item" else figure.measure,
        Count(figure.n),
        Number(figure.printed, decimals),
        Number(figure.ours, decimals) if figure.has_data else describe_missing(block),
        Change(figure.difference, decimals=decimals),
        ", ".join(filter(None, settings)),
        block.note,
    ]


def describe_missing(block: PublishedBlock) -> str:
    return f"weights missing: {', '.join(block.missing)}" if block.missing else NO_DATA


def summarize(figures: Sequence[ReproducedFigure]) -> str:
    """Say how many figures agree with the printed ones."""
    computed = [figure for figure in figures if not figure.block.stored]
    stored = [figure for figure in figures if figure.block.stored]
    parts = [_count_same("Computed here", computed), _count_same("From stored scores", stored)]
    for what, absent in (("data is", False), ("weights are", True)):
        missing = sum(not figure.has_data for figure in figures if bool(figure.block.missing) == absent)
        parts += [f"The {what} missing for {missing}."] if missing else []
    return " ".join(filter(None, parts))


def _count_same(kind: str, figures: Sequence[ReproducedFigure]) -> str:
    gaps = [abs(figure.difference) / figure.scale for figure in figures if not math.isnan(figure.difference)]
    if not gaps:
        return ""
    same, far = sum(gap <= SAME for gap in gaps), sum(gap > EXPLAINED_ABOVE for gap in gaps)
    near = len(gaps) - same - far
    counts = [f"{same} of {len(gaps)} figures are within {_shorten(SAME)} of the paper's"]
    counts += [f"{near} within {_shorten(EXPLAINED_ABOVE)}"] if near else []
    counts += [f"{far} further off (see the notes)"] if far else []
    return f"{kind}, {', '.join(counts)}."


def _shorten(number: float) -> str:
    return f"{number:g}".removeprefix("0")


# The metrics submitted to WMT23, by the scores of their authors.

WMT23_TABLE = "wmt23-en-de"
#: Four decimals cannot tell smaller differences apart.
_WMT23_SAME = 0.0001
_WMT23_DECIMALS = 4
_WMT23_COLUMNS = (
    Column("rank", "right"),
    *name_columns("metric", right=("acc_eq", "ε", "chance", "all ties", "n", "mt-metrics-eval", "difference")),
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WMT23Table(PageSection):
    """The submitted metrics, best first."""

    figures: tuple[Figure, ...]


def make_wmt23_table(folder: DataFolder, draws: int = 1000) -> WMT23Table:
    """Compare the metrics of WMT23 English-German; `draws` resamples give intervals and ranks. The summary says how
    many figures agree with those of mt-metrics-eval."""
    content = read_table_file(WMT23_TABLE)
    known = content["printed"]
    figures: tuple[Figure, ...] = ()
    notes: Sequence[str] = ()
    summary = "The data is missing."
    rows: list[list[Any]] = []
    if folder.has(content["data"]):
        evaluation = meta_evaluate(
            folder.judged(content["data"]),
            content["aspect"],
            content["measure"],
            group=content["group"],
            exclude_systems=content["exclude"],
            draws=draws,
        )
        figures = tuple(sorted(evaluation.figures, key=lambda figure: -figure.value))
        notes = evaluation.notes
        gaps = {figure.metric: figure.value - known.get(figure.metric, math.nan) for figure in figures}
        rows = [
            [
                Count(figure.rank) if figure.rank else "",
                figure.metric,
                Estimate(figure.value, figure.low, figure.high, _WMT23_DECIMALS),
                Number(figure.epsilon, 6),
                Number(figure.chance, _WMT23_DECIMALS),
                Number(figure.all_ties, _WMT23_DECIMALS),
                Count(figure.n),
                Number(known.get(figure.metric, math.nan), _WMT23_DECIMALS),
                Change(gaps[figure.metric], decimals=_WMT23_DECIMALS),
            ]
            for figure in figures
        ]
        compared = [abs(gap) for metric, gap in gaps.items() if metric in known]
        same = sum(gap <= _WMT23_SAME for gap in compared)
        summary = f"{same} of the {len(compared)} values known from mt-metrics-eval agree to within {_WMT23_SAME:.4f}."
    else:
        # One row for each known value.
        nothing = Number(math.nan)
        for metric, value in known.items():
            printed = Number(value, _WMT23_DECIMALS)
            rows.append(["", metric, NO_DATA, nothing, nothing, nothing, Count(0), printed, nothing])
    return WMT23Table(
        name=WMT23_TABLE,
        title=content["title"],
        caption=content["caption"].strip(),
        summary=summary,
        table=Table(columns=_WMT23_COLUMNS, rows=rows, notes=tuple(notes)),
        figures=figures,
    )


# What the rows of learned metrics would take: time, LLM requests, and the weights and data that are missing.


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
