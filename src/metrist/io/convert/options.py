"""What a format leaves unsaid and the user may add."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`system` names outputs that come without a name. `ratings` are the names of scores given by people. `references`
    are the names of the references to take, None for all."""

    system: str | None = None
    task: str | None = None
    language: str | None = None
    ratings: Collection[str] | None = None
    references: Collection[str] | None = None
