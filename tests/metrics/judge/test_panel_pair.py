"""Several comparators vote on a pair: ties count, and divided judges make one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from error_codes import raises_code
from metrist.errors import ErrorCode, SpecError
from metrist.metrics.comparator import Comparator, Judgment
from metrist.metrics.judge.panel import PanelPair
from metrist.metrics.registry import build
from metrist.ratings import Choice
from metrist.records import Pair, Record
from metrist.run.prefer import estimate_preferences, prefer

PAIR = Pair(first=Record(item="1", system="x", output="a"), second=Record(item="1", system="y", output="b"))


@dataclass(frozen=True, kw_only=True)
class Sure(Comparator):
    """Always chooses the same, or nothing."""

    choice: Choice | None
    number: int = 0
    flipped: bool | None = None

    def prefer(self, pairs: Sequence[Pair]) -> list[Judgment]:
        if self.choice is None:
            return [Judgment(failure="no idea", usage={"calls": 2})] * len(pairs)
        reported = Judgment(
            preference=self.choice, explanation="So.", flipped=self.flipped, raws=("r",), usage={"calls": 2}
        )
        return [reported] * len(pairs)


def voted(*choices: Choice | None, flipped: Sequence[bool | None] = ()) -> Judgment:
    flips = [*flipped, *[None] * (len(choices) - len(flipped))]
    members = (Sure(choice=c, number=n, flipped=f) for n, (c, f) in enumerate(zip(choices, flips, strict=True)))
    return PanelPair(judges=tuple(members)).prefer([PAIR])[0]


@pytest.mark.parametrize(
    ("choices", "voted_for"),
    [
        (("first", "first", "second"), "first"),
        (("second", "tie", "second"), "second"),
        (("tie", "tie", "first"), "tie"),
        (("first", "second"), "tie"),
        (("first", "tie"), "tie"),
        (("first", "second", "tie"), "tie"),
        (("first", None), "first"),
        (("first", None, "first"), "first"),
    ],
)
def test_the_choice_of_most_judges_wins(choices: Sequence[Choice | None], voted_for: Choice) -> None:
    assert voted(*choices).preference == voted_for


def test_what_each_judge_said_and_took_is_kept() -> None:
    one = voted("first", None, "first")
    assert one.explanation == "judge_1: first: So.\n\njudge_2: no idea: \n\njudge_3: first: So."
    assert one.usage == {"calls": 6}
    assert one.raws == ("r", "r")


def test_at_least_half_of_the_judges_must_choose() -> None:
    failed = voted("first", None, None)
    assert failed.preference is None
    assert failed.failure == "only 1 of 3 judges chose (judge_2: no idea; judge_3: no idea)"


def test_the_order_decided_where_it_did_for_more_than_half_of_the_judges() -> None:
    assert voted("tie", "tie", "first", flipped=(True, True, False)).flipped is True
    assert voted("tie", "first", flipped=(True, False)).flipped is False
    assert voted("tie", "first").flipped is None


def test_metrics_vote_on_real_pairs() -> None:
    rows = [{"item": "1", "system": s, "output": s * n, "references": ["aaa"]} for s, n in (("a", 3), ("b", 5))]
    text = (
        "panel_pair(judges=[by_score(metric=chrf), by_score(metric=rougeL), by_score(metric=length, better='higher')])"
    )
    result = prefer(rows, text)
    assert [rate.value for rate in result.win_rates()] == [1.0, 0.0]


def test_a_dry_run_counts_what_the_judges_of_a_panel_would_ask() -> None:
    rows = [{"item": "1", "system": s, "output": s} for s in "ab"]
    panel = "panel_pair(judges=[by_score(metric=length, better='higher'), judge_pair(llm=openai(model='a'))])"
    (question,) = estimate_preferences(rows, [panel]).by_llm.values()
    assert question.calls == 2


@pytest.mark.parametrize(
    ("text", "code", "value"),
    [
        ("panel_pair(judges=[judge_pair(llm=openai(model='a'))])", "too_little_data", 1),
        ("panel_pair(judges=[by_score(metric=chrf), by_score(metric=chrf)])", "invalid_value", "twice"),
        ("panel_pair(judges=[chrf, bleu])", "invalid_value", "Chrf("),
    ],
)
def test_a_panel_that_cannot_vote_is_refused(text: str, code: ErrorCode, value: object) -> None:
    with raises_code(SpecError, code, value):
        build(text)
