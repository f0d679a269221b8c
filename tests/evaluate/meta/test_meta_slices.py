"""Which outputs take part."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from judged_rows import Row, make_rows

from metrist.errors import RunError
from metrist.evaluate.meta import meta_evaluate
from metrist.evaluate.meta.dataset import compute_gold
from metrist.evaluate.meta.join import join
from metrist.evaluate.meta.slices import filter_outputs, make_slices, select_outputs, select_top_systems

JUDGED = join(make_rows(items=12))
EVERYTHING = np.arange(len(JUDGED))


def test_a_column_gives_a_slice_per_value_after_all_outputs() -> None:
    result = make_slices(JUDGED, ["task"], EVERYTHING)
    assert [(part.name, len(part.outputs)) for part in result] == [("all", 48), ("task=qa", 24), ("task=summary", 24)]


def test_a_length_is_cut_at_its_median() -> None:
    _, short, long = make_slices(JUDGED, ["output_length"], EVERYTHING)
    lengths = JUDGED.lengths["output_length"]
    assert lengths[short.outputs].max() < lengths[long.outputs].min()
    assert short.name == f"output_length=≤{lengths[short.outputs].max():g}"
    assert abs(len(short.outputs) - len(long.outputs)) <= 4


def test_classes_are_equally_large_or_end_at_given_limits() -> None:
    quarters = make_slices(JUDGED, ["output_length:4"], EVERYTHING)[1:]
    assert len(quarters) == 4
    assert max(len(part.outputs) for part in quarters) - min(len(part.outputs) for part in quarters) <= 4
    limited = make_slices(JUDGED, ["reference_length@12,15"], EVERYTHING)[1:]
    assert [part.value for part in limited] == ["≤12", ">12–15", ">15"]
    assert [len(part.outputs) for part in limited] == [12, 12, 24]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("langauge", r"no column 'langauge' in the data, which has 'system', 'item', .*; did you mean 'language'\?"),
        ("task:3", "column 'task' holds no numbers to cut into classes"),
        ("output_length:1", "at least 2 classes, got 1"),
        ("output_length@1,-", r"numbers after @"),
    ],
)
def test_a_column_that_cannot_be_sliced_by_is_explained(column: str, message: str) -> None:
    with pytest.raises(RunError, match=message):
        make_slices(JUDGED, [column], EVERYTHING)


def test_systems_are_chosen_and_left_out() -> None:
    names = np.array(JUDGED.systems.names)
    selected = select_outputs(JUDGED, exclude_systems=["b"])
    assert set(names[JUDGED.systems.codes[selected]]) == {"a", "c", "d"}
    assert len(select_outputs(JUDGED, systems=["a", "b"])) == 24
    with pytest.raises(RunError, match=r"no system 'bb' in the data"):
        select_outputs(JUDGED, exclude_systems=["bb"])
    with pytest.raises(RunError, match="no system is left of 'a', 'b', 'c', 'd'"):
        select_outputs(JUDGED, systems=["a"], exclude_systems=["a"])


def test_the_best_systems_are_those_of_the_highest_human_mean() -> None:
    gold = compute_gold(JUDGED, "quality", "mean")
    best = select_top_systems(JUDGED, gold, EVERYTHING, 2)
    assert set(np.array(JUDGED.systems.names)[JUDGED.systems.codes[best]]) == {"c", "d"}
    with pytest.raises(RunError, match=r"`top_k=5`: 4 systems have ratings"):
        select_top_systems(JUDGED, gold, EVERYTHING, 5)


KEEPS: list[tuple[Any, Any]] = [
    ("language=sv", lambda row: row["language"] == "sv"),
    ("task!=qa", lambda row: row["task"] != "qa"),
    (["system!=a", "output_length<30"], lambda row: row["system"] != "a" and len(row["output"]) < 30),
    ("output_length>=20", lambda row: len(row["output"]) >= 20),
    ("year>2020", lambda row: row["year"] is not None and row["year"] > 2020),
    ("year=2021.0", lambda row: row["year"] == 2021),
    ("year!=2021", lambda row: row["year"] != 2021),
    ({"language": "en", "task": "qa"}, lambda row: row["language"] == "en" and row["task"] == "qa"),
]


@pytest.mark.parametrize(("where", "keeps"), KEEPS)
@pytest.mark.parametrize("gold", ["mean", "z"])
def test_a_filter_gives_the_figures_of_a_file_without_the_other_rows(where: Any, keeps: Any, gold: str) -> None:
    rows = [{**row, "year": [2020, 2021, 2022, None][int(row["item"][1:]) % 4]} for row in make_rows(items=20)]
    settings: dict[str, Any] = {"gold": gold, "slices": ["kind"], "draws": 50}
    filtered = meta_evaluate(rows, "quality", where=where, **settings)
    expected = meta_evaluate([row for row in rows if keeps(row)], "quality", **settings)
    assert filtered.rows() == expected.rows()
    assert filtered.to_dict()["tests"] == expected.to_dict()["tests"]
    assert any(note.startswith("Only outputs where ") for note in filtered.notes)


def test_a_filter_of_preferences_needs_both_outputs() -> None:
    rows: list[Row] = [
        {"item": str(n), "systems": ["a", "b"], "outputs": ["x", "y"], "language": "sv" if n % 2 else "en",
         "ratings": {"better": [1 + n % 3 // 2]}, "scores": {"judge": 1}}
        for n in range(12)
    ]  # fmt: skip
    filtered = meta_evaluate(rows, where="language=en", preferences=True, draws=20)
    expected = meta_evaluate([row for row in rows if row["language"] == "en"], preferences=True, draws=20)
    assert filtered.rows() == expected.rows()
    with pytest.raises(RunError, match="no preferences"):
        meta_evaluate(rows, where="system=a", preferences=True)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        (["langage=en"], "no column 'langage'.*did you mean 'language'"),
        (["language=se"], "none of the outputs meets it; language is 'sv', 'en'"),
        (["language=en", "language=sv"], "none of the outputs that meet language=en"),
        (["language"], "expected a column, one of = != < > <= >="),
        (["output_length<long"], "expected a number after <"),
        (["language<3"], "holds no numbers"),
    ],
)
def test_a_filter_that_cannot_be_used_is_explained(where: list[str], message: str) -> None:
    with pytest.raises(RunError, match=message):
        filter_outputs(JUDGED, where)
