"""An instruction in the user's own words changes the ranking of two answers in the direction that it asks for.

`shipped_wordings.toml` has twelve wordings in couples that ask for opposite things of the same answers: a metric that
ignores the instruction is right in exactly half of the 60 cases.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from metrist.errors import MissingExtra
from metrist.metrics.base import Shard
from metrist.metrics.trained.preference import PreferenceMetric
from metrist.models.devices import Options
from metrist.models.weights import find_weights
from metrist.records import Record

WORDINGS = Path(__file__).parent / "shipped_wordings.toml"
#: A folder to test instead of the shipped models: what a training has just exported.
MODEL = os.environ.get("METRIST_TEST_PREFERENCE")
MODELS = (
    [MODEL] if MODEL else ["metrist:english-small", pytest.param("metrist:english-large", marks=pytest.mark.torture)]
)
#: The share of right choices, and of wordings with more right than wrong ones. Chance has a share of .5, and with 60
#: fair coins one of .65 in one of 72 trials.
CLEAR, MOST_WORDINGS = 0.65, 9


class Case(NamedTuple):
    """An instruction, a request and the two answers; the first one suits the instruction."""

    instruction: str
    request: str
    suitable: str
    other: str


def read_couples() -> list[dict[str, Any]]:
    couples: list[dict[str, Any]] = tomllib.loads(WORDINGS.read_text(encoding="utf-8"))["couples"]
    return couples


def read_cases() -> list[Case]:
    cases = []
    for couple in read_couples():
        for answer in couple["answers"]:
            first, second = answer["first"].strip(), answer["second"].strip()
            cases.append(Case(couple["first"], answer["request"], first, second))
            cases.append(Case(couple["second"], answer["request"], second, first))
    return cases


def is_right(model: str, case: Case) -> bool:
    metric = PreferenceMetric(model=model, instruction=case.instruction, context=("source",))
    records = [
        Record(item="1", system=str(number), output=output, source=case.request)
        for number, output in enumerate((case.suitable, case.other))
    ]
    suitable, other = metric.score(Shard(records)).values
    return bool(suitable > other)


def skip_unless_installed(model: str) -> None:
    """Skip the test if the package of a shipped model is absent. One without it, or a broken one, is a failure."""
    try:
        find_weights(Options(model=model))
    except MissingExtra as error:
        pytest.skip(f"{model} is not installed: {error}")


def test_the_cases_are_balanced() -> None:
    cases = read_cases()
    assert len({case.instruction for case in cases}) == 12
    assert len(cases) == 60
    assert len({(case.request, case.suitable) for case in cases}) == 60
    for couple in read_couples():
        # No answer occurs on one side only: the longer one, too, is right in half of the cases.
        own = [case for case in cases if case.instruction in (couple["first"], couple["second"])]
        assert sum(len(case.suitable) > len(case.other) for case in own) == len(own) / 2


@pytest.mark.parametrize("model", MODELS)
def test_wordings_change_the_ranking(model: str) -> None:
    if model != MODEL:
        skip_unless_installed(model)
    right: dict[str, list[bool]] = {}
    for case in read_cases():
        right.setdefault(case.instruction, []).append(is_right(model, case))
    every = [value for values in right.values() for value in values]
    table = "\n".join(f"{sum(values)} of {len(values)}: {wording}" for wording, values in right.items())
    assert sum(every) / len(every) >= CLEAR, f"{sum(every)} of {len(every)} right\n{table}"
    assert sum(sum(values) > len(values) / 2 for values in right.values()) >= MOST_WORDINGS, table
