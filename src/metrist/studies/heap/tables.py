"""The paper's tables with our figures next to the published ones. Means are over the same criteria for both."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from metrist.criteria import CriteriaGroup, Suite
from metrist.errors import format_count
from metrist.report.tables import Table, format_number, name_columns, or_none
from metrist.stats.measures import measure
from metrist.studies.heap.jobs import SETUPS, Codes, SetupName, SplitName
from metrist.studies.heap.results import SeedSummary, StudyResults

_SPLIT_TITLES = {
    "authors": "the authors' split",
    "honest": "a split that keeps each context on one side",
}


@dataclass(frozen=True, slots=True)
class SummaryCell:
    """Mean and standard deviation over seeds, and the interval over test pairs: `66.9 ± 1.3 [61.0, 72.5]`. With
    `show_seeds`, ` (4 seeds)` follows."""

    summary: SeedSummary | None
    scale: float = 100.0
    decimals: int = 1
    show_seeds: bool = False

    def __str__(self) -> str:
        summary = self.summary
        if summary is None:
            return "–"
        mean, sd, low, high = (
            format_number(self.scale * value, self.decimals)
            for value in (summary.mean, summary.sd, summary.low, summary.high)
        )
        text = mean if math.isnan(summary.sd) else f"{mean} ± {sd}"
        text += "" if math.isnan(summary.low) else f" [{low}, {high}]"
        return f"{text} ({format_count(summary.seeds, 'seed')})" if self.show_seeds else text

    def plain(self) -> dict[str, float | int | None] | None:
        if self.summary is None:
            return None
        values = {name: getattr(self.summary, name) for name in ("mean", "sd", "low", "high")}
        return {**{name: or_none(self.scale * value) for name, value in values.items()}, "seeds": self.summary.seeds}


@dataclass(frozen=True, slots=True)
class PaperCell:
    """The paper's figure: `66.94 ± 1.27`, or a dash if it has none."""

    mean: float | None
    sd: float | None = None
    decimals: int = 2

    def __str__(self) -> str:
        if self.mean is None:
            return "–"
        mean = format_number(self.mean, self.decimals)
        return mean if self.sd is None else f"{mean} ± {format_number(self.sd, self.decimals)}"

    def plain(self) -> dict[str, float | None] | None:
        return None if self.mean is None else {"mean": self.mean, "sd": self.sd}


def make_tables(results: StudyResults) -> list[Table]:
    """Return all tables that the finished trainings allow. Trainings that are left out are listed below the first."""
    tables = [_summary_table(results)]
    for split in results.splits:
        tables += [_accuracy_table(results, split), _spearman_table(results, split), _cluster_table(results, split)]
        tables.append(_size_table(results, split))
    filled = [table for table in tables if table is not None]
    return [replace(filled[0], notes=[*filled[0].notes, *results.left_out]), *filled[1:]] if filled else []


def _add_seed_counts(table: Table) -> Table:
    """State the number of seeds once if it is the same for all figures, else in each cell."""
    cells = [cell for row in table.rows for cell in row if isinstance(cell, SummaryCell)]
    counts = {cell.summary.seeds for cell in cells if cell.summary}
    if not counts:
        return table
    if len(counts) == 1:
        return replace(table, notes=[*table.notes, f"Every figure is over {format_count(counts.pop(), 'seed')}."])
    rows = [
        [replace(cell, show_seeds=True) if isinstance(cell, SummaryCell) else cell for cell in row]
        for row in table.rows
    ]
    note = "The number of seeds differs and follows each figure; a mean is over the seeds that all its criteria have."
    return replace(table, rows=rows, notes=[*table.notes, note])


def _average_published(suite: Suite, setup: SetupName, codes: Sequence[str]) -> float:
    return sum(suite.accuracy[setup][code].mean for code in codes) / len(codes)


def _accuracy_cells(
    results: StudyResults, split: SplitName, setups: Sequence[SetupName], code: str
) -> list[SummaryCell | PaperCell]:
    cells: list[SummaryCell | PaperCell] = []
    for setup in setups:
        published = results.suite.accuracy[setup].get(code)
        cells += [SummaryCell(results.accuracy(setup, split, code)), PaperCell(*(published or (None,)))]
    return cells


def _list_main_setups(results: StudyResults, split: SplitName) -> list[SetupName]:
    """Return the setups of Table 2 that were run."""
    return [setup for setup in SETUPS if setup != "cross-cluster" and results.codes(setup, split)]


