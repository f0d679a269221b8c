"""Annotation in a real browser: every schema, reload, two raters, two tabs, undo, hostile texts, keyboard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from annotation_projects import make_project, make_rows, read_clicks, serve_project
from metrist.web.annotation import estimates
from metrist.web.annotation.answers import Answers
from metrist.web.annotation.export import export_rows
from metrist.web.annotation.project import Project, open_project
from web_server import RunningServer

ATTACK = "<script>document.title='hit'</script><img src=x onerror=\"document.title='hit'\">"
HOSTILE = f"{ATTACK} \u202egnp.exe \0 \x1b[31m \ud800 </div>"
OpenPage = Callable[..., tuple[Any, Any]]


def enter(open_page: OpenPage, server: RunningServer, token: str, **settings: Any) -> tuple[Any, Any]:
    """Open a personal link and wait for the first task."""
    page, watch = open_page(**settings)
    page.context.set_default_timeout(60_000)
    page.goto(f"{server.url}/?token={token}")
    page.wait_for_selector("#next, table")
    return page, watch


def expect(locator: Any) -> Any:
    """Playwright's assertions, which wait; its `wait_for_function` needs eval, which the pages forbid."""
    from playwright.sync_api import expect as expect_locator

    expect_locator.set_options(timeout=60_000)
    return expect_locator(locator)


def wait_saved(page: Any) -> None:
    page.wait_for_selector(".saved:text-is('Saved')")  # Not "Not saved yet".


def exported(project: Project) -> list[dict[str, Any]]:
    with project.open_store() as store:
        answers = Answers(project, store)
        answers.refresh()
        return list(export_rows(answers))


def first_task(project: Project, rater: int = 0) -> Any:
    return project.tasks[project.raters[rater].assignments[0].task]


def select(page: Any, words: str) -> None:
    """Select words of the first output, as a mouse or a finger does."""
    page.evaluate(
        """words => {
            const node = [...document.querySelector('.output .text').childNodes].at(-1);
            const range = document.createRange();
            range.setStart(node, node.data.indexOf(words));
            range.setEnd(node, node.data.indexOf(words) + words.length);
            document.getSelection().removeAllRanges();
            document.getSelection().addRange(range);
        }""",
        words,
    )


def check_quiet(watch: Any, server: RunningServer) -> None:
    """The page asked this server only, and had no error."""
    assert [url for url in watch.requests if not url.startswith(server.url)] == []
    assert watch.errors == []


@contextmanager
def rate(open_page: OpenPage, project: Project, **settings: Any) -> Iterator[Any]:
    """The page of the first rater, which asks this server only and has no error."""
    with serve_project(project) as server:
        page, watch = enter(open_page, server, project.raters[0].token, **settings)
        yield page
        check_quiet(watch, server)


def test_ratings_by_keyboard_alone(open_page: OpenPage, tmp_path: Path) -> None:
    project = make_project(tmp_path, rows=make_rows(1))
    with rate(open_page, project) as page:
        for number in range(3):
            page.wait_for_selector(f"h2:has-text('Task {number + 1} of 3')", state="attached")
            for key in "123":
                page.keyboard.press(key)
            page.wait_for_selector(f"text={number + 1} of 3 done")
            page.keyboard.press("Enter")
        page.wait_for_selector("text=You are done")
    values = {"naturalness": [1.0], "relatedness": [2.0], "correctness": [3.0]}
    assert [row["ratings"] for row in exported(project)] == [values] * 3


def test_choices_between_two_outputs_whose_systems_are_hidden(open_page: OpenPage, tmp_path: Path) -> None:
    project = make_project(tmp_path, "pairwise", rows=make_rows(1, systems=("a", "b")))
    (assignment,) = project.raters[0].assignments
    shown = [record.output for record in first_task(project).records]
    with rate(open_page, project) as page:
        left = page.locator(".pair .text").nth(0).inner_text()
        assert left == shown[assignment.swapped]
        page.get_by_text("A is better").click()
        wait_saved(page)
    (row,) = exported(project)
    assert row["outputs"][row["ratings"]["overall"][0] - 1] == left


