"""Numbers as JSON text: the shortest digits that read back to the same float, in one way only."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrist.errors import RunError
from metrist.ratings import Error
from metrist.records import Record
from metrist.scores import Failure, FailureKind, Scores

# JSON knows neither NaN nor infinity. A missing number is null; one too large for a double is read back as infinity.
_ODD = {"nan": "null", "inf": "1e999", "-inf": "-1e999"}

# Below this, every whole float is written with all its digits.
_EXACT = 2.0**53


def number_texts(column: NDArray[np.float64]) -> list[str]:
    """One text per number, as repr gives it."""
    if not len(column):
        return []
    # The repr of a whole list is several times faster than one repr per number.
    texts = repr(column.tolist())[1:-1].split(", ")
    return texts if np.isfinite(column).all() else [_ODD.get(text, text) for text in texts]


def count_texts(column: NDArray[np.float64]) -> list[str]:
    """As `number_texts`, with whole numbers written without their `.0`: statistics are mostly counts."""
    if len(column) and (np.abs(column) < _EXACT).all() and not (np.signbit(column) & (column == 0)).any():
        whole = column.astype(np.int64)
        if (whole == column).all():
            return repr(whole.tolist())[1:-1].split(", ")
    return [t[:-2] if t.endswith(".0") and t != "-0.0" else t for t in number_texts(column)]


def row_texts(columns: list[list[str]], size: int) -> list[str]:
    """The columns' texts side by side, as one JSON list per row."""
    return [f"[{','.join(row)}]" for row in zip(*columns, strict=True)] if columns else ["[]"] * size


def column_of(numbers: list[float | None]) -> NDArray[np.float64]:
    """Numbers as they were read from JSON, null as NaN."""
    return np.array(numbers, dtype=np.float64)


# One shard file: what one metric says of a few consecutive records, as text that can tell whether it is whole.
#
#     {"metric": …, "signature": …, "start": …, "count": …, "digest": …, "parts": [names]}
#     [item, system, value, [parts], [stats]]                    one line per record
#     [item, system, value, [parts], [stats], {"failure": …}]    … with what only some scores carry
#     {"sha256": of all the lines above}
#
# All text is ASCII, so that any string Python can hold (lone surrogates, NUL) survives.


DIGEST_LENGTH = 32


class Torn(ValueError):
    """The bytes are no whole shard; the text says what is wrong with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Which metric, at which position of the input, on which content."""

    metric: str
    signature: str
    start: int
    count: int
    digest: str
    parts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Block:
    """Consecutive records' scores by one metric, read back from a file."""

    header: Header
    items: list[str]
    systems: list[str]
    scores: Scores


class InputHash:
    """A hash of all that a metric can see of an input's records, the same however the input is cut into shards."""

    def __init__(self) -> None:
        self._whole = hashlib.sha256()

    def add(self, shard: Sequence[Record]) -> str:
        """Take in the next records; the hash of these alone."""
        text = _content(shard)
        # Without the list's brackets, the texts of shards in a row are the text of all their records.
        self._whole.update(text[1:-1])
        self._whole.update(b",")
        return hashlib.sha256(text).hexdigest()

    @property
    def whole(self) -> str:
        """The hash of all records so far."""
        return self._whole.hexdigest()


def content_hash(records: Sequence[Record]) -> str:
    """A hash of all that a metric can see of these records."""
    return InputHash().add(records)


def _content(records: Sequence[Record]) -> bytes:
    rows = [
        (
            *(r.item, r.system, r.output, r.source, r.references, r.instruction, r.task, r.language),
            sorted(r.extra.items(), key=str) if r.extra else None,
        )
        for r in records
    ]
    text = json.dumps(rows, ensure_ascii=False, separators=(",", ":"), default=_plain)
    return text.encode("utf-8", "surrogatepass")


def digest_of(content: str, signature: str, *, tokens: bool = False) -> str:
    """What a shard file is named by: another input or another metric gives another digest. So does one with readings of
    tokens, which says more of the same scores."""
    all_of_it = f"{content}\n{signature}{chr(10) + 'tokens' if tokens else ''}".encode("utf-8", "surrogatepass")
    return hashlib.sha256(all_of_it).hexdigest()[:DIGEST_LENGTH]


def encode(header: Header, records: Sequence[Record], scores: Scores) -> bytes:
    """The bytes of a shard file; equal scores of equal records give equal bytes."""
    columns = zip(
        [quoted(record.item) for record in records],
        [quoted(record.system) for record in records],
        number_texts(scores.values),
        row_texts([number_texts(column) for column in scores.parts.values()], len(records)),
        row_texts([count_texts(column) for column in scores.stats.T], len(records)),
        strict=True,
    )
    lines = [",".join(row) for row in columns]
    for position, text in _remarks(scores).items():
        lines[position] += f",{text}"
    facts = dataclasses.asdict(dataclasses.replace(header, parts=tuple(scores.parts)))
    body = f"{json.dumps(facts)}\n{''.join(f'[{line}]{chr(10)}' for line in lines)}".encode("ascii")
    return body + _closing_line(body)


