"""What metrics with an adapter have in common. An adapter is a script of metrist's that runs in the other package's own
Python environment and knows how to call it."""

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

from metrist.errors import ModelError
from metrist.metrics.base import Metric, check_choice, check_within
from metrist.metrics.external.exchange import Called, ask, run
from metrist.metrics.shard import Shard
from metrist.models.weights import digest_of
from metrist.records import Record
from metrist.scores import Score, Scores

_LONGEST = 7 * 24 * 3600
_ABOUT_SECONDS = 60


@dataclass(frozen=True, kw_only=True)
class Adapted(Metric):
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
        versions = about(self._called(_ABOUT_SECONDS), tuple(self._asking()))
        return {"adapter": _hash_of(self._script), **_weights(self._checkpoint()), **versions}

    def score(self, shard: Shard) -> Scores:
        rows = [self._rows(record) for record in shard.records]
        flat = [row for group in rows for row in group]
        answers = iter(ask(self._called(self.time_limit), flat, self._told()) if flat else [])
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

    def _called(self, seconds: float) -> Called:
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
        return Called(name=self.name, command=command, time_limit=seconds, advice=advice)


Reduced = Literal["mean", "max"]


@dataclass(frozen=True, kw_only=True)
class OneReference(Adapted):
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
def about(program: Called, arguments: tuple[str, ...]) -> Mapping[str, str]:
    """What the adapter says of its environment; asked once per process."""
    with tempfile.TemporaryDirectory(prefix="metrist-") as folder:
        said = run(program, ("--about", *arguments), Path(folder))
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
    total = hashlib.sha256("".join(f"{file.relative_to(place)} {digest_of(file)}\n" for file in files).encode())
    return {"weights": total.hexdigest()[:12]}


def _hash_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]
