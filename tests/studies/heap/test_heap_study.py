"""Whole studies with tiny models on invented pairs."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from heap_pairs import invent_pairs, write_pairs_file

from error_codes import raises_code
from forked_processes import exit_code, forked
from metrist import criteria
from metrist.data.leaks import leaks
from metrist.data.pairs import GoodBad, write_good_bad
from metrist.errors import InputError, RunError, SpecError
from metrist.models.devices import Options
from metrist.models.reward_layout import RewardLayout
from metrist.studies.heap import training
from metrist.studies.heap.jobs import CriterionScores, Job, Result, Settings, TrainingRequest, list_jobs
from metrist.studies.heap.study import (
    CHOICES,
    Search,
    Study,
    _Subject,
    _Trial,
    check_search,
    list_values,
    plan_jobs,
    read_paper_settings,
    read_study,
    run,
)
from metrist.studies.heap.tables import list_clusters
from metrist.studies.heap.training import NoStudyCallback, load_split, read_study_data, write_split
from metrist.train.recipe import Recipe
from metrist.train.task import TrainingCallback


class Recorder(NoStudyCallback):
    """Remembers which trainings were done."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.failures: dict[str, str] = {}

    def on_finish(self, name: str, seconds: float) -> None:
        assert seconds >= 0
        self.done.append(name)

    def on_failure(self, name: str, reason: str) -> None:
        self.failures[name] = reason


class KillsItself(NoStudyCallback):
    """Kills its own process when the first training is done."""

    def on_finish(self, name: str, seconds: float) -> None:  # noqa: ARG002
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def study(word_bert: Path, tmp_path: Path) -> Study:
    return Study(
        pairs=write_pairs_file(tmp_path),
        out=tmp_path / "study",
        settings=Settings(
            base=Options(model=str(word_bert)),
            layout=RewardLayout(max_length=64),
            recipe=Recipe(epochs=2, batch=8, lr=6e-3),
        ),
        setups=("base", "multi"),
        seeds=2,
    )


def test_multi_task_learns_what_the_base_model_does_not_know(study: Study) -> None:
    outcome = run(replace(study, splits=("authors", "honest")))
    results = outcome.results
    for split in ("authors", "honest"):
        base, multi = results.average("base", split), results.average("multi", split)
        assert base is not None
        assert multi is not None
        assert multi.mean > 0.8 > 0.5 > base.mean
        assert (multi.seeds, multi.low <= multi.mean <= multi.high) == (2, True)
    card = json.loads((study.out / "trainings/multi-seed0-authors/model/card.json").read_text())
    assert card["data"]["setup"] == "multi"
    assert card["data"]["files"][0]["name"] == "pairs.jsonl"
    correlation = results.spearman("multi", "authors", "AG")
    assert correlation is not None
    assert correlation.mean > 0.3
    assert results.spearman("multi", "authors", "AV") is None
    assert [table.title for table in outcome.tables][:2] == [
        "Mean accuracy over comparable criteria, in per cent",
        "Table 2: accuracy on the test set, in per cent, on the authors' split",
    ]
    assert (study.out / "tables.md").read_text().count("| AG |") == 4
    assert len(json.loads((study.out / "tables.json").read_text())) == len(outcome.tables)


def test_a_finished_study_is_only_read_and_other_settings_are_refused(study: Study) -> None:
    short = replace(study, setups=("single",), seeds=1, keep_models=False)
    first = run(short)
    recorder = Recorder()
    again = run(short, recorder)
    assert recorder.done == []
    assert [table.to_dict() for table in again.tables] == [table.to_dict() for table in first.tables]
    assert not (study.out / "trainings/single-AG-seed0-authors/model").exists()
    assert read_study(study.out).codes("single", "authors") == ("AG", "AV")
    faster = replace(short.settings, recipe=replace(short.settings.recipe, lr=0.5))
    with raises_code(RunError, "run_failed", "recipe.lr", "0.006", "0.5"):
        run(replace(short, settings=faster))


