"""`check`: is a run good enough, and no worse than an earlier one? Floors, ceilings, coverage, regressions, for CI."""

from __future__ import annotations

import math
import os
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrist.errors import RunError, agree, did_you_mean, format_count
from metrist.evaluate.compare.comparison import PairFacts, align_scores, check_draws, set_up_tests
from metrist.evaluate.compare.results import describe_sources
from metrist.evaluate.selection import (
    check_signatures,
    choose_decimals,
    find_changes,
    find_metric,
    has_metric,
    list_names,
    open_run,
    select_metrics,
    select_systems,
    warn_off_scale,
)
from metrist.grid import pair_outputs
from metrist.io.remote import is_remote
from metrist.metrics.base import Metric
from metrist.names import encode_names, list_distinct, select_names
from metrist.report.tables import Change, Column, Number, PValue, Share, Table, escape_controls, or_none, shorten
from metrist.run.results import Results
from metrist.scores import FailureKind
from metrist.settings import checks_types
from metrist.stats.resampling import PairTest, Test, pair_tests, smallest_p
from metrist.stats.significance import holm

CheckKind = Literal["minimum", "maximum", "coverage", "regression", "missing", "input"]

_NOW, _BEFORE = "this run", "the baseline"


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
        total, failed = len(self.verdicts), len(self.failures)
        checks = format_count(total, "check")
        return f"{checks}, {failed} failed" if failed else f"{checks}, {agree(total, 'passed', 'all passed')}"

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
        """The report as JUnit XML, which CI services show as tests: without times, so that equal verdicts give equal
        bytes."""
        counts = {"tests": str(len(self.verdicts)), "failures": str(len(self.failures)), "errors": "0"}
        root = ET.Element("testsuites", {"name": _escape_xml(suite), **counts})
        cases = ET.SubElement(root, "testsuite", {"name": _escape_xml(suite), **counts, "skipped": "0"})
        for verdict in self.verdicts:
            name = f"{verdict.system}: {verdict.metric} {verdict.requirement}"
            case = ET.SubElement(cases, "testcase", classname=f"metrist.{verdict.kind}", name=_escape_xml(name))
            if not verdict.passed:
                facts = [f"wanted: {verdict.requirement}", f"found: {verdict.observed}"]
                facts.append(f"coverage: {Share(verdict.coverage)}")
                facts += [] if verdict.p is None else [f"p: {PValue(verdict.p)}"]
                failure = ET.SubElement(case, "failure", message=_escape_xml(verdict.why), type="metrist")
                failure.text = _escape_xml("\n".join([verdict.why, *facts, *self.notes]))
        ET.indent(root)
        return f"<?xml version='1.0' encoding='utf-8'?>\n{ET.tostring(root, encoding='unicode')}\n"

    def __repr__(self) -> str:
        return f"CheckReport({self.summary})"

    def __str__(self) -> str:
        return self.table().text()

    def _repr_html_(self) -> str:
        return self.table().render("html")


def _escape_xml(text: str) -> str:
    """Escape what XML does not allow: line breaks stay, other control characters become escapes."""
    shown = "\n".join(escape_controls(line) for line in text.split("\n"))
    # XML forbids these two code points.
    return shown.replace("\ufffe", "\\ufffe").replace("\uffff", "\\uffff")


