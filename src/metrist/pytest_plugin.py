"""The pytest fixture `metrist_check`: a test that fails when outputs score too low or got worse.

    def test_summaries(metrist_check):
        metrist_check("outputs.jsonl", min={"rougeL": 0.3}, against="baseline/")

Loaded by every pytest run on a machine that has metrist, so nothing is imported until the fixture is used.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, Unpack

import pytest

if TYPE_CHECKING:
    from metrist.evaluate.check import Report
    from metrist.run.results import Results


class Wanted(TypedDict, total=False):
    """What can be asked of outputs, as in `metrist.check`."""

    min: Mapping[str, float]
    max: Mapping[str, float]
    min_coverage: float
    alpha: float
    systems: Sequence[str]
    draws: int
    seed: int


class MetristCheck(Protocol):
    """What the fixture gives. `outputs` are records in any form that `metrist.score` takes, a run folder, or results.

    Scored are the metrics that have a threshold and those in `metrics`; where there are none, those of `against`.
    """

    def __call__(
        self,
        outputs: Any,
        *,
        against: Results | str | os.PathLike[str] | None = None,
        metrics: Iterable[str] = (),
        **wanted: Unpack[Wanted],
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
    **wanted: Unpack[Wanted],
) -> Report:
    __tracebackhide__ = True
    from metrist.evaluate.check import check
    from metrist.evaluate.selection import open_run

    options: dict[str, Any] = {**wanted}
    minimum, maximum = options.pop("min", {}), options.pop("max", {})
    named = list(dict.fromkeys([*minimum, *maximum, *metrics]))
    before = None if against is None else open_run(against, named)
    report = check(_scored(outputs, named, before), minimum, maximum, before, **options)
    if not report.passed:
        pytest.fail(str(report), pytrace=False)
    return report


def _scored(outputs: Any, named: Sequence[str], before: Results | None) -> Results:
    from metrist.evaluate.selection import open_run
    from metrist.run import score
    from metrist.run.results import Results

    if isinstance(outputs, Results):
        return outputs
    if isinstance(outputs, str | os.PathLike) and os.path.isdir(outputs):
        return open_run(outputs, named)
    return score(outputs, named or list(before.metrics if before else ()))
