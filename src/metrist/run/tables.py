"""The tables of a run: their schemas, and how records, scores, judgments and ratings become rows of them.

Every schema is declared, never inferred: pyarrow and DuckDB silently lose fields of structs that differ from part to
part, and pyarrow reads "2024-05-01" as a time. Arrow holds only valid Unicode: where a text has a lone surrogate, its
column shows the escape and `original` has the row's texts as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from metrist.errors import RunError
from metrist.io.dedup import digest_source
from metrist.io.row_model import ParsedRow, RatedRow
from metrist.metrics.comparator import Judgment
from metrist.ratings import Error
from metrist.records import HASH_BYTES, Hashes, Pair, RecordColumns, hash_units
from metrist.run.flat_file import encodable, error_rows
from metrist.scores import Failure, FailureKind, Scores, plain_stats

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
REQUIRED = frozenset(
    {
        *("record", "pair", "item", "system", "first", "source_digest", "comparator"),
        *("incomplete", "input"),
    }
)
#: Columns that can quote a text: a run without texts leaves them out, but for the original names of records.
TEXT_COLUMNS = frozenset(
    {
        *("output", "source", "references", "instruction", "extra", "original", "columns"),
        *("explanation", "raw", "raws", "tokens", "errors", "text", "revision", "answer", "failure"),
    }
)


def _text_columns(table: str) -> frozenset[str]:
    return TEXT_COLUMNS - {"original"} if table == "records" else TEXT_COLUMNS


_SCHEMAS = {
    name: (schema, pa.schema([field for field in schema if field.name not in _text_columns(name)]))
    for name, schema in (
        *(("records", RECORDS), ("ratings", RATINGS), ("errors", ERRORS), ("preferences", PREFERENCES)),
        *(("given", GIVEN), ("scores", SCORES), ("judgments", JUDGMENTS)),
    )
}
#: Columns of records that hold one text, with the fields of `RecordColumns`.
_RECORD_TEXTS = {
    "item": "items",
    "system": "systems",
    "output": "outputs",
    "source": "sources",
    "instruction": "instructions",
    "task": "tasks",
    "language": "languages",
}
#: Characters of an item from which on it is taken for a text rather than a name.
_LONGEST_NAME = 80
_HIDDEN_FAILURE = "the message is not stored in a run without texts"
#: Columns of a score that only some rows have, by the name of the field of `Scores`.
_SPARSE = {"explanations": "explanation", "raws": "raw", "tokens": "tokens", "usages": "usage"}


class Damaged(Exception):
    """A part does not hold what it should; the message says what is wrong."""


def has_schema(table: str, schema: pa.Schema) -> bool:
    """Whether a part has the columns of this table, all of them or those that quote no text."""
    return any(schema.equals(expected) for expected in _SCHEMAS[table])


def drop_texts(table: pa.Table) -> pa.Table:
    return table.drop_columns([name for name in table.column_names if name in TEXT_COLUMNS])


def _texts(values: Sequence[str | None], escape: bool = True) -> pa.Array:
    try:
        return pa.array(values, TEXT)
    except UnicodeEncodeError:
        if not escape:
            raise
        return pa.array([value and encodable(value) for value in values], TEXT)


def _lists(values: Sequence[Sequence[str]], escape: bool = True) -> pa.Array:
    """A column of lists; one array of all texts is several times faster than lists of objects."""
    ends = np.cumsum([0, *map(len, values)], dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), _texts(list(chain.from_iterable(values)), escape))


def _is_unicode(*texts: str | None) -> bool:
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


def _constant(value: str, size: int) -> pa.Array:
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
        names = ("items", "systems", "tasks", "languages")
        kept = {name: getattr(records, name) for name in names}
        nothing = [None] * len(records)
        records = RecordColumns(
            outputs=[""] * len(records), sources=nothing, references=[()] * len(records), instructions=nothing, **kept
        )
    try:
        columns = _record_columns(records, escape=False)
        columns["original"] = pa.nulls(len(records), TEXT)
    except UnicodeEncodeError:
        columns = _record_columns(records, escape=True)
        columns["original"] = _originals(records)
    columns["record"] = make_hash_array(hashes)
    columns["source_digest"] = sources
    columns["input"] = pa.array(np.full(len(records), number, np.int32))
    columns["row"] = pa.array(rows, pa.int64())
    table = pa.table([columns[name] for name in RECORDS.names], schema=RECORDS)
    return table if texts else table.select(_SCHEMAS["records"][1].names)


def _refuse_texts_as_items(records: RecordColumns) -> None:
    """Refuse items that are texts, such as sources: a run without texts would store them as names."""
    for item, *texts in zip(records.items, records.outputs, records.sources, records.instructions, strict=True):
        is_text = any(text == item and len(text.split()) >= 2 for text in texts if text)
        quotes_text = any(text in item and len(text.split()) >= 4 for text in texts if text)
        if is_text or quotes_text or (len(item) > _LONGEST_NAME and item.count(" ") > 5):
            raise RunError(
                "items are named by their texts, which a run without texts does not store: name another column "
                "(--field item=COLUMN), or none for numbers"
            )


def _record_columns(records: RecordColumns, *, escape: bool) -> dict[str, pa.Array]:
    columns = {name: _texts(getattr(records, field), escape) for name, field in _RECORD_TEXTS.items()}
    columns["references"] = _lists(records.references, escape)
    extras = [dump_json(dict(extra)) if extra else None for extra in records.extras or ()]
    columns["extra"] = pa.array(extras, TEXT) if extras else pa.nulls(len(records), TEXT)
    return columns


def _originals(records: RecordColumns) -> pa.Array:
    columns = [getattr(records, field) for field in _RECORD_TEXTS.values()]
    return pa.array(
        [
            None if _is_unicode(*texts, *references) else dump_json([*texts, references])
            for *texts, references in zip(*columns, records.references, strict=True)
        ],
        TEXT,
    )


def read_records_table(table: pa.Table) -> RecordColumns:
    texts = {field: _read_texts(table[name]) for name, field in _RECORD_TEXTS.items()}
    references = _read_lists(table["references"])
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


def _read_lists(column: pa.ChunkedArray) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for chunk in column.chunks:
        texts = _read_texts(pa.chunked_array([chunk.flatten()]))
        ends = (chunk.offsets.to_numpy() - chunk.offsets[0].as_py()).tolist() if len(chunk) else [0]
        rows += [tuple(texts[start:end]) for start, end in pairwise(ends)]
    return rows


def list_present(table: pa.Table, name: str) -> list[tuple[int, Any]]:
    """The rows of a column that have a value; none where the table has no such column."""
    if name not in table.column_names or table[name].null_count == len(table):
        return []
    return [(row, value) for row, value in enumerate(table[name].to_pylist()) if value is not None]


# ---- What people said


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
        found["preferences"] += [{**_fields(preference), **place} for preference in row.preferences]
        found["errors"] += [{**_fields(e.error), "item": e.item, "system": e.system, **place} for e in row.errors]
        found["given"] += [{**_fields(score), **place} for score in row.scores]
        found["given"] += [{**_fields(choice), "system": choice.first, **place} for choice in row.choices]
        is_weighted = weight is not None and len(row.keys) == 1
        if row.columns or (is_weighted and not (row.ratings or row.scores or row.choices)):
            columns = dump_json(dict(row.columns)) if row.columns else None
            found["given"] += [
                {"item": item, "system": system, "columns": columns, **place} for item, system in row.keys
            ]
    schemas = {"preferences": PREFERENCES, "errors": ERRORS, "given": GIVEN}
    tables = {name: _table(rows, schemas[name]) for name, rows in found.items() if rows}
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
        "item": _texts([item for _, item, _, _ in rows]).take(pa.array(at)),
        "system": _texts([system for _, _, system, _ in rows]).take(pa.array(at)),
        "aspect": _texts([aspect for *_, values in rows for aspect in values]),
        "rater": pa.nulls(size, TEXT),
        "value": pa.array([value for *_, values in rows for value in values.values()], pa.float64()),
        "weight": pa.nulls(size, pa.float64()),
        "input": pa.array(np.full(size, number, np.int32)),
        "row": pa.array(np.array([line for line, *_ in rows], np.int64)[at]),
    }
    return pa.table([columns[name] for name in RATINGS.names], schema=RATINGS)


def _column(values: Sequence[Any], field: pa.Field) -> pa.Array:
    return _texts(values) if field.type == TEXT else pa.array(values, field.type)


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    columns = [_column([row.get(field.name) for row in rows], field) for field in schema]
    return pa.table(columns, schema=schema)


# ---- Scores


def scores_table(metric: str, hashes: Hashes, scores: Scores, texts: bool = True) -> pa.Table:
    """The scores of the records with these hashes. Statistics that are (value, 1) are not stored."""
    size = len(scores)
    kinds = [None] * size
    for row, failure in scores.failures.items():
        kinds[row] = failure.kind.value  # type: ignore[call-overload]
    incomplete = np.zeros(size, bool)
    incomplete[list(scores.incomplete)] = True
    has_plain_stats = np.array_equal(scores.stats, plain_stats(scores.values))
    columns = {
        "metric": _constant(metric, size),
        "record": make_hash_array(hashes),
        "value": pa.array(scores.values, pa.float64(), mask=np.isnan(scores.values)),
        "parts": _parts_array(scores),
        "statistics": pa.nulls(size, SCORES.field("statistics").type)
        if has_plain_stats
        else pa.ListArray.from_arrays(
            pa.array(np.arange(size + 1, dtype=np.int32) * scores.stats.shape[1]),
            pa.array(np.asarray(scores.stats, np.float64).reshape(-1)),
        ),
        "failure": _sparse(scores.failures, size, str),
        "failure_kind": pa.array(kinds, TEXT) if scores.failures else pa.nulls(size, TEXT),
        "incomplete": pa.array(incomplete),
        "errors": _errors_array(scores.errors, size),
        "explanation": _sparse(scores.explanations, size),
        "raw": _sparse(scores.raws, size),
        "tokens": _sparse(scores.tokens, size, dump_json),
        "usage": _sparse(scores.usages, size, dump_json),
        "original": _sparse(_score_originals(scores), size),
    }
    table = pa.table(columns, schema=SCORES)
    return table if texts else drop_texts(table)


def _sparse(values: Mapping[int, Any], size: int, encode: Callable[[Any], str] | None = None) -> pa.Array:
    if not values:
        return pa.nulls(size, TEXT)
    column: list[str | None] = [None] * size
    for row, value in values.items():
        column[row] = encode(value) if encode else value
    return _texts(column)


def _parts_array(scores: Scores) -> pa.Array:
    size, width = len(scores), len(scores.parts)
    if not width:
        return pa.nulls(size, SCORES.field("parts").type)
    codes = pa.array(np.tile(np.arange(width, dtype=np.int32), size))
    names = pa.DictionaryArray.from_arrays(codes, [encodable(name) for name in scores.parts]).dictionary_decode()
    values = np.stack(list(scores.parts.values()), axis=1).reshape(-1)
    numbers = pa.array(values, pa.float64(), mask=np.isnan(values))
    return pa.MapArray.from_arrays(pa.array(np.arange(size + 1, dtype=np.int32) * width), names, numbers)


def _errors_array(errors: Mapping[int, Sequence[Error]], size: int) -> pa.Array:
    kind = SCORES.field("errors").type
    if not errors:
        return pa.nulls(size, kind)
    rows = [
        [{k: encodable(v) if isinstance(v, str) else v for k, v in _fields(error).items()} for error in errors[row]]
        if row in errors
        else None
        for row in range(size)
    ]
    return pa.array(rows, kind)


def _score_originals(scores: Scores) -> dict[int, str]:
    """The texts of scores, as JSON, where Arrow cannot hold them."""
    originals: dict[int, dict[str, Any]] = {}
    for name, column in (("failure", scores.failures), ("explanation", scores.explanations), ("raw", scores.raws)):
        for row, text in column.items():
            if not _is_unicode(text):
                originals.setdefault(row, {})[name] = str(text)
    for row, errors in scores.errors.items():
        texts = [value for error in errors for value in _fields(error).values() if isinstance(value, str)]
        if not _is_unicode(*texts):
            originals.setdefault(row, {})["errors"] = error_rows(errors)
    return {row: dump_json(texts) for row, texts in originals.items()}


def read_failures(table: pa.Table) -> dict[int, Failure]:
    """The failures of a table of scores or judgments, by row."""
    messages = dict(list_present(table, "failure"))
    failures = {}
    for row, kind in list_present(table, "failure_kind"):
        failures[row] = Failure(FailureKind(kind), messages.get(row, _HIDDEN_FAILURE))
    return failures


def find_unsettled(table: pa.Table, *, retry_failed: bool = False) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The rows of a part that are to be computed again: where a request failed for a reason that may have passed. With
    `retry_failed`, any failure but a missing input counts as such a reason."""
    kinds = table["failure_kind"]
    retryable = [kind.value for kind in FailureKind if kind.is_retryable]
    if retry_failed:
        retryable = [kind.value for kind in FailureKind if kind is not FailureKind.missing_input]
    unsettled = table["incomplete"]
    if kinds.null_count < len(kinds):
        unsettled = pc.or_(unsettled, pc.is_in(kinds, pa.array(retryable)))
    return np.array(pc.indices_nonzero(unsettled).to_pylist(), np.int64)


