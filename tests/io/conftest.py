"""Small files to read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """`write(content)`, `write(content, "a.csv")`: a file with this text, these bytes, or these rows as JSON lines."""

    def write_file(content: str | bytes | list[dict[str, Any]], name: str = "out.jsonl") -> Path:
        path = tmp_path / name
        if isinstance(content, list):
            content = "".join(json.dumps(row) + "\n" for row in content)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write_file


@pytest.fixture
def write_json(write: Write) -> Write:
    """`write_json(document)`, `write_json(document, "a.json")`: a file with this value."""
    return lambda document, name="data.json": write(json.dumps(document), name)
