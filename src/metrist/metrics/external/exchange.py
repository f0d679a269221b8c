"""Asking another program for scores: records go out as JSON lines, answers come back as JSON lines, one per record.

    PROGRAM in.jsonl out.jsonl settings.json

docs/external.md describes the files and the exit codes for those who write such a program.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metrist.errors import ModelError
from metrist.metrics.external.answers import read_answers
from metrist.scores import Score

#: Told to the program in settings.json; another number means other files.
PROTOCOL = 1
#: Exit codes with a meaning of their own; every other but 0 is a crash.
NOT_INSTALLED = 3
NO_MODEL = 4

_SAID, _COMPLAINED = "stdout.txt", "stderr.txt"
_LAST_LINES = 6
_LONGEST_LAST_WORDS = 1500


@dataclass(frozen=True, slots=True, kw_only=True)
class Called:
    """A program to ask: what messages call it, how it is started, how many seconds it has for one shard, and what to do
    where it or its package is absent."""

    name: str
    command: tuple[str, ...]
    time_limit: float
    advice: str


def ask(program: Called, rows: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> list[Score]:
    """One score per row, in order. A fault of the program is raised; a row's own fault is a failed score."""
    if not rows:
        return []
    with tempfile.TemporaryDirectory(prefix="metrist-") as place:
        folder = Path(place)
        asked, answered, told = folder / "in.jsonl", folder / "out.jsonl", folder / "settings.json"
        _write(asked, rows)
        _write(told, [{"protocol": PROTOCOL, **settings}])
        run(program, (str(asked), str(answered), str(told)), folder)
        return read_answers(program.name, answered, [str(row["output"]) for row in rows])


def run(program: Called, arguments: tuple[str, ...], folder: Path) -> str:
    """What the program wrote on its standard output; one that does not end well is an error that quotes its last words.
    Both its outputs are kept in the folder."""
    # Apart: standard output is often written late, and would stand after the reason why a program ended.
    with (folder / _SAID).open("wb") as said, (folder / _COMPLAINED).open("wb") as complained:
        child = _started(program, arguments, said, complained)
        try:
            code = child.wait(program.time_limit)
        except subprocess.TimeoutExpired:
            _kill(child)
            raise ModelError(
                f"{program.name} did not answer within {program.time_limit:g} seconds and was ended; give it more "
                f"with time_limit=…{_last_words(folder)}"
            ) from None
        except BaseException:
            _kill(child)
            raise
    if code:
        raise ModelError(_reason(program, code, folder))
    return (folder / _SAID).read_text(encoding="utf-8", errors="replace")


def _write(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    # ASCII: a lone surrogate, which UTF-8 cannot hold, survives as its escape.
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="ascii")


def _started(program: Called, arguments: tuple[str, ...], said: Any, complained: Any) -> subprocess.Popen[bytes]:
    command = [*program.command, *arguments]
    try:
        # A session of its own: when time is up, what the program has started ends with it.
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=said, stderr=complained, start_new_session=True
        )
    except OSError as fault:
        why = fault.strerror or str(fault)
        raise ModelError(f"{program.name}: cannot start {command[0]!r}: {why}. {program.advice}") from None


def _kill(child: subprocess.Popen[bytes]) -> None:
    with suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()
    child.wait()


def _reason(program: Called, code: int, folder: Path) -> str:
    said = _last_words(folder)
    if code == NOT_INSTALLED:
        return f"{program.name} is not installed in its environment: {_last_line(folder)}. {program.advice}"
    if code == NO_MODEL:
        return f"{program.name} cannot have its model: {_last_line(folder)}"
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
        hint = " (too little memory is the usual cause)" if name == "SIGKILL" else ""
        return f"{program.name} was ended by the signal {name}{hint}{said}"
    return f"{program.name} ended with exit code {code}{said}"


def _last_words(folder: Path) -> str:
    tail = " | ".join(_lines(folder)[-_LAST_LINES:])[-_LONGEST_LAST_WORDS:]
    return f"; its last words: {tail}" if tail else ""


def _last_line(folder: Path) -> str:
    """Where the exit code has a meaning, the reason is what the program wrote last."""
    return (_lines(folder) or ["it did not say why"])[-1][:_LONGEST_LAST_WORDS]


def _lines(folder: Path) -> list[str]:
    """What it complained of; where it did not complain, what it said."""
    for name in (_COMPLAINED, _SAID):
        written = (folder / name).read_text(encoding="utf-8", errors="replace").splitlines()
        if lines := [line.strip() for line in written if line.strip()]:
            return lines
    return []
