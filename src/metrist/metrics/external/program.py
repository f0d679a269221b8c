"""Scores from another program, which runs as a subprocess: JSON lines of records go in, JSON lines of answers come out.

    PROGRAM in.jsonl out.jsonl settings.json

docs/guides/external.md describes the files and the exit codes for those who write such a program. `Program` is the
metric that runs a user's own program; `metrist.metrics.external.packages` runs the adapters of published metrics the
same way.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from metrist.errors import ModelError, SpecError, format_count
from metrist.metrics.base import Metric, Shard, check_choice, check_within
from metrist.ratings import Error
from metrist.records import OPTIONAL_FIELDS, Need
from metrist.runtime import VARIABLES, Runtime
from metrist.scores import FailureKind, Score, Scores

#: The version of the file formats, which settings.json names.
PROTOCOL = 1
#: Exit codes with a meaning of their own; every other one except 0 is a crash.
NOT_INSTALLED = 3
NO_MODEL = 4
MAX_TIME_LIMIT = 7 * 24 * 3600

_HIGHER_IS_BETTER = {"higher": True, "lower": False, "neither": None}
_STDOUT, _STDERR = "stdout.txt", "stderr.txt"
_QUOTED_LINES = 6
_QUOTED_CHARACTERS = 1500
_ANSWER_FORMAT = 'expected {"value": NUMBER} or {"failure": "why"}, optionally with "parts", "errors" and "explanation"'


@dataclass(frozen=True, kw_only=True)
class Program(Metric):
    """Scores that a user's program writes. It is started with three more arguments: records, answers, settings."""

    catalog_name: ClassVar[str | None] = "external"
    catalog_example: ClassVar[str | None] = "external(command='my_program')"
    resident: ClassVar[bool] = True
    programs: ClassVar[tuple[str, ...]] = ("command",)

    command: str | tuple[str, ...]
    needs: tuple[Need, ...] = ()
    better: Literal["higher", "lower", "neither"] = "higher"
    time_limit: float = field(default=3600.0, compare=False)

    def __post_init__(self) -> None:
        check_within(self, "time_limit", 1, MAX_TIME_LIMIT)
        check_choice(self, "better", _HIGHER_IS_BETTER)
        # Other metrics declare their direction in the class; here it is a setting.
        object.__setattr__(self, "higher_is_better", _HIGHER_IS_BETTER[self.better])
        if not self._words:
            raise SpecError(
                "external: command is empty; give a program, such as ['python', 'my_metric.py']", code="no_data"
            )

    def facts(self) -> Mapping[str, str]:
        """A hash of the files that the command names, so that an edited script is another metric. The interpreter,
        which differs between machines, counts only if the command names no script."""
        executable, *arguments = self._words
        files = [Path(word) for word in arguments if Path(word).is_file()]
        if not files and (path := shutil.which(executable)):
            files = [Path(path)]
        digest = hashlib.sha256(b"".join(hashlib.sha256(file.read_bytes()).digest() for file in files))
        return {"program": digest.hexdigest()[:12] if files else "none"}

    def score(self, shard: Shard) -> Scores:
        program = ExternalProgram(
            name=self.name,
            command=self._words,
            time_limit=self.time_limit,
            advice="Check the command: it is searched for as a shell does, from the folder where metrist runs.",
        )
        rows = [
            {
                "item": record.item,
                "system": record.system,
                "output": record.output,
                "source": record.source,  # before the references, as programs have always read it
                "references": list(record.references),
                **{name: getattr(record, name) for name in OPTIONAL_FIELDS},
            }
            for record in shard.records
        ]
        return Scores.of(score_rows(program, rows, {"metric": self.text}, shard.runtime))

    @property
    def _words(self) -> tuple[str, ...]:
        return tuple(shlex.split(self.command)) if isinstance(self.command, str) else self.command


# --- Running a program


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalProgram:
    """A program: its name in messages, its command, its seconds per shard, and what to do if it cannot be run."""

    name: str
    command: tuple[str, ...]
    time_limit: float
    advice: str


def score_rows(
    program: ExternalProgram,
    rows: Sequence[Mapping[str, Any]],
    settings: Mapping[str, Any],
    runtime: Runtime | None = None,
) -> list[Score]:
    """One score per row, in order. A fault of the program is raised; a failure of a single row is a failed score."""
    if not rows:
        return []
    with tempfile.TemporaryDirectory(prefix="metrist-") as temporary:
        folder = Path(temporary)
        input_path, output_path, settings_path = folder / "in.jsonl", folder / "out.jsonl", folder / "settings.json"
        _write_lines(input_path, rows)
        _write_lines(settings_path, [{"protocol": PROTOCOL, **settings}])
        run_program(program, (str(input_path), str(output_path), str(settings_path)), folder, runtime)
        return parse_answers(program.name, output_path, [str(row["output"]) for row in rows])


def _write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    # ASCII: a lone surrogate, which UTF-8 cannot encode, survives as its escape.
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="ascii")


