"""The trainings that a study consists of: what each learns from, and what it is judged by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

SetupName = Literal["base", "single", "multi", "cross-task", "cross-cluster"]
SplitName = Literal["authors", "honest"]
Codes = tuple[str, ...]

SETUPS: tuple[SetupName, ...] = get_args(SetupName)
SPLITS: tuple[SplitName, ...] = get_args(SplitName)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One training. `learns` are the criteria it sees (none: the base model is judged as it is), `judged` those it is
    tested on. `target` is the criterion that the setup is about, None where it is about all; `cluster` the group of
    criteria that a cross-cluster training stays within."""

    setup: SetupName
    split: SplitName
    seed: int
    learns: Codes
    judged: Codes
    target: str | None = None
    cluster: str | None = None

    @property
    def subject(self) -> str:
        """What chosen settings hold for: the setup, its cluster and its target, whatever the seed."""
        return "-".join(part for part in (self.setup, self.cluster, self.target) if part)

    @property
    def name(self) -> str:
        """The folder of this training."""
        return f"{self.subject}-seed{self.seed}-{self.split}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def of(row: Mapping[str, Any]) -> Job:
        return Job(**{**row, "learns": tuple(row["learns"]), "judged": tuple(row["judged"])})


def jobs(
    setups: Sequence[SetupName],
    criteria: Sequence[str],
    clusters: Mapping[str, Codes],
    seeds: Sequence[int],
    splits: Sequence[SplitName],
) -> list[Job]:
    """All trainings of the setups over these criteria; the seeds of one training lie side by side."""
    found = []
    for split in splits:
        for setup in setups:
            for shape in _shapes(setup, tuple(criteria), clusters):
                found += [Job(setup=setup, split=split, seed=seed, **shape) for seed in seeds]
    return found


def _shapes(setup: SetupName, criteria: Codes, clusters: Mapping[str, Codes]) -> Iterator[dict[str, Any]]:
    match setup:
        case "base":
            yield {"learns": (), "judged": criteria}
        case "multi":
            yield {"learns": criteria, "judged": criteria}
        case "single":
            yield from ({"learns": (code,), "judged": (code,), "target": code} for code in criteria)
        case "cross-task":
            yield from _without_each(criteria, None)
        case "cross-cluster":
            for name, members in clusters.items():
                yield from _without_each(tuple(code for code in criteria if code in members), name)


def _without_each(members: Codes, cluster: str | None) -> Iterator[dict[str, Any]]:
    """Each member as the target, learned about from the others; nothing where there are no others."""
    for code in members:
        others = tuple(other for other in members if other != code)
        if others:
            yield {"learns": others, "judged": (code,), "target": code, "cluster": cluster}
