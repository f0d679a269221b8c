"""Outputs with errors underlined: as plain text, on a terminal with colours, and as rows."""

from __future__ import annotations

import io
import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from metrist.io import read_records
from metrist.ratings import Error
from metrist.records import Record
from metrist.report.card_text import mark_lines
from metrist.report.output_card import OutputCard, TextPart, rank_severity, split_text
from metrist.report.outputs import Explanations
from metrist.scores import Score

TEXT = "The quick fox jumps over the lazy dog."
MAJOR = Error(
    aspect="Accuracy",
    severity="major",
    penalty=4.0,
    explanation="It is slow.",
    revision="slow fox",
    text="quick fox",
    start=4,
    end=13,
)
MINOR = Error(aspect="Style", severity="minor", penalty=0.5, explanation="Odd.", text="fox jumps", start=10, end=19)
UNLOCATED = Error(aspect="Style", severity="minor", penalty=1.0, text="purple elephants")
IN_SOURCE = Error(aspect="Omission", severity="critical", text="kleine", start=4, end=10, side="source", rater="R1")


def make_output(
    *errors: Error,
    text: str | None = TEXT,
    source: str | None = None,
    by: str | None = None,
    note: str | None = None,
    **score: Any,
) -> OutputCard:
    record = None if text is None else Record(item="1", system="a", output=text, source=source)
    scores = {} if by is None else {by: Score(**score)}
    return OutputCard(item="1", system="a", record=record, errors=errors, by=by, note=note, scores=scores)


def split(text: str, spans: list[tuple[int, int]]) -> list[TextPart]:
    return list(split_text(text, spans, longest=2000, context=200))


def test_errors_are_underlined_below_the_text_with_their_reasons() -> None:
    shown = Explanations(
        outputs=[make_output(MAJOR, MINOR, UNLOCATED, IN_SOURCE, by="tigerscore", value=-5.5)], notes=["N."]
    )
    assert shown.text() == (
        "item 1 · system a\n"
        "tigerscore: -5.50\n"
        "  The quick fox jumps over the lazy dog.\n"
        "      1========\n"
        "            2~~~~~~~~\n"
        "  1. major -4 Accuracy “quick fox”: It is slow. → slow fox\n"
        "  2. minor -0.5 Style “fox jumps”: Odd.\n"
        "in the source:\n"
        "  4. critical Omission by R1 “kleine”\n"
        "without a place in the text:\n"
        "  3. minor -1 Style “purple elephants”\n"
        "\n"
        "N.\n"
        "Underlined with = are major and critical errors, with ~ minor ones, with - others."
    )
    assert str(shown) == shown.text()


def test_errors_that_a_file_holds_are_marked_as_annotated() -> None:
    named = Explanations(outputs=[make_output(MAJOR, IN_SOURCE)]).text()
    assert "system a\nannotated by R1\n" in named
    assert "annotated in the file" in Explanations(outputs=[make_output(MAJOR)]).text()
    assert "annotated" not in Explanations(outputs=[make_output(MAJOR, by="tigerscore", value=-4.0)]).text()


def test_a_failed_output_gives_the_reason_and_no_verdict() -> None:
    explained = Explanations(outputs=[make_output(by="tigerscore", value=float("nan"), failure="busy", note="odd")])
    shown = explained.text()
    assert "tigerscore: no score\nfailed: busy\nnote: odd" in shown
    assert "no errors" not in shown
    assert "no errors" in Explanations(outputs=[make_output()]).text()
    (row,) = explained.rows()
    assert "scores" not in row
    assert row["failure"] == "busy"


def test_an_output_whose_text_is_not_known_has_its_errors_listed() -> None:
    shown = Explanations(outputs=[make_output(MAJOR, text=None)]).text()
    assert "the run does not store the output; its errors:\n  1. major -4 Accuracy “quick fox”" in shown


@pytest.mark.parametrize(
    ("severity", "place"), [("critical", 0), ("Major", 1), ("minor", 2), ("neutral", 3), (None, 3)]
)
def test_severities_have_an_order(severity: str | None, place: int) -> None:
    assert rank_severity(Error(aspect="a", severity=severity)) == place


def test_long_texts_are_wrapped_and_an_error_goes_on_below_the_next_line() -> None:
    lines = list(mark_lines("one two three four five six seven", [(4, 23, "1", "~")], 20))
    assert lines == ["one two three four", "    1~~~~~~~~~~~~~~", "five six seven", "~~~~"]


def test_wide_characters_take_two_columns_and_combining_ones_none() -> None:
    assert list(mark_lines("你好ab", [(2, 4, "1", "=")], 40)) == ["你好ab", "    1="]
    assert list(mark_lines("e\u0301ab", [(2, 4, "1", "=")], 40)) == ["e\u0301ab", " 1="]


def test_lines_of_the_text_stay_and_control_characters_are_shown() -> None:
    assert list(mark_lines("a\tb\nc\x1b[31md", [(4, 5, "1", "=")], 40)) == ["a b", "c\\x1b[31md", "1"]


def test_an_empty_span_is_marked_at_its_position() -> None:
    assert list(mark_lines("abc", [(3, 3, "1", "=")], 40)) == ["abc", "   1"]
    assert list(mark_lines("abc", [(1, 1, "1", "=")], 40)) == ["abc", " 1"]
    assert list(mark_lines("", [(0, 0, "1", "=")], 40)) == [""]


