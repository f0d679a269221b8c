"""What a trained model said of each pair, kept as columns: every table is computed from these, without the model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrist.data.pairs import Fields, GoodBad
from metrist.errors import InputError
from metrist.io.writer import whole
from metrist.studies.heap.jobs import Job

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
        with whole(path) as file:
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
