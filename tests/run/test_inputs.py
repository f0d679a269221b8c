"""Reading what a run read: from its tables, or from the files where it stores no texts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from error_codes import raises_code
from metrist import open_run
from metrist.errors import RunError
from metrist.run import read_inputs, score
from run_contents import write_rows

ROWS = [{"item": str(n), "system": "a", "output": f"output {n}", "source": f"source {n}"} for n in range(3)]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run without texts of `data/in.jsonl`, named relative to the folder that holds both."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    write_rows(tmp_path / "data" / "in.jsonl", ROWS)
    score("data/in.jsonl", ["length"], out="run/", texts=False)
    return tmp_path / "run"


@pytest.mark.parametrize("form", [Path, str, open_run])
def test_the_files_of_a_run_without_texts_are_read_again_and_it_says_so(run: Path, form: Callable[[Path], Any]) -> None:
    reader = read_inputs(form(run))
    assert [record.source for record in reader] == ["source 0", "source 1", "source 2"]
    assert reader.remarks == ["run stores no texts: data/in.jsonl was read again"]


@pytest.mark.usefixtures("run")
def test_a_run_with_texts_needs_no_file() -> None:
    score("data/in.jsonl", ["length"], out="texts")
    expected = list(read_inputs("data/in.jsonl", ["data/in.jsonl"]))
    shutil.rmtree("data")
    reader = read_inputs("texts")
    assert list(reader) == expected
    assert reader.remarks == []


def test_files_are_found_beside_the_run_from_another_folder(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = run.parent / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert len(list(read_inputs(run))) == 3


def test_a_missing_file_is_named_with_the_places_and_the_remedy(run: Path) -> None:
    Path("data/in.jsonl").unlink()
    with raises_code(RunError, "missing_value", "data/in.jsonl"):
        read_inputs(run)


def test_named_files_take_the_place_of_those_of_the_run(run: Path) -> None:
    shutil.move("data/in.jsonl", "renamed.jsonl")
    assert len(list(read_inputs(run, ["renamed.jsonl"]))) == 3


@pytest.mark.usefixtures("run")
def test_rows_in_memory_and_flat_files_name_no_files(tmp_path: Path) -> None:
    score(ROWS, ["length"], out=tmp_path / "memory", texts=False)
    with raises_code(RunError, "missing_value", "memory"):
        read_inputs(tmp_path / "memory")
    score("data/in.jsonl", ["length"], out="flat.jsonl")
    with raises_code(RunError, "missing_value", "flat.jsonl"):
        read_inputs("flat.jsonl")


def test_several_files_are_read_with_the_options_of_the_run(run: Path) -> None:
    Path("wide.csv").write_text("item,one,two\n0,x,y\n1,z,w\n")
    for system in ("one", "two"):
        score("wide.csv", ["length"], out=run, fields={"output": system}, system=system)
    outputs = {(record.item, record.system): record.output for record in read_inputs(run)}
    assert outputs["0", "one"] == "x"
    assert outputs["1", "two"] == "w"
    assert len(outputs) == 7


def test_a_file_that_moved_or_changed_is_told_and_other_texts_are_left_out(run: Path) -> None:
    shutil.move("data/in.jsonl", "in.jsonl")
    moved = read_inputs(run)
    assert len(list(moved)) == 3
    assert moved.remarks[0] == "data/in.jsonl has moved since it was scored: it is read from in.jsonl"
    shutil.move("in.jsonl", "data/in.jsonl")
    edited = [*ROWS[:2], {**ROWS[2], "output": "edited"}]
    Path("data/in.jsonl").write_text("".join(json.dumps({**row, "ratings": {"q": 1}}) + "\n" for row in edited))
    changed = read_inputs(run)
    assert [record.item for record in changed] == ["0", "1"]
    note = "data/in.jsonl has changed since it was scored: 1 output with other texts left out"
    assert note in changed.remarks
    entries = list(changed.entries())
    assert [len(entry.records) for entry in entries] == [1, 1, 0]
    assert [rating.item for entry in entries for rating in entry.ratings] == ["0", "1"]  # Item 2 rates another text.


@pytest.mark.usefixtures("run")
def test_columns_that_were_added_leave_the_texts_as_they_were() -> None:
    score("data/in.jsonl", ["length"], out="texts")
    edited = [*ROWS[:2], {**ROWS[2], "output": "edited"}]
    lines = [json.dumps({**row, "editor": "Ann", "mqm": -n}) + "\n" for n, row in enumerate(edited)]
    Path("data/in.jsonl").write_text("".join(lines))
    fields = {"rating:mqm": "mqm"}
    for reader in (read_inputs("texts", fields=fields), read_inputs("texts", ["data/in.jsonl"], fields=fields)):
        assert [record.item for record in reader] == ["0", "1"]
        ratings = [rating for entry in reader.entries() for rating in entry.ratings]
        assert [(rating.item, rating.aspect, rating.value) for rating in ratings] == [("0", "mqm", 0), ("1", "mqm", -1)]
        assert reader.remarks[0].endswith("1 output with other texts left out")


def test_a_named_wide_file_is_read_as_the_run_read_it(run: Path) -> None:
    wide = "id;one;two\n0;x;y\n1;z;w\n"
    Path("wide.csv").write_text(wide)
    score("wide.csv", ["length"], out=run, outputs=["A=one", "B=two"])
    expected = {("0", "A"): "x", ("0", "B"): "y", ("1", "A"): "z", ("1", "B"): "w"}

    def read(*files: str, **reading: Any) -> dict[tuple[str, str], str]:
        return {(r.item, r.system): r.output for r in read_inputs(run, files, **reading)}

    assert read("wide.csv") == expected
    Path("new").mkdir()
    shutil.move("wide.csv", "new/renamed.csv")
    assert read("new/renamed.csv") == expected  # known by its bytes
    shutil.move("new/renamed.csv", "new/wide.csv")
    Path("new/wide.csv").write_text(wide.replace("z", "edited"))
    changed = read_inputs(run, ["new/wide.csv"])
    assert [record.output for record in changed][:3] == ["x", "y", "w"]  # known by its name; the old file is gone
    assert "new/wide.csv has changed since it was scored: 1 output with other texts left out" in changed.remarks
    # What the caller says about columns counts instead; files that the run never read are read as they are.
    own = read("new/wide.csv", fields={"output": "one"}, system="A", outputs=None)
    assert own == {("0", "A"): "x", ("1", "A"): "edited"}
    Path("other.jsonl").write_text(json.dumps({"item": "9", "system": "z", "output": "o"}))
    assert read("new/wide.csv", "other.jsonl")["9", "z"] == "o"


def test_a_file_of_the_same_name_beside_the_one_that_was_read_is_another(run: Path) -> None:
    Path("ratings").mkdir()
    Path("ratings/in.jsonl").write_text(json.dumps({"item": "0", "system": "b", "output": "new"}))
    assert [record.output for record in read_inputs(run, ["ratings/in.jsonl"])] == ["new"]


def test_the_files_of_one_name_that_a_run_read_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in "ab":
        Path(folder).mkdir()
        Path(folder, "data.csv").write_text(f"item,output\n0,{folder}\n")
    results = score(["a/data.csv", "b/data.csv"], ["length"], out="run", texts=False)
    assert results.systems == ["a/data", "b/data"]
    assert [(r.system, r.output) for r in read_inputs("run")] == [("a/data", "a"), ("b/data", "b")]
    assert [(r.system, r.output) for r in read_inputs("run", ["b/data.csv"])] == [("b/data", "b")]
    assert [(r.system, r.output) for r in results.read_inputs()] == [("a/data", "a"), ("b/data", "b")]
    # Scored again, they are the same inputs.
    assert "new" not in " ".join(score(["b/data.csv", "a/data.csv"], ["length"], out="run").notes)
    assert len(open_run("run").manifest.inputs) == 2


def test_results_in_memory_find_the_texts_of_files_of_one_name(tmp_path: Path) -> None:
    for folder in "ab":
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "data.csv").write_text(f"item,output\n0,{folder * 3}\n")
    results = score([tmp_path / "a/data.csv", tmp_path / "b/data.csv"], ["length"])
    texts = {output.system: output.record for entry in results.worst(metric="length") for output in entry.outputs}
    assert {system: record.output for system, record in texts.items()} == {"a/data": "aaa", "b/data": "bbb"}


def test_of_several_files_those_that_are_named_are_read(run: Path) -> None:
    for system in "bc":
        rows = [{**row, "system": system, "output": f"{system} {row['item']}"} for row in ROWS]
        write_rows(Path(f"data/{system}.jsonl"), rows)
        score(f"data/{system}.jsonl", ["length"], out=run)
    Path("moved").mkdir()
    assert {record.system for record in read_inputs(run, ["data/b.jsonl"])} == {"b"}
    shutil.move("data/b.jsonl", "moved/b.jsonl")
    assert {record.system for record in read_inputs(run, ["moved/b.jsonl"])} == {"b"}
    with raises_code(RunError, "missing_value", "b.jsonl"):
        read_inputs(run)
    assert len(list(read_inputs(run, ["data/in.jsonl", "moved/b.jsonl", "data/c.jsonl"]))) == 9
