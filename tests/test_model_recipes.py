"""The recipes of the shipped models: which texts training data must not contain."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import pytest

from metrist.data.pairs import GoodBad

RECIPES = Path(__file__).parents[1] / "models" / "recipes"
pytestmark = pytest.mark.skipif(not RECIPES.is_dir(), reason="models/recipes is not in this checkout")


@pytest.fixture
def leaks(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(RECIPES))
    return importlib.import_module("preference_leaks")


def test_judged_sets_are_protected_from_training(leaks: Any) -> None:
    families = ("summeval", "qags", "rank19", "newsroom", "topical-chat-usr", "openmeva-roc", "pandalm", "llmbar")
    assert all(any(name.startswith(family) for name in leaks.JUDGED) for family in families)
    # preference-small learned from these, which its card says; all other training data leaves them out.
    assert set(leaks.LEARNED_BY_SMALL) == {"qags-cnn", "qags-xsum", "rank19"}
    card = (RECIPES.parent / "src" / "metrist_models" / "preference-small" / "card.md").read_text(encoding="utf-8")
    assert "\n| QAGS |" in card
    assert "\n| Rank19 |" in card
    assert importlib.import_module("english_pairs").JUDGED[: len(leaks.JUDGED)] == leaks.JUDGED


@pytest.mark.skipif(not os.environ.get("METRIST_TEST_DATA"), reason="METRIST_TEST_DATA does not name the data")
@pytest.mark.parametrize("name", ["qags-xsum", "rank19"])
def test_texts_of_qags_and_rank19_are_found(leaks: Any, name: str) -> None:
    rows = importlib.import_module("agreement").rows(name)
    pair = GoodBad(
        criterion="consistency",
        good=(("source", rows[0]["source"]), ("output", "one two")),
        bad=(("source", rows[0]["source"]), ("output", "three four")),
        split="train",
    )
    assert name in leaks.JUDGED
    (sources, _) = leaks.leaks([pair], (name,))
    assert sources.over_half >= 1
    assert sources.most == 1
