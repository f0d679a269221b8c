"""The figures of an error analyst, by brute force and peers."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import kendalltau, pearsonr, spearmanr

from error_codes import raises_code
from metrist.errors import InputError
from metrist.metrics.errors.tigerscore import format_tiger_answer
from metrist.ratings import Error
from metrist.records import Record
from metrist.scores import Failure, FailureKind, Score, Scores
from metrist.train.analyses import Analysis
from metrist.train.analyst_evaluation import (
    LABEL,
    AnalystEvaluation,
    AnalystOutput,
    EvaluationSet,
    find_remarks,
    make_evaluation_set,
    measure_analyses,
    read_evaluation_set,
    summarise,
)
from metrist.train.error_analysis import BASE, TRAINED
from toy_analyses import write_rows


def mark(start: int, end: int, severity: str | None = "major", **more: Any) -> Error:
    return Error(aspect="Accuracy", severity=severity, penalty=1.0, start=start, end=end, **more)


def judge(*outputs: AnalystOutput, scores: Iterable[Score]) -> dict[str, Any]:
    return measure_analyses(EvaluationSet(name="set", outputs=outputs), Scores.of(list(scores)))


def output(number: int = 0, text: str = "x" * 20, **facts: Any) -> AnalystOutput:
    return AnalystOutput(record=Record(item=f"i{number}", system="s", output=text), **facts)


UNREAD = Score(value=float("nan"), failure=Failure(FailureKind.unparsable, "no"))


def test_spans_are_compared_by_character() -> None:
    """Counted by hand: people mark 10 + 5 characters, the analyst 8 + 4, of which 6 agree; 5 more go unread."""
    result = judge(
        output(0, errors=(mark(0, 10),)),
        output(1, errors=(mark(5, 10, "minor"),)),
        output(2, errors=()),
        output(3, errors=(mark(0, 5),)),
        scores=[
            Score(value=-1.0, errors=(mark(4, 12, "minor"),)),
            Score(value=0.0),
            Score(value=-1.0, errors=(mark(0, 4), mark(0, 4, side="source"))),
            UNREAD,
        ],
    )
    spans = result["spans"]
    assert (spans["human_errors"], spans["found"], spans["without_place"]) == (3, 2, 1)
    precision, recall = 6 / 12, 6 / 20
    assert spans["precision"] == pytest.approx(precision)
    assert spans["recall"] == pytest.approx(recall)
    assert spans["f1"] == pytest.approx(2 * precision * recall / (precision + recall))
    assert spans["whole_text_f1"] == pytest.approx(2 * (20 / 80) / (1 + 20 / 80))
    assert spans["f1_low"] <= spans["f1"] <= spans["f1_high"]
    assert result["parse_rate"] == 0.75
    assert result["unparsable"] == 1


def test_severities_are_those_of_the_error_with_the_largest_overlap() -> None:
    result = judge(
        output(0, errors=(mark(0, 6, "critical"), mark(10, 15, "minor"), mark(16, 18, None), mark(18, 20, "minor"))),
        output(1, errors=(mark(0, 4, "minor"),)),
        scores=[
            Score(value=-1.0, errors=(mark(0, 1, "minor"), mark(1, 6, "major"), mark(9, 15, "major"))),
            Score(value=-1.0, errors=(mark(2, 4, "minor"),)),
        ],
    )
    # critical is major: right; minor is taken for major: wrong; the second output: right. Two are not marked.
    assert result["severity"] == {"errors": 3, "accuracy": pytest.approx(2 / 3), "most_frequent": pytest.approx(2 / 3)}
    assert judge(output(errors=()), scores=[Score(value=0.0)])["severity"] is None


def test_correlations_are_those_of_scipy() -> None:
    rng = random.Random(3)
    outputs = [
        output(number // 4, "x" * rng.randint(5, 30), ratings={"quality": float(rng.randint(1, 5))})
        for number in range(40)
    ]
    values = [-float(rng.randint(0, 6)) for _ in outputs]
    scores = [Score(value=value) for value in values]
    scores[7] = UNREAD
    (row,) = judge(*outputs, scores=scores)["ratings"]
    known = [number for number in range(40) if number != 7]
    human = [outputs[number].ratings["quality"] for number in known]
    own = [values[number] for number in known]
    assert row["outputs"] == 39
    assert row["spearman"] == pytest.approx(spearmanr(human, own).statistic)
    assert row["pearson"] == pytest.approx(pearsonr(human, own).statistic)
    assert row["kendall"] == pytest.approx(kendalltau(human, own).statistic)
    lengths = [len(outputs[number].record.output) for number in known]
    assert row["length"] == pytest.approx(spearmanr(human, lengths).statistic)
    within = []
    for item in range(10):
        at = [n for n, number in enumerate(known) if number // 4 == item]
        within.append(spearmanr([human[n] for n in at], [own[n] for n in at]).statistic)
    assert row["spearman_within_items"] == pytest.approx(np.nanmean(within))
    assert row["spearman_low"] < row["spearman"] < row["spearman_high"]


def test_references_should_get_nothing_or_little() -> None:
    """Table 21 of the TIGERScore paper: the shares with 0 and with more than -2."""
    outputs = [output(number, is_reference=True, errors=()) for number in range(5)]
    values = [0.0, -1.5, -2.0, -4.0]
    result = judge(*outputs, scores=[*(Score(value=value) for value in values), UNREAD])
    assert result["gold"] == {"references": 5, "zero": 0.2, "above_minus_2": 0.4, "unread": 1}
    assert result["outputs"] == 0
    assert result["ratings"] == []


def test_references_are_counted_by_task() -> None:
    """As Table 21 of the TIGERScore paper; by hand."""
    outputs = [
        AnalystOutput(record=Record(item=str(n), system="s", output="x", task=task), is_reference=True, errors=())
        for n, task in enumerate(["summ", "summ", "math", "math"])
    ]
    result = judge(*outputs, scores=[Score(value=value) for value in (0.0, -2.0, 0.0, -1.0)])
    assert {task: (own["zero"], own["above_minus_2"]) for task, own in result["gold_by_task"].items()} == {
        "summ": (0.5, 0.5),
        "math": (0.5, 1.0),
    }
    assert [line.strip() for line in summarise(result)][-2:] == [
        "references of summ: 50.0% get 0, 50.0% more than -2",
        "references of math: 50.0% get 0, 100.0% more than -2",
    ]


def test_poor_figures_are_warned_of() -> None:
    outputs = [output(n, "x" * (n + 5), ratings={"quality": n}, errors=(mark(0, n + 5),)) for n in range(8)]
    scores = [Score(value=-float(n % 3), errors=(mark(0, 1),)) for n in range(7)]
    result = judge(*outputs, scores=[*scores, UNREAD])
    remarks = find_remarks({"models": {TRAINED: [result]}})
    assert [part in remark for part, remark in zip(("can be read", "whole text", "length"), remarks, strict=True)] == [
        True
    ] * 3
    lines = list(summarise(result))
    assert lines[0] == "set: 8 outputs; 87.5% of the answers can be read"
    assert any("character F1" in line for line in lines)


def test_sets_are_read_from_records(tmp_path: Path) -> None:
    rows = [
        {
            "item": str(number // 2),
            "system": "ab"[number % 2],
            "source": "s",
            "references": [f"reference {number // 2}"],
            "output": "the cat is bad",
            "ratings": {"quality": [number, number + 2]},
            "errors": [{"start": 11, "end": 14, "severity": "major", "category": "x"}] if number == 3 else [],
        }
        for number in range(12)
    ]
    data = read_evaluation_set(write_rows(tmp_path / "judged.jsonl", rows), None)
    assert data.name == "judged"
    judged = [one for one in data.outputs if not one.is_reference]
    assert [one.ratings["quality"] for one in judged] == [number + 1 for number in range(12)]
    assert [len(one.errors or ()) for one in judged] == [int(number == 3) for number in range(12)]
    assert sorted({one.record.output for one in data.outputs if one.is_reference}) == [
        f"reference {n}" for n in range(6)
    ]
    few = read_evaluation_set(tmp_path / "judged.jsonl", 4)
    assert len([one for one in few.outputs if not one.is_reference]) == 4
    assert len([one for one in few.outputs if one.is_reference]) == 2
    assert few == read_evaluation_set(tmp_path / "judged.jsonl", 4)
    plain = [{"item": "1", "system": "a", "output": "x"}]
    with raises_code(InputError, "no_data"):
        read_evaluation_set(write_rows(tmp_path / "plain.jsonl", plain), None)


def test_held_out_analyses_are_a_set() -> None:
    known = Analysis(prompt="p", completion="c", item="1", output="the cat", errors=(mark(0, 3),), channel="human")
    perfect = Analysis(prompt="q", completion="c", item="2", output="the dog", channel="reference")
    data: Any = make_evaluation_set([known, perfect, Analysis(prompt="p", completion="c")], None)
    assert [one.is_reference for one in data.outputs] == [False, True]
    assert data.outputs[0].ratings == {LABEL: -1.0}
    assert make_evaluation_set([Analysis(prompt="p", completion="c")], None) is None


def test_the_base_is_compared_on_the_same_outputs() -> None:
    """A base whose answers can never be read has a parse rate of 0, however many there are."""
    analyses = [
        Analysis(prompt=f"p{n}", completion="c", item=str(n), output=f"the cat {n}", errors=(mark(0, 3),))
        for n in range(30)
    ]
    perfect = format_tiger_answer([])
    metrics = {TRAINED: f"tigerscore(llm=fake(answers={perfect!r}))", BASE: "tigerscore(llm=fake(answers='hello'))"}
    alone: Any = AnalystEvaluation(limit=None)(metrics, analyses)
    assert list(alone["models"]) == [TRAINED]
    both: Any = AnalystEvaluation(limit=None, compare_base=True)(metrics, analyses)
    (trained,), (base,) = both["models"].values()
    assert (trained["parse_rate"], base["parse_rate"]) == (1, 0)
    assert base["unparsable"] == trained["outputs"] == 30
    assert base["ratings"][0]["outputs"] == 0
    assert trained["ratings"][0]["spearman"] is None  # All scores are equal.
    assert "30 outputs; 0.0%" in next(summarise(base))
    assert AnalystEvaluation()(metrics, []) is None
