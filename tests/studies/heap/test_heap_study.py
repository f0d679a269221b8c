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
from heap_pairs_made import made_pairs, pairs_file

from forked_processes import exit_code, forked
from metrist import criteria
from metrist.data.leaks import leaks
from metrist.data.pairs import GoodBad, write_good_bad
from metrist.errors import InputError, RunError, SpecError
from metrist.models.devices import Options
from metrist.models.reward_layout import Layout
from metrist.studies.heap import worker_pool
from metrist.studies.heap.callbacks import Silent
from metrist.studies.heap.dataset import read, split_material, write_split
from metrist.studies.heap.hyperparameters import CHOICES, Search, _Subject, _Trial, check_search, values
from metrist.studies.heap.jobs import Answers, Job, Order, Result, Settings, jobs
from metrist.studies.heap.study import Study, found_in, paper_change, run
from metrist.studies.heap.tables import clusters
from metrist.train.recipe import Recipe
from metrist.train.task import TrainingCallback


class Told(Silent):
    """Remembers which trainings were done."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.failures: dict[str, str] = {}

    def finished(self, name: str, seconds: float) -> None:
        assert seconds >= 0
        self.done.append(name)

    def failed(self, name: str, reason: str) -> None:
        self.failures[name] = reason


class Dying(Silent):
    """Kills its own process when the first training is done."""

    def finished(self, name: str, seconds: float) -> None:  # noqa: ARG002
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def study(word_bert: Path, tmp_path: Path) -> Study:
    return Study(
        pairs=pairs_file(tmp_path),
        out=tmp_path / "study",
        settings=Settings(
            base=Options(model=str(word_bert)),
            layout=Layout(max_length=64),
            recipe=Recipe(epochs=2, batch=8, lr=6e-3),
        ),
        setups=("base", "multi"),
        seeds=2,
    )


def test_multi_task_learns_what_the_base_model_does_not_know(study: Study) -> None:
    outcome = run(replace(study, splits=("authors", "honest")))
    found = outcome.found
    for split in ("authors", "honest"):
        base, multi = found.average("base", split), found.average("multi", split)
        assert base is not None
        assert multi is not None
        assert multi.mean > 0.8 > 0.5 > base.mean
        assert (multi.seeds, multi.low <= multi.mean <= multi.high) == (2, True)
    card = json.loads((study.out / "trainings/multi-seed0-authors/model/card.json").read_text())
    assert card["data"]["setup"] == "multi"
    assert card["data"]["files"][0]["name"] == "pairs.jsonl"
    correlation = found.spearman("multi", "authors", "AG")
    assert correlation is not None
    assert correlation.mean > 0.3
    assert found.spearman("multi", "authors", "AV") is None
    assert [table.title for table in outcome.tables][:2] == [
        "Mean accuracy over comparable criteria, in per cent",
        "Table 2: accuracy on the test set, in per cent, on the authors' split",
    ]
    assert (study.out / "tables.md").read_text().count("| AG |") == 4
    assert len(json.loads((study.out / "tables.json").read_text())) == len(outcome.tables)


def test_a_finished_study_is_only_read_and_other_settings_are_refused(study: Study) -> None:
    short = replace(study, setups=("single",), seeds=1, keep_models=False)
    first = run(short)
    told = Told()
    again = run(short, told)
    assert told.done == []
    assert [table.to_dict() for table in again.tables] == [table.to_dict() for table in first.tables]
    assert not (study.out / "trainings/single-AG-seed0-authors/model").exists()
    assert found_in(study.out).codes("single", "authors") == ("AG", "AV")
    faster = replace(short.settings, recipe=replace(short.settings.recipe, lr=0.5))
    with pytest.raises(RunError, match=r"other settings: recipe\.lr is 0\.006 there, 0\.5 here\. Give the same"):
        run(replace(short, settings=faster))


def test_settings_hold_for_the_whole_folder(study: Study) -> None:
    """Setups, splits and criteria may be added; another learning rate, or the paper's settings, may not."""
    one = replace(study, setups=("single",), seeds=1, criteria=("AG",))
    run(one)
    slow = study.settings.changed({"lr": 9e-9, "epochs": 3})
    refused = (
        r"study with other settings: recipe\.epochs is 2 there, 3 here; recipe\.lr is 0\.006 there, 9e-09 here\. Give"
    )
    with pytest.raises(RunError, match=refused):
        run(replace(study, setups=("multi",), settings=slow))
    with pytest.raises(RunError, match="other settings: paper_settings is False there, True here"):
        run(replace(study, setups=("multi",), paper_settings=True))
    more = run(replace(one, setups=("base", "single"), criteria=(), splits=("authors", "honest")))
    assert more.failures == {}
    assert more.found.codes("single", "honest") == ("AG", "AV")


