"""`answer_preference`: values by the formula of the module on scores of a stand-in, and choices of people."""

from __future__ import annotations

import json
import lzma
import math
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import metrist
from error_codes import raises_code
from metrist.errors import MissingExtra, ModelError, SpecError
from metrist.metrics import registry
from metrist.metrics.base import Shard
from metrist.metrics.registry import build
from metrist.metrics.trained.answer_preference import AnswerPreference, find_table
from metrist.records import Record
from metrist.scores import Score, Scores

#: Three answers with their stand-in rewards, and one that the model cannot read.
ANSWERS = {"No.": -1.0, "No, it is not: " + "a reason, " * 20: 0.5, "Yes." * 40: 0.5, "": math.nan}


@pytest.fixture
def scores(monkeypatch: pytest.MonkeyPatch) -> list[Score]:
    class StandIn(type(build("preference"))):  # type: ignore[misc]
        def score(self, shard: Shard) -> Any:
            return Scores.of(
                Score(value=ANSWERS[record.output], parts={"reward": 2.0})
                if record.output
                else Score.failed("the output is empty")
                for record in shard.records
            )

    metric = AnswerPreference(size="large")
    monkeypatch.setitem(metric.__dict__, "inner", StandIn())
    records = [Record(item="1", system=str(n), output=answer, source="Is it?") for n, answer in enumerate(ANSWERS)]
    return list(metric.score(Shard(records)))


def test_values_are_those_of_the_formula(scores: list[Score]) -> None:
    numbers = tomllib.loads(find_table().read_text(encoding="utf-8"))["large"]
    for score, (answer, preference) in list(zip(scores, ANSWERS.items(), strict=True))[:3]:
        longer = math.log(1 + len(answer)) - numbers["typical_length"]
        free = numbers["preference"] * (preference - numbers["typical_preference"]) - numbers["owed"] * longer
        assert score.parts["length_free"] == pytest.approx(free)
        assert score.parts["length"] == pytest.approx(numbers["length"] * longer)
        assert score.value == pytest.approx(free + numbers["length"] * longer)
        assert (score.parts["preference"], score.parts["reward"]) == (preference, 2.0)
    assert scores[3].failure == "the output is empty"


def test_a_longer_answer_gains_what_people_give_and_nothing_in_the_length_free_part(scores: list[Score]) -> None:
    """Both have the same preference: the longer one is ahead with people, and behind once length does not count."""
    longer, shorter = scores[1], scores[2]
    assert longer.value > shorter.value
    assert longer.parts["length_free"] < shorter.parts["length_free"]


def test_the_explanation_has_both_probabilities(scores: list[Score]) -> None:
    first, second = scores[0], scores[1]
    with_length = 1 / (1 + math.exp(second.value - first.value))
    without = 1 / (1 + math.exp(second.parts["length_free"] - first.parts["length_free"]))
    explanation = AnswerPreference().against(first, second)
    assert f"{with_length:.3f}" in explanation
    assert f"{without:.3f} if length did not count" in explanation


def test_sizes_are_checked_and_need_their_extra() -> None:
    assert [build(f"answer_preference(size={size!r})").extra for size in ("small", "large")] == ["standard", "large"]
    with raises_code(SpecError, "invalid_value", "'medium'", "'small'"):
        build("answer_preference(size='medium')")


def test_on_hhh_it_chooses_as_people_do_more_often_than_length(data: Callable[[str], Path]) -> None:
    with lzma.open(data("hhh-alignment"), "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    outputs = [
        {"item": str(n), "system": system, "output": text, "source": row["source"]}
        for n, row in enumerate(rows)
        for system, text in zip("ab", row["outputs"], strict=True)
    ]
    metric = registry.build("answer_preference")
    try:
        values = metrist.score(outputs, metric)[metric].values.reshape(-1, 2)
    except (MissingExtra, ModelError) as error:
        pytest.skip(f"the model is not installed: {error}")
    chosen = np.array([row["ratings"]["preference"][0] for row in rows]) - 1
    lengths = np.array([len(row["output"].split()) for row in outputs]).reshape(-1, 2)
    right, longer = (
        float((column[range(len(rows)), chosen] > column[range(len(rows)), 1 - chosen]).mean())
        for column in (values, lengths)
    )
    assert right >= 0.66 > longer
