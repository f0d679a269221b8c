"""The judge under audit, asked as often as the audit wants, with a tally of what came of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from metrist.errors import RunError
from metrist.evaluate.audit.certainty import Floats
from metrist.llm import estimates
from metrist.llm.talk import Sampling
from metrist.metrics.judge.judge import Judge
from metrist.metrics.judge.rubrics import Rubric
from metrist.metrics.llm_metric import FILTERED, spent_together
from metrist.metrics.shard import Shard
from metrist.records import Record
from metrist.run.executors.scoring import lack, score_one
from metrist.run.summary import first_answer
from metrist.scores import Scores

# Said instead of a grade, near the beginning of an answer. "I cannot find any fault" refuses nothing.
_REFUSED = (
    r"(?:assist|help|evaluate|judge|grade|rate|assess|score|review|comply|fulfill?|provide|do|answer|complete|process|"
    r"engage|continue)"
)
_REFUSAL = re.compile(
    r"\b(?:i(?:'m| am) (?:very |so |really )?(?:sorry|unable|not able)|sorry,? (?:but )?i\b|i (?:must|have to) decline|"
    rf"i (?:can ?not|can't|could not|couldn't|won't|will not|am not going to)(?: \w+)? {_REFUSED}\b|"
    r"as an ai(?: language)?(?: model| assistant)?,? i\b|against my (?:guidelines|policy|policies))",
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
        judge = AskedAgain(**{**own, **settings})
        scores = score_one(judge, Shard(records))
        # An output that lacks what the judge needs was never shown to it: that is no failure of the judge.
        asked = [i for i, record in enumerate(records) if lack(judge, record) is None]
        failed = [i for i in asked if i in scores.failures]
        self.asked += len(asked)
        self.failures += [scores.failures[i] for i in failed]
        self.refusals += sum(_refuses(scores.raws.get(i) or "", scores.usages.get(i)) for i in failed)
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
        answer = first_answer(scores.raws[i] for i in sorted(scores.raws))
        raise RunError(f"{judge.text} graded none of {len(scores):,} outputs, such as: {scores.failures[0]}{answer}")


def _refuses(raw: str, usage: Mapping[str, Any] | None) -> bool:
    """Whether an answer without a grade refuses to give one, in words or by a filter of the server."""
    return bool((usage or {}).get(FILTERED)) or bool(_REFUSAL.search(raw[:_BEGINNING].replace("’", "'")))
