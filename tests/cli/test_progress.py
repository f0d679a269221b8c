"""What the progress bar says."""

from __future__ import annotations

import pytest

from metrist.cli.progress import how_far, progress_bar


@pytest.mark.parametrize(
    ("done", "total", "seconds", "words"),
    [
        (1000, 4000, 2.0, "1,000 of 4,000 records, 500/s, 0:00:06 left"),
        (1000, None, 2.0, "1,000 records, 500/s"),
        (4000, 3990, 2.0, "4,000 of 3,990 records, 2,000/s, 0:00:00 left"),
        (0, 10, 0.0, "0 of 10 records"),
    ],
)
def test_rate_and_time_left_are_said_where_they_are_known(done: int, total, seconds: float, words: str) -> None:
    assert how_far(done, total, seconds) == words


def test_nothing_is_drawn_where_nobody_watches() -> None:
    with progress_bar("scoring") as draw:
        assert draw is None
