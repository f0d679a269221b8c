"""The study's tables, from results that were tables up, against averages computed by hand or by numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from heap_pairs import invent_pairs

from error_codes import raises_code
from metrist import criteria
from metrist.cli.train_study import StudyReport
from metrist.errors import InputError
from metrist.report.tables import Table
from metrist.studies.heap.jobs import CriterionScores, Job, Result, SetupName
from metrist.studies.heap.results import SeedSummary, StudyResults, read_results
from metrist.studies.heap.study import read_study
from metrist.studies.heap.tables import PaperCell, SummaryCell, correlate_published, make_tables
from metrist.train.task import Evaluation, TrainingProgress

SUITE = criteria.suite("heap")
SIZES = {"AG": 381, "AV": 463, "QA": 1917, "HSO": 16503}


def result(setup: SetupName, right: Mapping[str, int], seed: int = 0, **facts: Any) -> Result:
    """Ten pairs of each criterion, of which so many are right, and the first wrong one a tie."""
    scores = {}
    for code, count in right.items():
        good = np.array([1.0] * count + [0.0] * (count < 10) + [-1.0] * max(0, 9 - count))
        scores[code] = CriterionScores.from_pairs(invent_pairs((code,), 10), good, np.zeros(10))
    job = Job(setup=setup, split="authors", seed=seed, learns=(), judged=tuple(right), **facts)
    return Result(job=job, settings={}, scores=scores, sizes=SIZES, training={})


def each(setup: SetupName, right: Mapping[str, int], **facts: Any) -> list[Result]:
    return [result(setup, {code: count}, target=code, **facts) for code, count in right.items()]


def rows(tables: Sequence[Table], title: str) -> list[list[Any]]:
    return [list(row.values()) for table in tables if table.title.startswith(title) for row in table.to_dict()["rows"]]


def test_means_are_over_the_same_comparable_criteria_on_both_sides() -> None:
    """By hand: seeds of (.6 + .8) / 2 = .7 and (.8 + 1) / 2 = .9 over AG and AV; HSO is in no mean. The paper's
    multi-task figures of AG and AV are 78.07 and 65.22."""
    seeds = [result("multi", {"AG": 6, "AV": 8, "HSO": 1}, 0), result("multi", {"AG": 8, "AV": 10, "HSO": 3}, 1)]
    tables = make_tables(StudyResults(SUITE, seeds))
    summary = rows(tables, "Mean accuracy")[0]
    assert summary[:2] == ["multi", 2]
    assert summary[2]["mean"] == pytest.approx(80)
    assert summary[2]["sd"] == pytest.approx(np.std([70, 90], ddof=1))
    assert summary[3] == {"mean": pytest.approx((78.07 + 65.22) / 2), "sd": None}
    by_task = {row[0]: row for row in rows(tables, "Table 2: accuracy")}
    assert list(by_task) == ["AG", "AV", "HSO", "mean"]
    assert by_task["HSO"][1:] == [10, by_task["HSO"][2], {"mean": 66.43, "sd": 2.53}]
    assert by_task["HSO"][2]["mean"] == pytest.approx(20)
    assert by_task["mean"][2] == summary[2]
    assert "5 of 60 judged pairs are ties" in " ".join(tables[0].notes)


def test_spearman_is_next_to_the_papers() -> None:
    tables = rows(make_tables(StudyResults(SUITE, [result("multi", {"AG": 10, "AV": 5})])), "Table 2: Spearman")
    assert [row[0] for row in tables] == ["AG"]
    assert tables[0][1]["mean"] == pytest.approx(1)
    assert tables[0][2]["mean"] == pytest.approx(1)
    assert tables[0][3] == {"mean": 0.231, "sd": None}


def test_table_3_has_a_block_for_each_cluster_with_its_means() -> None:
    """The paper's averages of AV and QA in cluster 1: single 51.655, cross all 50.53, cross cluster 53.34; of all
    why-questions it prints 48.66 only."""
    within = {"AG": 2, "AV": 4, "QA": 6}
    tables = make_tables(
        StudyResults(
            SUITE,
            [
                *each("single", {"AV": 5, "QA": 7}),
                *each("cross-cluster", {"AV": 3, "QA": 5}, cluster="cluster1"),
                *each("cross-cluster", within, cluster="why-questions"),
            ],
        )
    )
    table_rows = rows(tables, "Table 3")
    assert [row[0] for row in table_rows] == [
        "1: the context must be understood", "AV", "QA", "mean", "why-questions", "AG", "AV", "QA", "mean",
    ]  # fmt: skip
    mean = table_rows[3]
    assert [cell and cell["mean"] for cell in mean[1:]] == [
        pytest.approx(60), pytest.approx(51.655), None, pytest.approx(50.53), pytest.approx(40), pytest.approx(53.34),
    ]  # fmt: skip
    group = table_rows[8]
    assert group[1] is None  # AG has no single-task training, so there is no mean of all three.
    assert group[5]["mean"] == pytest.approx(40)
    assert group[6] == {"mean": 48.66, "sd": None}
    assert table_rows[5][6] is None


def test_incomparable_criteria_only_enter_the_means_of_table_3_with_a_note() -> None:
    """The paper's cluster 2 prints CNO 43.96 and HSO 58.06; ours are .4 and .8 here."""
    right = {"CNO": 4, "HSO": 8}
    tables = make_tables(
        StudyResults(SUITE, [*each("single", right), *each("cross-cluster", right, cluster="cluster2")])
    )
    mean = rows(tables, "Table 3")[-1]
    assert mean[5]["mean"] == pytest.approx(60)
    assert mean[6]["mean"] == pytest.approx((43.96 + 58.06) / 2)
    notes = {table.title[:17]: " ".join(table.notes) for table in tables}
    assert "(single 1); not comparable with the paper's, and not in it: HSO." in notes["Table 2: accuracy"]
    assert "Not comparable with the paper's, but in the means here as in the paper: HSO." in notes["Table 3: accuracy"]
    without = make_tables(StudyResults(SUITE, each("cross-cluster", {"AV": 3, "QA": 5}, cluster="cluster1")))
    assert "HSO" not in " ".join(without[0].notes)


