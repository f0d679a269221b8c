"""What a check found: single verdicts, and the report that gathers them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from metrist.errors import RunError, did_you_mean
from metrist.evaluate.compare import block
from metrist.evaluate.selection import check_signatures, decimals_of
from metrist.metrics.base import Metric
from metrist.report.cells import Change, Number, PValue, Share, or_none
from metrist.report.junit import Case, junit_xml
from metrist.report.tables import Column, Table
from metrist.stats.resampling import PairTest, Test, pair_tests
from metrist.stats.significance import holm

if TYPE_CHECKING:
    from metrist.run.results import Results
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from numpy.typing import NDArray

from metrist.evaluate.selection import chosen_systems, find_metric, opened, scale_note
from metrist.stats.resampling import pool_rows

Kind = Literal["minimum", "maximum", "coverage", "regression", "missing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One thing that was wanted of one system under one metric, what was found, and why that passes or fails."""

    kind: Kind
    system: str
    metric: str
    passed: bool
    wanted: str
    found: Any
    coverage: float
    why: str
    value: float
    p: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """The verdict as plain data; NaN is None."""
        return {
            "check": self.kind,
            "system": self.system,
            "metric": self.metric,
            "passed": self.passed,
            "wanted": self.wanted,
            "value": or_none(self.value),
            "coverage": or_none(self.coverage),
            "p": None if self.p is None else or_none(self.p),
            "why": self.why,
        }


