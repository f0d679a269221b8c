"""`metrist train preference --suite heap`, its options, and `metrist train tables`, on a tiny model."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

import pytest

from error_codes import raises_code
from metrist.cli.train_study import SuiteOptions, choose_setups
from metrist.data.heap import add_instructions
from metrist.data.pairs import GoodBad, write_good_bad
from metrist.errors import SpecError
from metrist.models.devices import Options
from metrist.settings import split_commas
from metrist.studies.heap.jobs import SETUPS
from metrist.studies.heap.study import BUDGET, Study


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.jsonl"
    sides = ["train"] * 6 + ["dev"] * 2 + ["test"] * 2
    good_bad = [
        GoodBad(
            criterion=code,
            split=side,
            good=(("narrative", f"the cat sat {number}"), ("question", "is it"), ("answer", "good")),
            bad=(("narrative", f"the cat sat {number}"), ("question", "is it"), ("answer", "bad")),
        )
        for code in ("AG", "AV")
        for number, side in enumerate(sides)
    ]
    write_good_bad(path, good_bad)
    return path


def test_a_suite_is_trained_and_its_tables_are_printed_again(metrist, tiny, pairs: Path, tmp_path: Path) -> None:
    command = ["train", "preference", "--suite", "heap", "--data", pairs]
    command += ["--base", tiny("gpt2"), "-o", tmp_path / "study"]
    command += ["--setup", "base", "--setup", "single", "--seeds", 1, "--epochs", 1, "--criteria", "AG", "--no-models"]
    code, out, err = metrist(*command)
    assert code == 0, err
    assert "Table 2: accuracy on the test set, in per cent, on the authors' split" in out
    assert "1 of 2: single-AG-seed0-authors in" in err
    assert metrist(*command)[2].splitlines() == ["metrist: 2 of 2 trainings were finished before"]
    code, again, _ = metrist("train", "tables", tmp_path / "study")
    assert (code, again) == (0, out)
    code, data, _ = metrist("train", "tables", tmp_path / "study", "--format", "json")
    assert next(table["title"] for table in json.loads(data)) == "Mean accuracy over comparable criteria, in per cent"


def test_a_dry_run_lists_the_trainings(metrist, tiny, pairs: Path, tmp_path: Path) -> None:
    command = ["train", "preference", "--suite", "heap", "--data", pairs, "-o", tmp_path / "study"]
    command += ["--base", tiny("bert")]
    code, out, _ = metrist(*command, "--setup", "all", "--seeds", 2, "--choose", "lr,batch", "--budget", 5, "--dry-run")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "16 trainings, 1 at once"
    assert lines[1] == "before them up to 35 trials to choose lr, batch"
    assert "  cross-cluster-why-questions-AG-seed1-authors  learns AV; judged by AG" in lines
    assert "  base-seed0-authors  learns nothing; judged by AG, AV" in lines
    assert not (tmp_path / "study").exists()


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


def test_help_shows_the_defaults_of_a_study(metrist) -> None:
    code, out, _ = metrist("train", "preference", "--help")
    assert code == 0
    shown = " ".join(re.sub(r"[^\w,;:. -]", " ", out).split())
    defaults = {name: parameter.default for name, parameter in inspect.signature(Study).parameters.items()}
    for default in (defaults["seeds"], defaults["splits"][0], defaults["at_once"], BUDGET, "multi"):
        assert re.search(rf"default: {default}\b", shown), default
    for setup in SETUPS:
        assert setup in shown


def test_a_study_may_use_instructions_of_a_file(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text('AG = "Is it what people would say?"\n', encoding="utf-8")
    options = SuiteOptions(suite="heap", instructions=own)
    study = options.study(tmp_path / "pairs", tmp_path / "out", {"base": Options(model="m")}, 10)
    assert study.settings.instructions == {"AG": "Is it what people would say?"}
    (pair,) = add_instructions([GoodBad(criterion="AG", good=(), bad=())], study.settings.instructions)
    assert pair.instruction == "Is it what people would say?"
    with raises_code(SpecError, "conflict"):
        SuiteOptions(suite="heap", instructions=own, choose=("instruction",)).check([tmp_path], {})
