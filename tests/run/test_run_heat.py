"""Which outputs of a run a heat map shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from error_codes import raises_code
from metrist.errors import ErrorCode, RunError
from metrist.metrics.base import Metric
from metrist.run import load, score

READING = """
@dataclass(frozen=True)
class Reading(Metric):
    odd: bool = False
    def score(self, shard):
        return Scores.of(
            Score(value=float(len(r.output)), tokens=self._tokens(r) if shard.tokens and r.item != "i5" else None)
            for r in shard.records
        )
    def _tokens(self, r):
        pieces = r.output.split()
        if self.odd:
            return [{"pieces": pieces}]
        reading = {"condition": "source", "target": "output", "pieces": pieces, "logprobs": [-1.0] * len(pieces)}
        prior = {"condition": None, "target": "output", "pieces": ["x"], "logprobs": [None], "prompt": "in short"}
        return [reading, prior]

@dataclass(frozen=True)
class Lower(Reading):
    higher_is_better = False
"""


@pytest.fixture
def own(module: Callable[[str], ModuleType]) -> ModuleType:
    return module(READING)


def test_the_worst_outputs_come_first_and_the_rest_is_counted(
    rows: list[dict[str, Any]], own: ModuleType, tmp_path: Path
) -> None:
    score(rows, [own.Reading(), own.Lower(), "chrf"], out=tmp_path / "run", tokens=True)
    heat = load(tmp_path / "run", metrics=[own.Lower()]).heat(limit=4)
    lengths = sorted(len(row["output"]) for row in rows if row["item"] != "i5")
    assert [o.value for o in heat.outputs] == [*lengths[:4], *lengths[::-1][:4]]
    assert heat.notes == [
        "own_metrics.Reading: 4 of 33 outputs, the worst first",
        "own_metrics.Lower: 4 of 33 outputs, the worst first",
    ]


def test_heat_can_be_limited_to_a_metric_item_and_system(rows: list[dict[str, Any]], own: ModuleType) -> None:
    results = score(rows, [own.Reading(), own.Lower()], tokens=True)
    heat = results.heat("own_metrics.Lower", item="i2", system="second")
    (output,) = heat.outputs
    assert (output.item, output.system, output.by) == ("i2", "second", "own_metrics.Lower")
    assert [reading.label for reading in output.readings] == ["output, given source", "output; prompt: in short"]
    assert output.readings[0].pieces == tuple(rows[7]["output"].split())
    assert heat.notes == []
    assert results.heat(own.Reading(), item="i5").outputs == []


@pytest.mark.parametrize(
    ("options", "code", "name"),
    [
        ({"item": "i20"}, "unknown_name", "'i20'"),
        ({"system": "secnd"}, "unknown_name", "'second'?"),
        ({"metric": "chr"}, "unknown_name", "'chr'"),
        ({"metric": "chrf"}, "no_data", "chrf"),
    ],
)
def test_unknown_outputs_are_named(
    rows: list[dict[str, Any]], own: ModuleType, options: Any, code: ErrorCode, name: str
) -> None:
    results = score(rows, [own.Reading(), "chrf"], tokens=True)
    with raises_code(RunError, code, name):
        results.heat(**options)


def test_a_run_without_tokens_explains_what_to_do(rows: list[dict[str, Any]], own: ModuleType) -> None:
    with raises_code(RunError, "no_data", "own_metrics.Reading, chrf"):
        score(rows, [own.Reading(), "chrf"]).heat()


def test_malformed_readings_are_refused_with_the_expected_format(rows: list[dict[str, Any]], own: ModuleType) -> None:
    metric: Metric = own.Reading(odd=True)
    with raises_code(RunError, "invalid_value", metric.label, "'i0'", "'first'", "logprobs"):
        score(rows, [metric], tokens=True).heat(item="i0", system="first")
