"""The table of shipped models: its file is valid, its figures are those of the measure, missing data is reported."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from invented_data import factual, write_data

from metrist.metrics.registry import build
from metrist.stats.measures import measure
from metrist.studies.reproduce import shipped
from metrist.studies.reproduce.figures import DataFolder
from metrist.studies.reproduce.published import read_table_file


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
