"""Several comparators of one pair, and their vote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from metrist.errors import SpecError
from metrist.metrics.judging import spent_together
from metrist.metrics.preferring import Comparator, Judgment
from metrist.ratings import Choice
from metrist.records import Need, Pair


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
        return Judgment(failure=failure, explanation=told, raws=raws, usage=usage)
    return Judgment(
        preference=_majority(choices), explanation=told, flipped=_flipped(said), raws=raws, usage=usage or None
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
