"""Rows of tables, where a cell holds one text: what is a list or an object in JSON is written out in it."""

from __future__ import annotations

import json
from typing import Any

from metrist.io.json_lines import unreadable
from metrist.io.place import Fault

_OBJECTS = {"ratings", "scores"}
_LISTS = {"systems", "outputs", "raters", "errors"}


class Cells(dict[str, Any]):
    """A row of a table (CSV, TSV, Parquet, a frame)."""


def from_cells(cells: Cells) -> dict[str, Any]:
    """The row as JSON would have it: a cell with nothing in it is absent, except an output, which may be empty;
    lists and objects are read from their JSON text; a single reference or rater becomes a list of one."""
    row = {}
    for name, value in cells.items():
        if type(value) is not str:
            if value is not None:
                row[name] = value
        elif value or name == "output":
            row[name] = _opened(name, value)
    return row


def _opened(name: str, value: str) -> Any:
    if name == "references":
        return _references(value)
    if name in _LISTS or name.startswith("rating:"):
        if value.lstrip().startswith("["):
            return _json(name, value)
        return [value] if name == "raters" else value
    return _json(name, value) if name in _OBJECTS else value


def _references(text: str) -> list[str]:
    """A JSON list of strings, or one reference: a text may well begin with a bracket, as `[laughs] hello` does."""
    try:
        found = json.loads(text) if text.lstrip().startswith("[") else None
    except (ValueError, RecursionError):
        found = None
    listed = isinstance(found, list) and all(isinstance(one, str) for one in found)
    return list(found or ()) if listed else [text]


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Fault(f"{name!r} must hold JSON: {unreadable(error)}") from None
