"""Records: outputs to be judged, with what they are judged against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

Need = Literal["source", "references", "instruction"]

_EMPTY: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One system's output for one item. `extra` holds the columns that metrist does not know."""

    item: str
    system: str
    output: str
    source: str | None = None
    references: tuple[str, ...] = ()
    instruction: str | None = None
    task: str | None = None
    language: str | None = None
    extra: Mapping[str, Any] = field(default_factory=lambda: _EMPTY, hash=False)

    def lacks(self, need: Need) -> bool:
        """Whether the record does not have this field."""
        return not self.references if need == "references" else getattr(self, need) is None

    def __reduce__(self) -> tuple[Any, ...]:
        # Records are sent to worker processes by the thousand: a flat tuple pickles three times faster than the state
        # of a slotted dataclass, and a mapping proxy cannot be pickled.
        return _record, (
            self.item,
            self.system,
            self.output,
            self.source,
            self.references,
            self.instruction,
            self.task,
            self.language,
            dict(self.extra),
        )


def _record(
    item: str,
    system: str,
    output: str,
    source: str | None,
    references: tuple[str, ...],
    instruction: str | None,
    task: str | None,
    language: str | None,
    extra: dict[str, Any],
) -> Record:
    return Record(
        item=item,
        system=system,
        output=output,
        source=source,
        references=references,
        instruction=instruction,
        task=task,
        language=language,
        extra=extra or _EMPTY,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two outputs of one item, to be compared."""

    first: Record
    second: Record
