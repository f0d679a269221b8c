"""The command line, called as a user calls it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
import typer.main

from metrist.cli.app import main


class Answer(NamedTuple):
    code: int
    out: str
    err: str


Command = Callable[..., Answer]


#: All commands with their options. A program builds them once per call; tests build them once for all calls.
_built = cache(typer.main.get_command)


@pytest.fixture
def metrist(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """`metrist("score", "a.jsonl", "-m", "chrf")`: exit code and what was printed."""

    monkeypatch.setattr("typer.main.get_command", _built)

    def call(*arguments: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["metrist", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        return Answer(code, *capsys.readouterr())

    return call


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    """Two systems on 40 items: `good` repeats the reference, `bad` only its first half."""
    rows = []
    for i in range(40):
        reference = f"item {i} asks for a short answer of number {i * 7} and no more"
        rows += [
            {"item": str(i), "system": "good", "output": reference + ".", "references": [reference]},
            {"item": str(i), "system": "bad", "output": reference[: len(reference) // 2], "references": [reference]},
        ]
    path = tmp_path / "outputs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def run(metrist: Command, outputs: Path, tmp_path: Path) -> Path:
    """The outputs scored with chrF and TER."""
    assert metrist("score", outputs, "-m", "chrf", "-m", "ter", "-o", tmp_path / "run").code == 0
    return tmp_path / "run"