def test_the_correlations_with_data_size_are_numpys() -> None:
    single, multi = {"AG": 5, "AV": 7, "QA": 6, "HSO": 9}, {"AG": 6, "AV": 7, "QA": 9, "HSO": 2}
    table_rows = rows(
        make_tables(StudyResults(SUITE, [*each("single", single), result("multi", multi)])), "Correlation of data size"
    )
    sizes = list(SIZES.values())
    expected = np.corrcoef(sizes, list(single.values()))[0, 1]
    gains = np.corrcoef(sizes, [multi[code] - single[code] for code in single])[0, 1]
    assert [row[0] for row in table_rows] == ["single-task accuracy", "gain from multi-tasking: multi - single"]
    assert table_rows[0][2]["mean"] == pytest.approx(expected)
    assert table_rows[1][2]["mean"] == pytest.approx(gains)
    assert [row[3]["mean"] for row in table_rows] == [0.15, -0.25]


def test_the_papers_own_tables_give_other_correlations_than_its_text() -> None:
    """Oracle: numpy on Tables 1 and 2 as the suite has them."""
    sizes = [criterion.examples for criterion in SUITE.criteria]
    figures = {setup: np.array([SUITE.accuracy[setup][code].mean for code in SUITE.codes]) for setup in SUITE.accuracy}
    assert correlate_published(SUITE, ("single",)) == pytest.approx(np.corrcoef(sizes, figures["single"])[0, 1])
    gain = figures["cross-task"] - figures["single"]
    assert correlate_published(SUITE, ("cross-task", "single")) == pytest.approx(np.corrcoef(sizes, gain)[0, 1])
    assert correlate_published(SUITE, ("cross-task", "single")) == pytest.approx(-0.16, abs=0.005)
    assert SUITE.size_correlations["cross_task_gain"] == 0.16


def test_seeds_that_only_some_criteria_have_are_in_no_mean_over_criteria() -> None:
    """By hand: AG has seeds 0 and 1, AV seed 1 only; over both, that is (.8 + .4) / 2."""
    runs = [result("single", {"AG": 2}, 0), result("single", {"AG": 8}, 1), result("single", {"AV": 4}, 1)]
    mean = StudyResults(SUITE, runs).average("single", "authors")
    assert mean is not None
    assert (mean.mean, mean.seeds) == (pytest.approx(0.6), 1)


def notes(tables: Sequence[Table], title: str) -> str:
    return " ".join(note for table in tables if table.title.startswith(title) for note in table.notes)


def test_one_note_has_the_number_of_seeds_of_all_figures() -> None:
    tables = make_tables(StudyResults(SUITE, [result("multi", {"AG": 6, "AV": 8}, seed) for seed in range(3)]))
    for table in tables:
        assert "Every figure is over 3 seeds." in table.notes
        assert "seeds)" not in table.text()
    alone = make_tables(StudyResults(SUITE, each("cross-cluster", {"AV": 3, "QA": 5}, cluster="cluster1")))
    assert "Every figure is over 1 seed." in notes(alone, "Table 3")


