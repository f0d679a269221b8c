"""Outputs that comparators order: shares of comparisons counted by hand, knockouts, and judges that are LLMs."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import pytest

import metrist
from metrist import Comparator, FakeLLM, Judgment, Pair, Record
from metrist.evaluate.rerank.rerank import estimate_reranking
from metrist.metrics.judge.pair import JudgePair
from metrist.runtime import Runtime

asked: list[tuple[str, str]] = []


class Longer(Comparator):
    """Prefers the longer output; one with a question mark cannot be judged."""

    def prefer(self, pairs: Sequence[Pair]) -> list[Judgment]:
        judgments = []
        for pair in pairs:
            first, second = pair.first.output, pair.second.output
            asked.append((first, second))
            if "?" in first + second:
                judgments.append(Judgment.failed("a question"))
            else:
                lead = len(first) - len(second)
                judgments.append(Judgment(preference="first" if lead > 0 else "second" if lead < 0 else "tie"))
        return judgments


@pytest.fixture(autouse=True)
def forget() -> None:
    asked.clear()


def make_records(*items: Sequence[str]) -> list[Record]:
    return [Record(item=str(n), system="s", output=text) for n, outputs in enumerate(items) for text in outputs]


ITEMS = make_records(["aa", "a", "bbb", "b", "aa"], ["c"], ["?", "ddd", "dd"])


def test_the_share_of_comparisons_won() -> None:
    choices = metrist.rerank(ITEMS, comparators=Longer(), k=5)
    shares = [(choice.record.item, choice.record.output, choice.score) for choice in choices]
    assert shares == [
        ("0", "bbb", 1),
        ("0", "aa", (1 + 0 + 1 + 0.5) / 4),
        ("0", "aa", (1 + 0 + 1 + 0.5) / 4),
        ("0", "a", 0.5 / 4),
        ("0", "b", 0.5 / 4),
        ("1", "c", 1),
        ("2", "ddd", 1),
        ("2", "dd", 0),
    ]
    assert len(asked) == 10 - 1 + 3
    assert ("aa", "aa") not in asked


def test_a_knockout_compares_each_output_but_one_until_it_loses() -> None:
    choices = metrist.rerank(ITEMS, comparators=Longer(), pairing="knockout", k=5)
    rounds = [(choice.record.output, choice.score) for choice in choices if choice.record.item == "0"]
    # aa and bbb win, the last aa has no game; bbb beats aa; bbb beats the last aa.
    assert rounds == [("bbb", 3), ("aa", 2), ("aa", 1), ("a", 0), ("b", 0)]
    assert len([pair for pair in asked if not {"?", "ddd", "dd"} & {*pair}]) == 4
    # A comparison that fails leaves the earlier output in.
    assert [choice.record.output for choice in choices if choice.record.item == "2"] == ["?", "dd", "ddd"]


def test_a_metric_compares_by_its_score_and_is_weighted_by_its_name() -> None:
    records = [
        Record(item="1", system="s", output=text, references=("a b c d",)) for text in ("a b c", "a b x x x x", "z")
    ]
    choices = metrist.rerank(records, "chrf", comparators="rougeL", weights={"rougeL": 5.0}, k=3)
    assert [choice.record.output for choice in choices] == ["a b c", "a b x x x x", "z"]
    assert [list(choice.scores.values())[1] for choice in choices] == [1, 0.5, 0]


def answer(conversation, _sampling) -> str:
    """Prefers the output with more of the word good."""
    text = conversation[-1].text
    bodies = dict(re.findall(r"\[output ([AB]) \w{6} begins\]\n(.*?)\n\[", text, re.S))
    mark = re.findall(r"\[output A (\w{6}) begins\]", text)[0]
    a, b = bodies["A"].count("good"), bodies["B"].count("good")
    return json.dumps({"reasons": "", "better": "A" if a > b else "B" if b > a else "tie", "id": mark})


def test_a_judge_that_is_an_llm() -> None:
    judge = JudgePair(llm=FakeLLM(answer))
    records = make_records(["bad", "good", "good good", "no"])
    reranked = metrist.rerank(records, comparators=judge, pairing="knockout", executor="serial")
    assert [choice.record.output for choice in reranked] == ["good good"]
    assert any("6 calls" in note for note in reranked.notes)
    with Runtime.current().activate():
        estimate = estimate_reranking(records, comparators=judge, pairing="knockout")
        everything = estimate_reranking(records, "chrf", comparators=judge)
    assert [each.calls for each in estimate.by_llm.values()] == [6]
    assert [each.calls for each in everything.by_llm.values()] == [12]
