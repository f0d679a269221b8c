"""Several judges of one output, and their vote."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np

from metrist.errors import SpecError
from metrist.metrics.base import Metric, check_choice
from metrist.metrics.comparator import Comparator, Judgment
from metrist.metrics.llm_metric import cost_remarks, coverage_remarks, is_retryable, spent_together
from metrist.metrics.shard import Shard
from metrist.ratings import Choice
from metrist.records import Need, Pair
from metrist.scores import Failure, Score, Scores

Vote = Literal["mean", "median", "majority"]
DISAGREEMENT = "disagreement"


@dataclass(frozen=True, kw_only=True)
class Panel(Metric):
    """What several judges say of an output together. At least half of them must have answered."""

    resident: ClassVar[bool] = True
    catalog_name: ClassVar[str | None] = "panel"

    judges: tuple[Metric, ...]
    vote: Vote = "mean"

    def __post_init__(self) -> None:
        check_choice(self, "vote", get_args(Vote))
        if len(self.judges) < 2:
            raise SpecError(f"{self.name} needs at least two judges, got {len(self.judges)}")
        if len(set(self.judges)) < len(self.judges):
            raise SpecError(f"{self.name}: a judge is listed twice, which would only give it more weight")
        first = self.judges[0]
        if choosing := [judge for judge in self.judges if isinstance(judge, Comparator)]:
            raise SpecError(
                f"{self.name} takes judges of single outputs, but {choosing[0].text} chooses between two: "
                f"panel_pair(judges=[…]) takes such ones"
            )
        for judge in self.judges[1:]:
            _check_alike(self.name, first, judge)
        extras = [judge.extra for judge in self.judges if judge.extra]
        # One judge that asks an LLM makes a panel that asks one.
        extra = "llm" if "llm" in extras else next(iter(extras), None)
        taken = {"bounds": first.bounds, "higher_is_better": first.higher_is_better, "extra": extra}
        for name, value in taken.items():
            object.__setattr__(self, name, value)

    @property
    def needs(self) -> tuple[Need, ...]:
        """What any of the judges needs."""
        return tuple(dict.fromkeys(need for judge in self.judges for need in judge.needs))

    def facts(self) -> Mapping[str, str]:
        """What each judge depends on, by its number."""
        return {
            f"{name} {fact}": said
            for name, judge in zip(self._names(), self.judges, strict=True)
            for fact, said in judge.facts().items()
        }

    def score(self, shard: Shard) -> Scores:
        columns = [judge.score(shard) for judge in self.judges]
        return Scores.of(self._voted([column[i] for column in columns]) for i in range(len(shard)))

    def remarks(self, scores: Scores) -> list[str]:
        """Coverage and cost of the whole, each judge's own coverage, and how often all agreed."""
        return [*coverage_remarks(self, scores), *self._agreement(scores), *cost_remarks(self, scores)]

    def _names(self) -> list[str]:
        return [f"judge_{number}" for number in range(1, len(self.judges) + 1)]

    def _voted(self, said: Sequence[Score]) -> Score:
        named = dict(zip(self._names(), said, strict=True))
        usage = spent_together(score.usage for score in said)
        values = [score.value for score in said if score.failure is None]
        raws = [f"{name}: {score.raw}" for name, score in named.items() if score.raw is not None]
        if 2 * len(values) < len(said):
            reasons = "; ".join(f"{name}: {score.failure}" for name, score in named.items() if score.failure)
            kind = Failure.combine(score.failure for score in said).kind
            failure = f"only {len(values)} of {len(said)} judges answered ({reasons})"
            return Score.failed(failure, kind, raw="\n\n".join(raws) or None, usage=usage)
        parts = {name: score.value for name, score in named.items()}
        # What a judge that did not vote failed of is kept: another day it may vote.
        told = {name: score.failure or score.explanation for name, score in named.items()}
        why = [f"{name}: {said}" for name, said in told.items() if said]
        return Score(
            value=_vote(values, self.vote),
            parts={**parts, DISAGREEMENT: max(values) - min(values)},
            explanation="\n\n".join(why) or None,
            raw="\n\n".join(raws) or None,
            usage=usage,
            incomplete=any(score.incomplete or is_retryable(score.failure) for score in said),
        )

    def _agreement(self, scores: Scores) -> list[str]:
        apart = scores.parts.get(DISAGREEMENT)
        if apart is None or np.isnan(apart).all():
            return []
        agreed = int(np.count_nonzero(apart == 0))
        voted = int(np.count_nonzero(~np.isnan(apart)))
        answered = ", ".join(f"{name} {int((~np.isnan(scores.parts[name])).sum()):,}" for name in self._names())
        return [
            f"{self.text}: the judges agreed on {agreed:,} of {voted:,} outputs; their grades lay "
            f"{np.nanmean(apart):.3g} apart on average (graded: {answered})"
        ]


