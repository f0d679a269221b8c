"""One metric's scores of several systems, laid side by side by item and ready for a paired test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from metrist.grid import Grid
from metrist.metrics.base import Metric

if TYPE_CHECKING:
    from metrist.run.results import Results
import os
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal

from metrist.errors import RunError, did_you_mean
from metrist.evaluate.selection import (
    check_signatures,
    chosen_metrics,
    chosen_systems,
    decimals_of,
    opened,
    signature_of,
)
from metrist.report.cells import Change, Count, Number, PValue, or_none
from metrist.report.tables import Column, Table
from metrist.stats.resampling import PairTest, Test, pair_tests
from metrist.stats.significance import holm

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """A metric's grid of systems and items, with the statistics behind each cell."""

    metric: Metric
    grid: Grid
    stats: Floats

    def shared(self, first: int, second: int) -> Mask:
        """The items that both systems have a score for."""
        failed: Mask = np.isnan(self.grid.values[first]) | np.isnan(self.grid.values[second])
        return ~failed

    def left_out(self, first: int, second: int) -> int:
        """How many items of either system are missing or failed for one of them."""
        given = (self.grid.rows[[first, second]] >= 0).any(axis=0)
        return int(np.count_nonzero(given)) - int(np.count_nonzero(self.shared(first, second)))

    def rows(self, systems: Sequence[int], items: Mask) -> Floats:
        """Statistics (systems, items, k) of cells that all have a score."""
        cells = self.grid.rows[np.asarray(systems, dtype=np.intp)][:, items]
        rows: Floats = self.stats[cells]
        return rows


def block(metric: Metric, parts: Sequence[tuple[Results, Mapping[str, str]]]) -> Block:
    """The metric's scores in one or more runs; each part says which of its systems take part and under what name."""
    labels: list[str] = []
    items: list[str] = []
    values, stats = [], []
    for results, names in parts:
        at = [row for row, system in enumerate(results.systems) if system in names]
        scores = results.scores[metric.text]
        labels += [names[results.systems[row]] for row in at]
        items += [results.items[row] for row in at]
        values.append(scores.values[at])
        stats.append(scores.stats[at])
    grid = Grid.of(metric.text, labels, items, np.concatenate(values))
    return Block(metric, grid, _stacked(stats))


def _stacked(stats: Sequence[Floats]) -> Floats:
    # A run in which every output failed cannot know how wide the metric's rows are: its zeros are widened.
    width = max(block.shape[1] for block in stats)
    return np.concatenate([np.pad(block, ((0, 0), (0, width - block.shape[1]))) for block in stats])


# Is one system better than another? Every pair of systems, per metric, on the items that both were scored on.


