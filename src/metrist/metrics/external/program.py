"""A metric that the user's own program computes, in whatever language and environment it is written."""

from __future__ import annotations

import hashlib
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from metrist.errors import SpecError
from metrist.metrics.base import Metric, check_choice, check_within
from metrist.metrics.external.adapter import ExternalProgram, score_rows
from metrist.metrics.shard import Shard
from metrist.records import Need, Record
from metrist.scores import Scores

_LONGEST = 7 * 24 * 3600
_BETTER = {"higher": True, "lower": False, "neither": None}


@dataclass(frozen=True, kw_only=True)
class Program(Metric):
    """Scores that a program writes: it is started with three more arguments (records, answers, settings), as
    docs/external.md says."""

    catalog_name: ClassVar[str | None] = "external"
    resident: ClassVar[bool] = True
    programs: ClassVar[tuple[str, ...]] = ("command",)

    command: str | tuple[str, ...]
    needs: tuple[Need, ...] = ()
    better: Literal["higher", "lower", "neither"] = "higher"
    time_limit: float = field(default=3600.0, compare=False)

    def __post_init__(self) -> None:
        check_within(self, "time_limit", 1, _LONGEST)
        check_choice(self, "better", _BETTER)
        # Direction belongs to the class of every other metric; here the user says it.
        object.__setattr__(self, "higher_is_better", _BETTER[self.better])
        if not self._words:
            raise SpecError("external: command is empty: wanted a program, such as ['python', 'my_metric.py']")

    def facts(self) -> Mapping[str, str]:
        """A hash of the files that the command names: an edited script makes another metric. The interpreter, which
        differs between machines, is left out where the command names a script besides it."""
        first, *others = self._words
        scripts = [Path(word) for word in others if Path(word).is_file()]
        alone = shutil.which(first)
        files = scripts or ([Path(alone)] if alone else [])
        whole = hashlib.sha256(b"".join(hashlib.sha256(file.read_bytes()).digest() for file in files))
        return {"program": whole.hexdigest()[:12] if files else "none"}

    def score(self, shard: Shard) -> Scores:
        called = ExternalProgram(
            name=self.name,
            command=self._words,
            time_limit=self.time_limit,
            advice="Check the command: it is looked for as a shell looks, from the folder where metrist runs.",
        )
        return Scores.of(score_rows(called, [_row(record) for record in shard.records], {"metric": self.text}))

    @property
    def _words(self) -> tuple[str, ...]:
        return tuple(shlex.split(self.command)) if isinstance(self.command, str) else self.command


def _row(record: Record) -> dict[str, Any]:
    return {
        "item": record.item,
        "system": record.system,
        "output": record.output,
        "source": record.source,
        "references": list(record.references),
        "instruction": record.instruction,
        "task": record.task,
        "language": record.language,
    }
