"""Projects: schemas, who gets which task, the folder, answers, agreement, attention, and exports that commands read."""

from __future__ import annotations

import json
import random
import stat
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import metrist
from annotation_projects import answer_all, clicker, make_project, make_rows, open_answers
from error_codes import raises_code
from metrist.data.judgments import read_judgments
from metrist.errors import ErrorCode, InputError, RunError, SpecError
from metrist.evaluate.explain.questionnaire import read_answers, summarise_answers
from metrist.io.writer import write_rows
from metrist.web.annotation.answers import Answers, Disputes, check_click, describe_dispute
from metrist.web.annotation.export import export_disputes, export_rows, write_export
from metrist.web.annotation.project import open_project
from metrist.web.annotation.schemas import Schema, load_schema, load_schemas
from metrist.web.annotation.setup import set_up
from metrist.web.annotation.store import Click

MARK = {"id": "m1", "start": 0, "end": 6, "side": "output", "aspect": "Accuracy", "severity": "major", "note": "no"}


# ---- Schemas


def test_the_scales_of_the_reliability_study_are_1_to_3() -> None:
    schema = load_schema("reliability")
    assert [question.name for question in schema.questions] == ["naturalness", "relatedness", "correctness"]
    assert {choice.value for question in schema.questions for choice in question.choices} == {1.0, 2.0, 3.0}


@pytest.mark.parametrize("name", ["likert", "pairwise", "errors", "questionnaire", "faithfulness", "summarization"])
def test_schemas_survive_json(name: str) -> None:
    schema = load_schema(name)
    assert Schema.from_dict(json.loads(json.dumps(schema.to_dict()))) == schema


def test_a_rubric_is_a_file_that_judges_use(tmp_path: Path) -> None:
    path = tmp_path / "rubric.toml"
    path.write_text('[aspects.tone]\nquestion = "Is it civil?"\n[aspects.tone.levels]\n0 = "No."\n1 = "Yes."\n')
    (question,) = load_schema(str(path)).questions
    assert (question.name, question.text) == ("tone", "Is it civil?")
    assert [question.accepts(value) for value in (1.0, 2.0)] == [True, False]
    with raises_code(SpecError, "unknown_name", "likrt", "likert"):
        load_schema("likrt")
    with raises_code(SpecError, "unknown_name", "tune", "tone"):
        load_schema(str(path), aspects=["tune"])


def test_criteria_give_the_questions_and_the_names_of_their_points() -> None:
    fluency, own = load_schema("likert", aspects=["fluency", "house style"]).questions
    assert (fluency.text, own.text) == ("Judge how smoothly the output reads.", "house style")
    assert [choice.meaning for choice in fluency.choices] == [
        "very low fluency", "low", "medium", "high", "very high fluency",
    ]  # fmt: skip
    assert [own.choices[0].meaning, own.choices[-1].meaning] == ["very low", "very high"]


@pytest.mark.parametrize(
    ("names", "settings"),
    [
        (["pairwise", "likert"], {}),
        (["questionnaire", "errors"], {}),
        (["errors", "errors"], {}),
        (["likert", "likert"], {}),
        (["likert", "errors"], {"aspects": ["errors"]}),
        (["reliability", "likert"], {"aspects": ["overall"]}),
        (["likert", "pairwise"], {"table": "table.toml"}),
        ([], {}),
    ],
)
def test_schemas_that_cannot_be_asked_at_once_are_refused(names: list[str], settings: dict[str, Any]) -> None:
    with pytest.raises(SpecError):
        load_schemas(names, **settings)


# ---- Projects


def test_overlap_says_how_many_raters_see_an_item(tmp_path: Path) -> None:
    project = make_project(tmp_path, rows=make_rows(10), raters=["x", "y", "z"], overlap=2, share=0.4)
    raters_by_item: dict[str, set[str]] = {}
    for rater in project.raters:
        for own in rater.assignments:
            raters_by_item.setdefault(project.tasks[own.task].item, set()).add(rater.name)
    assert sorted(map(len, raters_by_item.values())) == [1] * 6 + [2] * 4
    loads = [len(rater.assignments) for rater in project.raters]
    assert sum(loads) == 3 * 14
    assert max(loads) - min(loads) <= 3  # One item's outputs.


