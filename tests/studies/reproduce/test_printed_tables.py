"""The files of printed numbers can be read and name only metrics and measures that metrist has."""

from __future__ import annotations

import pytest

from error_codes import raises_code
from metrist.errors import RunError
from metrist.metrics.registry import build
from metrist.stats.error_spans import ReductionShares
from metrist.stats.measures import measure
from metrist.studies.reproduce import agreement, page, shipped
from metrist.studies.reproduce.figures import split_sentences
from metrist.studies.reproduce.models import MODELS, ModelNames, add_models
from metrist.studies.reproduce.published import PublishedTable, list_tables, read_published_table, select_tables

OTHER_FORMS = (
    page.WMT23_TABLE,
    page.STRESS_TABLE,
    shipped.PREFERENCE_TABLE,
    shipped.LIKELIHOOD_TABLE,
    agreement.METRICS_TABLE,
)
REDUCTIONS = ReductionShares._fields
TABLES = [name for name in list_tables() if name not in OTHER_FORMS]


@pytest.fixture(params=TABLES)
def table(request: pytest.FixtureRequest) -> PublishedTable:
    """With a model for each learned metric."""
    names = ModelNames(models=dict.fromkeys(MODELS, "folder"))
    return add_models(request.param, read_published_table(request.param), names)


def test_every_block_names_one_scorer_and_known_measures(table: PublishedTable) -> None:
    for block in table.blocks:
        assert bool(block.metric) != bool(block.stored), block.label
        known = REDUCTIONS if block.references == "gold" else [measure(name).name for name in block.measures]
        assert set(block.measures) <= set(known)
        if block.metric:
            assert build(block.metric).text == block.metric, "written as metrist writes it, so that a user can copy it"
            assert not block.missing


def test_every_printed_number_is_one_of_a_measure(table: PublishedTable) -> None:
    for block in table.blocks:
        for aspects in block.printed.values():
            assert {len(numbers) for numbers in aspects.values()} == {len(block.measures)}


def test_printed_correlations_lie_within_their_bounds(table: PublishedTable) -> None:
    numbers = [n for b in table.blocks for aspects in b.printed.values() for row in aspects.values() for n in row]
    assert all(not abs(number) > table.scale for number in numbers)


def test_without_a_name_all_tables_are_selected() -> None:
    assert select_tables([]) == list_tables()
    assert select_tables(["002-table-6", "002-table-6"]) == ["002-table-6"]


def test_an_unknown_table_raises_an_error_with_the_nearest() -> None:
    with raises_code(RunError, "unknown_name", "002-table-7", "002-table-6"):
        select_tables(["002-table-7"])


def test_each_sentence_gets_a_line() -> None:
    assert split_sentences("It fell . Why ? 3.5 of them did! Nobody knows.") == (
        "It fell .\nWhy ?\n3.5 of them did!\nNobody knows."
    )
