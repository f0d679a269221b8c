"""The tables of a run: their schemas, and how records, scores, judgments and ratings become rows of them.

Every schema is declared, never inferred: pyarrow and DuckDB silently lose fields of structs that differ from part to
part, and pyarrow reads "2024-05-01" as a time. Arrow holds only valid Unicode: where a text has a lone surrogate, its
column shows the escape and `original` has the row's texts as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from metrist.errors import RunError
from metrist.io.batches import Batch
from metrist.io.dedup import digest_source
from metrist.io.row_model import ParsedRow, RatedRow
from metrist.io.writer import encodable
from metrist.records import COLUMN_NAMES, CONTEXT_FIELDS, HASH_BYTES, Hashes, RecordColumns
from metrist.run.manifest import Part
from metrist.run.tasks import count_characters

HASH = pa.binary(HASH_BYTES)
TEXT = pa.string()
_PLACE = [("input", pa.int32()), ("row", pa.int64())]
RECORDS = pa.schema(
    [
        ("record", HASH),
        ("item", TEXT),
        ("system", TEXT),
        ("output", TEXT),
        ("source", TEXT),
        ("references", pa.list_(TEXT)),
        ("instruction", TEXT),
        ("task", TEXT),
        ("language", TEXT),
        ("extra", TEXT),
        ("source_digest", TEXT),
        *_PLACE,
        ("original", TEXT),
    ]
)
_ERROR = [
    *((name, TEXT) for name in ("aspect", "severity", "explanation", "revision", "text", "side", "rater")),
    ("penalty", pa.float64()),
    *((name, pa.int64()) for name in ("start", "end", "source_start", "source_end")),
]
ERRORS = pa.schema([("item", TEXT), ("system", TEXT), *_ERROR, *_PLACE])
RATINGS = pa.schema(
    [
        *((name, TEXT) for name in ("item", "system", "aspect", "rater")),
        ("value", pa.float64()),
        ("weight", pa.float64()),
        *_PLACE,
    ]
)
PREFERENCES = pa.schema(
    [
        *((name, TEXT) for name in ("item", "first", "second", "aspect", "rater", "choice")),
        ("weight", pa.float64()),
        *_PLACE,
    ]
)
#: Scores and choices by other metrics that the data contain, and columns of rows without a text.
GIVEN = pa.schema(
    [
        *((name, TEXT) for name in ("item", "system", "second", "metric", "choice", "answer", "columns")),
        ("value", pa.float64()),
        ("weight", pa.float64()),
        *_PLACE,
    ]
)
SCORES = pa.schema(
    [
        ("metric", TEXT),
        ("record", HASH),
        ("value", pa.float64()),
        ("parts", pa.map_(TEXT, pa.float64())),
        ("statistics", pa.list_(pa.float64())),
        ("failure", TEXT),
        ("failure_kind", TEXT),
        ("incomplete", pa.bool_()),
        ("errors", pa.list_(pa.struct(_ERROR))),
        ("explanation", TEXT),
        ("raw", TEXT),
        ("tokens", TEXT),
        ("usage", TEXT),
        ("original", TEXT),
    ]
)
JUDGMENTS = pa.schema(
    [
        ("comparator", TEXT),
        *((name, HASH) for name in ("pair", "first_record", "second_record")),
        *((name, TEXT) for name in ("item", "first", "second", "choice")),
        ("flipped", pa.bool_()),
        ("length_free", TEXT),
        ("shown", pa.list_(TEXT)),
        ("failure", TEXT),
        ("failure_kind", TEXT),
        ("incomplete", pa.bool_()),
        ("explanation", TEXT),
        ("raws", pa.list_(TEXT)),
        ("usage", TEXT),
        ("original", TEXT),
    ]
)
#: Columns that have a value in every row, whatever the table.
REQUIRED = frozenset({
    "record", "pair", "item", "system", "first", "source_digest", "comparator", "incomplete", "input",
})  # fmt: skip
#: Columns that can quote a text: a run without texts leaves them out, but for the original names of records.
QUOTING_COLUMNS = frozenset({
    "output", *CONTEXT_FIELDS, "references", "extra", "original", "columns", "explanation", "raw", "raws", "tokens",
    "errors", "text", "revision", "answer", "failure",
})  # fmt: skip


#: Each table's schema, and that of a run without texts.
_SCHEMAS = {
    name: (
        schema,
        pa.schema([f for f in schema if f.name not in QUOTING_COLUMNS or (name, f.name) == ("records", "original")]),
    )
    for name, schema in (
        ("records", RECORDS),
        ("ratings", RATINGS),
        ("errors", ERRORS),
        ("preferences", PREFERENCES),
        ("given", GIVEN),
        ("scores", SCORES),
        ("judgments", JUDGMENTS),
    )
}
#: Rows, and characters of texts, from which on records go into a part.
PART_ROWS = 1 << 16
_PART_TEXT = 1 << 26
#: Characters of an item from which on it is taken for a text rather than a name.
_LONGEST_NAME = 80


def has_schema(table: str, schema: pa.Schema) -> bool:
    """Whether a part has the columns of this table, all of them or those that quote no text."""
    return any(schema.equals(expected) for expected in _SCHEMAS[table])


def drop_texts(table: pa.Table) -> pa.Table:
    return table.drop_columns([name for name in table.column_names if name in QUOTING_COLUMNS])


def text_array(values: Sequence[str | None], escape: bool = True) -> pa.Array:
    try:
        return pa.array(values, TEXT)
    except UnicodeEncodeError:
        if not escape:
            raise
        return pa.array([value and encodable(value) for value in values], TEXT)


def list_array(values: Sequence[Sequence[str]], escape: bool = True) -> pa.Array:
    """A column of lists; one array of all texts is several times faster than lists of objects."""
    ends = np.cumsum([0, *map(len, values)], dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), text_array(list(chain.from_iterable(values)), escape))


def is_unicode(*texts: str | None) -> bool:
    try:
        for text in texts:
            if text:
                text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def make_hash_array(hashes: Hashes) -> pa.Array:
    return pa.FixedSizeBinaryArray.from_buffers(HASH, len(hashes), [None, pa.py_buffer(np.ascontiguousarray(hashes))])


def release_memory() -> None:
    """Return what reading has left behind to the operating system: some hundred megabytes after large parts."""
    pa.default_memory_pool().release_unused()
    pa.system_memory_pool().release_unused()


def read_hashes(column: pa.ChunkedArray | pa.Array) -> Hashes:
    """A column of hashes as rows of bytes."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    rows = [
        np.frombuffer(chunk.buffers()[1], np.uint8)[HASH_BYTES * chunk.offset :][: HASH_BYTES * len(chunk)]
        for chunk in chunks
        if len(chunk)
    ]
    return np.concatenate(rows).reshape(-1, HASH_BYTES) if rows else np.empty((0, HASH_BYTES), np.uint8)


