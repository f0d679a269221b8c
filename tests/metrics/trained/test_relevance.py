"""Relevance of answers and passages. The stand-in model finds a text as relevant as it has words of the question."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from error_codes import raises_code
from metrist.errors import ModelError, SpecError
from metrist.metrics.base import Metric, Shard
from metrist.metrics.registry import build
from metrist.metrics.trained import relevance as module
from metrist.metrics.trained.relevance import (
    AnswerRelevance,
    ContextRelevance,
    Rag,
    RelevanceSettings,
    find_question,
    split_passages,
)
from metrist.records import Record
from metrist.scores import FailureKind, Score, Scores

PASSAGES = "The old bridge\n\nThe bridge closed on Monday.\n\nIt rained.\n \nA new bridge opens in 2031."


def make_record(output: str = "It closed on Monday.", **fields: Any) -> Record:
    return Record(item="1", system="a", output=output, **fields)


class Overlap:
    """An encoder of words; its one output for a pair is the number of words that both texts share, less one."""

    max_tokens, folder = 20, None

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.pairs: list[tuple[list[int], list[int]]] = []

    def encode(self, texts: list[str]) -> list[Any]:
        def number(text: str) -> Any:
            words = text.lower().replace(".", "").replace("?", "").split()
            ids = np.array([self.numbers.setdefault(word, len(self.numbers) + 1) for word in words], np.int32)
            return ids, np.zeros((len(words), 2), np.int64)

        return [number(text) for text in texts]

    def join(self, first: Any, second: Any) -> Any:
        return first.tolist(), second.tolist()

    def score_spans(self, head: str, sequences: list[Any], spans: list[Any]) -> list[Any]:
        assert (head, set(map(tuple, (own for each in spans for own in each)))) == ("pooler", {(0, 1)})
        assert all(len(first) + len(second) + 3 <= self.max_tokens for first, second in sequences)
        self.pairs += sequences
        return [np.array([[len(set(first) & set(second)) - 1.0]]) for first, second in sequences]


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Overlap:
    encoder = Overlap()
    monkeypatch.setattr(module, "loading", SimpleNamespace(load_text_encoder=lambda *_, **__: encoder))
    monkeypatch.setattr(RelevanceSettings, "read", lambda _: RelevanceSettings(weights=(4.0,), bias=1.0, scale=0.5))
    return encoder


def expect(shared: int) -> float:
    """The probability for so many shared words, by the settings of the stand-in."""
    return 1 / (1 + math.exp(-0.5 * (4 * math.tanh(shared - 1) + 1)))


def score(metric: Metric, *records: Record) -> list[Score]:
    return list(metric.score(Shard(list(records))))


@pytest.mark.parametrize(
    ("fields", "question"),
    [
        ({"instruction": "When?", "source": "The bridge closed."}, "When?"),
        ({"instruction": "Answer in a word.", "source": "When did it close?"}, "When did it close?"),
        ({"source": "Name a bridge."}, "Name a bridge."),
        ({"instruction": "When?", "source": " "}, "When?"),
        ({}, ""),
    ],
)
def test_the_question_is_an_instruction_or_a_source(fields: dict[str, str], question: str) -> None:
    assert find_question(make_record(**fields)) == question


def test_an_answer_is_as_relevant_as_its_best_window(model: Overlap) -> None:
    question = "When did the bridge close?"
    long_answer = "Nobody knows. " * 20 + "The bridge did close when it rained."
    short, other, long_one = score(
        AnswerRelevance(),
        *(make_record(output, instruction=question) for output in ("The bridge did.", "Rain.", long_answer)),
    )
    assert (short.value, other.value) == pytest.approx((expect(3), expect(0)))
    assert long_one.value == pytest.approx(expect(5))
    assert len(model.pairs) > 4


@pytest.mark.usefixtures("model")
def test_what_cannot_be_judged_has_a_reason() -> None:
    german = "Die Brücke wurde am Montag geschlossen, weil sie nicht mehr sicher war."
    records = [
        make_record(""),
        make_record(),
        make_record("…", instruction="When?"),
        make_record(german, instruction="When?"),
        make_record("When it rained.", instruction="When?"),
    ]
    scores = score(AnswerRelevance(), *records)
    kinds = [one.failure and one.failure.kind for one in scores]
    assert kinds == [FailureKind.missing_input, FailureKind.missing_input, None, FailureKind.other, None]
    passages = score(
        ContextRelevance(),
        make_record(source=PASSAGES),
        make_record(instruction="When?"),
        make_record(source="\n", instruction="When?"),
    )
    assert [one.failure and one.failure.kind for one in passages] == [FailureKind.missing_input] * 3


def test_passages_stand_between_blank_lines_and_have_their_headings() -> None:
    texts = [PASSAGES[start:end] for start, end in split_passages(PASSAGES)]
    assert texts == ["The old bridge\n\nThe bridge closed on Monday.", "It rained.", "A new bridge opens in 2031."]
    assert [tuple(span) for span in split_passages("\n\n Only a heading \n\n")] == [(3, 17)]
    assert split_passages(" \n\n ") == []


def test_context_relevance_is_the_mean_over_passages(model: Overlap) -> None:
    question = "Which new bridge opens?"
    first, second = score(
        ContextRelevance(), *(make_record(output, source=PASSAGES, instruction=question) for output in ("a", "b"))
    )
    values = [expect(1), expect(0), expect(3)]
    assert first.value == second.value == pytest.approx(sum(values) / 3)
    assert dict(first.parts) == pytest.approx({"passages": 3, "relevant": 2, "best": expect(3)})
    assert first.explanation == "relevant: 2 of 3 passages (1, 3)"
    # Equal passages are read once.
    assert len(model.pairs) == 3
    [strict] = score(ContextRelevance(threshold=0.9), make_record(source=PASSAGES, instruction=question))
    assert strict.parts["relevant"] == 1
    with raises_code(SpecError, "invalid_value", "threshold", "1.5"):
        ContextRelevance(threshold=1.5)


@pytest.mark.usefixtures("model")
def test_rag_is_the_mean_of_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    class Half(Metric):
        def score(self, shard: Shard) -> Scores:
            return Scores.of(Score(value=0.5) if record.output else Score.failed("empty") for record in shard.records)

    metric = Rag()
    monkeypatch.setitem(metric.components, "consistency", Half())
    question = "Which new bridge opens?"
    records = [make_record(output, source=PASSAGES, instruction=question) for output in ("The new bridge.", "")]
    good, empty = score(metric, *records)
    parts = {"context_relevance": (expect(1) + expect(0) + expect(3)) / 3, "answer_relevance": expect(2)}
    assert dict(good.parts) == pytest.approx({**parts, "consistency": 0.5})
    assert good.value == pytest.approx(sum(good.parts.values()) / 3)
    assert empty.failure is not None
    assert str(empty.failure).count("empty") == 2


def test_a_folder_without_settings_is_no_model_of_relevance(tmp_path: Any) -> None:
    with raises_code(ModelError, "missing_file", "relevance.json"):
        RelevanceSettings.read(tmp_path)
    (tmp_path / "relevance.json").write_text(json.dumps({"metrist_relevance": 1, "weights": [1, 2], "bias": 0.5}))
    assert RelevanceSettings.read(tmp_path) == RelevanceSettings(weights=(1.0, 2.0), bias=0.5)
    assert build("answer_relevance").text == "answer_relevance"
