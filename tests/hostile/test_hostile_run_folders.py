"""Run folders and flat files of strangers: links, pipes, paths, lying columns, impossible numbers."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from metrist.run.shard_file import CHECKSUM, digest_of

import metrist
from metrist.errors import RunError
from metrist.run import columns, load, score

Refused = Callable[..., str]


@pytest.fixture
def run(outputs: Path, tmp_path: Path) -> Path:
    score(metrist.read_records(outputs), ["chrf", "length"], out=f"{tmp_path / 'run'}/", progress=False)
    return tmp_path / "run"


def _shard(run: Path) -> Path:
    return next((run / "results" / "chrf").glob("0*.jsonl"))


def _page(run: Path) -> Path:
    return run / "results" / "chrf" / "complete.json"


def _list(run: Path) -> Path:
    return next((run / "inputs").glob("*.jsonl"))


def _change_json(path: Path, **facts: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | facts))


def _change_list(run: Path, line: int, text: str) -> None:
    lines = _list(run).read_text().splitlines()[:-1]
    lines[line] = text
    body = "".join(f"{line}\n" for line in lines).encode()
    _list(run).write_bytes(body + CHECKSUM % hashlib.sha256(body).hexdigest().encode())


def _change_facts(run: Path, **facts: Any) -> None:
    _change_list(run, 0, json.dumps(json.loads(_list(run).read_text().splitlines()[0]) | facts))


def _forge(run: Path, change: Callable[[list[str]], None]) -> None:
    """Change lines of a shard file, and give it the right checksum again: checksums do not keep strangers out."""
    path = _shard(run)
    lines = path.read_text().splitlines()[:-1]
    change(lines)
    body = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(body + CHECKSUM % hashlib.sha256(body).hexdigest().encode())


def _forge_header(run: Path, **facts: Any) -> None:
    def change(lines: list[str]) -> None:
        lines[0] = json.dumps(json.loads(lines[0]) | facts)

    _forge(run, change)


def _forge_row(run: Path, text: str) -> None:
    def change(lines: list[str]) -> None:
        lines[1] = text

    _forge(run, change)


def _replace_by_link(path: Path, target: Path) -> None:
    if path.is_dir():
        path.rename(target)
    else:
        target.write_bytes(path.read_bytes())
        path.unlink()
    path.symlink_to(target)


def _replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


CASES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a shard that is a link out of the folder": (
        "symbolic link",
        lambda run: _replace_by_link(_shard(run), run.parent / "elsewhere"),
    ),
    "a shard that is a link to an endless device": (
        "symbolic link",
        lambda run: (_shard(run).unlink(), _shard_link(run, "/dev/zero")),
    ),
    "the page of a metric that is a link": (
        "symbolic link",
        lambda run: _replace_by_link(_page(run), run.parent / "elsewhere"),
    ),
    "the manifest that is a link": (
        "symbolic link",
        lambda run: _replace_by_link(run / "manifest.json", run.parent / "elsewhere"),
    ),
    "a metric's folder that is a link": (
        "symbolic link",
        lambda run: _replace_by_link(run / "results" / "chrf", run.parent / "elsewhere"),
    ),
    "a link to the folder itself, which never ends": ("symbolic link", lambda run: (run / "results/x").symlink_to(run)),
    "a folder of columns that is a link": (
        "symbolic link",
        lambda run: ((run.parent / "home").mkdir(), (run / "columns").symlink_to(run.parent / "home")),
    ),
    "a shard that is a named pipe": ("named pipe", lambda run: _replace_by_pipe(_shard(run))),
    "a page that is a named pipe": ("named pipe", lambda run: _replace_by_pipe(_page(run))),
    "a list of records that is a named pipe": ("named pipe", lambda run: _replace_by_pipe(_list(run))),
    "shards in another folder": (
        "no finished metric",
        lambda run: [_change_json(page, shards=["../../../secret.jsonl"]) for page in run.glob("results/*/*.json")],
    ),
    "shards by absolute path": (
        "no finished metric",
        lambda run: [_change_json(page, shards=["/etc/passwd"]) for page in run.glob("results/*/*.json")],
    ),
    "a number of scores that is none": ("run the same", lambda run: _change_json(_page(run), records=10**30)),
    "a list that promises 10^18 records": ("damaged", lambda run: _change_facts(run, records=10**18)),
    "a list that promises infinitely many records": ("damaged", lambda run: _change_facts(run, records=float("inf"))),
    "an order that no integer can hold": ("damaged", lambda run: _change_facts(run, order=float("inf"))),
    "an order of 5,000 digits": ("damaged", lambda run: _change_list(run, 0, '{"order": ' + "9" * 5000 + "}")),
    "a list nested 100,000 deep": ("damaged", lambda run: _change_list(run, 1, "[" * 100_000)),
    "a name of the input with a NUL": ("NUL", lambda run: _change_facts(run, path="a\0b")),
    "an option that is an argument of the reader": (
        "no option",
        lambda run: _change_facts(run, options={"progress": "x"}),
    ),
    "an option of another type": ("no option", lambda run: _change_facts(run, options={"fields": 5})),
    "a hash that is none": ("damaged", lambda run: _change_list(run, 1, '["0", "a", "zz", ""]')),
    "a score of 400 digits": ("damaged", lambda run: _forge_row(run, f'["0", "a", {"9" * 400}, [], [1]]')),
    "a score of 5,000 digits": ("damaged", lambda run: _forge_row(run, f'["0", "a", {"9" * 5000}, [], [1]]')),
    "a score that is an object": ("damaged", lambda run: _forge_row(run, '["0", "a", {"x": 1}, [], [1]]')),
    "a row nested 100,000 deep": ("damaged", lambda run: _forge_row(run, "[" * 100_000)),
    "details that are no object": ("damaged", lambda run: _forge_row(run, '["0", "a", 1.0, [], [1], 7]')),
    "an item that is a list": ("damaged", lambda run: _forge_row(run, '[["0"], "a", 1.0, [], [1]]')),
    "a position of infinity": ("damaged", lambda run: _forge_header(run, start=float("inf"))),
    "a count of a million": ("damaged", lambda run: _forge_header(run, count=10**6)),
    "hashes of another length": ("damaged", lambda run: _forge_header(run, hashes=["00"] * 6)),
    "hashes that are numbers": ("damaged", lambda run: _forge_header(run, hashes=[7] * 6)),
    "parts that are objects": ("damaged", lambda run: _forge_header(run, parts=[{}])),
    "statistics of another metric": (
        "not those of this metric",
        lambda run: _forge(run, _cut_statistics),
    ),
}


def _shard_link(run: Path, target: str) -> None:
    page = json.loads(_page(run).read_text())
    (run / "results" / "chrf" / page["shards"][0]).symlink_to(target)


def _cut_statistics(lines: list[str]) -> None:
    for number, line in enumerate(lines[1:], 1):
        lines[number] = json.dumps([*json.loads(line)[:4], [1.0]])


@pytest.mark.parametrize("case", CASES)
def test_a_run_folder_is_refused(case: str, run: Path, refused: Refused) -> None:
    word, spoil = CASES[case]
    spoil(run)
    refused(word, "export", run, "-o", run.parent / "out.jsonl")


def test_a_run_folder_behind_a_link_is_read(run: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(run)
    assert len(load(tmp_path / "link")["chrf"]) == 6


def test_nothing_is_written_through_a_link_in_a_run_folder(run: Path, outputs: Path, refused: Refused) -> None:
    target = run.parent / "victim"
    target.write_text("mine")
    _page(run).unlink()
    _page(run).symlink_to(target)
    refused("symbolic link", "score", outputs, "-m", "chrf", "-o", f"{run}/")
    assert target.read_text() == "mine"


def test_folders_beside_linked_columns_are_not_deleted(
    run: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    # Columns of earlier states are deleted with all that is beside them.
    home = run.parent / "home"
    (home / "documents").mkdir(parents=True)
    monkeypatch.setattr(columns, "MAX_IN_MEMORY", 2)
    (run / "columns" / "inputs").mkdir(parents=True, exist_ok=True)
    (run / "columns" / "inputs" / _list(run).stem).symlink_to(home)
    refused("symbolic link", load, run)
    assert (home / "documents").is_dir()


def _forge_columns(run: Path, change: Callable[[dict[str, Any], Path], None]) -> None:
    for page in (run / "columns").rglob("columns.json"):
        facts = json.loads(page.read_text())
        change(facts, page.parent)
        for name, entry in facts["arrays"].items():
            if (page.parent / f"{name}.bin").is_file():
                entry["sha256"] = hashlib.sha256((page.parent / f"{name}.bin").read_bytes()).hexdigest()
        page.write_text(json.dumps(facts))


def _write_array(name: str, change: Callable[[Any], Any]) -> Callable[[dict[str, Any], Path], None]:
    def forge(facts: dict[str, Any], folder: Path) -> None:
        if name in facts["arrays"]:
            array = np.fromfile(folder / f"{name}.bin", facts["arrays"][name]["dtype"])
            change(array).tofile(folder / f"{name}.bin")

    return forge


def _set_entry(**entry: Any) -> Callable[[dict[str, Any], Path], None]:
    def forge(facts: dict[str, Any], _folder: Path) -> None:
        for own in facts["arrays"].values():
            own.update(entry)

    return forge


def _add_outside(facts: dict[str, Any], folder: Path) -> None:
    (folder.parents[4] / "outside.bin").write_bytes(bytes(8))
    facts["arrays"]["../../../../../outside"] = {"dtype": "<f8", "shape": [1]}


@pytest.mark.parametrize(
    "forge",
    [
        pytest.param(_write_array("item.codes", lambda codes: codes + 10**6), id="names beyond the last"),
        pytest.param(_write_array("item.codes", lambda codes: codes - 10), id="negative names"),
        pytest.param(_write_array("item.ends", lambda ends: ends * 1000), id="names beyond the end of their data"),
        pytest.param(_write_array("item.ends", lambda ends: ends[::-1].copy()), id="names that go backwards"),
        pytest.param(_set_entry(shape=[1 << 40, 1 << 40]), id="a shape whose size overflows"),
        pytest.param(_set_entry(shape=[-1, -6]), id="a negative shape"),
        pytest.param(_set_entry(dtype="O"), id="objects in place of numbers"),
        pytest.param(_set_entry(dtype="V8"), id="a type without meaning"),
        pytest.param(_add_outside, id="an array in another folder"),
    ],
)
def test_columns_that_lie_are_made_again(
    run: Path, monkeypatch: pytest.MonkeyPatch, forge: Callable[[dict[str, Any], Path], None]
) -> None:
    monkeypatch.setattr(columns, "MAX_IN_MEMORY", 2)
    expected = [list(load(run).items), load(run)["chrf"].values.tolist()]
    _forge_columns(run, forge)
    results = load(run)
    assert [list(results.items), results["chrf"].values.tolist()] == expected


def test_verify_does_not_trust_columns(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "MAX_IN_MEMORY", 2)
    expected = load(run)["chrf"].values.tolist()
    _forge_columns(run, _write_array("values", lambda values: values + 1))
    assert load(run)["chrf"].values.tolist() != expected
    metrist.verify(run)
    assert load(run)["chrf"].values.tolist() == expected


@pytest.mark.parametrize(
    ("change", "word"),
    [
        pytest.param({"value": 10**400}, "not a line", id="a score of 400 digits"),
        pytest.param({"stats": 7}, "not a line", id="statistics that are no list"),
        pytest.param({"stats": [{}]}, "not a line", id="statistics that are objects"),
        pytest.param({"metric": {"a": 1}}, "not a line", id="a metric that is an object"),
        pytest.param({"metric": None}, "not a line", id="no metric"),
        pytest.param({"item": 5}, "not a line", id="an item that is a number"),
        pytest.param({"errors": 5}, "not", id="errors that are a number"),
        pytest.param({"errors": [{"__class__": "os"}]}, "not", id="errors with other fields"),
        pytest.param({"parts": [1]}, "not a line", id="parts that are a list"),
    ],
)
def test_a_flat_file_is_refused(run: Path, tmp_path: Path, refused: Refused, change: Any, word: str) -> None:
    metrist.export(run, tmp_path / "flat.jsonl")
    lines = (tmp_path / "flat.jsonl").read_text().splitlines()
    lines[1] = json.dumps(json.loads(lines[1]) | change)
    (tmp_path / "flat.jsonl").write_text("\n".join(lines))
    refused(word, "compare", tmp_path / "flat.jsonl")


def test_the_digest_of_a_shard_is_that_of_its_records(run: Path) -> None:
    # What the forgeries above rely on: a right checksum and a right name are not out of a stranger's reach.
    header = json.loads(_shard(run).read_text().splitlines()[0])
    assert header["digest"] == digest_of(header["hashes"], header["signature"])
    with pytest.raises(RunError):
        load(run.parent / "nothing")
