"""Commands that are killed by kill -9 again and again give the results of calm ones."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from faults import (
    JudgeServer,
    check_readers,
    command,
    kill_after,
    list_scores,
    make_training,
    start,
    wait_for,
    write_model,
    write_records,
    write_scored,
)
from stepwise import start_steps

import metrist
from fault_server import FaultServer
from metrist.run.store import Store
from run_contents import contents
from torture_table import TortureRow, read_contents

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
Rows = Callable[[str], TortureRow]

# ---- Before every change to a run folder

JUDGE = "judge(llm=openai(model='m', url='URL'))"
SCORE = """
import os
os.environ["METRIST_LLM_CACHE"] = {cache!r}
metrist.score({source!r}, {metrics!r}, out={out!r}, shard_size=12, executor="serial")
"""
PREFER = "metrist.prefer({source!r}, ['by_score(metric=rougeL)'], out={out!r}, executor='serial')"
REMOVE = """
from metrist.run.removal import plan_removal
is_there = "s1" in metrist.open_run({out!r}).records()["system"].to_pylist()
plan_removal({out!r}, systems=["s1"] if is_there else [], unused=True).apply()
"""
COMMANDS: dict[str, tuple[str, str, list[str]]] = {
    "lexical": ("score", SCORE, ["rougeL", "chrf"]),
    "model": ("score", SCORE, ["models.Model", "length"]),
    "judge": ("score", SCORE, [JUDGE, "length"]),
    "URL": ("score by URL", SCORE, ["models.Model", "rougeL"]),
    "prefer": ("prefer, remove", PREFER, []),
    "remove": ("prefer, remove", REMOVE, []),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_kills_before_every_change(
    name: str, tmp_path: Path, torture_row: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads what is left sees right scores or a clear error. The same command again ends with the contents of a
    calm one, leaves no part and no log that nobody needs, and asks an LLM nothing twice."""
    what, code, metrics = COMMANDS[name]
    row = torture_row(f"kill -9 before every change: {what}")
    write_model(tmp_path, monkeypatch)
    source, whole = write_records(tmp_path / "in.jsonl", 30), tmp_path / "whole"
    server = JudgeServer(1, faulty=False, pause=0.0)
    with FaultServer(server) as http, start_steps(tmp_path) as steps:

        def attempt(step: int, folder: Path, code: str = code) -> int:
            return steps(
                step,
                folder,
                code.format(
                    source=str(source),
                    metrics=[metric.replace("URL", http.url) for metric in metrics or ["rougeL"]],
                    out=f"file://{folder}" if name == "URL" else str(folder),
                    cache=str(folder.with_name(f"cache of {folder.name}")),
                ),
            )

        assert attempt(0, whole, SCORE) == 0
        if name == "remove":
            shutil.copytree(whole, tmp_path / "calm")
        assert attempt(0, tmp_path / "calm") == 0
        expected = contents(tmp_path / "calm")
        scores = {**list_scores(whole), **({} if name == "prefer" else list_scores(tmp_path / "calm"))}
        step, is_killed = 0, True
        while is_killed:
            step += 1
            out = tmp_path / f"killed-{step}"
            if name == "remove":
                shutil.copytree(whole, out)
            server.answered.clear()
            with row.attempt():
                ended = attempt(step, out)
                is_killed = ended == -signal.SIGKILL
                check_readers(row, scores, out)
                assert ended == 0 or (is_killed and attempt(0, out) == 0), (step, ended)
                listed = set(metrist.open_run(out).manifest.list_parts())
                # In a store, what was merged stays until the next writer comes.
                assert name == "URL" or set(Store(out).list_written()) == listed, step
                assert not Store(out).list_files("log"), step
            row.compare(expected, contents(out))
            row.lost += server.answered.total() - len(server.answered)
            shutil.rmtree(out)
    assert step > 10


COUNTED = """
import os
import metrist

class Counted(metrist.Metric):
    resident = True
    def score_record(self, record):
        with open(os.environ["CALLS"], "a") as file:
            file.write("x")
        return float(len(record.output) * 7 % 11)
"""
RERANK = """
import os
from metrist.evaluate.rerank import items
os.environ["CALLS"] = {calls!r}
items.SHARD_SIZE_WITH_MODEL = 8
metrist.rerank({first!r}, ["counted.Counted"], out={out!r} + "/best.jsonl", executor="serial", draws=0)
"""
LEADERBOARD = """
import json, os
board = {out!r} + "/board.json"
if not os.path.exists(board) or not json.load(open(board))["history"]:
    metrist.leaderboard({first!r}, into={out!r}, date="2026-01-01", draws=0)
metrist.leaderboard({second!r}, into={out!r}, date="2026-02-01", draws=0)
"""


