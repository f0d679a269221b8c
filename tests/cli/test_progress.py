"""The progress bar."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fault_server import SILENT, Act, FaultServer, Request, answer
from metrist.cli.output import print_note, progress_bar
from metrist.llm import base, gateway
from metrist.llm.messages import Sampling
from metrist.models.devices import Options
from metrist.models.loading import _LoadedModels
from metrist.report.progress import Counter, ProgressReport, next_interval, show_progress, watch_run
from scripted_llm import Scripted, say


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("done", "total", "seconds", "words"),
    [
        (1000, 4000, 2.0, "1,000 of 4,000 records (25 %), 500/s, 0:00:06 left"),
        (1000, None, 2.0, "1,000 records, 500/s"),
        (4000, 3990, 2.0, "4,000 of 3,990 records (100 %), 2,000/s, 0:00:00 left"),
        (0, 10, 0.0, "0 of 10 records (0 %)"),
        (3, 10, 2.0, "3 of 10 records (30 %), 1.5/s, 0:00:05 left"),
        (2, 10, 60.0, "2 of 10 records (20 %), 30.0 s each, 0:04:00 left"),
        (1, 1, 1.0, "1 of 1 record (100 %), 1.0/s, 0:00:00 left"),
        (999, 1000, 1.0, "999 of 1,000 records (99 %), 999/s, 0:00:00 left"),
    ],
)
def test_share_rate_and_time_left_are_shown_if_known(done: int, total, seconds: float, words: str) -> None:
    clock = Clock()
    counter = Counter("records", clock)
    clock.now += seconds
    counter.update(done, total)
    assert counter.describe() == words


def test_what_comes_after_the_last_record_is_told() -> None:
    clock = Clock()
    counter = Counter("records", clock)
    clock.now += 10
    counter.update(50, 50)
    assert counter.describe() == "50 of 50 records (100 %), 5.0/s, 0:00:00 left"
    clock.now += 90
    assert counter.describe() == "50 of 50 records (100 %), finishing for 0:01:30"


def test_the_rate_is_that_of_the_last_half_minute() -> None:
    clock = Clock()
    counter = Counter("records", clock)
    # 10,000 records that were stored already, then one record a second.
    clock.now += 0.1
    counter.update(10_000, 10_200)
    for second in range(1, 101):
        clock.now += 1
        counter.update(10_000 + second, 10_200)
    assert counter.describe() == "10,100 of 10,200 records (99 %), 1.0/s, 0:01:40 left"


def test_stored_records_are_done_but_say_nothing_about_the_rate() -> None:
    clock = Clock()
    report = ProgressReport("scoring", clock=clock)
    report(0, 10_000, metric="likelihood")
    clock.now += 0.5
    report(9_000, 10_000, metric="likelihood", stored=9_000)
    assert report.describe() == "scoring likelihood: 9,000 of 10,000 records (90 %)"
    report.loading("some/model")
    clock.now += 25
    report.loading(None)
    clock.now += 10
    report(9_020, 10_000, metric="likelihood", stored=9_000)
    # 20 records in 10 seconds; the other 980 take 490.
    assert report.describe() == "scoring likelihood: 9,020 of 10,000 records (90 %), 2.0/s, 0:08:10 left"
    # More of the stored ones are met on the way.
    report(9_520, 10_000, metric="likelihood", stored=9_500)
    assert report.describe() == "scoring likelihood: 9,520 of 10,000 records (95 %), 2.0/s, 0:04:00 left"


def test_the_metric_is_named_and_the_count_starts_anew_with_the_next() -> None:
    clock = Clock()
    report = ProgressReport("scoring", clock=clock)
    assert report.describe() == "scoring"
    report(0, 400, metric="chrf")
    assert report.describe() == "scoring chrf: 0 of 400 records (0 %)"
    clock.now += 2
    assert report.describe() == "scoring chrf: 0 of 400 records (0 %), 0:00:02 so far"
    report(400, 400, metric="chrf")
    assert report.describe() == "scoring chrf: 400 of 400 records (100 %), 200/s, 0:00:00 left"
    report(0, 400, metric="likelihood(model='a-model-with-a-very-long-name-indeed')")
    assert report.describe() == "scoring likelihood(model='a-…-long-name-indeed'): 0 of 400 records (0 %)"


def test_loading_a_model_is_told_and_no_part_of_the_rate() -> None:
    clock = Clock()
    report = ProgressReport("scoring", clock=clock)
    report(0, 10, metric="likelihood")
    report.loading("some/model")
    clock.now += 25
    assert report.describe() == "scoring likelihood: loading the model some/model, 0:00:25 so far"
    report.loading(None)
    clock.now += 2
    report(4, 10, metric="likelihood")
    assert report.describe() == "scoring likelihood: 4 of 10 records (40 %), 2.0/s, 0:00:03 left"


def test_models_tell_that_they_are_loaded() -> None:
    models = _LoadedModels(1)
    key = (Options(model="some/model", dtype="float32"), "cpu", None, "")
    lines: list[str] = []

    def load() -> str:
        lines.append(report.describe())
        return "loaded"

    with progress_bar("scoring") as report:
        assert models.get(key, load) == models.get(key, load) == "loaded"
        lines.append(report.describe())
    assert lines == ["scoring: loading the model some/model", "scoring"]

    def fail() -> None:
        raise ValueError("no weights")

    with progress_bar("scoring") as report:
        with pytest.raises(ValueError, match="no weights"):
            models.get((*key[:3], "other"), fail)
        assert report.describe() == "scoring"


def read_lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_a_pipe_gets_a_line_every_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    waits: list[float] = []
    printed = threading.Event()

    class Stop:
        """Stands for the event that ends the thread: two intervals pass at once, and then it is set."""

        def wait(self, seconds: float) -> bool:
            waits.append(seconds)
            if len(waits) > 2:
                printed.set()
            return len(waits) > 2

        def set(self) -> None:
            pass

    report = ProgressReport("scoring", clock=Clock())
    report(3, 12, metric="chrf")
    monkeypatch.setattr("metrist.report.progress.Event", Stop)
    with show_progress(report):
        assert printed.wait(60)
    assert waits == [10.0, 10.0, 10.0]
    assert read_lines(capsys) == ["metrist: scoring chrf: 3 of 12 records (25 %)"] * 2


@pytest.mark.parametrize(("seconds", "interval"), [(0, 10), (99, 10), (200, 20), (600, 60), (5000, 60)])
def test_lines_become_rare_in_long_runs(seconds: float, interval: float) -> None:
    assert next_interval(seconds) == interval


def test_a_short_command_prints_nothing_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("scoring") as report:
        report(1, 10, metric="chrf")
        threads = [thread.name for thread in threading.enumerate()]
        assert "progress" in threads
    assert "progress" not in [thread.name for thread in threading.enumerate()]
    assert read_lines(capsys) == []


def test_a_failing_server_is_reported_at_once_and_then_every_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    report = ProgressReport("scoring", clock=clock)
    with watch_run(report):
        for clock.now in (100.0, 100.1, 109.9, 110.0, 111.0, 125.0):
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
    report = ProgressReport("scoring", clock=Clock())
    report.on_change = lambda: drawn.append(report.describe())
    log = say(*(f"question {n}" for n in range(3)), "question 0", "fail")
    with watch_run(report):
        gateway.complete(Scripted(), log, Sampling())
        gateway.complete(Scripted(), log[:2], Sampling())
    # Of equal questions one is asked; what is in the cache counts as answered at once.
    assert drawn[-1] == "scoring: 6 of 6 answers (100 %)"
    assert "scoring: 2 of 4 answers (50 %)" in drawn


def test_the_rate_of_answers_is_that_of_the_questions_under_way() -> None:
    clock = Clock()
    report = ProgressReport("scoring", clock=clock)
    report.requested(10)
    clock.now += 1
    report.completed(10)
    clock.now += 100
    report(10, 20, metric="judge")
    report.requested(10)
    clock.now += 4
    report.completed(2)
    assert report.describe().endswith("; 12 of 20 answers (60 %), 2.0 s each, 0:00:16 left")


def test_a_terminal_shows_a_bar_from_the_first_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    import rich.progress

    drawn: list[str] = []
    moved: list[tuple[int, int | None]] = []
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)

    class Bar(rich.progress.Progress):
        def update(self, task_id, **changes) -> None:
            super().update(task_id, **changes)
            column: Any = self.columns[1]
            drawn.append(column(self.tasks[0]).plain)
            moved.append((changes["completed"], changes["total"]))

    monkeypatch.setattr(rich.progress, "Progress", Bar)
    with progress_bar("scoring") as draw:
        base.report_requests(60)
        base.report_completions(17)
        draw(0, 20, metric="judge")
    assert drawn[0] == "scoring: 0 of 60 answers (0 %)"
    assert drawn[-1].startswith("scoring judge: 0 of 20 records (0 %); 17 of 60 answers (28 %)")
    assert moved[-1] == (0, 20)


@pytest.mark.parametrize(
    ("options", "advice"), [([], "again to continue"), (["--fresh"], "without --fresh to use them")]
)
def test_an_interrupted_run_prints_how_many_answers_are_kept(
    options: list[str], advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Three in flight: the ninth question is sent when the answers to six have been taken in.
    monkeypatch.setenv("METRIST_LLM_CONCURRENCY", "3")
    rows = "".join(json.dumps({"item": str(i), "system": "a", "output": f"out {i}"}) + "\n" for i in range(9))
    (tmp_path / "in.jsonl").write_text(rows)

    def respond(request: Request) -> Act:
        # Whoever asks about the last outputs waits.
        return answer("{}") if re.search(r"out [0-5]\b", request.prompt) or "mark" not in request.prompt else SILENT

    with FaultServer(respond) as server:
        spec = f"judge(llm=openai(model='m', url='{server.url}'))"
        command = [sys.executable, "-m", "metrist", "score", str(tmp_path / "in.jsonl"), "-m", spec, *options]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as run:
            while sum("out " in request.prompt for request in server.requests) < 9:
                assert run.poll() is None
                time.sleep(0.05)
            run.send_signal(signal.SIGINT)
            _, err = run.communicate(timeout=60)
    assert (run.returncode, err) == (130, f"metrist: interrupted; 6 answers are kept: run the same command {advice}\n")


@pytest.mark.parametrize(
    ("options", "words"), [(["-o", "run/"], "run/ keeps what was scored"), (["--out=x.csv"], "nothing was stored")]
)
def test_an_interrupted_run_says_whether_the_same_command_continues(
    options: list[str], words: str, tmp_path: Path
) -> None:
    (tmp_path / "in.jsonl").write_text('{"item": "1", "system": "a", "output": "out", "references": ["out"]}\n')
    with FaultServer(lambda _: SILENT) as server:
        metrics = ["-m", "exact", "-m", f"judge(llm=openai(model='m', url='{server.url}'))"]
        command = [sys.executable, "-m", "metrist", "score", "in.jsonl", *metrics, *options]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as run:
            while not server.requests:
                assert run.poll() is None
                time.sleep(0.05)
            run.send_signal(signal.SIGINT)
            _, err = run.communicate(timeout=60)
    assert run.returncode == 130
    assert err.splitlines()[-1].startswith(f"metrist: interrupted; {words}")


def test_a_note_shows_what_a_terminal_would_obey(capsys: pytest.CaptureFixture[str]) -> None:
    print_note("item \x1b[2J\x1b]0;owned\x07 of \u202eexe.txt\u2066: \x9b31m\nsecond line, größer 中文")
    assert capsys.readouterr().err == (
        "metrist: item \\x1b[2J\\x1b]0;owned\\x07 of \\u202eexe.txt\\u2066: \\x9b31m\nsecond line, größer 中文\n"
    )
