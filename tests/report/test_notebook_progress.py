"""The line of progress in notebooks, drawn through a stand-in for IPython; a real kernel draws the same objects."""

from __future__ import annotations

import contextlib
import sys
import threading
import types
from typing import Any

import pytest

import metrist
from metrist.report.progress import ProgressReport, _NotebookLine, in_notebook, report_progress, show_in_notebook

ROWS = [{"item": str(n), "system": "s", "output": "a b", "references": ["a b"]} for n in range(5)]


class Shown:
    """What was displayed, and the drawings that replaced it, one list per display."""

    def __init__(self) -> None:
        self.lines: list[list[Any]] = []

    def display(self, line: Any, *, display_id: bool) -> Any:
        assert display_id
        drawings = [line]
        self.lines.append(drawings)
        return types.SimpleNamespace(update=drawings.append)


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Shown:
    shown = Shown()
    ipython, display = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    display.display = shown.display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return shown


def test_a_run_in_a_notebook_shows_one_line_that_ends_with_what_was_done(notebook: Shown) -> None:
    metrist.score(ROWS, {"short": "rougeL"})
    ((first, *_, last),) = notebook.lines
    assert repr(first).startswith("scoring")
    assert repr(last).startswith("scoring: 5 records in 0:00:0")
    assert first._repr_html_() == '<progress value="0" max="5"></progress> scoring short: 0 of 5 records (0 %)'
    assert last._repr_html_() == repr(last)


def test_a_terminal_of_ipython_and_a_plain_program_show_nothing(
    notebook: Shown, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", types.SimpleNamespace)
    assert not in_notebook()
    metrist.score(ROWS, "rougeL")
    monkeypatch.delitem(sys.modules, "IPython")
    metrist.score(ROWS, "rougeL")
    assert notebook.lines == []
    assert capsys.readouterr() == ("", "")


def test_progress_can_be_switched_on_and_off(
    notebook: Shown, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    metrist.score(ROWS, "rougeL", progress=False)
    calls = []
    metrist.score(ROWS, "rougeL", progress=lambda done, total: calls.append((done, total)))
    assert calls == [(5, 5)]
    assert notebook.lines == []
    monkeypatch.delitem(sys.modules, "IPython")
    metrist.prefer([*ROWS, *({**row, "system": "t"} for row in ROWS)], "rougeL", progress=True)
    assert capsys.readouterr().err == "metrist: comparing: 5 pairs in 0:00:00\n"


def test_the_line_is_drawn_again_at_most_five_times_a_second_from_any_thread(notebook: Shown) -> None:
    now = 0.0
    report = ProgressReport("scoring", clock=lambda: now)
    with show_in_notebook(report, clock=lambda: now):
        for step in range(16):
            now = step / 8
            thread = threading.Thread(target=report, args=(step, 16))
            thread.start()
            thread.join()
    ((first, *between, last),) = notebook.lines
    assert [line.position for line in (first, *between)] == [(done, 16) for done in range(0, 16, 2)]
    assert repr(last) == "scoring: 15 records in 0:00:02"
    assert repr(between[1]).startswith("scoring: 4 of 16 records (25 %), 8.0/s, 0:00:0")


def test_a_run_that_fails_says_where_it_stopped_and_watches_no_longer(notebook: Shown) -> None:
    from metrist.runtime import loading_watchers

    with pytest.raises(RuntimeError, match="no"), report_progress(ProgressReport("scoring")):
        raise RuntimeError("no")
    assert notebook.lines == []
    report = ProgressReport("scoring")
    with contextlib.suppress(KeyboardInterrupt), report_progress(report):
        report(3, 5)
        raise KeyboardInterrupt
    assert repr(notebook.lines[0][-1]) == "scoring: stopped after 3 records in 0:00:00"
    assert loading_watchers == []


def test_a_metric_with_markup_in_its_name_is_escaped(notebook: Shown) -> None:
    with report_progress(ProgressReport("scoring")) as report:
        report(0, 1, metric="<b>&\x1b[2J")
    assert "<b>" not in notebook.lines[0][-1]._repr_html_()
    assert _NotebookLine("<b>", (0, None))._repr_html_() == "<progress></progress> &lt;b&gt;"
