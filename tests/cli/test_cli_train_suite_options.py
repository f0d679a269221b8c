"""How a study of a suite is asked for on the command line: names with commas, and what holds where nothing is given."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import get_args

import pytest

from metrist.cli import train_preference
from metrist.errors import SpecError
from metrist.studies.heap.hyperparameters import BUDGET
from metrist.studies.heap.jobs import SETUPS
from metrist.studies.heap.study import Study


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        (["cross-task,cross-cluster"], ("cross-task", "cross-cluster")),
        (["cross-cluster", "cross-task"], ("cross-task", "cross-cluster")),
        (["single, base", "multi"], ("base", "single", "multi")),
        (["base,all"], SETUPS),
    ],
)
def test_setups_are_named_with_commas_or_one_by_one(asked: list[str], wanted: tuple[str, ...]) -> None:
    assert train_preference._setups(asked) == wanted


@pytest.mark.parametrize(
    ("asked", "found"), [("multi,crosstask", "'crosstask'; did you mean 'cross-task'"), (",", "none")]
)
def test_a_setup_that_there_is_not_is_refused_with_those_that_there_are(asked: str, found: str) -> None:
    there = "base, single, multi, cross-task, cross-cluster, all"
    with pytest.raises(SpecError, match=f"--setup wants some of {there}, with commas between, got {found}"):
        train_preference._setups([asked])


def test_the_help_says_what_holds_where_nothing_is_given(metrist: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = metrist("train", "preference", "--help")
    assert code == 0
    shown = " ".join(re.sub(r"[^\w,;:. -]", " ", out).split())
    defaults = {name: one.default for name, one in inspect.signature(Study).parameters.items()}
    for wanted in (defaults["seeds"], defaults["splits"][0], defaults["at_once"], BUDGET, "multi"):
        assert re.search(rf"default: {wanted}\b", shown), wanted
    assert ", ".join(SETUPS) in " ".join(get_args(train_preference.Setups)[1].help.split())
