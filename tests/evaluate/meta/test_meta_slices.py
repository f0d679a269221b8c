"""Which outputs take part."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from judged_rows import Row, make_rows

from error_codes import raises_code
from metrist.errors import ErrorCode, RunError
from metrist.evaluate.meta import meta_evaluate
from metrist.evaluate.meta.dataset import filter_outputs, make_slices, select_outputs
from metrist.evaluate.meta.join import join

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
    assert [part.value for part in limited] == ["<12", "12–15", "≥15"]
    expected = [lambda n: n < 12, lambda n: 12 <= n < 15, lambda n: n >= 15]
    lengths = JUDGED.lengths["reference_length"].tolist()
    assert [len(part.outputs) for part in limited] == [sum(map(inside, lengths)) for inside in expected]


@pytest.mark.parametrize(
    ("column", "code", "values"),
    [
        ("langauge", "unknown_name", ["'langauge'", "'language'"]),
        ("task:3", "run_failed", ["'task'"]),
        ("output_length:1", "invalid_value", ["output_length:1"]),
        ("output_length@1,-", "invalid_value", ["output_length@1,-"]),
    ],
)
def test_a_column_that_cannot_be_sliced_by_is_explained(column: str, code: ErrorCode, values: list[str]) -> None:
    with raises_code(RunError, code, *values):
        make_slices(JUDGED, [column], EVERYTHING)


def test_systems_are_chosen_and_left_out() -> None:
    names = np.array(JUDGED.systems.names)
    selected = select_outputs(JUDGED, exclude_systems=["b"])
    assert set(names[JUDGED.systems.codes[selected]]) == {"a", "c", "d"}
    assert len(select_outputs(JUDGED, systems=["a", "b"])) == 24
    with raises_code(RunError, "unknown_name", "'bb'"):
        select_outputs(JUDGED, exclude_systems=["bb"])
    with raises_code(RunError, "run_failed", "'a'", "'b'", "'c'"):
        select_outputs(JUDGED, systems=["a"], exclude_systems=["a"])


def test_the_best_systems_are_those_of_the_highest_human_mean() -> None:
    best = meta_evaluate(JUDGED, "quality", top_k=2, draws=0).outputs["quality"]
    assert set(np.array(JUDGED.systems.names)[JUDGED.systems.codes[best]]) == {"c", "d"}
    with raises_code(RunError, "invalid_value", "top_k=5", 4):
        meta_evaluate(JUDGED, "quality", top_k=5)


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
    with raises_code(RunError, "no_data"):
        meta_evaluate(rows, where="system=a", preferences=True)


@pytest.mark.parametrize(
    ("where", "code", "values"),
    [
        (["langage=en"], "unknown_name", ["'langage'", "'language'"]),
        (["language=se"], "run_failed", ["language=se", "'sv', 'en'"]),
        (["language=en", "language=sv"], "run_failed", ["language=sv", "language=en"]),
        (["language"], "invalid_value", ["`where='language'`"]),
        (["output_length<long"], "invalid_value", ["'long'"]),
        (["language<3"], "run_failed", ["'language'"]),
    ],
)
def test_a_filter_that_cannot_be_used_is_explained(where: list[str], code: ErrorCode, values: list[str]) -> None:
    with raises_code(RunError, code, *values):
        filter_outputs(JUDGED, where)