def read_scores_table(table: pa.Table) -> Scores:
    """The scores of a table; columns that it lacks are empty. Raises `Damaged` for what no run has written."""
    try:
        return _read_scores(table)
    except MemoryError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, pa.ArrowException) as error:
        raise Damaged(f"its rows cannot be read: {error}") from None


def _read_scores(table: pa.Table) -> Scores:
    names = set(table.column_names)
    values = table["value"].to_numpy()
    sparse: dict[str, dict[int, Any]] = {field: dict(list_present(table, name)) for field, name in _SPARSE.items()}
    for field in ("tokens", "usages"):
        sparse[field] = {row: json.loads(text) for row, text in sparse[field].items()}
    errors = {row: tuple(Error(**error) for error in listed) for row, listed in list_present(table, "errors")}
    failures = read_failures(table)
    for row, text in list_present(table, "original"):
        original = json.loads(text)
        if "failure" in original:
            failures[row] = Failure(failures[row].kind, original["failure"])
        if "errors" in original:
            errors[row] = tuple(Error(**error) for error in original["errors"])
        for field, name in _SPARSE.items():
            if name in original:
                sparse[field][row] = original[name]
    incomplete = np.flatnonzero(table["incomplete"].to_numpy()) if "incomplete" in names else ()
    return Scores(
        values=np.asarray(values, np.float64),
        parts=read_parts(table["parts"]) if "parts" in names else {},
        stats=read_statistics(table["statistics"], values) if "statistics" in names else np.empty((0, 0)),
        errors=errors,
        failures=failures,
        incomplete=frozenset(map(int, incomplete)),
        **sparse,
    )


