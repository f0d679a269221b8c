"""The report in a real browser: nothing is requested or run, texts stay texts, and everything works by keyboard."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from metrist.evaluate.report import build_report
from metrist.metrics.base import Metric
from metrist.ratings import Error
from metrist.records import Record
from metrist.run import score
from metrist.scores import Score

ATTACK = "<script>document.title='hit'</script><img src=https://example.org/x onerror=\"document.title='hit'\">"
HOSTILE = f"{ATTACK}\x00\x1b[31m\u202e</script><!--]]>"
Open = Callable[..., Any]


class Marks(Metric):
    """Marks the first word of each output."""

    catalog_name = "marks"
    bounds = (-5.0, 0.0)

    def score_record(self, record: Record) -> Score:
        end = len(record.output.split(" ")[0])
        if "fail" in record.output:
            return Score.failed(HOSTILE)
        error = Error(aspect=ATTACK, severity="major", penalty=1.0, explanation=HOSTILE, start=0, end=end)
        return Score(value=-float(end % 5), errors=(error,), explanation=HOSTILE)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("report")
    rows: list[dict[str, Any]] = []
    for n in range(40):
        for system, text in (("v1", f"first text {n} of the old version"), (f"v2 {ATTACK}", f"second text {n} new")):
            output = HOSTILE if n == 3 else "x" * 1_000_000 if n == 4 else "fail" if n == 5 else text
            ratings = {"quality": [1 + n % 3, 1 + n % 2]}
            rows.append(
                {"item": f"{n}", "system": system, "output": output, "references": [text], "source": HOSTILE}
                | {"ratings": ratings, "raters": ["r1", "r2"], "language": "en" if n % 2 else "de"}
            )
    results = score(rows, ["rougeL", "chrf", "length", Marks()], progress=False)
    page = build_report(results, rows, title=HOSTILE, draws=200).html()
    path = folder / "report.html"
    path.write_text(page, encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def page(open_page: Open, address: str) -> Any:
    page, watch = open_page(permissions=["clipboard-read", "clipboard-write"], accept_downloads=True)
    page.goto(address)
    yield page
    # Whatever a test did, nothing was requested from elsewhere, and nothing was run or refused.
    assert [url for url in watch.requests if not url.startswith(("file:", "blob:", "data:"))] == []
    assert watch.errors == []
    assert page.title() != "hit"


def test_texts_are_shown_and_never_run(page: Any) -> None:
    assert page.title().startswith("<script>document.title='hit'</script>")
    assert page.locator("img, iframe, link, object").count() == 0
    assert page.locator("script").count() == 2
    assert page.locator("h1").inner_text().startswith(ATTACK[:20])
    assert "\\u202e" in page.locator("h1").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_no_serious_fault_for_screen_readers(
    open_page: Open, address: str, axe: Callable[[Any], list[str]], width: int, scheme: str
) -> None:
    # axe-core is a script of the test, which the page's policy would refuse.
    page, _ = open_page(width=width, color_scheme=scheme, bypass_csp=True)
    page.goto(address)
    page.evaluate("document.querySelectorAll('details').forEach(details => { details.open = true; })")
    assert axe(page) == []


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_is_no_wider_than_the_screen(open_page: Open, address: str, width: int) -> None:
    page, _ = open_page(width=width)
    page.goto(address)
    page.evaluate("document.querySelectorAll('details').forEach(details => { details.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_an_error_tells_its_reason_on_hover_and_focus(page: Any) -> None:
    page.evaluate("document.querySelectorAll('#errors details').forEach(details => { details.open = true; })")
    mark = page.locator("#errors mark").first
    tip = mark.locator(".tip")
    assert not tip.is_visible()
    mark.focus()
    assert tip.is_visible()
    assert ATTACK in tip.inner_text()
    page.keyboard.press("Escape")
    assert not tip.is_visible()
    mark.blur()
    mark.hover()
    page.mouse.move(0, 0)
    mark.hover()
    assert tip.is_visible()


def test_a_table_is_copied(page: Any) -> None:
    copied = []
    for form in ("csv", "latex", "markdown"):
        page.locator(f"#systems button[data-copy={form}]").first.click()
        page.locator("#status", has_text="Copied").wait_for()
        copied.append(page.evaluate("navigator.clipboard.readText()"))
    assert copied[0].startswith("system,")
    assert r"\begin{table*}" in copied[1]  # Too wide for one column.
    assert copied[2].startswith("**System scores**")


@pytest.mark.parametrize(("kind", "opening"), [("svg", b"<svg "), ("png", b"\x89PNG")])
def test_a_figure_is_saved(page: Any, kind: str, opening: bytes, tmp_path: Path) -> None:
    with page.expect_download() as waiting:
        page.locator(f"#systems button[data-save={kind}]").first.click()
    assert waiting.value.suggested_filename == f"scores.{kind}"
    waiting.value.save_as(tmp_path / "figure")
    assert (tmp_path / "figure").read_bytes().startswith(opening)


def test_all_outputs_are_searched_sorted_and_put_side_by_side(page: Any) -> None:
    explorer = page.locator("#explorer")
    assert "80 of 80 outputs, page 1 of 16" in explorer.inner_text()
    explorer.get_by_label("Search").fill("second text 7")
    assert "1 of 80 outputs" in explorer.inner_text()
    assert not explorer.get_by_role("button", name="Next").is_visible()
    explorer.get_by_label("Beside it").select_option("0")
    assert explorer.locator(".pair ins, .pair del").count() > 0
    explorer.get_by_label("Search").fill("")
    explorer.get_by_label("System").select_option("1")
    explorer.get_by_label("Order").select_option(label="rougeL: worst first")
    assert explorer.locator("article").count() == 5
    explorer.get_by_role("button", name="Next").press("Enter")
    assert "page 2 of 8" in explorer.inner_text()


def test_turning_pages_is_offered_only_where_there_are_pages(page: Any) -> None:
    explorer = page.locator("#explorer")
    buttons = [explorer.get_by_role("button", name=name) for name in ("Previous", "Next")]
    assert all(button.is_visible() for button in buttons)
    explorer.get_by_label("Search").fill("in no text")
    assert "0 of 80 outputs" in explorer.inner_text()
    assert not any(button.is_visible() for button in buttons)
    explorer.get_by_label("Search").fill("")
    assert all(button.is_visible() for button in buttons)


@pytest.mark.parametrize(("width", "fits"), [(1280, True), (390, False)])
def test_the_head_of_a_long_table_stays_in_view(open_page: Open, address: str, width: int, fits: bool) -> None:
    """Below the contents where the table fits the page, else at the top of the box in which it scrolls."""
    page, _ = open_page(width=width, height=500)
    page.goto(address)
    box = page.locator("#people .table > .scroll").first
    box.evaluate("""(box) => {
        const rows = box.querySelector("tbody");
        for (let i = 0; i < 60; i += 1) rows.append(rows.lastElementChild.cloneNode(true));
    }""")
    page.wait_for_function("(box) => box.offsetHeight > 900 || box.scrollHeight > 900", arg=box.element_handle())
    assert box.evaluate("(box) => box.classList.contains('fits')") == fits
    box.evaluate("(box) => { box.scrollIntoView(); box.scrollTop = 400; }")
    page.mouse.wheel(0, 400 if fits else 0)
    page.wait_for_timeout(300)
    head = box.locator("thead th").first.bounding_box()
    top = page.locator("nav").bounding_box() if fits else box.bounding_box()
    expected = top["y"] + (top["height"] if fits else 0)
    assert head["y"] == pytest.approx(expected, abs=1.5)
    page.emulate_media(media="print")
    assert box.locator("thead th").first.evaluate("(head) => getComputedStyle(head).position") == "static"


def test_tables_and_figures_are_open_on_paper_and_texts_as_they_were_left(page: Any) -> None:
    closed = page.locator("details:not([open])")
    before = closed.count()
    page.locator("details:not([open]):has(figure)").first.evaluate("(details) => { details.id = 'figures'; }")
    contexts = page.locator("details.context:not([open])").count()
    page.emulate_media(media="print")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.locator("#figures").evaluate("(details) => details.open")
    assert page.locator("details.context:not([open])").count() == contexts > 0
    assert closed.evaluate_all(
        "(all) => all.every((details) => details.querySelector('.card') || details.closest('.card'))"
    )
    assert not page.locator("nav").is_visible()
    assert not closed.first.is_visible()
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert closed.count() == before


def test_sections_are_reached_by_keyboard(page: Any) -> None:
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.url.endswith("#verdict")


def test_the_data_of_the_page_cannot_end_its_script(page: Any) -> None:
    data = json.loads(page.locator("#data").text_content())
    assert "</script>" in json.dumps(data["explorer"]["outputs"][6]["output"])
