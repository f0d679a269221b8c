"""The recipes of the shipped models: which texts training data must not contain, and where their errors are."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metrist.data.faults.news import Statement
from metrist.data.faults.text import find_changes
from metrist.data.pairs import GoodBad
from metrist.records import Record

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


@pytest.mark.parametrize("name", ["qags-xsum", "rank19"])
def test_texts_of_qags_and_rank19_are_found(leaks: Any, data: Callable[[str], Path], name: str) -> None:
    data(name)
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


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a recipe by its name."""
    monkeypatch.syspath_prepend(str(RECIPES))
    return importlib.import_module


@pytest.mark.parametrize(
    ("original", "changed", "marked"),
    [
        ("He met Anna Lee in Rome.", "He met Carla Poe in Rome.", ["Carla Poe"]),
        ("They did not win on Monday.", "They did win on Tuesday.", ["win", "Tuesday"]),
        ("Rome beat Paris.", "Rome beat Paris, despite earlier warnings.", ["despite earlier warnings"]),
        ("Nothing changes.", "Nothing changes.", []),
    ],
)
def test_changed_words_of_a_fault_are_found(original: str, changed: str, marked: list[str]) -> None:
    spans = find_changes(original, changed)
    assert [changed[start:end] for start, end in spans] == marked


def test_errors_stay_in_place_when_a_statement_is_written_as_tokens(recipe: Any) -> None:
    text = "Anna Lee, 34, didn't say that Rome's mayor won."
    places = tuple((text.index(word), text.index(word) + len(word)) for word in ("Lee", "Rome's"))
    statement = Statement("name", text, 0.0, places, ((0, 4),))
    written = recipe("english_support").write_statement_as_tokens(statement)
    assert written.text == "anna lee , 34 , did n't say that rome 's mayor won ."
    assert [written.text[start:end] for start, end in written.errors] == ["lee", "rome 's"]
    assert [written.text[start:end] for start, end in written.unsure] == ["anna"]


def test_names_and_numbers_that_a_passage_lacks_are_found(recipe: Any) -> None:
    text = "Shortly after, David Cameron met 34 miners in Leeds."
    spans = recipe("english_support").find_facts(text, {"cameron", "leeds"}, frozenset({"shortly"}))
    assert [text[start:end] for start, end in spans] == ["David", "34"]


def test_spans_of_an_example_follow_its_sentence(recipe: Any) -> None:
    example = recipe("english_support").Example("set", "source", "  A bad word. ", 0.0, ((4, 7),), ((8, 20),))
    stripped = example.strip()
    assert stripped.sentence[slice(*stripped.errors[0])] == "bad"
    assert stripped.sentence[slice(*stripped.unsure[0])] == "word."


def test_rows_of_several_tasks_are_packed_into_one_batch(recipe: Any) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    pack, train = recipe("english_errors_pack"), recipe("english_errors_train")
    labels = pack.label_tokens([(0, 2), (3, 6), (7, 9)], [(3, 4)], [(7, 8)])
    assert labels.tolist() == [0, 1, -1]
    assert pack.label_tokens([(0, 2)], None, []).tolist() == [-1]
    packer = pack.Packer()
    for size in (5, 4):
        ids = np.arange(10, 10 + size, dtype=np.uint16)
        row = packer.add_row(ids, 3, "bump", np.array([-1, 0, 1, *[-1] * (size - 3)], np.int8))
        packer.add_unit(row, 1, 3, "support", 0.0, anywhere=size == 4)
    arrays = packer.arrays("train.support")
    part = train.Part({name.split(".", 2)[2]: array for name, array in arrays.items()}, "support")
    batch = train.build_batch([(part, np.array([1, 0]))])
    assert batch.rows.ids.tolist() == [10, 11, 12, 13, 10, 11, 12, 13, 14]
    assert batch.rows.places.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 4]
    assert batch.rows.types.tolist() == [0, 0, 0, 1, 0, 0, 0, 1, 1]
    assert batch.labels.tolist() == [-1, 0, 1, -1, -1, 0, 1, -1, -1]
    assert batch.unit_tokens.tolist() == [1, 2, 5, 6]
    assert batch.unit_of_token.tolist() == [0, 0, 1, 1]
    assert batch.unit_any.tolist() == [True, False]


def test_f1_counts_characters_without_those_that_do_not_count(recipe: Any) -> None:
    agreement = recipe("explainer_agreement")
    record = Record(item="1", system="a", output="abcdefgh")
    gold, ignored, marks = (np.array([mark == "x" for mark in line]) for line in ("xx------", "----xx--", "-xx-x---"))
    counts = agreement.count([agreement.Case(record, gold, ignored)], [marks])
    assert counts.tolist() == [[1, 2, 2]]
    assert agreement.f1(counts) == pytest.approx(0.5)
