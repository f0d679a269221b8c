"""Runs whose judge does not answer, or answers what cannot be read: what is kept, shown and asked again."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import metrist
from fault_server import Act, FaultServer, Request, answer, error
from metrist.errors import RunError
from metrist.models.llm import capabilities
from metrist.run.loading import export
from metrist.run.results import NothingScored

ROWS = [{"item": str(i), "system": "a", "source": "s", "output": f"fine {i}", "instruction": "do"} for i in range(10)]


class Server:
    """Grades all that it is asked, but for the outputs that `fails` and `babbles` name."""

    def __init__(self) -> None:
        self.fails = self.babbles = "nothing"

    def __call__(self, request: Request) -> Act:
        if re.search(rf"fine {self.fails}\b", request.said):
            return error(500, "overloaded")
        if re.search(rf"fine {self.babbles}\b", request.said):
            return answer("I like it very much.")
        mark = re.search(r"carry the mark (\w+)", request.said)
        grades = {"naturalness": 3, "relatedness": 3, "correctness": 3}
        return answer(json.dumps({**grades, "id": mark[1]}) if mark else "hello")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Server, FaultServer, str]]:
    monkeypatch.setenv("METRIST_LLM_ATTEMPTS", "1")
    capabilities.forget()
    acts = Server()
    with FaultServer(acts) as served:
        yield acts, served, f"judge(llm=openai(model='m', url='{served.url}'))"


def test_what_a_server_did_not_answer_is_asked_again_when_the_run_is_completed(server, tmp_path: Path) -> None:
    acts, served, spec = server
    acts.fails = "[123]"
    first = metrist.score(ROWS, spec, out=tmp_path / "run")
    assert sorted(first.scores[spec].failures) == [1, 2, 3]
    assert first.scores[spec].failures[1].startswith("no answer came: given up after 1 attempt; the last one: ")
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


def read_flat(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    if path.suffix == ".csv":
        with path.open() as file:
            return [{**row, "raw": row["raw"] or None} for row in csv.DictReader(file)]
    import pyarrow.parquet

    return pyarrow.parquet.read_table(path).to_pylist()  # type: ignore[no-any-return]


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
    from metrist.run.summary import failed_on_all

    said = failed_on_all("judge", "records", ["unread", "unread"], ["word\n" * 100])
    assert said.endswith(f"; the first answer: {('word ' * 40 + '…')!r}")
    assert failed_on_all("m", "pairs", ["one", "two"], [""]) == "m failed on all 2 pairs, such as: one"


def test_the_closing_note_has_the_most_frequent_reason(server) -> None:
    acts, _, spec = server
    acts.fails, acts.babbles = "0", "[456]"
    notes = metrist.score(ROWS, spec).table().notes
    assert any(re.search(r"4 of 10 outputs not scored, most often \(3\): the answer", note) for note in notes)
