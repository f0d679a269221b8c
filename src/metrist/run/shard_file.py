"""Shard files: what one metric says about a few records or pairs, with a checksum.

    {"metric": …, "signature": …, "start": …, "count": …, "digest": …, "parts": [names], "hashes": [of records], …}
    [item, system, value, [parts], [stats]]                    one line per record
    [item, system, value, [parts], [stats], {"failure": …}]    … with what only some scores carry
    {"sha256": of all the lines above}

A comparator's file has one JSON object per pair instead, as in a file of preferences. All text is ASCII, so that any
string Python can hold (lone surrogates, NUL) survives. Numbers are written with the shortest digits that read back to
the same float.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrist.errors import InputError, RunError
from metrist.metrics.comparator import Judgment
from metrist.ratings import Error
from metrist.records import Pair, Record
from metrist.scores import Failure, FailureKind, Scores

#: What is scored: a record by a metric, a pair by a comparator.
Unit = Record | Pair

#: What a metric or a comparator returns for some units.
Block = Scores | list[Judgment]

DIGEST_LENGTH = 32
#: Position of the first record, digest.
SHARD_NAME = "{:09d}-{}.jsonl"
CHECKSUM = b'{"sha256": "%s"}\n'
#: Optional keys next to a failure's message and a score; older files have neither.
KIND, INCOMPLETE = "failure_kind", "incomplete"
#: The key in a file, and the sparse column of `Scores`, of what only some scores carry. Usage is left out: what a score
#: cost differs from run to run and is kept with the timings.
SPARSE_KEYS = {
    "errors": "errors",
    "explanation": "explanations",
    "failure": "failures",
    "raw": "raws",
    "tokens": "tokens",
}
# JSON has neither NaN nor infinity. A missing number is null; one too large for a double is read back as infinity.
_SPECIAL = {"nan": "null", "inf": "1e999", "-inf": "-1e999"}
# Below this, every whole float is written with all its digits.
_EXACT = 2.0**53


class Torn(ValueError):
    """The bytes are not a complete shard file; the message says what is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Which metric, at which position of the input, on which content: `hashes` has one entry per record or pair.
    `tokens` says whether scores of single tokens were asked for. Files of old versions have no hashes."""

    metric: str
    signature: str
    start: int
    count: int
    digest: str
    parts: tuple[str, ...] = ()
    hashes: tuple[str, ...] = ()
    tokens: bool = False

    @property
    def file_name(self) -> str:
        """The name of the file in a run folder."""
        return SHARD_NAME.format(self.start, self.digest)

    @classmethod
    def decode(cls, facts: Mapping[str, Any]) -> Header:
        """The header that a file's first line describes; ValueError, TypeError or KeyError if it is not one."""
        header = cls(**{**facts, "parts": tuple(facts["parts"]), "hashes": tuple(facts.get("hashes", ()))})
        if type(header.start) is not int or type(header.count) is not int or min(header.start, header.count) < 0:
            raise ValueError("its position and its number of records must be whole numbers")
        texts = (header.metric, header.signature, header.digest, *header.parts)
        if not all(isinstance(text, str) for text in texts) or len(set(header.parts)) < len(header.parts):
            raise ValueError("its names must be texts, each part with its own")
        if header.hashes and len(header.hashes) != header.count:
            raise ValueError(f"it names {len(header.hashes)} records, its first line promises {header.count}")
        if set(map(len, header.hashes)) - {DIGEST_LENGTH} or len(bytes.fromhex("".join(header.hashes))) != (
            len(header.hashes) * DIGEST_LENGTH // 2
        ):
            raise ValueError(f"the hash of a record must have {DIGEST_LENGTH} digits")
        return header

    def encode(self) -> str:
        """The first line of a file."""
        # Not `asdict`, which copies the hashes one by one.
        facts = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return json.dumps({name: value for name, value in facts.items() if name != "tokens" or value})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShardFile:
    """A shard file with its content. `items` and `systems` are there where a metric's was read back."""

    header: Header
    block: Any
    items: list[str] = field(default_factory=list)
    systems: list[str] = field(default_factory=list)

    @property
    def scores(self) -> Scores:
        """The scores of a metric's shard."""
        assert isinstance(self.block, Scores)
        return self.block


def hash_units(units: Sequence[Unit]) -> tuple[str, ...]:
    """For each record or pair, a hash of everything that metrics see of it. Two with the same hash get the same
    score, so that it is computed once."""
    encode_content = _ENCODER.encode
    try:
        return tuple(
            hashlib.sha256(encode_content(_content(unit)).encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_LENGTH]
            for unit in units
        )
    except RecursionError:
        raise _describe_nesting(units) from None


def content_hash(units: Sequence[Unit]) -> str:
    """A hash of everything that metrics see of these records or pairs."""
    return hashlib.sha256("".join(hash_units(units)).encode("ascii")).hexdigest()


