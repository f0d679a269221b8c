"""Commands that are killed by kill -9 again and again give the results of calm ones."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faults import JudgeServer, command, kill_after, run, wait_for, write_records

import tiny_models
from fault_server import FaultServer
from torture_table import TortureRow, read_contents

pytestmark = [
    pytest.mark.torture,
    pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL"),
]
Rows = Callable[[str], TortureRow]


def kill_with_llm(tmp_path: Path, row: TortureRow, kills: int, arguments: list[str], *, faulty: bool) -> None:
    """Kill a command that asks an LLM, at random numbers of answers. The results are those of a calm run, and of the
    whole answers that the server sent, each kill repeats at most those on their way."""
    concurrency = 4
    rng = random.Random(5)
    calm_server, server = JudgeServer(1, faulty=False, pause=0.0), JudgeServer(2, faulty=faulty)
    with FaultServer(calm_server) as calm_http, FaultServer(server) as http:

        def environment(name: str) -> dict[str, str]:
            cache = {"METRIST_LLM_CACHE": str(tmp_path / f"cache-{name}"), "METRIST_LLM_CONCURRENCY": str(concurrency)}
            return {**os.environ, **cache}

        def arguments_for(url: str, out: Path) -> list[str]:
            return [argument.replace("URL", url).replace("OUT", str(out)) for argument in arguments]

        calm = run(*arguments_for(calm_http.url, tmp_path / "calm"), env=environment("calm"))
        assert calm.returncode == 0, calm.stderr
        killed = 0
        while killed < kills:
            before = server.answered.total()
            process = subprocess.Popen(
                command(*arguments_for(http.url, tmp_path / "killed")),
                env=environment("killed"),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            target = before + rng.randint(1, 8)
            wait_for(lambda: process.poll() is not None or server.answered.total() >= target)  # noqa: B023
            with row.attempt():
                killed += 1
                process.send_signal(signal.SIGKILL)
                assert process.wait() in (0, -signal.SIGKILL)
        done = run(*arguments_for(http.url, tmp_path / "killed"), env=environment("killed"))
        assert done.returncode == 0, done.stderr

    def read_rows(folder: Path, url: str) -> dict[str, Any]:
        files = [*folder.glob("preferences/*.jsonl")]
        if not files:
            files = [folder.with_suffix(".jsonl")]
            assert run("export", folder, "-o", files[0]).returncode == 0
        rows = [json.loads(line) for path in files for line in path.read_text().replace(url, "URL").splitlines()]
        return {f"{row['item']} {row.get('system') or row.get('systems')}": row for row in rows}

    row.compare(read_rows(tmp_path / "calm", calm_http.url), read_rows(tmp_path / "killed", http.url))
    # An answer that came whole is paid for. One that was cut off, or lost with its process, is asked for again.
    repeated = server.answered.total() - len(server.answered)
    assert repeated <= kills * concurrency, f"{repeated} answers were asked for twice"
    row.lost += max(0, len(calm_server.answered) - len(server.answered))


def test_scoring_with_an_llm_survives_kills(tmp_path: Path, torture_row: Rows) -> None:
    source = write_records(tmp_path / "in.jsonl", 60)
    judge = "judge=judge(llm=openai(model='m', url='URL'))"
    arguments = ["score", str(source), "-m", judge, "-m", "rougeL", "-o", "OUT"]
    kill_with_llm(tmp_path, torture_row("kill -9: score, LLM calls"), 10, arguments, faulty=False)


def test_a_judge_of_pairs_survives_kills_over_a_faulty_server(tmp_path: Path, torture_row: Rows) -> None:
    source = write_records(tmp_path / "in.jsonl", 40)
    judge = "judge=judge_pair(llm=openai(model='m', url='URL'))"
    arguments = ["prefer", str(source), "-m", judge, "--pairs", "all", "-o", "OUT"]
    row = torture_row("kill -9: prefer, judge over a faulty server")
    kill_with_llm(tmp_path, row, 10, arguments, faulty=True)


def test_trainings_survive_kills(tmp_path: Path, torture_row: Rows) -> None:
    """A training that is killed at random moments ends with the weights of a calm one, and no folder looks finished
    that is not."""
    row = torture_row("kill -9: train")
    base = tiny_models.save("bart", tmp_path / "base")
    data = tmp_path / "pairs.jsonl"
    rng = random.Random(3)
    pairs = [{"first": " ".join(rng.choices(tiny_models.WORDS, k=8)), "second": f"good cat {n % 7}"} for n in range(60)]
    data.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))

    def train(out: Path) -> list[str]:
        options = ["--data", data, "--base", base, "--epochs", 3, "--lr", "0.01", "--batch", 4]
        return command("train", "likelihood", *options, "--checkpoint-every", 2, "--out", out)

    subprocess.run(train(tmp_path / "calm"), check=True, capture_output=True)
    killed = tmp_path / "killed"
    for _ in range(6):
        process = subprocess.Popen(train(killed), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if rng.random() < 0.8:  # The others are killed while they start.
            wait_for_step(process, killed)
        with row.attempt():
            code = kill_after(process, rng.uniform(0, 0.5))
            assert code in (0, -signal.SIGKILL)
            # Weights are there only whole, and a card only with weights.
            weights = killed / "model.safetensors"
            if weights.exists():
                assert weights.read_bytes() == (tmp_path / "calm" / "model.safetensors").read_bytes()
            assert weights.exists() or not (killed / "card.json").exists()
    subprocess.run(train(killed), check=True, capture_output=True)
    names = ("model.safetensors", "config.json", "tokenizer.json")
    calm, found = read_contents(tmp_path / "calm"), read_contents(killed)
    row.compare({name: calm[name] for name in names if name in calm}, {n: found[n] for n in names if n in found})
    assert sorted(calm) == sorted(found)


def wait_for_step(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Wait until a training has written its next checkpoint, or has ended."""
    steps = count_steps(folder)
    wait_for(lambda: process.poll() is not None or count_steps(folder) > steps, 300)


def count_steps(folder: Path) -> int:
    """The last step that has a checkpoint."""
    return max((int(path.name[-8:]) for path in folder.glob("checkpoints/step-????????")), default=0)
