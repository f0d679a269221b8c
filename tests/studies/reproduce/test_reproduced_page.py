"""The page of tables, and the command that writes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import typer
from invented_data import factual, write_data
from typer.testing import CliRunner

from error_codes import raises_code
from metrist import Metric, Scores
from metrist.cli.app import app
from metrist.errors import RunError
from metrist.metrics.base import Shard
from metrist.studies.reproduce.figures import DataFolder, find_data_folder
from metrist.studies.reproduce.page import WMT23_TABLE, format_page, make_wmt23_table, read_tables, reproduce
from metrist.studies.reproduce.published import PublishedBlock, list_tables, read_table_file
from metrist.studies.reproduce.shipped import (
    LIKELIHOOD_TABLE,
    OWN,
    PREFERENCE_TABLE,
    STRESS_TABLE,
    make_stress_table,
)


@dataclass(frozen=True, kw_only=True)
class Words(Metric):
    """More words are better."""

    def score(self, shard: Shard) -> Scores:
        return Scores(values=np.array([float(len(record.output.split())) for record in shard.records]))


ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with an invented Rank19 of one pair, and nothing else."""
    rows = [factual("1", "correct", "a b c d", 1), factual("1", "incorrect", "x", 0)]
    write_data(tmp_path, "rank19", rows)
    return tmp_path


def test_a_table_shows_the_printed_number_ours_and_the_difference(folder: Path) -> None:
    (section,) = reproduce(["002-table-5"], folder)
    rows = section.table.to_dict()["rows"]
    first = {key: rows[0][key] for key in ("metric", "data", "n", "paper", "ours", "computed as")}
    assert first == {
        "metric": "ROUGE-1",
        "data": "rank19",
        "n": 2,
        "paper": 0.568,
        "ours": 1.0,
        "computed as": "rouge1(stem=True, tokenizer='rouge-score'), source as reference",
    }
    assert rows[0]["difference"]["value"] == pytest.approx(0.432)


def test_rows_note_missing_data(folder: Path) -> None:
    (section,) = reproduce(["002-table-5"], folder)
    absent = [row for row in section.table.to_dict()["rows"] if row["data"] == "qags-cnn"]
    assert [row["ours"] for row in absent] == ["data missing"] * 4
    assert section.summary.endswith("The data is missing for 8.")
    for name, column in ((WMT23_TABLE, "acc_eq"), (PREFERENCE_TABLE, OWN), (LIKELIHOOD_TABLE, "ours")):
        (section,) = reproduce([name], folder.parent)
        assert section.summary == "The data is missing."
        assert {row[column] for row in section.table.to_dict()["rows"]} == {"data missing"}


def test_the_page_has_a_heading_a_caption_and_a_command_for_each_table(folder: Path) -> None:
    names = [
        name for name in read_tables(list_tables(), None, ()) if name != STRESS_TABLE
    ]  # That one scores texts with every shipped model.
    page = format_page(reproduce(names, folder))
    for name in names:
        assert f"Command: `metrist reproduce --table {name}`." in page
    assert page.count("\n## ") == len(names)


def test_the_command_writes_the_page_and_prints_summaries(folder: Path) -> None:
    done = _run("--data", str(folder), "--table", "002-table-5", "-o", str(folder / "tables.md"))
    assert done.exit_code == 0
    assert "metrist: 002-table-5: Computed here, 0 of 3 figures are within .005 of the paper's" in done.stderr
    assert (folder / "tables.md").read_text().startswith("# Published tables, reproduced\n")


def test_an_absent_folder_is_named_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with raises_code(RunError, "missing_file", "nowhere", "METRIST_TEST_DATA"):
        reproduce((), tmp_path / "nowhere")
    monkeypatch.setenv("METRIST_TEST_DATA", str(tmp_path))
    assert find_data_folder() == tmp_path


def test_the_table_of_stress_tests_has_a_row_for_each_test_and_set(folder: Path) -> None:
    words = ["a ferry", "the old pier", "three nurses", "a new road", "the last train", "one more game"]
    rows = [
        {
            "item": str(i),
            "system": "s",
            "source": "-",
            "references": [f"We saw {what} on Monday in {1990 + i}."],
            "output": "x",
        }
        for i, what in enumerate(words)
    ]
    write_data(folder, "small", rows)
    content = {
        **read_table_file(STRESS_TABLE),
        "sets": [
            {"label": "summaries", "metrics": ["rouge1"]},
            {"label": "small", "data": "small", "items": 5, "metrics": [Words()]},
            {"label": "other", "data": "not-there", "items": 5, "metrics": [Words()]},
        ],
    }
    table = make_stress_table(DataFolder(folder), content)
    rows_by_test = {(row["texts"], row["test"]): row for row in table.table.to_dict()["rows"]}
    # ROUGE looks at words only: it sees a missing sentence, and no capitals.
    assert rows_by_test["summaries", "omission"]["rouge1"].startswith("pass, ")
    assert rows_by_test["summaries", "capitalisation"]["rouge1"] == "blind, 0.0 %"
    assert rows_by_test["summaries", "number"]["items"] == 20
    assert rows_by_test["summaries", "number"]["test_reproduced_page.Words"] == "n/a"
    assert rows_by_test["small", "spelling"]["items"] == 5
    assert rows_by_test["other", "data missing"]["test_reproduced_page.Words"] == "n/a"
    assert table.summary.startswith("Faults that are seen: rouge1 ")


def test_wmt23s_metrics_reach_the_values_known_from_mt_metrics_eval(data: Callable[[str], Path]) -> None:
    # XCOMET-Ensemble-refA .6040 … chrF-refA .5192: mt-metrics-eval at sample_rate 1.0 on the same scores.
    table = make_wmt23_table(DataFolder(data("wmt23.en-de").parent), draws=0)
    assert len(table.figures) == 43
    assert table.summary == "6 of the 6 values known from mt-metrics-eval agree to within 0.0001."


def test_all_tables_are_listed_without_data() -> None:
    answer = _run("--list", "--data", "nowhere")
    assert answer.exit_code == 0
    for name in (*list_tables(), "reliability"):
        assert f"\n{name} " in answer.output


def test_rows_of_learned_metrics_ask_for_models(tmp_path: Path) -> None:
    for options in (["--metrics", "PRISM"], ["--dry-run"]):
        with raises_code(RunError, "missing_value", "--models"):
            _run("--table", "002-table-6", "--data", str(tmp_path), *options)


def test_a_limit_is_that_of_stored_scores_too(tmp_path: Path) -> None:
    rows = [factual(str(n), "a", "a b", n % 2) | {"scores": {"bert_score_r": n}} for n in range(6)]
    write_data(tmp_path, "any", rows)
    block = PublishedBlock(label="own", stored="bert_score_r", measures=("pearson",), printed={})
    values = DataFolder(tmp_path, limit=4).values("any", block)
    assert np.isfinite(values).tolist() == [True] * 4 + [False] * 2
    assert np.isfinite(DataFolder(tmp_path).values("any", block)).all()


def _run(*arguments: str) -> typer.testing.Result:
    return CliRunner().invoke(app, ["reproduce", *arguments], catch_exceptions=False)
