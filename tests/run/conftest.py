"""Rows that runs score."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def rows() -> list[dict[str, Any]]:
    """Three systems on twelve items; names that only ASCII escapes can carry are among them."""
    words = ["the", "cat", "sat", "on", "a", "mat", "and", "then", "it", "slept", "for", "hours"]
    return [
        {
            "item": f"i{n}\ud800\0" if n == 3 else f"i{n}",
            "system": system,
            "output": " ".join(words[n % 5 : n % 5 + size]),
            "references": [" ".join(words[: 3 + n % 4]), "a dog"],
        }
        for n in range(12)
        for size, system in enumerate(("first", "second", "th\u00efrd \udcff"), 3)
    ]
