"""Rows into a file, which appears complete or not at all."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from metrist.errors import RunError
from metrist.io.compression import uncompressed_name
from metrist.io.convert.fields import Row
from metrist.io.writing import whole


def write_rows(rows: Iterable[Row], out: str | os.PathLike[str]) -> int:
    """Write one JSON object a line, compressed as the name's ending says, and return how many there were."""
    if Path(uncompressed_name(out)).suffix not in (".jsonl", ".ndjson"):
        raise RunError(f"{out}: rows are written as JSON lines; name the file .jsonl, also .jsonl.gz, .xz or .zst")
    count = 0
    with whole(out) as file:
        for row in rows:
            file.write(f"{json_line(row)}\n")
            count += 1
    return count


def json_line(row: Row) -> str:
    """The row as JSON that every reader takes: the NaN that Python would write is no JSON, and means "missing"."""
    try:
        return json.dumps(row, ensure_ascii=False, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(row), ensure_ascii=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
