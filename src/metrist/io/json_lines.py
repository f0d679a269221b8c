"""JSON Lines: one object a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import IO, Any

from metrist.io.place import Fault, shown
from metrist.io.text_lines import BYTE_ORDER_MARK, decoded

Row = dict[str, Any]
_raw_decode = json.JSONDecoder().raw_decode


def json_line_rows(stream: IO[bytes]) -> Iterator[tuple[int, Row | Fault]]:
    """Line numbers with their objects, or with what is wrong with them. Blank lines are passed over."""
    for number, line in enumerate(stream, 1):
        if number == 1:
            line = line.removeprefix(BYTE_ORDER_MARK)
        line = line.strip()
        if line:
            yield number, _row(line)


def _row(line: bytes) -> Row | Fault:
    try:
        text = decoded(line)
        value, end = _raw_decode(text)
        if end != len(text):
            return Fault(f"more follows after the JSON object: {shown(text[end:])}")
    except Fault as fault:
        return fault
    except (ValueError, RecursionError) as error:
        return Fault(unreadable(error))
    return value if type(value) is dict else not_an_object(value)


def not_an_object(value: Any) -> Fault:
    hint = "; name the file .json if it holds one list of objects" if isinstance(value, list) else ""
    return Fault(f"must be a JSON object, got {shown(value)}{hint}")


def unreadable(error: Exception) -> str:
    """Why a text is no JSON, in a user's words."""
    if isinstance(error, json.JSONDecodeError):
        found = shown(error.doc[error.pos : error.pos + 30]) if error.pos < len(error.doc) else "the end of the line"
        return f"not valid JSON: {error.msg} at column {error.colno}, found {found}"
    if isinstance(error, RecursionError):
        return "not readable JSON: it is nested too deeply"
    return f"not readable JSON: {error}"
