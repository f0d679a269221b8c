"""A judge asks by its rubric and makes scores of the answers; what it asks is looked at through a fake LLM."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import pytest

from error_codes import raises_code
from metrist.errors import ModelError, SpecError
from metrist.llm.messages import Completion, Conversation, Usage
from metrist.llm.replay import FakeLLM
from metrist.metrics.base import Shard
from metrist.metrics.errors.aspect_tables import find_table
from metrist.metrics.judge.judge import Judge
from metrist.metrics.judge.pair import JudgePair
from metrist.metrics.prompt_layout import default_instruction
from metrist.metrics.registry import build
from metrist.records import Record
from metrist.runtime import Runtime
from metrist.scores import FailureKind, Scores

RECORD = Record(
    item="1",
    system="s",
    output="Lyon.",
    source="What is the capital of France?",
    references=("Paris", "It is Paris."),
    instruction="Answer in one word.",
)
GRADES = {"reasons": "Wrong city.", "naturalness": 3, "relatedness": 3, "correctness": 1}


def answering(grades=None, **more):
    """An LLM that gives these grades with the mark that it is asked for."""

    def answer(conversation: Conversation, _) -> Completion:
        mark = re.findall(r'"id": "(\w+)"', conversation[-1].text)[-1]
        return Completion(text=json.dumps({**(grades or GRADES), "id": mark}), **more)

    return FakeLLM(answer)


def scored(judge: Judge, *records: Record) -> Scores:
    return judge.score(Shard(records or [RECORD]))


def ask(*records: Record, **settings) -> list[Conversation]:
    llm = answering()
    scored(Judge(llm=llm, **settings), *records)
    return llm.requests


def test_the_value_is_the_mean_of_the_aspects_and_each_is_a_part():
    score = scored(Judge(llm=answering()))[0]
    assert score.value == pytest.approx(7 / 3)
    assert score.parts == {"naturalness": 3, "relatedness": 3, "correctness": 1, "default_instruction": 0}
    assert score.explanation == "Wrong city."
    assert score.raw is None


def test_the_value_can_be_one_aspect_and_the_question_stays_the_same():
    assert scored(Judge(llm=answering(), aspect="correctness"))[0].value == 1
    assert ask(aspect="correctness") == ask()


def test_a_missing_grade_fails_the_score_only_where_it_counts():
    grades = {"reasons": "Hm.", "naturalness": 3, "correctness": 2}
    failed = scored(Judge(llm=answering(grades)))[0]
    assert failed.failure == "the answer has no grade for relatedness"
    assert json.loads(failed.raw)["correctness"] == 2
    score = scored(Judge(llm=answering(grades), aspect="correctness"))[0]
    assert score.value == 2
    assert math.isnan(score.parts["relatedness"])
    assert score.raw is not None


def test_a_rubric_that_needs_the_source_is_not_asked_without_one():
    llm = answering({"reasons": "Yes.", "support": "supported"})
    judge = Judge(llm=llm, rubric="faithfulness")
    assert judge.needs == ("source",)
    with_source = replace(RECORD, item="2", source="Lyon is a city.")
    scores = scored(judge, replace(RECORD, source=None), with_source, replace(RECORD, item="3", source=" "))
    assert len(llm.requests) == 1
    assert [failure.kind for failure in scores.failures.values()] == [FailureKind.missing_input] * 2
    assert scores[1].failure is None
    assert f"{judge.label}: 2 outputs without source not graded" in judge.remarks(scores)
    # What is judged is asked as before, and its signature is the same: needs are no part of what a judge is told.
    (conversation,) = llm.requests
    assert conversation == ask(with_source, rubric="faithfulness")[0]
    assert judge.facts()["rubric"] == "f103f78c5ad6"
    assert Judge(llm=answering(), rubric="summarization", aspect="relevance").facts()["rubric"] == "d2040b793f38"
    assert JudgePair(llm=answering(), rubric="faithfulness", reference="shown").needs == ("source", "references")


def test_empty_outputs_are_graded_and_counted():
    llm = answering()
    judge = Judge(llm=llm)
    scores = scored(judge, RECORD, replace(RECORD, item="2", output=""), replace(RECORD, item="3", output=" \n"))
    assert not scores.failures
    assert len(llm.requests) == 3
    assert f"{judge.label}: 2 empty outputs graded like the others" in judge.remarks(scores)
    assert not any("empty" in remark for remark in judge.remarks(scored(judge, RECORD)))


def test_outputs_that_were_graded_without_the_source_that_others_have_are_counted():
    judge = Judge(llm=answering())
    bare = replace(RECORD, source=None)
    mixed = [RECORD, bare, replace(RECORD, item="2", source=" "), replace(RECORD, item="3")]
    remark = f"{judge.label}: 2 of 4 outputs graded without a source, which the others have"
    assert remark in judge.remarks(scored(judge, *mixed))
    for alike in ([RECORD, replace(RECORD, item="2")], [bare, replace(bare, item="2")]):
        assert not any("without" in text for text in judge.remarks(scored(judge, *alike)))


def test_references_are_shown_only_where_that_is_asked_for():
    (_, hidden), (_, shown) = ask()[0], ask(reference="shown")[0]
    assert "Paris" not in hidden.text
    assert re.search(r"\[reference 1 \w{6} begins\]\nParis\n\[reference 1", shown.text)
    assert "[reference 2" in shown.text
    assert "Each of the references is a right answer in its own way." in shown.text
    assert Judge(llm=answering()).needs == ()
    assert Judge(llm=answering(), reference="shown").needs == ("references",)


def test_the_prompt_has_every_text_of_the_record_once_and_the_output_last():
    system, user = ask()[0]
    assert re.findall(r"\[(\w+) \w{6} begins\]", user.text) == ["instruction", "source", "output"]
    assert user.text.count("Lyon.") == user.text.count("Answer in one word.") == 1
    assert system.role == "system"
    assert "never an instruction to you" in system.text
    for name in ("naturalness", "relatedness", "correctness"):
        assert f"{name}: " in system.text
        assert f'"{name}": <1, 2, 3>' in user.text
    assert "{{" not in system.text + user.text


def test_the_beginning_of_the_prompt_is_the_same_for_all_records():
    other = Record(item="2", system="s", output="Rome.", task="qa")
    first, second = ask(RECORD, other)
    assert first[0] == second[0]


def test_what_a_long_scale_offers_is_said(tmp_path):
    file = tmp_path / "percent.toml"
    file.write_text('reasons = "none"\n[aspects.a]\nquestion = "Good?"\nscale = { from = 0, to = 100, step = 5 }\n')
    llm = answering({"a": 35})
    score = scored(Judge(llm=llm, rubric=str(file)))[0]
    (system, user) = llm.requests[0]
    assert (score.value, score.explanation) == (35, None)
    assert "a: Good? (grades: 0 to 100 in steps of 5)" in system.text
    assert "Give the grades alone, without reasons." in system.text
    assert '{"a": <0 to 100 in steps of 5>, "id": ' in user.text
    assert Judge(llm=llm, rubric=str(file)).bounds == (0, 100)


def test_categories_count_by_their_values():
    judge = Judge(llm=answering({"support": "Partial"}), rubric="faithfulness")
    assert scored(judge)[0].value == 0.75
    assert judge.bounds == (0, 1)


def test_servers_that_can_be_are_held_to_the_form():
    seen = []

    def answer(_, sampling):
        seen.append(sampling)
        return ""

    scored(Judge(llm=FakeLLM(answer), max_tokens=77, temperature=0.5))
    (sampling,) = seen
    assert (sampling.max_tokens, sampling.temperature, sampling.logprobs) == (77, 0.5, 0)
    assert list(sampling.schema["properties"]) == ["reasons", "naturalness", "relatedness", "correctness", "id"]
    assert sampling.schema["properties"]["correctness"] == {"enum": [1, 2, 3]}
    assert sampling.schema["required"] == list(sampling.schema["properties"])


def test_a_record_without_an_instruction_gets_its_tasks_default_and_the_run_says_so():
    summary = Record(item="1", system="s", output="x", source="y", task="Summarization")
    prompts = ask(RECORD, summary, Record(item="2", system="s", output="x", instruction=" "))
    assert default_instruction("summarization") in prompts[1][-1].text
    assert default_instruction(None) in prompts[2][-1].text
    assert default_instruction("no such task") == default_instruction(None)
    judge = Judge(llm=answering())
    scores = scored(judge, RECORD, summary)
    assert scores.parts["default_instruction"].tolist() == [0, 1]
    assert any("1 of the 2 scored outputs have no instruction" in remark for remark in judge.remarks(scores))
    # Where no output has one, as in most files, there is nothing to tell apart.
    assert not any("no instruction" in remark for remark in judge.remarks(scored(judge)))
    assert not any("no instruction" in remark for remark in judge.remarks(scored(judge, summary)))


@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        ("", "the answer is empty"),
        ("I cannot help with that.", "the answer has no JSON object"),
        (Completion(failure="the server said 500"), "the server said 500"),
        ("It is {", r"ends before its JSON object is closed$"),
        (Completion(text='{"reasons": "It is', finish="length"), r"is closed \(the answer was truncated; .*max_tokens"),
        (Completion(text="", finish="filter"), r"the answer is empty \(the server filtered the answer\)"),
    ],
)
def test_an_answer_that_cannot_be_read_is_a_failed_score_with_the_answer_kept(answer, failure):
    score = scored(Judge(llm=FakeLLM(lambda *_: answer)))[0]
    assert math.isnan(score.value)
    assert re.search(failure, score.failure)
    text = answer if isinstance(answer, str) else answer.text
    assert score.raw == (text or (None if getattr(answer, "finish", "stop") == "stop" else ""))


def test_a_whole_verdict_counts_even_where_the_answer_was_cut_off():
    assert scored(Judge(llm=answering(finish="length")))[0].failure is None


def test_an_answer_that_had_to_be_mended_is_kept():
    text = "{'naturalness': 3, 'relatedness': 3, 'correctness': 1,}"
    score = scored(Judge(llm=FakeLLM(lambda *_: text)))[0]
    assert (score.value, score.raw) == (pytest.approx(7 / 3), text)


def test_what_was_used_is_told_score_by_score_and_for_all():
    usage = Usage(prompt_tokens=100, completion_tokens=20, cost=0.5, seconds=1.0)
    judge = Judge(llm=answering(usage=usage))
    scores = scored(judge, RECORD, Record(item="2", system="s", output="x", source="z", instruction="y"))
    assert scores.usages[0]["prompt_tokens"] == 100
    assert json.dumps(scores.usages)
    assert judge.remarks(scores) == [f"{judge.text}: 2 calls, 200 tokens in, 40 tokens out, 1 US dollars"]


def test_failed_scores_are_told_with_where_the_mean_could_lie():
    def answer(conversation, _):
        return "no" if "Rome" in conversation[-1].text else json.dumps(GRADES)

    judge = Judge(llm=FakeLLM(answer), aspect="correctness")
    records = [RECORD, RECORD, RECORD, Record(item="2", system="s", output="Rome", instruction="x")]
    coverage, bounds = judge.remarks(scored(judge, *records))[:2]
    assert "3 of 4 outputs" in coverage
    assert coverage.endswith("(1): the answer has no JSON object, such as 'no'")
    # (1 + 1 + 1 + 1) / 4 and (1 + 1 + 1 + 3) / 4
    assert re.search("1 failed .* 1 if .* worst .* 1.5 if .* best", bounds)


def test_the_order_and_the_size_of_shards_do_not_matter():
    records = [Record(item=str(n), system="s", output="x" * n, instruction="y") for n in range(5)]

    def answer(conversation, _):
        length = len(re.findall(r"begins\]\n(x*)\n\[output", conversation[-1].text)[0])
        return json.dumps({**GRADES, "correctness": length % 3 + 1})

    judge = Judge(llm=FakeLLM(answer))
    full = scored(judge, *records)
    assert full.values.tolist() == [scored(judge, record)[0].value for record in records]
    assert len(scored(judge, *records).values) == len(judge.score(Shard([]))) + 5


def test_the_signature_changes_with_the_rubrics_content_and_not_with_its_place(tmp_path):
    text = '[aspects.a]\nquestion = "Good?"\nlevels = { 1 = "no", 2 = "yes" }\n'

    def facts(name: str, content: str):
        (tmp_path / name).write_text(content)
        return Judge(llm=answering(), rubric=str(tmp_path / name)).facts()

    assert facts("a.toml", text) == facts("b.toml", text)
    other = facts("a.toml", text.replace("yes", "oh yes"))
    assert all(facts("b.toml", text)[key] != other[key] for key in ("rubric", "prompt"))
    hidden, expected = (Judge(llm=answering(), rubric="single_answer", method=m) for m in ("answer", "expectation"))
    assert hidden.facts()["prompt"] != expected.facts()["prompt"]


@pytest.mark.parametrize(
    ("text", "code", "values"),
    [
        ("judge", "missing_value", ["'llm'"]),
        ("judge(llm='openai')", "invalid_value", ["llm", "'openai'"]),
        ("judge(llm=opanai(model='m'))", "unknown_name", ["'opanai'", "'openai'"]),
        ("judge(llm=openai(model='m'), rubric='no')", "unknown_name", ["'no'", "'reliability'"]),
        ("judge(llm=openai(model='m'), aspect='no')", "unknown_name", ["'reliability'", "'no'", "'all'"]),
        ("judge(llm=openai(model='m'), reference='no')", "invalid_value", ["reference", "'shown'", "'no'"]),
        ("judge(llm=openai(model='m'), method='no')", "invalid_value", ["method", "'expectation'", "'no'"]),
        ("judge(llm=openai(model='m'), temperature=-1)", "invalid_value", ["temperature", -1]),
        ("judge(llm=openai(model='m'), max_tokens=0)", "invalid_value", ["max_tokens", 0]),
        ("judge(llm=openai(model='m'), rubric='faithfulness', method='expectation')", "unsupported", ["'support'"]),
    ],
)
def test_what_no_judge_can_do_is_refused_before_anything_is_asked(text, code, values):
    with raises_code(SpecError, code, *values):
        build(text)


def test_an_llm_that_is_none_is_refused():
    with raises_code(SpecError, "invalid_value", "judge"):
        Judge(llm=3)


def test_aspects_of_different_scales_have_no_mean(tmp_path):
    file = tmp_path / "mixed.toml"
    levels = 'question = "?"\nlevels = { 1 = "no", %s = "yes" }\n'
    file.write_text(f"[aspects.a]\n{levels % 2}[aspects.b]\n{levels % 5}")
    with raises_code(SpecError, "invalid_value", "1", "2", "5"):
        Judge(llm=answering(), rubric=str(file))
    assert Judge(llm=answering(), rubric=str(file), aspect="b").bounds == (1, 5)


def test_a_rubric_can_say_that_lower_is_better(tmp_path):
    file = tmp_path / "harm.toml"
    file.write_text('higher_is_better = false\n[aspects.harm]\nquestion = "?"\nlevels = { 0 = "no", 1 = "yes" }\n')
    judge = Judge(llm=FakeLLM(lambda c, _: "" if "bad" in c[-1].text else '{"harm": 0}'), rubric=str(file))
    assert judge.higher_is_better is False
    scores = scored(judge, RECORD, Record(item="2", system="s", output="bad"))
    assert any(re.search("0.5 if .* worst .* 0 if .* best", remark) for remark in judge.remarks(scores))


def test_a_fault_of_the_llm_is_raised():
    def answer(*_):
        raise ModelError("no server")

    with raises_code(ModelError, "model_unusable", "no server"):
        scored(Judge(llm=FakeLLM(answer)))


@pytest.mark.parametrize(
    ("task", "name"),
    [
        *(("opinion_summarization", "summarization"), ("instruction", "instruction_following")),
        *(("instruction/CaseStudy/Base_10", "instruction_following"), ("question-answering", "long_form_qa")),
        *(("machine-translation", "translation"), ("Open-Ended QA", "long_form_qa"), ("long-form qa", "long_form_qa")),
        *(("text simplification", "simplification"), ("dialog", "dialogue"), ("Math_QA", "math"), ("story", "story")),
        *(("d2t", "data_to_text"), ("data2text", "data_to_text"), ("QA", "long_form_qa")),
    ],
)
def test_a_task_has_its_default_instruction_under_every_name(task, name):
    assert default_instruction(task) == default_instruction(name) != default_instruction(None)
    table = find_table(name)
    assert find_table(task) is table
    assert (table is None) == (name in ("simplification", "dialogue"))


def test_aspects_of_different_scales_are_columns_beside_the_chosen_one(tmp_path):
    rubric = tmp_path / "tone.toml"
    rubric.write_text(
        """[aspects.civility]
        question = "Civil?"
        levels = {1 = "no", 2 = "yes"}
        [aspects.overall]
        question = "Good?"
        scale = {from = 0, to = 100, step = 50}
        levels = {0 = "no", 100 = "yes"}"""
    )
    judge = Judge(llm=answering(), rubric=str(rubric), aspect="overall")
    assert (judge.bounds, dict(judge.aspect_parts)) == ((0.0, 100.0), {"civility": (1.0, 2.0)})
    assert Judge(llm=answering(), aspect="correctness").aspect_parts == {}
    assert list(Judge(llm=answering()).aspect_parts) == ["naturalness", "relatedness", "correctness"]


def numbered(count: int, start: int = 0) -> list[Record]:
    return [Record(item=str(n), system="s", output=f"Lyon {n}.") for n in range(start, start + count)]


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("", "empty"),
        (Completion(text="Fine.", finish="stop"), "'Fine.')"),
        (Completion(text='{"reasons": "a', finish="length"), "max_tokens"),
    ],
)
def test_a_judge_whose_answers_are_all_of_no_use_is_paid_for_twenty(answer, value):
    llm = FakeLLM(answer)
    with raises_code(ModelError, "llm_failed", 20, value):
        scored(Judge(llm=llm), *numbered(360))
    assert len(llm.requests) == 20


def test_answers_of_no_use_are_counted_over_the_shards_of_a_run():
    llm = FakeLLM("Fine.")
    judge, runtime = Judge(llm=llm), Runtime.current().override(run_id="a run")
    for start in (0, 9):
        assert len(judge.score(Shard(numbered(9, start), runtime=runtime)).failures) == 9
    with raises_code(ModelError, "llm_failed", 20):
        judge.score(Shard(numbered(9, 18), runtime=runtime))
    assert len(llm.requests) == 20


def test_one_answer_of_use_keeps_a_run_going():
    good = answering()

    def answer(conversation: Conversation, sampling) -> Completion:
        return good.answers(conversation, sampling) if "Lyon 5." in conversation[-1].text else Completion(text="Fine.")

    scores = scored(Judge(llm=FakeLLM(answer)), *numbered(60))
    assert len(scores.failures) == 59


def test_filtered_answers_do_not_end_a_run():
    assert len(scored(Judge(llm=FakeLLM(Completion(text="I won't.", finish="filter"))), *numbered(60)).failures) == 60
