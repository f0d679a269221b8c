"""Arrays of texts are spelled as Python's encoder spells them."""

from __future__ import annotations

import json
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest
from flavours import both_flavours, compiled, needs_compiled, texts
from hypothesis import given
from hypothesis import strategies as st

EVERY = [*map(chr, range(0x300)), *"\u07ff\u0800\ud7ff\ud800\udbff\udc00\udfff\ue000\uffff\U00010000\U0010ffff"]
VALUES = st.none() | texts | st.lists(texts, max_size=3).map(tuple)


def expected(columns: list[list[Any]]) -> list[bytes]:
    rows = zip(*columns, strict=True)
    return [json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass") for row in rows]


@both_flavours
@given(rows=st.lists(st.tuples(VALUES, VALUES, VALUES), max_size=6))
def test_rows_are_written_as_python_writes_them(kernels: ModuleType, rows: list[tuple[Any, ...]]) -> None:
    columns = [[row[n] for row in rows] for n in range(3)]
    written, starts = kernels.json_arrays(columns)
    assert [written[start:end] for start, end in pairwise(starts.tolist())] == expected(columns)


@both_flavours
def test_every_kind_of_character_is_spelled_alike(kernels: ModuleType) -> None:
    columns = [EVERY, [(one, one * 3) for one in EVERY], ["a" * n for n in range(len(EVERY))]]
    written, starts = kernels.json_arrays(columns)
    assert [written[start:end] for start, end in pairwise(starts.tolist())] == expected(columns)


@needs_compiled
def test_what_is_no_text_is_refused() -> None:
    for value in (1, b"a", ["a"], (1,), ("a", None)):
        with pytest.raises(TypeError, match="must be a text"):
            compiled.json_arrays([["a"], [value]])
    with pytest.raises(ValueError, match="one length"):
        compiled.json_arrays([["a"], []])