def test_errors_are_marked_with_the_mouse_and_by_typing(open_page: OpenPage, tmp_path: Path) -> None:
    text = "😀 The man\u202e was held on Tuesday."
    project = make_project(
        tmp_path, "errors", rows=[{"item": "1", "system": "s", "output": text, "source": "On Monday."}]
    )
    with rate(open_page, project) as page:
        select(page, "Tuesday")
        expect(page.locator("#mark-words")).to_have_value("Tuesday")
        page.fill("#mark-note", "It was Monday.")
        page.get_by_role("button", name="Mark", exact=True).click()
        page.wait_for_selector("mark.major")
        # By keyboard alone.
        page.locator("#task-title").focus()
        page.keyboard.press("m")
        page.keyboard.type("The man")
        page.keyboard.press("Enter")
        page.get_by_label("minor").check()
        page.keyboard.press("Enter")
        page.wait_for_selector("mark.minor")
        page.locator("#task-title").focus()
        page.keyboard.press("d")
        page.wait_for_selector("text=1 of 1 done")
    (row,) = exported(project)
    found = [(error["text"], error["severity"], error["explanation"]) for error in row["errors"]]
    assert found == [("The man", "minor", ""), ("Tuesday", "major", "It was Monday.")]
    assert [text[error["start"] : error["end"]] for error in row["errors"]] == ["The man", "Tuesday"]


def test_the_questionnaire_about_an_analysis(open_page: OpenPage, tmp_path: Path) -> None:
    errors = [{"aspect": "Accuracy", "severity": "major", "start": 0, "end": 6, "explanation": "Why."}] * 2
    project = make_project(tmp_path, "questionnaire", rows=[{**make_rows(1)[0], "errors": errors}])
    with rate(open_page, project) as page:
        for key in "12445":
            page.keyboard.press(key)
        page.wait_for_selector("text=1 of 1 done")
    (row,) = exported(project)
    assert (row["errors"], row["overlooked"], row["revision"], row["overall"]) == ([True, False], 4, 4, 5)


def test_keys_correct_a_task_that_is_answered(open_page: OpenPage, tmp_path: Path) -> None:
    project = make_project(tmp_path, rows=make_rows(1, systems=("a",)))
    chosen = ".question:nth-child({}) .choice:nth-child({}).chosen"
    with serve_project(project) as server:
        page, watch = enter(open_page, server, project.raters[0].token)
        for key in "1113":  # The last question is where a slip is noticed.
            page.keyboard.press(key)
        page.wait_for_selector(chosen.format(3, 3))
        wait_saved(page)
        page.goto(f"{server.url}/?token={project.raters[0].token}")
        page.get_by_role("button", name="Go through the answers").click()
        page.wait_for_selector(".question:nth-child(1).current")
        page.keyboard.press("2")
        page.wait_for_selector(chosen.format(1, 2))
        for key in "jk2":
            page.keyboard.press(key)
        page.wait_for_selector(chosen.format(2, 2))
        wait_saved(page)
        # Of a task that was skipped, too.
        page.keyboard.press("s")
        page.keyboard.press("1")
        expect(page.locator("#skip")).to_have_attribute("aria-pressed", "false")
        wait_saved(page)
        check_quiet(watch, server)
    (row,) = exported(project)
    assert row["ratings"] == {"naturalness": [2.0], "relatedness": [2.0], "correctness": [1.0]}
    given = [click.content["value"] for click in read_clicks(project) if click.kind == "set"]
    assert given == [1, 1, 1, 3, 2, 2, 1]  # What was replaced is kept.


