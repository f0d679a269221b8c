"""Choices between two outputs."""

from __future__ import annotations

import json
import lzma
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from judged_rows import Row, written

import metrist
from metrist.errors import RunError, SpecError
from metrist.studies.meta import meta_evaluate
from metrist.studies.meta.preference_measures import best_epsilon, choice_table


def pair(
    item: int, ratings: list[int], scores: dict[str, Any] | None = None, outputs: tuple[str, str] = ("x", "y")
) -> Row:
    return {
        "item": str(item),
        "systems": ["a", "b"] if item % 2 else ["b", "a"],
        "outputs": list(outputs),
        "task": "even" if item % 2 == 0 else "odd",
        "ratings": {"better": ratings},
        **({"scores": scores} if scores else {}),
    }


STORED = [
    pair(1, [1, 1, 2], {"m": 1}),
    pair(2, [2, 2, 2], {"m": "2"}),
    pair(3, [0, 0, 1], {"m": 1}),
    pair(4, [1, 2, 0], {"m": 0}),
    pair(5, [1, 1, 1], {"m": "neither"}),
    pair(6, [2, 2, 1], {"m": 1}),
]


def test_stored_choices_are_judged_by_the_majority_of_raters() -> None:
    found = meta_evaluate(STORED, preferences=True, draws=20)
    accuracy = found.figure("m", measure="accuracy")
    # Undecided raters (item 4) make a tie; an answer that names no choice (item 5) is left out and lowers coverage.
    assert accuracy.value == pytest.approx(3 / 5)
    assert (accuracy.n, accuracy.coverage) == (5, pytest.approx(5 / 6))
    assert accuracy.all_ties == pytest.approx(2 / 5)
    # first: 2·1/(1+3); second: 2·1/(2+1); tie: 2·1/(2+1)
    assert found.figure("m", measure="f1").value == pytest.approx(np.mean([0.5, 2 / 3, 2 / 3]))
    assert "Pairs without a choice or without both scores, left out for that metric: m 1." in found.notes


def test_scores_of_a_run_choose_the_higher_output(tmp_path: Path) -> None:
    rows = [
        {**pair(item, [1 + item % 2], outputs=("the cat sat", "a dog")), "references": ["the cat sat here"]}
        for item in range(10)
    ]
    path = written(tmp_path / "pairs.jsonl", rows)
    metrist.score(path, ["rougeL", "ter"], out=tmp_path / "run")
    found = meta_evaluate(
        [tmp_path / "run", path],
        preferences=True,
        measures=["accuracy", "darr_wmt17", "gamma"],
        draws=20,
        slices="task",
    )
    for metric in ("rougeL", "ter"):
        assert found.figure(metric, measure="accuracy").value == 0.5
        assert found.figure(metric, measure="darr_wmt17").value == 0
        assert found.figure(metric, measure="accuracy", on="task=even").value == 1
        assert found.figure(metric, measure="gamma", on="task=odd").value == -1


def test_a_pair_shown_in_either_order_is_one_pair() -> None:
    rows = [
        {"item": "1", "systems": ["a", "b"], "outputs": ["x", "y"], "ratings": {"p": [1]}, "rater": "r"},
        {
            "item": "1",
            "systems": ["b", "a"],
            "outputs": ["y", "x"],
            "ratings": {"p": [2]},
            "rater": "s",
            "scores": {"m": 2},
        },
    ]
    found = meta_evaluate(rows, preferences=True, measures="accuracy", draws=0).figure("m")
    assert (found.n, found.value) == (1, 1)


def test_one_raters_choices_may_be_the_gold() -> None:
    rows = [{**pair(i, [1, 2], {"m": 2}), "raters": ["kind", "stern"]} for i in range(4)]
    assert meta_evaluate(rows, preferences=True, gold="stern", draws=0).figure("m", measure="accuracy").value == 1
    assert meta_evaluate(rows, preferences=True, gold="kind", draws=0).figure("m", measure="accuracy").value == 0
    with pytest.raises(
        RunError, match="no gold of preferences 'median' in the data, which has 'majority', 'kind', 'stern'"
    ):
        meta_evaluate(rows, preferences=True, gold="median")


@given(
    st.lists(
        st.tuples(st.sampled_from([-1.0, 0.0, 1.0]), st.integers(-4, 4).map(lambda n: n / 4)), min_size=1, max_size=12
    )
)
def test_the_best_threshold_equals_a_search(pairs: list[tuple[float, float]]) -> None:
    human, leaning = (np.array(column) for column in zip(*pairs, strict=True))

    def right(epsilon: float) -> float:
        return float(np.trace(choice_table(human, leaning, epsilon)))

    tried = sorted({0.0, *np.abs(leaning).tolist()})
    best = max(tried, key=lambda epsilon: (right(epsilon), -epsilon))
    assert best_epsilon(human, leaning) == best


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"measures": "acuracy"}, SpecError, r"no measure of preferences 'acuracy'; did you mean 'accuracy'"),
        ({"epsilon_over": "crossfit"}, RunError, "over all or per slice, not over 'crossfit'"),
        ({"aspects": "worse"}, RunError, "no aspect of preferences 'worse' in the data, which has 'better'"),
        ({"systems": ["a"]}, RunError, "none of the pairs that were judged by 'better' is left"),
    ],
)
def test_what_preferences_cannot_do_is_explained(
    settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        meta_evaluate(STORED, preferences=True, **settings)


def test_data_without_preferences_say_so() -> None:
    rows = [{"item": "1", "system": "a", "output": "x", "ratings": {"q": 1}, "scores": {"m": 1}}]
    with pytest.raises(RunError, match="the data hold no preferences"):
        meta_evaluate(rows, preferences=True)
    with pytest.raises(RunError, match="they hold preferences: --preferences"):
        meta_evaluate([*STORED, {"item": "9", "system": "a", "output": "x", "scores": {"m": 1}}])


def test_real_choices_of_judges_are_read(data: Any) -> None:
    """PandaLM's stored judge against the majority of three people, counted anew from the file."""
    path = data("pandalm")
    right = []
    with lzma.open(path, "rt", encoding="utf-8") as file:
        for row in map(json.loads, file):
            counts = Counter(row["ratings"]["preference"]).most_common()
            decided = len(counts) == 1 or counts[0][1] > counts[1][1]
            right.append(int(row["scores"]["pandalm-7b"]) == (counts[0][0] if decided else 0))
    figure = meta_evaluate(path, preferences=True, draws=0).figure("pandalm-7b", measure="accuracy")
    assert figure.n == len(right)
    assert figure.value == pytest.approx(np.mean(right))