def test_figures_over_different_numbers_of_seeds_show_them() -> None:
    """By hand: AG has seeds 0 and 1, AV seed 1 only, and so has their mean; multi has three."""
    runs = [result("single", {"AG": 2}, 0), result("single", {"AG": 8}, 1), result("single", {"AV": 4}, 1)]
    multi = [result("multi", {"AG": 6, "AV": 8}, seed) for seed in range(3)]
    tables = make_tables(StudyResults(SUITE, [*runs, *multi]))
    lines = {line.split(" ")[0]: line for table in tables[:2] for line in table.text().splitlines() if "seed" in line}
    counts = {name: [word for word in ("1 seed)", "2 seeds)", "3 seeds)") if word in lines[name]] for name in lines}
    assert [counts[name] for name in ("single", "multi", "AG", "AV", "mean")] == [
        ["1 seed)"], ["3 seeds)"], ["2 seeds)", "3 seeds)"], ["1 seed)", "3 seeds)"], ["1 seed)", "3 seeds)"],
    ]  # fmt: skip
    assert "The number of seeds differs" in notes(tables, "Mean accuracy")
    by_task = {row[0]: row for row in rows(tables, "Table 2: accuracy")}
    assert [by_task[name][2]["seeds"] for name in ("AG", "AV", "mean")] == [2, 1, 1]


def test_a_split_that_lacks_a_seed_shows_so() -> None:
    seeds = [result("multi", {"AG": 6}, seed) for seed in range(2)]
    honest = replace(seeds[0], job=replace(seeds[0].job, split="honest"))
    (row,) = (
        line
        for line in make_tables(StudyResults(SUITE, [*seeds, honest]))[0].text().splitlines()
        if line[:5] == "multi"
    )
    assert row.index("(2 seeds)") < row.index("(1 seed)")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A study with two finished trainings."""
    (tmp_path / "study.json").write_text('{"suite": "heap"}')
    for seed in range(2):
        place = tmp_path / "trainings" / f"multi-seed{seed}-authors"
        place.mkdir(parents=True)
        result("multi", {"AG": 6}, seed).write(place / "results.json")
    return tmp_path


@pytest.mark.parametrize("content", [None, "{}", '{"metrist_heap": 2}', '{"metrist_heap": 1}', "[]"])
def test_results_that_cannot_be_read_are_left_out_and_named(folder: Path, content: str | None) -> None:
    path = folder / "trainings/multi-seed1-authors/results.json"
    path.write_text(path.read_text()[:100] if content is None else content)
    assert [result.job.seed for result in read_results(folder)[0]] == [0]
    tables = make_tables(read_study(folder))
    (note,) = (note for note in tables[0].notes if note.startswith("Left out: "))
    assert note.startswith(f"Left out: {path}: ")
    assert note.endswith("remove the file to train again.")
    assert not any("Left out" in note for table in tables[1:] for note in table.notes)


def test_where_no_results_can_be_read_that_is_an_error(folder: Path) -> None:
    for path in folder.glob("trainings/*/results.json"):
        path.write_text("{")
    with raises_code(InputError, "unreadable", "multi-seed0-authors/results.json"):
        read_results(folder)


def test_unfinished_trainings_are_listed(folder: Path) -> None:
    assert read_results(folder)[1] == []
    (folder / "trainings/multi-seed2-authors").mkdir()
    assert read_results(folder)[1] == ["Not finished, and in no table: multi-seed2-authors."]
    for seed in range(3, 14):
        (folder / f"trainings/multi-seed{seed}-authors").mkdir()
    (note,) = read_results(folder)[1]
    assert note.endswith(", 2 more.")
    assert note.count("multi-seed") == 10


def test_figures_are_written_with_what_is_known() -> None:
    assert str(SummaryCell(SeedSummary(mean=0.669, sd=0.013, low=0.61, high=0.725))) == "66.9 ± 1.3 [61.0, 72.5]"
    assert str(SummaryCell(SeedSummary(mean=0.669))) == "66.9"
    assert str(SummaryCell(None)) == "–"
    assert str(PaperCell(66.94, 1.27)) == "66.94 ± 1.27"
    assert (str(PaperCell(None)), PaperCell(None).plain(), SummaryCell(None).plain()) == ("–", None, None)


def test_the_progress_line_names_running_trainings() -> None:
    report = StudyReport()
    report.on_plan(20, 3)
    assert report.describe() == "3 of 20 trainings"
    for name, step, steps in (("a", 5, 10), ("b", 0, 0), ("c", 1, 4), ("d", 1, 4)):
        report.on_start(name)
        report.on_progress(name, TrainingProgress(step=step, steps=steps, loss=1.0, lr=1e-5, tokens=0))
    report.on_evaluation("a", Evaluation(step=5, figure=0.66), "accuracy")
    assert report.describe() == "3 of 20 trainings; a 50%, dev 0.660 · b loading · c 25% and 1 more"


def test_a_row_of_two_splits_is_over_the_criteria_that_both_have() -> None:
    """By hand: AG alone is on both sides, .6 and .9; AV was run on one."""
    results = [*each("single", {"AG": 6, "AV": 8}), result("single", {"AG": 9}, target="AG")]
    results[-1] = replace(results[-1], job=replace(results[-1].job, split="honest"))
    row = rows(make_tables(StudyResults(SUITE, results)), "Mean accuracy")[0]
    assert row[:2] == ["single", 1]
    assert [cell["mean"] for cell in row[2:]] == [pytest.approx(60), pytest.approx(90), 69.47]
