"""One thing that can be asked of a text, and the words in which it is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Criterion:
    """`fields` are the labels of what is shown, in order, the judged text (`answer`) last.

    `higher` is what the good one of a pair has more of. `opposite` says that people would rather have the bad one:
    a more offensive reply is "good" at being offensive.
    """

    name: str
    code: str
    data_set: str | None = None
    fields: tuple[str, ...]
    instructions: tuple[str, ...]
    higher: str
    opposite: bool = False
    clusters: tuple[int, ...] = ()
    group: str | None = None
    examples: int | None = None
    comparable: bool = True

    @property
    def answer(self) -> str:
        """The label of the judged text."""
        return self.fields[-1]

    @property
    def cluster(self) -> int | None:
        """The first of its clusters, for a table that has room for one."""
        return self.clusters[0] if self.clusters else None

    @property
    def instruction(self) -> str:
        """The first wording."""
        return self.instructions[0]


def criterion_of(row: Mapping[str, Any], clusters: tuple[int, ...] = ()) -> Criterion:
    """A criterion as its TOML table tells it; one without a code goes by its name."""
    lists = {"fields": tuple(row["fields"]), "instructions": tuple(row["instructions"]), "clusters": clusters}
    return Criterion(**{"code": row["name"], **row, **lists})
