"""Runs whose judge does not answer, or answers what cannot be read: what is kept, shown and asked again."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import metrist
from fault_server import Act, FaultServer, Request, answer, error
from metrist.errors import RunError
from metrist.llm import client
from metrist.run.loading import export
from metrist.run.results import NothingScored

ROWS = [{"item": str(i), "system": "a", "source": "s", "output": f"fine {i}", "instruction": "do"} for i in range(10)]


class Server:
    """Grades all that it is asked, but for the outputs that `fails` and `babbles` name."""

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
    client.reset_server_states()
    acts = Server()
    with FaultServer(acts) as served:
        yield acts, served, f"judge(llm=openai(model='m', url='{served.url}'))"


def test_what_a_server_did_not_answer_is_asked_again_when_the_run_is_completed(server, tmp_path: Path) -> None:
    acts, served, spec = server
    acts.fails = "[123]"
    first = metrist.score(ROWS, spec, out=tmp_path / "run")
    assert sorted(first.scores[spec].failures) == [1, 2, 3]
    assert first.scores[spec].failures[1].startswith("no answer: gave up after 1 attempt")
    acts.fails, before = "nothing", len(served.requests)
    second = metrist.score(ROWS, spec, out=tmp_path / "run")
    assert not second.scores[spec].failures
    assert len(served.requests) - before == 3
    assert not metrist.load(tmp_path / "run").scores[spec].failures


def test_an_answer_that_cannot_be_read_is_work_done(server, tmp_path: Path) -> None:
    acts, served, spec = server
    acts.babbles = "4"
    first = metrist.score(ROWS, spec, out=tmp_path / "run")
    assert sorted(first.scores[spec].failures) == [4]
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("0*.jsonl")}
    asked = len(served.requests)
    metrist.score(ROWS, spec, out=tmp_path / "run")
    assert len(served.requests) == asked
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("0*.jsonl")} == before


class Flaky:
    """Judges in all ways, and fails what `fails` says of a request's text and its model."""

    def __init__(self) -> None:
        self.fails: Callable[[str, str], bool] = lambda _said, _model: False

    def __call__(self, request: Request) -> Act:
        said, model = request.prompt, request.fields["model"]
        if self.fails(said, model):
            return error(500, "overloaded")
        marks = re.findall(r'"mark": "(\w+)"', said)
        if "You decide whether it is real" in said:
            return answer(json.dumps({"mark": marks[-1], "real": "no"}))
        if marks:
            row = {"error_location": "fine", "error_aspect": "A", "explanation": "e", "severity": "Major"}
            return answer(json.dumps({"mark": marks[-1], "errors": [{**row, "score_reduction": 2, "revision": ""}]}))
        grade = 2 if model == "m3" else 3
        grades = {**dict.fromkeys(("naturalness", "relatedness", "correctness"), grade), "better": "tie"}
        mark = re.search(r"carry the mark (\w+)", said)
        return answer(json.dumps({**grades, "id": mark[1]}) if mark else "My analysis.")


@pytest.fixture
def flaky(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Flaky, FaultServer]]:
    monkeypatch.setenv("METRIST_LLM_ATTEMPTS", "1")
    monkeypatch.setenv("METRIST_LLM_CONCURRENCY", "1")
    client.reset_server_states()
    acts = Flaky()
    with FaultServer(acts) as served:
        yield acts, served


def panel(url: str, name: str = "panel", judge: str = "judge") -> str:
    judges = ", ".join(f"{judge}(llm=openai(model='m{number}', url='{url}'))" for number in (1, 2, 3))
    return f"{name}(judges=[{judges}])"


def samples(url: str) -> str:
    return f"error_analysis(llm=openai(model='m', url='{url}'), temperature=0.7, samples=3)"


def second_pass(url: str) -> str:
    return f"error_analysis(llm=openai(model='m', url='{url}'), check='second_pass')"


def third_judge(said: str, model: str) -> bool:
    return model == "m3" and "fine 7" not in said