def run_program(
    program: ExternalProgram, arguments: tuple[str, ...], folder: Path, runtime: Runtime | None = None
) -> str:
    """Run the program and return its standard output. ModelError with the end of its output if it fails."""
    # Separate files: standard output is often flushed late and would follow the reason why a program ended.
    with (folder / _STDOUT).open("wb") as stdout, (folder / _STDERR).open("wb") as stderr:
        command = [*program.command, *arguments]
        try:
            # A session of its own, so that a timeout also ends the processes that the program started.
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
                env={**os.environ, VARIABLES["device"]: (runtime or Runtime.current()).device},
            )
        except OSError as error:
            reason = error.strerror or str(error)
            raise ModelError(f"{program.name}: cannot start {command[0]!r}: {reason}. {program.advice}") from None
        try:
            code = process.wait(program.time_limit)
        except subprocess.TimeoutExpired:
            _kill(process)
            raise ModelError(
                f"{program.name} did not answer within {program.time_limit:g} s and was killed; allow more with "
                f"time_limit=…{_quote_output(folder)}",
                code="metric_failed",
            ) from None
        except BaseException:
            _kill(process)
            raise
    if code:
        raise ModelError(_explain_exit(program, code, folder))
    return (folder / _STDOUT).read_text(encoding="utf-8", errors="replace")


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()


def _explain_exit(program: ExternalProgram, code: int, folder: Path) -> str:
    if code in (NOT_INSTALLED, NO_MODEL):
        # With these codes, the last line that the program wrote is the reason.
        reason = (_read_output(folder) or ["it gave no reason"])[-1][:_QUOTED_CHARACTERS]
        if code == NOT_INSTALLED:
            return f"{program.name} is not installed in its environment: {reason}. {program.advice}"
        return f"{program.name} cannot load its model: {reason}"
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
        hint = " (usually for lack of memory)" if name == "SIGKILL" else ""
        return f"{program.name} was killed by the signal {name}{hint}{_quote_output(folder)}"
    return f"{program.name} ended with exit code {code}{_quote_output(folder)}"


def _quote_output(folder: Path) -> str:
    tail = " | ".join(_read_output(folder)[-_QUOTED_LINES:])[-_QUOTED_CHARACTERS:]
    return f"; its last output: {tail}" if tail else ""


def _read_output(folder: Path) -> list[str]:
    """The lines on standard error, or on standard output if there are none."""
    for name in (_STDERR, _STDOUT):
        lines = (folder / name).read_text(encoding="utf-8", errors="replace").splitlines()
        if stripped := [line.strip() for line in lines if line.strip()]:
            return stripped
    return []


# --- Parsing its answers


def parse_answers(name: str, path: Path, outputs: Sequence[str]) -> list[Score]:
    """One score per output. ModelError for a line that cannot be parsed, or a wrong number of lines."""
    if not path.exists():
        raise ModelError(
            f"{name} exited with code 0 but wrote no answers; expected one JSON line per record in its second argument",
            code="invalid_value",
        )
    lines = path.read_text(encoding="utf-8", errors="surrogateescape").split("\n")
    lines = lines[:-1] if lines[-1] == "" else lines
    if len(lines) != len(outputs):
        raise ModelError(
            f"{name} gave {format_count(len(lines), 'answer')} to {format_count(len(outputs), 'record')}; "
            "expected one each, in order",
            code="invalid_value",
        )
    scores = []
    for number, (line, output) in enumerate(zip(lines, outputs, strict=True), 1):
        try:
            scores.append(_parse_answer(name, json.loads(line), output))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            shown = line if len(line) <= 200 else line[:200] + "…"
            raise ModelError(
                f"answer {number} of {name} cannot be parsed ({error}): {_ANSWER_FORMAT}, got {shown!r}",
                code="invalid_value",
            ) from None
    return scores


def _parse_answer(name: str, answer: Mapping[str, Any], output: str) -> Score:
    if (failure := answer.get("failure")) is not None:
        return Score.failed(_parse_text(failure, "failure"))
    value = _parse_number(answer["value"], "value")
    if not math.isfinite(value):
        return Score.failed(f"{name} gave {value}, which is not a score", FailureKind.not_scored)
    explanation = answer.get("explanation")
    return Score(
        value=value,
        parts={key: _parse_number(part, key) for key, part in answer.get("parts", {}).items()},
        errors=tuple(_parse_error(error, output) for error in answer.get("errors", ())),
        explanation=None if explanation is None else _parse_text(explanation, "explanation"),
    )


def _parse_number(value: Any, key: str) -> float:
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{key!r} is not a number")
    return float(value)


def _parse_text(value: Any, key: str) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError(f"{key!r} is not a text")
    return value


def _parse_error(row: Mapping[str, Any], output: str) -> Error:
    start, end = row.get("start"), row.get("end")
    if not (isinstance(start, int) and isinstance(end, int) and 0 <= start < end <= len(output)):
        start = end = None
    return Error(
        aspect=_parse_text(row["aspect"], "aspect"),
        severity=row.get("severity"),
        penalty=None if row.get("penalty") is None else _parse_number(row["penalty"], "penalty"),
        explanation=row.get("explanation") or "",
        text=output[start:end] if start is not None else row.get("text") or "",
        start=start,
        end=end,
    )
