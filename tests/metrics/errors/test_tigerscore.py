"""TIGERScore through a fake LLM: the question to the letter, and what is made of answers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from metrist.llm.messages import Completion, Conversation, Sampling, Usage
from metrist.llm.replay import FakeLLM
from metrist.metrics import registry
from metrist.metrics.base import Shard
from metrist.metrics.errors import tigerscore
from metrist.metrics.errors.answers import WrittenError
from metrist.metrics.errors.tigerscore import TigerScore, build_prompt
from metrist.ratings import Error
from metrist.records import Record
from metrist.scores import Score, Scores

#: As paper 001's public code sends it (the spaces at the ends of three lines are part of it).
PROMPT = (
    "You are evaluating errors in a model-generated output for a given instruction.\n"
    "Instruction: \n"
    "Translate.\n"
    "Der Hund\n"
    "\n"
    "Model-generated Output: \n"
    "The cat\n"
    "\n"
    "For each error you give in the response, please also elaborate the following information:\n"
    "- error location (the words that are wrong in the output)\n"
    "- error aspect it belongs to.\n"
    "- explanation why it's an error, and the correction suggestions.\n"
    '- severity of the error ("Major" or "Minor"). \n'
    "- reduction of score (between 0.5 and 5 given the severity of the error)\n"
    "\n"
    "Your evaluation output:"
)
RECORD = Record(
    item="1", system="a", output="The  quick fox\njumps over the fence", instruction="Translate.", source="S"
)
PLACED = WrittenError(location='"quick Fox"', aspect="Accuracy", explanation="Slow.", severity="Major", penalty=4.0)
INVENTED = WrittenError(location="purple elephants", aspect="Style", explanation="Odd.", severity="Minor", penalty=0.5)

Answer = str | Completion


def scored(answer: Answer | Callable[[Conversation, Sampling], Answer], *records: Record, **settings: object) -> Score:
    texts = answer if callable(answer) else lambda _conversation, _sampling: answer
    metric = TigerScore(llm=FakeLLM(texts), **settings)
    (score,) = metric.score(Shard(records or [RECORD]))
    return score


def test_the_prompt_is_the_checkpoints_own() -> None:
    assert build_prompt("Translate.", "Der Hund", "The cat") == PROMPT


def test_the_question_is_the_prompt_alone_and_greedy() -> None:
    llm = FakeLLM(lambda _conversation, sampling: "" if sampling.temperature else tigerscore.format_tiger_answer([]))
    record = Record(item="1", system="a", output="The cat", instruction="Translate.", source="Der Hund")
    (score,) = TigerScore(llm=llm).score(Shard([record]))
    assert score.value == 0
    ((message,),) = llm.requests
    assert (message.role, message.text) == ("user", PROMPT)


def test_half_characters_are_sent_as_missing_ones() -> None:
    assert "\ufffd" in build_prompt("a", "b", "\ud83d")


def test_the_score_is_minus_the_sum_of_the_penalties() -> None:
    score = scored(tigerscore.format_tiger_answer([PLACED, INVENTED]))
    assert score.value == -4.5
    assert score.parts == {
        "errors": 2.0,
        "penalty_per_100_words": pytest.approx(100 * 4.5 / 7),
        "worst_penalty": 4.0,
        "grounded": 0.5,
        "in_source": 0.0,
        "dropped": 0.0,
        "partial": 0.0,
        "default_instruction": 0.0,
    }
    assert score.explanation is None
    assert score.raw is None


def test_each_error_has_its_place_in_the_output_or_none() -> None:
    located, invented = scored(tigerscore.format_tiger_answer([PLACED, INVENTED])).errors
    assert located == Error(
        aspect="Accuracy", severity="major", penalty=4.0, explanation="Slow.", text="quick fox", start=5, end=14
    )
    assert (invented.start, invented.end, invented.text) == (None, None, "purple elephants")


def test_an_output_without_errors_scores_a_plain_zero() -> None:
    score = scored("The model-generated output contains no errors.")
    assert math.copysign(1, score.value) == 1
    assert score.value == 0
    assert score.parts["penalty_per_100_words"] == score.parts["worst_penalty"] == 0
    assert math.isnan(score.parts["grounded"])


def test_an_empty_output_can_be_scored() -> None:
    record = Record(item="1", system="a", output="", instruction="Translate.")
    assert scored(tigerscore.format_tiger_answer([INVENTED]), record).parts["penalty_per_100_words"] == 50.0


def test_what_cannot_be_read_is_a_failed_score_with_the_raw_answer() -> None:
    score = scored("I would rather not.")
    assert math.isnan(score.value)
    assert score.failure == "the answer has neither a header nor errors in the expected format"
    assert score.raw == "I would rather not."


def test_a_partial_answer_is_scored_with_a_note_and_its_raw_text() -> None:
    answer = tigerscore.format_tiger_answer([PLACED, INVENTED])[:-40]
    score = scored(Completion(text=answer, finish="length", usage=Usage(prompt_tokens=7)))
    assert score.value == -4.0
    assert score.parts["partial"] == 1.0
    assert "truncated" in str(score.explanation)
    assert score.raw == answer


@pytest.mark.parametrize(
    ("task", "instruction"),
    [
        ("translation", "Translate the text."),
        ("data2text", "Describe the data in fluent text."),
        ("instruction/CaseStudy/Base_10", "Do what the source asks for."),
        ("weather", "Do what the source asks for."),
        (None, "Do what the source asks for."),
    ],
)
def test_a_record_without_instruction_is_judged_under_the_usual_one(task: str | None, instruction: str) -> None:
    llm = FakeLLM(lambda *_: "The model-generated output contains no errors.")
    metric = TigerScore(llm=llm)
    scores = metric.score(Shard([Record(item="1", system="a", output="x", source="s", task=task)]))
    assert f"Instruction: \n{instruction}\ns\n" in llm.requests[0][0].text
    assert scores.parts["default_instruction"][0] == 1.0
    assert "1 record has no instruction" in metric.remarks(scores)[-1]


def test_remarks_tell_coverage_grounding_and_odd_answers() -> None:
    answers = iter(
        [
            tigerscore.format_tiger_answer([PLACED, INVENTED]),
            tigerscore.format_tiger_answer([PLACED, INVENTED])[:-40],
            "nothing",
        ]
    )
    metric = TigerScore(llm=FakeLLM(lambda *_: next(answers)))
    # Equal questions are asked once, so each record has a source of its own.
    scores = metric.score(Shard([replace(RECORD, source=source) for source in "abc"]))
    texts = [remark.removeprefix(f"{metric.text}: ") for remark in metric.remarks(scores)]
    assert texts[0].startswith("2 of 3 outputs")
    assert "neither a header" in texts[0]
    assert "best" in texts[1]
    assert any(text.startswith("2 of 4 errors (50.0%)") for text in texts)
    assert any(text.startswith("1 answer was truncated or incomplete") for text in texts)
    assert any(text.startswith("1 answer was irregular") for text in texts)


@pytest.mark.parametrize(
    ("llm", "remarked"),
    [
        ("transformers(model='TIGER-Lab/TIGERScore-7B')", True),
        ("vllm(model='TIGER-Lab/TIGERScore-7B')", True),
        ("openai(model='tigerscore', url='http://127.0.0.1:9/v1')", True),
        ("openai(model='tigerscore', url='http://127.0.0.1:9/v1', turns='none')", False),
        ("transformers(model='TIGER-Lab/TIGERScore-7B', turns='none')", False),
        ("openai(model='gpt-4o-mini')", False),
        ("replay(file='tigerscore.jsonl')", False),
    ],
)
def test_a_published_checkpoint_behind_a_chat_template_is_remarked_on(llm: str, remarked: bool) -> None:
    remarks = registry.build(f"tigerscore(llm={llm})").remarks(Scores.of([Score(value=0.0)]))
    assert len(remarks) == remarked
    assert all("turns='none'" in remark for remark in remarks)


def test_remarks_say_what_was_dropped() -> None:
    metric = TigerScore(llm=FakeLLM(lambda *_: tigerscore.format_tiger_answer([PLACED, INVENTED])), ungrounded="drop")
    assert (
        "1 of 2 errors (50.0%) was located in the output, 1 that were not located were dropped"
        in metric.remarks(metric.score(Shard([RECORD])))[-1]
    )