def read_numbers(column: pa.ChunkedArray, dtype: type[np.generic] = np.float64) -> np.ndarray[Any, Any]:
    """A column of numbers as an array, NaN where there is none. `to_numpy` does the same and imports pandas, where that
    is installed, which takes longer than a command should."""
    blocks = [np.empty(0, dtype)]
    for chunk in column.chunks:
        validity, data = chunk.buffers()
        numbers = np.frombuffer(data, dtype)[chunk.offset :][: len(chunk)]
        if chunk.null_count:
            is_valid = np.unpackbits(np.frombuffer(validity, np.uint8), bitorder="little")[chunk.offset :]
            numbers = np.where(is_valid[: len(chunk)], numbers, np.nan)
        blocks.append(numbers)
    return np.concatenate(blocks)


def take(table: pa.Table, rows: np.ndarray[Any, Any]) -> pa.Table:
    """The rows of a table at these positions. `pa.array` makes the same of them and imports pandas."""
    positions = np.ascontiguousarray(rows, np.int64)
    return table.take(pa.Array.from_buffers(pa.int64(), len(positions), [None, pa.py_buffer(positions)]))


def repeat_value(value: str, size: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(size, np.int32)), [encodable(value)]).dictionary_decode()


def dump_json(value: Any) -> str:
    """JSON text; ASCII, which can hold every string. What JSON cannot hold becomes the text that is hashed."""
    return json.dumps(value, default=lambda other: dict(other) if isinstance(other, Mapping) else repr(other))


# ---- Records