def read_parts(column: pa.ChunkedArray) -> dict[str, np.ndarray[Any, Any]]:
    """The columns of a map; NaN where a row has no such part."""
    blocks: list[tuple[int, dict[str, np.ndarray[Any, Any]]]] = []
    for chunk in column.chunks:
        size = len(chunk)
        counts = np.diff(read_numbers(pa.chunked_array([chunk.offsets]), np.int32))
        first, last = chunk.offsets[0].as_py(), chunk.offsets[-1].as_py()
        encoded = chunk.keys.slice(first, last - first).dictionary_encode()
        names, codes = encoded.dictionary.to_pylist(), read_numbers(pa.chunked_array([encoded.indices]), np.int32)
        numbers = read_numbers(pa.chunked_array([chunk.items.slice(first, last - first)]))
        if len(codes) == size * len(names) and (codes.reshape(size, -1) == np.arange(len(names))).all():
            numbers = numbers.reshape(size, -1)
            blocks.append((size, {name: numbers[:, n] for n, name in enumerate(names)}))
            continue
        # Rows of a merged part may differ: where every output of a block failed, there are no parts.
        rows, grid = np.repeat(np.arange(size), counts), np.full((len(names), size), np.nan)
        grid[codes, rows] = numbers
        blocks.append((size, dict(zip(names, grid, strict=True))))
    names = list(dict.fromkeys(name for _, block in blocks for name in block))
    return {name: np.concatenate([block.get(name, np.full(size, np.nan)) for size, block in blocks]) for name in names}