def test_ratings_and_errors_in_one_pass_by_keyboard(open_page: OpenPage, tmp_path: Path) -> None:
    project = make_project(tmp_path, ["likert", "errors"], rows=make_rows(1, systems=("a",)))
    with rate(open_page, project) as page:
        page.keyboard.press("4")
        page.keyboard.press("m")
        page.keyboard.type("few words")
        for _ in range(2):
            page.keyboard.press("Enter")
        page.wait_for_selector("mark.major")
        page.locator("#task-title").focus()
        page.keyboard.press("d")
        page.wait_for_selector("text=1 of 1 done")
        wait_saved(page)
    (row,) = exported(project)
    assert row["ratings"] == {"overall": [4.0]}
    assert [error["text"] for error in row["errors"]] == ["few words"]


def test_errors_in_either_output_of_a_pair(open_page: OpenPage, tmp_path: Path) -> None:
    project = make_project(tmp_path, ["pairwise", "errors"], rows=make_rows(1, systems=("a", "b")))
    (assignment,) = project.raters[0].assignments
    with rate(open_page, project) as page:
        select(page, "few words")
        expect(page.locator("#mark-place")).to_contain_text("Output A")
        page.get_by_role("button", name="Mark", exact=True).click()
        page.wait_for_selector(".pair > :first-child mark.major")
        page.keyboard.press("Escape")
        page.get_by_text("B is better").click()
        page.get_by_role("button", name="All errors are marked").click()
        page.wait_for_selector("text=1 of 1 done")
        wait_saved(page)
    pair, *outputs = exported(project)
    assert pair["ratings"] == {"overall": [1 if assignment.swapped else 2]}
    assert [len(row["errors"]) for row in outputs] == ([0, 1] if assignment.swapped else [1, 0])


def test_on_a_phone_the_marked_words_stay_in_view(open_page: OpenPage, tmp_path: Path) -> None:
    output = f"{'A long text. ' * 25}It ends here."
    rows = [{"item": "1", "system": "s", "output": output, "source": "x " * 500}]
    project = make_project(tmp_path, ["reliability", "errors"], rows=rows)
    with rate(open_page, project, width=390, height=700) as page:
        select(page, "ends here")
        page.wait_for_selector(".mark-form:visible")
        words, form, window = page.evaluate(
            """() => [document.getSelection().getRangeAt(0).getBoundingClientRect().bottom,
                      document.querySelector('.mark-form').getBoundingClientRect().top,
                      document.querySelector('.mark-form button.primary').getBoundingClientRect().bottom]"""
        )
        assert 0 < words < form < window <= 700
        page.get_by_role("button", name="Mark", exact=True).click()
        page.wait_for_selector("mark.major")
        expect(page.locator(".mark-form")).to_be_hidden()
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_guidelines_come_first_and_the_end_is_said(open_page: OpenPage, tmp_path: Path) -> None:
    (tmp_path / "rules.txt").write_text(f"Read the **source**. {ATTACK}")
    project = make_project(
        tmp_path, "likert", rows=make_rows(1, systems=("a",)), raters=2, guidelines=tmp_path / "rules.txt"
    )
    with serve_project(project) as server:
        for rater, key in zip(project.raters, "25", strict=True):
            page, watch = enter(open_page, server, rater.token)
            expect(page.locator("dialog[open]")).to_contain_text(f"Read the source. {ATTACK}")
            expect(page.locator("dialog .own strong")).to_have_text("source")
            expect(page.locator("dialog[open]")).to_contain_text("very high quality")
            page.keyboard.press("Escape")
            page.keyboard.press(key)
            page.wait_for_selector("text=1 of 1 done")
            page.keyboard.press("Enter")
            page.wait_for_selector("text=You are done")
            page.goto(f"{server.url}/?token={rater.token}")
            page.wait_for_selector("text=You are done")
            assert page.locator("dialog[open]").count() == 0
            check_quiet(watch, server)
        owner, watch = enter(open_page, server, project.owner_token)
        owner.wait_for_selector("text=Alpha is 1 if raters always agree")
        owner.locator(".dispute summary").click()
        expect(owner.locator(".dispute")).to_contain_text("overall: r1 2, r2 5")
        check_quiet(watch, server)