def _vote(values: Sequence[float], vote: Vote) -> float:
    if vote == "median":
        return float(np.median(values))
    if vote == "majority":
        counts = Counter(values)
        most = max(counts.values())
        # Grades that equally many judges gave meet in the middle, as three raters at 1, 2 and 3 do.
        values = [value for value, count in counts.items() if count == most]
    return math.fsum(values) / len(values)


def _check_alike(name: str, first: Metric, other: Metric) -> None:
    for what, a, b in (
        ("scales", first.bounds, other.bounds),
        ("directions (higher_is_better)", first.higher_is_better, other.higher_is_better),
    ):
        if a != b:
            raise SpecError(
                f"{name}: judges can vote only on one scale, but {first.text} and {other.text} have different {what}: "
                f"{a} and {b}"
            )


# Several comparators of one pair, and their vote.


@dataclass(frozen=True, kw_only=True)
class PanelPair(Comparator):
    """Which of two outputs most judges prefer. At least half of them must have chosen."""

    resident: ClassVar[bool] = True
    catalog_name: ClassVar[str | None] = "panel_pair"

    judges: tuple[Comparator, ...]

    def __post_init__(self) -> None:
        if len(self.judges) < 2:
            raise SpecError(f"{self.name} needs at least two judges, got {len(self.judges)}")
        if len(set(self.judges)) < len(self.judges):
            raise SpecError(f"{self.name}: a judge is listed twice, which would only give it more weight")
        extras = [judge.extra for judge in self.judges if judge.extra]
        object.__setattr__(self, "extra", "llm" if "llm" in extras else next(iter(extras), None))

    @property
    def needs(self) -> tuple[Need, ...]:
        """What any of the judges needs."""
        return tuple(dict.fromkeys(need for judge in self.judges for need in judge.needs))

    def facts(self) -> Mapping[str, str]:
        """What each judge depends on, by its number."""
        return {
            f"judge_{number} {fact}": said
            for number, judge in enumerate(self.judges, 1)
            for fact, said in judge.facts().items()
        }

    def prefer(self, pairs: Sequence[Pair]) -> list[Judgment]:
        columns = [judge.prefer(pairs) for judge in self.judges]
        return [_voted(row) for row in zip(*columns, strict=True)]


def _voted(said: Sequence[Judgment]) -> Judgment:
    named = {f"judge_{number}": one for number, one in enumerate(said, 1)}
    raws, usage = tuple(raw for one in said for raw in one.raws), spent_together(one.usage for one in said)
    choices = [one.preference for one in said if one.preference is not None]
    told = "\n\n".join(
        f"{name}: {one.preference or one.failure}: {one.explanation or ''}" for name, one in named.items()
    )
    if 2 * len(choices) < len(said):
        reasons = "; ".join(f"{name}: {one.failure}" for name, one in named.items() if one.failure)
        failure = f"only {len(choices)} of {len(said)} judges chose ({reasons})"
        kind = Failure.combine(one.failure for one in said).kind
        return Judgment.failed(failure, kind, explanation=told, raws=raws, usage=usage)
    return Judgment(
        preference=_majority(choices),
        explanation=told,
        flipped=_flipped(said),
        raws=raws,
        usage=usage or None,
        incomplete=any(one.incomplete or is_retryable(one.failure) for one in said),
    )


def _majority(choices: Sequence[Choice]) -> Choice:
    """The choice of most judges, a tie being one; judges who are divided, so that no choice has the most, make a tie
    too."""
    (first, most), *others = Counter(choices).most_common()
    return "tie" if others and others[0][1] == most else first


def _flipped(said: Sequence[Judgment]) -> bool | None:
    """Whether the order decided for most of those judges who were asked in both; None where none was."""
    known = [one.flipped for one in said if one.flipped is not None]
    return 2 * sum(known) > len(known) if known else None
