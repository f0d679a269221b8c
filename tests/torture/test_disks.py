"""Full disks and read-only folders: a clear error, nothing lost that was there, and the whole result once there is
room."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from faults import (
    JudgeServer,
    check_clear,
    check_readers,
    command,
    fill,
    is_root,
    list_scores,
    make_training,
    resize_disk,
    run,
    small_disk,
    wait_for,
    write_records,
    write_scored,
)

import tiny_models
from annotation_projects import make_project, make_rows, read_clicks
from fault_server import FaultServer
from run_contents import contents
from torture_table import TortureRow, read_contents

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or not is_root(), reason="mounts small disks: needs root"
)
Rows = Callable[[str], TortureRow]


def test_scores_on_a_full_disk(tmp_path: Path, torture_row: Rows) -> None:
    """On disks that are too small a command says what is wrong, and on one that is large enough it ends with the
    contents of a calm one."""
    row = torture_row("disk full: score")
    source = write_records(tmp_path / "in.jsonl", 3000)
    arguments = ["score", source, "-m", "rougeL", "-m", "bleu", "-m", "length", "-o"]
    calm = tmp_path / "calm" / "run"
    assert run(*arguments, calm).returncode == 0
    scores, size = list_scores(calm), sum(map(len, read_contents(calm).values())) / 1024
    with small_disk(tmp_path / "disk", 4) as disk:
        for share in (0.01, 0.1, 0.3, 0.6, 0.9):
            resize_disk(disk, max(4, int(share * size)))
            with row.attempt():
                check_clear(run(*arguments, disk / "run"))
                check_readers(row, scores, disk / "run")
        resize_disk(disk, 65536)
        done = run(*arguments, disk / "run")
        assert done.returncode == 0, done.stderr[-2000:]
        row.compare(contents(calm), contents(disk / "run"))


QUERY = """
import sys
from metrist.cli.app import main
from metrist.run import query
query.open_database.__kwdefaults__["memory_limit"] = "60MB"
main()
"""


def test_queries_on_a_full_disk(tmp_path: Path, torture_row: Rows) -> None:
    """What does not fit into memory goes to a folder that is gone afterwards, also where there is no room for it."""
    row = torture_row("disk full: query, spill folder")
    source = write_records(tmp_path / "in.jsonl", 10)
    assert run("score", source, "-m", "rougeL", "-o", tmp_path / "run").returncode == 0
    before = read_contents(tmp_path / "run")
    sql = "SELECT count(DISTINCT repeat('x', 40) || i) AS n FROM range(1500000) r(i)"
    arguments = [sys.executable, "-c", QUERY, "query", str(tmp_path / "run"), sql]
    with small_disk(tmp_path / "disk", 4) as disk:
        for kilobytes in (4, 1000, 8000, 20000, 1000000):
            resize_disk(disk, kilobytes)
            with row.attempt():
                env = {**os.environ, "TMPDIR": str(disk)}
                done = subprocess.run(arguments, env=env, capture_output=True, text=True, check=False, timeout=600)
                if kilobytes < 1000000:
                    check_clear(done)
                else:
                    assert "1500000" in done.stdout.replace(",", ""), done.stderr
                assert not list(disk.iterdir())
    row.compare(before, read_contents(tmp_path / "run"))


def test_answers_of_llms_on_a_full_disk(tmp_path: Path, torture_row: Rows) -> None:
    """Where an answer cannot be stored, no further one is asked for: at most those on their way are paid for twice."""
    row = torture_row("disk full: score, LLM cache")
    source = write_records(tmp_path / "in.jsonl", 60)
    server = JudgeServer(1, faulty=False, pause=0.0)
    with FaultServer(server) as http_server, small_disk(tmp_path / "disk", 4) as disk:
        judge = f"judge=judge(llm=openai(model='m', url='{http_server.url}'))"
        arguments = ["score", source, "-m", judge, "-o", tmp_path / "run"]
        env = {"METRIST_LLM_CACHE": str(disk / "cache"), "METRIST_LLM_CONCURRENCY": "4"}
        sizes = (4, 40, 80, 110, 140)
        for size in sizes:
            resize_disk(disk, size)
            with row.attempt():
                check_clear(run(*arguments, env=env), "stored", "METRIST_LLM_CACHE")
        resize_disk(disk, 65536)
        assert run(*arguments, env=env).returncode == 0
        assert server.answered.total() - len(server.answered) <= 4 * len(sizes), server.answered.total()
        assert len(server.answered) == 120
        before = server.answered.total()
        shutil.rmtree(tmp_path / "run")
        assert run(*arguments, env=env).returncode == 0
        row.lost += server.answered.total() - before  # All answers are in the cache.
    row.lost += 480 - len(list_scores(tmp_path / "run"))  # By the judge and its three aspects.


def test_a_training_on_a_full_disk(tmp_path: Path, torture_row: Rows) -> None:
    row = torture_row("disk full: train")
    arguments = make_training(tmp_path)
    assert run(*arguments, tmp_path / "calm").returncode == 0
    size = sum(len(data) for data in read_contents(tmp_path / "calm").values()) // 1024
    # The first is too small by the estimate; on the others, a second file takes the room while the training runs.
    disk = tmp_path / "disk"
    with small_disk(disk, 16):
        with row.attempt():
            check_clear(run(*arguments, disk / "out"))
        for share in (0.3, 1.0, 2.5):
            resize_disk(disk, 65536)
            with row.attempt():
                process = subprocess.Popen(command(*arguments, disk / "out"), stderr=subprocess.PIPE, text=True)
                wait_for(lambda: process.poll() is not None or (disk / "out" / "training.json").exists())  # noqa: B023
                ballast = fill(disk, leave=int(share * size * 1024))
                _, message = process.communicate(timeout=600)
                assert process.returncode in (0, 2), message
                assert "Traceback" not in message, message
                assert process.returncode == 0 or not (disk / "out" / "card.json").exists()
                ballast.unlink()
        done = run(*arguments, disk / "out")
        assert done.returncode == 0, done.stderr
        shutil.copytree(disk, tmp_path / "copy")
    name = "model.safetensors"
    calm, found = tmp_path / "calm" / name, tmp_path / "copy" / "out" / name
    row.compare({name: calm.read_bytes()}, {name: found.read_bytes()})


def test_clicks_on_a_full_disk(tmp_path: Path, torture_row: Rows) -> None:
    """A click that cannot be stored is answered with 503 and is sent again; one that was acknowledged is there."""
    row = torture_row("disk full: annotate")
    with small_disk(tmp_path / "disk", 4096) as disk:
        project = make_project(disk, rows=make_rows(10), raters=1)
        rater = project.raters[0]
        arguments = command("annotate", project.folder, "--port", "0")
        process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline().split("127.0.0.1:")[1].split("/")[0])
            acknowledged: dict[str, int] = {}
            question = project.schema.questions[0]

            def send(number: int) -> int:
                click = {
                    "id": f"click-{number}",
                    "rater": rater.name,
                    "task": rater.assignments[number % len(rater.assignments)].task,
                    "kind": "set",
                    "content": {"name": question.name, "value": question.choices[number % 3].value},
                }
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                headers = {"Cookie": f"metrist_{port}={rater.token}", "Origin": f"http://127.0.0.1:{port}"}
                headers["Content-Type"] = "application/json"
                connection.request("POST", "/api/clicks", json.dumps(click), headers)
                status = connection.getresponse().status
                connection.close()
                if status == 200:
                    acknowledged[f"click-{number}"] = 1
                return status

            number = 0
            for _ in range(5):
                for _ in range(20):
                    number += 1
                    assert send(number) == 200
                ballast = fill(disk)
                with row.attempt():
                    refused = 0
                    for _ in range(2000):  # The last pages of the journal are free.
                        status = send(number + 1)
                        assert status in (200, 503), status
                        refused += status == 503
                        number += status == 200
                        if refused > 3:
                            break
                    assert refused > 3
                    ballast.unlink()
                    assert send(number + 1) == 200
                    number += 1
            row.compare(acknowledged, {click.id: 1 for click in read_clicks(project)})
            assert run("annotate", project.folder, "--export", tmp_path / "out.jsonl").returncode == 0
        finally:
            process.kill()
            process.communicate()


def test_exports_and_reports_on_a_full_disk(tmp_path: Path, torture_row: Rows) -> None:
    """A file that was there before stays as it was; the run is not touched."""
    row = torture_row("disk full: export, report")
    source = write_records(tmp_path / "in.jsonl", 1500)
    assert run("score", source, "-m", "rougeL", "-m", "bleu", "-o", tmp_path / "run").returncode == 0
    before = read_contents(tmp_path / "run")
    outs = {"out.jsonl": "export", "out.csv": "export", "report.html": "report", "out.parquet": "export"}
    with small_disk(tmp_path / "disk", 16) as disk:
        for name, verb in outs.items():
            (disk / name).write_text("what was here before\n")
            with row.attempt():
                done = run(verb, tmp_path / "run", "-o", disk / name)
                check_clear(done)
                row.compare({name: "what was here before\n"}, {name: (disk / name).read_text()})
                assert [path.name for path in disk.iterdir()] == [name], "a part of a file was left"
            (disk / name).unlink()
    row.compare(before, read_contents(tmp_path / "run"))


def test_reranking_and_leaderboards_on_a_full_disk(tmp_path: Path, torture_row: Rows) -> None:
    """A file is there whole or not at all, and a leaderboard keeps the votes that it had."""
    row = torture_row("disk full: rerank, leaderboard")
    source = write_records(tmp_path / "in.jsonl", 300, systems=4)
    first, second = write_scored(tmp_path / "first.jsonl", 0, 300), write_scored(tmp_path / "second.jsonl", 200, 900)
    choose = ["rerank", source, "--mbr", "chrf", "--draws", "0", "-o"]
    updates = [["leaderboard", first, "--date", "2026-01-01"], ["leaderboard", second, "--date", "2026-02-01"]]
    options = ["--draws", "0", "--into"]
    (tmp_path / "calm").mkdir()
    assert run(*choose, tmp_path / "calm" / "best.jsonl").returncode == 0
    for update in updates:
        assert run(*update, *options, tmp_path / "calm" / "board").returncode == 0
    calm = read_contents(tmp_path / "calm")
    with small_disk(tmp_path / "disk", 8) as disk:
        for kilobytes in (8, 24, len(calm["best.jsonl"]) // 1024):
            resize_disk(disk, kilobytes)
            with row.attempt():
                check_clear(run(*choose, disk / "best.jsonl"), "No space")
                assert not (disk / "best.jsonl").exists()
        resize_disk(disk, 65536)
        assert run(*choose, disk / "best.jsonl").returncode == 0
        assert run(*updates[0], *options, disk / "board").returncode == 0
        before = (disk / "board" / "votes.parquet").read_bytes()
        for leave in (0, 4096, len(calm["board/votes.parquet"]) - 1):
            ballast = fill(disk, leave=leave)
            with row.attempt():
                check_clear(run(*updates[1], *options, disk / "board"), "No space")
            row.compare({"votes": before}, {"votes": (disk / "board" / "votes.parquet").read_bytes()})
            ballast.unlink()
        assert run(*updates[1], *options, disk / "board").returncode == 0
        row.compare(calm, read_contents(disk))


# ---- Read-only folders


@contextmanager
def read_only(folder: Path) -> Iterator[Path]:
    """The folder, mounted so that nobody can write to it, not even root."""
    subprocess.run(["mount", "--bind", folder, folder], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_read_only_folders(tmp_path: Path, torture_row: Rows) -> None:
    """Commands that read work on a folder that cannot be written; those that write say so, and change nothing."""
    row = torture_row("read-only folders")
    source = write_records(tmp_path / "in.jsonl", 50)
    project = make_project(tmp_path, rows=make_rows(4), raters=1).folder
    base = tiny_models.save("bart", tmp_path / "base")
    (tmp_path / "pairs.jsonl").write_text('{"first": "cat", "second": "dog"}\n' * 8)
    run_folder = tmp_path / "run"
    judge = "judge(llm=openai(model='m', url='http://127.0.0.1:9/v1'))"
    assert run("score", source, "-m", "rougeL", "-o", run_folder).returncode == 0
    before = {name: read_contents(tmp_path / name) for name in ("run", "project")}
    other = tmp_path / "elsewhere"
    other.mkdir()
    reads: list[list[object]] = [
        ["compare", run_folder],
        ["export", run_folder, "-o", other / "out.jsonl"],
        ["report", run_folder, "-o", other / "report.html"],
        ["worst", run_folder],
        ["check", run_folder, "--min", "rougeL=0"],
        ["score", source, "-m", "rougeL", "-o", run_folder],
        ["score", source, "-m", "length"],
        ["annotate", project, "--export", other / "answers.jsonl"],
    ]
    writes: list[list[object]] = [
        ["score", source, "-m", "bleu", "-o", run_folder],
        ["score", source, "-m", "bleu", "-o", run_folder / "scores.jsonl"],
        ["export", run_folder, "-o", run_folder / "out.csv"],
        ["report", run_folder, "-o", run_folder / "report.html"],
        ["train", "likelihood", "--data", tmp_path / "pairs.jsonl", "--base", base, "--out", run_folder / "model"],
        ["annotate", source, "--schema", "likert", "-o", run_folder / "project", "--no-serve"],
        ["convert", "label-studio", source, "-o", run_folder / "x.jsonl"],
    ]
    with read_only(run_folder), read_only(project):
        for arguments in reads:
            with row.attempt():
                done = run(*arguments)
                assert done.returncode == 0, (arguments, done.stderr[-1500:])
        for arguments in writes:
            with row.attempt():
                check_clear(run(*arguments))
        with row.attempt():
            env = {"METRIST_LLM_CACHE": str(run_folder / "cache")}
            check_clear(run("score", source, "-m", judge, "-o", other / "judged", env=env), "METRIST_LLM_CACHE")
    for name, files in before.items():
        row.compare(files, read_contents(tmp_path / name))
