"""The pytest fixture `metrist_check`: a test that fails when outputs score too low or got worse.

    def test_summaries(metrist_check):
        metrist_check("outputs.jsonl", min={"rougeL": 0.3}, against="baseline/")

Every pytest run in an environment with metrist loads this module, so heavy imports wait until the fixture is used.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, Unpack

import pytest

if TYPE_CHECKING:
    from metrist.evaluate.check import Report
    from metrist.metrics.base import Metric
    from metrist.metrics.registry import MetricList
    from metrist.run.results import Results


class CheckOptions(TypedDict, total=False):
    """The requirements, as in `metrist.check`."""

    min: Mapping[str, float]
    max: Mapping[str, float]
    min_coverage: float
    alpha: float
    systems: Sequence[str]
    draws: int
    seed: int


class MetristCheck(Protocol):
    """The fixture's value. `outputs` are records in any form that `metrist.score` takes, a run folder, or results.

    Records are scored with the metrics that have a threshold and those in `metrics`, or, without any, those of
    `against`.
    """

    def __call__(
        self,
        outputs: Any,
        *,
        against: Results | str | os.PathLike[str] | None = None,
        metrics: MetricList = (),
        **options: Unpack[CheckOptions],
    ) -> Report: ...


@pytest.fixture
def metrist_check() -> MetristCheck:
    """Check outputs as `metrist check` does; the test fails with the table of verdicts."""
    return _check


def _check(
    outputs: Any,
    *,
    against: Results | str | os.PathLike[str] | None = None,
    metrics: MetricList = (),
    **options: Unpack[CheckOptions],
) -> Report:
    __tracebackhide__ = True
    from metrist.evaluate.check import check
    from metrist.evaluate.selection import open_run

    arguments: dict[str, Any] = {**options}
    minimum, maximum = arguments.pop("min", {}), arguments.pop("max", {})
    limits = list(dict.fromkeys([*minimum, *maximum]))
    baseline = None if against is None else open_run(against, limits)
    report = check(_load_results(outputs, limits, metrics, baseline), minimum, maximum, baseline, **arguments)
    if not report.passed:
        pytest.fail(str(report), pytrace=False)
    return report


def _load_results(outputs: Any, limits: Sequence[str], metrics: MetricList, baseline: Results | None) -> Results:
    from metrist.evaluate.selection import open_run
    from metrist.run import score
    from metrist.run.results import Results

    if isinstance(outputs, Results):
        return outputs
    if isinstance(outputs, str | os.PathLike) and os.path.isdir(outputs):
        return open_run(outputs, limits)
    return score(outputs, _choose_metrics(limits, metrics) or list(baseline.metrics if baseline else ()))


def _choose_metrics(limits: Sequence[str], metrics: MetricList) -> list[Metric]:
    """The metrics to score with: those named, and those of the limits (of `rougeL:recall`, rougeL)."""
    from metrist.errors import MetristError, RunError
    from metrist.evaluate.selection import find_metric
    from metrist.metrics.registry import build, build_all

    chosen = list(build_all(metrics))
    for name in limits:
        try:
            find_metric(chosen, name)
        except RunError:
            try:
                chosen.append(build(name))
            except MetristError:
                owner, colon, _ = name.rpartition(":")
                if not colon:
                    raise
                chosen.append(build(owner))
    return chosen
