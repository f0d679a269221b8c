"""Reading pairs of texts from files, and dividing them."""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from error_codes import raises_code
from metrist.errors import InputError
from metrist.train.text_pairs import load_text_pairs, read_pairs, sample_pairs, split_text_pairs


def write_rows(path: Path, *rows: Any) -> Path:
    text = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    packs: dict[str, Callable[[bytes], bytes]]
    packs = {".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstandard.compress}
    path.write_bytes(packs.get(path.suffix, bytes)(text.encode()))
    return path


def write_pairs(path: Path, *pairs: tuple[str, str]) -> Path:
    return write_rows(path, *({"source": a, "target": b} for a, b in pairs))


ROWS = [
    {"text": "a long text", "summary": "a text", "id": 4},
    {"source": "ein Satz", "target": "a sentence"},
    {"first": "one", "second": "eins"},
    {"item": "1", "system": "s", "output": "o", "source": "src", "references": ["r1", "r2"]},
    {"source": "src", "reference": "r3"},
]
PAIRS = (
    ("a long text", "a text"),
    ("ein Satz", "a sentence"),
    ("one", "eins"),
    ("eins", "one"),
    ("src", "r1"),
    ("src", "r2"),
    ("src", "r3"),
)


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz", ".zst"])
def test_all_forms_are_read_plain_and_compressed(tmp_path: Path, suffix: str) -> None:
    path = write_rows(tmp_path / f"pairs.jsonl{suffix}", *ROWS)
    file = read_pairs(path)
    assert file.pairs == PAIRS
    assert (file.rows, file.repeated, file.skipped.count) == (5, 0, 0)
    assert file.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_tables_are_read_too(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text('source,references\nsrc,"[""r1"", ""r2""]"\nother,r3\n')
    assert read_pairs(path).pairs == (("src", "r1"), ("src", "r2"), ("other", "r3"))


def test_duplicate_pairs_are_used_once_and_counted(tmp_path: Path) -> None:
    """As the records of many systems repeat an item's source and references."""
    row = {"source": "src", "references": ["r1", "r2"]}
    file = read_pairs(write_rows(tmp_path / "p.jsonl", row, row, {"first": "x", "second": "x"}))
    assert file.pairs == (("src", "r1"), ("src", "r2"), ("x", "x"))
    assert file.repeated == 3


@pytest.mark.parametrize(
    ("row", "values"),
    [
        ({"text": "a", "summary": " \n"}, ("p.jsonl:2", "'summary'")),
        ({"text": "", "summary": "a"}, ("p.jsonl:2", "'text'")),
        ({"first": "a", "second": ["b"]}, ("p.jsonl:2", "'second'", "got ['b']")),
        ({"source": "a", "target": None}, ("p.jsonl:2", "'target'", "got null")),
        ({"source": "a", "references": []}, ("p.jsonl:2", "'references'")),
        ({"source": "a", "references": ["b", ""]}, ("p.jsonl:2", "'references'")),
        ({"source": "a", "references": "b"}, ("p.jsonl:2", "'references'", "got 'b'")),
        (
            {"source": "a", "output": "b"},
            ("p.jsonl:2", "'text'", "'summary'", "'source'", "'output'"),
        ),
        ({}, ("p.jsonl:2",)),
        ("[1]", ("p.jsonl:2",)),
        ('{"text": ', ("p.jsonl:2",)),
    ],
)
def test_a_bad_row_is_named_or_skipped_and_counted(tmp_path: Path, row: Any, values: tuple[str, ...]) -> None:
    path = write_rows(tmp_path / "p.jsonl", ROWS[0], row, ROWS[1])
    with raises_code(InputError, "unreadable", *values):
        read_pairs(path)
    file = read_pairs(path, skip_bad=True)
    assert (file.pairs, file.skipped.count) == (PAIRS[:2], 1)


def test_a_file_without_pairs_is_refused(tmp_path: Path) -> None:
    with raises_code(InputError, "no_data", "p.jsonl", "'text'", "'summary'"):
        read_pairs(write_rows(tmp_path / "p.jsonl"))


def test_standard_input_is_refused() -> None:
    with raises_code(InputError, "invalid_value"):
        read_pairs("-")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    write_rows(tmp_path / "pairs.jsonl", ROWS[0])
    with raises_code(InputError, "missing_file", "pair.jsonl", "'pairs.jsonl'"):
        read_pairs(tmp_path / "pair.jsonl")


PAIR_LISTS = st.lists(st.tuples(st.integers(0, 30).map(str), st.integers(20, 60).map(str)), min_size=1, unique=True)


@given(PAIR_LISTS, st.floats(0.01, 0.99), st.integers(0, 5))
def test_no_text_is_on_both_sides_and_no_pair_is_lost(pairs: list, share: float, seed: int) -> None:
    try:
        train, dev = split_text_pairs(pairs, share, seed)
    except InputError:
        return
    assert sorted(train + dev) == sorted(pairs)
    assert not {text for pair in train for text in pair} & {text for pair in dev for text in pair}
    assert 1 <= len(dev) <= max(1, round(share * len(pairs)))
    assert (train, dev) == split_text_pairs(pairs, share, seed)


def test_the_share_is_reached_where_no_texts_are_shared() -> None:
    pairs = [(f"a{n}", f"b{n}") for n in range(1000)]
    train, dev = split_text_pairs(pairs, 0.05, 0)
    assert (len(train), len(dev)) == (950, 50)
    assert dev != split_text_pairs(pairs, 0.05, 1)[1]
    assert dev == sorted(dev, key=pairs.index)


def test_a_chain_of_shared_texts_is_a_group() -> None:
    chain = [("a", "b"), ("c", "b"), ("c", "d"), ("e", "d")]
    train, dev = split_text_pairs([*chain, ("x", "y")], 0.2, 0)
    assert (train, dev) == (chain, [("x", "y")])
    with raises_code(InputError, "too_little_data", "0.25 of 4 pairs", "has 4"):
        split_text_pairs(chain, 0.25, 0)


def test_shared_texts_are_counted_on_either_side(tmp_path: Path) -> None:
    train = write_pairs(tmp_path / "train.jsonl", ("a", "b"))
    dev = write_pairs(tmp_path / "dev.jsonl", ("b", "c"), ("d", "a"), ("e", "f"))
    assert load_text_pairs([train], str(dev), count=0, seed=0, skip_bad=False).shared == 2


def test_a_sample_is_drawn_by_its_seed_and_keeps_the_order() -> None:
    pairs = [(str(n), str(n)) for n in range(100)]
    drawn = sample_pairs(pairs, 10, 3)
    assert len(drawn) == 10
    assert drawn == sorted(drawn, key=pairs.index) == sample_pairs(pairs, 10, 3) != sample_pairs(pairs, 10, 4)
    assert sample_pairs(pairs, 0, 3) == sample_pairs(pairs, 100, 3) == pairs


def test_development_pairs_may_come_from_a_file_and_leaks_are_reported(tmp_path: Path) -> None:
    train = write_pairs(tmp_path / "train.jsonl", *((f"a{n}", f"b{n}") for n in range(10)), ("a0", "b0"))
    dev = write_pairs(tmp_path / "dev.jsonl", ("a1", "new"), ("x", "y"))
    data = load_text_pairs([train], str(dev), count=8, seed=0, skip_bad=False)
    assert len(data.train) == 8
    assert data.dev == (("a1", "new"), ("x", "y"))
    remarks = data.remarks()
    assert f"{train}: 1 duplicate pairs are ignored" in remarks
    assert "8 pairs are drawn at random, 2 are left out (`pairs=0` uses all)" in remarks
    leaks = int(("a1", "b1") in data.train)
    assert data.shared == leaks
    assert any("1 of 2 development pairs share a text" in remark for remark in remarks) == bool(leaks)


@pytest.mark.parametrize("share", ["0", "1", "1.5", "-0.1"])
def test_a_share_must_lie_between_0_and_1(tmp_path: Path, share: str) -> None:
    train = write_pairs(tmp_path / "train.jsonl", ("a", "b"), ("c", "d"))
    with raises_code(InputError, "invalid_value", "`dev`", f"got {share}"):
        load_text_pairs([train], share, count=0, seed=0, skip_bad=False)


def test_a_split_that_leaves_no_training_pairs_is_an_error(tmp_path: Path) -> None:
    train = write_pairs(tmp_path / "train.jsonl", ("a", "b"))
    with raises_code(InputError, "too_little_data"):
        load_text_pairs([train], "0.9", count=0, seed=0, skip_bad=False)


def test_skipped_rows_are_reported(tmp_path: Path) -> None:
    train = write_pairs(tmp_path / "train.jsonl", ("a", "b"), ("", "d"))
    remarks = load_text_pairs([train], None, count=0, seed=0, skip_bad=True).remarks()
    assert remarks == [
        f"skipped: {train}:2: 'source' is empty: training needs text on both sides",
        f"{train}: skipped 1 bad row in total",
    ]


# ParaBank2. The README of parabank-2.0.zip: each line is a dual-condition score, a reference, and one to five
# paraphrases, separated by tabs. The texts are made up.
PARABANK = [
    '0.05\tThe cat "sat.\tA cat was sitting.\tThe cat was seated.',
    "0.04\tHello.\tHi.\t",
    "0.03\tYes.\tIndeed.",
]


@pytest.mark.parametrize("name", ["parabank2.tsv", "parabank2.txt", "parabank2.tsv.gz", "parabank2.tsv.xz"])
def test_parabank2_gives_each_paraphrase_in_both_directions(tmp_path: Path, name: str) -> None:
    file = read_pairs(write_rows(tmp_path / name, *PARABANK))
    cat = 'The cat "sat.'
    assert file.pairs == (
        (cat, "A cat was sitting."),
        ("A cat was sitting.", cat),
        (cat, "The cat was seated."),
        ("The cat was seated.", cat),
        ("Hello.", "Hi."),
        ("Hi.", "Hello."),
        ("Yes.", "Indeed."),
        ("Indeed.", "Yes."),
    )
    assert (file.rows, file.not_drawn) == (3, 0)


def test_lines_of_parabank2_are_drawn_while_it_is_read(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "p.tsv", *(f"0.1\tReference r{n}\tParaphrase p{n}" for n in range(200)))
    files = [read_pairs(path, sample=20, seed=seed) for seed in range(30)]
    for file in files:
        numbers = [int(reference[11:]) for reference, _ in file.pairs[::2]]
        assert numbers == sorted(numbers)
        assert (len(set(numbers)), file.rows, file.not_drawn) == (20, 200, 180)
    assert len({file.pairs for file in files}) == len(files)
    assert read_pairs(path, sample=20, seed=3) == files[3]
    # Every line has the chance 0.1: 600 draws, of which each half of the file gets 300 with a deviation of 12.
    late = sum(int(reference[11:]) >= 100 for file in files for reference, _ in file.pairs[::2])
    assert 250 < late < 350
    data = load_text_pairs([path], "0.25", count=40, seed=0, skip_bad=False)
    assert (len(data.train), len(data.files[0].pairs)) == (40, 108)
    assert data.remarks()[0].endswith(
        "p.tsv: ParaBank2's raw file; 54 of 200 lines are drawn at random (`pairs=0` uses all)"
    )
    assert load_text_pairs([path], None, count=0, seed=0, skip_bad=False).files[0].not_drawn == 0


def test_a_bad_line_of_parabank2_is_named_and_may_be_skipped(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "p.tsv", *PARABANK, "0.1\tA reference alone")
    with raises_code(InputError, "unreadable", "p.tsv:4"):
        read_pairs(path)
    file = read_pairs(path, skip_bad=True)
    assert (len(file.pairs), file.skipped.count) == (8, 1)


def test_columns_of_other_names_are_read_as_fields(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "p.jsonl", {"article": "a long text", "tldr": "a text", "text": 3})
    assert read_pairs(path, fields={"text": "article", "summary": "tldr"}).pairs == (("a long text", "a text"),)
    named = write_rows(tmp_path / "q.jsonl", ROWS[0])
    with raises_code(InputError, "unknown_name", "'headline'"):
        read_pairs(named, fields={"target": "headline"})
