"""Table 3: a criterion that was not trained on, learned from all others or from its kin alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from metrist.criteria import Circle, Suite
from metrist.report.tables import Column, Table
from metrist.studies.heap.found import Found
from metrist.studies.heap.jobs import Codes, SetupName, SplitName
from metrist.studies.heap.spreads import SPLIT_WORDS, Printed, Spread, paper_mean

_NAMES = ("task", "single", "single, paper", "cross all", "cross all, paper", "cross cluster", "cross cluster, paper")


def cluster_name(circle: Circle) -> str:
    """What a cluster or group is called in the names of trainings."""
    return f"cluster{circle.number}" if circle.number is not None else circle.name.replace(" ", "-")


def clusters(suite: Suite) -> Mapping[str, Codes]:
    """All clusters and groups of a suite by their names."""
    return {cluster_name(circle): circle.codes for circle in (*suite.clusters, *suite.groups)}


def cluster_table(found: Found, split: SplitName) -> Table | None:
    """The clusters that were trained within; None where there were none."""
    rows: list[list[Any]] = []
    for circle in (*found.suite.clusters, *found.suite.groups):
        rows += _block(found, split, circle)
    if not rows:
        return None
    return Table(
        title=f"Table 3: accuracy within and beyond clusters, in per cent, on {SPLIT_WORDS[split]}",
        columns=[Column(_NAMES[0]), *(Column(name, "right") for name in _NAMES[1:])],
        rows=rows,
        notes=[
            "Means are over the criteria that were run, the same on both sides; the paper prints a group's averages "
            "only, which stand here where all of the group was run.",
            *_apart_notes(found, split),
        ],
    )


def _apart_notes(found: Found, split: SplitName) -> list[str]:
    """Criteria that count here, though they are in no other mean."""
    circles = (*found.suite.clusters, *found.suite.groups)
    run = {code for circle in circles for code in found.codes("cross-cluster", split, cluster_name(circle))}
    apart = [code for code in found.suite.codes if code in run and not found.suite.criterion(code).comparable]
    return [f"Not comparable with the paper's, but in the means here as in its own: {', '.join(apart)}."] * bool(apart)


def _block(found: Found, split: SplitName, circle: Circle) -> list[list[Any]]:
    name = cluster_name(circle)
    codes = found.codes("cross-cluster", split, name)
    if not codes:
        return []
    title = f"{circle.number}: {circle.name}" if circle.number is not None else circle.name
    rows = [_row(found, split, circle, code) for code in codes]
    return [[title, *[""] * 6], *rows, _mean_row(found, split, circle, codes)]


def _row(found: Found, split: SplitName, circle: Circle, code: str) -> list[Any]:
    cells: list[Any] = [code]
    for setup in _BESIDE:
        printed = found.suite.accuracy[setup].get(code)
        cells += [Spread(found.accuracy(setup, split, code)), Printed(*(printed or (None,)))]
    within = circle.accuracy.get(code)
    ours = found.accuracy("cross-cluster", split, code, cluster_name(circle))
    return [*cells, Spread(ours), Printed(*(within or (None,)))]


_BESIDE: tuple[SetupName, ...] = ("single", "cross-task")


def _mean_row(found: Found, split: SplitName, circle: Circle, codes: Sequence[str]) -> list[Any]:
    cells: list[Any] = ["mean"]
    for setup in _BESIDE:
        there = set(codes) <= set(found.codes(setup, split))
        ours = found.mean_over(setup, split, codes) if there else None
        cells += [Spread(ours), Printed(paper_mean(found.suite, setup, codes))]
    within = found.mean_over("cross-cluster", split, codes, cluster_name(circle))
    return [*cells, Spread(within), Printed(_printed_mean(circle, codes))]


def _printed_mean(circle: Circle, codes: Sequence[str]) -> float | None:
    """Of the same criteria; a group's only where all of it was run."""
    if set(codes) <= set(circle.accuracy):
        return sum(circle.accuracy[code].mean for code in codes) / len(codes)
    return circle.average_cross_cluster if set(codes) == set(circle.codes) else None
