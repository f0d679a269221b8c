from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from error_codes import raises_code
from metrist.errors import RunError
from metrist.stats.error_spans import (
    ErrorAgreement,
    ErrorColumns,
    Figures,
    count_characters,
    error_agreement,
    figures,
)

#: (output, start, length, severity)
Row = tuple[int, int, int, int]
ROWS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 8), st.integers(1, 5), st.sampled_from([-1, 0, 1])), max_size=6
)


def errors(rows: list[Row]) -> ErrorColumns:
    output, start, length, severity = np.array(rows, np.intp).reshape(-1, 4).T
    return ErrorColumns.of(output, start, start + length, severity)


def characters(rows: list[Row]) -> dict[tuple[int, int], int]:
    """The severity of each marked character, found one by one."""
    marked: dict[tuple[int, int], int] = {}
    for output, start, length, severity in rows:
        for at in range(start, start + length):
            marked[output, at] = max(severity, marked.get((output, at), -1))
    return marked


def values(result: Figures) -> list[float]:
    return [estimate.value for estimate in result]


def agreed(human: ErrorColumns, predicted: ErrorColumns, outputs: int = 3, draws: int = 0) -> ErrorAgreement:
    return error_agreement(human, predicted, np.arange(outputs), draws, np.random.default_rng(0))


@given(ROWS, ROWS, st.sampled_from([0.0, 0.5, 1.0]), st.booleans())
def test_figures_equal_those_of_sets_of_characters(
    human: list[Row], predicted: list[Row], partial: float, of_one: bool
) -> None:
    """Of all severities, and of one alone."""
    gold, result = (
        {at: severity for at, severity in characters(rows).items() if severity == 1 or not of_one}
        for rows in (human, predicted)
    )
    shared = [(gold[at], result[at]) for at in gold.keys() & result.keys()]
    credit = sum(1.0 if first == second or -1 in (first, second) else partial for first, second in shared)
    precision, recall = (credit / len(side) if side else math.nan for side in (result, gold))
    f1 = math.nan if not gold and not result else 0.0
    if credit:
        f1 = 2 * precision * recall / (precision + recall)
    rows = count_characters(errors(human), errors(predicted), 3, [1], partial)[int(of_one)]
    assert figures(rows.sum(axis=0)) == pytest.approx([precision, recall, f1], nan_ok=True)


def test_another_severity_earns_half() -> None:
    # Ten characters marked by each side: six shared, of which the last two differ in severity.
    human, predicted = [(0, 0, 8, 1), (0, 8, 2, 0)], [(0, 4, 10, 1)]
    result = agreed(errors(human), errors(predicted))
    assert values(result.overall) == pytest.approx([0.5, 0.5, 0.5])
    by_severity = result.by_severity
    assert values(by_severity[1]) == pytest.approx([4 / 10, 4 / 8, 8 / 18])
    assert values(by_severity[0])[1:] == [0, 0]
    assert math.isnan(by_severity[0].precision.value)


def test_errors_without_a_place_are_counted_and_left_out() -> None:
    spans = ErrorColumns.of([0, 0, 1], [2, -1, 3], [4, -1, 3], [1, 1, 0])
    assert spans.unplaced == 2
    result = agreed(spans, errors([(0, 2, 2, 1)]))
    assert (result.human_unplaced, result.predicted_unplaced) == (2, 0)
    assert values(result.overall) == [1, 1, 1]


def test_intervals_are_over_items_and_hold_the_value() -> None:
    rng = np.random.default_rng(1)
    human = [(o, int(rng.integers(0, 20)), int(rng.integers(1, 9)), int(rng.integers(0, 2))) for o in range(60)]
    predicted = [(o, max(0, s + int(rng.integers(-3, 4))), n, v) for o, s, n, v in human]
    result = agreed(errors(human), errors(predicted), 60, 200)
    for figure in (*result.overall, *result.by_severity[0], *result.by_severity[1]):
        assert figure.low < figure.value < figure.high
    items = error_agreement(errors(human), errors(predicted), np.arange(60) // 20, 200, np.random.default_rng(0))
    assert values(items.overall) == pytest.approx(values(result.overall))
    assert items.overall.f1 != result.overall.f1


def test_an_error_that_ends_before_it_starts_is_refused() -> None:
    with raises_code(RunError, "invalid_value"):
        ErrorColumns.of([0], [5], [2], [0])


def test_no_errors_at_all_have_no_figures() -> None:
    none = errors([])
    assert np.isnan(values(agreed(none, none).overall)).all()
    missed = values(agreed(errors([(0, 0, 4, 1)]), none).overall)
    assert math.isnan(missed[0])
    assert missed[1:] == [0, 0]
