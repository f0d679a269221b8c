"""Data sets and results of Ragas that hold conversations, or scores; other data sets are read by the names of columns.

{"user_input": text or [{"type": "human", "content"}], "retrieved_contexts", "response", "reference", metric: number}
"""

from __future__ import annotations

from collections.abc import Iterable

from metrist.io.layouts import describe_context, parse_messages
from metrist.io.row_model import RowError
from metrist.io.tools.entries import Entries, Row, Rows, as_scores, convert_each

_COLUMNS = frozenset({
    "user_input", "retrieved_contexts", "reference_contexts", "retrieved_context_ids", "reference_context_ids",
    "response", "multi_responses", "reference", "rubrics", "reference_tool_calls", "reference_topics",
    "persona_name", "query_style", "query_length",
})  # fmt: skip


def is_entry(value: Row) -> bool:
    if "user_input" not in value or not value.keys() & {"response", "reference", "reference_topics"}:
        return False
    return isinstance(value["user_input"], list) or any(name not in _COLUMNS for name in value)


def rows(entries: Entries) -> Rows:
    return convert_each(entries, _convert)


def _convert(entry: Row) -> Iterable[Row]:
    question, passages = entry.get("user_input"), entry.get("retrieved_contexts")
    output = entry.get("response")
    context: Row
    if isinstance(question, list):
        messages = parse_messages([{"role": part.get("type"), **part} for part in question if isinstance(part, dict)])
        if not messages or messages[-1][0] not in ("ai", "assistant"):
            raise RowError("'user_input' must be a conversation that ends with an answer")
        context, output = dict(describe_context(messages[:-1])), messages[-1][1]
    else:
        context = {"source": passages, "instruction": question} if passages else {"source": question}
    numbers = {name: value for name, value in entry.items() if name not in _COLUMNS and not isinstance(value, bool)}
    yield {
        **context,
        "references": [entry["reference"]] if entry.get("reference") else None,
        "output": output,
        "scores": as_scores(numbers),
    }