def test_many_errors_on_one_word_each_have_a_line() -> None:
    spans = [(0, 3, str(n), "=") for n in range(1, 4)]
    assert list(mark_lines("abc d", spans, 40)) == ["abc d", "1==", "2==", "3=="]


@given(st.text(max_size=200), st.lists(st.tuples(st.integers(0, 200), st.integers(0, 60)), max_size=6))
def test_any_text_with_any_errors_can_be_drawn(text: str, spans: list[tuple[int, int]]) -> None:
    inside = [(min(a, len(text)), min(a + b, len(text))) for a, b in spans]
    errors = tuple(Error(aspect="A", severity="minor", start=start, end=end) for start, end in inside)
    shown = Explanations(outputs=[make_output(*errors, text=text)])
    assert shown.text(40)
    render_colours(shown)


def render_colours(shown: Explanations, width: int = 60) -> str:
    screen = io.StringIO()
    Console(file=screen, force_terminal=True, color_system="truecolor", width=width).print(shown)
    return screen.getvalue()


def test_on_a_terminal_errors_are_underlined_in_colour_and_numbered() -> None:
    drawn = render_colours(Explanations(outputs=[make_output(MAJOR, MINOR)], notes=["A note."]))
    red, yellow = "\x1b[1;4;38;2;211;47;47m", "\x1b[4;38;2;184;134;11m"
    # Where the two overlap, the worse one gives the colour.
    assert f"{red}quick \x1b[0m{red}fox\x1b[0m" in drawn
    assert f"{yellow} jumps\x1b[0m" in drawn
    assert "[1]" in drawn
    assert drawn.index("[1]") < drawn.index("[2]")
    assert "A note." in drawn


def test_markup_in_an_output_is_not_interpreted() -> None:
    assert "[red]x[/red]" in render_colours(Explanations(outputs=[make_output(text="[red]x[/red]")]))


def test_a_row_has_offsets_and_is_read_back_as_a_record_with_errors() -> None:
    explained = make_output(MAJOR, UNLOCATED, IN_SOURCE, source="Der kleine Fuchs", by="tigerscore", value=-5.0)
    (row,) = Explanations(outputs=[explained]).rows()
    assert row["scores"] == {"tigerscore": -5.0}
    assert row["errors"][1] == {
        "aspect": "Style",
        "severity": "minor",
        "penalty": 1.0,
        "text": "purple elephants",
        "start": None,
        "end": None,
    }
    (entry,) = read_records([json.loads(json.dumps(row))]).entries()
    assert tuple(annotation.error for annotation in entry.errors) == (MAJOR, UNLOCATED, IN_SOURCE)
    assert entry.records[0].output == TEXT


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 12)), max_size=8))
def test_marks_never_cover_each_other(spans: list[tuple[int, int]]) -> None:
    text = "abcdefghij" * 4
    named = [(a, min(a + b, 40), chr(65 + n), "=") for n, (a, b) in enumerate(spans)]
    _, *rows = mark_lines(text, named, 60)
    for start, _, label, _ in named:
        assert sum(row[start : start + 1] == label for row in rows) == 1
    for row in rows:
        starts = [at for at, character in enumerate(row) if character.isalpha()]
        assert all(b > a for a, b in pairwise(starts))


LONG = "word " * 1000 + "a bad thing " + "other " * 1000


def test_a_text_of_usual_length_is_shown_completely() -> None:
    text = "word " * 400
    assert [(part.start, part.end, part.shown) for part in split(text, [])] == [(0, 2000, True)]


def test_a_long_stretch_without_errors_is_left_out_but_for_its_ends() -> None:
    at = LONG.index("bad")
    first, gap, middle, second, last = split(LONG, [(at, at + 3)])
    assert [part.shown for part in (first, gap, middle, second, last)] == [True, False, True, False, True]
    assert gap.placeholder == f"… {gap.end - gap.start:,} characters …"
    assert first.end >= 200
    assert middle.start <= at - 200
    assert middle.end >= at + 203
    # Words are not cut.
    assert LONG[first.end] == " "
    assert LONG[middle.start - 1] == " "


def test_many_short_lines_are_long_too() -> None:
    assert [part.shown for part in split("a line\n" * 100, [])] == [True, False, True]


@given(
    st.text(alphabet="ab \n", max_size=60).map(lambda text: text * 120),
    st.lists(st.tuples(st.integers(0, 7000), st.integers(0, 300)), max_size=4),
)
def test_the_parts_are_the_text_and_no_error_is_left_out(text: str, places: list[tuple[int, int]]) -> None:
    spans = [(start, min(start + size, len(text))) for start, size in places if start <= len(text)]
    parts = split(text, spans)
    assert "".join(text[part.start : part.end] for part in parts) == text
    for part in parts:
        if not part.shown:
            assert not any(start < part.end and end > part.start for start, end in spans)


def test_errors_stay_where_they_are_in_a_long_text_and_on_a_terminal() -> None:
    at = LONG.index("bad")
    error = Error(aspect="a", severity="major", penalty=1.0, text="bad", start=at, end=at + 3)
    shown = Explanations(outputs=[make_output(error, text=LONG)])
    screen = io.StringIO()
    Console(file=screen, width=100).print(shown)
    assert "bad[1] thing" in screen.getvalue()
    assert screen.getvalue().count("characters") == 2
    lines = shown.text().splitlines()
    marks = next(n for n, line in enumerate(lines) if "1==" in line)
    assert lines[marks - 1][lines[marks].index("1==") :].startswith("bad thing")
    assert sum("characters" in line for line in lines) == 2
    assert len(lines) < 20