def decode(data: bytes) -> Block:
    """Read a shard file back, or raise `Torn`."""
    lines = _checked_lines(data)
    try:
        first, *rows = json.loads(b"[" + b",".join(lines) + b"]")
        header = Header(**{**first, "parts": tuple(first["parts"])})
        return _block(header, rows)
    except (ValueError, TypeError, KeyError, IndexError) as fault:
        raise Torn(f"its lines cannot be read: {fault}") from None


def _closing_line(body: bytes) -> bytes:
    return b'{"sha256": "%s"}\n' % hashlib.sha256(body).hexdigest().encode("ascii")


def _checked_lines(data: bytes) -> list[bytes]:
    end = data.rfind(b"\n", 0, max(len(data) - 1, 0)) + 1
    body = data[:end]
    if not data.endswith(b"\n") or not data[end:].startswith(b'{"sha256": '):
        raise Torn("it ends before its closing line")
    if data[end:] != _closing_line(body):
        raise Torn("its content does not match its checksum")
    return body.splitlines()


def _block(header: Header, rows: list[list[Any]]) -> Block:
    if len(rows) != header.count:
        raise Torn(f"it holds {len(rows)} records, its first line promises {header.count}")
    remarks = {i: row[5] for i, row in enumerate(rows) if len(row) == 6}
    scores = Scores(
        values=column_of([row[2] for row in rows]),
        parts={name: column_of([row[3][k] for row in rows]) for k, name in enumerate(header.parts)},
        stats=np.array([row[4] for row in rows], dtype=np.float64),
        **scores_remarks(remarks),
    )
    return Block(header=header, items=[r[0] for r in rows], systems=[r[1] for r in rows], scores=scores)


# A remark is what only some scores carry: the key it has in a file, and the column of `Scores` that holds it. A failure
# has its kind beside it, under KIND; files written before kinds existed have none.
# Usage is left out: what a score cost is kept with the timings, since it differs from run to run.
_REMARKS = {
    "errors": "errors",
    "explanation": "explanations",
    "failure": "failures",
    "raw": "raws",
    "tokens": "tokens",
}


KIND, INCOMPLETE = "failure_kind", "incomplete"


def _remarks(scores: Scores) -> dict[int, str]:
    found: dict[int, dict[str, Any]] = {}
    for key, column in _REMARKS.items():
        for position, value in getattr(scores, column).items():
            found.setdefault(position, {})[key] = error_rows(value) if key == "errors" else value
    for position, failure in scores.failures.items():
        found[position][KIND] = failure.kind
    for position in scores.incomplete:
        found.setdefault(position, {})[INCOMPLETE] = True
    try:
        return {position: json.dumps(found[position]) for position in sorted(found)}
    except TypeError as fault:
        raise RunError(f"a score cannot be written as JSON: {fault}") from None


def scores_remarks(remarks: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Remarks by position, as the sparse columns of `Scores`."""
    columns: dict[str, Any] = {
        column: {i: row[key] for i, row in remarks.items() if row.get(key) is not None}
        for key, column in _REMARKS.items()
    }
    columns["errors"] = {i: errors_of(rows) for i, rows in columns["errors"].items() if rows}
    columns["failures"] = {i: read_failure(text, remarks[i].get(KIND)) for i, text in columns["failures"].items()}
    columns["incomplete"] = frozenset(i for i, row in remarks.items() if row.get(INCOMPLETE))
    return columns


def read_failure(message: str, kind: str | None) -> Failure:
    """A failure from a file. Files written before kinds existed mark what a server did not answer by its words."""
    if kind is None:
        kind = FailureKind.transient if "no answer came:" in message else FailureKind.other
    return Failure(kind, message)


def error_rows(errors: Sequence[Error]) -> list[dict[str, Any]]:
    """Errors as plain rows, without the fields that say nothing."""
    return [
        {
            f.name: getattr(error, f.name)
            for f in dataclasses.fields(error)
            if f.default is dataclasses.MISSING or getattr(error, f.name) != f.default
        }
        for error in errors
    ]


def errors_of(rows: Sequence[Mapping[str, Any]]) -> tuple[Error, ...]:
    """Errors from the rows that `error_rows` made."""
    return tuple(Error(**row) for row in rows)


def _plain(value: object) -> Any:
    return dict(value) if isinstance(value, Mapping) else repr(value)
