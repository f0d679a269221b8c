"""`metrist explain` and `metrist aspects`, called as a user calls them, with an LLM that answers from a script."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from metrist.errors import MissingExtra
from metrist.llm import base as llm_catalog
from metrist.llm.base import LLM, Call
from metrist.llm.messages import Completion, Conversation, Sampling
from metrist.metrics.base import Metric, Shard
from metrist.metrics.errors.aspect_tables import read_table
from metrist.metrics.errors.combined import Errors
from metrist.ratings import Error
from metrist.run import score
from metrist.scores import Score, Scores

TIGER = """The model-generated output contains 2 errors, with a total score reduction of 4.5.
Error location 1: number 7
Error aspect 1: Accuracy
Explanation 1: It should be eight.
Severity 1: Major
Score reduction 1: 4
Error location 2: purple elephants
Error aspect 2: Style
Explanation 2: None are there.
Severity 2: Minor
Score reduction 2: 0.5"""

TABLE = {
    "output": "menu",
    "instruction": "Write a menu.",
    "aspects": [
        {"name": name, "definition": f"About {name}.", "errors": [f"{name} {n}" for n in range(5)]}
        for name in ("Dishes", "Prices", "Language")
    ],
}


@dataclass(frozen=True)
class Scripted(LLM):
    """Answers by mood and question."""

    mood: str = "good"
    llm_name: ClassVar[str] = "scripted"
    cacheable: ClassVar[bool] = False
    free: ClassVar[bool] = True

    def complete_batch(self, conversations: Sequence[Conversation], _: Sampling, call: Call) -> list[Completion]:
        done = [self._answer(conversation[-1].text) for conversation in conversations]
        for number, completion in enumerate(done):
            call.deliver(number, completion)
        return done

    def _answer(self, question: str) -> Completion:
        if self.mood == "silent":
            return Completion(failure="the server is asleep")
        if self.mood == "dull":
            return Completion(text="I do not know.")
        if mark := re.search(r'"mark": "(\w+)", "errors"', question):
            error = {"error_location": "a short", "error_aspect": "Clarity", "explanation": "Too short."}
            return _json({"mark": mark[1], "errors": [{**error, "severity": "Minor", "score_reduction": 1}]})
        if "You are evaluating errors" in question:
            return Completion(text=TIGER)
        if "aspects under which errors" in question:
            return _json({"aspects": [f"candidate {n}" for n in range(20)]})
        if "broader aspects" in question:
            return _json({"aspects": ["Dishes", "Prices", "Language"]})
        return _json(TABLE)


@dataclass(frozen=True)
class Marker(Metric):
    """Stands in for a shipped model: marks a word."""

    word: str
    reports_errors = True

    def score_record(self, record: Any) -> Score:
        start = record.output.find(self.word)
        error = Error(aspect="Fluency", severity="minor", penalty=1.0, text=self.word, explanation="It is wrong.",
                      start=start, end=start + len(self.word), source_start=0, source_end=3)  # fmt: skip
        return Score(value=0.5, errors=(error,) if start >= 0 else ())


@pytest.fixture(autouse=True)
def shipped(monkeypatch: pytest.MonkeyPatch) -> dict[str, Metric]:
    """The models that `explain` combines without an LLM, as stand-ins: tests run where none is installed."""
    words = {"consistency": "seven", "fluency": "goed", "translation_quality": "fox"}
    words["fluency beside another model"] = "goed"
    components: dict[str, Metric] = {name: Marker(word) for name, word in words.items()}
    monkeypatch.setattr(Errors, "components", components)
    return components


def _json(value: Any) -> Completion:
    return Completion(text=f"Here it is.\n{json.dumps(value)}")


@pytest.fixture(autouse=True)
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(llm_catalog._BUILTIN, "scripted", (__name__, "Scripted"))


def test_an_llms_errors_are_shown_and_written(metrist, outputs: Path, tmp_path: Path) -> None:
    out = tmp_path / "errors.jsonl"
    answer = metrist("explain", outputs, "--llm", "scripted", "-m", "tigerscore", "--item", "1", "-o", out)
    assert answer.code == 0, answer.err
    assert "item 1 · system good" in answer.out
    assert "tigerscore(llm=scripted): -4.50" in answer.out
    assert "1=======" in answer.out
    assert "  1. major -4 Accuracy “number 7”: It should be eight." in answer.out
    # The output of the system `bad` ends before the number.
    assert "1 of 4 errors (25.0%) was located in the output" in answer.out
    first = json.loads(out.read_text().splitlines()[0])
    error = first["errors"][0]
    assert first["output"][error["start"] : error["end"]] == error["text"] == "number 7"
    assert first["errors"][1]["start"] is None
    # What was written can be shown again without an LLM.
    again = metrist("explain", out)
    assert again.code == 0, again.err
    assert "minor -0.5 Style “purple elephants”: None are there." in again.out


def test_a_failed_judgment_is_reported(metrist, outputs: Path) -> None:
    answer = metrist("explain", outputs, "-m", "tigerscore(llm=scripted(mood='dull'))", "--limit", "2")
    assert answer.code == 2
    assert answer.out.count("the answer: I do not know.") == 2


def test_errors_of_people_are_shown_without_an_llm(metrist, tmp_path: Path) -> None:
    errors = [
        {"start": 4, "end": 7, "text": "cat", "category": "accuracy", "severity": "major", "rater": "R1"},
        {"start": None, "end": None, "text": "gone", "category": "omission", "severity": "minor"},
    ]
    file = write_rows(tmp_path / "judged.jsonl", {"output": "The cat sat.", "errors": errors}, {"output": "Fine."})
    answer = metrist("explain", file)
    assert answer.code == 0, answer.err
    assert "1. major accuracy by R1 “cat”\n" in answer.out
    # The other one is looked at by the models that ship.
    assert "item 2 · system a\nerrors: 0.00\n" in answer.out
    assert "item 2" not in metrist("explain", file, "--limit", 1).out


SOURCE = "The council voted eight to three to close the bridge, and the mayor said so on Monday."


def write_rows(path: Path, *rows: dict[str, Any]) -> Path:
    rows_with_names = ({"item": str(number), "system": "a", **row} for number, row in enumerate(rows, 1))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows_with_names))
    return path


def test_the_shipped_models_find_errors_without_an_llm(metrist, tmp_path: Path) -> None:
    file = write_rows(
        tmp_path / "in.jsonl",
        {"output": "It voted seven to three and goed home.", "source": SOURCE},
        {"output": "It goed."},
        {"output": ""},
        {"output": "Der Hund ist nicht mit der Katze auf dem Dach, und sie sind auch nicht im Haus."},
        {"output": "A fox.", "source": "Ein Hund.", "task": "translation"},
    )
    out = tmp_path / "errors.jsonl"
    answer = metrist("explain", file, "-o", out)
    assert answer.code == 0, answer.err
    # The worst comes first, and failures last.
    assert re.findall(r"item (\d)", answer.out) == ["1", "2", "5", "3", "4"]
    assert "errors: -2.00\n  It voted seven to three and goed home.\n" in answer.out
    assert "  1. minor -1 Fluency by consistency “seven”: It is wrong." in answer.out
    assert "  2. minor -1 Fluency by fluency “goed”: It is wrong." in answer.out
    assert "minor -1 Fluency by translation_quality “fox”" in answer.out
    assert "note: not checked by consistency (there is no source)" in answer.out
    assert "failed: the output is empty" in answer.out
    assert "not checked by fluency (the output is not in English)" in answer.out
    assert "fluency found 2 errors in 3 outputs" in answer.out
    assert "--llm \"openai(model='gpt-4o-mini')\"" in answer.out
    first = json.loads(out.read_text().splitlines()[0])
    assert first["scores"] == {"errors": -2.0}
    assert first["errors"][0] == {
        "aspect": "Fluency", "severity": "minor", "penalty": 1.0, "explanation": "It is wrong.", "text": "seven",
        "start": 9, "end": 14, "rater": "consistency", "source_start": 0, "source_end": 3,
    }  # fmt: skip
    # What was written is shown as what it is.
    again = metrist("explain", out, "--item", "1")
    assert "annotated by consistency, fluency" in again.out


def test_errors_in_later_rows_belong_to_the_output(metrist, tmp_path: Path) -> None:
    error = {"start": 3, "end": 7, "text": "goed", "category": "grammar", "severity": "minor"}
    file = write_rows(
        tmp_path / "in.jsonl",
        {"item": "1", "output": "It goed.", "errors": [{**error, "rater": "ann"}]},
        {"item": "2", "output": "It goed."},
        {"item": "2", "output": "It goed.", "errors": [{**error, "rater": "ann"}]},
        {"item": "1", "output": "It goed.", "errors": [{**error, "rater": "bob"}]},
    )
    answer = metrist("explain", file)
    assert answer.code == 0, answer.err
    assert answer.out.count("item ") == 2
    assert "annotated by ann, bob" in answer.out
    assert "by fluency" not in answer.out


def test_what_was_not_checked_is_said_with_each_output(metrist, tmp_path: Path) -> None:
    file = write_rows(tmp_path / "in.jsonl", {"output": "It goed."}, {"output": "It went."})
    answer = metrist("explain", file)
    assert answer.out.count("note: not checked by consistency (there is no source)") == 2
    assert "\nno errors in what was checked\n" in answer.out
    assert "\nno errors\n" not in answer.out
    assert "2 of 2 outputs were not checked by consistency (there is no source)" in answer.out


def test_packages_that_are_missing_are_named_with_the_command(
    metrist, tmp_path: Path, shipped: dict[str, Metric]
) -> None:
    file = write_rows(tmp_path / "in.jsonl", {"output": "It goed.", "source": SOURCE}, {"output": "It went."})
    shipped["consistency"] = Absent()
    answer = metrist("explain", file)
    assert answer.code == 0
    assert "by fluency “goed”" in answer.out
    assert "pip install 'metrist[standard]'" in answer.out
    shipped["fluency"] = Absent()
    answer = metrist("explain", file)
    assert answer.code == 2
    assert "pip install 'metrist[standard]'" in answer.err
    assert "Traceback" not in answer.err


class Absent(Metric):
    """A metric whose model is not installed."""

    def facts(self) -> Any:
        raise MissingExtra("the shipped model 'metrist:english-small'", "standard")


def test_huge_lines_and_wrong_types_are_no_trouble(metrist, tmp_path: Path) -> None:
    file = write_rows(tmp_path / "in.jsonl", {"output": "x " * 200_000 + "goed", "source": "y " * 200_000})
    answer = metrist("explain", file)
    assert answer.code == 0, answer.err
    assert "by fluency “goed”" in answer.out
    assert len(answer.out) < 5000
    wrong = write_rows(tmp_path / "wrong.jsonl", {"output": {"a": 1}})
    answer = metrist("explain", wrong)
    assert answer.code == 2
    assert answer.err.startswith(f"metrist: {wrong}:1: ")
    (tmp_path / "empty.jsonl").write_text("")
    assert metrist("explain", tmp_path / "empty.jsonl").code == 2


def test_a_runs_errors_are_shown_with_its_texts(metrist, outputs: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    metrics = ("-m", "tigerscore(llm=scripted)", "-m", "length")
    assert metrist("score", outputs, *metrics, "-o", run, "--workers", 1).code == 0
    answer = metrist("explain", run, "--limit", "1")
    assert answer.code == 0, answer.err
    assert "asks for a short" in answer.out
    outputs.rename(tmp_path / "moved.jsonl")
    assert "asks for a short" in metrist("explain", run, "--limit", "1", "-m", "tigerscore").out
    assert "asks for a short" in metrist("explain", run, "--limit", "1", "--texts", tmp_path / "moved.jsonl").out
    assert "'99'" in metrist("explain", run, "--item", "99").err


def test_a_flat_file_of_scores_is_a_run_too(metrist, outputs: Path, tmp_path: Path) -> None:
    flat = tmp_path / "flat.jsonl"
    assert metrist("score", outputs, "-m", "tigerscore(llm=scripted)", "-o", flat, "--workers", 1).code == 0
    answer = metrist("explain", flat, "--texts", outputs, "--system", "good", "--item", "1")
    assert answer.code == 0, answer.err
    assert "item 1 · system good\ntigerscore(llm=scripted): -4.50\n  item 1 asks for a short answer" in answer.out
    without = metrist("explain", flat, "--limit", "1")
    assert "the run does not store the output" in without.out


def test_aspects_are_drafted_for_a_person_to_edit(metrist, tmp_path: Path) -> None:
    out = tmp_path / "menu.toml"
    answer = metrist("aspects", "--task", "Write a menu", "--llm", "scripted", "-o", out)
    assert answer.code == 0, answer.err
    table = read_table(str(out))
    assert table.task == "Write a menu"
    assert (table.output, table.instruction) == ("menu", "Write a menu.")
    assert table.names == ("Dishes", "Prices", "Language")
    assert table.aspects[0].errors == tuple(f"Dishes {n}" for n in range(5))
    assert "# Drafted by scripted, chosen from: candidate 0, candidate 1" in out.read_text()


def test_a_draft_without_a_file_is_printed(metrist) -> None:
    answer = metrist("aspects", "--task", "story", "--llm", "scripted")
    assert answer.out.startswith("# Aspects for: story\n")
    assert "error_analysis(task='story')" in answer.err


@pytest.mark.parametrize(("mood", "reason"), [("dull", "'I do not know.'"), ("silent", "the server is asleep")])
def test_a_failed_draft_says_why(metrist, mood: str, reason: str) -> None:
    answer = metrist("aspects", "--task", "x", "--llm", f"scripted(mood='{mood}')")
    assert answer.code == 2
    assert reason in answer.err


def test_a_dry_run_counts_questions_and_sends_none(metrist, outputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scripted, "complete", lambda *_: pytest.fail("something was sent"))
    explained = ("explain", outputs, "--llm", "scripted", "-m", "tigerscore", "--item", "1")
    drafted = ("aspects", "--task", "Write a menu", "--llm", "scripted")
    for command, questions in ((explained, 2), (drafted, 3)):
        answer = metrist(*command, "--dry-run")
        assert answer.code == 0, answer.err
        assert re.search(rf"scripted +{questions} +0 ", answer.out), answer.out
    assert "no metric asks an LLM" in metrist("explain", outputs, "--dry-run").out


def test_the_cost_limit_applies_to_explanations_and_drafts(
    metrist, outputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Scripted, "free", False)
    limits = [
        metrist("explain", outputs, "--llm", "scripted", "-m", "tigerscore", "--max-cost", "1"),
        metrist("aspects", "--task", "Write a menu.", "--llm", "scripted", "--max-cost", "1"),
    ]
    for answer in limits:
        assert answer.code == 2
        assert "no price" in answer.err


@pytest.mark.parametrize("how", ["as the source", "as the texts"])
def test_the_input_is_not_overwritten(metrist, outputs: Path, tmp_path: Path, how: str) -> None:
    before = outputs.read_text()
    (tmp_path / "link.jsonl").symlink_to(outputs)
    named = [outputs] if how == "as the source" else [tmp_path, "--texts", outputs]
    answer = metrist("explain", *named, "--llm", "scripted", "-o", tmp_path / "link.jsonl")
    assert answer.code == 2
    assert "link.jsonl" in answer.err
    assert outputs.read_text() == before


def test_an_existing_table_is_only_overwritten_on_request(metrist, tmp_path: Path) -> None:
    out = tmp_path / "menu.toml"
    out.write_text("# edited by hand\n")
    again = metrist("aspects", "--task", "Write a menu", "--llm", "scripted", "-o", out)
    assert again.code == 2
    assert "--overwrite replaces it" in again.err
    assert out.read_text() == "# edited by hand\n"
    assert metrist("aspects", "--task", "Write a menu", "--llm", "scripted", "-o", out, "--overwrite").code == 0
    assert read_table(str(out)).names == ("Dishes", "Prices", "Language")


GRADES = '{"reasons": "It is too long.", "naturalness": 2, "relatedness": 3, "correctness": 1}'
JUDGE = f"judge(llm=fake(answers='{GRADES}'))"


@dataclass(frozen=True)
class Reasoning(Metric):
    """Grades by length, says why, and fails on item 3."""

    higher_is_better = False

    def score_record(self, record: Any) -> Score:
        if record.item == "3":
            return Score.failed("no opinion")
        value = float(len(record.output))
        return Score(value=value, explanation=f"It has {value:g} characters.\nThat is all.")


def test_a_runs_reasons_are_shown_worst_first(metrist, outputs: Path, tmp_path: Path) -> None:
    results = score(outputs, [Reasoning(), "length"], out=tmp_path / "run")
    values = results[Reasoning()].values
    answer = metrist("explain", tmp_path / "run", "--limit", 80)
    assert answer.code == 0, answer.err
    shown = [float(number) for number in re.findall(r"It has (\d+) characters\.\nThat is all\.", answer.out)]
    # Lower is better, so the largest number is the worst; failures come last.
    assert shown == sorted(values[~np.isnan(values)].tolist(), reverse=True)
    assert "failed: no opinion" in answer.out.split("It has")[-1]
    assert "  item 0 asks for a short answer" in answer.out
    assert "no errors" not in answer.out


def test_a_part_of_a_judge_is_explained_by_the_whole_judge(metrist, outputs: Path, tmp_path: Path) -> None:
    assert metrist("score", outputs, "-m", f"tone={JUDGE}", "-o", tmp_path / "run").code == 0
    whole = metrist("explain", tmp_path / "run", "-m", "tone")
    part = metrist("explain", tmp_path / "run", "-m", "tone:naturalness")
    assert (part.code, part.out) == (0, whole.out)
    unknown = metrist("explain", tmp_path / "run", "-m", "tone:naturalnes")
    assert (unknown.code, unknown.out) == (2, "")
    assert "naturalness" in unknown.err


def test_a_judge_gives_its_reasons_now(metrist, outputs: Path, tmp_path: Path) -> None:
    out = tmp_path / "reasons.jsonl"
    answer = metrist("explain", outputs, "-m", JUDGE, "--limit", 2, "-o", out)
    assert answer.code == 0, answer.err
    assert answer.out.count("\nreasons: It is too long.") == 2
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert ["It is too long." in json.dumps(row["reasons"]) for row in rows] == [True, True]


def test_judges_reasons_stand_beside_errors(metrist, outputs: Path, tmp_path: Path) -> None:
    score(outputs, [Reasoning(), Finding()], out=tmp_path / "run")
    both = metrist("explain", tmp_path / "run", "--item", "1", "--system", "good")
    assert "1. minor -1 a “cat”" in both.out
    assert "characters.\nThat is all." in both.out
    one = metrist("explain", tmp_path / "run", "--item", "1", "-m", Finding().text)
    assert "That is all." not in one.out


@dataclass(frozen=True)
class Finding(Metric):
    """Finds an error in everything."""

    def score(self, shard: Shard) -> Scores:
        error = Error(aspect="a", severity="minor", penalty=1.0, text="cat", start=4, end=7)
        return Scores.of(Score(value=-1.0, errors=(error,)) for _ in shard.records)


def test_bad_rows_can_be_skipped(metrist, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "in.jsonl", {"output": "a short text"}, {"output": None})
    answer = metrist("explain", path, "--llm", "scripted", "--skip-bad")
    assert answer.code == 0, answer.err
    assert "1 bad row" in answer.out


def test_written_rows_keep_task_language_and_all_letters(metrist, tmp_path: Path) -> None:
    row = {"item": "1", "system": "a", "output": "a short text in Übersetzung", "task": "translation", "language": "de"}
    path, out = write_rows(tmp_path / "in.jsonl", row), tmp_path / "errors.jsonl"
    assert metrist("explain", path, "--llm", "scripted", "-o", out).code == 0
    assert "Übersetzung" in out.read_text(encoding="utf-8")
    written = json.loads(out.read_text(encoding="utf-8"))
    assert {name: written[name] for name in row} == row
