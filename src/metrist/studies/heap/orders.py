"""One training with all that it needs, small enough to hand to another process, and the folder it is done in.

DIR/split-authors.json        where each pair of the file belongs
DIR/trainings/NAME/model/     the model of a training, with its card
DIR/trainings/NAME/results.json   what it said of each test pair: a training that has it is finished
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from metrist.errors import RunError
from metrist.studies.heap.answers import Result
from metrist.studies.heap.jobs import Job
from metrist.studies.heap.settings import Settings

Side = Literal["dev", "test"]
RESULTS = "results.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """`study` is the folder of the whole study, `folder` that of this training; `side` are the pairs that its results
    are about: trials that settings are chosen by never see the test pairs. `chosen` says for the card which settings
    were chosen so."""

    job: Job
    settings: Settings
    pairs: Path
    study: Path
    folder: Path
    side: Side = "test"
    keep_model: bool = True
    chosen: str | None = None
    checkpoint_every: int = 500

    @property
    def name(self) -> str:
        return self.folder.name

    def result(self) -> Result | None:
        """What an earlier run of the same training found; None where there was none, or where it was judged by fewer
        criteria, as a base model may be that is to be judged by more now."""
        path = self.folder / RESULTS
        if not path.is_file():
            return None
        found = Result.read(path)
        there, here = set(found.job.judged), set(self.job.judged)
        judged = self.job.judged if there <= here or here <= there else found.job.judged
        if differing := differing_settings({**found.settings, "judged": list(judged)}, self.decides()):
            raise RunError(
                f"{self.folder} holds a finished training with other settings: {'; '.join(differing)}. "
                "Give the same settings, or another --out"
            )
        return found if here <= there else None

    def decides(self) -> dict[str, Any]:
        """What decides the results, as JSON reads it back."""
        learns, judged = list(self.job.learns), list(self.job.judged)
        return {**self.settings.decides(), "learns": learns, "judged": judged, "side": self.side}

    def to_dict(self) -> dict[str, Any]:
        paths = {name: str(getattr(self, name)) for name in ("pairs", "study", "folder")}
        plain = {name: getattr(self, name) for name in ("side", "keep_model", "chosen", "checkpoint_every")}
        return {"job": self.job.to_dict(), "settings": self.settings.to_dict(), **paths, **plain}

    @staticmethod
    def of(row: Mapping[str, Any]) -> Order:
        paths = {name: Path(row[name]) for name in ("pairs", "study", "folder")}
        return Order(**{**row, "job": Job.of(row["job"]), "settings": Settings.of(row["settings"]), **paths})


def differing_settings(there: Mapping[str, Any], here: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Each setting that is not the same, with both its values."""
    found: list[str] = []
    for name in dict.fromkeys([*there, *here]):
        old, new = there.get(name), here.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found += differing_settings(old, new, f"{prefix}{name}.")
        elif old != new and not (isinstance(old, list | tuple) and isinstance(new, list | tuple) and [*old] == [*new]):
            found.append(f"{prefix}{name} is {old} there, {new} here")
    return found