def find_unsettled(block: Block, *, retry_failed: bool = False) -> frozenset[int]:
    """The rows of a stored block that are to be computed again: where a request failed for a reason that may have
    passed, or all of them where nothing at all succeeded. Earlier answers are in the LLM cache, so only what is missing
    is requested again. With `retry_failed`, any failure but a missing input counts as one that may have passed."""
    if isinstance(block, Scores):
        failures: Mapping[int, Failure] = block.failures
        incomplete: frozenset[int] | set[int] = block.incomplete
    else:
        failures = {n: judgment.failure for n, judgment in enumerate(block) if judgment.failure is not None}
        incomplete = {n for n, judgment in enumerate(block) if judgment.incomplete}
    if len(failures) == len(block):
        return frozenset(range(len(block)))
    passing = {
        n
        for n, failure in failures.items()
        if failure.kind.is_retryable or (retry_failed and failure.kind is not FailureKind.missing_input)
    }
    return frozenset(passing | incomplete)


def take_rows(block: Block, rows: Sequence[int]) -> Block:
    """The scores or judgments at these positions, in their order."""
    return block.take(rows) if isinstance(block, Scores) else [block[row] for row in rows]


def join_blocks(blocks: Sequence[Block]) -> Block:
    """One block out of several, in their order."""
    if isinstance(blocks[0], Scores):
        return Scores.join(blocks)  # type: ignore[arg-type]
    return [judgment for block in blocks for judgment in block]  # type: ignore[misc]


def _content(unit: Unit) -> Any:
    if isinstance(unit, Pair):
        return _content(unit.first), _content(unit.second)
    r = unit
    return (
        *(r.item, r.system, r.output, r.source, r.references, r.instruction, r.task, r.language),
        sorted(r.extra.items(), key=str) if r.extra else None,
    )


def _describe_nesting(shard: Sequence[Unit]) -> InputError:
    """The error of records that cannot be hashed: the first of them, and which of its columns is nested too deeply."""
    records = [r for unit in shard for r in ((unit.first, unit.second) if isinstance(unit, Pair) else (unit,))]
    for record in records:
        for name, value in record.extra.items():
            try:
                json.dumps(value, default=_plain)
                str(value)
            except RecursionError:
                return InputError(
                    f"item {record.item!r} of system {record.system!r}: {name!r} is nested too deeply to be hashed; "
                    f"drop it with --field {name}="
                )
    return InputError("a record is nested too deeply to be hashed")


def _plain(value: object) -> Any:
    return dict(value) if isinstance(value, Mapping) else repr(value)


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_plain)


def digest_of(hashes: Sequence[str], signature: str, *, tokens: bool = False) -> str:
    """The digest in a shard file's name. It differs by input, by metric, and by whether tokens were scored too."""
    text = f"{''.join(hashes)}\n{signature}{chr(10) + 'tokens' if tokens else ''}".encode("utf-8", "surrogatepass")
    return hashlib.sha256(text).hexdigest()[:DIGEST_LENGTH]


def encode(header: Header, units: Sequence[Any], block: Scores | Sequence[Judgment]) -> bytes:
    """The bytes of a shard file; equal results for equal units give equal bytes."""
    if isinstance(block, Scores):
        header = dataclasses.replace(header, parts=tuple(block.parts))
        columns = zip(
            [quoted(record.item) for record in units],
            [quoted(record.system) for record in units],
            number_texts(block.values),
            zip(*map(number_texts, block.parts.values()), strict=True) if block.parts else repeat(()),
            zip(*map(count_texts, block.stats.T), strict=True),
            strict=False,
        )
        lines = [f"[{i},{s},{v},[{','.join(p)}],[{','.join(q)}]]" for i, s, v, p, q in columns]
        for position, fields in sparse_fields(block).items():
            lines[position] = f"{lines[position][:-1]},{_dump(fields)}]"
    else:
        rows = zip(units, block, strict=True)
        lines = [_dump({**pair_row(pair), **judgment_row(header.metric, judgment)}) for pair, judgment in rows]
    body = "".join(f"{line}\n" for line in (header.encode(), *lines)).encode("ascii")
    return body + CHECKSUM % hashlib.sha256(body).hexdigest().encode("ascii")


def sparse_fields(scores: Scores) -> dict[int, dict[str, Any]]:
    """What only some scores carry, by position."""
    fields: dict[int, dict[str, Any]] = {}
    for key, column in SPARSE_KEYS.items():
        for position, value in getattr(scores, column).items():
            fields.setdefault(position, {})[key] = error_rows(value) if key == "errors" else value
    for position, failure in scores.failures.items():
        fields[position][KIND] = failure.kind
    for position in scores.incomplete:
        fields.setdefault(position, {})[INCOMPLETE] = True
    return fields


def _dump(fields: Mapping[str, Any]) -> str:
    try:
        return json.dumps(fields)
    except TypeError as error:
        raise RunError(f"a score cannot be written as JSON: {error}") from None


