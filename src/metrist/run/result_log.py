"""The log of results of the last seconds, until they are in a part."""

from __future__ import annotations

import hashlib
import io
import struct
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from metrist.run.manifest import Part, StoredMetric, check_metric_folder

FRAME = struct.Struct("<q32s")


class Rows(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one metric's table to be added to a run, or the `part` that holds them already. `facts` are what their
    part's metadata say."""

    metric: StoredMetric
    signature: str
    table: Any = None
    part: Part | None = None
    facts: dict[str, Any] = {}
    #: In place of the notes of the version; None leaves those.
    notes: tuple[str, ...] | None = None
    tokens: bool = False


def read_log(data: bytes) -> Iterator[Rows]:
    """The results of a log, up to one that was not written to its end."""
    position = 0
    while position + FRAME.size <= len(data):
        size, digest = FRAME.unpack_from(data, position)
        body = data[position + FRAME.size : position + FRAME.size + size]
        if size < 0 or hashlib.sha256(body).digest() != digest:
            return
        try:
            table = pq.read_table(io.BytesIO(body))
            facts = msgspec.json.decode((table.schema.metadata or {}).get(b"metrist", b"{}"))
            metric = msgspec.convert(facts.pop("metric"), StoredMetric)
            check_metric_folder(metric)
            yield Rows(
                metric=metric,
                signature=facts.pop("signature"),
                tokens=facts.pop("tokens"),
                table=table.replace_schema_metadata(),
                facts=facts,
            )
        except MemoryError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, pa.ArrowException):  # No run has written it.
            return
        position += FRAME.size + size


def join_logs(logged: Iterable[Rows]) -> list[Rows]:
    """Logged rows by metric and version."""
    groups: dict[tuple[str, str, bool], list[Rows]] = {}
    for one in logged:
        groups.setdefault((one.metric.text, one.signature, one.tokens), []).append(one)
    joined = []
    for group in groups.values():
        facts = {name: sum(one.facts.get(name, 0) for one in group) for name in group[0].facts}
        table = pa.concat_tables([one.table for one in group], promote_options="default")
        joined.append(msgspec.structs.replace(group[-1], table=table, facts=facts))
    return joined


def format_rows(table: pa.Table) -> list[str]:
    """Rows as texts that are the same for the same rows, whatever empty columns their tables have."""
    return [repr(sorted((k, v) for k, v in row.items() if v is not None)) for row in table.to_pylist()]
