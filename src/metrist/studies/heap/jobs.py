"""How the models of a study are made: one base for all trainings, and what was chosen or printed for some of them."""

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
from metrist.errors import InputError, RunError, did_you_mean
from metrist.io.writer import atomic_write
from metrist.models.devices import Options
from metrist.models.reward_layout import Layout
from metrist.train.preference import RECIPE, Ties
from metrist.train.recipe import Recipe

#: What `changed` may change: of the recipe, of the layout, and which paraphrase of a criterion's instruction is used.
IN_RECIPE = ("lr", "batch", "epochs")
IN_LAYOUT = ("labelled", "keep", "max_length")
CHANGEABLE = (*IN_RECIPE, *IN_LAYOUT, "instructions")
Change = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All that decides a model besides its pairs. `instructions` has the number of the paraphrase for criteria that do
    not use the first; `dev_most` is how many development pairs of a criterion are looked at while training (None: all);
    the recipe's seed is set for each training."""

    base: Options
    layout: Layout = field(default_factory=Layout)
    pooling: str = "auto"
    recipe: Recipe = RECIPE
    balance: float = 1.0
    ties: Ties = "drop"
    regression: float = 0.0
    head_lr: float | None = None
    dev_most: int | None = None
    instructions: Mapping[str, int] = field(default_factory=dict)

    def changed(self, change: Change) -> Settings:
        """These settings with some values replaced."""
        for name in change:
            if name not in CHANGEABLE:
                raise RunError(f"no setting {name!r} that a study changes{did_you_mean(name, CHANGEABLE)}")
        return replace(
            self,
            recipe=replace(self.recipe, **{name: change[name] for name in IN_RECIPE if name in change}),
            layout=replace(self.layout, **{name: change[name] for name in IN_LAYOUT if name in change}),
            instructions={**self.instructions, **change.get("instructions", {})},
        )

    def seeded(self, seed: int) -> Settings:
        return replace(self, recipe=replace(self.recipe, seed=seed))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def decides(self) -> dict[str, Any]:
        """All of it that decides what is learned."""
        row = self.to_dict()
        return {**row, "recipe": {name: value for name, value in row["recipe"].items() if name != "max_tokens"}}

    @staticmethod
    def of(row: Mapping[str, Any]) -> Settings:
        languages = row["base"]["languages"]
        base = Options(**{**row["base"], "languages": tuple(languages) if languages else None})
        parts = {"base": base, "layout": Layout(**row["layout"]), "recipe": Recipe(**row["recipe"])}
        return Settings(**{**row, **parts})


# The trainings that a study consists of: what each learns from, and what it is judged by.


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


# What a trained model said of each pair, kept as columns: every table is computed from these, without the model.


Floats = NDArray[np.float64]
#: The form of a results file; a file of another form is refused, not guessed at.
FORM = 1
#: The context of answers that stand for themselves.
NO_CONTEXT = ""
_WORDS = 3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answers:
    """The scores of one criterion's pairs. `context` names what a pair's answers were judged in (NO_CONTEXT: in
    nothing), `good_answer` and `bad_answer` the answers with their contexts: equal names are equal texts, and no text
    can be had from them."""

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

    def distinct(self) -> tuple[Floats, Floats]:
        """Ratings and scores of the distinct answers that people rated, in whichever pair."""
        names = np.array([*self.good_answer, *self.bad_answer], dtype=str)
        ratings = np.concatenate([self.good_rating, self.bad_rating])
        scores = np.concatenate([self.good, self.bad])
        rated = np.flatnonzero(~np.isnan(ratings))
        kept = rated[np.unique(names[rated], return_index=True)[1]]
        return ratings[kept], scores[kept]

    @staticmethod
    def of(pairs: Sequence[GoodBad], good: Floats, bad: Floats) -> Answers:
        return Answers(
            context=[_context(pair) for pair in pairs],
            good_answer=[_digest(pair.good) for pair in pairs],
            bad_answer=[_digest(pair.bad) for pair in pairs],
            good=np.asarray(good, np.float64),
            bad=np.asarray(bad, np.float64),
            good_rating=np.array([_or_nan(pair.good_rating) for pair in pairs]),
            bad_rating=np.array([_or_nan(pair.bad_rating) for pair in pairs]),
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "context": list(self.context),
            "good_answer": list(self.good_answer),
            "bad_answer": list(self.bad_answer),
            "good": self.good.tolist(),
            "bad": self.bad.tolist(),
            "good_rating": [None if np.isnan(value) else value for value in self.good_rating.tolist()],
            "bad_rating": [None if np.isnan(value) else value for value in self.bad_rating.tolist()],
        }

    @staticmethod
    def read(row: Mapping[str, Any]) -> Answers:
        numbers: dict[str, Any] = {name: np.array([_or_nan(value) for value in row[name]]) for name in _NUMBERS}
        answers: dict[str, Any] = {name: list(row[name]) for name in ("good_answer", "bad_answer")}
        return Answers(context=_contexts(row["context"], row["good_answer"]), **answers, **numbers)


