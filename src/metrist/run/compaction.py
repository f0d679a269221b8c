"""Compact the parts of a finished metric: drop superseded rows, and merge small parts."""

from __future__ import annotations

from itertools import accumulate, groupby
from typing import Any

import numpy as np
import pyarrow as pa

from metrist.run.manifest import Damaged, StoredMetric, Version
from metrist.run.score_tables import find_rows, find_unsettled
from metrist.run.store import Store
from metrist.run.tables import read_hashes

#: Parts of a metric with fewer rows than this are small; merged ones have about `SAVE_ROWS` rows.
SMALL_PART = 1 << 13
SAVE_ROWS = 1 << 18
#: Small parts of a metric are merged if there are more than so many.
_FEW_PARTS = 4


def drop_superseded_rows(store: Store, metric: StoredMetric, version: Version) -> None:
    """Write parts again without rows that others supersede: those of records that were scored again, or by two
    processes at once."""
    key = "pair" if metric.compares else "record"
    for tokens in (False, True):
        parts = [part for part in version.parts if part.tokens is tokens]
        try:
            tables = [store.read_part(metric.place, part, [key, "failure_kind", "incomplete"]) for part in parts]
        except Damaged:
            return
        if not tables:
            continue
        table = pa.concat_tables(tables, promote_options="default")
        hashes = read_hashes(table[key])
        kept = find_rows(hashes, hashes, find_unsettled(table)) == np.arange(len(hashes))
        start = 0
        for part in parts:
            kept_in_part = kept[start : start + part.rows]
            start += part.rows
            if not kept_in_part.all():
                rest = store.read_part(metric.place, part).filter(pa.array(kept_in_part))
                facts = store.read_facts(metric.place, part)
                added = [store.write_part(metric.place, rest, facts, tokens=tokens)] if len(rest) else []
                store.drop_parts(metric.text, [part], added)


def merge_small_parts(store: Store, metric: StoredMetric, version: Version) -> None:
    """Merge neighbouring small parts if there are more than a few: of several rows of a record the last one counts."""
    if sum(part.rows < SMALL_PART for part in version.parts) <= _FEW_PARTS:
        return
    ends = dict(zip(version.parts, accumulate(part.rows for part in version.parts), strict=True))
    groups = groupby(version.parts, key=lambda part: (part.rows < SMALL_PART, part.tokens, ends[part] // SAVE_ROWS))
    for (is_small, tokens, _), group in groups:
        parts = list(group)
        if not is_small or len(parts) < 2:
            continue
        try:
            facts = [store.read_facts(metric.place, part) for part in parts]
            tables = [store.read_part(metric.place, part).replace_schema_metadata() for part in parts]
        except Damaged:  # Another process may have merged them.
            continue
        total: dict[str, Any] = {name: sum(fact.get(name, 0) for fact in facts) for name in ("seconds", "records")}
        total["signature"] = version.signature
        merged = pa.concat_tables(tables, promote_options="default")
        store.drop_parts(metric.text, parts, [store.write_part(metric.place, merged, total, tokens=tokens)])