@checks_types
def check(
    run: Results | str | os.PathLike[str],
    minimum: Mapping[str, float] | None = None,
    maximum: Mapping[str, float] | None = None,
    against: Results | str | os.PathLike[str] | None = None,
    alpha: float = 0.05,
    systems: str | Sequence[str] | None = None,
    min_coverage: float | Mapping[str, float] | None = None,
    draws: int = 10_000,
    seed: int = 0,
    metrics: str | Sequence[str] | None = None,
) -> CheckReport:
    """Check each system: its scores against floors and ceilings by metric, or by a part of its scores such as
    `judge:fluency`; the share of its outputs with a score by each metric against `min_coverage`, a number or one by
    metric, in which `*` stands for all others; and whether it is significantly worse than in the run `against`, or than
    the system of that name in this run. By default all systems are checked, and one that only the run `against` has
    fails. A test that cannot find any loss, because the items are too few, fails, and so does a run folder whose input
    has changed since it was scored.

    `metrics` selects those that are tested against a run, and those of which `min_coverage` is asked; by default all.
    Without `min_coverage`, every output needs a score by the metrics with a limit; by those that are tested against a
    run, each output that has one there, or that is new and has what the metric needs. The run must be finished.
    """
    minimum, maximum = minimum or {}, maximum or {}
    least = {"*": min_coverage} if isinstance(min_coverage, int | float) else dict(min_coverage or {})
    if not (minimum or maximum or against is not None or least):
        raise RunError(
            "nothing to check: give a minimum, a maximum, a minimal coverage or a run to check against", code="no_data"
        )
    _check_numbers(minimum, maximum, least, alpha, draws)
    chosen_metrics = list_names(metrics)
    named = [*minimum, *maximum]
    results = open_run(run, [*named, *(name for name in least if name != "*"), *(chosen_metrics or ())])
    chosen = select_systems(results.systems, systems)
    if not chosen:
        raise RunError("nothing to check: the run has no outputs", code="no_data")
    verdicts, notes = _check_thresholds(results, chosen, minimum, maximum)
    checked = [find_metric(results.metrics, name, results.unfinished) for name in named]
    excused = dict[str, NDArray[np.bool_]]()
    if against is not None:
        baseline = _open_baseline(against, results, [*named, *(chosen_metrics or ())])
        regressions, remarks, tested, unscored = _check_regressions(
            results, baseline, chosen, chosen_metrics, alpha, draws, seed
        )
        verdicts += regressions
        notes += remarks
        if systems is None and not isinstance(baseline, str):
            verdicts += _find_lost_systems(results, baseline, tested)
        limited = {metric.label for metric in checked}
        excused = {label: outputs for label, outputs in unscored.items() if label not in limited}
        checked += tested
    covered = [*checked, *(metric for metric in results.metrics if results.scores[metric.label].pending)]
    everywhere = least.pop("*", None)
    own = [find_metric(results.metrics, name, results.unfinished) for name in least]
    if everywhere is not None:
        covered = select_metrics(results.metrics, chosen_metrics, results.unfinished)
        excused = {}
    shares = dict(zip((metric.label for metric in own), least.values(), strict=True))
    uncovered = _check_coverage(results, chosen, [*covered, *own], everywhere, shares, checked, excused)
    if uncovered and min_coverage is None:
        notes.append("Every output needs a score, unless `min_coverage` allows less.")
    verdicts += uncovered
    verdicts += [
        _missing(system, label, "a finished run", "not finished: run the same `metrist score` again")
        for label in results.unfinished.values()
        for system in chosen
    ]
    changed, unknown = find_changes(results)
    for change in changed:
        why = f"{shorten(change.name, 40)} has changed: score it again"
        failed = _missing("all", "all", "as it was scored", why)
        verdicts.append(replace(failed, kind="input", observed="changed", coverage=math.nan))
    notes = [*(change.message for change in changed), *unknown, *results.notes, *notes]
    return CheckReport(verdicts=tuple(verdicts), notes=tuple(dict.fromkeys(notes)))


def _open_baseline(
    against: Results | str | os.PathLike[str], results: Results, metrics: Sequence[str]
) -> Results | str:
    if not isinstance(against, str) or against not in results.systems:
        if isinstance(against, str) and not (is_remote(against) or os.path.exists(against)):
            known = list_distinct(results.systems)
            raise RunError(
                f"nothing to check against: there is no run at {against}, and no system of that name in this run, "
                f"which has {', '.join(map(repr, known[:10]))}{did_you_mean(against, known)}",
                code="unknown_name",
            )
        return open_run(against, metrics)
    if os.path.exists(against):
        raise RunError(
            f"{against!r} is a system of this run and also a file or folder here: write {os.path.join('.', against)} "
            "for the run; to check against the system, work in another folder",
            code="conflict",
        )
    return against


def _check_numbers(
    minimum: Mapping[str, float], maximum: Mapping[str, float], least: Mapping[str, float], alpha: float, draws: int
) -> None:
    for word, thresholds in (("minimum", minimum), ("maximum", maximum)):
        for name, value in thresholds.items():
            if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
                raise RunError(f"the {word} of {name} must be a number, got {value!r}", code="invalid_value")
    for name, share in least.items():
        if not 0 <= share <= 1:
            whose = "" if name == "*" else f" of {name}"
            message = f"the minimal coverage{whose} must be a share between 0 and 1, got {share!r}"
            raise RunError(message, code="invalid_value")
    check_draws(draws, alpha)


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


