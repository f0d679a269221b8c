"""`metrist annotate`, and what other commands make of its exports, called as a user calls them."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from annotation_projects import answer_all, make_rows
from metrist.io.writer import write_rows
from metrist.web.annotation.answers import Answers
from metrist.web.annotation.project import open_project


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Twenty items of two systems; those of `a` are longer."""
    made = make_rows(20, systems=("a", "b"))
    for row in made:
        row["output"] += " And it says more." if row["system"] == "a" else ""
    write_rows(iter(made), tmp_path / "rows.jsonl")
    return tmp_path / "rows.jsonl"


def answer(folder: Path, prefer: str = "a") -> None:
    """All raters give 3 to the preferred system and 1 to others, or choose it, whichever side it is on."""
    project = open_project(folder)

    def choose(rater: str, task: str, _: str) -> object:
        first = project.tasks[task].records[0].system == prefer
        if project.schema.kind == "rating":
            return 3 if first else 1
        return "left" if first != project.assigned[rater, task].swapped else "right"

    with project.open_store() as store:
        answer_all(project, Answers(project, store), choose)


def test_ratings_are_read_as_they_are(metrist, rows: Path, tmp_path: Path) -> None:
    folder, answers, run = tmp_path / "ratings", tmp_path / "answers.jsonl", tmp_path / "run"
    command = ["annotate", rows, "--schema", "reliability", "--aspect", "correctness", "--raters", 2, "-n", 32]
    assert metrist(*command, "--pick", "items", "-o", folder, "--no-serve").code == 0
    answer(folder)
    assert "32 rows" in metrist("annotate", folder, "--export", answers).err
    assert metrist("score", answers, "-m", "length", "-m", "chrf", "-o", run).code == 0
    agreement = metrist("meta", answers, run, "--aspect", "correctness", "--draws", 50, "--format", "json")
    assert agreement.code == 0, agreement.err
    assert {row["metric"]: row["value"] for row in json.loads(agreement.out)["rows"]}["length"] == 1.0
    pairs = metrist("build", "pairs", answers, "--aspect", "correctness", "-o", tmp_path / "pairs.jsonl")
    assert "wrote 16 pairs" in pairs.err, pairs.err
    for data in (run, answers):
        assert "mean" in metrist("calibrate", data, "-m", "length", "-o", tmp_path / f"{data.stem}.json").out


def test_a_project_takes_new_raters_and_no_new_settings(metrist, rows: Path, tmp_path: Path) -> None:
    folder = tmp_path / "ratings"
    command = ["annotate", rows, "--schema", "likert", "--rater", "ann", "-n", 6, "-o", folder, "--no-serve"]
    assert metrist(*command).code == 0
    for option in (("--rater", "ben"), ("-n", 3), ("--schema", "likert"), ("--seed", 2), ("--pick", "items")):
        refused = metrist("annotate", folder, "--no-serve", *option)
        assert (refused.code, "set up already" in refused.err) == (2, True), option
    assert "added ben with 6 tasks" in metrist("annotate", folder, "--add-rater", "ben").err
    assert "twice" in metrist("annotate", folder, "--add-rater", "ben").err
    assert metrist("annotate", rows, "--add-rater", "ben").code == 2
    assert [rater.name for rater in open_project(folder).raters] == ["ann", "ben"]


def test_a_project_that_lost_its_clicks_is_refused(metrist, rows: Path, tmp_path: Path) -> None:
    folder, answers = tmp_path / "ratings", tmp_path / "answers.jsonl"
    assert metrist("annotate", rows, "--schema", "likert", "--rater", "ann", "-o", folder, "--no-serve").code == 0
    answer(folder)
    (folder / "clicks.sqlite").unlink()
    for option in (("--export", answers), ("--status",), ("--add-rater", "ben"), ("--no-serve",)):
        refused = metrist("annotate", folder, *option)
        assert (refused.code, "40 clicks" in refused.err) == (2, True), option
    assert not answers.exists()


def test_status_says_who_disputes_what_and_the_alpha_of_meta(metrist, rows: Path, tmp_path: Path) -> None:
    folder, answers, disputes = tmp_path / "choices", tmp_path / "answers.jsonl", tmp_path / "disputes.jsonl"
    made = make_rows(12)
    write_rows(iter(made), rows)
    command = ["annotate", rows, "--schema", "pairwise", "--rater", "ann", "--rater", "ben", "-o", folder]
    assert metrist(*command, "--no-serve").code == 0
    project = open_project(folder)
    picks = {rater.name: random.Random(rater.name) for rater in project.raters}
    with project.open_store() as store:
        answer_all(project, Answers(project, store), lambda rater, *_: picks[rater].choice(["left", "right", "tie"]))
    _, _, agreement, disputed = json.loads(metrist("annotate", folder, "--status", "--format", "json").out)
    assert metrist("annotate", folder, "--export", answers).code == 0
    told = metrist("meta", answers, "--preferences", "--agreement", "--draws", 0, "--format", "json")
    assert told.code == 0, told.err
    alpha = json.loads(told.out)["tables"][0]["rows"][0]["value"]["value"]
    assert float(agreement["rows"][0]["alpha"]) == pytest.approx(alpha, abs=0.0005)
    assert metrist("annotate", folder, "--export", disputes, "--export-format", "disputes").code == 0
    written = [json.loads(line) for line in disputes.read_text().splitlines()]
    assert [f"{row['disagreement']:.2f}" for row in written][:20] == [row["disagreement"] for row in disputed["rows"]]
    assert all(len({own["values"]["overall"] for own in row["answers"].values()}) == 2 for row in written)


def test_too_few_outputs_for_an_informative_order_are_mentioned(metrist, tmp_path: Path) -> None:
    for items, mentioned in ((50, True), (51, False)):
        rows, folder = tmp_path / f"{items}.jsonl", tmp_path / str(items)
        write_rows(({**row, "scores": {"m": 1.0}} for row in make_rows(items, systems=("a", "b"))), rows)
        command = ["annotate", rows, "--schema", "likert", "--next", "informative", "-o", folder, "--no-serve"]
        assert ("--next informative" in metrist(*command).err) is mentioned


def test_a_metric_is_trained_on_choices(metrist, rows: Path, tmp_path: Path, tiny) -> None:
    folder, answers, pairs = tmp_path / "choices", tmp_path / "choices.jsonl", tmp_path / "pairs.jsonl"
    assert metrist("annotate", rows, "--schema", "pairwise", "--raters", 2, "-o", folder, "--no-serve").code == 0
    answer(folder)
    assert metrist("annotate", folder, "--export", answers).code == 0
    built = metrist("build", "pairs", answers, "--aspect", "overall", "-o", pairs)
    assert "wrote 20 pairs" in built.err, built.err
    assert {tuple(json.loads(line)["systems"]) for line in pairs.read_text().splitlines()} == {("a", "b")}
    trained = metrist("train", "preference", "--data", pairs, "--base", tiny("bert"), "-o", tmp_path / "model",
                      "--epochs", 1, "--batch", 5)  # fmt: skip
    assert trained.code == 0, trained.err
    assert (tmp_path / "model" / "reward.json").is_file()