def missing(system: str, metric: str, wanted: str, why: str) -> Verdict:
    """The verdict on what should be there and is not: it fails."""
    return Verdict(
        kind="missing",
        system=system,
        metric=metric,
        passed=False,
        wanted=wanted,
        found="none",
        coverage=0.0,
        why=why,
        value=math.nan,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Report:
    """All verdicts of a check, failures first in its table."""

    verdicts: tuple[Verdict, ...]
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every verdict passed; nothing checked is nothing passed."""
        return bool(self.verdicts) and all(verdict.passed for verdict in self.verdicts)

    @property
    def failures(self) -> tuple[Verdict, ...]:
        """The verdicts that failed."""
        return tuple(verdict for verdict in self.verdicts if not verdict.passed)

    @property
    def summary(self) -> str:
        """One line: how many checks there were and how many failed."""
        count, failed = len(self.verdicts), len(self.failures)
        checks = f"{count} check{'' if count == 1 else 's'}"
        return f"{checks}, {failed} failed" if failed else f"{checks}, all passed"

    def table(self) -> Table:
        """One row per verdict."""
        names = ("verdict", "check", "system", "metric", "wanted")
        ordered = sorted(self.verdicts, key=lambda verdict: verdict.passed)
        return Table(
            title=f"metrist check: {self.summary}",
            columns=[*map(Column, names), Column("found", "right"), Column("coverage", "right"), Column("why")],
            rows=[_row(verdict) for verdict in ordered],
            notes=self.notes,
        )

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data."""
        verdicts = [verdict.to_dict() for verdict in self.verdicts]
        return {"passed": self.passed, "verdicts": verdicts, "notes": list(self.notes)}

    def junit(self, suite: str = "metrist") -> str:
        """The report as JUnit XML."""
        return junit_xml(suite, [_case(verdict, self.notes) for verdict in self.verdicts])

    def __str__(self) -> str:
        return self.table().text()

    def _repr_html_(self) -> str:
        return self.table().render("html")


def _row(verdict: Verdict) -> Sequence[Any]:
    word = "passed" if verdict.passed else "FAILED"
    found = verdict.found
    return [
        word,
        verdict.kind,
        verdict.system,
        verdict.metric,
        verdict.wanted,
        found,
        Share(verdict.coverage),
        verdict.why,
    ]


def _case(verdict: Verdict, notes: Sequence[str]) -> Case:
    failure = None if verdict.passed else verdict.why
    p = [] if verdict.p is None else [f"p: {PValue(verdict.p)}"]
    facts = [f"wanted: {verdict.wanted}", f"found: {verdict.found}", f"coverage: {Share(verdict.coverage)}", *p]
    return Case(
        group=f"metrist.{verdict.kind}",
        name=f"{verdict.system}: {verdict.metric} {verdict.wanted}",
        failure=failure,
        details="\n".join([verdict.why, *facts, *notes]),
    )


# Whether systems got worse since an earlier run, tested on the items that both runs hold.


_NOW, _BEFORE = "this run", "the baseline"
# The bootstrap is too sure of itself on few items; exchanging outputs holds its level on any number of them.
_TEST: tuple[Test, ...] = ("randomisation",)


@dataclass(frozen=True, slots=True)
class _Regression:
    """One system now and before: the test of its having got worse, on the items of both runs."""

    metric: Metric
    system: str
    test: PairTest
    items: int
    left_out: int

    @property
    def p(self) -> float:
        return self.test.p["randomisation"]

    @property
    def coverage(self) -> float:
        whole = self.items + self.left_out
        return self.items / whole if whole else 0.0


def regressions(
    now: Results, before: Results, systems: Sequence[str], alpha: float, draws: int, seed: int
) -> tuple[list[Verdict], list[str]]:
    """A verdict per metric and system that both runs have, and notes on what could not be set side by side."""
    pairs, notes = _paired_systems(before, systems)
    metrics, remarks = _judging_metrics(now, before)
    tested = [_regression(metric, now, before, pair, draws, seed) for metric in metrics for pair in pairs]
    adjusted = holm([found.p for found in tested])
    verdicts = [_verdict(found, float(p), alpha) for found, p in zip(tested, adjusted, strict=True)]
    tests = f"{len(tested)} test{'s' * (len(tested) != 1)}"
    notes += remarks
    notes.append(
        f"Got worse: one-sided approximate randomisation on shared items, {draws:,} draws, "
        f"Holm-corrected over {tests}, alpha {alpha:g}."
    )
    if len(tested) / (draws + 1) > alpha:
        notes.append(f"With {tests}, {draws:,} draws cannot reach {alpha:g}: ask for more draws.")
    return verdicts, notes


def lost_systems(now: Results, before: Results) -> list[Verdict]:
    """A failed verdict for each system of the baseline that the run has no output of, under each metric of both."""
    old, new = dict.fromkeys(before.systems), set(now.systems)
    if len(old) == len(new) == 1:
        return []
    why = "lost since the baseline; if on purpose, name the systems to be checked"
    metrics, _ = _judging_metrics(now, before)
    return [missing(name, m.text, "as in the baseline", why) for m in metrics for name in old if name not in new]


def unfinished_metrics(metrics: Sequence[str], systems: Sequence[str]) -> list[Verdict]:
    """A failed verdict for each system under each metric that the run has begun and not finished."""
    why = "not finished: run the same `metrist score` again"
    return [missing(system, metric, "a finished run", why) for metric in metrics for system in systems]


def _paired_systems(before: Results, systems: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Systems pair up by name; a single one on each side pairs up whatever the names."""
    old = list(dict.fromkeys(before.systems))
    if len(systems) == len(old) == 1:
        return [(systems[0], old[0])], []
    pairs = [(system, system) for system in systems if system in old]
    if not pairs:
        hints = "".join(did_you_mean(system, old) for system in systems[:1])
        raise RunError(f"no system of the run is in the baseline, which has {', '.join(map(repr, old))}{hints}")
    new = [system for system in systems if system not in old]
    return pairs, [f"Not in the baseline, so not tested against it: {', '.join(new)}."] if new else []


def _judging_metrics(now: Results, before: Results) -> tuple[list[Metric], list[str]]:
    judging = [metric for metric in now.metrics if metric.higher_is_better is not None]
    shared = [metric for metric in judging if metric.text in before.scores]
    if not shared:
        raise RunError(
            f"the runs share no metric that judges: this run has {', '.join(m.text for m in now.metrics)}, "
            f"the baseline {', '.join(m.text for m in before.metrics)}"
        )
    for metric in shared:
        check_signatures(metric, {_NOW: now, _BEFORE: before})
    return shared, _unshared_notes(judging, shared, now, before)


def _unshared_notes(judging: Sequence[Metric], shared: Sequence[Metric], now: Results, before: Results) -> list[str]:
    """Which metrics only one of the runs has. Whoever scores chooses them, so none of them fails a check."""
    new = [metric.text for metric in judging if metric not in shared]
    has = {*now.scores, *now.unfinished}
    lost = [m.text for m in before.metrics if m.higher_is_better is not None and m.text not in has]
    notes = [f"Not scored in the baseline, so not tested against it: {', '.join(new)}."] if new else []
    if lost:
        notes.append(f"NOT CHECKED: {', '.join(lost)}; the baseline was scored by it, this run was not.")
    return notes


def _regression(
    metric: Metric, now: Results, before: Results, pair: tuple[str, str], draws: int, seed: int
) -> _Regression:
    laid_out = block(metric, [(now, {pair[0]: _NOW}), (before, {pair[1]: _BEFORE})])
    place = laid_out.grid.systems.index(_NOW), laid_out.grid.systems.index(_BEFORE)
    shared = laid_out.shared(*place)
    (test,) = pair_tests(
        laid_out.rows(place, shared),
        [(0, 1)],
        metric.pool,
        draws,
        np.random.default_rng(seed),
        _TEST,
        alternative="less" if metric.higher_is_better else "greater",
    )
    return _Regression(metric, pair[0], test, int(np.count_nonzero(shared)), laid_out.left_out(*place))


def _verdict(found: _Regression, p: float, alpha: float) -> Verdict:
    # What could not be tested does not pass: NaN is not above alpha.
    passed = p > alpha
    shared = f"{found.items:,} shared items" + (f" ({found.left_out:,} left out)" if found.left_out else "")
    if math.isnan(p):
        why = f"cannot be tested on {shared}"
    else:
        why = f"p {PValue(p)} on {shared}" if passed else f"got worse: p {PValue(p)} on {shared}"
    decimals = decimals_of(found.metric, found.test.first)
    return Verdict(
        kind="regression",
        system=found.system,
        metric=found.metric.text,
        passed=passed,
        wanted=f"no worse than {Number(found.test.second, decimals)}",
        found=Change(found.test.difference, found.test.low, found.test.high, decimals),
        coverage=found.coverage,
        why=why,
        value=found.test.difference,
        p=p,
    )


# Is this run good enough, and no worse than the last one? Made for CI: floors, ceilings, coverage, regressions.


def check(
    run: Results | str | os.PathLike[str],
    minimum: Mapping[str, float] | None = None,
    maximum: Mapping[str, float] | None = None,
    against: Results | str | os.PathLike[str] | None = None,
    alpha: float = 0.05,
    systems: Sequence[str] | None = None,
    min_coverage: float | None = None,
    draws: int = 10_000,
    seed: int = 0,
) -> Report:
    """Verdicts on each system: its scores against floors and ceilings by metric, the share of its outputs that got a
    score against `min_coverage`, and whether it got significantly worse than in the run `against`. Unless
    `systems` names some, all are checked, and one that `against` has and the run has lost fails."""
    minimum, maximum = minimum or {}, maximum or {}
    if not (minimum or maximum or against is not None or min_coverage is not None):
        raise RunError("nothing to check: give a minimum, a maximum, a minimal coverage or a run to check against")
    _check_numbers(minimum, maximum, min_coverage, alpha, draws)
    named = [*minimum, *maximum]
    results = opened(run, named)
    chosen = chosen_systems(results.systems, systems)
    if not chosen:
        raise RunError("nothing to check: the run holds no outputs")
    verdicts, notes = _thresholds(results, chosen, minimum, maximum)
    if min_coverage is not None:
        verdicts += [_coverage(results, m, system, min_coverage) for m in results.metrics for system in chosen]
    baseline = None if against is None else opened(against, named)
    if baseline is not None:
        tested, remarks = regressions(results, baseline, chosen, alpha, draws, seed)
        verdicts += [*tested, *lost_systems(results, baseline)] if systems is None else tested
        notes += [*remarks, *(f"The baseline: {note}" for note in baseline.notes)]
    compared = baseline.scores if baseline is not None else ()
    awaited = [text for text in results.unfinished if min_coverage is not None or text in compared]
    verdicts += unfinished_metrics(awaited, chosen)
    return Report(verdicts=tuple(verdicts), notes=tuple(dict.fromkeys([*results.notes, *notes])))


def _check_numbers(
    minimum: Mapping[str, float], maximum: Mapping[str, float], coverage: float | None, alpha: float, draws: int
) -> None:
    for word, thresholds in (("minimum", minimum), ("maximum", maximum)):
        for name, value in thresholds.items():
            if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
                raise RunError(f"the {word} of {name} must be a number, got {value!r}")
    if coverage is not None and not 0 <= coverage <= 1:
        raise RunError(f"the minimal coverage must be a share between 0 and 1, got {coverage!r}")
    if not 0 < alpha < 1 or draws < 1:
        raise RunError(f"draws must be at least 1 and alpha between 0 and 1, got {draws} and {alpha}")


@dataclass(frozen=True, slots=True)
class _Standing:
    """How one system stands under one metric."""

    metric: Metric
    system: str
    score: float
    coverage: float

    @property
    def shown(self) -> Number:
        return Number(self.score, decimals_of(self.metric, self.score))


def _standing(results: Results, metric: Metric, system: str) -> _Standing:
    scores = results.scores[metric.text]
    mine, scored = _scored(results, metric, system)
    value = float(pool_rows(scores.stats[scored][None], metric.pool)[0]) if scored.any() else math.nan
    return _Standing(metric, system, value, float(scored.sum() / mine.sum()))


def _scored(results: Results, metric: Metric, system: str) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which records are the system's, and which of those have a score."""
    mine = np.fromiter((owner == system for owner in results.systems), dtype=np.bool_, count=len(results.systems))
    return mine, mine & ~np.isnan(results.scores[metric.text].values)


def _thresholds(
    results: Results, systems: Sequence[str], minimum: Mapping[str, float], maximum: Mapping[str, float]
) -> tuple[list[Verdict], list[str]]:
    verdicts, notes = [], []
    wanted: list[tuple[Literal["minimum", "maximum"], str, float]] = [
        *(("minimum", name, value) for name, value in minimum.items()),
        *(("maximum", name, value) for name, value in maximum.items()),
    ]
    for kind, name, threshold in wanted:
        metric = find_metric(results.metrics, name)
        standings = [_standing(results, metric, system) for system in systems]
        verdicts += [_threshold(standing, kind, threshold) for standing in standings]
        scores = [standing.score for standing in standings if not math.isnan(standing.score)]
        typical = float(np.median(scores)) if scores else math.nan
        if note := scale_note(metric, kind, threshold, typical):
            notes.append(note)
    return verdicts, notes


def _threshold(standing: _Standing, kind: Literal["minimum", "maximum"], threshold: float) -> Verdict:
    # Comparisons with NaN are false, so what has no score never passes.
    passed = standing.score >= threshold if kind == "minimum" else standing.score <= threshold
    if math.isnan(standing.score):
        why = "no output has a score"
    elif passed:
        why = ""
    else:
        missed = abs(standing.score - threshold)
        why = f"{standing.shown} is {missed:.3g} {'below' if kind == 'minimum' else 'above'} the {kind} {threshold:g}"
    return Verdict(
        kind=kind,
        system=standing.system,
        metric=standing.metric.text,
        passed=passed,
        wanted=f"{'>=' if kind == 'minimum' else '<='} {threshold:g}",
        found=standing.shown,
        coverage=standing.coverage,
        why=why,
        value=standing.score,
    )


def _coverage(results: Results, metric: Metric, system: str, least: float) -> Verdict:
    mine, scored = _scored(results, metric, system)
    coverage = float(scored.sum() / mine.sum())
    passed = coverage >= least and coverage > 0
    return Verdict(
        kind="coverage",
        system=system,
        metric=metric.text,
        passed=passed,
        wanted=f">= {100 * least:g} % scored",
        found=Share(coverage),
        coverage=coverage,
        why="" if passed else f"only {Share(coverage)} of the outputs have a score",
        value=coverage,
    )