def _check_thresholds(
    results: Results, systems: Sequence[str], minimum: Mapping[str, float], maximum: Mapping[str, float]
) -> tuple[list[Verdict], list[str]]:
    verdicts, notes = list[Verdict](), list[str]()
    kinds: tuple[Literal["minimum", "maximum"], ...] = ("minimum", "maximum")
    for kind, limits in zip(kinds, (minimum, maximum), strict=True):
        sign, side = (">=", "below") if kind == "minimum" else ("<=", "above")
        for name, threshold in limits.items():
            metric = find_metric(results.metrics, name, results.unfinished)
            pooled = {row.system: row for row in results.system_scores(draws=0, metrics=[metric])}
            for system in systems:
                score = pooled[system].value
                observed = Number(score, choose_decimals(metric, score))
                # Comparisons with NaN are false, so a system without a score never passes.
                passed = score >= threshold if kind == "minimum" else score <= threshold
                why = ""
                if math.isnan(score):
                    why = "no output has a score"
                elif not passed:
                    why = f"{observed} is {abs(score - threshold):.3g} {side} the {kind} {threshold:g}"
                verdicts.append(
                    Verdict(
                        kind=kind,
                        system=system,
                        metric=metric.label,
                        passed=passed,
                        requirement=f"{sign} {threshold:g}",
                        observed=observed,
                        coverage=pooled[system].coverage,
                        why=why,
                        value=score,
                    )
                )
            known = [score for system in systems if not math.isnan(score := pooled[system].value)]
            if note := warn_off_scale(metric, kind, threshold, float(np.median(known)) if known else math.nan):
                notes.append(note)
    return verdicts, notes


def _check_coverage(
    results: Results,
    systems: Sequence[str],
    metrics: Sequence[Metric],
    everywhere: float | None,
    own: Mapping[str, float],
    checked: Sequence[Metric],
    excused: Mapping[str, NDArray[np.bool_]],
) -> list[Verdict]:
    """A verdict per metric and system; without a minimal coverage, `own` of the metric or `everywhere`, only failures,
    but for `checked` metrics without any score, which fail anyway. `excused` marks outputs that need no score."""
    checked_labels = {metric.label for metric in checked}
    named = encode_names(results.systems)
    verdicts = []
    for metric in {metric.label: metric for metric in metrics}.values():
        values = results[metric].values
        failures = results[metric].scores.failures
        least = own.get(metric.label, everywhere)
        minimum = 1.0 if least is None else least
        outputs = excused.get(metric.label) if least is None else None
        for system in systems:
            own_rows = select_names(named, {system})
            scored = int(np.count_nonzero(~np.isnan(values[own_rows])))
            needed = len(own_rows) - (0 if outputs is None else int(np.count_nonzero(outputs[own_rows])))
            coverage = scored / needed if scored else 0.0
            passed = coverage >= minimum and coverage > 0
            if least is None and (passed or (coverage == 0 and metric.label in checked_labels)):
                continue
            needing = "" if outputs is None else " that need one"
            why = f"only {Share(coverage)} of the outputs{needing} have a score"
            kinds = [failure.kind for row, failure in failures.items() if results.systems[row] == system]
            if unscored := kinds.count(FailureKind.pending):
                # Short enough for a cell; the command is in a note of the run.
                why += f": {unscored:,} not scored yet, {len(kinds) - unscored:,} failed"
            verdicts.append(
                Verdict(
                    kind="coverage",
                    system=system,
                    metric=metric.label,
                    passed=passed,
                    requirement=f">= {100 * minimum:g} % scored",
                    observed=Share(coverage),
                    coverage=coverage,
                    why="" if passed else why,
                    value=coverage,
                )
            )
    return verdicts


