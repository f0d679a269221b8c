"""What a program answered, one JSON line per record: checked, and turned into scores."""

from __future__ import annotations

import hashlib
import json
import math
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

from metrist.errors import ModelError
from metrist.metrics.base import Metric, check_choice, check_within
from metrist.metrics.shard import Shard
from metrist.models.weights import file_digest
from metrist.ratings import Error
from metrist.records import Record
from metrist.runtime import VARIABLES, Runtime
from metrist.scores import FailureKind, Score, Scores

_WANTED = 'wanted {"value": NUMBER} or {"failure": "why"}, with "parts", "errors" and "explanation" as it likes'


def parse_answers(name: str, path: Path, outputs: Sequence[str]) -> list[Score]:
    """One score per output. A line that cannot be read, or a wrong number of lines, is the program's fault."""
    if not path.exists():
        raise ModelError(
            f"{name} ended well but wrote no answers: wanted one JSON line per record in its second argument"
        )
    lines = path.read_text(encoding="utf-8", errors="surrogateescape").split("\n")
    lines = lines[:-1] if lines[-1] == "" else lines
    if len(lines) != len(outputs):
        raise ModelError(f"{name} gave {len(lines):,} answers to {len(outputs):,} records: wanted one each, in order")
    return [_score(name, at, line, output) for at, (line, output) in enumerate(zip(lines, outputs, strict=True), 1)]


def _score(name: str, at: int, line: str, output: str) -> Score:
    try:
        answer = json.loads(line)
        return _checked(name, answer, output)
    except (ValueError, TypeError, KeyError, AttributeError) as fault:
        shown = line if len(line) <= 200 else line[:200] + "…"
        raise ModelError(f"answer {at} of {name} cannot be read ({fault}): {_WANTED}, got {shown!r}") from None


def _checked(name: str, answer: Mapping[str, Any], output: str) -> Score:
    if (failure := answer.get("failure")) is not None:
        return Score.failed(_text(failure, "failure"))
    value = _number(answer["value"], "value")
    if not math.isfinite(value):
        return Score.failed(f"{name} gave {value}, which is no score", FailureKind.not_scored)
    explanation = answer.get("explanation")
    return Score(
        value=value,
        parts={key: _number(part, key) for key, part in answer.get("parts", {}).items()},
        errors=tuple(_error(found, output) for found in answer.get("errors", ())),
        explanation=None if explanation is None else _text(explanation, "explanation"),
    )


def _number(value: Any, key: str) -> float:
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{key!r} is no number")
    return float(value)


def _text(value: Any, key: str) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError(f"{key!r} is no text")
    return value


def _error(found: Mapping[str, Any], output: str) -> Error:
    start, end = _place(found, len(output))
    return Error(
        aspect=_text(found["aspect"], "aspect"),
        severity=found.get("severity"),
        penalty=None if found.get("penalty") is None else _number(found["penalty"], "penalty"),
        explanation=found.get("explanation") or "",
        text=output[start:end] if start is not None else found.get("text") or "",
        start=start,
        end=end,
    )


def _place(found: Mapping[str, Any], length: int) -> tuple[int | None, int | None]:
    """Where in the output the error is; offsets outside it place nothing."""
    start, end = found.get("start"), found.get("end")
    placed = isinstance(start, int) and isinstance(end, int) and 0 <= start < end <= length
    return (start, end) if placed else (None, None)


# Asking another program for scores: records go out as JSON lines, answers come back as JSON lines, one per record.
#
#     PROGRAM in.jsonl out.jsonl settings.json
#
# docs/external.md describes the files and the exit codes for those who write such a program.


#: Told to the program in settings.json; another number means other files.
PROTOCOL = 1
#: Exit codes with a meaning of their own; every other but 0 is a crash.
NOT_INSTALLED = 3
NO_MODEL = 4

_SAID, _COMPLAINED = "stdout.txt", "stderr.txt"
_LAST_LINES = 6
_LONGEST_LAST_WORDS = 1500


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalProgram:
    """A program to ask: what messages call it, how it is started, how many seconds it has for one shard, and what to do
    where it or its package is absent."""

    name: str
    command: tuple[str, ...]
    time_limit: float
    advice: str


