"""Two and more processes on one run folder, one LLM cache, one annotation project, one folder of a training."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
from faults import (
    JudgeServer,
    check_readers,
    list_scores,
    make_training,
    run,
    start,
    wait_for,
    write_records,
    write_scored,
)

from annotation_projects import make_project, make_rows, read_clicks
from fault_server import FaultServer
from run_contents import contents
from torture_table import TortureRow, read_contents

Rows = Callable[[str], TortureRow]


def finish(processes: list[subprocess.Popen[str]]) -> list[str]:
    """Wait for all; returns what they said on standard error."""
    messages = [process.communicate(timeout=600)[1] for process in processes]
    for process, message in zip(processes, messages, strict=True):
        assert process.returncode == 0, message[-2000:]
    return messages


def test_one_run_folder(tmp_path: Path, torture_row: Rows) -> None:
    """The same command twice at once, and commands with different metrics and files at once: the scores are those of
    commands that ran one after the other. One of them is killed on the way in every second round. Whoever reads
    meanwhile, also while parts are merged, sees right scores and no error."""
    row = torture_row("two processes: run folder, with readers")
    first = write_records(tmp_path / "first.jsonl", 400)
    second = write_records(tmp_path / "second.jsonl", 900)
    commands: list[list[object]] = [
        ["score", first, "-m", "rougeL"],
        ["score", first, "-m", "chrf", "-m", "rougeL"],
        ["score", second, "-m", "rougeL", "-m", "chrf"],
    ]
    for arguments in commands:
        assert run(*arguments, "-o", tmp_path / "calm").returncode == 0
    scores = list_scores(tmp_path / "calm")
    rng = random.Random(3)
    for number in range(4):
        out = tmp_path / f"run-{number}"
        with row.attempt():
            processes = [start(*arguments, "-o", out) for arguments in (*commands, commands[0])]
            if number % 2:
                time.sleep(rng.uniform(1, 3))
                victim = processes.pop(rng.randrange(len(processes)))
                victim.send_signal(signal.SIGKILL)
                victim.communicate()
            has_scores = False
            while any(process.poll() is None for process in processes):
                refused = check_readers(row, scores, out)
                assert not (has_scores and refused)
                has_scores = not refused
            finish(processes)
            for arguments in commands:  # Whoever came last knew all records or not: one more round settles it.
                assert run(*arguments, "-o", out).returncode == 0
        row.compare(scores, list_scores(out))


def test_one_run_by_url(tmp_path: Path, torture_row: Rows) -> None:
    """A store has one writer at a time: a second one waits, or is refused, and takes over at once what a killed one has
    left. No answer is asked for twice but those on their way."""
    row = torture_row("two processes: run by URL")
    source = write_records(tmp_path / "in.jsonl", 40)
    server = JudgeServer(4, faulty=False, pause=0.2)
    with FaultServer(server) as http:
        judge = f"judge=judge(llm=openai(model='m', url='{http.url}'))"
        arguments = ["score", source, "-m", judge, "-m", "rougeL", "-o"]
        env = {"METRIST_LLM_CACHE": str(tmp_path / "cache"), "METRIST_LLM_CONCURRENCY": "4"}
        for number in range(4):
            out, asked = tmp_path / f"run-{number}", server.answered.total()
            with row.attempt():
                processes = [start(*arguments, f"file://{out}", "--fresh", env=env)]
                wait_for(lambda: server.answered.total() > asked + 4)  # noqa: B023
                processes.append(start(*arguments, f"file://{out}", env=env))
                if number % 2:
                    processes[0].send_signal(signal.SIGKILL)
                messages = [process.communicate(timeout=600)[1] for process in processes]
                assert processes[0].returncode == (-signal.SIGKILL if number % 2 else 0), messages
                assert processes[1].returncode == 0 or "is being written" in messages[1], messages
                assert run(*arguments, f"file://{out}", env=env).returncode == 0
            row.lost += max(0, server.answered.total() - asked - 80 - 4 * (number % 2))
            row.compare(contents(tmp_path / "run-0"), contents(out))


def test_one_llm_cache(tmp_path: Path, torture_row: Rows) -> None:
    """Three commands ask the same questions through one cache, with one killed on the way: all have the same scores,
    and afterwards no question is asked again."""
    row = torture_row("two processes: LLM cache")
    source = write_records(tmp_path / "in.jsonl", 40)
    server = JudgeServer(4, faulty=False, pause=0.01)
    with FaultServer(server) as http:
        judge = f"judge=judge(llm=openai(model='m', url='{http.url}'))"
        for number in range(3):
            env = {"METRIST_LLM_CACHE": str(tmp_path / f"cache-{number}"), "METRIST_LLM_CONCURRENCY": "4"}
            outs = [tmp_path / f"{number}-{name}" for name in "abc"]
            with row.attempt():
                processes = [start("score", source, "-m", judge, "-o", out, env=env) for out in outs]
                if number:
                    time.sleep(number)
                    processes[0].send_signal(signal.SIGKILL)
                    processes.pop(0).communicate()
                finish(processes)
                before = server.answered.total()
                assert run("score", source, "-m", judge, "-o", outs[0], env=env).returncode == 0
                row.lost += server.answered.total() - before
            for out in outs[1:]:
                row.compare(contents(outs[0]), contents(out))


CLICKER = """
import sys, uuid
from metrist.web.annotation.answers import Answers, check_click
from metrist.web.annotation.project import open_project
from metrist.web.annotation.store import Click
project = open_project(sys.argv[1])
rater = project.raters[int(sys.argv[2])]
question = project.schema.questions[0]
with project.open_store() as store:
    answers = Answers(project, store)
    for n in range(200):
        task = rater.assignments[n % len(rater.assignments)].task
        content = {"name": question.name, "value": question.choices[n % 3].value}
        click = Click(id=uuid.uuid4().hex, rater=rater.name, task=task, kind="set", content=content)
        check_click(project, click)
        stored = store.append(click)
        print(stored.id, stored.number, flush=True)
