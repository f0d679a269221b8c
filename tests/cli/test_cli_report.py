"""`metrist report` and `metrist plot`, called as a user calls them."""

from __future__ import annotations

import json
import shlex
import shutil
from html import unescape
from pathlib import Path

import pytest


def test_a_page_is_written(metrist, run: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    answer = metrist("report", run, "-o", page, "--draws", 200, "--title", "Two <systems>")
    assert answer.code == 0, answer.err
    assert f"wrote {page}" in answer.err
    text = page.read_text(encoding="utf-8")
    assert "<title>Two &lt;systems&gt;</title>" in text
    assert "good beats bad on both metrics (chrf " in text
    assert f"metrist report {run} -o {page} --draws 200 --title &#39;Two &lt;systems&gt;&#39;" in text


def test_the_commands_repeat_the_run(metrist, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the folder of the report, and with the options with which the files were read."""
    (tmp_path / "data").mkdir()
    rows = "key;prediction;reference\n" + "".join(f"{n};The cat sat {n}.;The cat sat here {n}.\n" for n in range(6))
    (tmp_path / "data" / "one system.csv").write_text(rows, encoding="utf-8")
    monkeypatch.chdir(tmp_path / "data")
    columns = ("--field", "item=key", "--field", "output=prediction", "--system", "a", "--delimiter", ";")
    assert metrist("score", "one system.csv", *columns, "-m", "short=chrf(char_order=3)", "-o", "run/").code == 0
    monkeypatch.chdir(tmp_path)
    answer = metrist("report", "data/run", "-o", "report.html", "--draws", 200)
    assert answer.code == 0, answer.err
    page = unescape(Path("report.html").read_text(encoding="utf-8"))
    command = next(line for line in page.splitlines() if "metrist score " in line)
    arguments = shlex.split(command[command.index("metrist score ") :].partition("<")[0])[1:]
    assert arguments[1] == "data/one system.csv"
    before = {path: path.read_bytes() for path in Path("data/run/results").rglob("*.*")}
    shutil.rmtree("data/run")
    assert metrist(*arguments).code == 0
    assert {path: path.read_bytes() for path in Path("data/run/results").rglob("*.*")} == before


def test_a_pull_request_is_printed(metrist, run: Path) -> None:
    answer = metrist("report", run, "--format", "pr", "--draws", 200)
    assert answer.code == 0, answer.err
    assert answer.out.startswith("## Evaluation of run\n")
    assert "good beats bad" in answer.out


@pytest.mark.parametrize("form", ["html", "pr"])
def test_only_reports_are_replaced(metrist, run: Path, tmp_path: Path, form: str) -> None:
    page = tmp_path / "page"
    report = ("report", run, "--format", form, "--draws", 100, "-o", page)
    assert metrist(*report).code == 0
    assert metrist(*report).code == 0
    page.write_text("<html><body>My metrist notes</body></html>")
    refused = metrist(*report)
    assert (refused.code, "holds no report" in refused.err) == (2, True)
    assert "My metrist notes" in page.read_text()


@pytest.mark.parametrize("scored", ["rows", "file", "run", "stored"])
def test_skipped_rows_are_told_on_the_page_and_in_the_terminal(metrist, tmp_path: Path, scored: str) -> None:
    rows = [
        {"item": str(n), "system": s, "output": f"w {n}", "references": ["w"], "scores": {"q": n + 0.5}}
        for n in range(4)
        for s in "ab"
    ]
    (file := tmp_path / "rows.jsonl").write_text("\n".join([*map(json.dumps, rows), "{broken", '{"item": 3}']) + "\n")
    page = tmp_path / "report.html"
    sources: dict[str, list[object]] = {
        "rows": [file, "-m", "rougeL", "--skip-bad"],
        "stored": [file, "--skip-bad"],
        "file": [tmp_path / "out.jsonl", file, "--skip-bad"],
        "run": [tmp_path / "run"],
    }
    if scored in ("file", "run"):
        assert metrist("score", file, "-m", "rougeL", "--skip-bad", "-o", sources[scored][0]).code == 0
    answer = metrist("report", *sources[scored], "-o", page, "--draws", 100)
    assert answer.code == 0, answer.err
    for text in (answer.err, unescape(page.read_text(encoding="utf-8"))):
        assert text.count("2 bad rows were skipped; the first: ") == 1


def test_an_input_is_not_overwritten(metrist, outputs: Path) -> None:
    before = outputs.read_bytes()
    assert metrist("report", outputs, "-m", "rougeL", "-o", outputs).code == 2
    assert outputs.read_bytes() == before
