"""Long texts without errors are elided, and nothing else is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from metrist.ratings import Error
from metrist.report.errors import ExplainedOutput, Explanations, split_text

LONG = "word " * 1000 + "a bad thing " + "other " * 1000


def test_a_text_of_usual_length_is_shown_completely() -> None:
    text = "word " * 400
    assert [(part.start, part.end, part.shown) for part in split_text(text, [])] == [(0, 2000, True)]


def test_a_long_stretch_without_errors_is_left_out_but_for_its_ends() -> None:
    at = LONG.index("bad")
    first, gap, middle, second, last = split_text(LONG, [(at, at + 3)])
    assert [part.shown for part in (first, gap, middle, second, last)] == [True, False, True, False, True]
    assert gap.placeholder == f"… {gap.end - gap.start:,} characters without errors …"
    assert first.end >= 200
    assert middle.start <= at - 200
    assert middle.end >= at + 203
    # Words are not cut.
    assert LONG[first.end] == " "
    assert LONG[middle.start - 1] == " "


def test_many_short_lines_are_long_too() -> None:
    assert [part.shown for part in split_text("a line\n" * 100, [])] == [True, False, True]


@given(
    st.text(alphabet="ab \n", max_size=60).map(lambda text: text * 120),
    st.lists(st.tuples(st.integers(0, 7000), st.integers(0, 300)), max_size=4),
)
def test_the_parts_are_the_text_and_no_error_is_left_out(text: str, places: list[tuple[int, int]]) -> None:
    spans = [(start, min(start + size, len(text))) for start, size in places if start <= len(text)]
    parts = list(split_text(text, spans))
    assert "".join(text[part.start : part.end] for part in parts) == text
    for part in parts:
        if not part.shown:
            assert not any(start < part.end and end > part.start for start, end in spans)


def test_errors_stay_underlined_where_they_are() -> None:
    at = LONG.index("bad")
    error = Error(aspect="a", severity="major", penalty=1.0, text="bad", start=at, end=at + 3)
    shown = Explanations(outputs=[ExplainedOutput(item="1", system="s", output=LONG, errors=(error,))])
    lines = shown.text().splitlines()
    marks = next(n for n, line in enumerate(lines) if "1==" in line)
    assert lines[marks - 1][lines[marks].index("1==") :].startswith("bad thing")
    assert sum("characters without errors" in line for line in lines) == 2
    assert len(lines) < 20


def test_a_terminal_elides_the_same_parts() -> None:
    from rich.console import Console

    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    at = LONG.index("bad")
    error = Error(aspect="a", severity="major", penalty=1.0, text="bad", start=at, end=at + 3)
    console.print(Explanations(outputs=[ExplainedOutput(item="1", system="s", output=LONG, errors=(error,))]))
    text = console.export_text()
    assert "bad[1] thing" in text
    assert text.count("characters without errors") == 2
    console.file.close()