def _summary_table(results: StudyResults) -> Table | None:
    """The mean over comparable criteria by setup, with a column for each split."""
    rows = []
    for setup in SETUPS[:-1]:
        used = [split for split in results.splits if results.codes(setup, split)]
        # All figures of a row are over the same criteria, even if one split was run on more.
        shared = set.intersection(*(set(results.comparable_codes(setup, split)) for split in used)) if used else set()
        codes = [code for code in results.suite.codes if code in shared]
        if codes:
            cells = [
                SummaryCell(results.mean_over(setup, split, codes) if split in used else None)
                for split in results.splits
            ]
            rows.append([setup, len(codes), *cells, PaperCell(_average_published(results.suite, setup, codes))])
    if not rows:
        return None
    ties, pairs = results.count_ties()
    table = Table(
        title="Mean accuracy over comparable criteria, in per cent",
        columns=name_columns("setup", right=("criteria", *results.splits, "paper")),
        rows=rows,
        notes=[
            "Mean ± standard deviation over seeds, [95 % interval over test pairs: whole contexts are resampled, and "
            "answers that have none].",
            "authors: the split of the file, for comparison with the paper; honest: each context on one side.",
            f"A tie of two scores counts as wrong: {ties:,} of {pairs:,} judged pairs are ties.",
            *(f"Chosen on development pairs for {subject}: {text}." for subject, text in results.chosen.items()),
        ],
    )
    return _add_seed_counts(table)


def _accuracy_table(results: StudyResults, split: SplitName) -> Table | None:
    setups = _list_main_setups(results, split)
    if not setups:
        return None
    suite = results.suite
    codes = [code for code in suite.codes if any(code in results.codes(setup, split) for setup in setups)]
    rows: list[list[Any]] = [
        [code, results.count_pairs(code, split), *_accuracy_cells(results, split, setups, code)] for code in codes
    ]
    mean_row: list[Any] = ["mean", None]
    counts = []
    for setup in setups:
        compared = results.comparable_codes(setup, split)
        counts.append(f"{setup} {len(compared)}")
        published = PaperCell(_average_published(suite, setup, compared) if compared else None)
        mean_row += [SummaryCell(results.average(setup, split)), published]
    excluded = sorted(code for code in suite.codes if not suite.criterion(code).comparable)
    table = Table(
        title=f"Table 2: accuracy on the test set, in per cent, on {_SPLIT_TITLES[split]}",
        columns=name_columns(
            "task", right=["test pairs", *(name for setup in setups for name in (setup, f"{setup}, paper"))]
        ),
        rows=[*rows, mean_row],
        notes=[
            f"The mean is over the same criteria for both ({', '.join(counts)}); not comparable with the paper's, and "
            f"not in it: {', '.join(excluded)}."
        ],
    )
    return _add_seed_counts(table)


def _spearman_table(results: StudyResults, split: SplitName) -> Table | None:
    setups = _list_main_setups(results, split)
    rated = [code for code in results.suite.codes if any(results.spearman(setup, split, code) for setup in setups)]
    if not rated:
        return None
    rows = []
    for code in rated:
        cells: list[Any] = [code]
        for setup in setups:
            both = [results.spearman(setup, split, code, pooled) for pooled in (False, True)]
            cells += [SummaryCell(summary, scale=1.0, decimals=3) for summary in both]
            cells.append(PaperCell(results.suite.spearman[setup].get(code), decimals=3))
        rows.append(cells)
    table = Table(
        title=f"Table 2: Spearman correlation with human ratings, on {_SPLIT_TITLES[split]}",
        columns=name_columns(
            "task", right=[f"{setup}, {name}" for setup in setups for name in ("answers", "pairs", "paper")]
        ),
        rows=rows,
        notes=[
            "answers: over the distinct answers of the test pairs, all contexts together; pairs: over both answers of "
            "each pair, as in the authors' code, where an answer counts in each of its pairs; mean ± sd over seeds."
        ],
    )
    return _add_seed_counts(table)


# Table 3: a criterion that was not trained on, learned from all others or from its cluster alone.

_OTHER_SETUPS: tuple[SetupName, ...] = ("single", "cross-task")


def _cluster_name(group: CriteriaGroup) -> str:
    """Return the name of a cluster or group in the names of trainings."""
    return f"cluster{group.number}" if group.number is not None else group.name.replace(" ", "-")


def list_clusters(suite: Suite) -> Mapping[str, Codes]:
    """Return the criteria of all clusters and groups of a suite by name."""
    return {_cluster_name(group): group.codes for group in (*suite.clusters, *suite.groups)}


