"""Inputs become tables: nothing that the reader accepts is lost or changed on the way, and nothing is there twice."""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import metrist
from metrist import Record, open_run, read_records
from metrist.records import RecordColumns, hash_units
from metrist.run import load, read_inputs, score
from metrist.run.results import Results
from metrist.run.tables import read_records_table, records_table
from run_contents import write_rows

METRICS = ["chrf", "bleu", "length(unit='characters')", "exact"]
LONE = "a\ud800b \udcff"
TEXTS = [
    "",
    " ",
    "\0",
    "a\0b",
    LONE,
    "\\ud800",
    "2024-05-01",
    "2024-05-01T10:00:00Z",
    "null",
    "NaN",
    "true",
    "1e400",
    "\u2028\u2029\x0b\x85",
    "\r\n\t",
    "ﬁ ﬀ Å A\u030a",
    "👩‍👩‍👧‍👦 🏳️‍🌈",
    "\u202eabc",
    "\"quoted\", 'and' {braces}",
    "x" * 3_000_000,
]
#: Values of columns that metrist does not know.
VALUES: list[Any] = [
    None,
    "",
    "text",
    LONE,
    "2024-05-01",
    0,
    -0.0,
    10**30,
    1.5,
    float("nan"),
    float("inf"),
    True,
    [],
    {},
    [1, "a", None, [2.5, {"b": [LONE]}]],
    {"a": {"b": None}, "": [], "ü\ud800": 1},
]


def write_corpus(path: Path) -> None:
    rows: list[dict[str, Any]] = []
    for n, text in enumerate(TEXTS):
        rows.append({"item": f"text {n}", "system": "s", "output": text, "references": [text, "a cat"], "source": text})
        rows.append({"item": f"none {n}", "system": "s", "output": "a cat", "references": ["", text]})
    for n, name in enumerate([*TEXTS[1:-1], "x" * 5000]):
        rows.append({"item": name, "system": "s", "output": f"a cat {n}", "references": ["a cat"]})
        rows.append({"item": "one", "system": name, "output": f"a dog {n}", "references": ["a cat"]})
    for n, value in enumerate(VALUES):
        rows.append({"item": f"value {n}", "system": "s", "output": "a cat", "references": ["cat"], "mixed": value})
        rows.append({"item": f"name {n}", "system": "s", "output": "a cat", "references": ["cat"], TEXTS[n]: value})
    for n, field in enumerate(("source", "instruction", "task", "language")):
        for m, value in enumerate(("", "ü", LONE, None)):
            names = {"item": f"field {n}", "system": str(m), "output": "a cat", "references": ["cat"]}
            rows.append({**names, field: value})
    rows.append({"item": "rated", "system": "s", "output": "a cat", "references": ["cat"], "ratings": {LONE: 1}})
    write_rows(path, rows)


def describe(record: Record) -> str:
    """A record as a text; NaN is not equal to itself."""
    return repr((*(getattr(record, name) for name in Record.__slots__[:-1]), sorted(record.extra.items())))


def check_equal(one: Results, other: Results) -> None:
    assert list(one.items) == list(other.items)
    assert list(one.systems) == list(other.systems)
    for label, scores in one.scores.items():
        assert scores.values.tobytes() == other.scores[label].values.tobytes()
        assert np.asarray(scores.stats).tobytes() == np.asarray(other.scores[label].stats).tobytes()
        assert dict(scores.failures) == dict(other.scores[label].failures)
        for name, values in scores.parts.items():
            assert values.tobytes() == other.scores[label].parts[name].tobytes()


@pytest.mark.parametrize("texts", [True, False])
def test_whatever_a_text_or_a_column_is_it_comes_back_and_scores_the_same(tmp_path: Path, texts: bool) -> None:
    path, run = tmp_path / "in.jsonl", tmp_path / "run"
    write_corpus(path)
    expected = score(path, METRICS, executor="serial")
    check_equal(score(path, METRICS, out=run, executor="serial", texts=texts), expected)
    check_equal(load(run), expected)
    assert list(map(describe, read_inputs(run))) == list(map(describe, read_records(path)))
    # A metric that is added later reads the stored texts.
    check_equal(score(path, ["rougeL"], out=run, executor="serial"), score(path, ["rougeL"], executor="serial"))
    assert open_run(run).records(["item"]).num_rows == len(expected)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".json", ".parquet", ".jsonl.gz"])
