"""Exports of Braintrust: a row per span of an experiment or of logs, of which the roots are outputs.

{"id", "span_id", "root_span_id", "input", "output", "expected", "scores": {…}, "metadata", "tags"}
"""

from __future__ import annotations

from collections.abc import Iterable

from metrist.io.row_model import RowError
from metrist.io.tools.entries import (
    Entries,
    Row,
    Rows,
    as_plain_text,
    as_scores,
    convert_each,
    describe_input,
    get_object,
)

_OWN = frozenset(("item", "system", "output", "source", "references", "scores", "ratings", "instruction", "model"))


def is_entry(value: Row) -> bool:
    return {"input", "output", "root_span_id"} <= value.keys()


def rows(entries: Entries) -> Rows:
    return convert_each(entries, _convert)


def _convert(entry: Row) -> Iterable[Row]:
    if entry.get("is_root") is False or entry.get("span_id", entry.get("root_span_id")) != entry.get("root_span_id"):
        return
    if entry.get("output") is None:
        raise RowError(f"the span {entry.get('id')!r} has no output")
    metadata = get_object(entry, "metadata")
    expected = entry.get("expected")
    system = metadata.get("model")
    yield {
        **{key: value for key, value in metadata.items() if key not in _OWN},
        "item": entry.get("id"),
        "system": system if isinstance(system, str) else None,
        **describe_input(entry.get("input")),
        "references": None if expected is None else [as_plain_text(expected)],
        "output": as_plain_text(entry["output"]),
        "scores": as_scores(get_object(entry, "scores")),
    }
