"""The playground in a real browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from metrist.web.playground import Playground, offer_metrics
from metrist.web.security import Access
from metrist.web.server import create_app
from viewer_runs import ATTACK, CONTROLS
from web_server import RunningServer, run_server, wait_until

OpenPage = Callable[..., tuple[Any, Any]]
JUDGE = "judge=judge(llm=fake(answers='a fine text. Grade: 3'))"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    metrics = offer_metrics([JUDGE, "viewer_runs.Critic"])
    playground = Playground(metrics=metrics, with_viewer=False)
    with run_server(create_app(playground.routes(), Access())) as running:
        yield running
    playground.close()


def wait_for_score(page: Any, metric: str, words: str) -> None:
    wait_until(
        page,
        "([metric, words]) => [...document.querySelectorAll('#scores tbody tr')].some(row =>"
        " row.cells[0].textContent.startsWith(metric) && row.cells[1].textContent.includes(words))",
        [metric, words],
    )


def test_scores_errors_and_heat_appear_while_typing(open_page: OpenPage, server: RunningServer) -> None:
    page, watch = open_page()
    page.goto(f"{server.url}/play?metric=rougeL&metric=viewer_runs.Critic")
    page.wait_for_selector("#metrics input")
    page.fill("#references", "the cat sat down")
    page.fill("#output", "the bad cat sat")
    wait_for_score(page, "rougeL", "0.750")
    wait_for_score(page, "viewer_runs.Critic", "-2")
    assert page.locator("#findings mark.major").all_inner_texts() == ["bad"]
    assert f"Because {ATTACK}" in page.locator("#findings").inner_text()
    assert page.locator("#findings .heat .t").count() == 4
    page.fill("#output", "the cat sat down")
    wait_for_score(page, "rougeL", "1.000")
    assert page.locator("#findings mark.major").count() == 0
    page.fill("#references", "")
    wait_for_score(page, "rougeL", "needs references")
    assert [url for url in watch.requests if not url.startswith(f"{server.url}/")] == []
    assert watch.errors == []


def test_metrics_that_fit_the_texts_are_ticked(open_page: OpenPage, server: RunningServer) -> None:
    page, watch = open_page()
    page.goto(f"{server.url}/play")
    group = "#metrics [role=group][aria-label='{}'] input"
    page.wait_for_selector(group.format("needs references"))
    ticked = "boxes => boxes.filter(box => box.checked).map(box => box.value)"
    everywhere = "boxes => boxes.map(box => box.value)"
    assert page.eval_on_selector_all(group.format("needs a source"), everywhere) == [
        *("copy_rate", "consistency", "likelihood")
    ]
    assert page.eval_on_selector_all("#metrics input", ticked) == [
        *("judge", "viewer_runs.Critic", "length", "errors", "fluency", "preference")
    ]
    page.fill("#references", "the cat sat down")
    page.wait_for_selector(group.format("needs references"), state="detached")
    assert page.locator("#chosen").inner_text() == ": 14 of 18"
    # From here on the ticks are the user's.
    page.uncheck("#metrics input[value=judge]")
    page.fill("#references", "")
    page.wait_for_selector(group.format("needs references"))
    assert page.is_checked("#metrics input[value=rougeL]")
    page.click("#tick-fitting")
    assert not page.is_checked("#metrics input[value=rougeL]")
    assert page.is_checked("#metrics input[value=judge]")
    assert watch.errors == []


def test_metrics_that_cost_money_wait_for_the_button(open_page: OpenPage, server: RunningServer) -> None:
    page, watch = open_page()
    page.goto(f"{server.url}/play?metric=judge&metric=length")
    page.wait_for_selector("#metrics input")
    page.fill("#output", "some text")
    wait_for_score(page, "length", "2")
    wait_for_score(page, "judge", "press Score")
    scored = [url for url in watch.requests if url.endswith("/api/score")]
    page.click("#score")
    wait_until(page, "() => !document.querySelector('#scores tbody').textContent.includes('press Score')")
    assert len([url for url in watch.requests if url.endswith("/api/score")]) == len(scored) + 2


def test_hostile_texts_do_nothing(open_page: OpenPage, server: RunningServer) -> None:
    page, watch = open_page(width=390)
    page.goto(f"{server.url}/play?metric=viewer_runs.Critic&metric=length")
    page.wait_for_selector("#metrics input", state="attached")
    page.fill("#output", f"bad {ATTACK} {CONTROLS.replace(chr(0), '')} \u202e")
    page.wait_for_selector("#findings mark.major", timeout=60_000)
    assert page.title() == "metrist: playground"
    assert page.locator("main script, main img").count() == 0
    assert "\u202e" not in page.locator("#findings").inner_html()
    page.fill("#output", "x" * 60_000)
    page.wait_for_selector("#size.message")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert watch.errors == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_serious_fault_of_accessibility(
    open_page: OpenPage, server: RunningServer, axe: Callable[[Any], list[str]], scheme: str
) -> None:
    page, _ = open_page(color_scheme=scheme, bypass_csp=True)
    page.goto(f"{server.url}/play?metric=viewer_runs.Critic&metric=rougeL")
    page.wait_for_selector("#metrics input")
    page.click("#example")
    wait_for_score(page, "rougeL", "0.")
    assert axe(page) == []
