"""Does more data help? Pearson correlations of a criterion's number of pairs with what it reaches (section 6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from metrist.criteria import Suite
from metrist.report.tables import Column, Table
from metrist.stats.measures import measure
from metrist.studies.heap.estimates import Figure
from metrist.studies.heap.found import Found
from metrist.studies.heap.jobs import SetupName, SplitName
from metrist.studies.heap.spreads import SPLIT_WORDS, Printed, Spread

Value = Callable[[SetupName, str], float]

#: The paper's name of each figure, what it is in words, and the setups of which the second is taken off the first.
_ROWS: tuple[tuple[str, str, tuple[SetupName, ...]], ...] = (
    ("single_accuracy", "single-task accuracy", ("single",)),
    ("multi_gain", "gain from multi-tasking: multi - single", ("multi", "single")),
    ("cross_task_gain", "gain from cross-task: cross-task - single", ("cross-task", "single")),
)


def size_table(found: Found, split: SplitName) -> Table | None:
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


def _ours(found: Found, split: SplitName, setups: Sequence[SetupName], code: str) -> float:
    figures = [found.accuracy(setup, split, code) for setup in setups]
    return _difference([figure.mean for figure in figures if figure is not None])


def _difference(values: Sequence[float]) -> float:
    return values[0] - sum(values[1:])


def _cell(value: float) -> Spread:
    return Spread(Figure(mean=value), scale=1.0, decimals=2)
