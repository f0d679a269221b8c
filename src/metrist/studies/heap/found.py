"""What the finished trainings of a folder found, by setup, split and criterion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from metrist.criteria import Suite
from metrist.errors import InputError
from metrist.studies.heap.answers import Answers, Result
from metrist.studies.heap.estimates import DRAWS, Figure, accuracy, macro_accuracy, spearman
from metrist.studies.heap.jobs import SPLITS, SetupName, SplitName
from metrist.studies.heap.orders import RESULTS

#: How many unfinished trainings are told by name.
_NAMED = 10
_Key = tuple[SetupName, SplitName, str, str | None]


class Found:
    """Results ready for tables. `chosen` says in words which settings were chosen for what, `left_out` which trainings
    are in no table and why."""

    def __init__(
        self,
        suite: Suite,
        results: Sequence[Result],
        *,
        chosen: Mapping[str, str] | None = None,
        left_out: Sequence[str] = (),
        draws: int = DRAWS,
    ) -> None:
        self.suite = suite
        self.results = tuple(results)
        self.chosen = dict(chosen or {})
        self.left_out = tuple(left_out)
        self._draws = draws
        self._seeds = _by_seed(results)

    @cached_property
    def splits(self) -> tuple[SplitName, ...]:
        """The splits that any training used, the authors' first."""
        there = {result.job.split for result in self.results}
        return tuple(split for split in SPLITS if split in there)

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """All pairs of each criterion."""
        return {code: size for result in self.results for code, size in result.sizes.items()}

    def codes(self, setup: SetupName, split: SplitName, cluster: str | None = None) -> tuple[str, ...]:
        """The criteria that a setup was judged on, in the suite's order."""
        there = {key[2] for key in self._seeds if key[:2] == (setup, split) and key[3] == cluster}
        return tuple(code for code in self.suite.codes if code in there)

    def compared(self, setup: SetupName, split: SplitName) -> tuple[str, ...]:
        """Those of them whose figures can stand beside the paper's."""
        printed = self.suite.accuracy.get(setup, {})
        there = self.codes(setup, split)
        return tuple(code for code in there if self.suite.criterion(code).comparable and code in printed)

    def pairs(self, code: str, split: SplitName) -> int | None:
        """How many test pairs a criterion has."""
        every = (seeds for key, seeds in self._seeds.items() if key[1:3] == (split, code))
        return next((len(answers) for seeds in every for answers in seeds.values()), None)

    def accuracy(self, setup: SetupName, split: SplitName, code: str, cluster: str | None = None) -> Figure | None:
        seeds = self._seeds.get((setup, split, code, cluster))
        return accuracy([*seeds.values()], self._draws) if seeds else None

    def spearman(self, setup: SetupName, split: SplitName, code: str) -> Figure | None:
        seeds = self._seeds.get((setup, split, code, None))
        return spearman([*seeds.values()]) if seeds else None

    def average(self, setup: SetupName, split: SplitName) -> Figure | None:
        """The mean over comparable criteria; None as long as there are none."""
        return self.mean_over(setup, split, self.compared(setup, split))

    def mean_over(
        self, setup: SetupName, split: SplitName, codes: Sequence[str], cluster: str | None = None
    ) -> Figure | None:
        """The mean over some criteria, of the seeds that all of them have."""
        seeds = {code: self._seeds[setup, split, code, cluster] for code in codes}
        shared = sorted(set.intersection(*map(set, seeds.values()))) if seeds else []
        if not shared:
            return None
        return macro_accuracy({code: [one[seed] for seed in shared] for code, one in seeds.items()}, self._draws)

    def ties(self) -> tuple[int, int]:
        """Pairs with two equal scores among all that were judged."""
        every = [answers for seeds in self._seeds.values() for answers in seeds.values()]
        return sum(one.ties for one in every), sum(len(one) for one in every)


class Readings(NamedTuple):
    """What the trainings of a folder said, and in words which of them could not be heard."""

    results: Sequence[Result]
    left_out: Sequence[str]


def read_results(folder: Path) -> list[Result]:
    """The results of all finished trainings of a study's folder."""
    return [*readings(folder).results]


def readings(folder: Path) -> Readings:
    """The results of all finished trainings of a study's folder, and what is to be known of the others."""
    rooms = sorted(path for path in (folder / "trainings").glob("*") if path.is_dir())
    paths = [room / RESULTS for room in rooms if (room / RESULTS).is_file()]
    if not paths:
        raise InputError(f"{folder} holds no finished training; run the study with --suite and -o {folder} first")
    results, faults = [], []
    for path in paths:
        try:
            results.append(Result.read(path))
        except InputError as fault:
            faults.append(fault)
    if not results:
        raise faults[0]
    return Readings(results, [*(f"Left out: {fault}." for fault in faults), *_unfinished(rooms)])


def _unfinished(rooms: Sequence[Path]) -> list[str]:
    names = [room.name for room in rooms if not (room / RESULTS).is_file()]
    shown = [*names[:_NAMED], *([f"{len(names) - _NAMED:,} more"] if len(names) > _NAMED else [])]
    return [f"Not finished, and in no table: {', '.join(shown)}."] if names else []


def _by_seed(results: Sequence[Result]) -> dict[_Key, dict[int, Answers]]:
    found: dict[_Key, dict[int, Answers]] = {}
    for result in sorted(results, key=lambda one: one.job.seed):
        job = result.job
        for code, answers in result.answers.items():
            found.setdefault((job.setup, job.split, code, job.cluster), {})[job.seed] = answers
    return found