def _cluster_table(results: StudyResults, split: SplitName) -> Table | None:
    suite = results.suite
    rows: list[list[Any]] = []
    tested: set[str] = set()
    for group in (*suite.clusters, *suite.groups):
        codes = results.codes("cross-cluster", split, _cluster_name(group))
        if codes:
            rows += _group_rows(results, split, group, codes)
            tested.update(codes)
    if not rows:
        return None
    notes = [
        "Means are over the criteria that were run, the same for both. The paper has only the averages of its groups, "
        "which are shown if all of the group was run."
    ]
    incomparable = [code for code in suite.codes if code in tested and not suite.criterion(code).comparable]
    if incomparable:
        notes.append(
            f"Not comparable with the paper's, but in the means here as in the paper: {', '.join(incomparable)}."
        )
    names = ("single", "single, paper", "cross all", "cross all, paper", "cross cluster", "cross cluster, paper")
    table = Table(
        title=f"Table 3: accuracy within and beyond clusters, in per cent, on {_SPLIT_TITLES[split]}",
        columns=name_columns("task", right=names),
        rows=rows,
        notes=notes,
    )
    return _add_seed_counts(table)


def _group_rows(results: StudyResults, split: SplitName, group: CriteriaGroup, codes: Codes) -> list[list[Any]]:
    """Return the title, a row for each criterion, and the mean of one cluster or group."""
    suite, cluster = results.suite, _cluster_name(group)
    title = f"{group.number}: {group.name}" if group.number is not None else group.name
    rows: list[list[Any]] = [[title, *[""] * 6]]
    for code in codes:
        summary = results.accuracy("cross-cluster", split, code, cluster)
        published = PaperCell(*(group.accuracy.get(code) or (None,)))
        rows.append([code, *_accuracy_cells(results, split, _OTHER_SETUPS, code), SummaryCell(summary), published])
    mean_row: list[Any] = ["mean"]
    for setup in _OTHER_SETUPS:
        complete = set(codes) <= set(results.codes(setup, split))
        mean = results.mean_over(setup, split, codes) if complete else None
        mean_row += [SummaryCell(mean), PaperCell(_average_published(suite, setup, codes))]
    # The paper's mean over the same criteria; if it has only the group's average, all must be there.
    published_mean = group.average_cross_cluster if set(codes) == set(group.codes) else None
    if set(codes) <= set(group.accuracy):
        published_mean = sum(group.accuracy[code].mean for code in codes) / len(codes)
    mean_row += [
        SummaryCell(results.mean_over("cross-cluster", split, codes, cluster)),
        PaperCell(published_mean),
    ]
    return [*rows, mean_row]


# Does more data help? Pearson correlations of a criterion's number of pairs with its accuracy (section 6).

#: The paper's name of each figure, its title, and the setups; the second is subtracted from the first.
_SIZE_ROWS: tuple[tuple[str, str, tuple[SetupName, ...]], ...] = (
    ("single_accuracy", "single-task accuracy", ("single",)),
    ("multi_gain", "gain from multi-tasking: multi - single", ("multi", "single")),
    ("cross_task_gain", "gain from cross-task: cross-task - single", ("cross-task", "single")),
)


def _size_table(results: StudyResults, split: SplitName) -> Table | None:
    """Include the setups that were run on three criteria or more. All criteria count, as in the paper."""
    rows = []
    for name, title, setups in _SIZE_ROWS:
        codes = [code for code in results.suite.codes if all(code in results.codes(setup, split) for setup in setups)]
        if len(codes) < 3:
            continue
        gains = []
        for code in codes:
            summaries = [results.accuracy(setup, split, code) for setup in setups]
            gains.append(_subtract([summary.mean for summary in summaries if summary is not None]))
        ours = measure("pearson").value([results.sizes[code] for code in codes], gains)
        ours_cell = SummaryCell(SeedSummary(mean=ours), scale=1.0, decimals=2)
        published = PaperCell(results.suite.size_correlations[name])
        computed = SeedSummary(mean=correlate_published(results.suite, setups))
        rows.append([title, len(codes), ours_cell, published, SummaryCell(computed, scale=1.0, decimals=2)])
    if not rows:
        return None
    return Table(
        title=f"Correlation of data size with accuracy (Pearson), on {_SPLIT_TITLES[split]}",
        columns=name_columns("number of pairs with", right=("criteria", "ours", "paper", "paper's tables")),
        rows=rows,
        notes=[
            "ours: of the means over seeds in the tables above; paper: as stated in its section 6; paper's tables: "
            "computed from its Tables 1 and 2, 22 criteria."
        ],
    )


def correlate_published(suite: Suite, setups: Sequence[SetupName]) -> float:
    """Compute the same correlation from the paper's own tables, which sometimes differs from the one in its text."""
    sizes = [float(criterion.examples or 0) for criterion in suite.criteria]
    gains = [_subtract([suite.accuracy[setup][code].mean for setup in setups]) for code in suite.codes]
    return measure("pearson").value(sizes, gains)


def _subtract(values: Sequence[float]) -> float:
    return values[0] - sum(values[1:])
