"""Answers as files: written, merged, and replayed without a server."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from error_codes import raises_code
from metrist.errors import InputError, ModelError
from metrist.llm import gateway
from metrist.llm.base import build_llm
from metrist.llm.cache import AnswerCache, open_cache
from metrist.llm.estimate import PLACEHOLDER, estimate_calls
from metrist.llm.messages import Completion, Message, Sampling, TokenChoice, Usage
from metrist.llm.replay import Replay, import_answers, read_answers, write_answers
from metrist.scores import FailureKind
from scripted_llm import Scripted, read_log, say

GREEDY = Sampling(max_tokens=100, stop=("END",), schema={"type": "object"})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Answers of one LLM to a, b and c."""
    gateway.complete(Scripted(), say("a", "b", "c"), GREEDY)
    path = tmp_path / "answers.jsonl"
    assert write_answers(open_cache().entries(), path) == 3
    return path


def test_a_line_says_what_was_asked_of_whom_how_and_when(file):
    line = json.loads(file.read_text().splitlines()[0])
    when = datetime.fromisoformat(line.pop("when"))
    assert 0 <= (datetime.now(UTC) - when).total_seconds() < 60
    assert line == {
        "llm": "scripted",
        "facts": {"weights": "w1"},
        "messages": [{"role": "user", "text": "a"}],
        "sampling": {
            "temperature": 0.0,
            "top_p": 1.0,
            "max_tokens": 100,
            "seed": 0,
            "stop": ["END"],
            "schema": {"type": "object"},
            "logprobs": 0,
            "sample": 0,
        },
        "answer": {
            "text": "A",
            "finish": "stop",
            "usage": {"prompt_tokens": 100, "completion_tokens": 50, "seconds": 0.5},
        },
    }


@pytest.mark.parametrize("name", ["answers.jsonl", "answers.jsonl.gz"])
def test_what_is_written_is_read_back(tmp_path, name):
    asked_of = [Message("system", "ä 日本 \ud800"), Message("user", "two\nlines\u2028three")]
    gateway.complete(Scripted(), [asked_of], GREEDY)
    path = tmp_path / name
    write_answers(open_cache().entries(), path)
    (written,), (stored,) = list(read_answers(path)), list(open_cache().entries())
    assert written.request == stored.request
    assert written.request.key == stored.request.key
    assert written.completion == stored.completion
    assert written.arrived == pytest.approx(stored.arrived, abs=0.001)
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith(".")] == []
    if name.endswith(".gz"):
        assert gzip.decompress(path.read_bytes()).startswith(b'{"llm"')


def test_importing_merges_and_what_was_there_stays(file, tmp_path):
    other = AnswerCache(tmp_path / "other")
    assert import_answers(other, file) == (3, 3)
    assert import_answers(other, file) == (3, 0)
    lines = file.read_text().replace('"A"', '"changed"').splitlines()
    file.write_text("\n".join([*lines[:1], "", lines[0].replace('"a"', '"new"'), ""]))
    assert import_answers(other, file) == (2, 1)
    assert sorted(stored.completion.text for stored in other.entries()) == ["A", "B", "C", "changed"]


def test_an_imported_answer_is_not_asked_for(file, monkeypatch, tmp_path):
    monkeypatch.setenv("METRIST_LLM_CACHE", str(tmp_path / "other"))
    import_answers(open_cache(), file)
    log = tmp_path / "asked.txt"
    assert gateway.complete(Scripted(log=str(log)), say("c", "a"), GREEDY)[0].text == "C"
    assert read_log(log) == []


