"""Options of a study of a suite: names with commas, and described defaults."""

from __future__ import annotations

import inspect
import re

import pytest

from metrist.cli.train_study import choose_setups
from metrist.errors import SpecError
from metrist.settings import split_commas
from metrist.studies.heap.hyperparameters import BUDGET
from metrist.studies.heap.jobs import SETUPS
from metrist.studies.heap.study import Study


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["cross-task,cross-cluster"], ("cross-task", "cross-cluster")),
        (["cross-cluster", "cross-task"], ("cross-task", "cross-cluster")),
        (["single, base", "multi"], ("base", "single", "multi")),
        (["base,all"], SETUPS),
    ],
)
def test_setups_are_named_with_commas_or_one_by_one(texts: list[str], expected: tuple[str, ...]) -> None:
    assert choose_setups(split_commas(texts)) == expected


def test_an_unknown_setup_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(SpecError, match=r"multi, cross-task.*'crosstask'; did you mean 'cross-task'"):
        choose_setups(["multi", "crosstask"])


def test_help_shows_the_defaults_of_a_study(metrist) -> None:
    code, out, _ = metrist("train", "preference", "--help")
    assert code == 0
    shown = " ".join(re.sub(r"[^\w,;:. -]", " ", out).split())
    defaults = {name: parameter.default for name, parameter in inspect.signature(Study).parameters.items()}
    for default in (defaults["seeds"], defaults["splits"][0], defaults["at_once"], BUDGET, "multi"):
        assert re.search(rf"default: {default}\b", shown), default
    for setup in SETUPS:
        assert setup in shown
