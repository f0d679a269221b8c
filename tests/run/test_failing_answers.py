"""Runs whose judge does not answer, or whose answers cannot be parsed: what is stored, shown and requested again."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import metrist
from error_codes import raises_code
from fault_server import Act, FaultServer, Request, answer, error
from metrist.errors import RunError
from metrist.llm import openai
from metrist.run.loading import export
from metrist.run.results import NothingScored

ROWS = [{"item": str(i), "system": "a", "source": "s", "output": f"fine {i}", "instruction": "do"} for i in range(10)]


class Server:
    """Grades every output, except those that the patterns `fails` and `babbles` match."""

    def __init__(self) -> None:
        self.fails = self.babbles = "nothing"

    def __call__(self, request: Request) -> Act:
        if re.search(rf"fine {self.fails}\b", request.prompt):
            return error(500, "overloaded")
        if re.search(rf"fine {self.babbles}\b", request.prompt):
            return answer("I like it very much.")
        mark = re.search(r"carry the mark (\w+)", request.prompt)
        grades = {"naturalness": 3, "relatedness": 3, "correctness": 3}
        return answer(json.dumps({**grades, "id": mark[1]}) if mark else "hello")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Server, FaultServer, str]]:
    monkeypatch.setenv("METRIST_LLM_ATTEMPTS", "1")
    openai.reset_server_states()
    judge_server = Server()
    with FaultServer(judge_server) as fault_server:
        yield judge_server, fault_server, f"judge(llm=openai(model='m', url='{fault_server.url}'))"


def test_missing_answers_are_requested_again_when_the_run_is_resumed(server, tmp_path: Path) -> None:
    judge_server, fault_server, spec = server
    judge_server.fails = "[123]"
    first = metrist.score(ROWS, spec, out=tmp_path / "run")
    assert sorted(first.scores[spec].failures) == [1, 2, 3]
    assert first.scores[spec].failures[1].startswith("no answer: gave up after 1 attempt")
    judge_server.fails, before = "nothing", len(fault_server.requests)
    second = metrist.score(ROWS, spec, out=tmp_path / "run")
    assert not second.scores[spec].failures
    assert len(fault_server.requests) - before == 3
    assert not metrist.load(tmp_path / "run").scores[spec].failures


def test_unparsable_answers_are_not_requested_again(server, tmp_path: Path) -> None:
    judge_server, fault_server, spec = server
    judge_server.babbles = "4"
    first = metrist.score(ROWS, spec, out=tmp_path / "run")
    assert sorted(first.scores[spec].failures) == [4]
    requests = len(fault_server.requests)
    metrist.score(ROWS, spec, out=tmp_path / "run")
    assert len(fault_server.requests) == requests


class Flaky:
    """Answers all kinds of judges; fails requests for which `fails(text, model)` is true."""

    def __init__(self) -> None:
        self.fails: Callable[[str, str], bool] = lambda _text, _model: False

    def __call__(self, request: Request) -> Act:
        text, model = request.prompt, request.fields["model"]
        if self.fails(text, model):
            return error(500, "overloaded")
        marks = re.findall(r'"mark": "(\w+)"', text)
        if "You decide whether it is real" in text:
            return answer(json.dumps({"mark": marks[-1], "real": "no"}))
        if marks:
            row = {"error_location": "fine", "error_aspect": "A", "explanation": "e", "severity": "Major"}
            return answer(json.dumps({"mark": marks[-1], "errors": [{**row, "score_reduction": 2, "revision": ""}]}))
        grade = 2 if model == "m3" else 3
        grades = {**dict.fromkeys(("naturalness", "relatedness", "correctness"), grade), "better": "tie"}
        mark = re.search(r"carry the mark (\w+)", text)
        return answer(json.dumps({**grades, "id": mark[1]}) if mark else "My analysis.")


@pytest.fixture
def flaky(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Flaky, FaultServer]]:
    monkeypatch.setenv("METRIST_LLM_ATTEMPTS", "1")
    monkeypatch.setenv("METRIST_LLM_CONCURRENCY", "1")
    openai.reset_server_states()
    judge_server = Flaky()
    with FaultServer(judge_server) as fault_server:
        yield judge_server, fault_server


def panel(url: str, name: str = "panel", judge: str = "judge") -> str:
    judges = ", ".join(f"{judge}(llm=openai(model='m{number}', url='{url}'))" for number in (1, 2, 3))
    return f"{name}(judges=[{judges}])"


def samples(url: str) -> str:
    return f"error_analysis(llm=openai(model='m', url='{url}'), temperature=0.7, samples=3)"


def second_pass(url: str) -> str:
    return f"error_analysis(llm=openai(model='m', url='{url}'), check='second_pass')"


def third_judge(text: str, model: str) -> bool:
    return model == "m3" and "fine 7" not in text


class FewSamples:
    """Fails every third request about one output, after the first requests succeeded."""

    def __init__(self) -> None:
        self.requests = 0

    def __call__(self, text: str, _model: str) -> bool:
        self.requests += "fine 4" in text
        return "fine 4" in text and self.requests % 3 == 0


def second_pass_fails(text: str, _model: str) -> bool:
    return "You decide whether it is real" in text and "fine 7" not in text


@pytest.mark.parametrize(
    ("metric", "fails"),
    [(panel, third_judge), (samples, FewSamples()), (second_pass, second_pass_fails)],
    ids=["a", "b", "c"],
)
def test_scores_with_a_missing_answer_are_computed_again_when_the_run_is_resumed(
    flaky, tmp_path: Path, metric: Callable[[str], str], fails: Callable[[str, str], bool]
) -> None:
    judge_server, fault_server = flaky
    spec = metric(fault_server.url)
    judge_server.fails = fails
    first = metrist.score(ROWS, spec, out=tmp_path / "run").scores
    metric_text = next(iter(first))
    incomplete = [i for i, text in first[metric_text].explanations.items() if "no answer: gave up after" in text]
    assert incomplete
    assert not first[metric_text].failures
    judge_server.fails, before = lambda _text, _model: False, len(fault_server.requests)
    second = metrist.score(ROWS, spec, out=tmp_path / "run").scores[metric_text]
    requests = len(fault_server.requests) - before
    assert requests >= len(incomplete)
    assert not any("no answer" in text for text in second.explanations.values())
    assert list(second.values) == list(metrist.score(ROWS, spec).scores[metric_text].values)
    # Now the run is complete, and earlier answers were not requested again.
    metrist.score(ROWS, spec, out=tmp_path / "run")
    assert len(fault_server.requests) - before == requests < len(fault_server.requests) / 2


@pytest.mark.parametrize("judge", ["panel_pair", "panel"])
def test_choices_with_a_missing_answer_are_made_again_when_the_run_is_resumed(
    flaky, tmp_path: Path, judge: str
) -> None:
    judge_server, fault_server = flaky
    rows = [*ROWS, *({**row, "system": "b", "output": f"{row['output']} too"} for row in ROWS)]
    spec = panel(fault_server.url, "panel_pair", "judge_pair") if judge == "panel_pair" else panel(fault_server.url)
    judge_server.fails = third_judge
    first = metrist.prefer(rows, spec, out=tmp_path / "run")
    judge_server.fails, before = lambda _text, _model: False, len(fault_server.requests)
    second = metrist.prefer(rows, spec, out=tmp_path / "run")
    # Two requests for each of nine pairs, and some to probe the server's features again.
    assert 18 <= len(fault_server.requests) - before < 22
    before = len(fault_server.requests)
    metrist.prefer(rows, spec, out=tmp_path / "run")
    assert len(fault_server.requests) == before
    texts = [
        " ".join(judgment.explanation or "" for judgment in next(iter(run.judgments.values())))
        for run in (first, second)
    ]
    assert ["no answer:" in text for text in texts] == [True, False]


def read_flat(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    if path.suffix == ".csv":
        with path.open() as file:
            return [{**row, "raw": row["raw"] or None} for row in csv.DictReader(file)]
    import pyarrow.parquet

    return pyarrow.parquet.read_table(path).to_pylist()


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_every_format_has_the_raw_answer_of_a_failure(server, tmp_path: Path, suffix: str) -> None:
    judge_server, _, spec = server
    judge_server.babbles = "4"
    results = metrist.score(ROWS, [spec, "length"], out=tmp_path / "run")
    export(tmp_path / "run", tmp_path / f"out.{suffix}")
    for rows in (read_flat(tmp_path / f"out.{suffix}"), list(results.rows())):
        raws = {(row["item"], row["metric"]): row["raw"] for row in rows}
        assert raws.pop(("4", spec)) == "I like it very much."
        assert set(raws.values()) == {None}


def test_a_file_with_raw_answers_reads_back(server, tmp_path: Path) -> None:
    judge_server, _, spec = server
    judge_server.babbles = "4"
    metrist.score(ROWS, spec, out=tmp_path / "out.jsonl")
    assert metrist.load(tmp_path / "out.jsonl").scores[spec].raws == {4: "I like it very much."}


def test_files_without_raw_answers_have_no_column_for_them(tmp_path: Path) -> None:
    metrist.score(ROWS, "length", out=tmp_path / "out.jsonl")
    assert "raw" not in read_flat(tmp_path / "out.jsonl")[0]


def test_a_run_without_any_parsable_answer_fails_and_keeps_the_answers(server, tmp_path: Path) -> None:
    judge_server, _, spec = server
    judge_server.babbles = r"\d"
    with raises_code(NothingScored, "metric_failed", "10", "'I like it very much.'", tmp_path / "run") as fault:
        metrist.score(ROWS, spec, out=tmp_path / "run")
    assert len(fault.value.results.scores[spec].raws) == 10
    export(tmp_path / "run", tmp_path / "flat.jsonl")
    assert {row["raw"] for row in read_flat(tmp_path / "flat.jsonl")} == {"I like it very much."}
    with raises_code(RunError, "metric_failed", "10", "out.jsonl"):
        metrist.score(ROWS, spec, out=tmp_path / "out.jsonl")
    assert len(read_flat(tmp_path / "out.jsonl")) == 10


def test_a_run_that_fails_for_several_reasons_names_the_most_frequent_one(server) -> None:
    judge_server, _, spec = server
    judge_server.babbles, judge_server.fails = "[1-9]", "0"
    with raises_code(RunError, "metric_failed", "10", "(9)", "I like it very much."):
        metrist.score(ROWS, spec)


def test_a_long_answer_is_shortened() -> None:
    from metrist.report.scores import describe_failures

    text = describe_failures("judge", "records", ["unread", "unread"], ["word\n" * 100])
    assert text.endswith(f"; the first answer: {('word ' * 40 + '…')!r}")
    assert describe_failures("m", "pairs", ["one", "two"], [""]) == "m failed on all 2 pairs, such as: one"


def test_the_closing_note_has_the_most_frequent_reason(server) -> None:
    judge_server, _, spec = server
    judge_server.fails, judge_server.babbles = "0", "[456]"
    notes = metrist.score(ROWS, spec).table().remarks
    expected = r"6 of 10 outputs were scored; most frequent failure \(3\): the answer .*, such as '"
    assert sum(bool(re.search(expected, note)) for note in notes) == 1
    assert not any("not scored" in note for note in notes)  # It is said once.
