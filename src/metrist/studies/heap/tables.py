"""How figures are written in the tables of the study: ours with their spread, the paper's as printed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from metrist.criteria import Circle, Suite
from metrist.report.cells import fixed, or_none
from metrist.report.tables import Column, Table
from metrist.stats.measures import measure
from metrist.studies.heap.jobs import SETUPS, Codes, SetupName, SplitName
from metrist.studies.heap.results import Figure, StudyResults

SPLIT_WORDS = {
    "authors": "the authors' split",
    "honest": "a split that keeps each context on one side",
}


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and standard deviation over seeds, and the interval over test pairs: `66.9 ± 1.3 [61.0, 72.5]`."""

    figure: Figure | None
    scale: float = 100.0
    decimals: int = 1

    def __str__(self) -> str:
        if self.figure is None:
            return "–"
        mean, sd, low, high = (
            fixed(self.scale * value, self.decimals)
            for value in (self.figure.mean, self.figure.sd, self.figure.low, self.figure.high)
        )
        words = mean if math.isnan(self.figure.sd) else f"{mean} ± {sd}"
        return words if math.isnan(self.figure.low) else f"{words} [{low}, {high}]"

    def plain(self) -> dict[str, float | int | None] | None:
        if self.figure is None:
            return None
        values = {name: getattr(self.figure, name) for name in ("mean", "sd", "low", "high")}
        return {**{name: or_none(self.scale * value) for name, value in values.items()}, "seeds": self.figure.seeds}


@dataclass(frozen=True, slots=True)
class Printed:
    """What the paper prints: `66.94 ± 1.27`; a dash where it prints nothing."""

    mean: float | None
    sd: float | None = None
    decimals: int = 2

    def __str__(self) -> str:
        if self.mean is None:
            return "–"
        mean = fixed(self.mean, self.decimals)
        return mean if self.sd is None else f"{mean} ± {fixed(self.sd, self.decimals)}"

    def plain(self) -> dict[str, float | None] | None:
        return None if self.mean is None else {"mean": self.mean, "sd": self.sd}


def paper_mean(suite: Suite, setup: SetupName, codes: Sequence[str]) -> float:
    """The mean of what the paper prints for these criteria."""
    return sum(suite.accuracy[setup][code].mean for code in codes) / len(codes)


# How many seeds the figures of a table are over: said once where all are over as many, else behind each.


@dataclass(frozen=True, slots=True)
class Seeded:
    """A figure with its number of seeds: `66.9 ± 1.3 [61.0, 72.5] (4 seeds)`."""

    spread: Spread

    def __str__(self) -> str:
        figure = self.spread.figure
        return str(self.spread) if figure is None else f"{self.spread} ({_counted(figure.seeds)})"

    def plain(self) -> Any:
        return self.spread.plain()


def with_seeds(table: Table) -> Table:
    """The table with what it does not say yet."""
    counts = {cell.figure.seeds for row in table.rows for cell in row if isinstance(cell, Spread) and cell.figure}
    if not counts:
        return table
    if len(counts) == 1:
        return replace(table, notes=[*table.notes, f"Every figure is over {_counted(counts.pop())}."])
    note = "Figures are over different numbers of seeds, said behind each; a mean is over those of all its criteria."
    return replace(table, rows=[_wrap_spreads(row) for row in table.rows], notes=[*table.notes, note])


def _wrap_spreads(row: Sequence[Any]) -> list[Any]:
    return [Seeded(cell) if isinstance(cell, Spread) else cell for cell in row]


def _counted(seeds: int) -> str:
    return f"{seeds:,} seed{'' if seeds == 1 else 's'}"


# Table 3: a criterion that was not trained on, learned from all others or from its kin alone.


_NAMES = ("task", "single", "single, paper", "cross all", "cross all, paper", "cross cluster", "cross cluster, paper")


def cluster_name(circle: Circle) -> str:
    """What a cluster or group is called in the names of trainings."""
    return f"cluster{circle.number}" if circle.number is not None else circle.name.replace(" ", "-")


def clusters(suite: Suite) -> Mapping[str, Codes]:
    """All clusters and groups of a suite by their names."""
    return {cluster_name(circle): circle.codes for circle in (*suite.clusters, *suite.groups)}


def cluster_table(found: StudyResults, split: SplitName) -> Table | None:
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


def _apart_notes(found: StudyResults, split: SplitName) -> list[str]:
    """Criteria that count here, though they are in no other mean."""
    circles = (*found.suite.clusters, *found.suite.groups)
    run = {code for circle in circles for code in found.codes("cross-cluster", split, cluster_name(circle))}
    apart = [code for code in found.suite.codes if code in run and not found.suite.criterion(code).comparable]
    return [f"Not comparable with the paper's, but in the means here as in its own: {', '.join(apart)}."] * bool(apart)


