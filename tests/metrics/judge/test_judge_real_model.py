"""A judge with a real LLM that can follow a rubric: from outputs to grades, and by a file of its answers to the same.

`METRIST_TEST_QWEN` names the folder of a small instruction-tuned model, such as Qwen2.5-0.5B-Instruct: some gigabytes,
so it is never downloaded here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from metrist.io import read_records
from metrist.llm.cache import open_cache
from metrist.llm.replay import write_answers
from metrist.metrics.judge.rubrics import load_rubric
from metrist.run import Results, score

pytestmark = pytest.mark.skipif(
    not os.environ.get("METRIST_TEST_QWEN"), reason="METRIST_TEST_QWEN names no folder of an instruction-tuned model"
)


@pytest.fixture
def outputs(data: Callable[[str], Path]) -> list[Any]:
    """The worst and the best output of the two shortest texts of SummEval."""
    by_item: dict[str, list[Any]] = {}
    for entry in read_records(data("summeval")).entries():
        rated = {rating.aspect: rating.value for rating in entry.ratings}
        for record in entry.new:
            by_item.setdefault(record.item, []).append((sum(rated.values()), record.system, record))
    shortest = sorted(by_item.values(), key=lambda some: len(some[0][2].source or ""))[:2]
    return [one[2] for some in shortest for one in (min(some[:9]), max(some[:9]))]


def judged(outputs: list[Any], llm: str) -> Results:
    rows = [{"item": one.item, "system": one.system, "source": one.source, "output": one.output} for one in outputs]
    return score(rows, [f"judge(llm={llm}, rubric='single_answer', max_tokens=250)"])


def test_a_real_judge_gives_grades_and_its_answers_give_them_again(outputs: list[Any], tmp_path: Path) -> None:
    result = judged(outputs, f"transformers(model={os.environ['METRIST_TEST_QWEN']!r})")
    (scores,) = result.scores.values()
    levels = {level.value for level in load_rubric("single_answer").aspects[0].levels}
    assert len(scores.failures) <= 1
    assert {score.value for score in scores if score.failure is None} <= levels
    assert write_answers(open_cache().entries(), tmp_path / "answers.jsonl") == len(outputs)
    (again,) = judged(outputs, f"replay(file={str(tmp_path / 'answers.jsonl')!r})").scores.values()
    assert [json.dumps(score.parts) for score in again] == [json.dumps(score.parts) for score in scores]
    assert again.explanations == scores.explanations
    assert again.failures == scores.failures
