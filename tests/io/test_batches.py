"""Batches hold what iterating and `entries()` yield, whatever the file looks like."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from error_codes import raises_code
from metrist.errors import InputError
from metrist.io import batches as batches_module
from metrist.io import read_records
from metrist.io.batches import Batch
from metrist.io.hashes import hash_records
from metrist.io.json_rows import PLAIN_NAMES, _parse_line
from metrist.io.reader import Reader
from metrist.io.row_model import Location, ParsedRow
from metrist.ratings import Rating
from metrist.records import Record, RecordColumns, hash_units

ROW = {"item": "1", "system": "a", "output": "x", "source": "s", "references": ["r"]}
GOOD = b'{"item": "1", "output": "one"}\n'
MORE = b'{"item": "2", "output": "two"}\n'


def lines(*rows: Any) -> bytes:
    return b"".join(row if isinstance(row, bytes) else json.dumps(row).encode() + b"\n" for row in rows)


NUMBERED = [{**ROW, "item": str(n)} for n in range(20)]
FILES: dict[str, bytes] = {
    "dates.jsonl": lines({**ROW, "output": "2024-05-01", "item": "2024-05-01T00:00:00Z"}, {**ROW, "source": "1e5"}),
    "surrogates.jsonl": lines(GOOD, {**ROW, "output": "\ud800"}, {**ROW, "item": "\udc00\ud800", "doc": "\udfff"}),
    "long lines.jsonl": lines(
        GOOD, {**ROW, "output": "wörd " * 600_000}, {**ROW, "item": "3", "source": "a" * 3_000_000}
    ),
    "mixed columns.jsonl": lines(GOOD, {**ROW, "item": "2", "doc": {"a": 1}}, MORE, {**ROW, "item": "4", "part": None}),
    "numbers.jsonl": lines(
        *({"item": n, "output": "x"} for n in (1, -0.0, 2.0, 2.5, 10**25, -7, 0)), b'{"item": -0, "output": "x"}\n'
    ),
    "numeric texts.jsonl": lines(GOOD, {"item": "2", "output": 7}, {"item": "3", "output": True, "source": 5}),
    "nulls.jsonl": lines({**dict.fromkeys(ROW), "output": "x", "item": 1}, {**ROW, "system": None, "references": None}),
    "null output.jsonl": lines(GOOD, {"item": "2", "output": None}),
    "same name twice.jsonl": lines(GOOD, b'{"item": "a", "item": "b", "output": "x", "output": "y"}\n'),
    "byte order mark.jsonl": b"\xef\xbb\xbf" + GOOD + MORE,
    "inner byte order mark.jsonl": GOOD + b"\xef\xbb\xbf" + MORE,
    "windows.jsonl": GOOD.replace(b"\n", b"\r\n") + b"\r\n \t\r\n" + MORE.replace(b"\n", b"\r\n"),
    "other spaces.jsonl": GOOD + b"\x0b" + MORE + b"\x0c\n\x1c\n",
    "no last newline.jsonl": GOOD + MORE.rstrip(),
    "nan.jsonl": lines(GOOD, {**ROW, "ratings": {"f": float("nan")}}, {**ROW, "item": "3", "doc": float("inf")}),
    "nan item.jsonl": lines(GOOD, {**ROW, "item": float("nan")}),
    "huge numbers.jsonl": lines(GOOD, {**ROW, "doc": 10**400}, b'{"item": "3", "output": "x", "doc": 1e999}\n'),
    "huge digits.jsonl": lines(GOOD, b'{"item": ' + b"1" * 5000 + b', "output": "x"}\n'),
    "deep.jsonl": lines(GOOD, b'{"item": "2", "output": "x", "doc": ' + b"[" * 90 + b"]" * 90 + b"}\n"),
    "too deep.jsonl": lines(GOOD, b'{"item": "2", "output": "x", "doc": ' + b"[" * 120 + b"]" * 120 + b"}\n"),
    "far too deep.jsonl": lines(GOOD, b'{"item": "2", "output": ' + b"[" * 90_000 + b"]" * 90_000 + b"}\n"),
    "not objects.jsonl": GOOD + b'[1]\n"a"\n7\nnull\n' + MORE,
    "not json.jsonl": GOOD + b'{"item": "2", "output": "x"} {}\n{"item": "2",}\n{\n' + MORE,
    "control characters.jsonl": GOOD + b'{"item": "2", "output": "a\tb"}\n' + MORE,
    "not utf-8.jsonl": GOOD + b'{"item": "2", "output": "\xff"}\n{"item": "\xed\xa0\x80", "output": "x"}\n' + MORE,
    "repeated.jsonl": lines(*NUMBERED, *NUMBERED, ROW, {**ROW, "ratings": {"f": 1}}),
    "conflicts.jsonl": lines(
        *NUMBERED, {**ROW, "output": "y"}, b"oops\n", {**ROW, "item": "2", "source": "t"}, *NUMBERED
    ),
    "pairs.jsonl": lines(
        *(
            {"item": n, "systems": ["a", "b"], "outputs": ["x", f"y{n // 4}"], "ratings": {"f": 1}}
            for n in (1, 2, 1, 5)
        ),
        {"item": 1, "systems": ["c", "a"], "outputs": ["z", "other"]},
        {"item": 1, "system": "c", "output": "x"},
    ),
    "no items.jsonl": lines(*({"output": str(n)} for n in range(5)), {"item": 3, "output": "x"}, {"output": "y"}),
    "items missing.jsonl": lines(
        GOOD, {"output": "x"}, MORE, {"item": "", "output": "y"}, {"item": "5", "system": "", "output": ""}
    ),
    "references.jsonl": lines(
        {**ROW, "reference": "q"},
        {"item": 2, "output": "x", "reference": "q"},
        {"item": 3, "output": "x", "references": "q"},
        {"item": 4, "output": "x", "references": ["a", 1], "reference_2": "c", "reference_1": "b"},
        {"item": 5, "output": "x", "references": [], "reference": ["a", "b"]},
        {"item": 6, "output": "x", "references": [None]},
    ),
    "later alias.jsonl": lines(GOOD, MORE, {"item": "3", "prediction": "x"}, {**ROW, "item": "4", "target": "t"}),
    "common names.jsonl": lines(
        *({"id": n, "model": "m", "prediction": "x", "gold": ["g"], "doc": n} for n in range(5))
    ),
    "judgments.jsonl": lines(
        {**ROW, "ratings": {"f": 1, "g": None}},
        {**ROW, "item": "2", "ratings": {"f": [1, 2], "g": [None, 3]}, "raters": ["p", "q"]},
        {**ROW, "item": "2", "ratings": {"f": [1, 2], "g": [None, 3]}, "raters": ["p", "q"]},
        {**ROW, "item": "3", "ratings": {"f": 1}, "rater": "p"},
        {**ROW, "item": "3", "ratings": {"f": 1}, "rater": "p"},
        {**ROW, "item": "3", "ratings": {"f": 1}},
        {**ROW, "item": "4", "errors": [{"category": "c", "start": 0, "end": 1}], "rater": 7},
        {**ROW, "item": "5", "scores": {"bleu": 3}, "sampling_weight": 2},
        {**ROW, "item": "6", "ratings": {"f": "yes"}, "rater_notes": "n"},
        {**ROW, "item": "7", "ratings": {"f": True, "g": 2**70}},
        {**ROW, "item": "8", "rating:f": 3, "score:bleu": 4},
        {"item": "9", "system": "a", "ratings": {"f": 2}, "doc": "d"},
        {**ROW, "item": "10", "raters": ["p"]},
    ),
    "bad judgments.jsonl": lines(
        {**ROW, "ratings": {"f": "good"}},
        {**ROW, "item": "2", "ratings": {"f": [1, "x"]}},
        {**ROW, "item": "3", "ratings": {"f": 1}, "rater": ""},
        {**ROW, "item": "4", "ratings": [1]},
        {**ROW, "item": "5", "errors": [{"start": 0, "end": 99}]},
        {**ROW, "item": "6", "ratings": {"f": 10**400}},
        {**ROW, "item": "7", "ratings": {"f": 4}},
    ),
    "list.json": json.dumps([*NUMBERED, {**ROW, "output": "y"}, 7, {**ROW, "item": "x"}]).encode(),
    "table.csv": b'item,output,references,rating:f,doc\n1,x,"[""a""]",3,d\n2,,b,,\n1,x,"[""a""]",4,d\n1,y,a,4,d\n3,x\n',
    "table.tsv": b"id\tprediction\n1\tx\n2\ty\n1\tz\n",
    "packed.jsonl.gz": gzip.compress(lines(*NUMBERED)),
    "cut.jsonl.gz": gzip.compress(lines(*NUMBERED, {**ROW, "output": "y"}), 0)[:-400],
    "empty.jsonl": b"\n \n",
    "only bad.jsonl": b"oops\n[]\n",
    "only ratings.jsonl": lines({"item": 1, "system": "a", "ratings": {"f": 1}}),
}


def read(read_all: Callable[[], Iterable[Any]]) -> tuple[list[Any], str]:
    """What is yielded, and the error that ends it."""
    found: list[Any] = []
    try:
        for part in read_all():
            found.append(part)
    except InputError as error:
        return found, str(error)
    return found, ""


def without_texts(row: ParsedRow) -> ParsedRow:
    return replace(row, records=(), new=())


def list_judged(reader: Reader, batches: Iterable[Batch]) -> list[ParsedRow]:
    """The rows with judgments, all of them parsed."""
    judged = [(reader.sources[batch.source].name, row) for batch in batches for row in batch.judged]
    return [
        row
        if isinstance(row, ParsedRow)
        else ParsedRow(
            location=Location(name, row.line),
            keys=((row.item, row.system),),
            ratings=tuple(
                Rating(item=row.item, system=row.system, aspect=aspect, rater=None, value=value)
                for aspect, value in row.ratings.items()
            ),
        )
        for name, row in judged
    ]


def is_judged(row: ParsedRow) -> bool:
    parts = (row.ratings, row.scores, row.errors, row.preferences, row.choices, row.raters, row.columns)
    return any(parts) or row.weight is not None


def assert_alike(source: Any, size: int, **options: Any) -> list[Batch]:
    """Compare batches with the records and rows one by one."""
    one_by_one, batched = read_records(source, **options), read_records(source, **options)
    records, error = read(lambda: one_by_one)
    batches, batch_error = read(lambda: batched.batches(size))
    assert batch_error == error
    assert [record for batch in batches for record in batch.records] == records
    for batch in batches:
        assert len(batch.records) == len(batch.lines) == len(batch.hashes)
        assert (batch.hashes == hash_units(list(batch.records))).all()
    assert (batched.skipped.count, batched.readings) == (one_by_one.skipped.count, one_by_one.readings)
    # Which field differs is known where both records are in one block.
    assert [m.split(" with ")[0] for m in batched.skipped.messages] == [
        m.split(" with ")[0] for m in one_by_one.skipped.messages
    ]
    assert batched.skipped.messages[:1] == one_by_one.skipped.messages[:1]
    assert [r for r in batched.remarks if "left out" not in r] == one_by_one.remarks
    quiet = read(lambda: read_records(source, **options).batches(size, judgments=False))
    assert (sum(len(batch.records) for batch in quiet[0]), quiet[1]) == (len(records), error)
    assert not any(batch.judged for batch in quiet[0])

    strict = read_records(source, **options)
    entries, strict_error = read(strict.entries)
    if not any("left out" in remark for remark in batched.remarks) and strict_error == error:
        assert list_judged(batched, batches) == [without_texts(row) for row in entries if is_judged(row)]
        assert [record for row in entries for record in row.new] == records
        if len(strict.sources) == 1:
            assert [line for batch in batches for line in batch.lines] == [
                row.location.line for row in entries for _ in row.new
            ]
    return batches


@pytest.mark.parametrize("size", [1, 3, 8192])
@pytest.mark.parametrize("skip_bad", [False, True])
@pytest.mark.parametrize("name", FILES)
def test_batches_hold_what_the_rows_hold(name: str, skip_bad: bool, size: int, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(FILES[name])
    assert_alike(path, size, skip_bad=skip_bad)


@pytest.mark.parametrize("skip_bad", [False, True])
@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".jsonl")])
def test_lines_are_read_as_by_pythons_own_decoder(
    name: str, skip_bad: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / name
    path.write_bytes(FILES[name])
    fast = [read_records(path, skip_bad=skip_bad) for _ in range(2)]
    found = [read(lambda: fast[0]), read(fast[1].entries)]

    def refuse(_: bytes) -> Any:
        raise ValueError

    monkeypatch.setattr("metrist.io.json_rows._decode_plain", refuse)
    monkeypatch.setattr("metrist.io.json_rows._decode_any", refuse)
    slow = [read_records(path, skip_bad=skip_bad) for _ in range(2)]
    # A NaN differs from itself.
    assert repr(found) == repr([read(lambda: slow[0]), read(slow[1].entries)])
    assert [r.remarks for r in fast] == [r.remarks for r in slow]
    assert [r.skipped for r in fast] == [r.skipped for r in slow]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=[]), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)
NAMES = [*sorted(PLAIN_NAMES), "scores", "doc"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=60)
@given(st.lists(st.dictionaries(st.sampled_from(NAMES), JSON | st.sampled_from("abc")), max_size=6), st.booleans())
def test_any_json_is_read_as_by_pythons_own_decoder(tmp_path: Path, rows: list[dict[str, Any]], skip_bad: bool) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [ROW, *rows]))
    parsed = [(line, _parse_line(text, line)) for line, text in enumerate(path.read_bytes().splitlines(True), 1)]
    reader = read_records(path, skip_bad=skip_bad)
    source = replace(reader.sources[0], read=lambda: iter([(line, dict(row)) for line, row in parsed]))
    slow = replace(reader, sources=(source,))
    fast = read(lambda: reader), read(lambda: list_judged(reader, reader.batches()))
    assert repr(fast) == repr((read(lambda: slow), read(lambda: list_judged(slow, slow.batches()))))
    assert (reader.remarks, reader.skipped) == (slow.remarks, slow.skipped)


def test_several_files_are_several_batches(tmp_path: Path) -> None:
    for name in "ab":
        rows = [{"item": n, "output": f"{name}{n}", "source": f"{name}{n % 2}"} for n in range(5)]
        (tmp_path / f"{name}.jsonl").write_bytes(lines(*rows, {**ROW, "item": "x", "output": name}))
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for size in (2, 100):
        batches = assert_alike(paths, size, skip_bad=True)
        assert [(batch.source, len(batch.records)) for batch in batches] == (
            [(0, 2), (0, 2), (0, 2), (1, 2), (1, 2), (1, 1)] if size == 2 else [(0, 6), (1, 5)]
        )[: len(batches)]
    reader = read_records(paths)
    with raises_code(InputError, "unreadable", "b.jsonl:6", "a.jsonl:6", "'output'"):
        list(reader.batches())


def test_rows_in_memory_frames_and_parquet_are_read_alike(tmp_path: Path) -> None:
    rows = [{"item": str(n % 7), "system": "s", "output": f"o{n % 7}", "rating:f": float(n)} for n in range(20)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    records = [Record(item="a", system="s", output="x"), Record(item="b", system="s", output="y")]
    for source in (rows, [*records, records[0], rows[0]], records, pd.DataFrame(rows), tmp_path / "a.parquet"):
        for size in (1, 4, 100):
            assert_alike(source, size)
    assert sum(len(batch.records) for batch in read_records(iter(rows)).batches()) == 7


@pytest.mark.parametrize(
    "options",
    [{"fields": {"output": "text"}}, {"item_key": "doc+item"}, {"system": "s"}, {"fields": {"doc": ""}}],
    ids=str,
)
def test_options_hold_for_batches(options: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines(*({"item": n, "doc": f"d|{n}", "text": "t", "output": "o"} for n in range(9))))
    assert_alike(path, 4, **options)


def test_ratings_of_one_of_several_outputs_are_left_out_with_a_remark() -> None:
    rows = [{"id": n, "v1_output": "a", "v2_output": "b", "rating:f": 3} for n in range(3)]
    reader = read_records(rows, outputs="*_output")
    (batch,) = reader.batches()
    assert (len(batch.records), len(batch.judged)) == (6, 0)
    assert any("judgments of 3 rows are left out; the first: 'rating:f'" in remark for remark in reader.remarks)


def test_judgments_that_cannot_be_read_are_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(FILES["bad judgments.jsonl"])
    reader = read_records(path)
    (batch,) = reader.batches()
    assert len(batch.records) == 7
    assert [row.ratings[0].value for row in list_judged(reader, [batch])] == [4]
    (remark,) = [remark for remark in reader.remarks if "left out" in remark]
    assert remark.startswith(f"the judgments of 6 rows are left out; the first: {path}:1: the rating 'f' must be")
    with raises_code(InputError, "invalid_row", "'f'"):
        list(reader.entries())


def test_a_batch_is_bounded_by_its_characters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches_module, "BATCH_CHARACTERS", 1000)
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines(*({"item": n, "output": "x" * 300} for n in range(10))))
    assert [len(batch.records) for batch in read_records(path).batches()] == [4, 4, 2]


def test_what_comes_before_an_error_is_yielded_first(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines(*NUMBERED, b"oops\n", *NUMBERED))
    batches = read_records(path).batches()
    assert len(next(batches).records) == 20
    with raises_code(InputError, "invalid_row", "a.jsonl:21"):
        next(batches)


TEXTS = st.text(st.characters(exclude_categories=[])) | st.sampled_from(
    ['"\\/', "\n\r\t\f\b\v\0\x1f\x7f\x80ÿ", "\ud800\udc00", "\U0001f600\uffff", "2024-05-01", ""]
)
OPTIONAL = st.none() | TEXTS
RECORDS = st.builds(
    Record,
    item=TEXTS,
    system=TEXTS,
    output=TEXTS,
    source=OPTIONAL,
    references=st.lists(TEXTS, max_size=3).map(tuple),
    instruction=OPTIONAL,
    task=OPTIONAL,
    language=OPTIONAL,
    extra=st.just({}) | st.dictionaries(TEXTS, st.integers() | TEXTS | st.none(), max_size=2),
)


@given(st.lists(RECORDS, max_size=5))
def test_hashes_of_columns_are_those_of_records(records: list[Record]) -> None:
    assert np.array_equal(hash_records(RecordColumns.of(records)), hash_units(records))