def test_settings_apply_to_the_whole_folder(study: Study) -> None:
    """Setups, splits and criteria may be added; another learning rate, or the paper's settings, may not."""
    short = replace(study, setups=("single",), seeds=1, criteria=("AG",))
    run(short)
    slow = study.settings.with_changes({"lr": 9e-9, "epochs": 3})
    with raises_code(RunError, "run_failed", "recipe.epochs", "recipe.lr", 0.006, 9e-09):
        run(replace(study, setups=("multi",), settings=slow))
    with raises_code(RunError, "run_failed", "paper_settings"):
        run(replace(study, setups=("multi",), paper_settings=True))
    more = run(replace(short, setups=("base", "single"), criteria=(), splits=("authors", "honest")))
    assert more.failures == {}
    assert more.results.codes("single", "honest") == ("AG", "AV")


def test_what_another_run_of_a_folder_may_change(study: Study, word_bert: Path) -> None:
    short = replace(study, setups=("base",), seeds=1, criteria=("AG",))
    wrong = replace(short, settings=replace(study.settings, base=Options(model=str(word_bert / "none"))))
    with raises_code(RunError, "run_failed", "none"):
        run(wrong)
    # A study that failed at once may begin again with other settings.
    assert run(short).failures == {}
    with raises_code(RunError, "run_failed", "base.model"):
        run(wrong)
    smaller = replace(study.settings, recipe=replace(study.settings.recipe, max_tokens=512))
    assert run(replace(short, settings=smaller)).failures == {}
    with raises_code(RunError, "run_failed", "'AG'", "'AV'"):
        run(replace(short, criteria=("AV",)))
    write_good_bad(study.pairs, invent_pairs(seed=1))
    with raises_code(RunError, "run_failed", "pairs.jsonl"):
        run(short)


def test_criteria_and_seeds_can_be_added(study: Study) -> None:
    short = replace(study, setups=("base",), seeds=1)
    run(replace(short, criteria=("AG",)))
    assert run(short).results.codes("base", "authors") == ("AG", "AV")
    recorder = Recorder()
    assert run(replace(short, criteria=("AV",)), recorder).results.codes("base", "authors") == ("AG", "AV")
    assert recorder.done == []
    base = run(replace(short, seeds=2), recorder).results.average("base", "authors")
    assert recorder.done == ["base-seed1-authors"]
    assert base is not None
    assert base.seeds == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks a process to kill")
def test_a_killed_study_resumes_with_the_same_results(study: Study, tmp_path: Path) -> None:
    """A study of two workers is killed when its first training is done; its workers stop, and the results of going on
    are those of a study that was left alone."""
    longer = replace(study.settings, recipe=Recipe(epochs=3, batch=4, lr=3e-3))
    complete = replace(study, settings=longer, setups=("single",), out=tmp_path / "whole")
    expected = run(complete)
    killed = replace(complete, out=tmp_path / "killed", at_once=2)
    process = forked(lambda: run(killed, KillsItself()))
    assert exit_code(process) == -signal.SIGKILL
    _wait_for_workers(killed.out)
    recorder = Recorder()
    outcome = run(replace(killed, at_once=1), recorder)
    assert outcome.failures == {}
    assert 1 <= len(recorder.done) <= 3
    names = [f"trainings/single-{code}-seed{seed}-authors/results.json" for code in ("AG", "AV") for seed in (0, 1)]
    for name in names:
        here, there = Result.read(killed.out / name), Result.read(complete.out / name)
        assert {code: scores.to_dict() for code, scores in here.scores.items()} == {
            code: scores.to_dict() for code, scores in there.scores.items()
        }
    assert outcome.tables[1].to_dict() == expected.tables[1].to_dict()


def _wait_for_workers(out: Path) -> None:
    """Workers whose study was killed stop by themselves."""
    late = time.monotonic() + 300
    while _running(out) and time.monotonic() < late:
        time.sleep(0.05)
    assert not _running(out)


def _running(out: Path) -> list[str]:
    names = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if str(out) in str((folder / "fd/2").readlink()):
                names.append(folder.name)
        except OSError:
            continue
    return names