def test_a_reload_in_the_middle_goes_on_where_it_was(open_page: OpenPage, tmp_path: Path) -> None:
    project = make_project(tmp_path)
    with serve_project(project) as server:
        page, _ = enter(open_page, server, project.raters[0].token)
        for key in "321":
            page.keyboard.press(key)
        page.wait_for_selector("text=1 of 12 done")
        page.keyboard.press("Enter")
        page.wait_for_selector("h2:has-text('Task 2')")
        page.keyboard.press("2")
        wait_saved(page)
        page.reload()
        page.wait_for_selector("h2:has-text('Task 2')")
        assert page.locator(".question").nth(0).locator("input:checked").count() == 1
        assert page.locator(".question.current").count() == 1
        # A new visit begins with the first task that is not done.
        page.goto(f"{server.url}/?token={project.raters[0].token}")
        page.wait_for_selector("h2:has-text('Task 2')")


def test_an_open_page_goes_on_in_the_order_of_what_ratings_tell(
    open_page: OpenPage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimates, "FIRST_TASKS", 20)
    rows = [{**row, "scores": {"m": number}} for number, row in enumerate(make_rows(10))]
    project = make_project(tmp_path, "likert", rows=rows, order="informative")
    with rate(open_page, project) as page:
        for number in range(20):
            expect(page.locator("#task-title")).to_have_text(f"Task {number + 1} of 30")
            page.keyboard.press(str(1 + number % 5))
            wait_saved(page)
            page.keyboard.press("Enter")
        expect(page.locator("#task-title")).to_have_text("Task 21 of 30")
        chances = open_project(project.folder).chances
        first = min(chances, key=lambda task: chances[task].priority)
        expect(page.locator(".output .text")).to_have_text(project.tasks[first].records[0].output)
        page.keyboard.press("3")
        wait_saved(page)
    assert len(exported(project)) == 21


def test_two_raters_at_once_do_not_see_each_other(open_page: OpenPage, tmp_path: Path) -> None:
    project = make_project(tmp_path, rows=make_rows(1, systems=("a",)), raters=2)
    with serve_project(project) as server:
        pages = [enter(open_page, server, rater.token)[0] for rater in project.raters]
        for position in range(3):
            for page, key in zip(pages, "13", strict=True):
                page.keyboard.press(key)
                page.wait_for_selector(f".question:nth-child({position + 1}) .choice.chosen")
        for page in pages:
            page.wait_for_selector("text=1 of 1 done")
        owner, watch = enter(open_page, server, project.owner_token)
        owner.wait_for_selector("text=1 of 1")
        # Without attention items and remarks there are no columns for them.
        heads = ["Rater", "Done", "Last click", "Personal link"]
        assert owner.locator("table:has(progress) thead th").all_inner_texts() == heads
        assert "Remark" not in owner.locator("thead").all_inner_texts()[-1]
        check_quiet(watch, server)
    (row,) = exported(project)
    assert (row["raters"], row["ratings"]["correctness"]) == (["r1", "r2"], [1.0, 3.0])


def test_two_tabs_show_the_same_and_undo_works_in_both(open_page: OpenPage, tmp_path: Path) -> None:
    project = make_project(tmp_path)
    with serve_project(project) as server:
        one, _ = enter(open_page, server, project.raters[0].token)
        other = one.context.new_page()
        other.goto(server.url)
        other.wait_for_selector("#next")
        one.keyboard.press("1")
        other.wait_for_selector(".choice.chosen")
        other.keyboard.press("2")
        expect(one.locator(".choice.chosen")).to_have_count(2)
        one.keyboard.press("z")
        expect(other.locator(".choice.chosen")).to_have_count(1)
        other.get_by_role("button", name="Undo").click()
        expect(one.locator(".choice.chosen")).to_have_count(0)
    assert [click.kind for click in read_clicks(project)] == ["set", "set", "undo", "undo"]