"""


def test_one_annotation_project(tmp_path: Path, torture_row: Rows) -> None:
    """Four processes append clicks to one log, one is killed: every acknowledged click is there once, in its place."""
    row = torture_row("two processes: annotation project")
    for number in range(4):
        folder = tmp_path / str(number)
        folder.mkdir()
        project = make_project(folder, rows=make_rows(6), raters=4)
        with row.attempt():
            arguments = [[sys.executable, "-c", CLICKER, project.folder, str(n)] for n in range(4)]
            processes = [subprocess.Popen(one, stdout=subprocess.PIPE, text=True) for one in arguments]
            stdout = processes[0].stdout
            assert stdout is not None
            first = [stdout.readline() for _ in range(10 + number)]
            processes[0].send_signal(signal.SIGKILL)
            outputs = [process.communicate()[0] for process in processes]
            assert [process.returncode for process in processes[1:]] == [0] * 3
        lines = [line for text in ("".join(first) + outputs[0], *outputs[1:]) for line in text.splitlines(True)]
        acknowledged = dict(line.split() for line in lines if line.endswith("\n"))
        found = {click.id: str(click.number) for click in read_clicks(project)}
        # A click of the killed process may be stored and not yet printed.
        extra = set(found) - set(acknowledged)
        assert len(extra) <= 1
        row.compare(acknowledged, {key: value for key, value in found.items() if key not in extra})


def test_one_folder_of_a_leaderboard(tmp_path: Path, torture_row: Rows) -> None:
    """Four updates at once, of which one is killed: all votes of the others are there, and its own after it was given
    again."""
    row = torture_row("two processes: leaderboard")
    sources = [write_scored(tmp_path / f"{n}.jsonl", 40 * n, 40 * n + 40) for n in range(4)]
    for number in range(3):
        out = tmp_path / f"board-{number}"
        with row.attempt():
            processes = [start("leaderboard", source, "--draws", "0", "--into", out) for source in sources]
            if number:
                wait_for((out / "lock").exists)
                processes[0].send_signal(signal.SIGKILL)
                processes.pop(0).communicate()
            finish(processes)
            assert run("leaderboard", sources[0], "--draws", "0", "--into", out).returncode == 0
        votes = Counter(pq.read_table(out / "votes.parquet")["item"].to_pylist())
        row.compare({f"i{item}": 3 for item in range(160)}, votes)


def test_one_folder_of_a_training(tmp_path: Path, torture_row: Rows) -> None:
    """A second training in the folder is refused while the first one runs, and does not disturb it."""
    row = torture_row("two processes: model folder")
    train = make_training(tmp_path)
    assert run(*train, tmp_path / "calm").returncode == 0
    expected = (tmp_path / "calm" / "model.safetensors").read_bytes()
    for number in range(3):
        out = tmp_path / f"out-{number}"
        with row.attempt():
            processes = [start(*train, out) for _ in range(2)]
            messages = [process.communicate(timeout=600)[1] for process in processes]
            codes = [process.returncode for process in processes]
            assert 0 in codes, messages
            for code, message in zip(codes, messages, strict=True):
                assert code == 0 or "another process is training" in message, message
        row.compare({"weights": expected}, {"weights": (out / "model.safetensors").read_bytes()})
        assert read_contents(out).keys() == read_contents(tmp_path / "calm").keys()