@pytest.mark.parametrize("line", ["{", "[]", '{"when": "2026-01-01T00:00:00+00:00"}'])
def test_a_line_that_is_no_answer_is_refused_with_its_place_and_nothing_is_merged(file, tmp_path, line):
    with file.open("a") as out:
        out.write(line + "\n")
    other = AnswerCache(tmp_path / "other")
    with raises_code(InputError, "unreadable", f"{file}:4", "`metrist answers export`"):
        import_answers(other, file)
    assert not other.exists


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        (("messages", 0, "role"), "judge", "role"),
        (("messages", 0, "text"), None, "text"),
        (("answer", "finish"), "maybe", "finish"),
        (("answer", "text"), 3, "text"),
        (("answer", "failure"), 3, "failure"),
        (("answer", "usage", "prompt_tokens"), "12", "prompt_tokens"),
        (("answer", "usage", "completion_tokens"), -1, "completion_tokens"),
        (("answer", "usage", "completion_tokens"), 10**30, "completion_tokens"),
        (("answer", "usage", "completion_tokens"), True, "completion_tokens"),
        (("answer", "usage", "cost"), "free", "cost"),
        (("answer", "usage", "seconds"), float("nan"), "seconds"),
        (("answer", "usage", "estimated"), 1, "estimated"),
        (("answer", "usage"), [1], "usage"),
        (("sampling", "top_k"), 3, "top_k"),
        (("sampling", "temperature"), "hot", "temperature"),
        (("sampling", "max_tokens"), 1.5, "max_tokens"),
        (("sampling", "stop"), [1], "stop"),
    ],
)
def test_a_field_that_is_wrong_is_refused(file, path, value, why):
    data = json.loads(file.read_text().splitlines()[0])
    inner = data
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    file.write_text(json.dumps(data))
    with raises_code(InputError, "unreadable", f"{file}:1", why):
        list(read_answers(file))


def test_files_that_cannot_be_read_are_told(tmp_path):
    with raises_code(InputError, "unreadable", "no.jsonl"):
        list(read_answers(tmp_path / "no.jsonl"))
    (tmp_path / "broken.jsonl.gz").write_bytes(gzip.compress(b"{}" * 1000)[:-10])
    with raises_code(InputError, "unreadable", "broken.jsonl.gz"):
        list(read_answers(tmp_path / "broken.jsonl.gz"))
    (tmp_path / "bytes.jsonl").write_bytes(b"\xff\xfe")
    with raises_code(InputError, "unreadable", "bytes.jsonl:1"):
        list(read_answers(tmp_path / "bytes.jsonl"))


def test_replay_answers_what_was_recorded_and_fails_on_the_rest(file):
    llm = build_llm(f"replay(file={str(file)!r})")
    answers = gateway.complete(llm, say("c", "unheard", "a"), GREEDY)
    assert [answer.text for answer in answers] == ["C", "", "A"]
    assert answers[1].failure is not None
    assert answers[1].failure.kind == FailureKind.other
    assert answers[1].failure.startswith(f"{file} has no answer")
    assert answers[0].usage == Usage(prompt_tokens=100, completion_tokens=50, cost=0.0, attempts=0, cached=True)
    (other,) = gateway.complete(llm, say("a"), Sampling(max_tokens=50, schema={"type": "array"}))
    assert re.search(r"max_tokens 100 .*50, stop \('END',\) .*\(\), another schema", other.failure or "")


def test_a_schema_in_another_order_is_another_schema(tmp_path):
    there: dict[str, Any] = {"properties": {"a": {}, "b": {}}}
    here: dict[str, Any] = {"properties": {"b": {}, "a": {}}}
    gateway.complete(Scripted(), say("a"), Sampling(schema=there))
    write_answers(open_cache().entries(), tmp_path / "one.jsonl")
    (result,) = gateway.complete(Replay(file=str(tmp_path / "one.jsonl")), say("a"), Sampling(schema=here))
    assert (result.failure or "").endswith("another schema")


def test_an_answer_without_words_is_replayed_as_such(tmp_path, file):
    (stored, *_) = read_answers(file)
    object.__setattr__(stored, "completion", Completion(failure="all of max_tokens was used", finish="length"))
    write_answers([stored], tmp_path / "one.jsonl")
    (result,) = gateway.complete(Replay(file=str(tmp_path / "one.jsonl")), say("a"), GREEDY)
    assert (result.failure, result.finish) == ("all of max_tokens was used", "length")


