"""Comparators: metrics that look at two outputs of an item at once and choose the better one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NoReturn

from metrist.errors import RunError, SpecError
from metrist.metrics.base import LENGTH_FREE, Metric, Shard, check_choice
from metrist.metrics.llm_metric import merge_usage
from metrist.metrics.registry import MetricLike, build
from metrist.ratings import Choice
from metrist.records import Need, Pair
from metrist.scores import Failure, FailureKind, Score, Scores

#: A choice between two outputs, as it reads with the outputs in reverse order.
REVERSED: dict[Choice, Choice] = {"first": "second", "second": "first", "tie": "tie"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgment:
    """A comparator's judgment of a pair. `preference` is None exactly when there is a `failure`.

    `flipped` says whether the choice changed with the order in which the outputs were shown; None: unknown. `shown` has
    the choice of each showing, with 'first' the output shown first. `raws` are the parsed answers and `scores` the two
    scores compared; a judgment loaded from a file has neither. `length_free` is the choice if length did not count, of
    a comparator that knows it.
    """

    preference: Choice | None = None
    explanation: str | None = None
    failure: Failure | None = None
    flipped: bool | None = None
    length_free: Choice | None = None
    shown: tuple[Choice, ...] = ()
    raws: tuple[str, ...] = ()
    usage: Any = None
    scores: tuple[Score, ...] = field(default=(), compare=False, repr=False)
    #: Whether some of the requests behind the choice failed and may succeed later.
    incomplete: bool = False

    def __post_init__(self) -> None:
        if (self.preference is None) == (self.failure is None):
            raise ValueError("a judgment must have either a preference or a failure")
        if self.failure is not None:
            object.__setattr__(self, "failure", Failure.of(self.failure))

    @classmethod
    def failed(cls, message: str, kind: FailureKind | str | None = None, **fields: Any) -> Judgment:
        """No choice, and why. Without `kind`, a `Failure` keeps its own and plain text has the kind `other`."""
        return cls(failure=Failure.of(message) if kind is None else Failure(kind, message), **fields)


class Comparator(Metric):
    """Base of all comparators. They have names, settings and signatures like metrics, but compare instead of
    scoring."""

    #: The values over many pairs are win rates.
    higher_is_better: ClassVar[bool | None] = True
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def prefer(self, pairs: Sequence[Pair]) -> list[Judgment]:
        """One judgment per pair, in order. Sequences passed by a run have a `runtime` attribute."""
        raise NotImplementedError(f"{type(self).__name__} must define prefer(self, pairs)")

    def score(self, shard: Shard) -> NoReturn:  # noqa: ARG002
        """Refuse: a comparator scores no single output."""
        raise RunError(f"{self.text} compares two outputs and scores none: use `metrist prefer FILE -m …`")

    def observations(self, judgments: Sequence[Judgment]) -> list[str]:  # noqa: ARG002
        """Remarks on these judgments, shown under their table."""
        return []


@dataclass(frozen=True, kw_only=True)
class ByScore(Comparator):
    """Prefer the output with the better score; scores that differ by at most `tie` are a tie."""

    catalog_name: ClassVar[str | None] = "by_score"
    catalog_example: ClassVar[str | None] = "by_score(metric=rougeL)"

    metric: Metric
    tie: float = 0.0
    #: Which score wins, for a metric without a direction such as length; None: the metric's direction.
    better: Literal["higher", "lower"] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "metric", build(self.metric))
        if isinstance(self.metric, Comparator):
            raise SpecError(f"{self.name}: {self.metric.text} is a comparator already; use it directly")
        if not self.tie >= 0:
            raise SpecError(f"{self.name}: tie must be 0 or more, got {self.tie!r}")
        if self.better is not None:
            check_choice(self, "better", ("higher", "lower"))
        elif self.metric.higher_is_better is None:
            text = self.metric.text
            raise SpecError(f"{text} has no direction; say which is better: by_score(metric={text}, better='higher')")
        for name in ("extra", "resident"):
            object.__setattr__(self, name, getattr(self.metric, name))

    @property
    def needs(self) -> tuple[Need, ...]:
        return self.metric.needs

    def facts(self) -> Mapping[str, str]:
        return self.metric.facts()

    def prefer(self, pairs: Sequence[Pair]) -> list[Judgment]:
        # Sixteen systems make 120 pairs of sixteen outputs: each output is scored once.
        records = list(dict.fromkeys(record for pair in pairs for record in (pair.first, pair.second)))
        missing = {i: need for i, record in enumerate(records) for need in self.needs if record.lacks(need)}
        complete = [i for i in range(len(records)) if i not in missing]
        shard = Shard([records[i] for i in complete], runtime=getattr(pairs, "runtime", None))
        failures = {
            i: Failure(FailureKind.missing_input, f"{self.metric.text} needs {need}, but the record has none")
            for i, need in missing.items()
        }
        all_scores = self.metric.score(shard).spread(len(records), complete, failures)
        scores = dict(zip(records, all_scores, strict=True))
        uncounted = {record: score.usage for record, score in scores.items() if score.usage}
        judgments = []
        for pair in pairs:
            # The usage of a score is counted with the first pair that contains it.
            usages = [uncounted.pop(record) for record in (pair.first, pair.second) if record in uncounted]
            both = (scores[pair.first], scores[pair.second])
            usage = merge_usage(usages) if usages else None
            judgments.append(replace(self._compare(*both), scores=both, usage=usage))
        return judgments

    def observations(self, judgments: Sequence[Judgment]) -> list[str]:
        """The inner metric's remarks on the scores of all outputs, each counted once."""
        scores = {id(score): score for judgment in judgments for score in judgment.scores}
        return self.metric.remarks(Scores.of(scores.values())) if scores else []

    def _compare(self, first: Score, second: Score) -> Judgment:
        for side, score in (("first", first), ("second", second)):
            if score.failure is not None:
                return Judgment.failed(f"the {side} output has no score: {score.failure}", score.failure.kind)
        explanations = [self.metric.against(first, second)]
        for side, score in (("first", first), ("second", second)):
            if score.incomplete:
                # It names the requests that failed.
                explanations.append(f"of the {side} output: {score.explanation or ''}")
        without = [score.parts[LENGTH_FREE] for score in (first, second) if LENGTH_FREE in score.parts]
        return Judgment(
            preference=self._choose(first.value, second.value),
            length_free=self._choose(*without) if len(without) == 2 else None,
            explanation="\n\n".join(explanations),
            incomplete=first.incomplete or second.incomplete,
        )

    def _choose(self, first: float, second: float) -> Choice:
        lower_wins = self.better == "lower" if self.better else self.metric.higher_is_better is False
        lead = (first - second) * (-1 if lower_wins else 1)
        return "tie" if abs(lead) <= self.tie else "first" if lead > 0 else "second"

    def _code(self) -> Mapping[str, str]:
        return self.metric._code()


def build_comparator(metric: MetricLike, *, allow_import: bool = True) -> Comparator:
    """The comparator that a text names; a metric becomes the comparator by its score."""
    built = build(metric, allow_import=allow_import)
    return built if isinstance(built, Comparator) else ByScore(metric=built).named(built.short_name)
