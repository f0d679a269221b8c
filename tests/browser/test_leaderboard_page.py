"""The page of a leaderboard in a real browser: nothing is requested, names stay names, tables sort and filter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import metrist
from metrist.evaluate.leaderboard import build_page

pytestmark = pytest.mark.browser

ATTACK = "<script>document.title='hit'</script><img src=x onerror=\"document.title='hit'\">"
Open = Callable[..., Any]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    rows = [
        {
            "item": f"{item}",
            "system": system,
            "output": "x" * (3 + (item * (number + 2)) % 11),
            "task": ATTACK if item % 2 else "qa",
            "scores": {"m": float((item * (number + 3)) % 7 + number)},
        }
        for item in range(40)
        for number, system in enumerate(("alpha", "beta", ATTACK, "delta"))
    ]
    board = metrist.leaderboard(rows, categories="task", control="output_length", draws=50)
    path = tmp_path_factory.mktemp("board") / "board.html"
    path.write_text(build_page(board, ATTACK).html(), encoding="utf-8")
    return path.as_uri()


def read_column(page: Any, number: int) -> list[str]:
    cells = page.locator("#systems tbody tr:visible > *").all_inner_texts()
    width = page.locator("#systems thead th").count()
    return [cell.split("\n")[0] for cell in cells[number::width]]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_whole_on_a_phone(open_page: Open, address: str, scheme: str) -> None:
    page, watch = open_page(width=390, color_scheme=scheme)
    page.goto(address)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert [request for request in watch.requests if not request.startswith(("data:", address))] == []
    assert watch.errors == []
    assert page.title() == ATTACK
    assert page.locator("#controls table, #categories table, #strengths svg").count() >= 4


def test_tables_are_sorted_and_filtered_by_keyboard(open_page: Open, address: str) -> None:
    page, watch = open_page()
    page.goto(address)
    ranked = read_column(page, 0)
    assert len(ranked) == 4
    button = page.locator("#systems th button", has_text="win rate")
    button.focus()
    page.keyboard.press("Enter")
    rates = [float(text) for text in read_column(page, 3)]
    assert rates == sorted(rates, reverse=True)
    assert page.locator("#systems th[aria-sort=descending]").inner_text().startswith("win rate")
    page.keyboard.press("Enter")
    assert [float(text) for text in read_column(page, 3)] == rates[::-1]
    page.locator("#systems th button", has_text="system").click()
    assert read_column(page, 0) == sorted(ranked, key=str.lower)
    page.locator("#systems input[type=search]").fill("ALPHA")
    assert read_column(page, 0) == ["alpha"]
    assert watch.errors == []
