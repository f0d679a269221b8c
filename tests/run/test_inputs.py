"""Reading again what a run read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from metrist.errors import RunError
from metrist.run import read_inputs, score
from metrist.run.run_folder import RunFolder

ROWS = [{"item": str(n), "system": "a", "output": f"output {n}", "source": f"source {n}"} for n in range(3)]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of `data/in.jsonl`, named relative to the folder that holds both."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    score("data/in.jsonl", ["length"], out="run/")
    return tmp_path / "run"


@pytest.mark.parametrize("form", [Path, str, RunFolder], ids=["Path", "str", "RunFolder"])
def test_the_files_of_a_run_are_read_again(run: Path, form: type) -> None:
    assert [record.source for record in read_inputs(form(run))] == ["source 0", "source 1", "source 2"]


def test_files_are_found_beside_the_run_from_another_folder(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = run.parent / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert len(list(read_inputs(run))) == 3


def test_files_that_moved_into_the_folder_of_the_run_are_found(run: Path) -> None:
    shutil.move("data/in.jsonl", "in.jsonl")
    assert len(list(read_inputs(run))) == 3


def test_a_missing_file_is_named_with_the_places_and_the_remedy(run: Path) -> None:
    Path("data/in.jsonl").unlink()
    with pytest.raises(RunError, match=r"read .*in\.jsonl, which is missing .*command line") as caught:
        read_inputs(run)
    assert str(run.parent / "data" / "in.jsonl") in str(caught.value)


def test_named_files_take_the_place_of_those_of_the_run(run: Path) -> None:
    shutil.move("data/in.jsonl", "renamed.jsonl")
    assert len(list(read_inputs(run, ["renamed.jsonl"]))) == 3


@pytest.mark.usefixtures("run")
def test_rows_in_memory_and_flat_files_name_no_files(tmp_path: Path) -> None:
    score(ROWS, ["length"], out=tmp_path / "memory")
    with pytest.raises(RunError, match="rows in memory"):
        read_inputs(tmp_path / "memory")
    score("data/in.jsonl", ["length"], out="flat.jsonl")
    with pytest.raises(RunError, match="name them on the command line"):
        read_inputs("flat.jsonl")
