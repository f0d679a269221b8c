"""The pytest fixture `metrist_check`: a test that fails when outputs score too low or got worse.

    def test_summaries(metrist_check):
        metrist_check("outputs.jsonl", min={"rougeL": 0.3}, against="baseline/")

Every pytest run in an environment with metrist loads this module, so heavy imports wait until the fixture is used.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, Unpack

import pytest

if TYPE_CHECKING:
    from metrist.evaluate.check import Report
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
        metrics: Iterable[str] = (),
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
    metrics: Iterable[str] = (),
    **options: Unpack[CheckOptions],
) -> Report:
    __tracebackhide__ = True
    from metrist.evaluate.check import check
    from metrist.evaluate.selection import open_run

    arguments: dict[str, Any] = {**options}
    minimum, maximum = arguments.pop("min", {}), arguments.pop("max", {})
    named = list(dict.fromkeys([*minimum, *maximum, *metrics]))
    baseline = None if against is None else open_run(against, named)
    report = check(_load_results(outputs, named, baseline), minimum, maximum, baseline, **arguments)
    if not report.passed:
        pytest.fail(str(report), pytrace=False)
    return report


def _load_results(outputs: Any, named: Sequence[str], baseline: Results | None) -> Results:
    from metrist.evaluate.selection import open_run
    from metrist.run import score
    from metrist.run.results import Results

    if isinstance(outputs, Results):
        return outputs
    if isinstance(outputs, str | os.PathLike) and os.path.isdir(outputs):
        return open_run(outputs, named)
    return score(outputs, named or list(baseline.metrics if baseline else ()))
