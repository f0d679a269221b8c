"""Every kernel is tested twice, in plain Python and compiled where it was built, on texts that break scanners."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from numpy.typing import NDArray

from metrist.kernels import Tokens, reference

compiled: Any
try:
    compiled = importlib.import_module("metrist.kernels.compiled")
except ImportError:
    compiled = None
needs_compiled = pytest.mark.skipif(compiled is None, reason="the kernels are not compiled here")
both_flavours = pytest.mark.parametrize(
    "kernels", [pytest.param(reference, id="twin"), pytest.param(compiled, id="compiled", marks=needs_compiled)]
)

# Few letters, so that tokens meet again; and what scanners stumble over: markup, digits by stops, odd spaces, marks,
# NUL, letters of one to four bytes, lone surrogates, letters that change their length when lower-cased.
ODD = [*"ab1 .,-&;<>\n\t'\"(!/_", "&quot;", "&amp;", "&lt;", "&gt;", "<skipped>", "-\n"]
ODDER = [*ODD, *"\x00\x1c\x85\xa0\u2028é٣中ก😀\ud800\udfffİKA"]

texts = st.one_of(st.text(max_size=40), st.lists(st.sampled_from(ODDER), max_size=40).map("".join))
#: Longer than the 64 bytes that the compiled scanner looks at together.
long_texts = st.lists(st.sampled_from([*"abc .é中", "abcdefghijklmno"]), min_size=50, max_size=150).map("".join)


def words(most: int, letters: str = "abc") -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(letters), max_size=most)


def numbers(*values: int) -> NDArray[np.int32]:
    return np.array(values, np.int32)


def cut(tokens: Tokens) -> list[list[str]]:
    """The tokens as words again."""
    return [[tokens.words[i] for i in tokens.listed(text)] for text in range(len(tokens.starts) - 1)]


def same(a: Tokens, b: Tokens) -> bool:
    return np.array_equal(a.ids, b.ids) and np.array_equal(a.starts, b.starts) and a.words == b.words