@pytest.mark.parametrize("name", ["rerank", "leaderboard"])
def test_kills_before_every_change_of_a_file(name: str, tmp_path: Path, torture_row: Rows) -> None:
    """A file is there whole or not at all. The same command again ends with the files of a calm one, and scores again
    what was in the task that was cut off."""
    row = torture_row("kill -9 before every change: rerank, leaderboard")
    (tmp_path / "counted.py").write_text(COUNTED)
    first, second, calls = tmp_path / "first.jsonl", tmp_path / "second.jsonl", tmp_path / "calls"
    if name == "rerank":
        write_records(first, 20, systems=4)
    else:
        write_scored(first, 0, 30)
        write_scored(second, 20, 60)
    with start_steps(tmp_path) as steps:

        def attempt(step: int, folder: Path) -> int:
            folder.mkdir(exist_ok=True)
            code = RERANK if name == "rerank" else LEADERBOARD
            paths = {"first": first, "second": second, "out": folder, "calls": calls}
            return steps(step, folder, code.format(**{key: str(path) for key, path in paths.items()}))

        def read_files(folder: Path) -> dict[str, bytes]:
            """All files but those that were not written to their end."""
            return {path: data for path, data in read_contents(folder).items() if not path.endswith(".part")}

        assert attempt(0, tmp_path / "calm") == 0
        expected = read_files(tmp_path / "calm")
        assert expected.keys() == ({"best.jsonl"} if name == "rerank" else {"board.json", "lock", "votes.parquet"})
        step, is_killed = 0, True
        while is_killed:
            step += 1
            out = tmp_path / f"killed-{step}"
            calls.write_bytes(b"")
            with row.attempt():
                ended = attempt(step, out)
                is_killed = ended == -signal.SIGKILL
                if (chosen := out / "best.jsonl").exists():
                    row.compare({"chosen": expected["best.jsonl"]}, {"chosen": chosen.read_bytes()})
                assert ended == 0 or (is_killed and attempt(0, out) == 0), (step, ended)
            row.compare(expected, read_files(out))
            row.lost += max(0, calls.stat().st_size - 80 - 8)  # Of 80 outputs, eight are in a task.
            shutil.rmtree(out)
    assert step > 8


# ---- At random moments


@pytest.mark.parametrize(
    ("fault", "items", "verb", "options", "faulty"),
    [
        ("score, LLM calls", 60, "score", ["-m", "judge=judge(LLM)", "-m", "rougeL"], False),
        ("prefer, judge over a faulty server", 40, "prefer", ["-m", "judge=judge_pair(LLM)", "--pairs", "all"], True),
    ],
)
def test_commands_that_ask_an_llm_survive_kills(
    fault: str, items: int, verb: str, options: list[str], faulty: bool, tmp_path: Path, torture_row: Rows
) -> None:
    """Kill a command that asks an LLM, at random numbers of answers. The results are those of a calm run, and of the
    whole answers that the server sent, each kill repeats at most those on their way."""
    row = torture_row(f"kill -9: {fault}")
    source = write_records(tmp_path / "in.jsonl", items)
    kills, concurrency = 10, 4
    rng = random.Random(5)
    server = JudgeServer(2, faulty=False, pause=0.0)
    with FaultServer(server) as http:

        def begin(name: str) -> subprocess.Popen[str]:
            env = {"METRIST_LLM_CACHE": str(tmp_path / f"cache-{name}"), "METRIST_LLM_CONCURRENCY": str(concurrency)}
            llm = f"llm=openai(model='m', url='{http.url}')"
            return start(verb, source, *(o.replace("LLM", llm) for o in options), "-o", tmp_path / name, env=env)

        def finish(name: str) -> None:
            process = begin(name)
            _, errors = process.communicate(timeout=600)
            assert process.returncode == 0, errors

        finish("calm")
        questions = len(server.answered)
        server.answered.clear()
        server.faulty, server.pause = faulty, 0.02
        for _ in range(kills):
            target = server.answered.total() + rng.randint(1, 8)
            process = begin("killed")
            wait_for(lambda: process.poll() is not None or server.answered.total() >= target)  # noqa: B023
            with row.attempt():
                process.send_signal(signal.SIGKILL)
                process.communicate()
                assert process.returncode in (0, -signal.SIGKILL)
        finish("killed")
    row.compare(contents(tmp_path / "calm"), contents(tmp_path / "killed"))
    # An answer that came whole is paid for. One that was cut off, or lost with its process, is asked for again.
    repeated = server.answered.total() - len(server.answered)
    assert repeated <= kills * concurrency, f"{repeated} answers were asked for twice"
    row.lost += max(0, questions - len(server.answered))


def test_trainings_survive_kills(tmp_path: Path, torture_row: Rows) -> None:
    """A training that is killed at random moments ends with the weights of a calm one, and no folder looks finished
    that is not."""
    row = torture_row("kill -9: train")
    rng = random.Random(3)
    train = command(*make_training(tmp_path, pairs=60, epochs=3))
    subprocess.run([*train, tmp_path / "calm"], check=True, capture_output=True)
    killed = tmp_path / "killed"
    for _ in range(6):
        process = subprocess.Popen([*train, killed], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if rng.random() < 0.8:  # The others are killed while they start.
            steps = count_steps(killed)
            wait_for(lambda: process.poll() is not None or count_steps(killed) > steps, 300)  # noqa: B023
        with row.attempt():
            code = kill_after(process, rng.uniform(0, 0.5))
            assert code in (0, -signal.SIGKILL)
            # Weights are there only whole, and a card only with weights.
            weights = killed / "model.safetensors"
            if weights.exists():
                assert weights.read_bytes() == (tmp_path / "calm" / "model.safetensors").read_bytes()
            assert weights.exists() or not (killed / "card.json").exists()
    subprocess.run([*train, killed], check=True, capture_output=True)
    names = ("model.safetensors", "config.json", "tokenizer.json")
    calm, found = read_contents(tmp_path / "calm"), read_contents(killed)
    row.compare({name: calm[name] for name in names if name in calm}, {n: found[n] for n in names if n in found})
    assert sorted(calm) == sorted(found)


def count_steps(folder: Path) -> int:
    """The last step that has a checkpoint."""
    return max((int(path.name[-8:]) for path in folder.glob("checkpoints/step-????????")), default=0)
