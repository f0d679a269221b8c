"""Scores from another program, which runs as a subprocess: JSON lines of records go in, JSON lines of answers come out.

    PROGRAM in.jsonl out.jsonl settings.json

docs/guides/external.md describes the files and the exit codes for those who write such a program. `Program` is the
metric that runs a user's own program. COMET, BLEURT and UniEval are computed by their own packages the same way: an
adapter is a script in the folder `adapters` that runs in the Python environment of the other package and calls it. Its
hash is part of the signature: an edit of an adapter makes stored scores out of date.
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
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

from metrist.errors import ModelError, SpecError, format_count
from metrist.metrics.base import Metric, Shard, check_choice, check_within, hash_file
from metrist.metrics.external.environments import clone_folder, environment_python, find_environment
from metrist.models.weights import file_digest
from metrist.ratings import Error
from metrist.records import OPTIONAL_FIELDS, Need, Record
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


# --- Metrics of other packages

CHECKPOINTS = "METRIST_BLEURT_CHECKPOINTS"
FOLDER = "METRIST_UNIEVAL_FOLDER"
_VERSION_SECONDS = 60


@dataclass(frozen=True, kw_only=True)
class AdapterMetric(Metric):
    """A metric of another package, which takes one reference: with several, each is scored and `reduce` combines them.

    `python` is a path on this machine and not part of the metric's identity; without one, it is that of the environment
    variable, or of the environment that `metrist setup` made.
    """

    resident: ClassVar[bool] = True
    programs: ClassVar[tuple[str, ...]] = ("python",)
    #: The name of the adapter, and the arguments of pip that install the package.
    adapter: ClassVar[str]
    install: ClassVar[str]

    python: str | None = field(default=None, compare=False)
    time_limit: float = field(default=3600.0, compare=False)
    reduce: Literal["mean", "max"] = "mean"

    def __post_init__(self) -> None:
        check_within(self, "time_limit", 1, MAX_TIME_LIMIT)
        check_choice(self, "reduce", ("mean", "max"))

    def facts(self) -> Mapping[str, str]:
        """The hash of the adapter, the versions that it reports, and the hash of weights that are on this machine.
        Weights that a package downloads are known by their name only."""
        versions = query_versions(self._program(_VERSION_SECONDS), tuple(self._version_arguments()))
        facts, checkpoint = {"adapter": hash_file(self._script)}, self._checkpoint()
        if checkpoint is not None and Path(checkpoint).exists():
            path = Path(checkpoint).resolve()
            if path.is_file():
                facts["weights"] = hashlib.sha256(f". {file_digest(path)}\n".encode()).hexdigest()[:12]
            else:
                facts["weights"] = hash_file(path)
        return {**facts, **versions}

    def score(self, shard: Shard) -> Scores:
        groups = [self._rows(record) for record in shard.records]
        rows = [row for group in groups for row in group]
        if not rows:
            return Scores.of([])
        answers = iter(score_rows(self._program(self.time_limit), rows, self._adapter_settings(), shard.runtime))
        reduced = []
        for group in groups:
            scores = [next(answers) for _ in group]
            failed = next((score for score in scores if score.failure), None)
            best = max(scores, key=lambda score: score.value)
            if failed or self.reduce == "max" or len(scores) == 1:
                reduced.append(failed or best)
                continue
            parts = {key: sum(score.parts[key] for score in scores) / len(scores) for key in best.parts}
            mean = sum(score.value for score in scores) / len(scores)
            reduced.append(Score(value=mean, parts=parts, errors=best.errors))
        return Scores.of(reduced)

    def _rows(self, record: Record) -> list[dict[str, Any]]:
        """The adapter's input for a record: one row, or one per reference."""
        row = {"output": record.output, "source": record.source}
        if "references" not in self.needs:
            return [row]
        return [{**row, "reference": reference} for reference in record.references]

    def _adapter_settings(self) -> dict[str, Any]:
        """The settings that the adapter reads from settings.json."""
        raise NotImplementedError

    def _checkpoint(self) -> str | None:
        """The path of the weights, which need not exist; None if only the package knows it."""
        return None

    def _version_arguments(self) -> list[str]:
        """Further arguments of the adapter's `--about`."""
        return []

    @property
    def _script(self) -> Path:
        return Path(__file__).parent / "adapters" / f"{self.adapter}.py"

    def _program(self, seconds: float) -> ExternalProgram:
        variable = f"METRIST_{self.adapter.upper()}_PYTHON"
        python = self.python or os.environ.get(variable)
        if not python and (environment := find_environment(self.adapter)):
            python = str(environment_python(environment))
        folder = f"{self.adapter}-env"
        advice = (
            f"Run `metrist setup {self.adapter}`, or make an environment for it yourself (python -m venv {folder}; "
            f"{folder}/bin/pip install {self.install}) and name its Python: {variable}={folder}/bin/python"
        )
        if not python:
            raise ModelError(f"{self.name} runs in a Python environment of its own, and there is none. {advice}")
        # Isolated (-I): this environment's paths and the folder of the adapters, whose files have the names of the
        # packages, must not precede the packages.
        command = (python, "-I", str(self._script))
        return ExternalProgram(name=self.name, command=command, time_limit=seconds, advice=advice)


