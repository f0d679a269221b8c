"""Flat files: the same rows in every format, written completely or not at all."""

from __future__ import annotations

import csv
import gzip
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import pytest

import metrist
from error_codes import raises_code
from metrist.errors import RunError
from metrist.io import read_rows
from metrist.ratings import Error
from metrist.run import flat_file as flat_module
from metrist.run import stored_run
from metrist.run.flat_file import COLUMNS, Flat, write_flat
from metrist.scores import Score, Scores

ODD = 'a\ud800\0\u202e\n,"\r'


@pytest.fixture
def flat() -> Flat:
    error = Error(aspect=ODD, severity=None, penalty=1.5, start=0, end=2, source_start=3, source_end=5)
    chrf = [
        Score(value=0.1, parts={"50%": 1 / 3, ODD: np.nan}, stats=(3.0, 0.25)),
        Score(value=np.nan, failure=f"no answer {ODD}", stats=(0.0, 0.0)),
        Score(value=2.0, errors=(error,), explanation="because", stats=(1e22, -0.0)),
    ]
    return Flat(
        items=["i1", ODD, "i3"],
        systems=["s", "s", "é"],
        scores={"chrf": Scores.of(chrf), "my.Mine(a='%s')": Scores.of([1.0, 2.0, 3.5])},
        signatures={"chrf": "chrf | 1", "my.Mine(a='%s')": "mine"},
    )


def test_lines_put_together_from_columns_equal_the_rows_encoded_one_by_one(
    tmp_path: Path, flat: Flat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flat_module, "CHUNK", 2)
    written: list[tuple[int, int]] = []
    write_flat(tmp_path / "x.jsonl", replace(flat, progress=lambda done, total: written.append((done, total))))
    assert written == [(2, 3), (3, 3)]
    lines = (tmp_path / "x.jsonl").read_text("ascii").splitlines()
    assert [json.loads(line) for line in lines] == list(flat.rows())
    assert [list(json.loads(line)) for line in lines] == [list(COLUMNS)] * 6
    assert '"value": null' in lines[2]
    assert '"stats": [3, 0.25]' in lines[0]


@pytest.mark.parametrize("name", ["x.jsonl.gz", "x.JSONL.gz"])
def test_a_suffix_asks_for_compression(tmp_path: Path, flat: Flat, name: str) -> None:
    write_flat(tmp_path / "x.jsonl", flat)
    write_flat(tmp_path / name, flat)
    assert gzip.decompress((tmp_path / name).read_bytes()) == (tmp_path / "x.jsonl").read_bytes()


def test_csv_holds_the_same_rows_with_nested_cells_as_json(tmp_path: Path, flat: Flat) -> None:
    write_flat(tmp_path / "x.csv", flat)
    with open(tmp_path / "x.csv", encoding="utf-8", newline="") as file:
        csv_rows = list(csv.DictReader(file))
    assert list(csv_rows[0]) == list(COLUMNS)
    assert [float(row["value"]) if row["value"] else None for row in csv_rows] == [r["value"] for r in flat.rows()]
    assert json.loads(csv_rows[0]["parts"]) == {"50%": 1 / 3, ODD: None}
    assert csv_rows[2]["item"] == ODD.replace("\ud800", "\\ud800")
    assert json.loads(csv_rows[4]["errors"])[0]["aspect"] == ODD


@pytest.mark.parametrize(
    "name",
    [
        "a\rb",
        "\r",
        "a\r\nb",
        '"',
        '""',
        ",",
        " a ",
        "a\nb",
        "a\u2028b\x0bc",
        "=1+1",
        "@x",
        "+x",
        "-x",
        "\t",
        "'=x",
        "'",
    ],
)
def test_csv_brings_any_name_back(tmp_path: Path, name: str) -> None:
    flat = Flat(items=[name], systems=[name], scores={name: Scores.of([0.5])}, signatures={name: name})
    write_flat(tmp_path / "x.csv", flat)
    ((_, row),) = read_rows(tmp_path / "x.csv")
    assert list(row.items()) == list(
        zip(COLUMNS, [name, name, name, "0.5", "", "[0.5, 1.0]", "", "", "", name], strict=True)
    )
    # What a spreadsheet would run as a formula begins with an apostrophe.
    with open(tmp_path / "x.csv", encoding="utf-8", newline="") as file:
        cells = list(csv.reader(file))[1]
    assert cells[0] == (f"'{name}" if name.lstrip("'")[:1] in tuple("=+-@\t\r") else name)


def test_parquet_holds_the_same_rows(tmp_path: Path, flat: Flat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flat_module, "CHUNK", 2)
    write_flat(tmp_path / "x.parquet", flat)
    parquet_rows = parquet.read_table(tmp_path / "x.parquet").to_pylist()
    expected = list(flat.rows())
    for name in ("system", "metric", "value", "stats", "explanation", "signature"):
        assert [row[name] for row in parquet_rows] == [row[name] for row in expected]
    assert dict(parquet_rows[0]["parts"])["50%"] == 1 / 3
    assert parquet_rows[4]["errors"][0]["penalty"] == 1.5
    assert parquet_rows[4]["errors"][0]["source_end"] == 5
    assert parquet_rows[2]["item"] == ODD.replace("\ud800", "\\ud800")


