"""`metrist card`, `metrist new-metric`, and metrics of other packages on the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from added_packages import CARD, METRIC, importable, write_package
from metrist.metrics import registry


@pytest.mark.parametrize(
    "module", ["1 / 0", "raise SystemExit(3)", "def Shouting(): ...", METRIC.replace("= (0.0, 1.0)", "= property(len)")]
)
def test_a_broken_package_does_not_break_the_list(tmp_path: Path, metrist, module: str) -> None:
    write_package(tmp_path, "added_broken", {"__init__.py": module, "card.toml": CARD})
    with importable(tmp_path):
        rows = json.loads(metrist("list", "--format", "json").out)["rows"]
        assert [row["metric"] for row in rows[-2:]] == ["panel_pair", "shouting"]
        assert rows[-1]["range"] == ""
        assert len(rows[-1]["install"]) > 10
        assert metrist("card", "check", "added-broken").code == 1


def test_the_command_checks_files_and_folders(tmp_path: Path, metrist) -> None:
    path = tmp_path / "card.toml"
    path.write_text(CARD)
    assert metrist("card", "check", path).code == 0
    assert metrist("card", "check", tmp_path).code == 0
    path.write_text(CARD.replace('licence = "MIT"', ""))
    answer = metrist("card", "check", path, "--format", "json")
    assert answer.code == 1
    [row] = json.loads(answer.out)["rows"]
    assert (row["metric"], "licence" in row["problem"]) == ("shouting", True)
    assert metrist("card", "check", tmp_path / "no.toml").code == 2


def test_a_card_is_printed_as_data(metrist) -> None:
    card = json.loads(metrist("explain-metric", "consistency", "--format", "json").out)
    assert (card["needs"], card["better"], card["bounds"]) == (["source"], "higher", [0.0, 1.0])
    # docs/research/tables.md, the row of SummEval's consistency.
    [row] = [row for row in card["agreement"] if (row["data"], row["aspect"]) == ("SummEval", "consistency")]
    assert (round(row["value"], 3), row["n"], set(row["baselines"])) == (0.398, 1600, {"length", "meteor"})


def test_a_new_metric_is_a_package_whose_tests_pass(tmp_path: Path, metrist) -> None:
    folder = tmp_path / "new"
    assert metrist("new-metric", "long_words", "--out", folder).code == 0
    source = folder / "src"
    assert metrist("card", "check", folder).out == f"{folder}: 1 card, no problem\n"
    files = {path.name: path.read_text() for path in (source / "metrist_long_words").iterdir()}
    point = 'long_words = "metrist_long_words:LongWords"'
    assert f'[project.entry-points."metrist.metrics"]\n{point}\n' in (folder / "pyproject.toml").read_text()
    installed = tmp_path / "installed"
    write_package(installed, "metrist_long_words", files, point.replace('"', ""))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)]
    path = [str(installed), str(Path(registry.__file__).parents[2])]
    environment = {"PYTHONPATH": ":".join(path), "PATH": ""}
    run = subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder, env=environment)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "6 passed" in run.stdout
    with importable(installed):
        assert metrist("new-metric", "long_words").code == 2


@pytest.mark.parametrize("name", ["chrf", "Loud", "a b", "../x", "class", "item", "", "2nd"])
def test_a_name_that_cannot_be_used_is_refused(tmp_path: Path, metrist, name: str) -> None:
    assert metrist("new-metric", name, "--out", tmp_path / "new").code == 2
    assert not (tmp_path / "new").exists()


def test_a_folder_with_files_is_left_alone(tmp_path: Path, metrist) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    assert metrist("new-metric", "loud", "--out", tmp_path).code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
