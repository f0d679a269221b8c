"""What a comparator is: a metric that looks at two outputs of an item at once and says which is better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn

from metrist.errors import RunError
from metrist.metrics.base import Metric
from metrist.metrics.shard import Shard
from metrist.ratings import Choice
from metrist.records import Pair
from metrist.scores import Score

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
    failure: str | None = None
    flipped: bool | None = None
    shown: tuple[Choice, ...] = ()
    raws: tuple[str, ...] = ()
    usage: Any = None
    scores: tuple[Score, ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        if (self.preference is None) == (self.failure is None):
            raise ValueError("a judgment has either a preference or a failure that says why there is none")


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
