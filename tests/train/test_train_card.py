"""What the card of a training says of the trained model and its base."""

from __future__ import annotations

from typing import Any

import pytest

from metrist.train.card import compare_with_base

GAINED: dict[str, Any] = {"name": "closeness", "before": 0.7, "after": 0.8}


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        (GAINED, None),
        ({**GAINED, "agreement_base": 0.3, "agreement_model": 0.3}, None),
        ({**GAINED, "agreement_base": None, "agreement_model": 0.3}, None),
        ({**GAINED, "after": 0.7}, "than small: the closeness is still 0.7000."),
        ({**GAINED, "after": 0.6}, "than small: the closeness fell from 0.7000 to 0.6000."),
        ({**GAINED, "after": 0.6, "new_head": True}, "fell from 0.7000 with a new head to 0.6000."),
        (
            {**GAINED, "agreement_base": 0.363, "agreement_model": 0.304},
            "than small: Spearman's correlation with the labels fell from 0.363 to 0.304.",
        ),
        (
            {**GAINED, "people_base": 0.5, "people_model": None, "compared_with": "shipped"},
            "than shipped: Spearman's correlation with people's ratings fell from 0.500 to none",
        ),
    ],
)
def test_a_model_that_is_no_better_than_its_base_is_reported(figures: dict[str, Any], expected: str | None) -> None:
    remark = compare_with_base("consistency", "small", figures)
    assert remark is None if expected is None else expected in (remark or "")
