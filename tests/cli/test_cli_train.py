"""`metrist train likelihood`, called as a user calls it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from metrist import __version__
from metrist.cli.train import TrainingReport
from metrist.report.progress import show_progress
from metrist.train.task import Evaluation, TrainingProgress


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.jsonl"
    rows = [{"text": f"the cat sat on the mat {n}", "summary": f"cat {n}"} for n in range(60)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_dry_run_describes_the_training(metrist, tiny, pairs: Path) -> None:
    command = ["train", "likelihood", "--data", pairs, "--base", tiny("bart"), "--out", "x", "--dry-run"]
    answer = metrist(*command, "--dev", 0.1, "--batch", 8, "--epochs", 2, "--pairs", 50)
    assert answer.code == 0
    assert answer.out.splitlines()[:3] == [
        "training pairs     50",
        "development pairs  6",
        "steps              14 (2 epochs of 7)",
    ]
    assert answer.err.endswith("metrist: 50 pairs are drawn at random, 4 are left out (--pairs 0 uses all)\n")


def test_a_dry_run_counts_texts_that_are_too_long(metrist, tiny, tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps({"first": "cat " * 300, "second": "dog cat"}) + "\n")
    answer = metrist("train", "likelihood", "--data", path, "--base", tiny("bart"), "--out", "x", "--dry-run")
    assert answer.out.splitlines()[3:] == [
        "tokens             264 an epoch; 132 a pair, at most 132",
        "too long           1 condition, 1 target; 348 tokens cut",
    ]


def test_a_model_is_trained_scored_with_and_not_trained_again(metrist, tiny, pairs: Path, tmp_path: Path) -> None:
    command = ["train", "likelihood", "--data", pairs, "--base", tiny("bart"), "--out", tmp_path / "mine",
               "--dev", "0.1", "--lr", "1e-3", "--batch", "10"]  # fmt: skip
    answer = metrist(*command)
    assert answer.code == 0
    assert "step 0: mean log-probability of the development data -" in answer.err
    assert "step 6: mean log-probability of the development data -" in answer.err
    lines = answer.out.splitlines()
    card = json.loads((tmp_path / "mine" / "card.json").read_text())
    assert lines[0] == (
        f"mean log-probability of the development pairs: {card['figures']['before']:.4f} before, "
        f"{card['figures']['after']:.4f} after"
    )
    assert card["figures"]["after"] > card["figures"]["before"]
    assert lines[2] == f"use it: metrist score … -m \"bartscore(model='{tmp_path / 'mine'}')\""
    again = metrist(*command)
    assert (again.code, again.err) == (0, f"metrist: {tmp_path / 'mine'} is already finished; nothing was trained\n")
    other = metrist(*command, "--seed", "4", "--schedule", "cosine")
    assert other.code == 2
    assert "schedule is linear there, cosine here; seed is 0 there" in other.err


def test_ctrl_c_writes_a_checkpoint_and_the_same_command_resumes(
    metrist, tiny, pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from metrist.train.likelihood import TokenLoss

    plain, calls = TokenLoss.loss, []

    def pressing(self: TokenLoss, model: Any, batch: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return plain(self, model, batch)

    monkeypatch.setattr(TokenLoss, "loss", pressing)
    command = ["train", "likelihood", "--data", pairs, "--base", tiny("t5"), "--out", tmp_path / "mine"]
    stopped = metrist(*command, "--batch", 10)
    assert stopped.code == 130
    assert "metrist: stopped after step 3; run the same command again to continue\n" in stopped.err
    resumed = metrist(*command, "--batch", 10, "--resume")
    assert resumed.code == 0
    assert resumed.err == "metrist: resuming after step 3 of 6\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--lr", "0"), "got 0.0"),
        (("--dev", "2"), "--dev"),
        (("--dev", "none.jsonl"), "none.jsonl"),
        (("--resume",), "resume"),
        (("--languages", "en"), "--languages"),
        (("--languages", "en,de"), "language"),
        (("--base", "no/such folder"), "'no/such folder'"),
    ],
)
def test_user_errors_are_one_line(
    metrist, tiny, pairs: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    answer = metrist(
        "train", "likelihood", "--data", pairs, "--base", tiny("t5"), "--out", tmp_path / "mine", *arguments
    )
    assert answer.code == 2
    assert answer.err.startswith("metrist: ")
    assert message in answer.err
    assert answer.err.count("\n") == 1


def test_without_torch_the_error_names_the_command_that_installs_it(
    metrist, pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    answer = metrist("train", "likelihood", "--data", pairs, "--base", "x", "--out", tmp_path / "mine")
    assert answer.code == 2
    assert "needs an optional dependency: pip install 'metrist[" in answer.err


@pytest.mark.parametrize("verb", ["likelihood", "preference", "consistency", "error-analysis"])
def test_a_dry_run_names_the_missing_file_before_all_else_that_is_missing(
    metrist, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, verb: str
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    answer = metrist("train", verb, tmp_path / "none.jsonl", "--base", "no/such", "--dry-run")
    assert (answer.code, "none.jsonl: no such file" in answer.err) == (2, True), answer.err


def test_an_analyst_without_torch_is_told_what_to_install(
    metrist, pairs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    answer = metrist("train", "error-analysis", pairs, "--base", "x", "--dry-run")
    assert answer.code == 2
    assert "needs an optional dependency: pip install 'metrist[" in answer.err


def test_the_command_is_a_module_too_and_reading_it_imports_no_torch() -> None:
    code = (
        "import runpy, sys, metrist.train.likelihood; assert 'torch' not in sys.modules; sys.argv[1:] = ['--version'];"
    )
    command = [sys.executable, "-c", f"{code} runpy.run_module('metrist')"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"metrist {__version__}\n"), done.stderr


def test_progress_is_formatted(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 0.0, 20.0])
    monkeypatch.setattr("metrist.cli.train.monotonic", lambda: next(times))
    report = TrainingReport()
    report.on_progress(TrainingProgress(step=20, steps=1500, loss=2.34567, lr=1e-5, tokens=10_000))
    assert report.describe() == "step 20 of 1,500, loss 2.3457"
    report.on_evaluation(Evaluation(step=100, figure=-1.5), "figure")
    report.on_progress(TrainingProgress(step=120, steps=1500, loss=2.34567, lr=1e-5, tokens=60_000))
    assert report.describe() == (
        "step 120 of 1,500, loss 2.3457, dev -1.5000, 5.0 steps/s, 2,500 tokens/s, 0:04:36 left"
    )


def test_on_a_terminal_a_bar_is_drawn(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TTY_INTERACTIVE", "1")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    with show_progress(watcher := TrainingReport()):
        watcher.on_evaluation(Evaluation(step=0, figure=-2.0), "mean log-probability")
        watcher.on_progress(TrainingProgress(step=10, steps=40, loss=3.5, lr=1e-5, tokens=100))
        watcher.on_progress(TrainingProgress(step=20, steps=40, loss=3.0, lr=1e-5, tokens=200))
        watcher.on_message("[bold] is no markup")
    drawn = capsys.readouterr().err
    assert "metrist: step 0: mean log-probability of the development data -2.0000" in drawn
    assert "step 20 of 40, loss 3.0000, dev -2.0000" in drawn
    assert "metrist: [bold] is no markup" in drawn