def _block(found: StudyResults, split: SplitName, circle: Circle) -> list[list[Any]]:
    name = cluster_name(circle)
    codes = found.codes("cross-cluster", split, name)
    if not codes:
        return []
    title = f"{circle.number}: {circle.name}" if circle.number is not None else circle.name
    rows = [_row(found, split, circle, code) for code in codes]
    return [[title, *[""] * 6], *rows, _mean_row(found, split, circle, codes)]


def _row(found: StudyResults, split: SplitName, circle: Circle, code: str) -> list[Any]:
    cells: list[Any] = [code]
    for setup in _BESIDE:
        printed = found.suite.accuracy[setup].get(code)
        cells += [Spread(found.accuracy(setup, split, code)), Printed(*(printed or (None,)))]
    within = circle.accuracy.get(code)
    ours = found.accuracy("cross-cluster", split, code, cluster_name(circle))
    return [*cells, Spread(ours), Printed(*(within or (None,)))]


_BESIDE: tuple[SetupName, ...] = ("single", "cross-task")


def _mean_row(found: StudyResults, split: SplitName, circle: Circle, codes: Sequence[str]) -> list[Any]:
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


# Does more data help? Pearson correlations of a criterion's number of pairs with what it reaches (section 6).


Value = Callable[[SetupName, str], float]

#: The paper's name of each figure, what it is in words, and the setups of which the second is taken off the first.
_ROWS: tuple[tuple[str, str, tuple[SetupName, ...]], ...] = (
    ("single_accuracy", "single-task accuracy", ("single",)),
    ("multi_gain", "gain from multi-tasking: multi - single", ("multi", "single")),
    ("cross_task_gain", "gain from cross-task: cross-task - single", ("cross-task", "single")),
)


def size_table(found: StudyResults, split: SplitName) -> Table | None:
    """Of the setups that were run; None where too few criteria were. All criteria count, as in the paper."""
    rows = []
    for name, words, setups in _ROWS:
        codes = [code for code in found.suite.codes if all(code in found.codes(one, split) for one in setups)]
        if len(codes) < 3:
            continue
        ours = correlation([found.sizes[code] for code in codes], [_ours(found, split, setups, code) for code in codes])
        printed = found.suite.size_correlations[name]
        rows.append([words, len(codes), _cell(ours), Printed(printed), _cell(of_paper(found.suite, setups))])
    if not rows:
        return None
    names = ("number of pairs with", "criteria", "ours", "paper", "paper's tables")
    return Table(
        title=f"Correlation of data size with accuracy (Pearson), on {SPLIT_WORDS[split]}",
        columns=[Column(names[0]), *(Column(name, "right") for name in names[1:])],
        rows=rows,
        notes=[
            "ours: of the means over seeds in the tables above; paper: as its section 6 prints it; paper's tables: "
            "computed from its Tables 1 and 2, 22 criteria."
        ],
    )


def correlation(sizes: Sequence[float], values: Sequence[float]) -> float:
    return measure("pearson").value(sizes, values)


def of_paper(suite: Suite, setups: Sequence[SetupName]) -> float:
    """The same figure from the paper's own tables, which is not always what its text says."""
    sizes = [float(one.examples or 0) for one in suite.criteria]
    return correlation(sizes, [_difference([suite.accuracy[s][c].mean for s in setups]) for c in suite.codes])


def _ours(found: StudyResults, split: SplitName, setups: Sequence[SetupName], code: str) -> float:
    figures = [found.accuracy(setup, split, code) for setup in setups]
    return _difference([figure.mean for figure in figures if figure is not None])


def _difference(values: Sequence[float]) -> float:
    return values[0] - sum(values[1:])


def _cell(value: float) -> Spread:
    return Spread(Figure(mean=value), scale=1.0, decimals=2)


# The paper's tables with our figures beside its own. Averages are over the same criteria on both sides.


def tables(found: StudyResults) -> list[Table]:
    """All tables that the finished trainings allow. What is not in them is told below the first."""
    made = _seeded([_summary(found)])
    for split in found.splits:
        made += _seeded([_accuracies(found, split), _correlations(found, split), cluster_table(found, split)])
        made += [table for table in [size_table(found, split)] if table is not None]
    return [replace(made[0], notes=[*made[0].notes, *found.left_out]), *made[1:]] if made else []


def _seeded(made: Sequence[Table | None]) -> list[Table]:
    return [with_seeds(table) for table in made if table is not None]


def _main_setups(found: StudyResults, split: SplitName) -> list[SetupName]:
    """The setups of Table 2 that were run."""
    return [setup for setup in SETUPS if setup != "cross-cluster" and found.codes(setup, split)]


