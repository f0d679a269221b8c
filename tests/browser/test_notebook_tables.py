"""Tables as a notebook shows them, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from metrist.report.tables import Column, Estimate, Table

pytestmark = pytest.mark.browser


@pytest.fixture
def page(chromium: Any) -> Iterator[Any]:
    page = chromium.new_page()
    yield page
    page.close()


def test_a_table_shows_its_cells_and_runs_nothing_that_a_name_holds(page: Any) -> None:
    attack = "<script>document.title='hit'</script><img src=x onerror=\"document.title='hit'\">"
    table = Table(
        title="Scores <b>",
        columns=[Column("system"), Column("chrf", "right")],
        rows=[[attack, Estimate(41.234, 39.8, 42.5, 1)], ["机器翻译", Estimate(7.0, 6.0, 8.0, 1)]],
        notes=["a & b"],
    )
    page.set_content(f"<title>calm</title><body>{table._repr_html_()}</body>")
    assert page.title() == "calm"
    assert page.locator("img").count() == 0
    assert page.locator("tbody tr").count() == 2
    assert page.locator("tbody tr").first.locator("td, th").first.inner_text() == attack
    assert "41.2 [39.8, 42.5]" in page.locator("table").inner_text()
    assert "a & b" in page.locator("body").inner_text()
