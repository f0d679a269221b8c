"""`check`: is a run good enough, and no worse than an earlier one? Floors, ceilings, coverage, regressions, for CI."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from metrist.errors import RunError, agree, did_you_mean, format_count
from metrist.evaluate.compare.alignment import align_scores, describe_sources
from metrist.evaluate.selection import (
    check_signatures,
    choose_decimals,
    find_changes,
    find_metric,
    has_metric,
    open_run,
    select_systems,
    warn_off_scale,
)
from metrist.io.remote import is_remote
from metrist.metrics.base import Metric
from metrist.names import encode_names, list_distinct, select_names
from metrist.report.junit import JUnitCase, junit_xml
from metrist.report.tables import Change, Column, Number, PValue, Share, Table, or_none, shorten
from metrist.scores import FailureKind, take_stats
from metrist.stats.resampling import PairTest, Test, pair_tests, pool_rows, smallest_p
from metrist.stats.significance import holm

if TYPE_CHECKING:
    from metrist.run.inputs import InputChange
    from metrist.run.results import Results

CheckKind = Literal["minimum", "maximum", "coverage", "regression", "missing", "input"]
ThresholdKind = Literal["minimum", "maximum"]

_NOW, _BEFORE = "this run", "the baseline"
# The bootstrap is overconfident on few items; randomisation keeps its level on any number.
_REGRESSION_TEST: tuple[Test, ...] = ("randomisation",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One requirement of one system under one metric, what was observed, and why that passes or fails."""

    kind: CheckKind
    system: str
    metric: str
    passed: bool
    requirement: str
    observed: Any
    coverage: float = math.nan
    why: str = ""
    value: float = math.nan
    p: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """The verdict as plain data; NaN is None."""
        return {
            "check": self.kind,
            "system": self.system,
            "metric": self.metric,
            "passed": self.passed,
            "wanted": self.requirement,
            "value": or_none(self.value),
            "coverage": or_none(self.coverage),
            "p": None if self.p is None else or_none(self.p),
            "why": self.why,
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CheckReport:
    """All verdicts of a check."""

    verdicts: tuple[Verdict, ...]
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every verdict passed; a report without verdicts does not pass."""
        return bool(self.verdicts) and all(verdict.passed for verdict in self.verdicts)

    @property
    def failures(self) -> tuple[Verdict, ...]:
        """The verdicts that failed."""
        return tuple(verdict for verdict in self.verdicts if not verdict.passed)

    @property
    def summary(self) -> str:
        """One line: how many checks there were and how many failed."""
        count, failed = len(self.verdicts), len(self.failures)
        checks = format_count(count, "check")
        return f"{checks}, {failed} failed" if failed else f"{checks}, {agree(count, 'passed', 'all passed')}"

    def table(self) -> Table:
        """One row per verdict, failures first."""
        rows = [
            [
                "passed" if verdict.passed else "FAILED",
                verdict.kind,
                verdict.system,
                verdict.metric,
                verdict.requirement,
                verdict.observed,
                Share(verdict.coverage),
                verdict.why,
            ]
            for verdict in sorted(self.verdicts, key=lambda verdict: verdict.passed)
        ]
        names = ("verdict", "check", "system", "metric", "wanted", "found", "coverage", "why")
        return Table(
            title=f"metrist check: {self.summary}",
            columns=[Column(name, "right" if name in ("found", "coverage") else "left") for name in names],
            rows=rows,
            remarks=self.notes,
        )

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data."""
        verdicts = [verdict.to_dict() for verdict in self.verdicts]
        return {"passed": self.passed, "verdicts": verdicts, "notes": list(self.notes)}

    def junit(self, suite: str = "metrist") -> str:
        """The report as JUnit XML."""
        return junit_xml(suite, [_test_case(verdict, self.notes) for verdict in self.verdicts])

    def __repr__(self) -> str:
        return f"Report({self.summary})"

    def __str__(self) -> str:
        return self.table().text()

    def _repr_html_(self) -> str:
        return self.table().render("html")


def _test_case(verdict: Verdict, notes: Sequence[str]) -> JUnitCase:
    facts = [f"wanted: {verdict.requirement}", f"found: {verdict.observed}", f"coverage: {Share(verdict.coverage)}"]
    if verdict.p is not None:
        facts.append(f"p: {PValue(verdict.p)}")
    return JUnitCase(
        group=f"metrist.{verdict.kind}",
        name=f"{verdict.system}: {verdict.metric} {verdict.requirement}",
        failure=None if verdict.passed else verdict.why,
        details="\n".join([verdict.why, *facts, *notes]),
    )


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
) -> CheckReport:
    """Check each system: its scores against floors and ceilings by metric, or by a part of its scores such as
    `judge:fluency`; the share of its outputs with a score by each metric against `min_coverage`; and whether it is
    significantly worse than in the run `against`, or than the system of that name in this run. By default all systems
    are checked, and one that only the run `against` has fails. A test that cannot find any loss, because the items are
    too few, fails, and so does a run folder whose input has changed since it was scored.

    Without `min_coverage`, every output needs a score by the metrics that are checked, and the run must be finished.
    """
    minimum, maximum = minimum or {}, maximum or {}
    if not (minimum or maximum or against is not None or min_coverage is not None):
        raise RunError("nothing to check: give a minimum, a maximum, a minimal coverage or a run to check against")
    _check_numbers(minimum, maximum, min_coverage, alpha, draws)
    named = [*minimum, *maximum]
    results = open_run(run, named)
    chosen = select_systems(results.systems, systems)
    if not chosen:
        raise RunError("nothing to check: the run has no outputs")
    verdicts, notes = _check_thresholds(results, chosen, minimum, maximum)
    checked = [find_metric(results.metrics, name, results.unfinished) for name in named]
    if against is not None:
        baseline = _open_baseline(against, results, named)
        tested, remarks, metrics = _check_regressions(results, baseline, chosen, alpha, draws, seed)
        verdicts += tested
        checked += metrics
        if systems is None and not isinstance(baseline, str):
            verdicts += _find_lost_systems(results, baseline)
        notes += remarks
    uncovered = _check_all_coverage(results, chosen, checked, min_coverage)
    if uncovered and min_coverage is None:
        notes.append("Every output needs a score, unless --min-coverage (min_coverage=) allows less.")
    verdicts += uncovered
    verdicts += [
        _missing(system, label, "a finished run", "not finished: run the same `metrist score` again")
        for label in results.unfinished.values()
        for system in chosen
    ]
    changed, unknown = find_changes(results)
    verdicts += [_judge_input(change) for change in changed]
    notes = [*(change.message for change in changed), *unknown, *results.notes, *notes]
    return CheckReport(verdicts=tuple(verdicts), notes=tuple(dict.fromkeys(notes)))


