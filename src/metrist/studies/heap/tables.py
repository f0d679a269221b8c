"""The paper's tables with our figures beside its own. Averages are over the same criteria on both sides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from metrist.report.tables import Column, Table
from metrist.studies.heap.clusters import cluster_table
from metrist.studies.heap.found import Found
from metrist.studies.heap.jobs import SETUPS, SetupName, SplitName
from metrist.studies.heap.seeds import with_seeds
from metrist.studies.heap.sizes import size_table
from metrist.studies.heap.spreads import SPLIT_WORDS, Printed, Spread, paper_mean


def tables(found: Found) -> list[Table]:
    """All tables that the finished trainings allow. What is not in them is told below the first."""
    made = _seeded([_summary(found)])
    for split in found.splits:
        made += _seeded([_accuracies(found, split), _correlations(found, split), cluster_table(found, split)])
        made += [table for table in [size_table(found, split)] if table is not None]
    return [replace(made[0], notes=[*made[0].notes, *found.left_out]), *made[1:]] if made else []


def _seeded(made: Sequence[Table | None]) -> list[Table]:
    return [with_seeds(table) for table in made if table is not None]


def _main_setups(found: Found, split: SplitName) -> list[SetupName]:
    """The setups of Table 2 that were run."""
    return [setup for setup in SETUPS if setup != "cross-cluster" and found.codes(setup, split)]


def _summary(found: Found) -> Table | None:
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


def _accuracies(found: Found, split: SplitName) -> Table | None:
    setups = _main_setups(found, split)
    if not setups:
        return None
    codes = [code for code in found.suite.codes if any(code in found.codes(setup, split) for setup in setups)]
    rows: list[list[Any]] = [[code, found.pairs(code, split), *_beside(found, split, setups, code)] for code in codes]
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


def _beside(found: Found, split: SplitName, setups: Sequence[SetupName], code: str) -> list[Any]:
    cells: list[Any] = []
    for setup in setups:
        printed = found.suite.accuracy[setup].get(code)
        cells += [Spread(found.accuracy(setup, split, code)), Printed(*(printed or (None,)))]
    return cells


def _mean_note(found: Found, split: SplitName, setups: Sequence[SetupName]) -> str:
    counted = {setup: found.compared(setup, split) for setup in setups}
    apart = sorted({code for code in found.suite.codes if not found.suite.criterion(code).comparable})
    words = ", ".join(f"{setup} {len(codes)}" for setup, codes in counted.items())
    return (
        f"The mean is over the same criteria on both sides ({words}); not comparable with the paper's, and not in it: "
        f"{', '.join(apart)}."
    )


def _correlations(found: Found, split: SplitName) -> Table | None:
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


def _tie_notes(found: Found) -> list[str]:
    count, pairs = found.ties()
    return [f"A tie of two scores counts as wrong: {count:,} of {pairs:,} judged pairs are ties."]


def _chosen_notes(found: Found) -> list[str]:
    return [f"Chosen on development pairs for {subject}: {words}." for subject, words in found.chosen.items()]


def _columns(names: Sequence[str]) -> list[Column]:
    return [Column(names[0]), *(Column(name, "right") for name in names[1:])]


def to_markdown(made: Sequence[Table]) -> str:
    return "\n\n".join(table.render("markdown") for table in made) + "\n"


def to_data(made: Sequence[Table]) -> list[Mapping[str, Any]]:
    return [table.to_dict() for table in made]
