"""Windows over long texts against brute force: which window has a token most in its middle."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from metrist.models.windows import SequenceFormat, split_tokens


@given(
    size=st.integers(0, 90),
    opening=st.integers(0, 2),
    closing=st.integers(0, 2),
    room=st.integers(1, 20),
)
def test_every_token_comes_once_from_a_window_that_has_it_most_in_the_middle(size, opening, closing, room):
    frame = SequenceFormat(opening, closing, room + opening + closing)
    ids = list(range(opening + size + closing))
    windows = list(split_tokens(3, ids, frame))
    tokens: dict[int, Any] = {}
    for window in windows:
        assert window.text == 3
        assert len(window.ids) <= frame.limit
        for row, token in enumerate(window.ids[window.first : window.last], start=window.row):
            assert tokens.setdefault(row, token) == token
            tokens[row] = token
    assert [tokens.get(row) for row in range(len(ids))] == ids
    assert sum(window.last - window.first for window in windows) == len(ids)
    starts = [window.ids[opening] for window in windows] if size > room else []
    for window in windows if size > room else ():
        for token in range(opening, opening + size):
            if token in window.ids[window.first : window.last]:
                edges = {start: min(token - start, start + room - 1 - token) for start in starts}
                assert edges[window.ids[opening]] == max(edges.values())


def test_a_frame_that_fills_the_model_still_leaves_room_for_a_token():
    assert SequenceFormat(1, 1, 2).room == 1


def test_what_is_cut_lies_before_the_closing_tokens():
    frame = SequenceFormat(1, 1, 5)
    assert frame.truncate([0, 1, 2, 3, 9], "truncate") == [0, 1, 2, 3, 9]
    assert frame.truncate([0, 1, 2, 3, 4, 9], "truncate") == [0, 1, 2, 3, 9]
    assert frame.truncate([0, 1, 2, 3, 4, 9], "windows") == [0, 1, 2, 3, 4, 9]
