"""The recipes of the shipped models: which texts training data must not contain, what their steps run, and a training
by one of them with a tiny encoder."""

from __future__ import annotations

import importlib
import json
import tomllib
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from metrist.data.faults.news import Statement
from metrist.train.recipe import Recipe
from tiny_text_encoders import write_text_encoder

RECIPES = Path(__file__).parents[1] / "models" / "recipes"
pytestmark = pytest.mark.skipif(not RECIPES.is_dir(), reason="models/recipes is not in this checkout")
MODELS = ("likelihood-small", "preference-small", "english-small", "english-large", "multilingual", "analyst")


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a script of the recipes by its name."""
    monkeypatch.syspath_prepend(str(RECIPES))
    return importlib.import_module


def test_judged_sets_are_protected_from_training(recipe: Any) -> None:
    sets = recipe("sets")
    families = ("summeval", "qags", "rank19", "newsroom", "topical-chat-usr", "openmeva-roc", "pandalm", "llmbar")
    assert all(any(name.startswith(family) for name in sets.JUDGED) for family in families)
    # preference-small learned from these, which its card says; all other training data leaves them out.
    assert {name.partition("-")[0] for name in sets.LEARNED_BY_SMALL} == {"qags", "rank19"}
    card = (RECIPES.parent / "src" / "metrist_models" / "preference-small" / "card.md").read_text(encoding="utf-8")
    assert "\n| QAGS |" in card
    assert "\n| Rank19 |" in card


@pytest.mark.parametrize("name", ["qags-xsum", "rank19"])
def test_texts_of_judged_sets_are_found(recipe: Any, data: Callable[[str], Path], name: str) -> None:
    data(name)
    sets = recipe("sets")
    source = sets.read_rows(name)[0]["source"]
    judged = sets.JudgedTexts((name,))
    assert judged.find(source) == name
    # A part of a judged text, without its case and marks, is found as well.
    assert judged.find(" ".join(source.upper().split()[3:60])) == name
    assert judged.free("This sentence of a few ordinary words stands in no set of anybody.", None)
    assert not judged.free("one two", source)


@pytest.mark.parametrize("model", MODELS)
def test_the_steps_of_a_recipe_run_what_there_is(recipe: Any, model: str) -> None:
    content = tomllib.loads((RECIPES / f"{model}.toml").read_text(encoding="utf-8"))
    values = {"work": "WORK", **{name: name.upper() for name in content["inputs"]}}
    for command in recipe("make").list_commands(content, values, small=True):
        program = command[1:3]
        assert program == ["-m", "metrist"] or Path(program[0]).is_file()
        assert all(Path(word).is_file() for word in command[2:] if word.endswith(".toml"))
    for table in content.get("encoder", {}).values():
        Recipe(**table["recipe"])
        task = {field.name for field in fields(recipe("metrist.train.encoder").EncoderTask)}
        assert table.keys() - task <= {"rows", "length", "weights"}


def test_the_recipes_are_small() -> None:
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in RECIPES.glob("*.py"))
    assert lines <= 5_000


def test_errors_stay_in_place_when_a_statement_is_written_as_tokens(recipe: Any) -> None:
    text = "Anna Lee, 34, didn't say that Rome's mayor won."
    places = tuple((text.index(word), text.index(word) + len(word)) for word in ("Lee", "Rome's"))
    statement = Statement("name", text, 0.0, places, ((0, 4),))
    written = recipe("english_support").write_statement_as_tokens(statement)
    assert written.text == "anna lee , 34 , did n't say that rome 's mayor won ."
    assert [written.text[start:end] for start, end in written.errors] == ["lee", "rome 's"]
    assert [written.text[start:end] for start, end in written.unsure] == ["anna"]


def test_spans_of_an_example_follow_its_sentence(recipe: Any) -> None:
    example = recipe("english_support").Example("set", "source", "  A bad word. ", 0.0, ((4, 7),), ((8, 20),))
    stripped = example.strip()
    assert stripped.sentence[slice(*stripped.errors[0])] == "bad"
    assert stripped.sentence[slice(*stripped.unsure[0])] == "word."


def test_rows_of_several_tasks_train_one_encoder(recipe: Any, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    training = recipe("encoder_training")
    write_text_encoder(tmp_path / "base", heads=("support",), scale=0.1)
    files: dict[str, dict[str, Any]] = {
        "support.jsonl": {
            "passage": "the dog sat on the mat. " * 40,
            "sentences": [["the dog sat.", 1.0, 1.0, [], []], ["the cat ran.", 0.0, 1.0, [[4, 7]], [[8, 11]]]],
        },
        "pairs.jsonl": {"instruction": "is it new", "good": [["output", "a dog"]], "bad": [["output", "a cat"]]},
        "fluency.jsonl": {"text": "the dog sat on on the mat", "spans": [[12, 17]]},
    }
    for name, row in files.items():
        lines = [json.dumps({"split": split, **row}) for split in ("train", "train", "dev")]
        (tmp_path / name).write_text("\n".join(lines), encoding="utf-8")
    heads = dict.fromkeys(("support", "preference", "fluency", "tags", "errors"), 1)
    table = {"base": "base", "out": "out", "rows": list(files), "heads": heads, "length": 64, "recipe": {"lr": 1e-3}}
    task = training.make_task(table, tmp_path, small=True)
    support, _, pair, _, fluency, _ = task.train
    assert len(support.sequences) == 1
    assert len(support.sequences[0][0]) <= 64
    assert [unit[:4] for unit in support.units] == [(0, 1, 5, 0), (0, 5, 9, 0)]
    # The error is the word `cat`; of `ran` nothing is known.
    assert [(token, label) for _, token, _, label, _ in support.tokens[4:]] == [(5, 0.0), (6, 1.0), (8, 0.0)]
    assert pair.pairs == [(0, 1, 1.0, 1.0)]
    assert [label for *_, label, _ in fluency.tokens] == [0, 0, 0, 1, 1, 0, 0]
    recipe("metrist.train.fit").fit(task)
    assert len(recipe("metrist.models.loading").load_text_encoder(str(tmp_path / "out")).heads) == 5