def records_table(
    records: RecordColumns, hashes: Hashes, number: int, rows: Sequence[int], texts: bool = True
) -> pa.Table:
    """Records of the input with this number, at these rows of it."""
    digests: dict[str | None, str] = {}
    for source in records.sources:
        if source not in digests:
            digests[source] = digest_source(source)
    sources = pa.array([digests[source] for source in records.sources], TEXT)
    if not texts:
        _refuse_texts_as_items(records)
        count = len(records)
        context: dict[str, Any] = {COLUMN_NAMES[name]: [None] * count for name in CONTEXT_FIELDS}
        records = replace(records, outputs=[""] * count, references=[()] * count, extras=None, **context)
    try:
        columns = _record_columns(records, escape=False)
        columns["original"] = pa.nulls(len(records), TEXT)
    except UnicodeEncodeError:
        columns = _record_columns(records, escape=True)
        texts_of_rows = zip(*(getattr(records, field) for field in COLUMN_NAMES.values()), strict=True)
        originals = [
            None if is_unicode(*row, *references) else dump_json([*row, references])
            for row, references in zip(texts_of_rows, records.references, strict=True)
        ]
        columns["original"] = pa.array(originals, TEXT)
    columns["record"] = make_hash_array(hashes)
    columns["source_digest"] = sources
    columns["input"] = pa.array(np.full(len(records), number, np.int32))
    columns["row"] = pa.array(rows, pa.int64())
    table = pa.table([columns[name] for name in RECORDS.names], schema=RECORDS)
    return table if texts else table.select(_SCHEMAS["records"][1].names)


def _refuse_texts_as_items(records: RecordColumns) -> None:
    """Refuse items that are texts, such as sources: a run without texts would store them as names."""
    columns = [getattr(records, COLUMN_NAMES[name]) for name in ("output", *CONTEXT_FIELDS)]
    for item, *texts in zip(records.items, *columns, strict=True):
        is_text = any(text == item and len(text.split()) >= 2 for text in texts if text)
        quotes_text = any(text in item and len(text.split()) >= 4 for text in texts if text)
        if is_text or quotes_text or (len(item) > _LONGEST_NAME and item.count(" ") > 5):
            raise RunError(
                "items are named by their texts, which a run without texts does not store: name another column "
                "(`fields={'item': 'COLUMN'}`), or none for numbers",
                code="invalid_value",
            )


def _record_columns(records: RecordColumns, *, escape: bool) -> dict[str, pa.Array]:
    columns = {name: text_array(getattr(records, field), escape) for name, field in COLUMN_NAMES.items()}
    columns["references"] = list_array(records.references, escape)
    extras = [dump_json(dict(extra)) if extra else None for extra in records.extras or ()]
    columns["extra"] = pa.array(extras, TEXT) if extras else pa.nulls(len(records), TEXT)
    return columns


def read_records_table(table: pa.Table) -> RecordColumns:
    texts = {field: _read_texts(table[name]) for name, field in COLUMN_NAMES.items()}
    references: list[tuple[str, ...]] = []
    for chunk in table["references"].chunks:
        values = _read_texts(pa.chunked_array([chunk.flatten()]))
        ends = (chunk.offsets.to_numpy() - chunk.offsets[0].as_py()).tolist() if len(chunk) else [0]
        references += [tuple(values[start:end]) for start, end in pairwise(ends)]
    for row, text in list_present(table, "original"):
        *original, listed = json.loads(text)
        references[row] = tuple(listed)
        for column, value in zip(texts.values(), original, strict=True):
            column[row] = value
    extras = list_present(table, "extra")
    decoded: list[Mapping[str, Any]] = [{}] * (len(table) if extras else 0)
    for row, text in extras:
        decoded[row] = json.loads(text)
    return RecordColumns(**texts, references=references, extras=decoded or None)


def _read_texts(column: pa.ChunkedArray) -> list[Any]:
    if column.null_count == len(column):
        return [None] * len(column)
    # Several times faster than `to_pylist`.
    texts: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
    return texts


def list_present(table: pa.Table, name: str) -> list[tuple[int, Any]]:
    """The rows of a column that have a value; none where the table has no such column."""
    if name not in table.column_names or table[name].null_count == len(table):
        return []
    return [(row, value) for row, value in enumerate(table[name].to_pylist()) if value is not None]


# ---- People's judgments


