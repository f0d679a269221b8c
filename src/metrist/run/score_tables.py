"""Scores and judgments of pairs as Arrow tables, and back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from metrist.io.writer import encodable
from metrist.metrics.comparator import Judgment
from metrist.ratings import Error
from metrist.records import Hashes, Pair, halve_hashes, hash_units
from metrist.run.flat_file import error_rows
from metrist.run.manifest import Damaged
from metrist.run.tables import (
    JUDGMENTS,
    SCORES,
    TEXT,
    drop_texts,
    dump_json,
    is_unicode,
    list_array,
    list_present,
    make_hash_array,
    make_table,
    read_numbers,
    repeat_value,
    split_fields,
    text_array,
)
from metrist.scores import Failure, FailureKind, Scores, plain_stats

_HIDDEN_FAILURE = "the message is not stored in a run without texts"
#: Columns of a score that only some rows have, by the name of the field of `Scores`; `errors` is another.
SPARSE = {"explanations": "explanation", "raws": "raw", "tokens": "tokens", "usages": "usage"}


def scores_table(metric: str, hashes: Hashes, scores: Scores, texts: bool = True) -> pa.Table:
    """The scores of the records with these hashes. Statistics that are (value, 1) are not stored."""
    size = len(scores)
    kinds = [None] * size
    for row, failure in scores.failures.items():
        kinds[row] = failure.kind.value  # type: ignore[call-overload]
    incomplete = np.zeros(size, bool)
    incomplete[list(scores.incomplete)] = True
    parts = pa.nulls(size, SCORES.field("parts").type)
    if width := len(scores.parts):
        codes = pa.array(np.tile(np.arange(width, dtype=np.int32), size))
        names = pa.DictionaryArray.from_arrays(codes, [encodable(name) for name in scores.parts]).dictionary_decode()
        values = np.stack(list(scores.parts.values()), axis=1).reshape(-1)
        numbers = pa.array(values, pa.float64(), mask=np.isnan(values))
        parts = pa.MapArray.from_arrays(pa.array(np.arange(size + 1, dtype=np.int32) * width), names, numbers)
    statistics = pa.nulls(size, SCORES.field("statistics").type)
    if not np.array_equal(scores.stats, plain_stats(scores.values)):
        offsets = pa.array(np.arange(size + 1, dtype=np.int32) * scores.stats.shape[1])
        statistics = pa.ListArray.from_arrays(offsets, pa.array(np.asarray(scores.stats, np.float64).reshape(-1)))
    columns = {
        "metric": repeat_value(metric, size),
        "record": make_hash_array(hashes),
        "value": pa.array(scores.values, pa.float64(), mask=np.isnan(scores.values)),
        "parts": parts,
        "statistics": statistics,
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
    return text_array(column)


def _errors_array(errors: Mapping[int, Sequence[Error]], size: int) -> pa.Array:
    kind = SCORES.field("errors").type
    if not errors:
        return pa.nulls(size, kind)
    rows: list[list[dict[str, Any]] | None] = [None] * size
    for row, listed in errors.items():
        rows[row] = [
            {name: encodable(value) if isinstance(value, str) else value for name, value in split_fields(error).items()}
            for error in listed
        ]
    return pa.array(rows, kind)


def _score_originals(scores: Scores) -> dict[int, str]:
    """The texts of scores, as JSON, where Arrow cannot hold them."""
    originals: dict[int, dict[str, Any]] = {}
    for name, column in (("failure", scores.failures), ("explanation", scores.explanations), ("raw", scores.raws)):
        for row, text in column.items():
            if not is_unicode(text):
                originals.setdefault(row, {})[name] = str(text)
    for row, errors in scores.errors.items():
        texts = [value for error in errors for value in split_fields(error).values() if isinstance(value, str)]
        if not is_unicode(*texts):
            originals.setdefault(row, {})["errors"] = error_rows(errors)
    return {row: dump_json(texts) for row, texts in originals.items()}


def read_failures(table: pa.Table) -> dict[int, Failure]:
    """The failures of a table of scores or judgments, by row."""
    messages = dict(list_present(table, "failure"))
    for row, text in list_present(table, "original"):
        original = json.loads(text)
        if isinstance(original, dict) and "failure" in original:  # That of a judgment is a list.
            messages[row] = original["failure"]
    kinds = list_present(table, "failure_kind")
    return {row: Failure(FailureKind(kind), messages.get(row, _HIDDEN_FAILURE)) for row, kind in kinds}


def find_unsettled(table: pa.Table, *, retry_failed: bool = False) -> NDArray[np.int64]:
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


class HashIndex:
    """Finds hashes among many others."""

    def __init__(self, hashes: Hashes) -> None:
        self.hashes = hashes
        beginnings = halve_hashes(hashes)
        self._order = np.argsort(beginnings, kind="stable")
        self._beginnings = beginnings[self._order]

    def find(self, hashes: Hashes) -> NDArray[np.int64]:
        """The position of each hash, that of its last occurrence; -1 where there is none."""
        if not len(self._order):
            return np.full(len(hashes), -1, np.int64)
        wanted = halve_hashes(hashes)
        at = np.searchsorted(self._beginnings, wanted, "right") - 1
        rows = self._order[np.maximum(at, 0)]
        same = (at >= 0) & (self.hashes[rows] == hashes).all(axis=1)
        found = np.where(same, rows, -1).astype(np.int64)
        # Two hashes with the same beginning are one in 10^19 pairs; the rest of them decides.
        for n in np.flatnonzero(~same & (at >= 0) & (self._beginnings[np.maximum(at, 0)] == wanted)).tolist():
            first = int(np.searchsorted(self._beginnings, wanted[n], "left"))
            rows_here = self._order[first : int(at[n]) + 1]
            equal = rows_here[(self.hashes[rows_here] == hashes[n]).all(axis=1)]
            found[n] = equal[-1] if len(equal) else -1
        return found


def find_rows(wanted: Hashes, hashes: Hashes, unsettled: NDArray[np.int64]) -> NDArray[np.int64]:
    """The row of each wanted hash: of several that have it, the last that is not to be computed again, or the last; -1
    where none has it. `unsettled` are the rows that are to be computed again."""
    rows = HashIndex(hashes).find(wanted)
    if len(unsettled):
        settled = np.delete(np.arange(len(hashes)), unsettled)
        better = HashIndex(hashes[settled]).find(wanted)
        rows = np.where(better >= 0, settled[better] if len(settled) else -1, rows)
    return rows


def read_scores_table(table: pa.Table) -> Scores:
    """The scores of a table; columns that it lacks are empty. Raises `Damaged` for what no run has written."""
    try:
        names = set(table.column_names)
        values = table["value"].to_numpy()
        sparse: dict[str, dict[int, Any]] = {field: dict(list_present(table, name)) for field, name in SPARSE.items()}
        for field in ("tokens", "usages"):
            sparse[field] = {row: json.loads(text) for row, text in sparse[field].items()}
        errors = {row: tuple(Error(**error) for error in listed) for row, listed in list_present(table, "errors")}
        for row, text in list_present(table, "original"):
            original = json.loads(text)
            if "errors" in original:
                errors[row] = tuple(Error(**error) for error in original["errors"])
            for field, name in SPARSE.items():
                if name in original:
                    sparse[field][row] = original[name]
        incomplete = np.flatnonzero(table["incomplete"].to_numpy()) if "incomplete" in names else ()
        return Scores(
            values=np.asarray(values, np.float64),
            parts=read_parts(table["parts"]) if "parts" in names else {},
            stats=read_statistics(table["statistics"], values) if "statistics" in names else np.empty((0, 0)),
            errors=errors,
            failures=read_failures(table),
            incomplete=frozenset(map(int, incomplete)),
            **sparse,
        )
    except MemoryError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, pa.ArrowException) as error:
        raise Damaged(f"its rows cannot be read: {error}") from None


def read_parts(column: pa.ChunkedArray) -> dict[str, NDArray[Any]]:
    """The columns of a map; NaN where a row has no such part."""
    blocks: list[tuple[int, dict[str, NDArray[Any]]]] = []
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


def read_statistics(column: pa.ChunkedArray, values: NDArray[Any]) -> NDArray[Any]:
    """The rows of statistics; where none are stored they are (value, 1). A block in which every output failed does not
    know how many columns its metric has: its rows are filled with zeros."""
    if column.null_count == len(column):
        return plain_stats(values)
    blocks, start = list[NDArray[Any]](), 0
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


def widen_rows(rows: NDArray[Any], width: int) -> NDArray[Any]:
    """The rows with zeros up to so many columns. Outputs that all failed may have given them more, of zeros."""
    if rows.shape[1] > width and not rows[:, width:].any():
        return rows[:, :width]
    return rows if rows.shape[1] == width else np.pad(rows, ((0, 0), (0, width - rows.shape[1])))


def judgments_table(
    comparator: str,
    hashes: Hashes,
    pairs: Sequence[Pair],
    judgments: Sequence[Judgment],
    texts: bool = True,
) -> pa.Table:
    rows = []
    for pair, judgment in zip(pairs, judgments, strict=True):
        failure = judgment.failure
        listed = (judgment.explanation, *judgment.raws, failure)
        rows.append(
            {
                "item": pair.first.item,
                "first": pair.first.system,
                "second": pair.second.system,
                "choice": judgment.preference,
                "flipped": judgment.flipped,
                "length_free": judgment.length_free,
                "failure": None if failure is None else str(failure),
                "failure_kind": None if failure is None else failure.kind.value,
                "incomplete": judgment.incomplete,
                "explanation": judgment.explanation,
                "usage": None if judgment.usage is None else dump_json(judgment.usage),
                "original": None if is_unicode(*listed) else dump_json([listed[0], listed[1:-1], listed[-1]]),
            }
        )
    table = make_table(rows, JUDGMENTS)
    columns = {
        "comparator": repeat_value(comparator, len(rows)),
        "pair": make_hash_array(hashes),
        "first_record": make_hash_array(hash_units([pair.first for pair in pairs])),
        "second_record": make_hash_array(hash_units([pair.second for pair in pairs])),
        "shown": list_array([list(judgment.shown) for judgment in judgments]),
        "raws": list_array([list(judgment.raws) for judgment in judgments]),
    }
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
                length_free=row.get("length_free"),
                shown=tuple(row["shown"] or ()),
                raws=tuple(raws),
                usage=json.loads(row["usage"]) if row["usage"] else None,
                incomplete=bool(row["incomplete"]),
            )
        )
    return judgments