def test_every_format_becomes_the_same_tables(tmp_path: Path, suffix: str) -> None:
    import pandas

    rows = [
        {"item": str(n), "system": s, "output": text, "reference": "a cat", "note": text, "date": "2024-05-01"}
        for n, text in enumerate(("a cat", "2024-05-01", "1", "NaN", "ü 👩‍👩‍👧", 'a,b\n"c"'))
        for s in "ab"
    ]
    frame, path = pandas.DataFrame(rows), tmp_path / f"in{suffix}"
    if suffix in (".csv", ".tsv"):
        frame.to_csv(path, index=False, sep="," if suffix == ".csv" else "\t")
    elif suffix == ".parquet":
        frame.to_parquet(path)
    elif suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        frame.to_json(path, orient="records", lines=True)
    results = score(path, ["chrf"], out=tmp_path / "run", executor="serial")
    check_equal(results, score(path, ["chrf"], executor="serial"))
    assert list(map(describe, read_inputs(tmp_path / "run"))) == list(map(describe, read_records(path)))


TEXT = st.text(st.characters(codec=None), max_size=8)
RECORDS = st.builds(
    Record,
    item=TEXT,
    system=TEXT,
    output=TEXT,
    source=TEXT | st.none(),
    references=st.lists(TEXT, max_size=3).map(tuple),
    instruction=TEXT | st.none(),
    task=TEXT | st.none(),
    language=TEXT | st.none(),
    extra=st.dictionaries(
        TEXT,
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
            max_leaves=6,
        ),
        max_size=3,
    ),
)


@given(st.lists(RECORDS, min_size=1, max_size=5))
def test_any_records_come_back_from_a_part(records: list[Record]) -> None:
    columns, file = RecordColumns.of(records), io.BytesIO()
    pq.write_table(records_table(columns, hash_units(records), 0, range(len(records))), file)
    assert list(read_records_table(pq.read_table(file))) == records


# Nothing twice


ROWS: list[dict[str, Any]] = [
    {"item": str(n), "system": s, "output": f"{s} {n}", "references": [f"a {n}"], "ratings": {"good": n}, "rater": "r"}
    for n in range(3)
    for s in "ab"
]


@pytest.mark.parametrize("together", [True, False])
def test_records_that_inputs_share_are_scored_once_and_never_multiply(tmp_path: Path, together: bool) -> None:
    """The same record in two inputs, twice in one, and in memory."""
    first = write_rows(tmp_path / "first.jsonl", [*ROWS[:4], ROWS[0]])
    second = write_rows(tmp_path / "second.jsonl", [*ROWS[2:], ROWS[2]])
    run = tmp_path / "run"
    if together:
        score([first, second], ["chrf"], out=run, executor="serial")
    else:
        score(first, ["chrf"], out=run, executor="serial")
        score(second, ["chrf"], out=run, executor="serial")
    score(ROWS[1:3], ["chrf"], out=run, executor="serial")
    # Both inputs again for another metric: from the stored records.
    seen = Counter[str]()

    class Counting(metrist.Metric):
        def score_record(self, record: Record) -> float:
            seen[record.output] += 1
            return 1.0

    score([first, second], [Counting()], out=run, executor="serial")
    assert seen == Counter(row["output"] for row in ROWS)
    expected = score(ROWS, ["chrf"], executor="serial")
    loaded, opened = load(run), open_run(run)
    assert list(zip(loaded.items, loaded.systems, strict=True)) == [(row["item"], row["system"]) for row in ROWS]
    assert loaded.scores["chrf"].values.tolist() == expected.scores["chrf"].values.tolist()
    assert opened.wide().num_rows == opened.scores(["chrf"]).num_rows == len(ROWS)
    assert [record.output for record in read_inputs(run)] == [row["output"] for row in ROWS]
    joined = opened.query("SELECT count(*) AS n FROM records JOIN scores USING (record) WHERE metric = 'chrf'")
    assert joined.to_pylist() == [{"n": len(ROWS)}]
    rated = {(rating.item, rating.system): rating.value for row in read_inputs(run).entries() for rating in row.ratings}
    assert rated == {(row["item"], row["system"]): row["ratings"]["good"] for row in ROWS}


def test_the_table_of_records_has_where_each_came_from(tmp_path: Path) -> None:
    first = write_rows(tmp_path / "first.jsonl", ROWS[:2])
    second = write_rows(tmp_path / "second.jsonl", ROWS[2:])
    score([first, second], ["length"], out=tmp_path / "run")
    table = open_run(tmp_path / "run").records(["input", "row", "item", "system"])
    assert table.to_pylist() == [
        {"input": n > 1, "row": (n if n < 2 else n - 2) + 1, "item": row["item"], "system": row["system"]}
        for n, row in enumerate(ROWS)
    ]


