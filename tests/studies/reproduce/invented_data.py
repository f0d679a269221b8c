"""Small data sets under the names of real ones, for tests that run without them."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any


def write_data(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / f"{name}.jsonl.xz").write_bytes(lzma.compress(text.encode()))


def factual(item: str, system: str, output: str, fact: int) -> dict[str, Any]:
    """A row in the form of Rank19."""
    return {"item": item, "system": system, "source": "a b c d", "output": output, "ratings": {"fact": [fact]}}


def compared(item: str, first: str, second: str) -> dict[str, Any]:
    """A row in the form of WMT19's rankings: the first output is better."""
    return {
        "item": item,
        "systems": [f"x.{item}", f"y.{item}"],
        "references": ["the cat sat on the mat"],
        "outputs": [first, second],
        "ratings": {"better": [1]},
    }
