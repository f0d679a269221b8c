"""COMET, BLEURT and UniEval, computed by their own packages.

An adapter is a script in the folder `adapters` that runs in the Python environment of the other package and calls it.
Its hash is part of the signature: an edit of an adapter makes stored scores out of date.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

from metrist.errors import ModelError, SpecError
from metrist.metrics.base import Metric, Shard, check_choice, check_within, hash_file
from metrist.metrics.external.environments import clone_folder, environment_python, find_environment
from metrist.metrics.external.program import MAX_TIME_LIMIT, ExternalProgram, run_program, score_rows
from metrist.models.weights import file_digest
from metrist.records import Need, Record
from metrist.scores import Score, Scores

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
        return Scores.of(self._reduce_scores([next(answers) for _ in group]) for group in groups)

    def _rows(self, record: Record) -> list[dict[str, Any]]:
        """The adapter's input for a record: one row, or one per reference."""
        row = {"output": record.output, "source": record.source}
        if "references" not in self.needs:
            return [row]
        return [{**row, "reference": reference} for reference in record.references]

    def _reduce_scores(self, scores: Sequence[Score]) -> Score:
        if failed := next((score for score in scores if score.failure), None):
            return failed
        best = max(scores, key=lambda score: score.value)
        if self.reduce == "max" or len(scores) == 1:
            return best
        parts = {key: sum(score.parts[key] for score in scores) / len(scores) for key in best.parts}
        return Score(value=sum(score.value for score in scores) / len(scores), parts=parts, errors=best.errors)

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
