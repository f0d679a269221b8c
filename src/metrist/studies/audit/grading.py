"""The judge under audit, asked as often as the audit wants, with a tally of what came of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from metrist.errors import RunError
from metrist.executors.scoring import score_one
from metrist.metrics.judge import Judge
from metrist.metrics.judging import spent_together
from metrist.metrics.rubrics import Rubric
from metrist.metrics.shard import Shard
from metrist.models.llm import estimates
from metrist.models.llm.talk import Sampling
from metrist.records import Record
from metrist.scores import Scores
from metrist.studies.audit.certainty import Floats

# Said instead of a grade, near the beginning of an answer.
_REFUSAL = re.compile(
    r"\b(?:i(?:'m| am)? (?:sorry|unable|not able)|i (?:can ?not|can't|won't|will not|must decline)|as an ai\b|"
    r"against my (?:guidelines|policy))",
    re.IGNORECASE,
)
_BEGINNING = 200


@dataclass(frozen=True, kw_only=True)
class AskedAgain(Judge):
    """The same judge with the same question; the number tells repeated draws apart, and so keeps each answer."""

    sample: int = 0

    def sampling(self, **more: Any) -> Sampling:
        return replace(super().sampling(**more), sample=self.sample)


@dataclass(slots=True)
class Grader:
    """Asks the judge, and counts outputs, failures and refusals. Direction and best grade are the rubric's."""

    judge: Judge
    asked: int = 0
    failures: list[str] = field(default_factory=list)
    refusals: int = 0
    usages: list[Mapping[str, Any] | None] = field(default_factory=list)

    @property
    def rubric(self) -> Rubric:
        return self.judge.loaded()

    @property
    def sign(self) -> float:
        return -1.0 if self.judge.higher_is_better is False else 1.0

    @property
    def best(self) -> float:
        return self.judge.bounds[self.sign > 0]

    @property
    def reach(self) -> float:
        """How far the scale goes from end to end."""
        low, high = self.judge.bounds
        return high - low

    def grade(self, records: Sequence[Record], **settings: Any) -> Scores:
        """The judge's scores, with some of its settings changed, or asked once more (`sample`)."""
        own = {f.name: getattr(self.judge, f.name) for f in fields(self.judge)}
        scores = score_one(AskedAgain(**{**own, **settings}), Shard(records))
        self.asked += len(scores)
        self.failures += scores.failures.values()
        self.refusals += sum(_refuses(why, scores.raws.get(i) or "") for i, why in scores.failures.items())
        self.usages += [scores.usages.get(i) for i in range(len(scores))]
        return scores

    def values(self, records: Sequence[Record], **settings: Any) -> Floats:
        """The grades alone."""
        return self.grade(records, **settings).values if records else Scores.of([]).values

    def used(self) -> dict[str, Any]:
        """What all answers took together."""
        return spent_together(self.usages)


def check_some_graded(judge: Judge, scores: Scores) -> None:
    """A judge that never gives a grade is a fault of the whole audit, unless nothing is asked at all."""
    if len(scores.failures) == len(scores) and estimates.current() is None:
        raise RunError(f"{judge.text} graded none of {len(scores):,} outputs, such as: {scores.failures[0]}")


def _refuses(failure: str, raw: str) -> bool:
    return "filtered" in failure or bool(_REFUSAL.search(raw[:_BEGINNING]))