def read_statistics(column: pa.ChunkedArray, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The rows of statistics; where none are stored they are (value, 1). A block in which every output failed does not
    know how many columns its metric has: its rows are filled with zeros."""
    if column.null_count == len(column):
        return plain_stats(values)
    blocks, start = list[np.ndarray[Any, Any]](), 0
    for chunk in column.chunks:
        size, numbers = len(chunk), read_numbers(pa.chunked_array([chunk.flatten()]))
        counts = np.nan_to_num(read_numbers(pa.chunked_array([chunk.value_lengths()]), np.int32)).astype(np.int32)
        width = int(counts.max(initial=0))
        if len(numbers) == size * width and not chunk.null_count:
            blocks.append(numbers.reshape(size, width))
        else:
            block = np.zeros((size, max(2, width)))
            absent = chunk.is_null().to_numpy(zero_copy_only=False)
            block[absent, :2] = plain_stats(values[start : start + size][absent])
            within = np.arange(len(numbers)) - np.repeat(np.cumsum(counts) - counts, counts)
            block[np.repeat(np.arange(size), counts), within] = numbers
            blocks.append(block)
        start += size
    width = max(block.shape[1] for block in blocks)
    return np.concatenate([widen_rows(block, width) for block in blocks])


def widen_rows(rows: np.ndarray[Any, Any], width: int) -> np.ndarray[Any, Any]:
    """The rows with zeros up to so many columns. Outputs that all failed may have given them more, of zeros."""
    if rows.shape[1] > width and not rows[:, width:].any():
        return rows[:, :width]
    return rows if rows.shape[1] == width else np.pad(rows, ((0, 0), (0, width - rows.shape[1])))


# ---- Judgments of pairs


def judgments_table(
    comparator: str,
    hashes: Hashes,
    pairs: Sequence[Pair],
    judgments: Sequence[Judgment],
    texts: bool = True,
    has_records: bool = True,
) -> pa.Table:
    """The judgments of pairs; `has_records` is False where of their records only the names are known."""
    rows = []
    for pair, judgment in zip(pairs, judgments, strict=True):
        failure = judgment.failure
        listed = (judgment.explanation, *judgment.raws, failure)
        row = {
            "item": pair.first.item,
            "first": pair.first.system,
            "second": pair.second.system,
            "choice": judgment.preference,
            "flipped": judgment.flipped,
            "failure": None if failure is None else str(failure),
            "failure_kind": None if failure is None else failure.kind.value,
            "incomplete": judgment.incomplete,
            "explanation": judgment.explanation,
            "usage": None if judgment.usage is None else dump_json(judgment.usage),
            "original": None if _is_unicode(*listed) else dump_json([listed[0], listed[1:-1], listed[-1]]),
        }
        rows.append(row)
    table = _table(rows, JUDGMENTS)
    columns = {
        "comparator": _constant(comparator, len(rows)),
        "pair": make_hash_array(hashes),
        "shown": _lists([list(judgment.shown) for judgment in judgments]),
        "raws": _lists([list(judgment.raws) for judgment in judgments]),
    }
    if has_records:
        columns["first_record"] = make_hash_array(hash_units([pair.first for pair in pairs]))
        columns["second_record"] = make_hash_array(hash_units([pair.second for pair in pairs]))
    for name, column in columns.items():
        table = table.set_column(JUDGMENTS.get_field_index(name), JUDGMENTS.field(name), column)
    return table if texts else drop_texts(table)


def read_judgments_table(table: pa.Table) -> list[Judgment]:
    failures = read_failures(table)
    judgments = []
    for number, row in enumerate(table.to_pylist()):
        explanation, raws, failure = row.get("explanation"), row.get("raws") or (), failures.get(number)
        if row.get("original"):
            explanation, raws, message = json.loads(row["original"])
            failure = failure and Failure(failure.kind, message)
        judgments.append(
            Judgment(
                preference=row["choice"],
                explanation=explanation,
                failure=failure,
                flipped=row["flipped"],
                shown=tuple(row["shown"] or ()),
                raws=tuple(raws),
                usage=json.loads(row["usage"]) if row["usage"] else None,
                incomplete=bool(row["incomplete"]),
            )
        )
    return judgments
