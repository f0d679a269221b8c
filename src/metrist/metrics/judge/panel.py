"""Panels: several judges score an output, or choose between two, and vote."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np

from metrist.errors import SpecError, format_count
from metrist.metrics.base import Metric, Shard, check_choice
from metrist.metrics.comparator import Comparator, Judgment, build_comparator
from metrist.metrics.judge.judge import describe_odd_records
from metrist.metrics.llm_metric import cost_remarks, coverage_remarks, is_retryable, merge_usage
from metrist.metrics.registry import build
from metrist.records import Need, Pair
from metrist.scores import Failure, Score, Scores

Vote = Literal["mean", "median", "majority"]
DISAGREEMENT = "disagreement"


@dataclass(frozen=True, kw_only=True)
class Jury(Metric):
    """Several judges that vote. They are named by their numbers."""

    resident: ClassVar[bool] = True

    judges: tuple[Metric, ...]

    def __post_init__(self) -> None:
        if len(self.judges) < 2:
            raise SpecError(f"{self.name} needs at least two judges, got {len(self.judges)}", code="too_little_data")
        if len(set(self.judges)) < len(self.judges):
            raise SpecError(f"{self.name}: a judge is listed twice, which would only give it more weight")
        extras = [judge.extra for judge in self.judges if judge.extra]
        object.__setattr__(self, "extra", "llm" if "llm" in extras else next(iter(extras), None))

    @property
    def needs(self) -> tuple[Need, ...]:
        return tuple(dict.fromkeys(need for judge in self.judges for need in judge.needs))

    @property
    def names(self) -> list[str]:
        """The names of the judges in parts and explanations."""
        return [f"judge_{number}" for number in range(1, len(self.judges) + 1)]

    def facts(self) -> Mapping[str, str]:
        return {
            f"{name} {fact}": value
            for name, judge in zip(self.names, self.judges, strict=True)
            for fact, value in judge.facts().items()
        }


@dataclass(frozen=True, kw_only=True)
class Panel(Jury):
    """The vote of several judges on an output. At least half of them must have answered."""

    catalog_name: ClassVar[str | None] = "panel"
    catalog_example: ClassVar[str | None] = (
        "panel(judges=[judge(llm=openai(model='gpt-4o-mini')), judge(llm=openai(model='gpt-4o'))])"
    )

    vote: Vote = "mean"

    def __post_init__(self) -> None:
        object.__setattr__(self, "judges", tuple(map(build, self.judges)))
        check_choice(self, "vote", get_args(Vote))
        super().__post_init__()
        if comparators := [judge for judge in self.judges if isinstance(judge, Comparator)]:
            raise SpecError(f"{self.name}: {comparators[0].text} compares two outputs: use panel_pair(judges=[…])")
        first = self.judges[0]
        for judge in self.judges[1:]:
            for attribute in ("bounds", "higher_is_better"):
                own, other = getattr(first, attribute), getattr(judge, attribute)
                if own != other:
                    pair = f"{first.text} and {judge.text}"
                    raise SpecError(f"{self.name}: {pair} have different {attribute}: {own} and {other}")
        object.__setattr__(self, "bounds", first.bounds)
        object.__setattr__(self, "higher_is_better", first.higher_is_better)

    def score(self, shard: Shard) -> Scores:
        columns = [judge.score(shard) for judge in self.judges]
        return Scores.of(self._combine([column[i] for column in columns]) for i in range(len(shard)))

    def remarks(self, scores: Scores) -> list[str]:
        remarks = coverage_remarks(self, scores)
        differences = scores.parts.get(DISAGREEMENT)
        if differences is not None and not np.isnan(differences).all():
            agreed = int(np.count_nonzero(differences == 0))
            voted = int(np.count_nonzero(~np.isnan(differences)))
            counts = ", ".join(f"{name} {int((~np.isnan(scores.parts[name])).sum()):,}" for name in self.names)
            by = f"their grades differ by {np.nanmean(differences):.3g} on average (graded: {counts})"
            remarks.append(f"{self.label}: the judges agreed on {agreed:,} of {format_count(voted, 'output')}; {by}")
        return [*remarks, *cost_remarks(self, scores), *describe_odd_records(self, scores)]

    def _combine(self, scores: Sequence[Score]) -> Score:
        by_judge = dict(zip(self.names, scores, strict=True))
        usage = merge_usage(score.usage for score in scores)
        values = [score.value for score in scores if score.failure is None]
        raw = "\n\n".join(f"{name}: {score.raw}" for name, score in by_judge.items() if score.raw is not None) or None
        if 2 * len(values) < len(scores):
            reasons = "; ".join(f"{name}: {score.failure}" for name, score in by_judge.items() if score.failure)
            kind = Failure.combine(score.failure for score in scores).kind
            message = f"only {len(values)} of {len(scores)} judges answered ({reasons})"
            return Score.failed(message, kind, raw=raw, usage=usage)
        explanations = {name: score.failure or score.explanation for name, score in by_judge.items()}
        return Score(
            value=_vote(values, self.vote),
            parts={
                **{name: score.value for name, score in by_judge.items()},
                DISAGREEMENT: max(values) - min(values),
            },
            explanation="\n\n".join(f"{name}: {text}" for name, text in explanations.items() if text) or None,
            raw=raw,
            usage=usage,
            incomplete=any(score.incomplete or is_retryable(score.failure) for score in scores),
        )


@dataclass(frozen=True, kw_only=True)
class PanelPair(Jury, Comparator):
    """The output that most judges prefer. At least half of them must have chosen."""

    catalog_name: ClassVar[str | None] = "panel_pair"
    catalog_example: ClassVar[str | None] = (
        "panel_pair(judges=[judge_pair(llm=openai(model='gpt-4o-mini')), by_score(metric=rougeL)])"
    )

    judges: tuple[Comparator, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "judges", tuple(map(build_comparator, self.judges)))
        super().__post_init__()

    def prefer(self, pairs: Sequence[Pair]) -> list[Judgment]:
        columns = [judge.prefer(pairs) for judge in self.judges]
        return [self._combine(row) for row in zip(*columns, strict=True)]

    def _combine(self, judgments: Sequence[Judgment]) -> Judgment:
        by_judge = dict(zip(self.names, judgments, strict=True))
        raws = tuple(raw for judgment in judgments for raw in judgment.raws)
        usage = merge_usage(judgment.usage for judgment in judgments)
        choices = [judgment.preference for judgment in judgments if judgment.preference is not None]
        explanation = "\n\n".join(
            f"{name}: {judgment.preference or judgment.failure}: {judgment.explanation or ''}"
            for name, judgment in by_judge.items()
        )
        if 2 * len(choices) < len(judgments):
            reasons = "; ".join(
                f"{name}: {judgment.failure}" for name, judgment in by_judge.items() if judgment.failure
            )
            kind = Failure.combine(judgment.failure for judgment in judgments).kind
            message = f"only {len(choices)} of {len(judgments)} judges chose ({reasons})"
            return Judgment.failed(message, kind, explanation=explanation, raws=raws, usage=usage)
        flips = [judgment.flipped for judgment in judgments if judgment.flipped is not None]
        (first, most), *others = Counter(choices).most_common()
        return Judgment(
            # A tie if no choice has the most votes.
            preference="tie" if others and others[0][1] == most else first,
            explanation=explanation,
            # Flipped if the order decided for most of the judges who saw both orders.
            flipped=2 * sum(flips) > len(flips) if flips else None,
            raws=raws,
            usage=usage or None,
            incomplete=any(judgment.incomplete or is_retryable(judgment.failure) for judgment in judgments),
        )


def _vote(values: Sequence[float], vote: Vote) -> float:
    if vote == "median":
        return float(np.median(values))
    if vote == "majority":
        counts = Counter(values)
        most = max(counts.values())
        # The mean of the most frequent grades, if several are equally frequent.
        values = [value for value, count in counts.items() if count == most]
    return math.fsum(values) / len(values)
