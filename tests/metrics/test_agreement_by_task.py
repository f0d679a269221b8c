"""What the measured agreement with people says of a metric, task by task, and how explain-metric shows it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from metrist.metrics import agreement
from metrist.metrics.agreement import (
    AgreementFigure,
    DatasetAgreement,
    describe_direction,
    export_agreement,
    format_agreement,
    load_agreements,
    summarize_tasks,
)
from metrist.metrics.cards import describe
from metrist.metrics.registry import build, names


def make_row(name: str, task: str, value: float, beyond: float = 0.1, **fields: Any) -> DatasetAgreement:
    figures = {
        "likelihood": AgreementFigure(value, value - 0.05, value + 0.05),
        "length": AgreementFigure(0.1, 0.0, 0.2),
        "best lexical": AgreementFigure(0.2, 0.1, 0.3),
    }
    settings = {
        "judged": True,
        "aspect": "overall",
        "measure": "spearman, by item",
        "n": 10,
        "lexical": "chrf",
        **fields,
    }
    given = {"likelihood": AgreementFigure(beyond, beyond - 0.05, beyond + 0.05)}
    return DatasetAgreement(data=name.lower(), name=name, task=task, figures=figures, given_length=given, **settings)


ROWS = (
    make_row("News", "summarization", 0.4),
    make_row("News", "summarization", -0.9, aspect="fluency", whole=False),
    make_row("Chat", "dialogue", -0.4, -0.3),
    make_row("Old", "simplification", 0.4),
    make_row("New", "simplification", -0.4),
    make_row("Tales", "story", 0.01, 0.0),
    make_row("Long", "data_to_text", 0.3, -0.01),
    make_row("Choices", "instruction_following", 0.42, 0.0, measure="accuracy", aspect=""),
    make_row("Seen", "dialogue", 0.9, trained=("likelihood",)),
)


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "load_agreements", lambda: ROWS)


@pytest.mark.usefixtures("rows")
def test_each_task_has_a_verdict() -> None:
    verdicts = {task.task: task.verdict for task in summarize_tasks("likelihood")}
    assert verdicts == {
        "summarization": "it agrees with people, also beyond length",
        "dialogue": "it runs against people on Chat",
        "simplification": "data sets contradict each other: it runs against people on New",
        "story": "it says little or nothing",
        "data_to_text": "it agrees with people no more than length does",
        "instruction_following": "it runs against people on Choices",  # Below the half that guessing has.
    }


@pytest.mark.usefixtures("rows")
def test_the_direction_names_the_data_that_contradicts_it() -> None:
    expected = "Chat (dialogue), New (simplification), Choices (instruction following)"
    assert describe_direction("likelihood") == expected
    assert describe_direction("chrf") == ""
    text = " ".join(describe(build("likelihood")).split())
    assert f"higher is better, but the opposite on {expected}" in text
    assert "dialogue: it runs against people on Chat" in text
    # Measured with default settings only.
    assert "Agreement with people" not in describe(build("likelihood(direction='f')"))


def test_a_row_is_one_line_with_its_baselines() -> None:
    line = format_agreement(export_agreement("likelihood", ROWS[2]))
    assert line == ("Chat, overall: -.40 [-.45, -.35] spearman, by item (length .10, chrf .20, given length -.30)")


def test_the_shipped_figures_are_those_of_metrics_and_in_range() -> None:
    for row in load_agreements():
        assert {label.partition(",")[0] for label in row.trained} <= set(names())
        for figure in row.figures.values():
            assert -1 <= figure.value <= 1
            assert math.isnan(figure.low) or figure.low <= figure.value + 1e-9
            assert math.isnan(figure.high) or figure.value - 1e-9 <= figure.high


def test_no_card_promises_a_direction_that_the_figures_contradict() -> None:
    for name in ("likelihood", "preference"):
        against = describe_direction(name)
        if against:
            assert f"but the opposite on {against}" in " ".join(describe(build(name)).split())
        assert "higher value is better" not in describe(build(name))