def _judge_input(change: InputChange) -> Verdict:
    return Verdict(
        kind="input",
        system="all",
        metric="all",
        passed=False,
        requirement="as it was scored",
        observed="changed",
        why=f"{shorten(change.name, 40)} has changed: score it again",
    )


def _open_baseline(
    against: Results | str | os.PathLike[str], results: Results, metrics: Sequence[str]
) -> Results | str:
    """The run to check against, or the name of a system of this run."""
    if not isinstance(against, str) or against not in results.systems:
        if isinstance(against, str) and not (is_remote(against) or os.path.exists(against)):
            known = list_distinct(results.systems)
            raise RunError(
                f"nothing to check against: there is no run at {against}, and no system of that name in this run, "
                f"which has {', '.join(map(repr, known[:10]))}{did_you_mean(against, known)}"
            )
        return open_run(against, metrics)
    if os.path.exists(against):
        raise RunError(
            f"{against!r} is a system of this run and also a file or folder here: write {os.path.join('.', against)} "
            "for the run; to check against the system, work in another folder"
        )
    return against


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


def _missing(system: str, metric: str, requirement: str, why: str) -> Verdict:
    return Verdict(
        kind="missing",
        system=system,
        metric=metric,
        passed=False,
        requirement=requirement,
        observed="none",
        coverage=0.0,
        why=why,
    )


