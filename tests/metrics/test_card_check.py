"""Cards and metrics of other packages: checked, listed, explained and served, also where they are broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from added_packages import CARD, METRIC, importable, write_package
from error_codes import raises_code
from metrist.errors import MetristError
from metrist.metrics import registry
from metrist.metrics.cards import check_cards, describe, display_name, export_card, format_bibliography
from metrist.web.service.catalog import Catalog


def test_the_cards_that_ship_describe_the_metrics_that_ship() -> None:
    check = check_cards("metrist")
    assert check.metrics == [name for name in registry.names() if registry.family(name) != registry.OTHER_FAMILY]
    assert check.problems == []


def test_an_added_metric_has_its_card_everywhere(tmp_path: Path) -> None:
    write_package(tmp_path, "added_shouting", {"__init__.py": METRIC, "card.toml": CARD})
    with importable(tmp_path):
        for name in ("added-shouting", "Added_Shouting"):
            assert check_cards(name) == (["shouting"], [])
        metric = registry.build("shouting")
        text = describe(metric)
        for line in ("Good for:  Chats.", "Licence:   MIT", "Chats: .25 spearman (length .10)", "Forum: nothing (CC0)"):
            assert line in text
        card = export_card(metric)
        assert (card.better, card.bounds, card.agreement[0].value) == ("lower", (0.0, 1.0), 0.25)
        assert display_name(metric) == "shouting"
        assert "Nothing to cite is known for: shouting" in format_bibliography([metric])
        [offer] = Catalog([metric]).offered
        assert offer.describe()["measures"] == "The share of capital letters."
    with raises_code(MetristError, "unknown_name", "added-shouting"):
        check_cards("added-shouting")


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('better = "lower"', 'better = "higher"', "better is lower in the class, higher in the card"),
        ("bounds = [0, 1]", "bounds = [0, 100]", "[0.0, 1.0]"),
        ("needs = []", 'needs = ["source"]', "['source']"),
        ("shouting", "whispering", "no card"),
        ('licence = "MIT"', "licence = 3", "licence"),
        ("[shouting]", "[shouting", "not a TOML file"),
    ],
)
def test_a_card_that_does_not_fit_its_metric_is_a_problem(tmp_path: Path, old: str, new: str, problem: str) -> None:
    write_package(tmp_path, "added_wrong", {"__init__.py": METRIC, "card.toml": CARD.replace(old, new)})
    with importable(tmp_path):
        assert any(problem in found.problem for found in check_cards("added-wrong").problems)
        # The metric works all the same.
        assert describe(registry.build("shouting")).startswith("shouting\n")


def test_a_card_without_a_metric_and_a_metric_without_a_card_are_problems(tmp_path: Path) -> None:
    metric = METRIC.replace('catalog_name: ClassVar = "shouting"', "catalog_name: ClassVar = None")
    write_package(tmp_path, "added_other", {"__init__.py": metric, "card.toml": CARD.replace("shouting", "extra")})
    with importable(tmp_path):
        problems = [problem.metric for problem in check_cards("added-other").problems]
    assert problems == ["shouting", "shouting", "extra"]


def test_the_packages_of_a_namespace_have_their_own_cards(tmp_path: Path) -> None:
    point = "shouting = added_space.loud:Shouting"
    write_package(tmp_path / "a", "added_space", {"loud/__init__.py": METRIC, "card.toml": CARD}, point, "loud")
    write_package(tmp_path / "b", "added_space", {"card.toml": CARD.replace("shouting", "whisper")}, "", "low")
    with importable(tmp_path / "a"), importable(tmp_path / "b"):
        assert "Names and abbreviations" in describe(registry.build("shouting"))
