"""The viewer in a real browser: each flow, hostile texts, no request to anywhere else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from metrist.web.playground import Playground, offer_metrics
from metrist.web.security import Access
from metrist.web.server import create_app
from metrist.web.viewed_run import open_view
from metrist.web.viewer import Collection, Viewer
from viewer_runs import ATTACK, make_run
from web_server import RunningServer, run_server, wait_until

OpenPage = Callable[..., tuple[Any, Any]]
SECOND = f"second {ATTACK}"


@pytest.fixture
def picks(tmp_path: Path) -> Path:
    return tmp_path / "picked.jsonl"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder)
    make_run(folder, "later", version=" quietly")
    return folder


@pytest.fixture
def server(folder: Path, picks: Path) -> Iterator[RunningServer]:
    indexes = [open_view(folder / name) for name in ("run", "later")]
    viewer = Viewer(collection=Collection(indexes), picks=picks)
    playground = Playground(metrics=offer_metrics())
    with run_server(create_app([*viewer.routes(), *playground.routes()], Access())) as running:
        yield running
    playground.close()
    for index in indexes:
        index.close()


def visit(open_page: OpenPage, address: str) -> tuple[Any, Any]:
    page, watch = open_page()
    page.goto(address)
    return page, watch


def wait_for_count(page: Any, words: str) -> None:
    wait_until(page, "words => document.getElementById('status').textContent.startsWith(words)", words)


def test_filter_sort_and_search(open_page: OpenPage, server: RunningServer) -> None:
    page, watch = visit(open_page, server.url)
    wait_for_count(page, "12 outputs")
    page.fill("#text", "cat sat")
    wait_for_count(page, "2 of 12")
    assert page.locator("mark.hit").count() == 2
    assert "q=cat+sat" in page.url
    page.click("#reset")
    wait_for_count(page, "12 outputs")
    page.select_option("#errors", "major")
    wait_for_count(page, "1 of 12")
    page.select_option("#errors", "")
    page.select_option("#system", "first")
    wait_for_count(page, "6 of 12")
    page.select_option("#range-column", "characters")
    page.fill("#low", "1000")
    page.press("#low", "Enter")
    wait_for_count(page, "1 of 12")
    page.click("#chips button")
    wait_for_count(page, "6 of 12")
    page.wait_for_selector("#outputs th[aria-sort=ascending] >> text=chrf")  # The worst come first.
    page.click("#outputs th >> text=chrf")
    page.wait_for_selector("#outputs th[aria-sort=descending]")
    assert "sort=chrf" in page.url
    assert watch.errors == []


def test_every_view_has_a_link_and_a_way_back(open_page: OpenPage, server: RunningServer) -> None:
    page, _ = visit(open_page, f"{server.url}/?sort=input")
    page.click("text=bad words >> nth=0")
    page.wait_for_selector("#detail mark.major")
    assert page.locator("#detail mark.major").all_inner_texts() == ["bad", "bad"]
    other, _ = open_page()
    other.goto(page.url)
    other.wait_for_selector("#detail mark.major")
    assert other.locator("#detail h2").inner_text() == page.locator("#detail h2").inner_text()
    page.go_back()
    page.wait_for_selector("#detail", state="hidden")
    page.go_forward()
    page.wait_for_selector("#detail", state="visible")


def test_scores_errors_reasons_and_heat_are_beside_the_text(open_page: OpenPage, server: RunningServer) -> None:
    page, _ = visit(open_page, f"{server.url}/?{urlencode({'item': 'bad words', 'of': 'first'})}")
    page.wait_for_selector("#detail .heat")
    detail = page.locator("#detail")
    text = detail.inner_text()
    assert f"Because {ATTACK}" in text
    assert "people: fluency (2 ratings)" in text
    assert "Another reference" in text
    assert "Shorten it." in text
    assert detail.locator(".errors li").count() == 2
    assert detail.locator(".heat .s4").count() > 0
    assert "log-probability -3.00" in detail.locator(".heat .t", has_text="bad").first.get_attribute("title")
    assert detail.locator(".sibling ins").all_inner_texts() == ["good", "good"]


def test_the_list_says_what_was_asked_and_what_was_not_checked(open_page: OpenPage, server: RunningServer) -> None:
    page, _ = visit(open_page, f"{server.url}/?errors=unchecked")
    wait_for_count(page, "1 of 12 outputs, worst first by chrf")
    row = page.locator("#outputs tbody tr")
    assert "Shorten it." in row.inner_text()
    assert f"not checked by viewer_runs.Critic: will not judge {ATTACK}" in row.inner_text()
    row.locator("a").click()
    page.wait_for_selector("#detail .checks")
    assert page.locator("#detail .checks").inner_text() == f"viewer_runs.Critic: not checked: will not judge {ATTACK}"
    assert "Not scored by" not in page.locator("#detail").inner_text()
    page.goto(f"{server.url}/?errors=none&sort=input")
    wait_for_count(page, "9 of 12")
    assert page.locator("#shared").inner_text() == "Instruction: Shorten it."
    page.click("#outputs tbody a >> nth=0")
    page.wait_for_selector("#detail .checks")
    assert page.locator("#detail .checks").inner_text().startswith("viewer_runs.Critic: no errors")


@pytest.mark.parametrize("path", ["/?vs=run:1", "/?item=bad+words&of=first", "/play"])
def test_fingers_find_every_control_on_a_phone(open_page: OpenPage, server: RunningServer, path: str) -> None:
    page, _ = open_page(width=390, has_touch=True, is_mobile=True)
    page.goto(server.url + path)
    page.wait_for_selector({"/play": "#metrics input"}.get(path, "#outputs tbody tr, #detail h2"), state="attached")
    # 44 CSS pixels, the target size of WCAG 2.5.5; a checkbox counts with its label.
    small = """() => [...document.querySelectorAll('button, select, input, textarea, .bar a')]
        .map(control => (control.type === 'checkbox' && control.closest('label')) || control)
        .filter(target => target.checkVisibility() && target.getBoundingClientRect().height < 44)
        .map(target => target.outerHTML)"""
    assert page.evaluate(small) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_two_runs_are_compared_with_word_differences(open_page: OpenPage, server: RunningServer) -> None:
    page, _ = visit(open_page, server.url)
    page.wait_for_selector("#versus option[value='run:1']", state="attached")
    page.select_option("#versus", "run:1")
    page.wait_for_selector(".change")
    page.check("#differing")
    wait_for_count(page, "1 of 12")
    page.select_option("#sort", "chrf change")
    page.click("#outputs tbody a")
    page.wait_for_selector("#detail del")
    assert page.locator("#detail del").all_inner_texts() == ["quietly"]
    page.keyboard.press("d")
    page.wait_for_selector("#detail del", state="detached")


def test_two_systems_are_compared(open_page: OpenPage, server: RunningServer) -> None:
    page, _ = visit(
        open_page, f"{server.url}/?{urlencode({'vs': f'system:{SECOND}', 'item': 'bad words', 'of': 'first'})}"
    )
    page.wait_for_selector("#detail .pair del")
    assert page.locator("#detail .pair del").all_inner_texts()[:2] == ["good", "good"]
    wait_for_count(page, "6 of 12")


def test_keys_step_pick_and_close(open_page: OpenPage, server: RunningServer) -> None:
    page, _ = visit(open_page, f"{server.url}/?sort=input")
    wait_for_count(page, "12 outputs")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_selector("#detail h2")
    assert "plain · first" in page.locator("#detail h2").inner_text()
    page.keyboard.press("j")
    wait_until(page, "() => document.querySelector('#detail h2').textContent.includes('second')")
    page.keyboard.press("x")
    page.wait_for_selector("#pick-this[aria-pressed=true]")
    page.keyboard.press("Escape")
    page.wait_for_selector("#detail", state="hidden")
    assert page.evaluate("document.activeElement.closest('tr').rowIndex") == 2
    page.keyboard.press("/")
    page.keyboard.type("jjj")
    wait_for_count(page, "0 of 12")
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    assert page.locator("#help").is_visible()


def test_an_output_opens_in_the_playground(open_page: OpenPage, server: RunningServer) -> None:
    page, watch = visit(open_page, f"{server.url}/?item=plain&of=first")
    page.click("#detail >> text=Playground")
    page.wait_for_selector("#metrics input", state="attached")
    fields = {name: page.input_value(f"#{name}") for name in ("output", "instruction", "references", "task")}
    assert fields == {
        "output": "The cat sat on the mat.",
        "instruction": "Shorten it.",
        "references": "The cat sat on the mat.\nAnother reference",
        "task": "translation",
    }
    assert watch.errors == []


def test_picked_outputs_are_exported_and_sent_to_annotation(
    open_page: OpenPage, server: RunningServer, picks: Path, tmp_path: Path
) -> None:
    page, _ = open_page(accept_downloads=True)
    page.goto(f"{server.url}/?q=cat+sat&sort=input")
    wait_for_count(page, "2 of 12")
    page.click("#pick-all")
    page.wait_for_selector("#export", state="visible")
    # The list is drawn again with its picks.
    wait_until(page, "() => document.querySelectorAll('#outputs tbody input:checked').length === 2")
    page.locator("#outputs tbody input").nth(1).uncheck()
    wait_until(page, "() => document.getElementById('picked').textContent === '1 picked'")
    with page.expect_download() as download:
        page.click("#export")
    download.value.save_as(tmp_path / "exported.jsonl")
    (row,) = map(json.loads, (tmp_path / "exported.jsonl").read_text(encoding="utf-8").splitlines())
    assert (row["item"], row["system"], row["output"]) == ("plain", "first", "The cat sat on the mat.")
    page.click("#send")
    wait_until(page, "() => document.getElementById('status').textContent.includes('metrist annotate')")
    assert picks.read_bytes() == (tmp_path / "exported.jsonl").read_bytes()
    page.reload()
    wait_until(page, "() => document.getElementById('picked').textContent === '1 picked'")


@pytest.mark.parametrize("width", [390, 1280])
def test_hostile_texts_change_nothing_but_their_own_box(open_page: OpenPage, server: RunningServer, width: int) -> None:
    page, watch = open_page(width=width)
    for item in (f"attack {ATTACK}", "override \u202eitem", "long", "failed"):
        for system in ("first", SECOND):
            page.goto(f"{server.url}/?{urlencode({'item': item, 'of': system, 'q': ATTACK, 'in': 'item'})}")
            page.wait_for_selector("#detail h2")
            assert page.title() == "metrist: outputs"
            assert page.locator("#layout script, #layout img, #layout iframe").count() == 0
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.goto(f"{server.url}/?{urlencode({'item': 'override ' + chr(0x202E) + 'item', 'of': SECOND})}")
    page.wait_for_selector("#detail .escape")
    shown = page.locator("#detail .main-text").inner_text()
    assert "nul \\u0000 escape \\u001b[31mred" in shown
    assert not any(control in page.content() for control in "\x00\x1b\x07\u202e\u2066")
    assert watch.errors == []
    assert [url for url in watch.requests if not url.startswith(f"{server.url}/")] == []


def test_a_line_of_a_million_characters_is_shown_in_parts(open_page: OpenPage, server: RunningServer) -> None:
    page, _ = visit(open_page, f"{server.url}/?item=long&of=first")
    more = page.locator("#detail .main-text button")
    more.wait_for()
    before = page.evaluate("document.querySelector('#detail .main-text').textContent.length")
    assert before < 30_000
    more.click()
    assert page.evaluate("document.querySelector('#detail .main-text').textContent.length") > before
    box = page.locator("#detail .main-text").bounding_box()
    assert box["width"] < 800
    assert box["height"] < 800


def test_a_wrong_address_says_what_is_wrong(open_page: OpenPage, server: RunningServer) -> None:
    page, _ = visit(open_page, f"{server.url}/?sort={quote('<b>nothing')}")
    page.wait_for_selector("#problem", state="visible")
    assert "<b>nothing" in page.locator("#problem").inner_text()
    page.goto(f"{server.url}/?item=no&of=such")
    page.wait_for_selector("#detail [role=alert]")
    page.goto(f"{server.url}/nowhere")
    assert page.locator("h1").inner_text() == "Not found"


def test_scripts_cannot_make_html_from_text(open_page: OpenPage, server: RunningServer) -> None:
    page, _ = visit(open_page, server.url)
    made = "() => { try { document.body.innerHTML = '<b>x</b>'; return 'made'; } catch (error) { return error.name; } }"
    assert page.evaluate(made) == "TypeError"
    loaded = "() => fetch('https://example.com/').then(() => 'loaded', () => 'refused')"
    assert page.evaluate(loaded) == "refused"


def test_another_site_can_link_here_and_nothing_else(open_page: OpenPage, server: RunningServer, folder: Path) -> None:
    index = open_view(folder / "run")
    viewer = Viewer(collection=Collection([index]), picks=folder / "p.jsonl")
    with run_server(create_app(viewer.routes(), Access(tokens={"a-token": "owner"}))) as guarded:
        page, _ = open_page()
        # localhost and 127.0.0.1 are two sites for a browser.
        foreign = f"http://localhost:{server.port}"
        page.goto(f"{foreign}/nowhere")
        attempt = "url => fetch(url, {mode: 'no-cors', method: 'POST', body: '{}'}).then(() => 'sent', () => 'refused')"
        assert page.evaluate(attempt, f"{guarded.url}/api/picks") == "refused"
        page.goto(guarded.url)
        assert page.locator("h1").inner_text() == "A token is needed"
        # A link on another site, such as one in a mail.
        page.goto(f"{foreign}/nowhere")
        link = (
            "url => { const link = document.createElement('a'); link.href = url;"
            " document.body.append(link); link.click(); }"
        )
        page.evaluate(link, f"{guarded.url}/?token=a-token&q=cat")
        page.wait_for_url(f"{guarded.url}/?q=cat")
        wait_for_count(page, "2 of 12")
        assert "token" not in page.url
        (cookie,) = page.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    index.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_no_serious_fault_of_accessibility(
    open_page: OpenPage, server: RunningServer, axe: Callable[[Any], list[str]], scheme: str, width: int
) -> None:
    page, _ = open_page(width=width, color_scheme=scheme, bypass_csp=True)
    page.goto(f"{server.url}/?vs=run:1")
    wait_for_count(page, "12")
    assert axe(page) == []
    page.goto(f"{server.url}/?{urlencode({'vs': 'run:1', 'item': 'bad words', 'of': 'first'})}")
    page.wait_for_selector("#detail .heat")
    assert axe(page) == []
