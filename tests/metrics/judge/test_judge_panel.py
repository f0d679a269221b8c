from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from error_codes import raises_code
from metrist.errors import SpecError
from metrist.llm.messages import Completion, Usage
from metrist.llm.replay import FakeLLM
from metrist.metrics.base import Shard
from metrist.metrics.judge.judge import Judge
from metrist.metrics.judge.panel import Panel
from metrist.metrics.registry import build
from metrist.records import Record
from metrist.run.estimate import estimate

RECORD = Record(item="1", system="s", output="Lyon.", instruction="Answer.", references=("Paris",))


def judge(grade, **settings) -> Judge:
    """One that always gives this grade, or none."""

    def answer(*_):
        text = "I do not know." if grade is None else json.dumps({"reasons": f"It is a {grade}.", "quality": grade})
        return Completion(text=text, usage=Usage(cost=0.25))

    return Judge(llm=FakeLLM(answer), rubric="single_answer", **settings)


def voted(vote: str, *grades):
    return Panel(judges=tuple(map(judge, grades)), vote=vote).score(Shard([RECORD]))[0]


@pytest.mark.parametrize(
    ("vote", "grades", "value"),
    [
        ("mean", (1, 2, 6), 3),
        ("median", (1, 2, 6), 2),
        ("median", (1, 2, 6, 8), 4),
        ("majority", (2, 9, 2), 2),
        ("majority", (1, 2, 3), 2),  # As the reliability study settles three raters who all differ.
        ("majority", (1, 1, 3, 3, 9), 2),
        ("mean", (4, None, 6), 5),
        ("majority", (4, None), 4),
    ],
)
def test_the_vote_is_counted_over_those_who_answered(vote, grades, value):
    assert voted(vote, *grades).value == value


def test_empty_outputs_are_counted_once_however_many_judges_there_are():
    panel = Panel(judges=(judge(3), judge(4)), vote="mean")
    scores = panel.score(Shard([RECORD, replace(RECORD, item="2", output=" ")]))
    assert f"{panel.label}: 1 empty output graded like the others" in panel.remarks(scores)


def test_each_judge_and_their_disagreement_are_parts():
    score = voted("mean", 4, None, 6)
    assert score.parts["judge_1"] == 4
    assert math.isnan(score.parts["judge_2"])
    assert score.parts["disagreement"] == 2
    texts = ["judge_1: It is a 4.", "judge_2: the answer has no JSON object", "judge_3: It is a 6."]
    assert score.explanation == "\n\n".join(texts)
    assert score.raw == "judge_2: I do not know."
    assert (score.usage["calls"], score.usage["cost"]) == (3, 0.75)


def test_at_least_half_of_the_judges_must_answer():
    score = voted("mean", 4, None, None)
    assert math.isnan(score.value)
    reason = "the answer has no JSON object"
    assert score.failure == f"only 1 of 3 judges answered (judge_2: {reason}; judge_3: {reason})"
    assert score.raw == "judge_2: I do not know.\n\njudge_3: I do not know."


def test_the_run_is_told_how_often_the_judges_agreed():
    panel = Panel(judges=(judge(4), judge(4), judge(None)))
    remarks = panel.remarks(panel.score(Shard([RECORD, RECORD])))
    texts = "the judges agreed on 2 of 2 outputs; their grades differ by 0 on average"
    assert remarks[0].endswith(f"{texts} (graded: judge_1 2, judge_2 2, judge_3 0)")
    silent = Panel(judges=(judge(None), judge(None)))
    assert silent.remarks(silent.score(Shard([RECORD])))[0].startswith(f"{silent.text}: 0 of 1 output was scored")
    assert len(panel.score(Shard([]))) == 0


def test_a_panel_takes_needs_scale_and_facts_from_its_judges():
    panel = Panel(judges=(judge(4), judge(5, reference="shown")))
    assert panel.needs == ("references",)
    assert panel.bounds == (1, 10)
    assert panel.higher_is_better is True
    assert panel.extra == "llm"
    assert set(panel.facts()) == {"judge_1 rubric", "judge_1 prompt", "judge_2 rubric", "judge_2 prompt"}
    assert np.isfinite(panel.bounds).all()


@pytest.mark.parametrize(
    ("text", "code", "values"),
    [
        ("panel(judges=[judge(llm=openai(model='a'))])", "too_little_data", [1]),
        ("panel(judges=[chrf, chrf])", "invalid_value", ["twice"]),
        ("panel(judges=[chrf, bleu], vote='sum')", "invalid_value", ["vote", "'mean'", "'sum'"]),
        ("panel(judges=[chrf, ter])", "invalid_value", ["chrf and ter", "bounds"]),
        (
            "panel(judges=[judge_pair(llm=openai(model='a')), judge_pair(llm=openai(model='b'))])",
            "invalid_value",
            ["judge_pair(", "panel_pair(judges="],
        ),
        ("panel(judges=judge)", "missing_value", ["judge", "'llm'"]),
        ("panel(judges='judge')", "invalid_value", ["judges", "'judge'"]),
    ],
)
def test_a_panel_that_cannot_vote_is_refused(text, code, values):
    with raises_code(SpecError, code, *values):
        build(text)


def test_judges_of_opposite_directions_are_refused(tmp_path):
    for name, better in (("up", "true"), ("down", "false")):
        levels = 'question = "?"\nlevels = { 1 = "no", 2 = "yes" }'
        (tmp_path / f"{name}.toml").write_text(f"higher_is_better = {better}\n[aspects.a]\n{levels}")
    up, down = (Judge(llm=FakeLLM(lambda *_: ""), rubric=str(tmp_path / f"{name}.toml")) for name in ("up", "down"))
    with raises_code(SpecError, "invalid_value", "higher_is_better", "True", "False"):
        Panel(judges=(up, down))


def test_a_panel_asks_an_llm_where_any_of_its_judges_does(tmp_path):
    rubric = tmp_path / "share.toml"
    rubric.write_text('[aspects.a]\nquestion = "?"\nlevels = { 0 = "no", 1 = "yes" }')
    panel = build(f"panel(judges=[rougeL, judge(llm=openai(model='a'), rubric={str(rubric)!r})])")
    assert panel.extra == "llm"
    rows = [{"item": "1", "system": "s", "output": "a", "references": ["b"]}]
    (question,) = estimate(rows, [panel]).by_llm.values()
    assert question.calls == 1
    assert build("panel(judges=[rougeL, rouge2])").extra is None
