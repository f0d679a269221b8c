"""Run folders and flat files of strangers: links, pipes, paths, lying parts, impossible numbers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import metrist
from metrist.run import load, score
from metrist.run.store import Store

Refused = Callable[..., str]


@pytest.fixture
def run(outputs: Path, tmp_path: Path) -> Path:
    score(metrist.read_records(outputs), ["chrf", "length"], out=f"{tmp_path / 'run'}/", progress=False)
    return tmp_path / "run"


def _part(run: Path) -> Path:
    (part,) = (run / "scores" / "chrf").glob("*.parquet")
    return part


def _change(run: Path, change: Callable[[Any], None]) -> None:
    page = run / "manifest.json"
    facts = json.loads(page.read_text())
    del facts["checksum"]
    change(facts)
    page.write_text(json.dumps(facts))


def _set_part(run: Path, **facts: Any) -> None:
    _change(run, lambda page: page["metrics"][0]["versions"][0]["parts"][0].update(facts))


def _forge(run: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Put other rows into a part, and list it under its hash: hashes do not keep strangers out."""
    table = change(pq.read_table(_part(run)))
    part = Store(run).write_part("scores/chrf", table)
    _set_part(run, file=part.file, rows=part.rows)


def _replace(table: pa.Table, name: str, column: Any) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, column)


def _link(path: Path) -> None:
    target = path.with_name("elsewhere")
    path.rename(target)
    path.symlink_to(target)


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _fail_oddly(table: pa.Table) -> pa.Table:
    table = _replace(table, "failure_kind", pa.array(["os"] * len(table)))
    return _replace(table, "value", pa.nulls(len(table), pa.float64()))


#: What a message must say, and what is done to the run.
CASES: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "a manifest that is no JSON": ("damaged", lambda run: (run / "manifest.json").write_text('{"metrist": ')),
    "a manifest that is a list": ("", lambda run: (run / "manifest.json").write_text("[]")),
    "a deep manifest": ("", lambda run: (run / "manifest.json").write_text("[" * 100_000)),
    "metrics that are a number": ("damaged", lambda run: _change(run, lambda page: page.update(metrics=5))),
    "a part elsewhere": ("damaged", lambda run: _set_part(run, file="../../../etc/passwd")),
    "a folder elsewhere": ("damaged", lambda run: _change(run, lambda p: p["metrics"][0].update(folder="../../x"))),
    "rows without end": ("", lambda run: _set_part(run, rows=10**30)),
    "fewer rows than listed": ("", lambda run: _set_part(run, rows=7)),
    "a part that is a link": ("symbolic link", lambda run: _link(_part(run))),
    "a manifest that is a link": ("symbolic link", lambda run: _link(run / "manifest.json")),
    "a part that is a pipe": ("pipe", lambda run: _pipe(_part(run))),
    "a part of something else": ("", lambda run: _part(run).write_bytes(b"PAR1" + b"\xff" * 100 + b"PAR1")),
    "values that are texts": ("", lambda run: _forge(run, lambda t: _replace(t, "value", pa.array(["x"] * len(t))))),
    "no values": ("", lambda run: _forge(run, lambda t: t.drop_columns(["value"]))),
    "statistics of another width": (
        "",
        lambda run: _forge(run, lambda t: _replace(t, "statistics", pa.array([[1.0]] * len(t)))),
    ),
    "a failure of no kind": ("", lambda run: _forge(run, _fail_oddly)),
}


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
    target.mkdir()
    (run / "scores" / "bleu").symlink_to(target)
    refused("symbolic link", "score", outputs, "-m", "bleu", "-o", f"{run}/")
    assert list(target.iterdir()) == []


def test_forged_scores_with_right_hashes_are_found(run: Path) -> None:
    _forge(run, lambda table: _replace(table, "value", pa.array(np.full(len(table), 99.0))))
    assert not metrist.verify(run).passed


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