def score_rows(program: ExternalProgram, rows: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> list[Score]:
    """One score per row, in order. A fault of the program is raised; a row's own fault is a failed score."""
    if not rows:
        return []
    with tempfile.TemporaryDirectory(prefix="metrist-") as place:
        folder = Path(place)
        asked, answered, told = folder / "in.jsonl", folder / "out.jsonl", folder / "settings.json"
        _write(asked, rows)
        _write(told, [{"protocol": PROTOCOL, **settings}])
        run_program(program, (str(asked), str(answered), str(told)), folder)
        return parse_answers(program.name, answered, [str(row["output"]) for row in rows])


def run_program(program: ExternalProgram, arguments: tuple[str, ...], folder: Path) -> str:
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


def _started(
    program: ExternalProgram, arguments: tuple[str, ...], said: Any, complained: Any
) -> subprocess.Popen[bytes]:
    command = [*program.command, *arguments]
    try:
        # A session of its own: when time is up, what the program has started ends with it.
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=complained,
            start_new_session=True,
            env={**os.environ, VARIABLES["device"]: Runtime.current().device},
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


def _reason(program: ExternalProgram, code: int, folder: Path) -> str:
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


# What metrics with an adapter have in common. An adapter is a script of metrist's that runs in the other package's own
# Python environment and knows how to call it.


_LONGEST = 7 * 24 * 3600
_ABOUT_SECONDS = 60


@dataclass(frozen=True, kw_only=True)
class AdapterMetric(Metric):
    """A metric of another package. `python` is a place on this machine and no part of what the metric is."""

    resident: ClassVar[bool] = True
    programs: ClassVar[tuple[str, ...]] = ("python",)
    #: The adapter's name, and what the user installs to have the package.
    adapter: ClassVar[str]
    install: ClassVar[str]

    python: str | None = field(default=None, compare=False)
    time_limit: float = field(default=3600.0, compare=False)

    def __post_init__(self) -> None:
        check_within(self, "time_limit", 1, _LONGEST)

    def facts(self) -> Mapping[str, str]:
        """The adapter's hash, the versions that its environment names when asked, and the hash of weights that lie on
        this machine; what a package downloads is known by its name."""
        versions = query_versions(self._called(_ABOUT_SECONDS), tuple(self._asking()))
        return {"adapter": _hash_of(self._script), **_weights(self._checkpoint()), **versions}

    def score(self, shard: Shard) -> Scores:
        rows = [self._rows(record) for record in shard.records]
        flat = [row for group in rows for row in group]
        answers = iter(score_rows(self._called(self.time_limit), flat, self._told()) if flat else [])
        return Scores.of(self._reduced([next(answers) for _ in group]) for group in rows)

    def _rows(self, record: Record) -> list[dict[str, Any]]:
        """What the adapter is given of a record: a row, or one per reference where the package takes a single one."""
        plain = {"output": record.output, "source": record.source}
        if "references" not in self.needs:
            return [plain]
        return [{**plain, "reference": reference} for reference in record.references]

    def _reduced(self, answers: Sequence[Score]) -> Score:
        """One score out of a row's answers."""
        (score,) = answers
        return score

    def _told(self) -> dict[str, Any]:
        """The settings that the adapter needs."""
        raise NotImplementedError

    def _checkpoint(self) -> str | None:
        """Where the weights lie, or would lie if they are on this machine; None where only the package knows."""
        return None

    def _asking(self) -> list[str]:
        """What the adapter needs to say its versions."""
        return []

    @property
    def _script(self) -> Path:
        return Path(__file__).parent / "adapters" / f"{self.adapter}.py"

    def _called(self, seconds: float) -> ExternalProgram:
        variable = f"METRIST_{self.adapter.upper()}_PYTHON"
        python = self.python or os.environ.get(variable)
        folder = f"{self.adapter}-env"
        advice = (
            f"Make an environment for it (python -m venv {folder}; {folder}/bin/pip install {self.install}) and name "
            f"its Python: {variable}={folder}/bin/python"
        )
        if not python:
            raise ModelError(f"{self.name} runs in a Python environment of its own, and none is named. {advice}")
        # Isolated: neither this environment's paths nor the adapter's own folder, whose files are called like the
        # packages, may stand before the packages.
        command = (python, "-I", str(self._script))
        return ExternalProgram(name=self.name, command=command, time_limit=seconds, advice=advice)


Reduced = Literal["mean", "max"]


@dataclass(frozen=True, kw_only=True)
class SingleReferenceMetric(AdapterMetric):
    """A metric whose package takes one reference; several are asked about one by one."""

    reduce: Reduced = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "reduce", ("mean", "max"))

    def _reduced(self, answers: Sequence[Score]) -> Score:
        if failed := next((answer for answer in answers if answer.failure), None):
            return failed
        best = max(answers, key=lambda answer: answer.value)
        if self.reduce == "max" or len(answers) == 1:
            return best
        parts = {key: sum(a.parts[key] for a in answers) / len(answers) for key in best.parts}
        return Score(value=sum(a.value for a in answers) / len(answers), parts=parts, errors=best.errors)


@lru_cache(maxsize=64)
def query_versions(program: ExternalProgram, arguments: tuple[str, ...]) -> Mapping[str, str]:
    """What the adapter says of its environment; asked once per process."""
    with tempfile.TemporaryDirectory(prefix="metrist-") as folder:
        said = run_program(program, ("--about", *arguments), Path(folder))
    try:
        versions = json.loads(said.strip().splitlines()[-1])
        return {str(key): str(value) for key, value in versions.items()}
    except (ValueError, IndexError, AttributeError):
        raise ModelError(f"{program.name}: {program.command[0]} did not say its versions but {said[-300:]!r}") from None


def _weights(checkpoint: str | None) -> Mapping[str, str]:
    """A hash over the file, or all files in the folder; nothing where there is neither."""
    if checkpoint is None or not Path(checkpoint).exists():
        return {}
    place = Path(checkpoint).resolve()
    files = [place] if place.is_file() else sorted(file for file in place.rglob("*") if file.is_file())
    total = hashlib.sha256("".join(f"{file.relative_to(place)} {file_digest(file)}\n" for file in files).encode())
    return {"weights": total.hexdigest()[:12]}


def _hash_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]
