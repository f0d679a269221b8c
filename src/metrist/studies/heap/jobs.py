"""The trainings of a study: their settings, the request for one training, and its results file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from metrist.data.pairs import Fields, GoodBad
from metrist.errors import InputError, RunError, check_known
from metrist.io.writer import atomic_write
from metrist.models.devices import Options
from metrist.models.reward_layout import RewardLayout
from metrist.train.preference import RECIPE
from metrist.train.recipe import Pooling, Recipe, Ties

#: What `Settings.with_changes` may change: of the recipe, of the layout, and the wording of a criterion's instruction.
RECIPE_CHANGES = ("lr", "batch", "epochs")
LAYOUT_CHANGES = ("labelled", "keep", "max_length")
CHANGEABLE = (*RECIPE_CHANGES, *LAYOUT_CHANGES, "instructions")
Changes = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that decides a model apart from its pairs.

    `instructions` has the number of the wording, or a text, for criteria that do not use the first. `dev_most` limits
    the development pairs of a criterion that are scored during training (None: all). The recipe's seed is set for each
    training.
    """

    base: Options
    layout: RewardLayout = field(default_factory=RewardLayout)
    pooling: Pooling = "auto"
    recipe: Recipe = RECIPE
    balance: float = 1.0
    ties: Ties = "drop"
    regression: float = 0.0
    head_lr: float | None = None
    dev_most: int | None = None
    instructions: Mapping[str, int | str] = field(default_factory=dict)

    def with_changes(self, changes: Changes) -> Settings:
        for name in changes:
            check_known("setting that a study changes", name, CHANGEABLE, RunError)
        return replace(
            self,
            recipe=replace(self.recipe, **{name: changes[name] for name in RECIPE_CHANGES if name in changes}),
            layout=replace(self.layout, **{name: changes[name] for name in LAYOUT_CHANGES if name in changes}),
            instructions={**self.instructions, **changes.get("instructions", {})},
        )

    def identity(self) -> dict[str, Any]:
        """Return the settings that decide what is learned: all but the size of a forward pass."""
        row = asdict(self)
        del row["recipe"]["max_tokens"]
        if row["base"]["bits"] is None:
            del row["base"]["bits"]
        return row


SetupName = Literal["base", "single", "multi", "cross-task", "cross-cluster"]
SplitName = Literal["authors", "honest"]
Codes = tuple[str, ...]