def test_a_seed_gives_the_same_tasks_orders_and_sides(tmp_path: Path) -> None:
    made = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        project = make_project(tmp_path / name, "pairwise", rows=make_rows(20), raters=2, count=15, seed=3)
        made.append([[(own.task, own.swapped) for own in rater.assignments] for rater in project.raters])
        assert {own.swapped for rater in project.raters for own in rater.assignments} == {True, False}
    assert made[0] == made[1]


def test_the_folder_is_private_and_opens_again(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    assert stat.S_IMODE((project.folder / "project.json").stat().st_mode) == 0o600
    assert open_project(project.folder) == project
    with raises_code(RunError, "invalid_value", project.folder):
        make_project(tmp_path)
    with raises_code(RunError, "missing_file", "project.json"):
        open_project(tmp_path)


@pytest.mark.parametrize(
    ("settings", "code", "value"),
    [
        ({"overlap": 3}, "too_little_data", 3),
        ({"share": 2.0}, "invalid_value", 2),
        ({"raters": ["a", "a"]}, "invalid_value", "'a'"),
        ({"raters": ["a", " b"]}, "invalid_value", "' b'"),
        ({"raters": ["a\x1b[31m"]}, "invalid_value", r"'a\x1b[31m'"),
        ({"systems": ["q"]}, "unknown_name", "'q'"),
    ],
)
def test_settings_that_make_no_sense_are_errors(
    tmp_path: Path, settings: dict[str, Any], code: ErrorCode, value: object
) -> None:
    with raises_code(InputError, code, value):
        make_project(tmp_path, **settings)


@pytest.mark.parametrize("name", ["tasks.jsonl", "project.json"])
def test_a_changed_byte_in_a_project_is_found(tmp_path: Path, name: str) -> None:
    project = make_project(tmp_path, "pairwise")
    path = project.folder / name
    content = path.read_bytes()
    for word in (b"Output", b"t1") if name == "tasks.jsonl" else (b"better", b'"t2"', b'"r1"'):
        place = content.index(word) + 1
        path.write_bytes(content[:place] + b"#" + content[place + 1 :])
        with raises_code(RunError, "damaged", name):
            open_project(project.folder)
    path.write_bytes(content)
    assert open_project(project.folder) == project


def test_guidelines_are_kept_and_bounded(tmp_path: Path) -> None:
    (tmp_path / "rules.txt").write_text("Read the source first.\n")
    project = make_project(tmp_path, guidelines=tmp_path / "rules.txt")
    assert open_project(project.folder).guidelines == "Read the source first."
    (tmp_path / "rules.txt").write_text("x" * 200_001)
    with pytest.raises(InputError):
        make_project(tmp_path / "project", guidelines=tmp_path / "rules.txt")


def test_a_rater_who_comes_later_takes_nothing_from_others(tmp_path: Path) -> None:
    project = make_project(tmp_path, "pairwise", rows=make_rows(6), raters=["ann", "ben"], overlap=1)
    with open_answers(project) as (answers, click):
        ann = project.raters_by_name["ann"]
        for own in ann.assignments:
            click("ann", own.task, "set", name="overall", value="left")
        before = answers.store.read()
        rows = list(export_rows(answers))
        other = Answers(project, answers.store)  # As a server that runs meanwhile has it.
        carol = answers.add_rater("carol")
        # As many as the others have, in whole items, and those without answers first: all of ben's.
        ben = project.raters_by_name["ben"]
        assert {own.task for own in carol.assignments} == {own.task for own in ben.assignments}
        assert len(answers.add_rater("dan", 4).assignments) == 6
        other.refresh()
        for view in (answers.project, other.project, open_project(project.folder)):
            assert [rater.name for rater in view.raters] == ["ann", "ben", "carol", "dan"]
            assert view.raters[:2] == project.raters
            assert view.tasks == project.tasks
        assert (answers.store.read(), list(export_rows(other))) == (before, rows)
        clicker(other.project, other)("carol", carol.assignments[0].task, "set", name="overall", value="tie")
        assert [row["raters"] for row in export_rows(other)].count(["carol"]) == 1
        for name in ("ann", "", "x" * 101):
            with pytest.raises(InputError):
                answers.add_rater(name)
    assert stat.S_IMODE((project.folder / "project.json").stat().st_mode) == 0o600


# ---- Answers


@pytest.mark.parametrize(
    ("schema", "kind", "content"),
    [
        ("reliability", "set", {"name": "naturalness", "value": 4}),
        ("reliability", "set", {"name": "naturalness", "value": True}),
        ("reliability", "set", {"name": "other", "value": 1}),
        ("reliability", "set", {"name": ["naturalness"], "value": 1}),
        ("reliability", "set", {"name": "naturalness", "value": 10**400}),
        ("reliability", "set", {"name": "naturalness"}),
        ("reliability", "mark", MARK),
        ("reliability", "dance", {}),
        ("reliability", "done", {"value": 1}),
        ("reliability", "note", {"text": "x" * 10_001}),
        ("errors", "mark", {**MARK, "end": 10_000}),
        ("errors", "mark", {**MARK, "start": 6}),
        ("errors", "mark", {**MARK, "start": True}),
        ("errors", "mark", {**MARK, "side": "reference"}),
        ("errors", "mark", {**MARK, "aspect": ["Accuracy"]}),
        ("errors", "mark", {**MARK, "severity": "worst"}),
        ("errors", "mark", {**MARK, "side": "left"}),
        (["pairwise", "errors"], "mark", {**MARK, "side": "source"}),
        ("pairwise", "set", {"name": "overall", "value": "first"}),
    ],
)
def test_clicks_that_make_no_sense_are_refused(
    tmp_path: Path, schema: str | list[str], kind: str, content: dict[str, Any]
) -> None:
    project = make_project(tmp_path, schema)
    task = project.raters[0].assignments[0].task
    with pytest.raises(InputError):
        check_click(project, Click(id="c", rater="r1", task=task, kind=kind, content=content))


def test_a_project_that_cannot_be_written_is_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a copy, with the clicks that are still in SQLite's journal."""
    project = make_project(tmp_path, rows=make_rows(2), raters=1)
    with open_answers(project) as (answers, _):
        answer_all(project, answers, lambda *_: 2)
        expected = answers.store.read()
        files = {path.name: path.read_bytes() for path in project.folder.iterdir()}
        assert files["clicks.sqlite-wal"]
        with monkeypatch.context() as read_only:
            read_only.setattr("os.access", lambda path, mode: False)  # noqa: ARG005
            with project.read_store() as copy:
                assert copy.read() == expected
                assert copy.path.parent != project.folder
        assert {path.name: path.read_bytes() for path in project.folder.iterdir()} == files


def test_a_rater_answers_only_own_tasks(tmp_path: Path) -> None:
    project = make_project(tmp_path, raters=2, overlap=1)
    other = project.raters[1].assignments[0].task
    with raises_code(InputError, "unknown_name", other):
        check_click(project, Click(id="c", rater="r1", task=other, kind="done", content={"value": True}))


def test_answers_are_the_last_clicks_that_were_not_taken_back(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    with open_answers(project) as (answers, click):
        for value in (1, 3, 2):
            click("r1", "t1", "set", name="naturalness", value=value)
        click("r1", "t1", "note", text="odd")
        for undo in ("u1", "u2"):
            answers.store.undo(undo, "r1")
        answers.refresh()
        again = Answers(project, answers.store)
        again.refresh()
        for own in (answers, again):
            assert (own.find("r1", "t1").values, own.find("r1", "t1").note) == ({"naturalness": 3.0}, "")
            assert own.progress("r1") == (0, 12)
            assert own.can_undo("r1")
        click("r1", "t1", "skip", value=True)
        assert answers.is_complete("r1", "t1")


def test_an_answer_ends_the_skipping(tmp_path: Path) -> None:
    project = make_project(tmp_path, "pairwise")
    with open_answers(project) as (answers, click):
        click("r1", "t1", "skip", value=True)
        assert list(export_rows(answers)) == []
        click("r1", "t1", "set", name="overall", value="tie")
        assert [row["ratings"] for row in export_rows(answers)] == [{"overall": [0]}]
        answers.store.undo("u1", "r1")
        answers.refresh()
        assert answers.find("r1", "t1").skipped


def test_agreement_is_that_of_the_statistics(tmp_path: Path) -> None:
    project = make_project(tmp_path, raters=2)
    values = {"r1": [1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3], "r2": [1, 2, 3, 1, 2, 2, 1, 3, 3, 1, 1, 3]}
    with open_answers(project) as (answers, _):
        assert {row["failure"] for row in answers.agreement()} == {"no output was rated twice"}
        answer_all(project, answers, lambda rater, task, _: values[rater][int(task[1:]) - 1])
        assert [row["alpha"] for row in answers.agreement()] == pytest.approx([expected_alpha(values)] * 3)


def expected_alpha(values: dict[str, list[int]]) -> float:
    """Krippendorff's ordinal alpha of two complete raters, by its definition (2011)."""
    pairs = list(zip(*values.values(), strict=True))
    flat = [value for pair in pairs for value in pair]
    counts = {level: flat.count(level) for level in (1, 2, 3)}

    def distance(low: int, high: int) -> float:
        low, high = min(low, high), max(low, high)
        return (sum(counts[level] for level in range(low, high + 1)) - (counts[low] + counts[high]) / 2) ** 2

    observed = sum(distance(a, b) for a, b in pairs) * 2 / len(flat)
    expected = sum(counts[a] * counts[b] * distance(a, b) for a in counts for b in counts) / len(flat) / (len(flat) - 1)
    return 1 - observed / expected


def test_attention_items_are_checked_and_never_exported(tmp_path: Path) -> None:
    checks = [{"item": "x", "system": "s", "output": "gibberish", "ratings": {"naturalness": 1}}]
    write_rows(iter(checks), tmp_path / "checks.jsonl")
    project = make_project(tmp_path, raters=2, attention=[str(tmp_path / "checks.jsonl")])
    assert len(project.tasks) == 13
    for rater in project.raters:
        assert "t13" in [own.task for own in rater.assignments[1:]]
    with open_answers(project) as (answers, _):
        answer_all(project, answers, lambda rater, *_: 1 if rater == "r1" else 2)
        assert [answers.attention(rater) for rater in ("r1", "r2")] == [(1, 1), (0, 1)]
        assert {tuple(row["raters"]) for row in export_rows(answers)} == {("r1", "r2")}
        rows = list(export_rows(answers, min_attention=1.0))
        assert {tuple(row["raters"]) for row in rows} == {("r1",)}
        assert len(rows) == 12
    write_rows(iter([{**checks[0], "ratings": {"naturalness": 9}}]), tmp_path / "wrong.jsonl")
    with raises_code(InputError, "invalid_value", "wrong.jsonl:1", 9, "naturalness"):
        make_project(tmp_path / "project", attention=[str(tmp_path / "wrong.jsonl")])


# ---- Exports


def test_ratings_are_read_by_meta_pairs_and_calibrate(tmp_path: Path) -> None:
    project = make_project(tmp_path, raters=2)
    with open_answers(project) as (answers, _):
        answer_all(project, answers, lambda rater, task, _: 1 + (int(task[1:]) + (rater == "r2")) % 3)
        out = tmp_path / "ratings.jsonl"
        assert write_export(answers, out) == 12
    results = metrist.score(str(out), ["chrf", "length"])
    evaluation = metrist.meta_evaluate([str(out), results], aspects="naturalness", draws=100)
    assert {figure.metric for figure in evaluation.figures} >= {"chrf", "length"}
    judgments = read_judgments([out])
    assert len(judgments.ratings["correctness"]) == 12
    assert judgments.ratings["correctness"]["i1", "a"] == [("r1", 2.0), ("r2", 3.0)]


def test_preferences_name_systems_whichever_side_they_were_on(tmp_path: Path) -> None:
    project = make_project(tmp_path, "pairwise", raters=2)
    left_is_first = {(rater.name, own.task): not own.swapped for rater in project.raters for own in rater.assignments}
    with open_answers(project) as (answers, _):
        # Everyone prefers the system that comes first in the alphabet.
        answer_all(project, answers, lambda rater, task, _: "left" if left_is_first[rater, task] else "right")
        rows = list(export_rows(answers))
        assert answers.agreement()[0]["failure"] == "all ratings have the same value"
        write_export(answers, tmp_path / "choices.jsonl")
    assert {(tuple(row["systems"]), tuple(row["ratings"]["overall"])) for row in rows} == {
        (("a", "b"), (1, 1)), (("a", "c"), (1, 1)), (("b", "c"), (1, 1)),
    }  # fmt: skip
    judgments = read_judgments([tmp_path / "choices.jsonl"])
    assert {value for own in judgments.preferences["overall"].values() for _, value in own} == {1.0}


def test_errors_have_the_words_and_who_marked_them(tmp_path: Path) -> None:
    project = make_project(tmp_path, "errors", raters=2)
    with open_answers(project) as (answers, click):
        click("r1", "t1", "mark", **MARK)
        click("r1", "t1", "mark", **{**MARK, "id": "m2", "side": "source", "severity": "minor"})
        click("r1", "t1", "mark", **{**MARK, "id": "m3"})
        click("r1", "t1", "unmark", id="m3")
        click("r2", "t1", "done", value=True)
        assert [row["raters"] for row in export_rows(answers)] == [["r2"]]
        click("r1", "t1", "done", value=True)
        write_export(answers, tmp_path / "errors.jsonl")
    (entry,) = metrist.read_records(tmp_path / "errors.jsonl").entries()
    assert entry.raters == ("r1", "r2")
    errors = [located.error for located in entry.errors]
    assert [(error.text, error.side, error.severity, error.rater) for error in errors] == [
        ("Output", "output", "major", "r1"), ("The so", "source", "minor", "r1"),
    ]  # fmt: skip


def test_the_questionnaire_asks_about_each_listed_error(tmp_path: Path) -> None:
    rows = make_rows(2)
    for row in rows[:3]:
        row |= {"errors": [{"aspect": "Accuracy", "severity": "major", "start": 0, "end": 6, "explanation": "why"}] * 2}
    project = make_project(tmp_path, "questionnaire", rows=rows[:3])
    assert len(project.tasks) == 3
    with open_answers(project) as (answers, click):
        answer_all(project, answers, lambda *_: 4)
        assert answers.progress("r1") == (0, 3)
        for task in project.tasks:
            click("r1", task, "set", name="error:0", value=True)
            click("r1", task, "set", name="error:1", value=False)
        with raises_code(InputError, "unknown_name", "error:2"):
            click("r1", "t1", "set", name="error:2", value=True)
        write_export(answers, tmp_path / "answers.jsonl")
    shares = {share.question: share.value for share in summarise_answers(read_answers([tmp_path / "answers.jsonl"]))}
    assert shares["errors that are reasonable"] == 0.5


def test_the_questionnaire_asks_about_analyses_without_errors_too(tmp_path: Path) -> None:
    """What a metric overlooks shows where it lists nothing: in the paper, raters judge 50 analyses of each task."""
    rows = make_rows(10, ("a", "b"))
    for row in rows[:12]:
        row |= {"errors": [{"aspect": "Accuracy", "severity": "major", "start": 0, "end": 6, "penalty": 4}]}
    project = open_project(make_project(tmp_path, "questionnaire", rows=rows).folder)
    assert sorted(len(task.errors) for task in project.tasks.values()) == [0] * 8 + [1] * 12
    assert {error.penalty for task in project.tasks.values() for error in task.errors} == {4.0}
    with open_answers(project) as (answers, click):
        for task in project.tasks.values():
            for number in range(len(task.errors)):
                click("r1", task.id, "set", name=f"error:{number}", value=True)
        answer_all(project, answers, lambda *_: 1)
        assert answers.progress("r1") == (20, 20)
        write_export(answers, tmp_path / "answers.jsonl")
    listed = [len(answer.errors) for answer in read_answers([tmp_path / "answers.jsonl"])]
    assert (len(listed), listed.count(0)) == (20, 8)


def test_all_outputs_that_a_metric_analysed_reach_the_raters(tmp_path: Path) -> None:
    class Marking(metrist.Metric):
        def score_record(self, record: metrist.Record) -> metrist.Score | None:
            if record.item == "i1":
                return None
            error = metrist.Error(aspect="Accuracy", severity="major", penalty=4.0, start=0, end=6)
            return metrist.Score(value=-4.0, errors=(error,)) if record.system == "a" else metrist.Score(value=0.0)

    rows = make_rows(3)
    metrist.score(rows, [Marking()], out=tmp_path / "run")
    project = make_project(tmp_path, "questionnaire", rows=rows, run=tmp_path / "run")
    shown = {(task.records[0].item, task.records[0].system): len(task.errors) for task in project.tasks.values()}
    assert shown == {(f"i{item}", system): int(system == "a") for item in (2, 3) for system in "abc"}


def test_ratings_and_errors_are_answered_in_one_pass(tmp_path: Path) -> None:
    checks = [{"item": "x", "system": "s", "output": "gibberish", "ratings": {"overall": 1}},
              {"item": "y", "system": "s", "output": "gibberish", "errors": [{"start": 0, "end": 4}]}]  # fmt: skip
    write_rows(iter(checks), tmp_path / "checks.jsonl")
    project = make_project(
        tmp_path, ["likert", "errors"], rows=make_rows(1), attention=[str(tmp_path / "checks.jsonl")]
    )
    with open_answers(project) as (answers, click):
        for task in project.tasks:
            click("r1", task, "set", name="overall", value=4)
            assert not answers.is_complete("r1", task)
            click("r1", task, "mark", **{**MARK, "id": task})
            click("r1", task, "done", value=True)
        assert answers.attention("r1") == (1, 2)
        write_export(answers, tmp_path / "rows.jsonl")
    entries = list(metrist.read_records(tmp_path / "rows.jsonl").entries())
    assert [[rating.value for rating in entry.ratings] for entry in entries] == [[4.0]] * 3
    assert [[located.error.text for located in entry.errors] for entry in entries] == [["Output"]] * 3


def test_errors_in_a_pair_belong_to_the_system_whichever_side_it_was_on(tmp_path: Path) -> None:
    project = make_project(tmp_path, ["pairwise", "errors"], raters=2)
    with open_answers(project) as (answers, click):
        for rater in project.raters:
            for own in rater.assignments:
                # Everyone marks the first word of the system that comes first in the alphabet.
                click(rater.name, own.task, "mark", **{**MARK, "side": "right" if own.swapped else "left"})
                click(rater.name, own.task, "set", name="overall", value="left" if own.swapped else "right")
                click(rater.name, own.task, "done", value=True)
        write_export(answers, tmp_path / "rows.jsonl")
        with pytest.raises(InputError):
            write_export(answers, tmp_path / "tasks.json", "label-studio")
        assert {row["alpha"] for row in answers.agreement()} == {None}  # All say the same.
    entries = list(metrist.read_records(tmp_path / "rows.jsonl").entries())
    assert {own.choice for entry in entries for own in entry.preferences} == {"second"}
    marked = Counter(located.system for entry in entries for located in entry.errors)
    assert marked == {"a": 2 * 4, "b": 2 * 4}  # The same error in two pairs is one error.
    assert {located.error.text for entry in entries for located in entry.errors} == {"Output"}


# ---- Disputes


def test_disputed_tasks_come_first_by_how_far_answers_are_apart(tmp_path: Path) -> None:
    project = make_project(tmp_path, "likert", rows=make_rows(2), raters=3)
    grades = {"t1": (5, 5, 5), "t2": (1, 5, 3), "t3": (4, 5, 4), "t4": (1, 1, 5), "t5": (3, 3, 3), "t6": (1, 5, 5)}
    with open_answers(project) as (answers, click):
        answer_all(project, answers, lambda rater, task, _: grades[task][int(rater[1:]) - 1])
        click("r1", "t6", "skip", value=True)  # Who cannot judge disputes nothing.
        disputes = Disputes(answers).find()
        # By hand: the mean of three distances, each out of 4.
        expected = {"t2": (4 + 2 + 2) / 12, "t4": (0 + 4 + 4) / 12, "t3": (1 + 0 + 1) / 12}
        assert [own.task.id for own in disputes] == list(expected)
        assert {own.task.id: own.disagreement for own in disputes} == pytest.approx(expected)
        assert describe_dispute(answers, disputes[1]) == "overall: r1 1, r2 1, r3 5"
        assert write_export(answers, tmp_path / "disputes.jsonl", "disputes") == 3
        _, second, _ = export_disputes(answers)
    assert second["answers"]["r3"] == {"values": {"overall": 5.0}}
    # They can be given to another rater, who settles them.
    again = set_up(tmp_path / "again", [str(tmp_path / "disputes.jsonl")], "likert")
    assert [task.item for task in again.tasks.values()] == ["i1", "i2", "i1"]


def test_choices_and_marks_are_disputed_by_what_they_share(tmp_path: Path) -> None:
    project = make_project(tmp_path, ["pairwise", "errors"], rows=make_rows(1), raters=2)
    with open_answers(project) as (answers, click):
        for task, choices in {"t1": ("first", "second"), "t2": ("first", "tie"), "t3": ("tie", "tie")}.items():
            for number, (rater, choice) in enumerate(zip(("r1", "r2"), choices, strict=True)):
                side, other = ("right", "left") if project.assigned[rater, task].swapped else ("left", "right")
                value = {"first": side, "second": other}.get(choice, choice)
                click(rater, task, "set", name="overall", value=value)
                if task == "t3":  # 0 to 6 and 3 to 9 of the first output: 3 of 6 + 6 characters are shared.
                    click(rater, task, "mark", **{**MARK, "side": side, "start": 3 * number, "end": 3 * number + 6})
                click(rater, task, "done", value=True)
        found = {own.task.id: own.by_question for own in Disputes(answers).find()}
        assert list(found) == ["t1", "t2", "t3"]
        assert found == {
            "t1": {"overall": 1.0, "errors": 0.0},
            "t2": {"overall": 0.5, "errors": 0.0},
            "t3": {"overall": 0.0, "errors": 1 - 2 * 3 / 12},
        }
        first, *_ = export_disputes(answers)
        assert [own["values"]["overall"] for own in first["answers"].values()] == ["a", "b"]
        assert first["systems"] == ["a", "b"]


def test_agreement_on_pairs_takes_the_system_whose_name_comes_first(tmp_path: Path) -> None:
    """As `metrist meta --agreement` does: alpha by its definition on choices between sorted names."""
    project = make_project(tmp_path, "pairwise", raters=2)
    with open_answers(project) as (answers, _):
        picks = {rater.name: random.Random(rater.name) for rater in project.raters}
        answer_all(project, answers, lambda rater, *_: picks[rater].choice(["left", "tie", "right"]))
        (row,) = answers.agreement()
        pairs = []
        for exported in export_rows(answers):
            sign = 1 if exported["systems"] == sorted(exported["systems"]) else -1
            pairs.append(tuple(sign * {1: 1, 2: -1, 0: 0}[choice] for choice in exported["ratings"]["overall"]))
    flat = Counter(value for pair in pairs for value in pair)
    expected = sum(flat[a] * flat[b] for a in flat for b in flat if a != b) / (len(pairs) * 2 * (len(pairs) * 2 - 1))
    alpha = 1 - sum(one != other for one, other in pairs) / len(pairs) / expected
    assert row["alpha"] == pytest.approx(alpha)


@pytest.mark.parametrize("schema", ["reliability", "pairwise", "errors"])
def test_label_studio_gives_back_what_it_was_given(tmp_path: Path, schema: str) -> None:
    project = make_project(tmp_path, schema, raters=2)
    with open_answers(project) as (answers, click):
        if schema == "errors":
            for rater in ("r1", "r2"):
                click(rater, "t1", "mark", **MARK)
                click(rater, "t1", "done", value=True)
        else:
            values: list[Any] = [1, 2, 3] if schema == "reliability" else ["left", "right", "tie"]
            answer_all(project, answers, lambda rater, task, _: values[(int(task[1:]) + (rater == "r2")) % 3])
        write_export(answers, tmp_path / "rows.jsonl")
        write_export(answers, tmp_path / "tasks.json", "label-studio")
    from metrist.io.convert import convert

    write_rows((row for row in convert(tmp_path / "tasks.json") if "raters" in row), tmp_path / "back.jsonl")
    own, back = (list(metrist.read_records(tmp_path / name).entries()) for name in ("rows.jsonl", "back.jsonl"))
    for one, other in zip(own, back, strict=True):
        assert (one.ratings, one.preferences, one.errors, one.raters) == (
            other.ratings, other.preferences, other.errors, other.raters,
        )  # fmt: skip
        assert [record.output for record in one.records] == [record.output for record in other.records]