def test_a_training_killed_before_it_wrote_its_settings_starts_again(study: Study) -> None:
    model = study.out / "trainings/single-AG-seed0-authors/model"
    requested = replace(study, setups=("single",), seeds=1, criteria=("AG",))
    run(replace(requested, setups=("base",)))
    model.mkdir(parents=True)
    (model / ".training.json.part").touch()
    assert run(requested).failures == {}


def test_one_failure_does_not_stop_the_others(study: Study) -> None:
    """AV has no training pairs."""
    pairs = [pair for pair in invent_pairs() if pair.criterion == "AG" or pair.split != "train"]
    write_good_bad(study.pairs, pairs)
    recorder = Recorder()
    outcome = run(replace(study, setups=("single",), seeds=1), recorder)
    assert recorder.failures == outcome.failures
    assert outcome.failures == {"single-AV-seed0-authors": "there are no pairs to train on"}
    assert outcome.results.codes("single", "authors") == ("AG",)
    with raises_code(RunError, "run_failed", "training"):
        run(replace(study, setups=("single",), seeds=1, criteria=("AV",)))


def test_a_fault_of_any_kind_does_not_stop_the_others(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    real = training.train_request

    def faulty(request: TrainingRequest, callback: TrainingCallback) -> Result:
        if request.job.target == "AG":
            raise ValueError("no such tensor")
        return real(request, callback)

    monkeypatch.setattr(training, "train_request", faulty)
    recorder = Recorder()
    outcome = run(replace(study, setups=("single",), seeds=1), recorder)
    assert outcome.failures == recorder.failures == {"single-AG-seed0-authors": "ValueError: no such tensor"}
    assert outcome.results.codes("single", "authors") == ("AV",)


def test_the_honest_split_has_no_leak_where_the_authors_has(study: Study) -> None:
    data = read_study_data(study.pairs)
    study.out.mkdir()
    rows = {}
    for name in ("authors", "honest"):
        write_split(study.out, name, data)
        rows[name] = leaks(load_split(study.out, name, data))
    assert sum(row.any_text for row in rows["authors"]) > 0
    assert sum(row.any_text + row.elsewhere for row in rows["honest"]) == 0
    assert {row.split for row in rows["honest"]} == {"dev", "test"}


def test_settings_are_chosen_on_dev_pairs_and_all_trials_are_logged(study: Study) -> None:
    slow = replace(study.settings, recipe=replace(study.settings.recipe, lr=1e-7, epochs=2))
    outcome = run(
        replace(
            study, settings=slow, setups=("single",), seeds=1, criteria=("AG",), choose=("lr", "labelled"), budget=4
        )
    )
    rule, *tried = [json.loads(line) for line in (study.out / "choices.jsonl").read_text().splitlines()]
    assert (rule["budget"], rule["settings"]) == (4, ["lr", "labelled"])
    assert [(row["setting"], row["value"]) for row in tried] == [
        ("start", None),
        ("lr", 2e-5),
        ("lr", 2e-4),
        ("lr", 3e-4),
        ("labelled", True),
    ]
    assert tried[-1]["failure"] == "not tried: the budget of trials is spent"
    best = max(tried[:-1], key=lambda row: row["dev"])
    chosen = json.loads((study.out / "chosen.json").read_text())["single-AG-authors"]
    assert chosen == ({} if best["setting"] == "start" else {"lr": best["value"]})
    result = outcome.results.results[0]
    assert result.settings["recipe"]["lr"] == chosen.get("lr", 1e-7)
    trial = Result.read(study.out / "choices/single-AG-authors-trial1/results.json")
    assert trial.settings["side"] == "dev"
    assert trial.scores["AG"].good_answer != result.scores["AG"].good_answer
    assert any("Chosen on development pairs for single-AG-authors" in note for note in outcome.tables[0].notes)


def test_settings_are_tried_on_the_papers_grid_and_both_sides_of_a_context() -> None:
    """Oracle: the paper's paragraph on tuning, and the batch of 4 on a device in the authors' scripts (base_script.py,
    multitask_script.py); four numbers of epochs stand for all from 1 to 20."""
    suite = criteria.suite("heap")
    assert {name: list_values(suite, name) for name in CHOICES} == {
        "instruction": (0, 1, 2),
        "lr": (2e-5, 2e-4, 3e-4),
        "batch": (16, 32, 64, 128, 256, 512),
        "epochs": (1, 7, 14, 20),
        "labelled": (False, True),
        "keep": ("end", "start", "both"),
    }


def test_each_criterion_may_have_its_own_paraphrase(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings are faked: AG does best with its second paraphrase, AV with its first."""
    requested: list[dict[str, int]] = []

    def fake(request: TrainingRequest, _callback: TrainingCallback) -> None:
        numbers = request.settings.instructions
        if request.side == "dev":
            requested.append(dict(numbers))
        figures = {"AG": 0.9 if numbers.get("AG") == 1 else 0.4, "AV": 0.4 if numbers.get("AV") else 0.8}
        scores = {}
        for code, figure in figures.items():
            pairs = invent_pairs((code,), 10)
            good = [1.0 if at < 10 * figure else -1.0 for at in range(10)]
            scores[code] = CriterionScores.from_pairs(pairs, np.array(good), np.zeros(10))
        request.folder.mkdir(parents=True)
        result = Result(job=request.job, settings=request.identity(), scores=scores, sizes={}, training={})
        result.write(request.folder / "results.json")

    monkeypatch.setattr(training, "train_request", fake)
    outcome = run(replace(study, setups=("multi",), seeds=1, choose=("instruction",)))
    assert requested == [{}, {"AG": 1, "AV": 1}, {"AG": 2, "AV": 2}, {"AG": 1, "AV": 0}]
    assert outcome.results.results[0].settings["instructions"] == {"AG": 1, "AV": 0}
    assert "Chosen on development pairs for multi-authors: instructions AG no. 2." in outcome.tables[0].notes


def test_each_setup_trains_on_its_criteria() -> None:
    suite = criteria.suite("heap")
    codes = ("AG", "AV", "QA", "CNI")
    by_name = {
        job.name: job
        for job in list_jobs(("single", "cross-task", "cross-cluster"), codes, list_clusters(suite), [0], ["authors"])
    }
    assert by_name["single-AG-seed0-authors"].learns == ("AG",)
    assert by_name["cross-task-AV-seed0-authors"].learns == ("AG", "QA", "CNI")
    assert by_name["cross-task-AV-seed0-authors"].judged == ("AV",)
    assert by_name["cross-cluster-why-questions-QA-seed0-authors"].learns == ("AG", "AV")
    assert by_name["cross-cluster-cluster2-AG-seed0-authors"].learns == ("CNI",)
    assert not [name for name in by_name if "cluster3" in name or "story" in name]


def test_the_papers_settings_are_those_of_its_table_4() -> None:
    """Oracle: the paper's appendix A; the authors' scripts read 4 pairs for each accumulated gradient."""
    suite = criteria.suite("heap")
    by_name = {job.name: read_paper_settings(suite, job) for job in list_jobs(
        ("base", "single", "multi", "cross-task", "cross-cluster"), suite.codes, list_clusters(suite), [0], ["authors"]
    )}  # fmt: skip
    assert by_name["single-CNSu-seed0-authors"] == {
        "lr": 3e-4, "batch": 512, "epochs": 13, "labelled": True, "keep": "end",
    }  # fmt: skip
    assert by_name["multi-seed0-authors"] == {"lr": 2e-5, "batch": 32, "epochs": 16}
    assert by_name["cross-task-QA-seed0-authors"]["batch"] == 128
    assert by_name["cross-cluster-why-questions-QA-seed0-authors"] == by_name["cross-task-QA-seed0-authors"]
    assert by_name["base-seed0-authors"] == {}


def test_impossible_studies_raise_errors(study: Study, tmp_path: Path) -> None:
    with raises_code(InputError, "unknown_name", "pairs.jsonl", "'QA'"):
        run(replace(study, criteria=("QA",)))
    with raises_code(SpecError, "unknown_name", "'XX'", "'heap'"):
        run(replace(study, criteria=("XX",)))
    with raises_code(RunError, "no_data", "training"):
        run(replace(study, setups=("cross-task",), criteria=("AG",)))
    with raises_code(SpecError, "unknown_name", "`choose`", "'lrr'", "'lr'"):
        run(replace(study, setups=("single",), choose=("lrr",)))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    with raises_code(RunError, "cannot_write", "exists"):
        run(replace(study, out=tmp_path / "full"))
    with raises_code(InputError, "no_data", "nothing"):
        read_study(tmp_path / "nothing")


def test_pairs_without_a_split_need_the_honest_one(study: Study) -> None:
    bare: list[GoodBad] = [replace(pair, split=None) for pair in invent_pairs()]
    write_good_bad(study.pairs, bare)
    with raises_code(InputError, "unreadable", "1", "'split'", "`split='honest'`"):
        run(replace(study, setups=("base",), seeds=1))
    assert run(replace(study, setups=("base",), seeds=1, splits=("honest",))).failures == {}


def test_a_folder_is_searched_in_one_way(study: Study) -> None:
    study.out.mkdir()
    (study.out / "choices.jsonl").write_text('{"budget": 4, "settings": ["lr"]}\n')
    check_search(study.out / "choices.jsonl", ("lr",), 4)
    for names, budget in ((("epochs",), 4), (("lr",), 5)):
        with raises_code(RunError, "run_failed", "`choose='lr'`", "`budget=4`"):
            check_search(study.out / "choices.jsonl", names, budget)


def test_a_criterion_without_development_pairs_keeps_the_first_wording(tmp_path: Path) -> None:
    scores = {"AG": CriterionScores.from_pairs(invent_pairs(("AG",), 10), np.ones(10), np.zeros(10))}
    job = Job(setup="multi", split="honest", seed=0, learns=("AG", "AV"), judged=("AG", "AV"))
    request = TrainingRequest(
        job=job, settings=Settings(base=Options(model="none")), pairs=tmp_path, study=tmp_path, folder=tmp_path
    )
    search = Search(
        suite=criteria.suite("heap"),
        names=(),
        budget=9,
        make_request=lambda *_: request,
        run_requests=lambda _: {},
        log=tmp_path / "log",
    )
    subject = _Subject(name="multi-honest", learns=("AG", "AV"), remaining=3)
    trial = _Trial(subject=subject, request=request, changes={}, setting="instruction", value=1)
    result = Result(job=job, settings={}, scores=scores, sizes={}, training={})
    assert search._mix_wordings(subject, None, [(trial, result)])[0].value == {"AG": 1, "AV": 0}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ((), {"AG", "AV", "QA", "HS", "CNI"}),
        (("!hellaswag",), {"AG", "AV", "QA", "CNI"}),
        (("TellMeWhy",), {"AG", "AV", "QA"}),
        (("tellmewhy", "cni", "!av"), {"AG", "QA", "CNI"}),
    ],
)
def test_criteria_are_named_by_code_or_data_set_or_left_out(
    study: Study, tmp_path: Path, names: tuple[str, ...], expected: set[str]
) -> None:
    suite, path, pairs = criteria.suite("heap"), tmp_path / "pairs.jsonl", []
    for code in ("AG", "AV", "QA", "HS", "CNI"):
        for number in range(10):
            good, bad = (
                tuple((field, f"a {field} {word} {number}") for field in suite.criterion(code).fields)
                for word in ("cat", "dog")
            )
            pairs.append(GoodBad(criterion=code, good=good, bad=bad))
    write_good_bad(path, pairs)
    chosen = replace(study, pairs=path, setups=("single",), seeds=1, criteria=names)
    jobs = plan_jobs(chosen, suite, read_study_data(path))
    assert {job.target for job in jobs} == expected
    with raises_code(InputError, "unknown_name"):
        plan_jobs(replace(chosen, criteria=("!TimeTravel",)), suite, read_study_data(path))