def test_a_dry_run_counts_what_the_file_holds(file):
    with estimate_calls() as result:
        answers = gateway.complete(Replay(file=str(file)), say("a", "unheard", "c"), GREEDY)
    assert [answer.text for answer in answers] == ["A", PLACEHOLDER, "C"]
    (counted,) = result.by_llm.values()
    assert (counted.calls, counted.answered) == (3, 2)


def test_an_imported_answer_without_the_probabilities_asked_for_is_left_out(tmp_path, file):
    (stored, *rest) = read_answers(file)
    object.__setattr__(stored.request, "sampling", replace(stored.request.sampling, logprobs=2))
    write_answers([stored, *rest], file)
    other = AnswerCache(tmp_path / "other")
    assert import_answers(other, file) == (3, 2)
    assert sorted(one.completion.text for one in other.entries()) == ["B", "C"]


def test_replay_gives_whole_answers(tmp_path):
    answer = Completion(
        text="x", finish="length", structured=True, tokens=(TokenChoice("x", -0.5, (("x", -0.5), ("y", -1.0))),)
    )
    gateway.complete(Scripted(), say("a"), GREEDY)
    (stored,) = open_cache().entries()
    object.__setattr__(stored, "completion", answer)
    write_answers([stored], tmp_path / "one.jsonl")
    (result,) = gateway.complete(Replay(file=str(tmp_path / "one.jsonl")), say("a"), GREEDY)
    assert (result.text, result.finish, result.structured, result.tokens) == ("x", "length", True, answer.tokens)


def test_replay_prints_itself_and_names_what_it_holds(file):
    llm = Replay(file=str(file))
    assert str(llm) == f"replay(file={str(file)!r})"
    assert build_llm(str(llm)) == llm
    before = llm.facts()["answers"]
    file.write_text(file.read_text().replace('"A"', '"B"'))
    assert llm.facts()["answers"] != before


def test_a_file_with_answers_of_several_llms_wants_to_know_which(file):
    gateway.complete(Scripted(model="other"), say("a"), GREEDY)
    write_answers(open_cache().entries(), file)
    with raises_code(ModelError, "model_unusable", "2", "'other'"):
        Replay(file=str(file)).facts()
    (missed,) = gateway.complete(Replay(file=str(file), of="scripted(model='other')"), say("b"), GREEDY)
    assert re.search("but scripted .*of='…'", missed.failure or "")
    assert gateway.complete(Replay(file=str(file), of="scripted"), say("b"), GREEDY)[0].text == "B"
    with raises_code(ModelError, "unknown_name", "'scripted'"):
        Replay(file=str(file), of="scriptd").facts()


def test_answers_of_two_models_of_one_text_are_not_mixed(file):
    gateway.complete(Scripted(weights="w2"), say("b", "d"), GREEDY)
    write_answers(open_cache().entries(), file)
    with raises_code(ModelError, "model_unusable", "2", "'…'", "'weights=w1'"):
        Replay(file=str(file)).facts()
    with raises_code(ModelError, "unknown_name", "weights=w"):
        Replay(file=str(file), fact="weights=w").facts()
    first, second = (Replay(file=str(file), fact=f"weights=w{n}") for n in (1, 2))
    assert [answer.text for answer in gateway.complete(first, say("b", "d"), GREEDY)] == ["B", ""]
    assert [answer.text for answer in gateway.complete(second, say("a", "d"), GREEDY)] == ["", "D"]
    assert build_llm(str(second)) == second


def test_a_file_that_is_missing_or_empty_is_told(tmp_path):
    with raises_code(ModelError, "invalid_value", "no.jsonl"):
        gateway.complete(Replay(file=str(tmp_path / "no.jsonl")), say("a"), GREEDY)
    (tmp_path / "empty.jsonl").write_text("")
    with raises_code(ModelError, "no_data", "empty.jsonl", "`metrist answers export`"):
        gateway.complete(Replay(file=str(tmp_path / "empty.jsonl")), say("a"), GREEDY)
