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
    from metrist.evaluate.compare.check import CheckReport
    from metrist.metrics.base import Metric
    from metrist.metrics.registry import MetricList
    from metrist.run.results import Results


class CheckOptions(TypedDict, total=False):
    """The requirements, as in `metrist.check`, and the options for reading records."""

    min: Mapping[str, float]
    max: Mapping[str, float]
    min_coverage: float | Mapping[str, float]
    alpha: float
    systems: Sequence[str]
    draws: int
    seed: int
    # How records are read, as in `metrist.read_records`.
    item_key: Sequence[str] | str
    fields: Mapping[str, str]
    outputs: Mapping[str, str] | Sequence[str] | str
    skip_bad: bool
    system: str
    delimiter: str
    encoding: str
    sheet: str


class MetristCheck(Protocol):
    """The fixture's value. `records` are records in any form that `metrist.score` takes, a run folder, or results.

    Records are scored with the metrics that have a threshold and those in `metrics`, or, without any, those of
    `against`.
    """

    def __call__(
        self,
        records: Any,
        /,
        *,
        against: Results | str | os.PathLike[str] | None = None,
        metrics: MetricList = (),
        **options: Unpack[CheckOptions],
    ) -> CheckReport: ...


@pytest.fixture
def metrist_check() -> MetristCheck:
    """Check outputs as `metrist check` does; the test fails with the table of verdicts."""
    return _check


def _check(
    records: Any,
    /,
    *,
    against: Results | str | os.PathLike[str] | None = None,
    metrics: MetricList = (),
    **options: Unpack[CheckOptions],
) -> CheckReport:
    __tracebackhide__ = True
    from metrist.errors import RunError
    from metrist.evaluate.compare.check import check
    from metrist.evaluate.selection import open_run
    from metrist.run import score
    from metrist.run.results import Results
    from metrist.settings import InputSettings, find_settings

    arguments: dict[str, Any] = {**options}
    reading = {name: arguments.pop(name) for name in find_settings(InputSettings) if name in arguments}
    minimum, maximum = arguments.pop("min", {}), arguments.pop("max", {})
    limits = list(dict.fromkeys([*minimum, *maximum]))
    # A name of no file may be that of a system in the results.
    is_name = isinstance(against, str) and not os.path.exists(against)
    baseline = None if against is None or is_name else open_run(against, limits)
    is_folder = isinstance(records, str | os.PathLike) and os.path.isdir(records)
    if reading and (is_folder or isinstance(records, Results)):
        raise RunError(f"{', '.join(reading)}: options for reading records, but these are scored already")
    if is_folder:
        records = open_run(records, limits)
    elif not isinstance(records, Results):
        chosen = _choose_metrics(limits, metrics) or list(baseline.metrics if baseline else ())
        records = score(records, chosen, **reading)
    report = check(records, minimum, maximum, against if baseline is None else baseline, **arguments)
    if not report.passed:
        pytest.fail(str(report), pytrace=False)
    return report


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
