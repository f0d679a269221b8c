"""The progress bar."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fault_server import SILENT, Act, FaultServer, Request, answer
from metrist.cli.output import print_note
from metrist.cli.progress import AnswerWatch, format_progress, progress_bar
from metrist.llm import base, gateway
from metrist.llm.messages import Sampling
from scripted_llm import Scripted, say


@pytest.mark.parametrize(
    ("done", "total", "seconds", "words"),
    [
        (1000, 4000, 2.0, "1,000 of 4,000 records, 500/s, 0:00:06 left"),
        (1000, None, 2.0, "1,000 records, 500/s"),
        (4000, 3990, 2.0, "4,000 of 3,990 records, 2,000/s, 0:00:00 left"),
        (0, 10, 0.0, "0 of 10 records"),
    ],
)
def test_rate_and_time_left_are_shown_if_known(done: int, total, seconds: float, words: str) -> None:
    assert format_progress(done, total, seconds) == words


def test_nothing_is_drawn_without_a_terminal() -> None:
    with progress_bar("scoring") as draw:
        assert draw is None


def read_lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_a_failing_server_is_reported_at_once_and_then_every_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times = [100.0, 100.1, 109.9, 110.0, 111.0, 125.0]
    clock = iter(times)
    monkeypatch.setattr("metrist.cli.progress.monotonic", lambda: next(clock))
    with progress_bar("scoring"):
        for _ in times:
            base.Call().report_retry("the server answered 500: overloaded", 0.5)
    assert read_lines(capsys) == [
        "metrist: the server answered 500: overloaded; trying again in 0.5 seconds",
        "metrist: the server answered 500: overloaded; trying again in 0.5 seconds (4 attempts have failed so far)",
        "metrist: the server answered 500: overloaded; trying again in 0.5 seconds (6 attempts have failed so far)",
    ]
    base.Call().report_retry("nobody watches any more", 0.5)
    assert read_lines(capsys) == []


def test_answers_are_counted() -> None:
    drawn: list[str] = []
    watch = AnswerWatch(lambda: drawn.append(watch.message))
    assert watch.message == ""
    log = say(*(f"question {n}" for n in range(3)), "question 0", "fail")
    with base.watch(watch):
        gateway.complete(Scripted(), log, Sampling())
        gateway.complete(Scripted(), log[:2], Sampling())
    # Of equal questions one is asked; what is in the cache counts as answered at once.
    assert drawn[-1] == "6 of 6 answers"
    assert "2 of 4 answers" in drawn


def test_a_terminal_shows_records_and_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    import rich.progress

    far: list[str] = []
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr(rich.progress.Progress, "update", lambda *_, **changed: far.append(changed["far"]))
    with progress_bar("scoring") as draw:
        assert draw is not None
        base.report_requests(60)
        base.report_completions(17)
        draw(0, 20)
    assert far == ["0 of 60 answers", "17 of 60 answers", "0 of 20 records; 17 of 60 answers"]


def test_an_interrupted_run_prints_how_many_answers_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Three in flight: the ninth question is sent when the answers to six have been taken in.
    monkeypatch.setenv("METRIST_LLM_CONCURRENCY", "3")
    rows = "".join(json.dumps({"item": str(i), "system": "a", "output": f"out {i}"}) + "\n" for i in range(9))
    (tmp_path / "in.jsonl").write_text(rows)

    def respond(request: Request) -> Act:
        # Whoever asks about the last outputs waits.
        return answer("{}") if re.search(r"out [0-5]\b", request.prompt) or "mark" not in request.prompt else SILENT

    with FaultServer(respond) as server:
        spec = f"judge(llm=openai(model='m', url='{server.url}'))"
        command = [sys.executable, "-m", "metrist", "score", str(tmp_path / "in.jsonl"), "-m", spec]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as run:
            while sum("out " in request.prompt for request in server.requests) < 9:
                assert run.poll() is None
                time.sleep(0.05)
            run.send_signal(signal.SIGINT)
            _, err = run.communicate(timeout=60)
    assert (run.returncode, err) == (
        130,
        "metrist: interrupted; 6 answers are kept: run the same command again to continue\n",
    )


def test_a_note_shows_what_a_terminal_would_obey(capsys: pytest.CaptureFixture[str]) -> None:
    print_note("item \x1b[2J\x1b]0;owned\x07 of \u202eexe.txt\u2066: \x9b31m\nsecond line, größer 中文")
    assert capsys.readouterr().err == (
        "metrist: item \\x1b[2J\\x1b]0;owned\\x07 of \\u202eexe.txt\\u2066: \\x9b31m\nsecond line, größer 中文\n"
    )