def _score_system(results: Results, metric: Metric, system: str) -> tuple[float, float]:
    """A system's pooled score, NaN if no output has a score, and its coverage."""
    scores = results[metric].scores
    own = select_names(encode_names(results.systems), {system})
    scored = own[~np.isnan(scores.values[own])]
    value = (
        float(pool_rows(take_stats(scores, scored).astype(np.float64)[None], metric.pool)[0])
        if len(scored)
        else math.nan
    )
    return value, len(scored) / len(own)


def _check_thresholds(
    results: Results, systems: Sequence[str], minimum: Mapping[str, float], maximum: Mapping[str, float]
) -> tuple[list[Verdict], list[str]]:
    verdicts, notes = [], []
    thresholds: list[tuple[ThresholdKind, str, float]] = [
        *(("minimum", name, value) for name, value in minimum.items()),
        *(("maximum", name, value) for name, value in maximum.items()),
    ]
    for kind, name, threshold in thresholds:
        metric = find_metric(results.metrics, name, results.unfinished)
        scores = {system: _score_system(results, metric, system) for system in systems}
        verdicts += [_check_threshold(metric, system, *scores[system], kind, threshold) for system in systems]
        known = [score for score, _ in scores.values() if not math.isnan(score)]
        typical = float(np.median(known)) if known else math.nan
        if note := warn_off_scale(metric, kind, threshold, typical):
            notes.append(note)
    return verdicts, notes


def _check_threshold(
    metric: Metric, system: str, score: float, coverage: float, kind: ThresholdKind, threshold: float
) -> Verdict:
    # Comparisons with NaN are false, so a system without a score never passes.
    passed = score >= threshold if kind == "minimum" else score <= threshold
    shown = Number(score, choose_decimals(metric, score))
    if math.isnan(score):
        why = "no output has a score"
    elif passed:
        why = ""
    else:
        gap = abs(score - threshold)
        why = f"{shown} is {gap:.3g} {'below' if kind == 'minimum' else 'above'} the {kind} {threshold:g}"
    return Verdict(
        kind=kind,
        system=system,
        metric=metric.label,
        passed=passed,
        requirement=f"{'>=' if kind == 'minimum' else '<='} {threshold:g}",
        observed=shown,
        coverage=coverage,
        why=why,
        value=score,
    )


def _check_all_coverage(
    results: Results, systems: Sequence[str], checked: Sequence[Metric], least: float | None
) -> list[Verdict]:
    """A verdict per metric and system. If no coverage was asked for, only failures: of the metrics that are checked,
    and of those that the run has not finished."""
    if least is not None:
        return [_check_coverage(results, metric, system, least) for metric in results.metrics for system in systems]
    pending = [metric for metric in results.metrics if results.scores[metric.label].pending]
    metrics = {metric.label: metric for metric in (*checked, *pending)}.values()
    # A system without any score fails the check by the metric already.
    failed = {metric.label for metric in checked}
    return [
        verdict
        for metric in metrics
        for system in systems
        if not (verdict := _check_coverage(results, metric, system, 1.0)).passed
        and not (verdict.coverage == 0 and verdict.metric in failed)
    ]


def _check_coverage(results: Results, metric: Metric, system: str, least: float) -> Verdict:
    _, coverage = _score_system(results, metric, system)
    passed = coverage >= least and coverage > 0
    why = f"only {Share(coverage)} of the outputs have a score"
    failures = results[metric].scores.failures
    own = [failure for i, failure in failures.items() if results.systems[i] == system]
    if pending := sum(failure.kind is FailureKind.pending for failure in own):
        # Short enough for a cell; the command is in a note of the run.
        why += f": {pending:,} not scored yet, {len(own) - pending:,} failed"
    return Verdict(
        kind="coverage",
        system=system,
        metric=metric.label,
        passed=passed,
        requirement=f">= {100 * least:g} % scored",
        observed=Share(coverage),
        coverage=coverage,
        why="" if passed else why,
        value=coverage,
    )


