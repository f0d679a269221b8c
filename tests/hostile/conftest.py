"""Hostile files: each is given to a public function or to the command line, and must be refused in one clear line."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import typer.main

from metrist.cli.app import main
from metrist.errors import MetristError

#: Seconds after which a reader is taken to hang.
_PATIENCE = 120

_built = cache(typer.main.get_command)

#: `refused(word, call, *arguments)` calls a function, or the command line with the arguments if `call` is a text.
Refused = Callable[..., str]


@contextmanager
def _time_limit() -> Iterator[None]:
    def stop(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError("the reader hangs")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(_PATIENCE)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Iterator[Refused]:
    """A raw exception (RecursionError, OverflowError, UnicodeDecodeError …) fails the test, and so does a canary that
    code in the file would leave behind."""
    monkeypatch.setattr("typer.main.get_command", _built)
    monkeypatch.chdir(tmp_path)

    def check(word: str, call: str | Callable[..., Any], *arguments: object) -> str:
        with _time_limit():
            if isinstance(call, str):
                monkeypatch.setattr(sys, "argv", ["metrist", call, *map(str, arguments)])
                with pytest.raises(SystemExit) as stop:
                    main()
                message = capsys.readouterr().err
                assert stop.value.code == 2, message
            else:
                with pytest.raises(MetristError) as error:
                    call(*arguments)
                message = str(error.value)
        assert word.lower() in message.lower()
        assert "Traceback" not in message
        assert len(message) < 3000
        return message

    yield check
    assert not list(tmp_path.rglob("canary*"))


ROWS = [
    {"item": str(n), "system": system, "output": f"the cat sat on mat {n}{system}", "references": ["the cat sat"]}
    for n in range(3)
    for system in ("a", "b")
]


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    path = tmp_path / "outputs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path