def test_clicks_are_kept_while_the_server_is_away(open_page: OpenPage, tmp_path: Path) -> None:
    project = make_project(tmp_path)
    with serve_project(project) as server:
        page, _ = enter(open_page, server, project.raters[0].token)
        page.route("**/api/clicks", lambda route: route.abort())
        page.keyboard.press("1")
        page.wait_for_selector(".saved.waiting")
        assert read_clicks(project) == []
        # The tab crashes; the next one sends what it had kept.
        page.evaluate("window.onbeforeunload = null")
        other = page.context.new_page()
        page.close(run_before_unload=False)
        other.goto(server.url)
        other.wait_for_selector(".choice.chosen")
        assert len(read_clicks(project)) == 1


@pytest.mark.parametrize("status", [503, 401, 409])
def test_a_click_waits_until_what_keeps_it_is_mended(open_page: OpenPage, tmp_path: Path, status: int) -> None:
    project = make_project(tmp_path)
    with serve_project(project) as server:
        page, _ = enter(open_page, server, project.raters[0].token)
        page.route("**/api/clicks", lambda route: route.fulfill(status=status, json={"error": "Open your link."}))
        page.keyboard.press("1")
        page.wait_for_selector(".saved.waiting")
        if status < 500:
            page.wait_for_selector("text=Open your link.")
        assert read_clicks(project) == []
        page.unroute("**/api/clicks")
        wait_saved(page)
        assert len(read_clicks(project)) == 1


def test_the_owner_adds_a_rater(open_page: OpenPage, tmp_path: Path) -> None:
    project = make_project(tmp_path)
    with serve_project(project) as server:
        owner, watch = enter(open_page, server, project.owner_token)
        for name in ("Zoë", "r1"):
            owner.fill("#new-rater", name)
            owner.get_by_role("button", name="Add", exact=True).click()
            owner.wait_for_selector("th:has-text('Zoë')" if name == "Zoë" else ".message.bad:has-text('twice')")
        link = owner.locator("tr:has-text('Zoë') code").inner_text()
        page, _ = open_page()
        page.goto(link)
        page.wait_for_selector("text=0 of 12 done")
        assert [url for url in watch.requests if not url.startswith(server.url)] == []


def test_hostile_texts_change_nothing_but_their_own_box(open_page: OpenPage, tmp_path: Path) -> None:
    rows = [
        {"item": "1", "system": "s", "output": HOSTILE, "source": "x" * 1_000_000, "instruction": HOSTILE},
        {"item": "2", "system": ATTACK, "output": "y" * 1_000_000, "source": HOSTILE},
    ]
    for schema in ("reliability", "errors"):
        (tmp_path / schema).mkdir()
        project = make_project(tmp_path / schema, schema, rows=rows, raters=[ATTACK])
        with serve_project(project) as server:
            page, watch = enter(open_page, server, project.raters[0].token)
            page.keyboard.press("ArrowRight")
            page.wait_for_selector("h2:has-text('Task 2')")
            assert page.title() != "hit"
            assert page.locator("main script, main img").count() == 0
            assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
            page.get_by_role("button", name="Show more").first.click()
            check_quiet(watch, server)
            owner, watch = enter(open_page, server, project.owner_token)
            assert owner.title() != "hit"
            check_quiet(watch, server)


@pytest.mark.parametrize(
    "schema", ["reliability", "likert", "pairwise", "errors", "questionnaire", ["likert", "errors"]], ids=str
)
def test_pages_fit_a_phone_and_have_no_serious_fault(
    open_page: OpenPage, axe: Callable[[Any], list[str]], tmp_path: Path, schema: str | list[str]
) -> None:
    errors = [{"aspect": "Accuracy", "severity": "major", "start": 0, "end": 6, "explanation": "Why."}]
    project = make_project(tmp_path, schema, rows=[{**row, "errors": errors} for row in make_rows(2)])
    with serve_project(project) as server:
        for scheme, token in (("light", project.raters[0].token), ("dark", project.owner_token)):
            page, _ = enter(open_page, server, token, width=390, color_scheme=scheme)
            assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
            assert axe(page) == []