def decode(data: bytes) -> ShardFile:
    """Read a shard file back, or raise `Torn`."""
    end = data.rfind(b"\n", 0, max(len(data) - 1, 0)) + 1
    body = data[:end]
    if not data.endswith(b"\n") or not data[end:].startswith(b'{"sha256": '):
        raise Torn("it ends before its closing line")
    if data[end:] != CHECKSUM % hashlib.sha256(body).hexdigest().encode("ascii"):
        raise Torn("its content does not match its checksum")
    try:
        first, *rows = json.loads(b"[" + b",".join(body.splitlines()) + b"]")
        header = Header.decode(first)
        if len(rows) != header.count:
            raise Torn(f"it holds {len(rows)} records, its first line promises {header.count}")
        if rows and isinstance(rows[0], dict):
            return ShardFile(header=header, block=[read_judgment(row) for row in rows])
        if not all(isinstance(name, str) for row in rows for name in row[:2]):
            raise Torn("the names of its items and systems must be texts")
        scores = _read_scores(header, rows)
        return ShardFile(header=header, items=[r[0] for r in rows], systems=[r[1] for r in rows], block=scores)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        if isinstance(error, Torn):
            raise
        raise Torn(f"its lines cannot be read: {error}") from None


def decode_header(line: bytes) -> Header:
    """Read the first line of a shard file alone, or raise `Torn`. Nothing is checked against the checksum."""
    try:
        return Header.decode(json.loads(line))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise Torn(f"its first line cannot be read: {error}") from None


def _read_scores(header: Header, rows: list[list[Any]]) -> Scores:
    return Scores(
        values=_column([row[2] for row in rows]),
        parts={name: _column([row[3][k] for row in rows]) for k, name in enumerate(header.parts)},
        stats=np.array([row[4] for row in rows], dtype=np.float64),
        **read_sparse({i: row[5] for i, row in enumerate(rows) if len(row) == 6}),
    )


def read_sparse(rows: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """What only some scores carry, by position, as arguments of `Scores`."""
    columns: dict[str, Any] = {
        column: {i: row[key] for i, row in rows.items() if row.get(key) is not None}
        for key, column in SPARSE_KEYS.items()
    }
    columns["errors"] = {i: tuple(Error(**e) for e in errors) for i, errors in columns["errors"].items() if errors}
    columns["failures"] = {i: read_failure(text, rows[i].get(KIND)) for i, text in columns["failures"].items()}
    columns["incomplete"] = frozenset(i for i, row in rows.items() if row.get(INCOMPLETE))
    return columns


def read_failure(message: str, kind: str | None) -> Failure:
    """A failure from a file. Files written before kinds existed mark what a server did not answer by its words."""
    if kind is None:
        kind = FailureKind.transient if "no answer came:" in message else FailureKind.other
    return Failure(kind, message)


def error_rows(errors: Sequence[Error]) -> list[dict[str, Any]]:
    """Errors as plain rows, without the fields that have their default."""
    return [
        {
            f.name: getattr(error, f.name)
            for f in dataclasses.fields(error)
            if f.default is dataclasses.MISSING or getattr(error, f.name) != f.default
        }
        for error in errors
    ]


def pair_row(pair: Pair) -> dict[str, Any]:
    """The names of a pair as files of preferences have them."""
    return {"item": pair.first.item, "systems": [pair.first.system, pair.second.system]}


def judgment_row(comparator: str, judgment: Judgment) -> dict[str, Any]:
    """A judgment as files of preferences have it, without the optional fields that are empty."""
    optional = {
        "flipped": judgment.flipped,
        "shown": list(judgment.shown) or None,
        "raws": list(judgment.raws) or None,
        KIND: None if judgment.failure is None else judgment.failure.kind,
        INCOMPLETE: judgment.incomplete or None,
    }
    return {
        "comparator": comparator,
        "choice": judgment.preference,
        "explanation": judgment.explanation,
        "failure": judgment.failure,
        **{name: value for name, value in optional.items() if value is not None},
    }


def read_judgment(row: Mapping[str, Any]) -> Judgment:
    """A judgment from the row that `judgment_row` made."""
    return Judgment(
        preference=row["choice"],
        explanation=row["explanation"],
        failure=None if row["failure"] is None else read_failure(row["failure"], row.get(KIND)),
        flipped=row.get("flipped"),
        shown=tuple(row.get("shown") or ()),
        raws=tuple(row.get("raws") or ()),
        incomplete=bool(row.get(INCOMPLETE)),
    )


def number_texts(column: NDArray[np.float64]) -> list[str]:
    """The JSON text of each number."""
    if not len(column):
        return []
    # The repr of a whole list is several times faster than one repr per number.
    texts = repr(column.tolist())[1:-1].split(", ")
    return texts if np.isfinite(column).all() else [_SPECIAL.get(text, text) for text in texts]


def count_texts(column: NDArray[np.float64]) -> list[str]:
    """As `number_texts`, with whole numbers written without their `.0`: statistics are mostly counts."""
    if len(column) and (np.abs(column) < _EXACT).all() and not (np.signbit(column) & (column == 0)).any():
        whole = column.astype(np.int64)
        if (whole == column).all():
            return repr(whole.tolist())[1:-1].split(", ")
    return [t[:-2] if t.endswith(".0") and t != "-0.0" else t for t in number_texts(column)]


def _column(numbers: list[float | None]) -> NDArray[np.float64]:
    return np.array(numbers, dtype=np.float64)