@lru_cache(maxsize=64)
def query_versions(program: ExternalProgram, arguments: tuple[str, ...]) -> Mapping[str, str]:
    """The versions that the adapter reports for its environment; queried once per process."""
    with tempfile.TemporaryDirectory(prefix="metrist-") as folder:
        output = run_program(program, ("--about", *arguments), Path(folder))
    try:
        versions = json.loads(output.strip().splitlines()[-1])
        return {str(key): str(value) for key, value in versions.items()}
    except (ValueError, IndexError, AttributeError):
        raise ModelError(
            f"{program.name}: {program.command[0]} did not report its versions, but {output[-300:]!r}"
        ) from None


@dataclass(frozen=True, kw_only=True)
class Bleurt(AdapterMetric):
    """BLEURT (Sellam et al., 2020) as google-research/bleurt computes it. A checkpoint is a folder, searched for as it
    is and then in the folder that METRIST_BLEURT_CHECKPOINTS names."""

    catalog_name: ClassVar[str | None] = "bleurt"
    adapter: ClassVar[str] = "bleurt"
    install: ClassVar[str] = "git+https://github.com/google-research/bleurt.git"
    needs: ClassVar[tuple[Need, ...]] = ("references",)

    checkpoint: str = "BLEURT-20"
    batch_size: int = field(default=16, compare=False)

    def _adapter_settings(self) -> dict[str, Any]:
        return {"checkpoint": self._checkpoint(), "batch_size": self.batch_size}

    def _checkpoint(self) -> str:
        folder = os.environ.get(CHECKPOINTS)
        if folder and not Path(self.checkpoint).exists():
            return str(Path(folder) / self.checkpoint)
        return self.checkpoint


@dataclass(frozen=True, kw_only=True)
class Comet(AdapterMetric):
    """A COMET model (Rei et al., 2020, 2022) as unbabel-comet computes it; XCOMET models give error spans, too.
    `needs=['source']` is for models that use no references."""

    catalog_name: ClassVar[str | None] = "comet"
    adapter: ClassVar[str] = "comet"
    #: Without pkg_resources, which later versions of setuptools lack, its imports fail.
    install: ClassVar[str] = "unbabel-comet 'setuptools<81'"

    model: str = "Unbabel/wmt22-comet-da"
    needs: tuple[Need, ...] = ("source", "references")
    batch_size: int = field(default=16, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not {"source"} <= {*self.needs} <= {"source", "references"}:
            raise SpecError(f"comet: needs must be ['source', 'references'] or ['source'], got {list(self.needs)}")

    def _checkpoint(self) -> str:
        return self.model

    def _adapter_settings(self) -> dict[str, Any]:
        return {"model": self.model, "batch_size": self.batch_size}


OVERALL = "overall"
#: The fields that each of UniEval's yes-or-no questions uses, by task. 'context' is an extra column of the record.
QUESTIONS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "summarization": {
        "coherence": ("source",),
        "consistency": ("source",),
        "fluency": ("source",),
        "relevance": ("source", "references"),
    },
    "dialogue": {
        "naturalness": ("source",),
        "coherence": ("source",),
        "engagingness": ("source", "context"),
        "groundedness": ("source", "context"),
        "understandability": ("source",),
    },
    "data2text": {"naturalness": ("references",), "informativeness": ("references",)},
    "fact": {"consistency": ("source",)},
}


@dataclass(frozen=True, kw_only=True)
class UniEval(AdapterMetric):
    """UniEval (Zhong et al., 2022), computed by its authors' code: one model that answers a yes-or-no question per
    dimension. The value is one dimension or the mean of all; the parts are the dimensions."""

    catalog_name: ClassVar[str | None] = "unieval"
    adapter: ClassVar[str] = "unieval"
    install: ClassVar[str] = "torch transformers nltk prettytable sentencepiece"
    programs: ClassVar[tuple[str, ...]] = ("python", "folder")

    task: Literal["summarization", "dialogue", "data2text", "fact"] = "summarization"
    aspect: str = OVERALL
    folder: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "task", QUESTIONS)
        check_choice(self, "aspect", (OVERALL, *QUESTIONS[self.task]))

    @property
    def aspect_parts(self) -> Mapping[str, tuple[float, float]]:
        return dict.fromkeys(self._aspects, (0.0, 1.0)) if len(self._aspects) > 1 else {}

    @property
    def needs(self) -> tuple[Need, ...]:
        used = self._used_fields()
        return tuple(need for need in ("source", "references") if need in used)

    def _used_fields(self) -> set[str]:
        return {name for aspect in self._aspects for name in QUESTIONS[self.task][aspect]}

    @property
    def _aspects(self) -> tuple[str, ...]:
        return tuple(QUESTIONS[self.task]) if self.aspect == OVERALL else (self.aspect,)

    def _rows(self, record: Record) -> list[dict[str, Any]]:
        context = record.extra.get("context")
        return [{**row, "context": None if context is None else str(context)} for row in super()._rows(record)]

    def _adapter_settings(self) -> dict[str, Any]:
        return {
            "folder": self._find_folder(),
            "task": self.task,
            "aspects": list(self._aspects),
            "value": self.aspect,
            "needs_context": "context" in self._used_fields(),
        }

    def _version_arguments(self) -> list[str]:
        return [self._find_folder()]

    def _find_folder(self) -> str:
        folder = self.folder or os.environ.get(FOLDER) or clone_folder(self.adapter)
        if not folder:
            raise ModelError(
                "unieval is not a package. Run `metrist setup unieval`, or git clone "
                f"https://github.com/maszhongming/UniEval and name the folder: {FOLDER}=UniEval",
                code="invalid_value",
            )
        return os.path.abspath(folder)