@pytest.mark.parametrize("name", ["x.json", "x.parquet.gz", "folder.csv", "none/x.csv"])
def test_a_path_that_cannot_be_written_is_refused(tmp_path: Path, flat: Flat, name: str) -> None:
    (tmp_path / "folder.csv").mkdir()
    with raises_code(RunError, "cannot_write", tmp_path / name):
        write_flat(tmp_path / name, flat)


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path, flat: Flat, monkeypatch: pytest.MonkeyPatch) -> None:
    write_flat(tmp_path / "x.jsonl", flat)
    before = (tmp_path / "x.jsonl").read_text()
    monkeypatch.setattr(flat_module, "CHUNK", 1)
    broken = Flat(items=flat.items, systems=flat.systems[:2], scores=flat.scores, signatures=flat.signatures)
    with pytest.raises(ValueError, match=r"than rows|shorter than"):
        write_flat(tmp_path / "x.jsonl", broken)
    assert (tmp_path / "x.jsonl").read_text() == before
    assert os.listdir(tmp_path) == ["x.jsonl"]


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_a_large_run_is_exported_as_a_small_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    """Of a large run, the part that was read last is in memory: no part is read for each row."""
    rows = [{"item": str(n), "system": "a", "output": "a b" * (n % 3), "references": ["a b c"]} for n in range(60)]
    metrist.score(rows[:40], ["bleu", "chrf", "length"], out=tmp_path / "run", shard_size=7)
    metrist.score(rows, ["bleu", "chrf", "length"], out=tmp_path / "run", shard_size=7)
    metrist.export(tmp_path / "run", tmp_path / f"small.{suffix}")
    monkeypatch.setattr(stored_run, "KEPT_BYTES", 1)
    reads = list[str]()
    read = stored_run.StoredRun.read_part

    def count(self: Any, folder: str, *arguments: Any, **options: Any) -> Any:
        reads.append(folder)
        return read(self, folder, *arguments, **options)

    monkeypatch.setattr(stored_run.StoredRun, "read_part", count)
    metrist.export(tmp_path / "run", tmp_path / f"large.{suffix}")
    assert (tmp_path / f"large.{suffix}").read_bytes() == (tmp_path / f"small.{suffix}").read_bytes()
    assert len(reads) < 60


def test_statistics_of_a_run_folder_are_an_array(tmp_path: Path) -> None:
    rows = [{"item": str(n), "system": "a", "output": "a b" * n, "references": ["a b c"]} for n in range(1, 4)]
    results = metrist.score(rows, ["bleu", "length"], out=tmp_path / "run")
    in_memory = metrist.score(rows, ["bleu", "length"])
    for label in ("bleu", "length"):
        stats = results.scores[label].stats
        assert isinstance(stats, np.ndarray)
        np.testing.assert_array_equal(stats, in_memory.scores[label].stats)


@pytest.mark.parametrize("name", ["r.jsonl", "r.csv", "r.parquet", "r.jsonl.gz"])
def test_only_files_of_results_are_replaced(name: str, tmp_path: Path) -> None:
    path, rows = tmp_path / name, [{"item": "1", "output": "a", "references": ["a"]}]
    path.touch()  # As mktemp makes it.
    for metric in ("exact", "chrf"):
        metrist.score(rows, [metric], out=path)
    metrist.score(rows, ["exact"], out=tmp_path / "run")
    metrist.export(tmp_path / "run", path)
    before = path.read_bytes()
    assert [row["metric"] for _, row in read_rows(path)] == ["exact"]
    for content in (b'{"item": "1", "output": "a"}\n', b"item,output\n1,a\n", b"# Notes\n", b"\x00\xff"):
        path.write_bytes(content)
        for write in (
            lambda: metrist.score(rows, ["exact"], out=path),
            lambda: metrist.export(tmp_path / "run", path),
        ):
            with raises_code(RunError, "cannot_write", path):
                write()
        assert path.read_bytes() == content
    path.unlink()
    metrist.export(tmp_path / "run", path)
    assert path.read_bytes() == before


def test_preferences_replace_preferences(tmp_path: Path) -> None:
    rows = [{"item": "1", "system": system, "output": system, "references": ["a"]} for system in "ab"]
    for _ in range(2):
        metrist.prefer(rows, ["exact"], out=tmp_path / "p.jsonl")
    (tmp_path / "p.jsonl").write_text('{"item": "1"}\n')
    with raises_code(RunError, "cannot_write", "p.jsonl"):
        metrist.prefer(rows, ["exact"], out=tmp_path / "p.jsonl")
