"""The pairs of output and reference that are scored, from the folder of human judgments."""

from __future__ import annotations

import json
import lzma
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

DATA = Path(os.environ.get("METRIST_TEST_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")


class TextPair(NamedTuple):
    output: str
    reference: str


def summeval() -> list[TextPair]:
    """Return summaries of 16 systems with 11 references each: every text is in many pairs."""
    return [TextPair(row["output"], reference) for row in rows("summeval") for reference in row["references"]]


def unshared() -> list[TextPair]:
    """Return pairs of short translations of the same sentence: no text is in two pairs."""
    by_sentence: dict[str, list[str]] = {}
    seen: set[str] = set()
    for language in ("gu-en", "kk-en", "lt-en"):
        for row in rows(f"wmt19-darr.{language}"):
            for output in row["outputs"]:
                if output not in seen:
                    by_sentence.setdefault(row["references"][0], []).append(output)
                seen.add(output)
    return [TextPair(*pair) for texts in by_sentence.values() for pair in zip(texts[::2], texts[1::2], strict=False)]


def unshared_few() -> list[TextPair]:
    return unshared()[:1000]


SETS = {
    "SummEval": summeval,
    "WMT19, nothing shared": unshared,
    "WMT19, 1,000 pairs": unshared_few,
}


def rows(name: str) -> Iterator[dict[str, Any]]:
    path = DATA / f"{name}.jsonl.xz"
    if not path.exists():
        sys.exit(f"{path.name} is not in {DATA}: METRIST_TEST_DATA must name the folder of human judgments")
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)
