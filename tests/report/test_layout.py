from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from metrist.report.tables import align_columns, text_width

ROWS = [["system", "score"], ["a", "0.300 [0.200, 0.400]"], ["not separated", "n/a"]]


def test_columns_are_as_wide_as_need_be() -> None:
    assert align_columns(ROWS, ["left", "right"], None) == [
        "system                        score",
        "-------------  --------------------",
        "a              0.300 [0.200, 0.400]",
        "not separated                   n/a",
    ]


def test_a_narrow_screen_folds_the_widest_cells_between_words() -> None:
    assert align_columns(ROWS, ["left", "right"], 30) == [
        "system                   score",
        "-------------  ---------------",
        "a                0.300 [0.200,",
        "                        0.400]",
        "not separated              n/a",
    ]


def test_a_screen_too_narrow_for_columns_gets_one_cell_a_line() -> None:
    assert align_columns(ROWS, ["left", "right"], 12) == [
        "system  a",
        "score   0.300 [0.200, 0.400]",
        "",
        "system  not separated",
        "score   n/a",
    ]


@given(
    st.lists(st.tuples(*[st.text("ab 日", max_size=12)] * 3), max_size=4),
    st.integers(1, 60),
)
def test_every_word_is_shown_whole_on_any_screen(body: list[tuple[str, ...]], screen: int) -> None:
    rows = [["x", "y", "z"], *map(list, body)]
    lines = align_columns(rows, ["left", "right", "center"], screen)
    words = sorted(word for row in rows[1:] for cell in row for word in cell.split())
    if any(line.startswith("-") for line in lines):
        assert max(map(text_width, lines)) <= max(screen, 7)
        assert sorted(word for line in lines[2:] for word in line.split()) == words