Tests = Literal["both", "bootstrap", "randomisation"]
_TESTS: Mapping[str, tuple[Test, ...]] = {
    "both": ("bootstrap", "randomisation"),
    "bootstrap": ("bootstrap",),
    "randomisation": ("randomisation",),
}
_NAMES: Mapping[Test, str] = {"bootstrap": "the paired bootstrap", "randomisation": "approximate randomisation"}
_HEADS: Mapping[Test, str] = {"bootstrap": "p boot", "randomisation": "p rand"}
#: With fewer items than this a percentile bootstrap is too sure of itself.
_FEW = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a comparison is made."""

    tests: tuple[Test, ...]
    draws: int
    seed: int
    alpha: float
    confidence: float = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """Two systems under one metric. `adjusted` are the p-values after Holm's correction over the metric's pairs."""

    metric: Metric
    first: str
    second: str
    items: int
    left_out: int
    test: PairTest
    adjusted: Mapping[Test, float]
    winner: str | None

    @property
    def verdict(self) -> str:
        """The winner's name, or why there is none."""
        if self.winner is not None:
            return self.winner
        if self.metric.higher_is_better is None:
            return "(descriptive)"
        return "not tested" if any(map(np.isnan, self.adjusted.values())) else "not separated"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Comparison:
    """All contests, metric by metric. `notes` tell what is amiss with the runs."""

    contests: tuple[Contest, ...]
    signatures: Mapping[str, str]
    plan: Plan
    notes: tuple[str, ...] = ()

    def table(self) -> Table:
        """One row per metric and pair."""
        sides = [Column("metric"), Column("A"), Column("B"), Column("items", "right")]
        figures = [Column(name, "right") for name in ("score A", "score B", "A - B")]
        tests = [Column(_HEADS[test], "right") for test in self.plan.tests]
        return Table(
            title="Which system is better",
            columns=[*sides, *figures, *tests, Column("better")],
            rows=[_row(contest, self.plan.tests) for contest in self.contests],
            notes=[*_notes(self), *self.notes],
        )

    def to_dict(self) -> dict[str, Any]:
        """All numbers as plain data; NaN is None."""
        plan = {"draws": self.plan.draws, "seed": self.plan.seed, "alpha": self.plan.alpha}
        return {
            **plan,
            "tests": list(self.plan.tests),
            "correction": "Holm, over all pairs of a metric, each test by itself",
            "signatures": dict(self.signatures),
            "contests": [_plain(contest) for contest in self.contests],
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        return self.table().text()

    def _repr_html_(self) -> str:
        return self.table().render("html")


def compare(
    runs: Results | str | os.PathLike[str] | Sequence[Results | str | os.PathLike[str]],
    systems: Sequence[str] | None = None,
    metrics: Sequence[str] | None = None,
    test: Tests = "both",
    draws: int = 10_000,
    seed: int = 0,
    baseline: str | None = None,
    alpha: float = 0.05,
) -> Comparison:
    """Test all pairs of systems of a run (or of several runs, scored alike), or each system against a baseline."""
    if test not in _TESTS:
        raise RunError(f"no test {test!r}; known are {', '.join(_TESTS)}{did_you_mean(test, _TESTS)}")
    if draws < 1 or not 0 < alpha < 1:
        raise RunError(f"draws must be at least 1 and alpha between 0 and 1, got {draws} and {alpha}")
    parts = _parts(_opened(runs, metrics or ()))
    pairs = _pairs([name for run in parts.values() for name in _systems(run)], systems, baseline)
    plan = Plan(tests=_TESTS[test], draws=draws, seed=seed, alpha=alpha)
    chosen = chosen_metrics(_common_metrics(parts), metrics)
    for metric in chosen:
        check_signatures(metric, parts)
    contests = [contest for metric in chosen for contest in _contests(metric, parts, pairs, plan)]
    first = next(iter(parts.values()))
    signatures = {metric.text: signature_of(first, metric) for metric in chosen}
    notes = [*_run_notes(parts), *(_left_out(parts, chosen) if metrics is None else ())]
    return Comparison(contests=tuple(contests), signatures=signatures, plan=plan, notes=tuple(notes))


def _opened(runs: Any, named: Sequence[str]) -> list[Results]:
    return [opened(run, named) for run in (runs if isinstance(runs, list | tuple) else [runs])]


def _parts(runs: Sequence[Results]) -> dict[str, Results]:
    """The runs by what a message calls them; a system may be in one of them only."""
    if not runs:
        raise RunError("compare needs a run")
    parts = {f"run {number}": run for number, run in enumerate(runs, 1)}
    home: dict[str, str] = {}
    for name, run in parts.items():
        for system in _systems(run):
            if system in home:
                raise RunError(f"system {system!r} is in {home[system]} and in {name}: give it two names")
            home[system] = name
    return parts


def _systems(run: Results) -> list[str]:
    return list(dict.fromkeys(run.systems))


def _common_metrics(parts: Mapping[str, Results]) -> list[Metric]:
    first, *others = parts.values()
    common = [metric for metric in first.metrics if all(metric.text in run.scores for run in others)]
    if not common:
        raise RunError("the runs have no metric in common" if others else "the run has no metrics")
    return common


def _run_notes(parts: Mapping[str, Results]) -> list[str]:
    """What the runs themselves tell, each with the run's name where there are several."""
    notes = [f"{name}: {note}" if len(parts) > 1 else note for name, run in parts.items() for note in run.notes]
    return ["Runs are joined by the names of their items.", *notes] if len(parts) > 1 else notes


def _left_out(parts: Mapping[str, Results], common: Sequence[Metric]) -> list[str]:
    known = {metric.text for metric in common}
    rest = dict.fromkeys(text for run in parts.values() for text in run.scores if text not in known)
    return [f"Not scored in every run, so left out: {', '.join(rest)}."] if rest else []


def _pairs(present: Sequence[str], wanted: Sequence[str] | None, baseline: str | None) -> list[tuple[str, str]]:
    opponents = [] if baseline is None else chosen_systems(present, [baseline])
    systems = chosen_systems(present, wanted)
    if len({*systems, *opponents}) < 2:
        raise RunError(f"compare needs at least two systems, found {', '.join(map(repr, systems)) or 'none'}")
    if opponents:
        return [(system, opponent) for opponent in opponents for system in systems if system != opponent]
    return list(combinations(systems, 2))


def _contests(
    metric: Metric, parts: Mapping[str, Results], pairs: Sequence[tuple[str, str]], plan: Plan
) -> list[Contest]:
    chosen = {name for pair in pairs for name in pair}
    laid_out = block(metric, [(run, {s: s for s in _systems(run) if s in chosen}) for run in parts.values()])
    places = [(laid_out.grid.systems.index(a), laid_out.grid.systems.index(b)) for a, b in pairs]
    tests = _tested(laid_out, places, plan)
    adjusted = {test: holm([found.p[test] for found in tests]) for test in plan.tests}
    return [
        _contest(laid_out, pair, place, found, {test: float(adjusted[test][i]) for test in plan.tests}, plan.alpha)
        for i, (pair, place, found) in enumerate(zip(pairs, places, tests, strict=True))
    ]


def _tested(laid_out: Block, places: Sequence[tuple[int, int]], plan: Plan) -> list[PairTest]:
    """Pairs that share the same items are tested together: one set of draws, one matrix product for all."""
    groups: dict[bytes, list[int]] = {}
    for number, place in enumerate(places):
        groups.setdefault(laid_out.shared(*place).tobytes(), []).append(number)
    found: dict[int, PairTest] = {}
    for numbers in groups.values():
        members = sorted({system for number in numbers for system in places[number]})
        rows = laid_out.rows(members, laid_out.shared(*places[numbers[0]]))
        local = [(members.index(places[n][0]), members.index(places[n][1])) for n in numbers]
        # A fresh generator each time: a pair's numbers depend on its items and the seed, on nothing beside it.
        rng = np.random.default_rng(plan.seed)
        made = pair_tests(rows, local, laid_out.metric.pool, plan.draws, rng, plan.tests, confidence=plan.confidence)
        found.update(zip(numbers, made, strict=True))
    return [found[number] for number in range(len(places))]


def _contest(
    laid_out: Block,
    pair: tuple[str, str],
    place: tuple[int, int],
    test: PairTest,
    adjusted: Mapping[Test, float],
    alpha: float,
) -> Contest:
    return Contest(
        metric=laid_out.metric,
        first=pair[0],
        second=pair[1],
        items=int(np.count_nonzero(laid_out.shared(*place))),
        left_out=laid_out.left_out(*place),
        test=test,
        adjusted=adjusted,
        winner=_winner(laid_out.metric, pair, test, adjusted, alpha),
    )


def _winner(
    metric: Metric, pair: tuple[str, str], test: PairTest, adjusted: Mapping[Test, float], alpha: float
) -> str | None:
    # A NaN is not at most alpha: what was not tested has no winner.
    if metric.higher_is_better is None or test.difference == 0 or not all(p <= alpha for p in adjusted.values()):
        return None
    return pair[0] if (test.difference > 0) is metric.higher_is_better else pair[1]


def _row(contest: Contest, tests: Sequence[Test]) -> list[Any]:
    found, decimals = contest.test, decimals_of(contest.metric, contest.test.first, contest.test.second)
    return [
        contest.metric.text,
        contest.first,
        contest.second,
        Count(contest.items),
        Number(found.first, decimals),
        Number(found.second, decimals),
        Change(found.difference, found.low, found.high, decimals),
        *(PValue(contest.adjusted[test]) for test in tests),
        contest.verdict,
    ]


def _notes(comparison: Comparison) -> list[str]:
    plan, contests = comparison.plan, comparison.contests
    family = max((sum(c.metric is contest.metric for c in contests) for contest in contests), default=0)
    tests = " and ".join(_NAMES[test] for test in plan.tests)
    both = "both p-values are" if len(plan.tests) > 1 else "the p-value is"
    notes = [
        f"A - B with its 95 % bootstrap interval; p-values of {tests} are two-sided, from {plan.draws:,} draws, "
        f"Holm-corrected over the {family} pair{'s' * (family != 1)} of each metric.",
        f"A system is named as better when {both} at most {plan.alpha:g}.",
    ]
    if any(contest.metric.higher_is_better is False for contest in contests):
        lower = dict.fromkeys(c.metric.text for c in contests if c.metric.higher_is_better is False)
        notes.append(f"Lower is better: {', '.join(lower)}.")
    if left_out := max((contest.left_out for contest in contests), default=0):
        notes.append(f"Items missing or failed for one of the two systems are left out: up to {left_out} of a pair.")
    if family / (plan.draws + 1) > plan.alpha:
        notes.append(f"With {family} pairs, {plan.draws:,} draws cannot reach {plan.alpha:g}: ask for more draws.")
    if not all(contest.items for contest in contests):
        notes.append("Systems that share no item are not tested: do their rows name the items, and alike?")
    if any(0 < contest.items < _FEW for contest in contests):
        notes.append(
            f"Fewer than {_FEW} items: the bootstrap's intervals and p-values are too sure; trust randomisation."
        )
    return notes


def _plain(contest: Contest) -> dict[str, Any]:
    found = contest.test
    return {
        "metric": contest.metric.text,
        "first": contest.first,
        "second": contest.second,
        "items": contest.items,
        "left_out": contest.left_out,
        "first_score": or_none(found.first),
        "second_score": or_none(found.second),
        "difference": or_none(found.difference),
        "low": or_none(found.low),
        "high": or_none(found.high),
        **{f"p_{test}": or_none(p) for test, p in found.p.items()},
        **{f"p_{test}_holm": or_none(p) for test, p in contest.adjusted.items()},
        "winner": contest.winner,
        "verdict": contest.verdict,
    }
