"""Files of good and bad answers."""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from error_codes import raises_code
from metrist.data.pairs import GoodBad, check_pairs_path, read_good_bad, write_good_bad
from metrist.errors import InputError, SpecError

GOOD = [["source", "a text"], ["output", "good"]]
BAD = [["source", "a text"], ["output", "bad"]]


@pytest.mark.parametrize("name", ["pairs.jsonl", "pairs.jsonl.gz", "pairs.jsonl.xz", "pairs.jsonl.zst"])
def test_pairs_are_read_as_they_were_written(tmp_path: Path, name: str) -> None:
    plain = GoodBad(criterion="a", good=(("output", "é\ud800"),), bad=(("output", ""),))
    full = GoodBad(
        criterion="b",
        good=(("source", "x"), ("output", "y")),
        bad=(("source", "x"), ("output", "z")),
        instruction="Is it good?",
        item="7",
        split="dev",
        certainty=0.75,
        good_rating=4.5,
        bad_rating=-1.0,
        systems=("s", "t"),
    )
    write_good_bad(tmp_path / name, [plain, full, plain])
    assert read_good_bad(tmp_path / name) == [plain, full, plain]


def test_a_written_line_has_the_form_of_the_published_pairs(tmp_path: Path) -> None:
    pair = GoodBad(criterion="c", good=(("o", "x"),), bad=(("o", "y"),), split="test", good_rating=3.0, bad_rating=1.5)
    write_good_bad(tmp_path / "p.jsonl", [pair, pair])
    lines = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert [line["pair"] for line in lines] == [0, 1]
    assert list(lines[0]) == ["task", "pair", "split", "good", "bad", "good_rank", "bad_rank"]
    assert (lines[0]["good"], lines[0]["good_rank"], lines[0]["bad_rank"]) == ([["o", "x"]], 3, 1.5)


def test_the_published_pairs_come_back_byte_for_byte(
    data: Callable[[str], Path], published_pairs: list[GoodBad], tmp_path: Path
) -> None:
    write_good_bad(tmp_path / "again.jsonl", published_pairs)
    assert (tmp_path / "again.jsonl").read_bytes() == lzma.decompress(data("heap-pairs").read_bytes())


@pytest.mark.parametrize(
    ("row", "values"),
    [
        ({"good": GOOD, "bad": BAD}, (":1", "'task'", "'good'", "'bad'")),
        ({"task": "c", "good": GOOD}, (":1", "'bad'")),
        ({"task": "", "good": GOOD, "bad": BAD}, (":1", "'task'")),
        ({"task": "c", "good": "x", "bad": BAD}, (":1", "'good'")),
        ({"task": "c", "good": [], "bad": BAD}, (":1", "'good'")),
        ({"task": "c", "good": [["a", "b", "c"]], "bad": BAD}, ("'good'",)),
        ({"task": "c", "good": GOOD, "bad": [["a", 1]]}, ("'bad'",)),
        ({"task": "c", "good": GOOD, "bad": BAD, "split": "valid"}, ("'split'", "got 'valid'")),
        ({"task": "c", "good": GOOD, "bad": BAD, "split": 1}, ("'split'",)),
        ({"task": "c", "good": GOOD, "bad": BAD, "certainty": 0.2}, ("'certainty'", "0.5")),
        ({"task": "c", "good": GOOD, "bad": BAD, "certainty": "NaN"}, ("'certainty'",)),
        ({"task": "c", "good": GOOD, "bad": BAD, "good_rank": []}, ("'good_rank'",)),
        ({"task": "c", "good": GOOD, "bad": BAD, "systems": ["a"]}, ("'systems'",)),
        ({"task": "c", "good": [], "bad": BAD, "split": "no", "certainty": 2, "systems": []}, ("'good'",)),
        ({"task": "c", "good": GOOD, "bad": BAD, "item": []}, ("'item'",)),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, row: dict[str, Any], values: tuple[str, ...]) -> None:
    (tmp_path / "p.jsonl").write_text(json.dumps(row) + "\n")
    with raises_code(InputError, "unreadable", *values):
        read_good_bad(tmp_path / "p.jsonl")


def test_files_without_pairs_are_refused(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text("\n")
    with raises_code(InputError, "no_data", "p.jsonl", "'task'", "'good'"):
        read_good_bad(tmp_path / "p.jsonl")
    (tmp_path / "p.jsonl").write_text("{\n")
    with raises_code(InputError, "unreadable", "p.jsonl:1"):
        read_good_bad(tmp_path / "p.jsonl")
    (tmp_path / "p.csv").write_text("task,good,bad\nc,x,y\n")
    with raises_code(InputError, "unreadable", "pairs"):
        read_good_bad(tmp_path / "p.csv")
    with raises_code(SpecError, "cannot_write", "jsonl"):
        check_pairs_path(tmp_path / "p.csv")