def judged_tables(rows: Sequence[ParsedRow | RatedRow], number: int, texts: bool = True) -> dict[str, pa.Table]:
    """Ratings, preferences, errors and given scores of parsed rows, by the folder that holds them."""
    ratings: list[tuple[Any, ...]] = []
    found: dict[str, list[dict[str, Any]]] = {"preferences": [], "errors": [], "given": []}
    simple = [row for row in rows if isinstance(row, RatedRow)]
    for row in rows if len(simple) < len(rows) else ():
        if isinstance(row, RatedRow):
            line, item, system, values = row
            ratings += [(item, system, aspect, None, value, None, number, line) for aspect, value in values.items()]
            continue
        line, weight = row.location.line, row.weight
        place = {"input": number, "row": line, "weight": weight}
        ratings += [(r.item, r.system, r.aspect, r.rater, r.value, weight, number, line) for r in row.ratings]
        found["preferences"] += [{**split_fields(preference), **place} for preference in row.preferences]
        found["errors"] += [{**split_fields(e.error), "item": e.item, "system": e.system, **place} for e in row.errors]
        found["given"] += [{**split_fields(score), **place} for score in row.scores]
        found["given"] += [{**split_fields(choice), "system": choice.first, **place} for choice in row.choices]
        is_weighted = weight is not None and len(row.keys) == 1
        if row.columns or (is_weighted and not (row.ratings or row.scores or row.choices)):
            columns = dump_json(dict(row.columns)) if row.columns else None
            found["given"] += [
                {"item": item, "system": system, "columns": columns, **place} for item, system in row.keys
            ]
    schemas = {"preferences": PREFERENCES, "errors": ERRORS, "given": GIVEN}
    tables = {name: make_table(rows, schemas[name]) for name, rows in found.items() if rows}
    if simple and len(simple) == len(rows):
        tables["ratings"] = _simple_ratings(simple, number)
    elif ratings:
        cells = zip(zip(*ratings, strict=True), RATINGS, strict=True)
        tables["ratings"] = pa.table([_column(values, field) for values, field in cells], schema=RATINGS)
    return tables if texts else {name: drop_texts(table) for name, table in tables.items()}


def _simple_ratings(rows: Sequence[RatedRow], number: int) -> pa.Table:
    """Ratings of rows that hold nothing else: column by column, which takes half the time."""
    counts = [len(values) for *_, values in rows]
    at = np.repeat(np.arange(len(rows)), counts)
    size = len(at)
    columns = {
        "item": text_array([item for _, item, _, _ in rows]).take(pa.array(at)),
        "system": text_array([system for _, _, system, _ in rows]).take(pa.array(at)),
        "aspect": text_array([aspect for *_, values in rows for aspect in values]),
        "rater": pa.nulls(size, TEXT),
        "value": pa.array([value for *_, values in rows for value in values.values()], pa.float64()),
        "weight": pa.nulls(size, pa.float64()),
        "input": pa.array(np.full(size, number, np.int32)),
        "row": pa.array(np.array([line for line, *_ in rows], np.int64)[at]),
    }
    return pa.table([columns[name] for name in RATINGS.names], schema=RATINGS)


def _column(values: Sequence[Any], field: pa.Field) -> pa.Array:
    return text_array(values) if field.type == TEXT else pa.array(values, field.type)


def split_fields(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}


def make_table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    columns = [_column([row.get(field.name) for row in rows], field) for field in schema]
    return pa.table(columns, schema=schema)


@dataclass(eq=False, kw_only=True)
class InputTables:
    """The tables of the input with this number, as far as it was read: parts, and batches that are not in one yet."""

    number: int
    tables: dict[str, list[Part]] = field(default_factory=dict)
    records: int = 0
    references: set[int] = field(default_factory=set)
    hashes: list[Hashes] = field(default_factory=lambda: [np.empty((0, HASH_BYTES), np.uint8)])
    waiting: list[Batch] = field(default_factory=list)
    waiting_text: int = 0

    def add(self, batch: Batch) -> None:
        self.waiting.append(batch)
        self.hashes.append(batch.hashes)
        self.records += len(batch.records)
        self.references |= {count for count in map(len, batch.records.references) if count}
        self.waiting_text += count_characters(batch.records)

    @property
    def is_full(self) -> bool:
        """Whether enough batches wait for a part."""
        rows = sum(len(waiting.records) for waiting in self.waiting)
        return rows >= PART_ROWS or self.waiting_text >= _PART_TEXT

    def write(self, store: Any, texts: bool) -> None:
        """Write what waits as one part of each table that has any rows."""
        found: dict[str, list[pa.Table]] = {}
        for batch in self.waiting:
            if len(batch.records):
                table = records_table(batch.records, batch.hashes, self.number, batch.lines, texts)
                found.setdefault("records", []).append(table)
            for name, table in judged_tables(batch.judged, self.number, texts).items():
                found.setdefault(name, []).append(table)
        for name, tables in found.items():
            self.tables.setdefault(name, []).append(store.write_part(name, pa.concat_tables(tables)))
        self.waiting, self.waiting_text = [], 0
