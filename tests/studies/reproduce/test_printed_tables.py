"""The files of printed numbers can be read, and ask only for what metrist has."""

from __future__ import annotations

import pytest

from metrist.errors import RunError
from metrist.metrics.registry import build
from metrist.stats.measures import measure
from metrist.studies.reproduce import peers, shipped
from metrist.studies.reproduce import shipped as shipped_preference
from metrist.studies.reproduce.dataset import by_sentence
from metrist.studies.reproduce.published import PrintedTable, chosen, names, printed_table

TABLES = [name for name in names() if name not in (peers.NAME, shipped_preference.NAME, *shipped.NAMES)]


@pytest.fixture(params=TABLES)
def table(request: pytest.FixtureRequest) -> PrintedTable:
    return printed_table(request.param)


def test_every_block_names_one_scorer_and_known_measures(table: PrintedTable) -> None:
    for block in table.blocks:
        assert bool(block.metric) != bool(block.stored), block.label
        assert all(measure(name).name == name for name in block.measures)
        if block.metric:
            assert build(block.metric).text == block.metric, "written as metrist writes it, so that a user can copy it"


def test_every_printed_number_is_one_of_a_measure(table: PrintedTable) -> None:
    for block in table.blocks:
        for aspects in block.printed.values():
            assert {len(numbers) for numbers in aspects.values()} == {len(block.measures)}


def test_printed_correlations_lie_within_their_bounds(table: PrintedTable) -> None:
    numbers = [n for b in table.blocks for aspects in b.printed.values() for row in aspects.values() for n in row]
    assert all(not abs(number) > table.scale for number in numbers)


def test_without_a_name_all_tables_are_meant() -> None:
    assert chosen([]) == names()
    assert chosen(["002-table-6", "002-table-6"]) == ["002-table-6"]


def test_an_unknown_table_is_refused_with_the_nearest() -> None:
    with pytest.raises(RunError, match=r"no table '002-table-7'; known are .*; did you mean '002-table-6' or "):
        chosen(["002-table-7"])


def test_each_sentence_gets_a_line() -> None:
    assert by_sentence("It fell . Why ? 3.5 of them did! Nobody knows.") == (
        "It fell .\nWhy ?\n3.5 of them did!\nNobody knows."
    )