def test_what_does_not_change_results_may_differ_and_older_folders_are_read(study: Study) -> None:
    one = replace(study, setups=("base",), seeds=1)
    run(one)
    smaller = replace(study.settings, recipe=replace(study.settings.recipe, max_tokens=512))
    assert run(replace(one, settings=smaller)).failures == {}
    about = json.loads((study.out / "study.json").read_text())
    (study.out / "study.json").write_text(json.dumps({name: about[name] for name in ("suite", "pairs")}))
    assert run(replace(one, seeds=2)).failures == {}
    assert "settings" not in json.loads((study.out / "study.json").read_text())


def test_a_study_that_failed_at_once_may_begin_again_with_other_settings(study: Study, word_bert: Path) -> None:
    one = replace(study, setups=("base",), seeds=1)
    wrong = replace(one, settings=replace(study.settings, base=Options(model=str(word_bert / "none"))))
    with pytest.raises(RunError, match="every training failed"):
        run(wrong)
    assert run(one).failures == {}
    with pytest.raises(RunError, match=r"other settings: base\.model is "):
        run(wrong)


def test_a_base_model_is_judged_again_when_criteria_are_added(study: Study) -> None:
    one = replace(study, setups=("base",), seeds=1)
    run(replace(one, criteria=("AG",)))
    assert run(one).found.codes("base", "authors") == ("AG", "AV")
    told = Told()
    assert run(replace(one, criteria=("AV",)), told).found.codes("base", "authors") == ("AG", "AV")
    assert told.done == []


def test_a_base_model_judged_by_other_criteria_is_not_taken_for_this_one(study: Study) -> None:
    one = replace(study, setups=("base",), seeds=1)
    run(replace(one, criteria=("AG",)))
    with pytest.raises(RunError, match=r"other settings: judged is \['AG'\] there, \['AV'\] here\. Give the same"):
        run(replace(one, criteria=("AV",)))


def test_more_seeds_and_setups_join_what_is_there(study: Study) -> None:
    run(replace(study, setups=("base",), seeds=1))
    told = Told()
    outcome = run(replace(study, setups=("base",), seeds=2), told)
    assert told.done == ["base-seed1-authors"]
    base = outcome.found.average("base", "authors")
    assert base is not None
    assert base.seeds == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks a process to kill")
def test_a_killed_study_goes_on_and_finds_the_same(study: Study, tmp_path: Path) -> None:
    """A study of two workers is killed when its first training is done; its workers stop, and the results of going on
    are those of a study that was left alone."""
    longer = replace(study.settings, recipe=Recipe(epochs=3, batch=4, lr=3e-3))
    whole = replace(study, settings=longer, setups=("single",), out=tmp_path / "whole")
    wanted = run(whole)
    killed = replace(whole, out=tmp_path / "killed", at_once=2)
    process = forked(lambda: run(killed, Dying()))
    assert exit_code(process) == -signal.SIGKILL
    _wait_for_workers(killed.out)
    told = Told()
    outcome = run(replace(killed, at_once=1), told)
    assert outcome.failures == {}
    assert 1 <= len(told.done) <= 3
    names = [f"trainings/single-{code}-seed{seed}-authors/results.json" for code in ("AG", "AV") for seed in (0, 1)]
    for name in names:
        here, there = Result.read(killed.out / name), Result.read(whole.out / name)
        assert {code: one.to_dict() for code, one in here.answers.items()} == {
            code: one.to_dict() for code, one in there.answers.items()
        }
    assert outcome.tables[1].to_dict() == wanted.tables[1].to_dict()


def _wait_for_workers(out: Path) -> None:
    """Workers whose study was killed stop by themselves."""
    late = time.monotonic() + 300
    while _running(out) and time.monotonic() < late:
        time.sleep(0.05)
    assert not _running(out)


def _running(out: Path) -> list[str]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if str(out) in str((folder / "fd/2").readlink()):
                found.append(folder.name)
        except OSError:
            continue
    return found


def test_a_training_that_was_killed_before_it_noted_anything_begins_anew(study: Study) -> None:
    model = study.out / "trainings/single-AG-seed0-authors/model"
    asked = replace(study, setups=("single",), seeds=1, criteria=("AG",))
    run(replace(asked, setups=("base",)))
    model.mkdir(parents=True)
    (model / ".training.json.part").touch()
    assert run(asked).failures == {}