_NUMBERS = ("good", "bad", "good_rating", "bad_rating")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Result:
    """One finished training: what it was, with which settings, what it said of the pairs, what it cost. `sizes` counts
    all pairs of each criterion, whatever their split."""

    job: Job
    settings: Mapping[str, Any]
    answers: Mapping[str, Answers]
    sizes: Mapping[str, int]
    training: Mapping[str, Any]

    def write(self, path: Path) -> None:
        row = {
            "metrist_heap": FORM,
            "job": self.job.to_dict(),
            "settings": self.settings,
            "training": self.training,
            "sizes": dict(self.sizes),
            "answers": {code: answers.to_dict() for code, answers in self.answers.items()},
        }
        with atomic_write(path) as file:
            file.write(json.dumps(row) + "\n")

    @staticmethod
    def read(path: Path) -> Result:
        try:
            row = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as fault:
            raise InputError(
                f"{path}: the results of a training cannot be read ({fault}); remove it to train again"
            ) from fault
        if not isinstance(row, dict) or row.get("metrist_heap") != FORM:
            raise InputError(f"{path}: holds no results of a training of this version; remove it to train again")
        try:
            return Result._of(row)
        except (KeyError, TypeError, ValueError, AttributeError) as fault:
            raise InputError(f"{path}: lacks some of the results of a training; remove it to train again") from fault

    @staticmethod
    def _of(row: Mapping[str, Any]) -> Result:
        return Result(
            job=Job.of(row["job"]),
            settings=row["settings"],
            training=row["training"],
            sizes=row["sizes"],
            answers={code: Answers.read(answers) for code, answers in row["answers"].items()},
        )


def _context(pair: GoodBad) -> str:
    """The first field of three words or more (others stand for nothing: "none"): the story, post or premise that
    several criteria and questions share; else the whole context."""
    context = pair.good[:-1]
    if not context:
        return NO_CONTEXT
    told = next((text for _, text in context if len(text.split()) >= _WORDS), None)
    return _digest(context if told is None else (("", told),))


def _contexts(names: Sequence[str], answers: Sequence[str]) -> list[str]:
    """Older files name a pair without a context after its texts. An answer is named with its context, so one that is
    in two contexts there has none, nor has any other of its criterion."""
    first: dict[str, str] = {}
    if any(first.setdefault(answer, name) != name for answer, name in zip(answers, names, strict=True)):
        return [NO_CONTEXT] * len(names)
    return list(names)


def _digest(fields: Fields) -> str:
    return hashlib.sha256(json.dumps(fields).encode()).hexdigest()[:16]


def _or_nan(value: float | None) -> float:
    return np.nan if value is None else float(value)


# One training with all that it needs, small enough to hand to another process, and the folder it is done in.
#
# DIR/split-authors.json        where each pair of the file belongs
# DIR/trainings/NAME/model/     the model of a training, with its card
# DIR/trainings/NAME/results.json   what it said of each test pair: a training that has it is finished


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
