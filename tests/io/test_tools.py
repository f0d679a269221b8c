"""Files of other evaluation tools. Those of inspect_ai 0.3.285, lm-eval 0.4.13, promptfoo 0.123.1, deepeval 4.3.1 and
ragas 0.4.3 were written by these packages and shortened; those of Braintrust, OpenAI evals and FastChat follow the
layouts in their public repositories and API references."""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import zstandard

from error_codes import raises_code
from metrist.cli import runs as command
from metrist.errors import InputError
from metrist.io import ParsedRow, read_records
from metrist.io import convert as formats
from metrist.io.convert import KINDS, convert, detect
from metrist.io.slices import cut_file

Write = Callable[..., Path]


def read(path: Path, **options: Any) -> list[ParsedRow]:
    return list(read_records(path, **options).entries())


def fields(row: ParsedRow) -> dict[str, Any]:
    """What a row says of its only output."""
    (record,) = row.records
    names = ("item", "system", "output", "source", "instruction", "references", "task")
    scores = {score.metric: score.value for score in row.scores}
    return {name: getattr(record, name) for name in names if getattr(record, name)} | {"scores": scores}


def sample(name: str, **values: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": "It is Paris", "source": "generate"}
    score = {"value": "C", "answer": "It is Paris", "explanation": "It is Paris"}
    return {
        "id": name,
        "epoch": 1,
        "input": "Capital of France?",
        "target": "Paris",
        "output": {"model": "mockllm/model", "choices": [{"message": message, "stop_reason": "stop"}]},
        "scores": {"includes": score, "graded": {"value": {"style": 0.5, "note": "fine"}}},
        "metadata": {"topic": "geo"},
        **values,
    }


HEADER = {"version": 2, "status": "success", "eval": {"task": "geo", "model": "mockllm/model"}, "plan": {}}
EXPECTED = {
    "item": "a",
    "system": "mockllm/model",
    "output": "It is Paris",
    "source": "Capital of France?",
    "references": ("Paris",),
    "task": "geo",
    "scores": {"includes": 1.0, "graded/style": 0.5},
}


@pytest.mark.parametrize("indent", [None, 2])
def test_a_log_of_inspect_ai_is_read(write: Write, indent: int | None) -> None:
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Who?"}]}]
    samples = [sample("a"), sample("a", epoch=2), sample("b", input=chat, target=["Ann", "Bob"], scores=None)]
    path = write(json.dumps({**HEADER, "samples": samples}, indent=indent), "log.json")
    first, second, third = map(fields, read(path))
    assert first == EXPECTED
    assert second["item"] == "a#2"
    assert (third["instruction"], third["source"], third["references"]) == ("Be brief.", "Who?", ("Ann", "Bob"))
    assert detect(path) == "inspect_ai"
    assert [row["item"] for row in convert(path)] == ["a", "a#2", "b"]


def zip_with_zstandard(path: Path, members: dict[str, Any]) -> Path:
    """Write an archive as inspect_ai does, with entries of method 93, which Python's zipfile does not write."""
    sizes = {}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            text = json.dumps(content).encode()
            sizes[name] = len(text)
            archive.writestr(name, zstandard.compress(text))
        places = {info.filename: info.header_offset for info in archive.infolist()}
    data = bytearray(path.read_bytes())
    central = data.index(b"PK\x01\x02")
    for name, size in sizes.items():
        struct.pack_into("<H", data, places[name] + 8, 93)
        struct.pack_into("<H", data, central + 10, 93)
        struct.pack_into("<I", data, central + 24, size)
        central = data.find(b"PK\x01\x02", central + 4)
    path.write_bytes(data)
    return path


def test_an_archive_of_inspect_ai_is_read(tmp_path: Path) -> None:
    members = {
        "_journal/start.json": {"eval": {"model": "another"}},
        "samples/a_epoch_1.json": sample("a"),
        "samples/b_epoch_1.json": sample("b", output={"choices": [], "completion": ""}, error={"message": "time"}),
        "header.json": HEADER,
    }
    path = zip_with_zstandard(tmp_path / "log.eval", members)
    with raises_code(InputError, "invalid_row", "log.eval:2", "'b'"):
        read(path)
    reader = read_records(path, skip_bad=True)
    assert [fields(row) for row in reader.entries()] == [EXPECTED]
    assert reader.skipped.count == 1
    assert detect(path) == "inspect_ai"
    plain = tmp_path / "plain.eval"
    with zipfile.ZipFile(plain, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, json.dumps(content))
    assert fields(read(plain, skip_bad=True)[0]) == EXPECTED


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 and no more", b'{"version": 2}'])
def test_a_damaged_archive_is_refused(write: Write, content: bytes) -> None:
    with raises_code(InputError, "unreadable", "log.eval"):
        read(write(content, "log.eval"))


def test_an_archive_that_unpacks_to_gigabytes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METRIST_MAX_UNPACKED", "100000")
    path = zip_with_zstandard(tmp_path / "log.eval", {"header.json": HEADER, "samples/a.json": "x" * 1_000_000})
    with raises_code(InputError, "too_large", "log.eval"):
        read(path)


QUESTION = "Q: Capital of France?\nA:"
GENERATED = {
    "doc_id": 0,
    "doc": {"question": "Capital of France?", "answer": "Paris"},
    "target": "Paris",
    "arguments": {"gen_args_0": {"arg_0": QUESTION, "arg_1": {"until": ["\n"]}}},
    "resps": [["It is Paris."]],
    "filtered_resps": ["Paris"],
    "filter": "none",
    "metrics": ["exact_match"],
    "exact_match": 1.0,
}
CHOSEN = {
    **GENERATED,
    "doc": {"choices": ["Paris", "Rome"]},
    "target": "0",
    "arguments": {name: {"arg_0": QUESTION, "arg_1": f" {name}"} for name in ("Paris", "Rome")},
    "resps": [[["-2.5", "False"]], [["-0.5", "False"]]],
    "filtered_resps": [["-2.5", "False"], ["-0.5", "False"]],
    "metrics": ["acc"],
    "acc": 0.0,
}


def test_sample_logs_of_lm_eval_are_read(write: Write) -> None:
    filtered = {**GENERATED, "filter": "strict", "exact_match": 0.0}
    path = write([GENERATED, filtered], "samples_geo.jsonl")
    first, second = map(fields, read(path, system="small"))
    assert first == {
        "item": "0",
        "system": "small",
        "output": "It is Paris.",
        "source": QUESTION,
        "references": ("Paris",),
        "scores": {"exact_match,none": 1.0},
    }
    assert second["scores"] == {"exact_match,strict": 0.0}
    (choice,) = map(fields, read(write([CHOSEN], "samples_choice.jsonl")))
    assert (choice["output"], choice["references"], choice["scores"]) == ("Rome", ("Paris",), {"acc,none": 0.0})
    assert detect(path) == "lm_eval"


def result(test: int, prompt: str, **values: Any) -> dict[str, Any]:
    named = {"score": 0, "assertion": {"type": "levenshtein", "metric": "edit"}}
    parts = [{"score": 1, "assertion": {"type": "contains"}}, named]
    asserted = [{"type": "levenshtein", "value": "Paris"}, {"type": "contains", "value": "France"}]
    return {
        "testIdx": test,
        "promptIdx": 0,
        "provider": {"id": "echo", "label": ""},
        "prompt": {"raw": f"{prompt} of France?", "label": prompt},
        "vars": {"country": "France"},
        "response": {"output": "Paris"},
        "gradingResult": {"pass": True, "score": 1, "componentResults": parts},
        "namedScores": {"edit": 0.25},
        "score": 0.5,
        "testCase": {"assert": asserted},
        **values,
    }


def test_results_of_promptfoo_are_read_as_a_document_and_by_line(write: Write) -> None:
    results = [result(0, "Capital"), result(0, "City"), result(1, "City", response={"output": {"city": "Rome"}})]
    document = {"evalId": "eval-1", "results": {"version": 3, "prompts": [], "results": results}, "config": {}}
    path = write(json.dumps(document, indent=2), "out.json")
    expected = {
        "item": "0",
        "system": "echo",
        "output": "Paris",
        "instruction": "Capital of France?",
        "references": ("Paris",),
        "scores": {"promptfoo": 0.5, "contains": 1.0, "edit": 0.25},
    }
    for source in (path, write(results, "out.jsonl"), write(json.dumps(document), "line.json")):
        first, second, third = map(fields, read(source))
        assert first == expected
        assert (second["system"], second["item"]) == ("echo prompt 2", "0")
        assert (third["item"], third["output"]) == ("1", '{"city": "Rome"}')
    assert detect(path) == "promptfoo"


def test_an_output_that_promptfoo_did_not_get_is_a_bad_row(write: Write) -> None:
    path = write([result(0, "Capital"), result(1, "Capital", response=None, error="timed out")], "out.jsonl")
    with raises_code(InputError, "invalid_row", "out.jsonl:2"):
        read(path)
    assert len(read(path, skip_bad=True)) == 1


def test_test_runs_and_data_sets_of_deepeval_are_read(write: Write) -> None:
    case = {
        "name": "a",
        "input": "Capital?",
        "actualOutput": "Paris",
        "expectedOutput": "Paris, France",
        "retrievalContext": ["France is a country.", "It has a capital."],
        "metricsData": [{"name": "Exact", "score": 0.0, "reason": "differs"}],
        "order": 0,
    }
    run = {"testCases": [case], "metricsScores": [], "hyperparameters": {"model": "small"}, "testPassed": 0}
    expected = {
        "item": "0",
        "system": "small",
        "output": "Paris",
        "source": "France is a country.\n\nIt has a capital.",
        "instruction": "Capital?",
        "references": ("Paris, France",),
        "scores": {"Exact": 0.0},
    }
    path = write(json.dumps(run), "run.json")
    for source in (path, write(json.dumps({"testRunData": run}), ".latest_test_run.json")):
        assert [fields(row) for row in read(source)] == [expected]
    assert detect(path) == "deepeval"
    golden = {"input": "Capital?", "actual_output": "Paris", "expected_output": "Rome", "retrieval_context": None}
    (row,) = map(fields, read(write(json.dumps([golden]), "goldens.json")))
    assert row == {
        "item": "1",
        "system": "goldens",
        "output": "Paris",
        "source": "Capital?",
        "references": ("Rome",),
        "scores": {},
    }


def test_conversations_and_results_of_ragas_are_read(write: Write) -> None:
    turns = [("human", "Hi"), ("ai", "Hello"), ("human", "Capital?"), ("ai", "Paris")]
    conversation = [{"content": text, "type": kind} for kind, text in turns]
    path = write([{"user_input": conversation, "reference": "Paris"}], "turns.jsonl")
    (row,) = map(fields, read(path))
    assert (row["output"], row["source"]) == ("Paris", "Human: Hi\n\nAssistant: Hello\n\nHuman: Capital?")
    single = {"user_input": "Capital?", "retrieved_contexts": ["France."], "response": "Paris", "reference": "Paris"}
    scored, plain = write([{**single, "faithfulness": 0.5}], "scored.jsonl"), write([single], "plain.jsonl")
    (first,), (second,) = map(fields, read(scored, system="s")), map(fields, read(plain, system="s"))
    assert first == {**second, "scores": {"faithfulness": 0.5}}
    assert (first["source"], first["instruction"], first["output"]) == ("France.", "Capital?", "Paris")
    assert detect(path) == detect(scored) == "ragas"


def test_only_the_roots_of_braintrusts_spans_are_outputs(write: Write) -> None:
    root = {
        "id": "a",
        "span_id": "1",
        "root_span_id": "1",
        "is_root": True,
        "input": {"question": "Capital?"},
        "output": {"answer": "Paris"},
        "expected": "Paris",
        "scores": {"exact": 1, "judged": None},
        "metadata": {"model": "small", "topic": "geo"},
    }
    child = {**root, "id": "b", "span_id": "2", "is_root": False}
    path = write(json.dumps([root, child]), "export.json")
    assert [fields(row) for row in read(path)] == [
        {
            "item": "a",
            "system": "small",
            "output": "Paris",
            "source": "Capital?",
            "references": ("Paris",),
            "scores": {"exact": 1.0},
        }
    ]
    assert detect(path) == "braintrust"


def test_the_log_of_oaieval_joins_events_by_sample(write: Write) -> None:
    prompt = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Capital?"}]
    sampling = {"sample_id": "geo.0", "type": "sampling", "data": {"prompt": prompt, "sampled": ["Paris"]}}
    judged = {"sample_id": "geo.0", "type": "sampling", "data": {"prompt": "Is it right?", "sampled": ["Yes"]}}
    match = {"sample_id": "geo.0", "type": "match", "data": {"correct": True, "expected": "Paris", "picked": "Paris"}}
    other = {"sample_id": "geo.1", "type": "metrics", "data": {"score": 0.5}}
    late = {"sample_id": "geo.1", "type": "sampling", "data": {"prompt": "Who?", "sampled": "Ann"}}
    spec = {"spec": {"completion_fns": ["small"], "eval_name": "geo.dev.v0"}}
    path = write([spec, {"final_report": {"accuracy": 1.0}}, other, sampling, judged, match, late], "log.jsonl")
    rows = {row["item"]: row for row in map(fields, read(path))}
    assert rows["geo.0"] == {
        "item": "geo.0",
        "system": "small",
        "output": "Paris",
        "source": "Capital?",
        "instruction": "Be brief.",
        "references": ("Paris",),
        "scores": {"match": 1.0},
    }
    assert (rows["geo.1"]["output"], rows["geo.1"]["scores"]) == ("Ann", {"score": 0.5})
    assert detect(path) == "openai_evals"


def test_output_items_of_the_evals_api_are_read(write: Write) -> None:
    item = {
        "object": "eval.run.output_item",
        "id": "outputitem_1",
        "datasource_item_id": 5,
        "datasource_item": {"ticket": "My monitor is black", "expected": "Hardware"},
        "results": [{"name": "match", "type": "string_check", "score": 1.0, "passed": True}],
        "sample": {
            "input": [{"role": "user", "content": "My monitor is black"}],
            "output": [{"role": "assistant", "content": "Hardware"}],
            "model": "small",
        },
    }
    path = write(json.dumps({"object": "list", "data": [item]}), "items.json")
    (row,) = read(path)
    assert fields(row) == {
        "item": "5",
        "system": "small",
        "output": "Hardware",
        "source": "My monitor is black",
        "references": ("Hardware",),
        "scores": {"match": 1.0},
    }


ANSWER = {
    "question_id": 81,
    "answer_id": "x",
    "model_id": "small",
    "choices": [{"index": 0, "turns": ["Once", "Then"]}],
}
PAIR = {"question_id": 81, "model_1": "small", "model_2": "large", "judge": ["gpt-4", "pair-v2"], "turn": 2}
GAMES = [("model_1", "model_1", "first"), ("model_1", "model_2", "tie"), ("tie", "model_2", "tie")]


@pytest.mark.parametrize(("one", "other", "choice"), [*GAMES, ("model_2", "model_2", "second")])
def test_a_pair_of_mt_bench_is_won_in_both_orders(write: Write, one: str, other: str, choice: str) -> None:
    # As in FastChat's show_result.py, which also leaves out judgments with an error.
    failed = {**PAIR, "g1_winner": "error", "g2_winner": "model_1"}
    path = write([{**PAIR, "g1_winner": one, "g2_winner": other}, failed], "gpt-4_pair.jsonl")
    (row,) = read(path)
    (preference,) = row.preferences
    assert (preference.item, preference.first, preference.second) == ("81:2", "small", "large")
    assert (preference.rater, preference.choice) == ("gpt-4", choice)


def test_answers_questions_and_grades_of_mt_bench_belong_together(write: Write) -> None:
    question = {"question_id": 81, "category": "writing", "turns": ["Begin.", "Go on."], "reference": ["A", "B"]}
    grade = {"question_id": 81, "model": "small", "judge": ["gpt-4", "single-v1"], "score": 9, "turn": 2}
    files = [
        write([question], "question.jsonl"),
        write([ANSWER], "small.jsonl"),
        write([grade, {**grade, "turn": 1, "score": -1}], "gpt-4_single.jsonl"),
    ]
    assert {detect(path) for path in files} == {"arena"}
    first, second, judged = convert(*files)
    assert (first["item"], first["source"], first["output"], first["references"]) == ("81", "Begin.", "Once", ["A"])
    assert second["source"] == "Human: Begin.\n\nAssistant: Once\n\nHuman: Go on."
    assert (second["item"], second["output"], second["category"]) == ("81:2", "Then", "writing")
    assert judged == {"item": "81:2", "system": "small", "scores": {"gpt-4": 9.0}}


def test_votes_of_the_arena_are_read_with_and_without_texts(write: Write) -> None:
    vote = {"question_id": "q", "model_a": "small", "model_b": "large", "winner": "tie (bothbad)", "judge": "ann"}
    (row,) = read(write([vote], "votes.jsonl"))
    assert [(p.item, p.first, p.second, p.rater, p.choice) for p in row.preferences] == [
        ("q", "small", "large", "ann", "tie")
    ]
    talks = {
        f"conversation_{side}": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": text}]
        for side, text in (("a", "Hello"), ("b", "Yo"))
    }
    path = write([{**vote, **talks, "winner": "model_b"}], "battles.jsonl")
    (converted,) = convert(path)
    assert (converted["outputs"], converted["ratings"]) == (["Hello", "Yo"], {"preference": 2})
    with raises_code(InputError, "invalid_row", "wrong.jsonl"):
        read(write([{**vote, "winner": "nobody"}], "wrong.jsonl"))
    unnamed = {name: value for name, value in vote.items() if name != "question_id"}
    assert [row.preferences[0].item for row in read(write([vote, unnamed], "unnamed.jsonl"))] == ["q", "2"]


@pytest.mark.parametrize("missing", ["question_id", "model_id"])
def test_an_answer_of_mt_bench_without_question_or_model_is_a_bad_row(write: Write, missing: str) -> None:
    second = {name: value for name, value in ANSWER.items() if name != missing}
    with raises_code(InputError, "invalid_row", "answers.jsonl:2", missing):
        read(write([ANSWER, second], "answers.jsonl"))


def test_a_file_of_another_tool_is_named(write: Write) -> None:
    path = write([GENERATED], "samples.jsonl")
    announced: list[str] = []
    read(path, announce=announced.append)
    assert "format = lm_eval" in announced[0]
    with raises_code(InputError, "invalid_value", "samples.jsonl"):
        list(convert(path, kind="promptfoo"))
    assert [row["system"] for row in convert(path, system="small", task="qa")] == ["small"]


def test_rows_that_depend_on_earlier_ones_are_read_by_one_process(write: Write) -> None:
    path = write([result(n, "Capital") for n in range(50)], "out.jsonl")
    assert len(cut_file(read_records(path), 0, 1000)) == 0
    own = write([{"item": str(n), "system": "a", "output": "x" * 50} for n in range(50)], "own.jsonl")
    assert len(cut_file(read_records(own), 0, 1000)) > 1


def test_the_command_knows_every_format() -> None:
    assert get_args(command.Kind) == KINDS == get_args(formats.Kind)