def test_one_failure_does_not_stop_the_others(study: Study) -> None:
    """AV has no training pairs."""
    pairs = [pair for pair in made_pairs() if pair.criterion == "AG" or pair.split != "train"]
    write_good_bad(study.pairs, pairs)
    told = Told()
    outcome = run(replace(study, setups=("single",), seeds=1), told)
    assert told.failures == outcome.failures
    assert outcome.failures == {"single-AV-seed0-authors": "there are no pairs to train on"}
    assert outcome.found.codes("single", "authors") == ("AG",)
    with pytest.raises(RunError, match="every training failed; the first: there are no pairs to train on"):
        run(replace(study, setups=("single",), seeds=1, criteria=("AV",)))


def test_a_fault_of_any_kind_does_not_stop_the_others(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    real = worker_pool.run

    def faulty(order: Order, watcher: TrainingCallback) -> Result:
        if order.job.target == "AG":
            raise ValueError("no such tensor")
        return real(order, watcher)

    monkeypatch.setattr(worker_pool, "run", faulty)
    told = Told()
    outcome = run(replace(study, setups=("single",), seeds=1), told)
    assert outcome.failures == told.failures == {"single-AG-seed0-authors": "ValueError: no such tensor"}
    assert outcome.found.codes("single", "authors") == ("AV",)


def test_the_honest_split_has_no_leak_where_the_authors_has(study: Study) -> None:
    material = read(study.pairs)
    study.out.mkdir()
    rows = {}
    for name in ("authors", "honest"):
        write_split(study.out, name, material)
        rows[name] = leaks(split_material(study.out, name, material))
    assert sum(row.any_text for row in rows["authors"]) > 0
    assert sum(row.any_text + row.elsewhere for row in rows["honest"]) == 0
    assert {row.split for row in rows["honest"]} == {"dev", "test"}


def test_settings_are_chosen_on_dev_and_all_that_was_tried_is_told(study: Study) -> None:
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
    result = outcome.found.results[0]
    assert result.settings["recipe"]["lr"] == chosen.get("lr", 1e-7)
    trial = Result.read(study.out / "choices/single-AG-authors-trial1/results.json")
    assert trial.settings["side"] == "dev"
    assert trial.answers["AG"].good_answer != result.answers["AG"].good_answer
    assert any("Chosen on development pairs for single-AG-authors" in note for note in outcome.tables[0].notes)


def test_what_is_tried_of_a_setting_is_the_papers_grid_and_both_sides_of_a_context() -> None:
    """Oracle: the paper's paragraph on tuning; four numbers of epochs stand for all from 1 to 20."""
    suite = criteria.suite("heap")
    assert {name: values(suite, name) for name in CHOICES} == {
        "instruction": (0, 1, 2),
        "lr": (2e-5, 2e-4, 3e-4),
        "batch": (4, 8, 16, 32, 64, 128),
        "epochs": (1, 7, 14, 20),
        "labelled": (False, True),
        "keep": ("end", "start", "both"),
    }


def test_each_criterion_may_have_its_own_paraphrase(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings are faked: AG does best with its second paraphrase, AV with its first."""
    asked: list[dict[str, int]] = []

    def fake(order: Order, _watcher: TrainingCallback) -> None:
        numbers = order.settings.instructions
        if order.side == "dev":
            asked.append(dict(numbers))
        figures = {"AG": 0.9 if numbers.get("AG") == 1 else 0.4, "AV": 0.4 if numbers.get("AV") else 0.8}
        made = {}
        for code, figure in figures.items():
            pairs = made_pairs((code,), 10)
            good = [1.0 if at < 10 * figure else -1.0 for at in range(10)]
            made[code] = Answers.of(pairs, np.array(good), np.zeros(10))
        order.folder.mkdir(parents=True)
        result = Result(
            job=order.job,
            settings=order.decides(),
            answers=made,
            sizes={},
            training={},
        )
        result.write(order.folder / "results.json")

    monkeypatch.setattr(worker_pool, "run", fake)
    outcome = run(replace(study, setups=("multi",), seeds=1, choose=("instruction",)))
    assert asked == [{}, {"AG": 1, "AV": 1}, {"AG": 2, "AV": 2}, {"AG": 1, "AV": 0}]
    assert outcome.found.results[0].settings["instructions"] == {"AG": 1, "AV": 0}
    assert "Chosen on development pairs for multi-authors: instructions AG no. 2." in outcome.tables[0].notes


def test_jobs_learn_what_their_setup_says() -> None:
    suite = criteria.suite("heap")
    codes = ("AG", "AV", "QA", "CNI")
    made = {
        job.name: job
        for job in jobs(("single", "cross-task", "cross-cluster"), codes, clusters(suite), [0], ["authors"])
    }
    assert made["single-AG-seed0-authors"].learns == ("AG",)
    assert made["cross-task-AV-seed0-authors"].learns == ("AG", "QA", "CNI")
    assert made["cross-task-AV-seed0-authors"].judged == ("AV",)
    assert made["cross-cluster-why-questions-QA-seed0-authors"].learns == ("AG", "AV")
    assert made["cross-cluster-cluster2-AG-seed0-authors"].learns == ("CNI",)
    assert not [name for name in made if "cluster3" in name or "story" in name]


def test_the_papers_settings_are_those_of_its_table_4() -> None:
    """Oracle: the paper's appendix A."""
    suite = criteria.suite("heap")
    made = {job.name: paper_change(suite, job) for job in jobs(
        ("base", "single", "multi", "cross-task", "cross-cluster"), suite.codes, clusters(suite), [0], ["authors"]
    )}  # fmt: skip
    assert made["single-CNSu-seed0-authors"] == {
        "lr": 3e-4, "batch": 128, "epochs": 13, "labelled": True, "keep": "end",
    }  # fmt: skip
    assert made["multi-seed0-authors"] == {"lr": 2e-5, "batch": 8, "epochs": 16}
    assert made["cross-task-QA-seed0-authors"]["batch"] == 32
    assert made["cross-cluster-why-questions-QA-seed0-authors"] == made["cross-task-QA-seed0-authors"]
    assert made["base-seed0-authors"] == {}


def test_what_cannot_be_studied_is_said(study: Study, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"pairs\.jsonl has no pairs of 'QA'; it has AG, AV"):
        run(replace(study, criteria=("QA",)))
    with pytest.raises(SpecError, match="no criterion 'XX' in the suite 'heap'"):
        run(replace(study, criteria=("XX",)))
    with pytest.raises(RunError, match="cross-task of AG is no training: there is nothing to learn from"):
        run(replace(study, setups=("cross-task",), criteria=("AG",)))
    with pytest.raises(SpecError, match="--choose knows no 'lrr'; did you mean 'lr'"):
        run(replace(study, setups=("single",), choose=("lrr",)))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    with pytest.raises(RunError, match="full exists and holds no study; give a new or an empty folder"):
        run(replace(study, out=tmp_path / "full"))
    with pytest.raises(InputError, match="nothing holds no study; run one with --suite"):
        found_in(tmp_path / "nothing")


def test_a_folder_is_for_one_file_of_pairs(study: Study) -> None:
    run(replace(study, setups=("base",), seeds=1))
    write_good_bad(study.pairs, made_pairs(seed=1))
    with pytest.raises(RunError, match=r"study holds a study of other pairs \(pairs\.jsonl\); give another --out"):
        run(replace(study, setups=("base",), seeds=1))


def test_pairs_without_a_split_want_the_honest_one(study: Study) -> None:
    bare: list[GoodBad] = [replace(pair, split=None) for pair in made_pairs()]
    write_good_bad(study.pairs, bare)
    with pytest.raises(InputError, match=r"pair 1 has no 'split'; --split honest makes one"):
        run(replace(study, setups=("base",), seeds=1))
    assert run(replace(study, setups=("base",), seeds=1, splits=("honest",))).failures == {}


def test_a_folder_is_searched_in_one_way(study: Study) -> None:
    study.out.mkdir()
    (study.out / "choices.jsonl").write_text('{"budget": 4, "settings": ["lr"]}\n')
    check_search(study.out / "choices.jsonl", ("lr",), 4)
    for names, budget in ((("epochs",), 4), (("lr",), 5)):
        with pytest.raises(RunError, match="was searched with --choose lr --budget 4; give the same, or another --out"):
            check_search(study.out / "choices.jsonl", names, budget)


def test_a_criterion_without_development_pairs_keeps_the_first_wording(tmp_path: Path) -> None:
    made = {"AG": Answers.of(made_pairs(("AG",), 10), np.ones(10), np.zeros(10))}
    job = Job(setup="multi", split="honest", seed=0, learns=("AG", "AV"), judged=("AG", "AV"))
    order = Order(
        job=job, settings=Settings(base=Options(model="none")), pairs=tmp_path, study=tmp_path, folder=tmp_path
    )
    search = Search(
        suite=criteria.suite("heap"),
        names=(),
        budget=9,
        trials=lambda *_: order,
        crew=lambda _: {},
        log=tmp_path / "log",
    )
    subject = _Subject(name="multi-honest", learns=("AG", "AV"), left=3)
    trial = _Trial(subject=subject, order=order, change={}, of="instruction", value=1)
    found = Result(job=job, settings={}, answers=made, sizes={}, training={})
    assert search._mixed(subject, None, [(trial, found)])[0].value == {"AG": 1, "AV": 0}