# What people said


def read_said(run: Path) -> dict[str, list[dict[str, Any]]]:
    opened = open_run(run)
    tables = {"ratings": opened.ratings(), "preferences": opened.preferences(), "errors": opened.errors()}
    return {name: table.to_pylist() for name, table in tables.items()}


ERROR = {"text": "cat", "aspect": "style", "severity": "minor", "penalty": 1, "explanation": "No cats."}
JUDGED: list[dict[str, Any]] = [
    {"item": "1", "system": "a", "output": "a cat", "ratings": {"good": [1, 2]}, "raters": ["ann", "bob"]},
    {"item": "1", "system": "b", "output": "a dog", "errors": [ERROR], "rater": "ann"},
    {"item": "1", "systems": ["a", "b"], "ratings": {"better": "first"}, "rater": "ann"},
    {"item": "1", "system": "a", "scores": {"other": 0.5}},
]


@pytest.mark.parametrize("from_file", [True, False])
def test_judgments_are_in_the_tables(tmp_path: Path, from_file: bool) -> None:
    run, path = tmp_path / "run", tmp_path / "in.jsonl"

    def add(rows: list[dict[str, Any]]) -> Results:
        return score(write_rows(path, rows) if from_file else rows, ["length"], out=run, executor="serial")

    add(JUDGED)
    said = read_said(run)
    assert [(row["system"], row["aspect"], row["rater"], row["value"]) for row in said["ratings"]] == [
        ("a", "good", "ann", 1.0),
        ("a", "good", "bob", 2.0),
        ("b", "errors", "ann", -1.0),
    ]
    (error,) = said["errors"]
    assert (error["item"], error["system"], error["text"], error["explanation"]) == ("1", "b", "cat", "No cats.")
    (preference,) = said["preferences"]
    assert (preference["first"], preference["second"], preference["choice"]) == ("a", "b", "first")
    assert add(JUDGED).notes == ()
    assert read_said(run) == said
    stored = list(read_inputs(run).entries())
    assert [(s.metric, s.value) for row in stored for s in row.scores] == [("other", 0.5)]


@pytest.mark.parametrize("from_file", [True, False])
@pytest.mark.parametrize("edits_a_text", [False, True])
@pytest.mark.parametrize(
    ("row", "change", "table", "column", "values"),
    [
        (0, {"ratings": {"good": [1, 3]}}, "ratings", "value", ([-1.0, 1.0, 2.0], [-1.0, 1.0, 3.0])),
        (1, {"errors": [{**ERROR, "severity": "major"}]}, "errors", "severity", (["minor"], ["major"])),
        (2, {"ratings": {"better": "second"}}, "preferences", "choice", (["first"], ["second"])),
    ],
)
def test_a_changed_judgment_replaces_the_earlier_one_with_a_note(
    tmp_path: Path,
    row: int,
    change: dict[str, Any],
    table: str,
    column: str,
    values: tuple[list[Any], list[Any]],
    edits_a_text: bool,
    from_file: bool,
) -> None:
    unrated = {"item": "2", "system": "a", "output": "two cats"}

    def add(rows: list[dict[str, Any]]) -> tuple[tuple[str, ...], dict[str, list[Any]]]:
        source = write_rows(tmp_path / "in.jsonl", rows) if from_file else rows
        notes = score(source, ["length"], out=tmp_path / "run", executor="serial").notes
        found = read_said(tmp_path / "run")
        assert sorted(value[column] for value in found[table]) == values[0 if rows[row] == JUDGED[row] else 1]
        return notes, {name: listed for name, listed in found.items() if name != table}

    _, before = add([*JUDGED, unrated])
    parts = sorted((tmp_path / "run/scores").rglob("*.parquet"))
    rows = [*JUDGED, {**unrated, "output": "edited"} if edits_a_text else unrated]
    rows[row] = {**rows[row], **change}
    notes, after = add(rows)
    assert [note for note in notes if "ratings, preferences and errors replace those read before" in note]
    assert len(notes) == 1 + edits_a_text
    assert after == before
    assert add(rows) == ((), before)
    assert edits_a_text or sorted((tmp_path / "run/scores").rglob("*.parquet")) == parts


