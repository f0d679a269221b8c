"""Every kernel is tested twice: in plain Python, and compiled where it was built."""

from __future__ import annotations

import importlib
from types import ModuleType

import numpy as np
import pytest
from hypothesis import strategies as st
from numpy.typing import NDArray

from metrist.kernels import Tokens

# Few letters, so that tokens meet again; and what breaks scanners: markup, digits by stops, odd spaces, marks, NUL,
# letters of one, two, three and four bytes, lone surrogates, letters that grow when lower-cased.
ODD = [*"ab1 .,-&;<>\n\t'\"(!/_", "&quot;", "&amp;", "&lt;", "<skipped>", "-\n"]
ODDER = [*ODD, "\x00", "\x1c", "\x85", "\xa0", "\u2028", "é", "٣", "中", "ก", "😀", "\ud800", "\udfff", "İ", "K", "A"]

texts = st.one_of(st.text(max_size=40), st.lists(st.sampled_from(ODDER), max_size=40).map("".join))


def token_lists(longest: int, letters: str = "abc") -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(letters), max_size=longest)


def numbers(*values: int) -> NDArray[np.int32]:
    return np.array(values, np.int32)


def cut(tokens: Tokens) -> list[list[str]]:
    """The tokens as words again."""
    return [[tokens.words[i] for i in tokens.listed(t)] for t in range(len(tokens.starts) - 1)]


@pytest.fixture(params=["twin", "compiled"])
def kernels(request: pytest.FixtureRequest) -> ModuleType:
    return flavour(request.param)


@pytest.fixture
def compiled() -> ModuleType:
    return flavour("compiled")


def flavour(name: str) -> ModuleType:
    try:
        return importlib.import_module(f"metrist.kernels.{name}")
    except ImportError as why:
        pytest.skip(f"the kernels are not compiled here ({why})")