@dataclass(frozen=True, slots=True)
class _Regression:
    """The one-sided test that a system got worse, on the items that both runs share."""

    metric: Metric
    system: str
    test: PairTest
    items: int
    #: As in `PairFacts`.
    common: int
    left_out: int
    different: int
    separated: int
    #: How many of the shared items have another score.
    changed: int

    @property
    def is_loss(self) -> bool:
        return self.test.difference < 0 if self.metric.higher_is_better else self.test.difference > 0

    @property
    def p(self) -> float:
        return self.test.p["randomisation"]


def _check_regressions(
    now: Results, baseline: Results | str, systems: Sequence[str], alpha: float, draws: int, seed: int
) -> tuple[list[Verdict], list[str], list[Metric]]:
    """A verdict per metric and system that both runs have, notes on what is in one of them only, and the metrics. The
    baseline is a run, or a system of this one."""
    if isinstance(baseline, str):
        before = now
        pairs, notes = [(system, baseline) for system in systems if system != baseline], list[str]()
        if not pairs:
            raise RunError(f"there is no system to check against {baseline!r}: name others, or check against a run")
    else:
        before = baseline
        pairs, notes = _pair_systems(before, systems)
    metrics, remarks = _pair_metrics(now, before)
    tested = [_test_regression(metric, now, before, pair, draws, seed) for metric in metrics for pair in pairs]
    adjusted = holm([regression.p for regression in tested])
    fewest = _count_needed_items(int(np.count_nonzero(~np.isnan(adjusted))), alpha, draws)
    worse = f"worse than {baseline}" if isinstance(baseline, str) else "got worse"
    verdicts = [
        _judge_regression(test, float(p), alpha, fewest, worse) for test, p in zip(tested, adjusted, strict=True)
    ]
    tests = format_count(len(tested), "test")
    name = baseline if isinstance(baseline, str) else "the baseline"
    differing = {(test.system, name): (test.different, test.separated) for test in tested if test.different}
    notes += [*remarks, *describe_sources(differing)]
    notes.append(
        f"{worse[0].upper()}{worse[1:]}: one-sided approximate randomisation on shared items, {draws:,} draws, "
        f"Holm-corrected over {tests}, alpha {alpha:g}."
    )
    if fewest is None:
        notes.append(f"With {tests}, {draws:,} draws cannot reach {alpha:g}: increase draws (--draws).")
    elif any(1 < regression.items < fewest for regression in tested):
        notes.append(
            f"With {tests}, no loss on fewer than {fewest} shared items is sure to be significant at {alpha:g}, "
            "however large: score more items, check fewer metrics and systems, or set limits, which need no test "
            "(--min METRIC=X)."
        )
    notes += [
        f"{one.system} by {one.metric.label}: only {one.changed} of {one.items:,} items "
        f"{agree(one.changed, 'scores', 'score')} differently, too few for a significant loss: see `metrist worst`."
        for one, verdict in zip(tested, verdicts, strict=True)
        if verdict.passed and one.is_loss and fewest is not None and one.changed < fewest
    ]
    if before is not now:
        notes += [f"The baseline: {note}" for note in before.notes]
    return verdicts, notes, metrics


def _count_needed_items(tests: int, alpha: float, draws: int) -> int | None:
    """The fewest items on which a loss on every item, by one of the tests alone, fails the check; None if there are too
    few draws for any number of items.

    Only the draws that exchange nothing are as extreme as such a loss, a share of 2^-n. Three standard errors more, and
    it is not missed by the chance of the draws.
    """
    if max(tests, 1) / (draws + 1) > alpha:
        return None
    items = 2
    while True:
        expected = draws * smallest_p("randomisation", items, "less")
        if tests * (math.floor(expected + 3 * math.sqrt(expected)) + 1) / (draws + 1) <= alpha:
            return items
        items += 1


def _find_lost_systems(now: Results, before: Results) -> list[Verdict]:
    """A failed verdict for each system that only the baseline has, under each shared metric."""
    old, new = list_distinct(before.systems), set(list_distinct(now.systems))
    if len(old) == len(new) == 1:
        return []
    why = "lost since the baseline; if this is intended, name the systems to check"
    metrics, _ = _pair_metrics(now, before)
    return [_missing(name, m.label, "as in the baseline", why) for m in metrics for name in old if name not in new]


