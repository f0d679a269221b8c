"""`metrist build heap`, on made-up files."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from metrist import criteria
from metrist.cli.build import register
from metrist.data.heap import read_heap_pairs
from metrist.errors import RunError, SpecError


@pytest.fixture
def build() -> typer.Typer:
    app = typer.Typer(pretty_exceptions_enable=False)
    register(app)
    app.command("other")(lambda: None)  # One command alone would go without its name.
    return app


@pytest.fixture
def endings(tmp_path: Path) -> Path:
    rows = [{"ind": n, "ctx": f"Text {n}.", "endings": ["a", "b", "c", "d"], "label": n % 4} for n in range(10)]
    (tmp_path / "hellaswag_val.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "hellaswag_val.jsonl"


def test_pairs_are_written_with_the_chosen_wording_and_split(build: typer.Typer, endings: Path, tmp_path: Path) -> None:
    out = tmp_path / "pairs.jsonl.xz"
    asked = ["heap", "hellaswag", str(endings), "-o", str(out), "--wording", "1", "--split", "positional"]
    done = CliRunner().invoke(build, asked, catch_exceptions=False)
    assert (done.exit_code, done.stderr) == (0, f"metrist: wrote 30 pairs to {out}: HS 30\n")
    result = read_heap_pairs(out, 1)
    assert [pair.split for pair in result] == ["train"] * 24 + ["dev"] * 3 + ["test"] * 3
    assert json.loads(_first_line(out))["instruction"] == criteria.find("HS").instructions[1]


def test_an_unknown_data_set_is_told(build: typer.Typer, endings: Path, tmp_path: Path) -> None:
    asked = ["heap", "HellaSwagg", str(endings), "-o", str(tmp_path / "pairs.jsonl")]
    with pytest.raises(
        SpecError, match=r"no data set or criterion of HEAP named 'HellaSwagg'; did you mean 'HellaSwag'"
    ):
        CliRunner().invoke(build, asked, catch_exceptions=False)


def _first_line(path: Path) -> str:
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        return next(lines)


def test_the_data_set_is_not_written_over_and_pairs_get_a_name_that_can_be_read(
    build: typer.Typer, endings: Path
) -> None:
    before = endings.read_bytes()
    for out, fault, said in (
        (endings, RunError, "the data set is read from it"),
        ("x.csv", SpecError, "ends in .jsonl"),
    ):
        with pytest.raises(fault, match=said):
            CliRunner().invoke(build, ["heap", "hellaswag", str(endings), "-o", str(out)], catch_exceptions=False)
    assert endings.read_bytes() == before