def _excuse_outputs(
    now: Results, before: Results, metrics: Sequence[Metric], pairs: Sequence[tuple[str, str]]
) -> dict[str, NDArray[np.bool_]]:
    """By metric, the outputs that need no score: without one in the baseline, or new and without references, say."""
    outputs = encode_names(now.items), encode_names(now.systems)
    others = encode_names(before.items), encode_names(before.systems)
    at = pair_outputs(*outputs, *others, dict(pairs))
    excused = {}
    for metric in metrics:
        unscored = np.isnan(before[metric].values)
        own = excused[metric.label] = np.zeros(len(now), np.bool_)
        for row, failure in now[metric].scores.failures.items():
            if failure.kind is not FailureKind.pending:
                own[row] = unscored[at[row]] if at[row] >= 0 else failure.kind is FailureKind.missing_input
    return excused


class _Regression(NamedTuple):
    """The one-sided test that a system got worse, on the items that both runs share; `changed` of them have another
    score."""

    metric: Metric
    system: str
    test: PairTest
    facts: PairFacts
    changed: int


def _check_regressions(
    now: Results,
    baseline: Results | str,
    systems: Sequence[str],
    names: Sequence[str] | None,
    alpha: float,
    draws: int,
    seed: int,
) -> tuple[list[Verdict], list[str], list[Metric], dict[str, NDArray[np.bool_]]]:
    """Test systems against a baseline, which is a run, or a system of this one. Return verdicts, notes, the metrics,
    and by metric the outputs that need no score."""
    if isinstance(baseline, str):
        before, name, worse = now, baseline, f"worse than {baseline}"
        pairs = [(system, baseline) for system in systems if system != baseline]
        notes: list[str] = []
        if not pairs:
            raise RunError(f"there is no system to check against {baseline!r}: name others", code="conflict")
    else:
        before, name, worse = baseline, "the baseline", "got worse"
        pairs, notes = _pair_systems(before, systems)
    metrics, remarks = _pair_metrics(now, before, names)
    tested = [_test_regression(metric, now, before, pair, draws, seed) for metric in metrics for pair in pairs]
    adjusted = holm([regression.test.p["randomisation"] for regression in tested])
    fewest = _count_needed_items(int(np.count_nonzero(~np.isnan(adjusted))), alpha, draws)
    tests = format_count(len(tested), "test")
    differing = {
        (regression.system, name): (regression.facts.different, regression.facts.separated)
        for regression in tested
        if regression.facts.different
    }
    notes += [*remarks, *describe_sources(differing)]
    notes.append(
        f"{worse[0].upper()}{worse[1:]}: one-sided approximate randomisation on shared items, {draws:,} draws, "
        f"Holm-corrected over {tests}, alpha {alpha:g}."
    )
    if fewest is None:
        notes.append(f"With {tests}, {draws:,} draws cannot reach {alpha:g}: use more draws.")
    elif any(1 < regression.facts.items < fewest for regression in tested):
        notes.append(
            f"With {tests}, no loss on fewer than {fewest} shared items is sure to be significant at {alpha:g}, "
            "however large: score more items, check fewer metrics and systems, or set limits, which need no test."
        )
    verdicts = []
    for regression, p in zip(tested, adjusted.tolist(), strict=True):
        verdict = _judge_regression(regression, p, alpha, fewest, worse)
        verdicts.append(verdict)
        label, difference, changed = regression.metric.label, regression.test.difference, regression.changed
        is_loss = difference < 0 if regression.metric.higher_is_better else difference > 0
        if verdict.passed and is_loss and fewest is not None and changed < fewest:
            notes.append(
                f"{regression.system} by {label}: only {changed} of {regression.facts.items:,} items "
                f"{agree(changed, 'scores', 'score')} differently, too few for a significant loss: see `metrist worst`."
            )
    if before is not now:
        notes += [f"The baseline: {note}" for note in before.notes]
    return verdicts, notes, metrics, _excuse_outputs(now, before, metrics, pairs)


def _count_needed_items(tests: int, alpha: float, draws: int) -> int | None:
    """The fewest items on which a loss on every item, by one of the tests alone, fails the check; None if there are too
    few draws for any number of items.

    Only the draws that exchange nothing are as extreme as such a loss, a share of 2^-n. Three standard errors more, and
    it is not missed by the chance of the draws.
    """
    if max(tests, 1) / (draws + 1) > alpha:
        return None
    for items in count(2):
        expected = draws * smallest_p("randomisation", items, "less")
        if tests * (math.floor(expected + 3 * math.sqrt(expected)) + 1) / (draws + 1) <= alpha:
            break
    return items


