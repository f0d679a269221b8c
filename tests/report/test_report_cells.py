from __future__ import annotations

import math
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrist.errors import escape_controls
from metrist.report.cells import (
    Change,
    Count,
    Estimate,
    Number,
    PValue,
    Share,
    decimals_for,
    format_cell,
    format_number,
    shorten,
    to_plain,
)


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (Number(0.31249), "0.312"),
        (Number(math.nan), "n/a"),
        (Estimate(41.23, 39.81, 42.5, 1), "41.2 [39.8, 42.5]"),
        (Estimate(41.23, decimals=1), "41.2"),
        (Estimate(math.nan, 1.0, 2.0), "n/a"),
        (Change(1.24, -0.11, 2.5, 1), "+1.2 [-0.1, +2.5]"),
        (Change(-0.00001, -1.0, 1.0, 1), "+0.0 [-1.0, +1.0]"),
        (Share(0.987), "98.7 %"),
        (Share(1.0), "100.0 %"),
        (Share(0.99999), "99.9 %"),
        (Share(0.00001), "0.1 %"),
        (Share(0.0), "0.0 %"),
        (Share(math.nan), "n/a"),
        (PValue(0.0032), ".003"),
        (PValue(0.0009), "<.001"),
        (PValue(1.0), "1.000"),
        (PValue(math.nan), "n/a"),
        (Count(1600), "1,600"),
        (None, "n/a"),
        (0.5, "0.500"),
        (7, "7"),
    ],
)
def test_cells_are_formatted(cell: object, text: str) -> None:
    assert format_cell(cell) == text


def test_rounding_never_leaves_a_negative_zero() -> None:
    assert format_number(-0.0001, 2) == "0.00"


@pytest.mark.parametrize(("bounds", "decimals"), [((0, 1), 3), ((0, 100), 1), ((-math.inf, math.inf), 1), ((1, 5), 2)])
def test_decimals_follow_the_range(bounds: tuple[float, float], decimals: int) -> None:
    assert decimals_for(*bounds) == decimals


def test_data_holds_no_nan() -> None:
    assert to_plain(math.nan) is None
    assert to_plain(Estimate(0.5)) == {"value": 0.5, "low": None, "high": None}
    assert to_plain(Change(0.5, 0.25, math.inf)) == {"value": 0.5, "low": 0.25, "high": None}
    assert [to_plain(cell) for cell in (Count(3), PValue(0.5), Share(1.0), Number(2.0), "a")] == [3, 0.5, 1.0, 2.0, "a"]


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\nb\tc\x00", "a\\nb\\tc\\x00"),
        ("\x9b31m", "\\x9b31m"),
        ("\ud800", "\\ud800"),
        ("\u202eevil", "\\u202eevil"),
        ("\u2028", "\\u2028"),
        ("naïve 日本 👩‍👩‍👧", "naïve 日本 👩‍👩‍👧"),
    ],
)
def test_control_characters_are_escaped(raw: str, shown: str) -> None:
    assert escape_controls(raw) == shown


@given(st.text(st.characters()))
def test_no_control_character_is_left(text: str) -> None:
    shown = escape_controls(text)
    assert not any(unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") for character in shown)
    shown.encode("utf-8")


@given(st.text(max_size=100), st.integers(3, 50))
def test_a_long_name_keeps_both_its_ends(text: str, longest: int) -> None:
    short = shorten(text, longest)
    assert len(short) <= longest
    if len(text) > longest:
        start, _, end = short.partition("…") if "…" not in text else (text[:1], "", text[-1:])
        assert text.startswith(start)
        assert text.endswith(end)
    else:
        assert short == text