SETUPS: tuple[SetupName, ...] = get_args(SetupName)
SPLITS: tuple[SplitName, ...] = get_args(SplitName)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One training.

    `learns` are the criteria that it trains on (none: the base model is tested as it is), `judged` those that it is
    tested on. `target` is the criterion that the setup is about, None for all; `cluster` is the group of criteria that
    a cross-cluster training is limited to.
    """

    setup: SetupName
    split: SplitName
    seed: int
    learns: Codes
    judged: Codes
    target: str | None = None
    cluster: str | None = None

    @property
    def subject(self) -> str:
        """What chosen settings apply to: the setup with its cluster and target, for all seeds."""
        return "-".join(part for part in (self.setup, self.cluster, self.target) if part)

    @property
    def name(self) -> str:
        """The folder name of this training."""
        return f"{self.subject}-seed{self.seed}-{self.split}"


def list_jobs(
    setups: Sequence[SetupName],
    criteria: Sequence[str],
    clusters: Mapping[str, Codes],
    seeds: Sequence[int],
    splits: Sequence[SplitName],
) -> list[Job]:
    """Return all trainings of the setups over these criteria; the seeds of one training are adjacent."""
    return [
        Job(setup=setup, split=split, seed=seed, **shape)
        for split in splits
        for setup in setups
        for shape in _list_shapes(setup, tuple(criteria), clusters)
        for seed in seeds
    ]


def _list_shapes(setup: SetupName, criteria: Codes, clusters: Mapping[str, Codes]) -> Iterator[dict[str, Any]]:
    match setup:
        case "base":
            yield {"learns": (), "judged": criteria}
        case "multi":
            yield {"learns": criteria, "judged": criteria}
        case "single":
            yield from ({"learns": (code,), "judged": (code,), "target": code} for code in criteria)
        case "cross-task":
            yield from _leave_each_out(criteria, None)
        case "cross-cluster":
            for name, members in clusters.items():
                yield from _leave_each_out(tuple(code for code in criteria if code in members), name)


def _leave_each_out(members: Codes, cluster: str | None) -> Iterator[dict[str, Any]]:
    for code in members:
        others = tuple(other for other in members if other != code)
        if others:
            yield {"learns": others, "judged": (code,), "target": code, "cluster": cluster}


# The scores of a trained model for each pair. Every table is computed from these, without the model.

Floats = NDArray[np.float64]
#: The format version of a results file; a file of another version is rejected.
FORMAT = 1
#: The context of answers that have none.
NO_CONTEXT = ""
_CONTEXT_WORDS = 3
#: The fields of `CriterionScores`, in the order of a results file.
_HASHES, _NUMBERS = ("context", "good_answer", "bad_answer"), ("good", "bad", "good_rating", "bad_rating")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CriterionScores:
    """The scores of one criterion's pairs. `context` identifies a pair's context (NO_CONTEXT: it has none),
    `good_answer` and `bad_answer` the answers with their contexts. The names are hashes: equal names are equal texts,
    and the texts cannot be recovered."""

    context: Sequence[str]
    good_answer: Sequence[str]
    bad_answer: Sequence[str]
    good: Floats
    bad: Floats
    good_rating: Floats
    bad_rating: Floats

    def __len__(self) -> int:
        return len(self.good)

    @property
    def right(self) -> NDArray[np.bool_]:
        """Strictly greater: a tie of the scores is wrong, as in the paper."""
        return self.good > self.bad

    @property
    def ties(self) -> int:
        return int(np.count_nonzero(self.good == self.bad))

    @property
    def accuracy(self) -> float:
        return float(self.right.mean())

    def rated_answers(self) -> tuple[Floats, Floats]:
        """Return the ratings and scores of the distinct answers with a rating."""
        names = np.array([*self.good_answer, *self.bad_answer], dtype=str)
        ratings = np.concatenate([self.good_rating, self.bad_rating])
        scores = np.concatenate([self.good, self.bad])
        rated = np.flatnonzero(~np.isnan(ratings))
        distinct = rated[np.unique(names[rated], return_index=True)[1]]
        return ratings[distinct], scores[distinct]

    def rated_pairs(self) -> tuple[Floats, Floats]:
        """Return the ratings and scores of both answers of each pair with a rating, as the authors' code does: an
        answer counts as often as it is in a pair."""
        ratings, scores = np.concatenate([self.good_rating, self.bad_rating]), np.concatenate([self.good, self.bad])
        rated = ~np.isnan(ratings)
        return ratings[rated], scores[rated]

    @staticmethod
    def from_pairs(pairs: Sequence[GoodBad], good: Floats, bad: Floats) -> CriterionScores:
        return CriterionScores(
            context=[_identify_context(pair.good[:-1]) for pair in pairs],
            good_answer=[_digest(pair.good) for pair in pairs],
            bad_answer=[_digest(pair.bad) for pair in pairs],
            good=np.asarray(good, np.float64),
            bad=np.asarray(bad, np.float64),
            good_rating=_to_floats([pair.good_rating for pair in pairs]),
            bad_rating=_to_floats([pair.bad_rating for pair in pairs]),
        )

    def to_dict(self) -> dict[str, Any]:
        numbers = {
            name: [None if np.isnan(value) else value for value in getattr(self, name).tolist()] for name in _NUMBERS
        }
        return {**{name: list(getattr(self, name)) for name in _HASHES}, **numbers}

    @staticmethod
    def from_dict(row: Mapping[str, Any]) -> CriterionScores:
        columns: dict[str, Any] = {name: list(row[name]) for name in _HASHES}
        return CriterionScores(**columns | {name: _to_floats(row[name]) for name in _NUMBERS})


def _to_floats(values: Sequence[float | None]) -> Floats:
    return np.array([np.nan if value is None else float(value) for value in values])


def _identify_context(context: Fields) -> str:
    """Hash the first field of three words or more: the story, post or premise that several criteria and questions
    share. Shorter fields ("none") do not identify a context; if there is no longer one, hash the whole context."""
    if not context:
        return NO_CONTEXT
    long_field = next((text for _, text in context if len(text.split()) >= _CONTEXT_WORDS), None)
    return _digest(context if long_field is None else (("", long_field),))


def _digest(fields: Fields) -> str:
    return hashlib.sha256(json.dumps(fields).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Result:
    """One finished training: its job, settings, scores by criterion, and cost. `sizes` counts all pairs of each
    criterion in the file, whatever their split."""

    job: Job
    settings: Mapping[str, Any]
    scores: Mapping[str, CriterionScores]
    sizes: Mapping[str, int]
    training: Mapping[str, Any]

    def write(self, path: Path) -> None:
        row = {
            "metrist_heap": FORMAT,
            "job": asdict(self.job),
            "settings": self.settings,
            "training": self.training,
            "sizes": dict(self.sizes),
            "answers": {code: scores.to_dict() for code, scores in self.scores.items()},
        }
        with atomic_write(path) as file:
            file.write(json.dumps(row) + "\n")

    @staticmethod
    def read(path: Path) -> Result:
        try:
            row = json.loads(path.read_text(encoding="utf-8"))
            if row["metrist_heap"] != FORMAT:
                raise ValueError(f"they are of version {row['metrist_heap']}")
            job = row["job"]
            return Result(
                job=Job(**{**job, "learns": tuple(job["learns"]), "judged": tuple(job["judged"])}),
                settings=row["settings"],
                training=row["training"],
                sizes=row["sizes"],
                scores={code: CriterionScores.from_dict(scores) for code, scores in row["answers"].items()},
            )
        except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{path}: cannot read the results ({error}); remove the file to train again") from error


# DIR/split-authors.json            the side of each pair in the file
# DIR/trainings/NAME/model/         the model of a training, with its card
# DIR/trainings/NAME/results.json   its score of each test pair: a training that has this file is finished

RESULTS = "results.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRequest:
    """A job with everything needed to train it in another process.

    `study` is the folder of the study, `folder` that of this training. `side` selects the pairs that are scored: trials
    that settings are chosen by never see the test pairs. `chosen` describes settings that were chosen that way, for the
    model card.
    """

    job: Job
    settings: Settings
    pairs: Path
    study: Path
    folder: Path
    side: Literal["dev", "test"] = "test"
    keep_model: bool = True
    chosen: str | None = None
    checkpoint_every: int = 500

    @property
    def name(self) -> str:
        return self.folder.name

    def read_result(self) -> Result | None:
        """Read the result of an earlier run of the same training. None if there is none, or if it was tested on fewer
        criteria, as a base model may be."""
        path = self.folder / RESULTS
        if not path.is_file():
            return None
        result = Result.read(path)
        earlier, requested = set(result.job.judged), set(self.job.judged)
        judged = self.job.judged if earlier <= requested or requested <= earlier else result.job.judged
        if differences := list_differences({**result.settings, "judged": list(judged)}, self.identity()):
            raise RunError(
                f"{self.folder} has a finished training with other settings: {'; '.join(differences)}. "
                "Use the same settings, or another `out`"
            )
        return result if requested <= earlier else None

    def identity(self) -> dict[str, Any]:
        """Return what decides the results, as JSON reads it back."""
        learns, judged = list(self.job.learns), list(self.job.judged)
        return {**self.settings.identity(), "learns": learns, "judged": judged, "side": self.side}


def list_differences(stored: Mapping[str, Any], requested: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Describe each setting that differs, with both values."""
    differences: list[str] = []
    for name in dict.fromkeys([*stored, *requested]):
        old, new = stored.get(name), requested.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            differences += list_differences(old, new, f"{prefix}{name}.")
        elif old != new and not (isinstance(old, list | tuple) and isinstance(new, list | tuple) and [*old] == [*new]):
            differences.append(f"{prefix}{name} is {old} there, {new} here")
    return differences