class FewSamples:
    """Fails every third question about one output, once the server has shown that it works."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, said: str, _model: str) -> bool:
        self.asked += "fine 4" in said
        return "fine 4" in said and self.asked % 3 == 0


def looks(said: str, _model: str) -> bool:
    return "You decide whether it is real" in said and "fine 7" not in said


@pytest.mark.parametrize(
    ("metric", "fails"), [(panel, third_judge), (samples, FewSamples()), (second_pass, looks)], ids=["a", "b", "c"]
)
def test_a_score_in_spite_of_a_missing_answer_is_made_again_when_the_run_is_completed(
    flaky, tmp_path: Path, metric: Callable[[str], str], fails: Callable[[str, str], bool]
) -> None:
    acts, served = flaky
    spec = metric(served.url)
    acts.fails = fails
    first = metrist.score(ROWS, spec, out=tmp_path / "run").scores
    text = next(iter(first))
    wanting = [i for i, said in first[text].explanations.items() if "no answer: gave up after" in said]
    assert wanting
    assert not first[text].failures
    acts.fails, before = lambda _said, _model: False, len(served.requests)
    second = metrist.score(ROWS, spec, out=tmp_path / "run").scores[text]
    asked = len(served.requests) - before
    assert asked >= len(wanting)
    assert not any("no answer" in said for said in second.explanations.values())
    assert list(second.values) == list(metrist.score(ROWS, spec).scores[text].values)
    # Now all is work done, and what had been answered was not asked for again.
    metrist.score(ROWS, spec, out=tmp_path / "run")
    assert len(served.requests) - before == asked < len(served.requests) / 2


@pytest.mark.parametrize("judge", ["panel_pair", "panel"])
def test_a_choice_in_spite_of_a_missing_answer_is_made_again_when_the_run_is_completed(
    flaky, tmp_path: Path, judge: str
) -> None:
    acts, served = flaky
    rows = [*ROWS, *({**row, "system": "b", "output": f"{row['output']} too"} for row in ROWS)]
    spec = panel(served.url, "panel_pair", "judge_pair") if judge == "panel_pair" else panel(served.url)
    acts.fails = third_judge
    first = metrist.prefer(rows, spec, out=tmp_path / "run")
    acts.fails, before = lambda _said, _model: False, len(served.requests)
    second = metrist.prefer(rows, spec, out=tmp_path / "run")
    # Two questions about each of nine pairs, and what it may take to learn again what the server can do.
    assert 18 <= len(served.requests) - before < 22
    before = len(served.requests)
    metrist.prefer(rows, spec, out=tmp_path / "run")
    assert len(served.requests) == before
    told = [" ".join(one.explanation or "" for one in next(iter(run.judgments.values()))) for run in (first, second)]
    assert ["no answer:" in said for said in told] == [True, False]


def read_flat(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    if path.suffix == ".csv":
        with path.open() as file:
            return [{**row, "raw": row["raw"] or None} for row in csv.DictReader(file)]
    import pyarrow.parquet

    return pyarrow.parquet.read_table(path).to_pylist()


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_the_answer_behind_a_failure_is_in_every_file(server, tmp_path: Path, suffix: str) -> None:
    acts, _, spec = server
    acts.babbles = "4"
    results = metrist.score(ROWS, [spec, "length"], out=tmp_path / "run")
    export(tmp_path / "run", tmp_path / f"out.{suffix}")
    for rows in (read_flat(tmp_path / f"out.{suffix}"), list(results.rows())):
        told = {(row["item"], row["metric"]): row["raw"] for row in rows}
        assert told.pop(("4", spec)) == "I like it very much."
        assert set(told.values()) == {None}


def test_a_file_with_raw_answers_reads_back(server, tmp_path: Path) -> None:
    acts, _, spec = server
    acts.babbles = "4"
    metrist.score(ROWS, spec, out=tmp_path / "out.jsonl")
    assert metrist.load(tmp_path / "out.jsonl").scores[spec].raws == {4: "I like it very much."}


def test_files_without_raw_answers_have_no_column_for_them(tmp_path: Path) -> None:
    metrist.score(ROWS, "length", out=tmp_path / "out.jsonl")
    assert "raw" not in read_flat(tmp_path / "out.jsonl")[0]


def test_answers_none_of_which_can_be_read_end_the_run_and_are_there_to_be_looked_at(server, tmp_path: Path) -> None:
    acts, _, spec = server
    acts.babbles = r"\d"
    said = r"failed on all 10 records: .*; the first answer: 'I like it very much.' \(all of it is in .*run\)"
    with pytest.raises(NothingScored, match=said) as fault:
        metrist.score(ROWS, spec, out=tmp_path / "run")
    assert len(fault.value.results.scores[spec].raws) == 10
    export(tmp_path / "run", tmp_path / "flat.jsonl")
    assert {row["raw"] for row in read_flat(tmp_path / "flat.jsonl")} == {"I like it very much."}
    with pytest.raises(RunError, match="failed on all 10 records"):
        metrist.score(ROWS, spec, out=tmp_path / "out.jsonl")
    assert len(read_flat(tmp_path / "out.jsonl")) == 10


def test_failures_of_several_kinds_end_the_run_as_those_of_one_kind_do(server) -> None:
    acts, _, spec = server
    acts.babbles, acts.fails = "[1-9]", "0"
    with pytest.raises(RunError, match=r"failed on all 10 records, most often \(9\): the answer .*; the first answer"):
        metrist.score(ROWS, spec)


def test_a_long_answer_is_shown_by_its_beginning() -> None:
    from metrist.run.results import describe_failures

    said = describe_failures("judge", "records", ["unread", "unread"], ["word\n" * 100])
    assert said.endswith(f"; the first answer: {('word ' * 40 + '…')!r}")
    assert describe_failures("m", "pairs", ["one", "two"], [""]) == "m failed on all 2 pairs, such as: one"


def test_the_closing_note_has_the_most_frequent_reason(server) -> None:
    acts, _, spec = server
    acts.fails, acts.babbles = "0", "[456]"
    notes = metrist.score(ROWS, spec).table().notes
    assert any(re.search(r"4 of 10 outputs not scored, most often \(3\): the answer", note) for note in notes)
