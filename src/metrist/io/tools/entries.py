"""What the readers of other tools' files share: each turns the entries of a file into rows in metrist's fields."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from metrist.io.fields import as_mapping
from metrist.io.layouts import describe_context, parse_messages
from metrist.io.row_model import RowError, format_value

Row = dict[str, Any]
#: Rows with the numbers of their lines, or what is wrong with one.
Rows = Iterator[tuple[int, Row | RowError]]
Entries = Iterable[tuple[int, Row]]
#: Keys under which an object holds the one text that matters in it.
_TEXT_KEYS = ("text", "content", "input", "question", "prompt", "query", "output", "answer", "completion")


def convert_each(entries: Entries, convert: Callable[[Row], Iterable[Row]]) -> Rows:
    """Convert every entry on its own; an entry that has another layout is a bad row."""
    for line, entry in entries:
        try:
            for row in convert(entry):
                yield line, {name: value for name, value in row.items() if value is not None}
        except RowError as error:
            yield line, error


def describe_input(value: Any) -> Row:
    """Return the source, and as instruction a system prompt, of a text, a list of messages or an object."""
    messages = parse_messages(value) if isinstance(value, list) else None
    if messages:
        return dict(describe_context(messages))
    text = as_plain_text(value)
    return {"source": text} if text else {}


def as_plain_text(value: Any) -> str:
    """Return the text of a value: of a list of messages the last one, of an object its text, or else its JSON."""
    if isinstance(value, str):
        return str(value)
    if value is None:
        return ""
    messages = parse_messages(value) if isinstance(value, list) else None
    if messages:
        return messages[-1][1]
    if isinstance(value, dict):
        if messages := parse_messages(value.get("messages")):
            return messages[-1][1]
        texts: list[str] = [value[key] for key in _TEXT_KEYS if isinstance(value.get(key), str)]
        if len(texts) == 1:
            return texts[0]
    return json.dumps(value, ensure_ascii=False)


def as_scores(scores: Mapping[str, Any]) -> dict[str, float] | None:
    """Return the finite numbers among values, with true as 1; None if there are none."""
    values = {str(name): float(value) for name, value in scores.items() if isinstance(value, int | float)}
    return {name: value for name, value in values.items() if math.isfinite(value)} or None


def get_object(entry: Mapping[str, Any], name: str) -> Row:
    """Return the object under a name, an empty one for null."""
    value = entry.get(name)
    return {} if value is None else as_mapping(name, value)


def get_objects(entry: Mapping[str, Any], name: str) -> list[Row]:
    """Return the list of objects under a name, an empty one for null."""
    value = entry.get(name)
    if value is not None and not (isinstance(value, list) and all(isinstance(part, dict) for part in value)):
        raise RowError(f"{name!r} must be a list of objects, got {format_value(value)}")
    return value or []