def _summary(found: StudyResults) -> Table | None:
    """The mean over comparable criteria by setup, one column a split: what there is to compare at one glance."""
    rows = []
    for setup in SETUPS[:-1]:
        run = [split for split in found.splits if found.codes(setup, split)]
        # All figures of a row are over the same criteria, though splits may have been run on more.
        shared = set.intersection(*(set(found.compared(setup, split)) for split in run)) if run else set()
        codes = [code for code in found.suite.codes if code in shared]
        if codes:
            cells = [Spread(found.mean_over(setup, split, codes) if split in run else None) for split in found.splits]
            rows.append([setup, len(codes), *cells, Printed(paper_mean(found.suite, setup, codes))])
    if not rows:
        return None
    names = ["setup", "criteria", *(str(split) for split in found.splits), "paper"]
    return Table(
        title="Mean accuracy over comparable criteria, in per cent",
        columns=_columns(names),
        rows=rows,
        notes=[
            "Mean ± standard deviation over seeds, [95 % interval over test pairs: contexts resampled whole, and "
            "answers that have none].",
            "authors: the split of the file, for comparison with the paper; honest: each context on one side.",
            *_tie_notes(found),
            *_chosen_notes(found),
        ],
    )


def _accuracies(found: StudyResults, split: SplitName) -> Table | None:
    setups = _main_setups(found, split)
    if not setups:
        return None
    codes = [code for code in found.suite.codes if any(code in found.codes(setup, split) for setup in setups)]
    rows: list[list[Any]] = [
        [code, found.pairs(code, split), *_figures_with_published(found, split, setups, code)] for code in codes
    ]
    average: list[Any] = ["mean", None]
    for setup in setups:
        compared = found.compared(setup, split)
        printed = Printed(paper_mean(found.suite, setup, compared)) if compared else Printed(None)
        average += [Spread(found.average(setup, split)), printed]
    names = ["task", "test pairs", *(name for setup in setups for name in (setup, f"{setup}, paper"))]
    return Table(
        title=f"Table 2: accuracy on the test set, in per cent, on {SPLIT_WORDS[split]}",
        columns=_columns(names),
        rows=[*rows, average],
        notes=[_mean_note(found, split, setups)],
    )


def _figures_with_published(found: StudyResults, split: SplitName, setups: Sequence[SetupName], code: str) -> list[Any]:
    cells: list[Any] = []
    for setup in setups:
        printed = found.suite.accuracy[setup].get(code)
        cells += [Spread(found.accuracy(setup, split, code)), Printed(*(printed or (None,)))]
    return cells


def _mean_note(found: StudyResults, split: SplitName, setups: Sequence[SetupName]) -> str:
    counted = {setup: found.compared(setup, split) for setup in setups}
    apart = sorted({code for code in found.suite.codes if not found.suite.criterion(code).comparable})
    words = ", ".join(f"{setup} {len(codes)}" for setup, codes in counted.items())
    return (
        f"The mean is over the same criteria on both sides ({words}); not comparable with the paper's, and not in it: "
        f"{', '.join(apart)}."
    )


def _correlations(found: StudyResults, split: SplitName) -> Table | None:
    setups = _main_setups(found, split)
    rated = [code for code in found.suite.codes if any(found.spearman(setup, split, code) for setup in setups)]
    if not rated:
        return None
    rows = []
    for code in rated:
        cells: list[Any] = [code]
        for setup in setups:
            ours, printed = found.spearman(setup, split, code), found.suite.spearman[setup].get(code)
            cells += [Spread(ours, scale=1.0, decimals=3), Printed(printed, decimals=3)]
        rows.append(cells)
    return Table(
        title=f"Table 2: Spearman correlation with human ratings, on {SPLIT_WORDS[split]}",
        columns=_columns(["task", *(name for setup in setups for name in (setup, f"{setup}, paper"))]),
        rows=rows,
        notes=["Over the distinct answers of the test pairs, all contexts together; mean ± sd over seeds."],
    )


def _tie_notes(found: StudyResults) -> list[str]:
    count, pairs = found.ties()
    return [f"A tie of two scores counts as wrong: {count:,} of {pairs:,} judged pairs are ties."]


def _chosen_notes(found: StudyResults) -> list[str]:
    return [f"Chosen on development pairs for {subject}: {words}." for subject, words in found.chosen.items()]


def _columns(names: Sequence[str]) -> list[Column]:
    return [Column(names[0]), *(Column(name, "right") for name in names[1:])]


def to_markdown(made: Sequence[Table]) -> str:
    return "\n\n".join(table.render("markdown") for table in made) + "\n"


def to_data(made: Sequence[Table]) -> list[Mapping[str, Any]]:
    return [table.to_dict() for table in made]
