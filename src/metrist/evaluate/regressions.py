"""Whether systems got worse since an earlier run, tested on the items that both runs hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from metrist.errors import RunError, did_you_mean
from metrist.evaluate.blocks import block
from metrist.evaluate.scales import decimals_of
from metrist.evaluate.selection import check_signatures
from metrist.evaluate.verdicts import Verdict, missing
from metrist.metrics.base import Metric
from metrist.report.cells import Change, Number, PValue
from metrist.stats.resampling import PairTest, Test, pair_tests
from metrist.stats.significance import holm

if TYPE_CHECKING:
    from metrist.run.results import Results

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