def _find_lost_systems(now: Results, before: Results, metrics: Sequence[Metric]) -> list[Verdict]:
    """A failed verdict for each system that only the baseline has, under each metric that is tested."""
    old, new = list_distinct(before.systems), set(list_distinct(now.systems))
    if len(old) == len(new) == 1:
        return []
    why = "lost since the baseline; if this is intended, name the systems to check"
    return [_missing(name, m.label, "as in the baseline", why) for m in metrics for name in old if name not in new]


def _pair_systems(before: Results, systems: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Pair systems by name; single systems on both sides pair up whatever their names."""
    old = list_distinct(before.systems)
    if len(systems) == len(old) == 1:
        return [(systems[0], old[0])], []
    pairs = [(system, system) for system in systems if system in old]
    if not pairs:
        hints = "".join(did_you_mean(system, old) for system in systems[:1])
        raise RunError(
            f"no system of the run is in the baseline, which has {', '.join(map(repr, old))}{hints}",
            code="too_little_data",
        )
    new = [system for system in systems if system not in old]
    return pairs, [f"Not in the baseline, so not tested against it: {', '.join(new)}."] if new else []


def _pair_metrics(now: Results, before: Results, names: Sequence[str] | None = None) -> tuple[list[Metric], list[str]]:
    """The metrics with a better side that both runs have, and notes on the others. A metric that only one run has does
    not fail a check, because whoever scores chooses the metrics. Those that are named must be in both."""
    if names is not None:
        chosen = select_metrics(now.columns, names, now.unfinished)
        for metric in chosen:
            if metric.higher_is_better is None or not has_metric(before, metric):
                raise RunError(f"{metric.label} has no better side, or is not in the baseline", code="conflict")
            check_signatures(metric, {_NOW: now, _BEFORE: before})
        return chosen, []
    directed = [metric for metric in now.columns if metric.higher_is_better is not None]
    shared = [metric for metric in directed if has_metric(before, metric)]
    if not shared:
        raise RunError(
            "the runs share no metric with a better side: this run has "
            f"{', '.join(now.scores)}, the baseline {', '.join(before.scores)}",
            code="too_little_data",
        )
    for metric in shared:
        check_signatures(metric, {_NOW: now, _BEFORE: before})
    new = [metric.label for metric in directed if metric not in shared]
    notes = [f"Not scored in the baseline, so not tested against it: {', '.join(new)}."] if new else []
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
    side: Literal["less", "greater"] = "less" if metric.higher_is_better else "greater"
    rng = np.random.default_rng(seed)
    # The bootstrap is overconfident on few items; randomisation keeps its level on any number.
    tests: tuple[Test, ...] = ("randomisation",)
    contestants = set_up_tests(metric, aligned, indices, shared, [(0, 1)])
    ((test,),) = pair_tests([contestants], draws, rng, tests, alternative=side)
    first, second = (aligned.read(system, shared) for system in indices)
    changed = int(np.count_nonzero((first != second).any(axis=-1)))
    return _Regression(metric, pair[0], test, facts, changed)


def _judge_regression(regression: _Regression, p: float, alpha: float, fewest: int | None, worse: str) -> Verdict:
    test, facts = regression.test, regression.facts
    # NaN > alpha is false, so what could not be tested does not pass. Neither does what could not have failed.
    passed = p > alpha and fewest is not None and facts.items >= fewest
    shared = format_count(facts.items, "shared item")
    if facts.left_out:
        shared += f" ({facts.left_out:,} left out)"
    why = f"p {PValue(p)} on {shared}"
    if math.isnan(p):
        why = f"cannot be tested on {shared}"
    elif p <= alpha:
        why = f"{worse}: {why}"
    elif fewest is None:
        why = f"no loss can be found with so few draws: {why}"
    elif not passed:
        why = f"too few to find any loss: {shared}, at least {fewest} needed"
    decimals = choose_decimals(regression.metric, test.first)
    total = facts.items + facts.left_out
    return Verdict(
        kind="regression",
        system=regression.system,
        metric=regression.metric.label,
        passed=passed,
        requirement=f"no worse than {Number(test.second, decimals)}",
        observed=Change(test.difference, test.low, test.high, decimals),
        coverage=facts.items / total if total else 0.0,
        why=why,
        value=test.difference,
        p=p,
    )
