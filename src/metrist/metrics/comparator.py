"""What a comparator is: a metric that looks at two outputs of an item at once and says which is better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NoReturn

from metrist.errors import RunError, SpecError
from metrist.metrics.base import Metric, check_choice
from metrist.metrics.llm_metric import spent_together
from metrist.metrics.registry import build
from metrist.metrics.shard import Shard
from metrist.ratings import Choice
from metrist.records import Need, Pair, Record
from metrist.scores import Failure, FailureKind, Score, Scores
from metrist.spec import Spec

#: A choice between two outputs, seen by one who was shown them the other way round.
TURNED: dict[Choice, Choice] = {"first": "second", "second": "first", "tie": "tie"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgment:
    """What a comparator says of a pair. `preference` is None exactly when `failure` says why.

    `flipped` tells whether the choice changed with the order in which the two were shown, None where that is not known.
    `shown` is what was chosen each time the two were shown, 'first' being the one shown first then; `raws` are the
    answers that it was read from, `scores` the two scores that it was made of: a judgment that is read back from a file
    does not have them.
    """

    preference: Choice | None = None
    explanation: str | None = None
    failure: Failure | None = None
    flipped: bool | None = None
    shown: tuple[Choice, ...] = ()
    raws: tuple[str, ...] = ()
    usage: Any = None
    scores: tuple[Score, ...] = field(default=(), compare=False, repr=False)
    #: A choice that was made although some of the requests behind it failed and may succeed later.
    incomplete: bool = False

    def __post_init__(self) -> None:
        if (self.preference is None) == (self.failure is None):
            raise ValueError("a judgment has either a preference or a failure that says why there is none")
        if self.failure is not None:
            object.__setattr__(self, "failure", Failure.of(self.failure))

    @classmethod
    def failed(cls, message: str, kind: FailureKind | str | None = None, **fields: Any) -> Judgment:
        """No choice, and why. Without `kind`, a `Failure` keeps its own and plain text has the kind `other`."""
        return cls(failure=Failure.of(message) if kind is None else Failure(kind, message), **fields)


class Comparator(Metric):
    """Base of all comparators: named, set and identified as metrics are, but they compare instead of scoring."""

    #: What comes of many choices is a win rate.
    higher_is_better: ClassVar[bool | None] = True
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def prefer(self, pairs: Sequence[Pair]) -> list[Judgment]:
        """One judgment per pair, in order."""
        raise NotImplementedError(f"{type(self).__name__} must define prefer(self, pairs)")

    def score(self, shard: Shard) -> NoReturn:  # noqa: ARG002
        """One output alone has nothing to be compared with."""
        raise RunError(
            f"{self.text} compares two outputs of an item, and scores none by itself: `metrist prefer FILE -m …`, or "
            "metrist.prefer(records, …)"
        )

    def observations(self, judgments: Sequence[Judgment]) -> list[str]:  # noqa: ARG002
        """What a reader of all these judgments should know: shown under their table."""
        return []


# Any metric as a comparator: of two outputs the one with the better score wins.


@dataclass(frozen=True, kw_only=True)
class ByScore(Comparator):
    """Prefers the output with the better score; scores that differ by at most `tie` are a tie."""

    catalog_name: ClassVar[str | None] = "by_score"

    metric: Metric
    tie: float = 0.0
    #: Which score wins, for a metric that only describes, such as length; None: as the metric says.
    better: Literal["higher", "lower"] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.metric, Comparator):
            raise SpecError(f"{self.name}: {self.metric.text} compares already; name it by itself")
        if not self.tie >= 0:
            raise SpecError(f"{self.name}: tie must be 0 or more, got {self.tie!r}")
        if self.better is not None:
            check_choice(self, "better", ("higher", "lower"))
        elif self.metric.higher_is_better is None:
            raise SpecError(
                f"{self.metric.text} describes and does not judge, so no output is better by it; say which one is to "
                f"win: by_score(metric={self.metric.text}, better='higher')"
            )
        for name in ("extra", "resident"):
            object.__setattr__(self, name, getattr(self.metric, name))

    @property
    def needs(self) -> tuple[Need, ...]:
        """What the metric within needs."""
        return self.metric.needs

    def facts(self) -> Mapping[str, str]:
        """What the metric within depends on."""
        return self.metric.facts()

    def prefer(self, pairs: Sequence[Pair]) -> list[Judgment]:
        # Sixteen systems make a hundred pairs of sixteen outputs: each output is scored once.
        records = list(dict.fromkeys(record for pair in pairs for record in (pair.first, pair.second)))
        scores = dict(zip(records, self._scores(records), strict=True))
        unpaid = {record: score.usage for record, score in scores.items() if score.usage}
        found = []
        for pair in pairs:
            # What a score took is counted with the first pair that it is in.
            usage = [unpaid.pop(record) for record in (pair.first, pair.second) if record in unpaid]
            both = (scores[pair.first], scores[pair.second])
            one = replace(self._judgment(*both), scores=both)
            found.append(replace(one, usage=spent_together(usage)) if usage else one)
        return found

    def observations(self, judgments: Sequence[Judgment]) -> list[str]:
        """What the metric within remarks on the scores of all outputs, each of which counts once."""
        scores = {id(score): score for judgment in judgments for score in judgment.scores}
        return self.metric.remarks(Scores.of(scores.values())) if scores else []

    def _scores(self, records: Sequence[Record]) -> list[Score]:
        lacking = {i: need for i, record in enumerate(records) for need in self.needs if record.lacks(need)}
        able = [i for i in range(len(records)) if i not in lacking]
        found = self.metric.score(Shard([records[i] for i in able]))
        failures = {i: f"{self.metric.text} needs {need}, but there is none" for i, need in lacking.items()}
        return list(found.spread(len(records), able, failures))

    def _judgment(self, first: Score, second: Score) -> Judgment:
        for side, score in (("first", first), ("second", second)):
            if score.failure is not None:
                return Judgment.failed(f"the {side} output has no score: {score.failure}", score.failure.kind)
        lead = (first.value - second.value) * (-1 if self._lower_wins else 1)
        shown = "\n\n".join([self.metric.against(first, second), *_incomplete_notes(first, second)])
        choice: Choice = "tie" if abs(lead) <= self.tie else "first" if lead > 0 else "second"
        return Judgment(preference=choice, explanation=shown, incomplete=first.incomplete or second.incomplete)

    @property
    def _lower_wins(self) -> bool:
        return self.better == "lower" if self.better else self.metric.higher_is_better is False

    def _code(self) -> Mapping[str, str]:
        return self.metric._code()


def _incomplete_notes(first: Score, second: Score) -> list[str]:
    """What incomplete scores say about the requests that failed."""
    sides = (("first", first), ("second", second))
    return [f"of the {side} output: {score.explanation or ''}" for side, score in sides if score.incomplete]


def comparator(named: str | Spec | Metric, *, allow_import: bool = True) -> Comparator:
    """The comparator that a text names; a metric's becomes the comparator that prefers by its score."""
    built = build(named, allow_import=allow_import)
    return built if isinstance(built, Comparator) else ByScore(metric=built)