def _pair_systems(before: Results, systems: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Pair systems by name; single systems on both sides pair up whatever their names."""
    old = list_distinct(before.systems)
    if len(systems) == len(old) == 1:
        return [(systems[0], old[0])], []
    pairs = [(system, system) for system in systems if system in old]
    if not pairs:
        hints = "".join(did_you_mean(system, old) for system in systems[:1])
        raise RunError(f"no system of the run is in the baseline, which has {', '.join(map(repr, old))}{hints}")
    new = [system for system in systems if system not in old]
    return pairs, [f"Not in the baseline, so not tested against it: {', '.join(new)}."] if new else []


def _pair_metrics(now: Results, before: Results) -> tuple[list[Metric], list[str]]:
    """The metrics with a better side that both runs have, and notes on the others. A metric that only one run has does
    not fail a check, because whoever scores chooses the metrics."""
    directed = [metric for metric in now.columns if metric.higher_is_better is not None]
    shared = [metric for metric in directed if has_metric(before, metric)]
    if not shared:
        raise RunError(
            "the runs share no metric with a better side: this run has "
            f"{', '.join(now.scores)}, the baseline {', '.join(before.scores)}"
        )
    for metric in shared:
        check_signatures(metric, {_NOW: now, _BEFORE: before})
    notes = []
    if new := [metric.label for metric in directed if metric not in shared]:
        notes.append(f"Not scored in the baseline, so not tested against it: {', '.join(new)}.")
    present = {*(metric.text for metric in now.metrics), *now.scores, *now.unfinished}
    directed = [metric for metric in before.metrics if metric.higher_is_better is not None]
    if lost := [m.label for m in directed if m.text not in present and m.label not in present]:
        notes.append(f"NOT CHECKED: {', '.join(lost)}; only the baseline has these scores.")
    return shared, notes


def _test_regression(
    metric: Metric, now: Results, before: Results, pair: tuple[str, str], draws: int, seed: int
) -> _Regression:
    aligned = align_scores(metric, [(now, {pair[0]: _NOW}), (before, {pair[1]: _BEFORE})])
    indices = aligned.grid.systems.index(_NOW), aligned.grid.systems.index(_BEFORE)
    shared, facts = aligned.pair(*indices)
    rows = aligned.rows(indices, shared)
    (test,) = pair_tests(
        rows,
        [(0, 1)],
        metric.pool,
        draws,
        np.random.default_rng(seed),
        _REGRESSION_TEST,
        alternative="less" if metric.higher_is_better else "greater",
    )
    return _Regression(
        metric=metric,
        system=pair[0],
        test=test,
        **facts._asdict(),
        changed=int(np.count_nonzero((rows[0] != rows[1]).any(axis=-1))),
    )


def _judge_regression(regression: _Regression, p: float, alpha: float, fewest: int | None, worse: str) -> Verdict:
    # NaN > alpha is false, so what could not be tested does not pass. Neither does what could not have failed.
    passed = p > alpha and fewest is not None and regression.items >= fewest
    shared = format_count(regression.items, "shared item")
    if regression.left_out:
        shared += f" ({regression.left_out:,} left out)"
    if math.isnan(p):
        why = f"cannot be tested on {shared}"
    else:
        why = f"p {PValue(p)} on {shared}"
        if p <= alpha:
            why = f"{worse}: {why}"
        elif fewest is None:
            why = f"no loss can be found with so few draws: {why}"
        elif not passed:
            why = f"too few to find any loss: {shared}, at least {fewest} needed"
    test, decimals = regression.test, choose_decimals(regression.metric, regression.test.first)
    total = regression.items + regression.left_out
    return Verdict(
        kind="regression",
        system=regression.system,
        metric=regression.metric.label,
        passed=passed,
        requirement=f"no worse than {Number(test.second, decimals)}",
        observed=Change(test.difference, test.low, test.high, decimals),
        coverage=regression.items / total if total else 0.0,
        why=why,
        value=test.difference,
        p=p,
    )
