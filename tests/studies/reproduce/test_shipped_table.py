"""The table of shipped models: its file is sound, its figures are those of the measure, absent data is said."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from made_material import factual, write_data

from metrist.metrics.registry import build
from metrist.stats.measures import measure
from metrist.studies.reproduce import shipped
from metrist.studies.reproduce.dataset import Material
from metrist.studies.reproduce.published import facts


@pytest.fixture(params=shipped.NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def test_every_block_can_be_computed_and_has_a_number_for_each_peer(name: str) -> None:
    known = facts(name)
    for block in known["blocks"]:
        assert build(block["metric"]).text == block["metric"], (
            "written as metrist writes it, so that a user can copy it"
        )
        assert measure(block["measure"]).name == block["measure"]
        for aspects in block["printed"].values():
            assert {len(numbers) for numbers in aspects.values()} == {len(known["peers"])}


def test_without_data_the_table_says_so(name: str, tmp_path: Path) -> None:
    found = shipped.shipped_table(name, Material(tmp_path))
    assert found.summary == "The data is not at hand."
    assert "data not at hand" in found.table.render("markdown")


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
    made = {"title": "t", "caption": "c", "notes": [], "decimals": 3, "peers": ["low", "high"], "blocks": [block]}
    monkeypatch.setattr(shipped, "facts", lambda _: made)
    found = shipped.shipped_table("any", Material(tmp_path))
    ((figure, printed),) = found.figures
    assert figure.ours == 0.5  # By hand: the longer output is the factual one in the first of two items.
    assert math.isnan(figure.printed)
    assert printed == [0.4, 0.6]
    assert found.summary == "Of 1 figures, ours is above low in 1, high in 0."
