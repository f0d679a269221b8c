"""Unknown keywords are errors in the name of the called function."""

from __future__ import annotations

import re
from typing import Any

import pytest

import metrist

ROWS = [{"item": "1", "system": "a", "output": "o"}]


@pytest.mark.parametrize(
    ("call", "unknown"),
    [
        (lambda **more: metrist.score(ROWS, "length", **more), "dry_run"),
        (lambda **more: metrist.prefer(ROWS, "length", **more), "seed"),
        (lambda **more: metrist.explain(ROWS, "length", **more), "device"),
    ],
)
def test_an_unknown_keyword_is_an_error_that_lists_the_known_ones(call: Any, unknown: str) -> None:
    with pytest.raises(
        TypeError, match=rf"\(\) has no parameter '{unknown}'.*; it takes .*max_cost.*, and these for reading"
    ):
        call(**{unknown: True})


def test_a_misspelt_keyword_is_an_error_that_suggests_the_nearest() -> None:
    message = re.escape("score() has no parameter 'max_costs'; did you mean 'max_cost'?")
    with pytest.raises(TypeError, match=message):
        metrist.score(ROWS, "length", max_costs=1)
    with pytest.raises(TypeError, match="did you mean 'fields'"):
        metrist.score(ROWS, "length", field={})