def test_rows_that_are_added_with_their_ratings_replace_none(tmp_path: Path) -> None:
    rows = [{"item": str(n), "system": "a", "output": f"a cat {n}", "ratings": {"good": n}} for n in range(4)]
    for kept in (rows[:2], rows[:3], rows[1:]):
        notes = score(write_rows(tmp_path / "in.jsonl", kept), ["length"], out=tmp_path / "run").notes
        assert not any("replace those read before" in note for note in notes)
    assert [row["value"] for row in read_said(tmp_path / "run")["ratings"]] == [1.0, 2.0, 3.0]


def test_ratings_of_a_text_in_memory_that_changed_are_dropped(tmp_path: Path) -> None:
    rows = [{"item": str(n), "system": "a", "output": f"a cat {n}", "ratings": {"good": n}} for n in range(2)]
    score(rows, ["length"], out=tmp_path / "run")
    score([{"item": "0", "system": "a", "output": "another"}], ["length"], out=tmp_path / "run")
    assert [(row["item"], row["value"]) for row in read_said(tmp_path / "run")["ratings"]] == [("1", 1.0)]


def test_a_file_of_ratings_alone_is_an_input(tmp_path: Path) -> None:
    outputs = write_rows(tmp_path / "outputs.jsonl", [{"item": "1", "system": "a", "output": "a cat"}])
    ratings = write_rows(tmp_path / "ratings.jsonl", [{"item": "1", "system": "a", "ratings": {"good": 5}}])
    score([outputs, ratings], ["length"], out=tmp_path / "run")
    assert open_run(tmp_path / "run").ratings()["value"].to_pylist() == [5.0]
    entries = read_inputs(tmp_path / "run").entries()
    assert [rating.value for entry in entries for rating in entry.ratings] == [5.0]


def test_outputs_whose_names_arrow_cannot_hold_have_their_judgments(tmp_path: Path) -> None:
    row = {"item": LONE, "system": LONE, "output": "a cat", "ratings": {"good": 1}, "rater": "ann"}
    path = write_rows(tmp_path / "in.jsonl", [row, {**row, "item": "2", "ratings": {}, "errors": [ERROR]}])
    score(path, ["length"], out=tmp_path / "run")

    def judgments(reader: Any) -> list[Any]:
        return [judgment for row in reader.entries() for judgment in (*row.ratings, *row.errors)]

    assert judgments(read_inputs(tmp_path / "run")) == judgments(read_records(path))
    assert score(path, ["length"], out=tmp_path / "run").notes == ()


@pytest.mark.parametrize("rows", [JUDGED, ROWS])
def test_the_rows_of_a_run_are_those_of_its_file(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    path = write_rows(tmp_path / "in.jsonl", rows)
    score(path, ["length"], out=tmp_path / "run")

    def collect(reader: Any) -> list[tuple[Any, ...]]:
        fields = ("location", "keys", "records", "ratings", "preferences", "errors", "scores", "choices", "weight")
        return [tuple(getattr(row, name) for name in fields) for row in reader.entries()]

    assert sorted(collect(read_inputs(tmp_path / "run")), key=lambda row: row[0].line) == collect(read_records(path))


def test_parts_hold_declared_columns_whatever_is_in_them(tmp_path: Path) -> None:
    """pandas, polars and DuckDB read a folder of parts, which must have one schema."""
    import polars

    extras: list[dict[str, Any]] = [{"extra": "2024-05-01"}, {"extra": 5}, {"extra": {"a": 1}}, {}]
    for n, row in enumerate(extras):
        rows = [{"item": "1", "system": str(n), "output": "a cat", "references": ["a cat"], **row}]
        score(rows, ["chrf", "length", "bleu"], out=tmp_path / "run")
    for table, size in (("records", 4), ("scores", 12)):
        schemas = {pq.read_schema(path).remove_metadata() for path in (tmp_path / "run" / table).rglob("*.parquet")}
        assert len(schemas) == 1
        assert not any(pa.types.is_timestamp(field.type) for schema in schemas for field in schema)
        assert pq.read_table(tmp_path / "run" / table).num_rows == size
        assert len(polars.read_parquet(tmp_path / "run" / table / "**/*.parquet")) == size


def test_the_folder_of_a_table_holds_nothing_but_its_parts(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "in.jsonl", JUDGED)
    score(path, ["length"], out=tmp_path / "run")
    metrist.prefer(path, ["by_score(metric=length, better='higher')"], out=tmp_path / "run")
    for table in ("records", "ratings", "preferences", "errors", "given", "scores", "judgments"):
        assert pq.read_table(tmp_path / "run" / table).num_rows, table
