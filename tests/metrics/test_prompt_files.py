"""Prompts that a user's TOML file puts in the place of the shipped ones, such as those of a paper."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from error_codes import raises_code
from metrist.errors import ErrorCode, SpecError
from metrist.llm.messages import Completion, Conversation
from metrist.llm.replay import FakeLLM
from metrist.metrics.base import Shard
from metrist.metrics.errors.error_analysis import ErrorAnalysis
from metrist.metrics.judge.judge import Judge
from metrist.metrics.judge.pair import JudgePair
from metrist.records import Pair, Record

RECORD = Record(item="1", system="s", output="Lyon.", source="What is the capital of France?", instruction="Answer.")
OTHER = Record(item="1", system="t", output="Paris.", source="What is the capital of France?", instruction="Answer.")
RULES = 'judge_rules = """\nYou are asked about Swedish.\n{{reminder}}\n{{rubric}}\n"""\n'
QUESTION = 'judge_question = "{{material}} ({{mark}}) How true is it? {{form}}"\n'


def answer(conversation: Conversation, _: object) -> Completion:
    """Every question of the three metrics gets an answer with its mark."""
    text = conversation[-1].text
    if marked := re.findall(r'"mark": "(\w+)", "errors"', text):
        return Completion(text=json.dumps({"mark": marked[-1], "errors": []}))
    if identified := re.findall(r'"id": "(\w+)"', text):
        grades = {"naturalness": 3, "relatedness": 3, "correctness": 1, "better": "B"}
        return Completion(text=json.dumps({"reasons": "Hm.", **grades, "id": identified[-1]}))
    return Completion(text="I find no errors.")


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_judge_asks_with_the_texts_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "prompt.toml", RULES + QUESTION)
    judge = Judge(llm=(llm := FakeLLM(answer)), templates=path)
    assert judge.score(Shard([RECORD]))[0].value == pytest.approx(7 / 3)
    ((system, user),) = llm.requests
    assert system.text.startswith("You are asked about Swedish.\nEach text that you are given stands between")
    assert re.search(r"\[output (\w+) ends\] \(\1\) How true is it\? \{\"reasons\"", user.text)
    # The same texts are the same metric, wherever the file is; others are another one.
    again = Judge(llm=llm, templates=write(tmp_path / "copy.toml", RULES + QUESTION))
    assert again.facts()["prompt"] == judge.facts()["prompt"] != Judge(llm=llm).facts()["prompt"]
    assert Judge(llm=llm, templates=write(tmp_path / "rules.toml", RULES)).facts()["prompt"] != judge.facts()["prompt"]


def test_a_comparison_and_an_error_analysis_ask_with_the_texts_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "pair.toml", 'judge_pair_rules = "Pick one. {{criteria}} {{reminder}}"')
    pair = JudgePair(llm=(llm := FakeLLM(answer)), templates=path, orders="one")
    assert pair.prefer([Pair(first=RECORD, second=OTHER)])[0].preference in ("first", "second")
    assert llm.requests[0][0].text.startswith("Pick one. Whether the output does what was asked")
    path = write(tmp_path / "errors.toml", 'error_analysis = "List faults. {{reminder}} {{texts}} {{mark}}"')
    analysis = ErrorAnalysis(llm=(llm := FakeLLM(answer)), templates=path)
    assert analysis.score(Shard([RECORD]))[0].errors == ()
    assert llm.requests[0][-1].text.startswith("List faults. Each text that you are given")


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ('judge_rulez = "x"', "unknown_name", "judge_rules"),
        ("judge_rules = 5", "invalid_value", "int"),
        ('judge_question = "{{material}} {{mark}}"', "missing_value", "form"),
        ('judge_question = "{{material}} {{mark}} {{form}} {{key}}"', "unknown_name", "key"),
        ("judge_rules = ", "invalid_value", "prompt.toml"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path, text: str, code: ErrorCode, words: str) -> None:
    path = write(tmp_path / "prompt.toml", text)
    with raises_code(SpecError, code, words):
        Judge(llm=FakeLLM(answer), templates=path)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.toml", tmp_path):
        for metric in (Judge, JudgePair, ErrorAnalysis):
            with raises_code(SpecError, "invalid_value", str(path)):
                metric(llm=FakeLLM(answer), templates=str(path))
