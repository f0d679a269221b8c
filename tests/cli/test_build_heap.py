"""`metrist build heap`, on made-up files."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest

from metrist import criteria
from metrist.data.heap import read_heap_pairs


@pytest.fixture
def endings(tmp_path: Path) -> Path:
    rows = [{"ind": n, "ctx": f"Text {n}.", "endings": ["a", "b", "c", "d"], "label": n % 4} for n in range(10)]
    (tmp_path / "hellaswag_val.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "hellaswag_val.jsonl"


def test_pairs_are_written_with_the_chosen_wording_and_split(metrist, endings: Path, tmp_path: Path) -> None:
    out = tmp_path / "pairs.jsonl.xz"
    answer = metrist("build", "heap", "hellaswag", endings, "-o", out, "--wording", 1, "--split", "positional")
    assert (answer.code, answer.err) == (0, f"metrist: wrote 30 pairs to {out}: HS 30\n")
    assert [pair.split for pair in read_heap_pairs(out, 1)] == ["train"] * 24 + ["dev"] * 3 + ["test"] * 3
    with lzma.open(out, "rt", encoding="utf-8") as lines:
        first = json.loads(next(lines))
    assert first["instruction"] == criteria.find("HS").instructions[1]
