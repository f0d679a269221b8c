from __future__ import annotations

import io
import json
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from metrist.errors import RunError
from metrist.report.tables import FORMATS, Column, Estimate, PValue, Share, Table, align_columns, text_width

NASTY = "a|b_ \x1b[31m*x* [red]<b>\\ & 50% $x^2$ #1 {~}"


def table(*names: str) -> Table:
    return Table(
        title="Scores",
        columns=[Column("system"), Column("rougeL", "right"), Column("coverage", "right"), Column("p", "center")],
        rows=[[name, Estimate(0.3, 0.2, 0.4), Share(0.987), PValue(0.0001)] for name in names],
        notes=["95 % intervals."],
    )


def test_text_lines_up() -> None:
    assert table("a", "longer").text() == (
        "Scores\n"
        "\n"
        "system                rougeL  coverage    p\n"
        "------  --------------------  --------  -----\n"
        "a       0.300 [0.200, 0.400]    98.7 %  <.001\n"
        "longer  0.300 [0.200, 0.400]    98.7 %  <.001\n"
        "\n"
        "95 % intervals."
    )


def test_wide_characters_take_their_two_places() -> None:
    lines = table("日本語", "한국", "plain", "é́").text().splitlines()[4:8]
    assert {cell_len(line) for line in lines} == {cell_len(lines[0])}


def test_a_very_long_name_is_shortened_in_text_only() -> None:
    name = "start-" + "x" * 5000 + "-end"
    text = table(name).text()
    assert max(map(len, text.splitlines())) < 120
    assert "start-x" in text
    assert "x-end" in text
    for form in ("markdown", "latex", "json", "html"):
        assert name in table(name).render(form)


@given(st.text(st.characters(), max_size=30))
def test_any_name_is_safe_in_every_format(name: str) -> None:
    drawn = table(name)
    for form in FORMATS:
        text = drawn.render(form)
        assert not any(character < " " and character != "\n" for character in text)
        assert "\x9b" not in text
        text.encode("utf-8")


def test_the_shape_of_a_table_does_not_depend_on_its_names() -> None:
    usual, odd = table("plain"), table(NASTY + "\n\r\u2028")
    for form in ("text", "markdown", "latex", "html"):
        assert len(odd.render(form).splitlines()) == len(usual.render(form).splitlines())


def test_markdown_is_escaped() -> None:
    row = table(NASTY).render("markdown").splitlines()[4]
    assert row == (
        r"| a\|b\_ \\x1b\[31m\*x\* \[red\]\<b\>\\ \& 50% \$x^2\$ #1 {\~} | 0.300 [0.200, 0.400] | 98.7 % | <.001 |"
    )
    assert "word_order" in table("chrf(word_order=2)").render("markdown")
    assert "| :--- | ---: | ---: | :---: |" in table("a").render("markdown")


def test_latex_is_escaped_and_uses_booktabs() -> None:
    lines = table(NASTY).render("latex").splitlines()
    assert lines[3:6] == [r"\begin{tabular}{lrrc}", r"\toprule", r"system & rougeL & coverage & p \\"]
    assert lines[7] == (
        r"a\textbar{}b\_ \textbackslash{}x1b{[}31m{*}x{*} {[}red]\textless{}b\textgreater{}\textbackslash{} "
        r"\& 50\% \$x\textasciicircum{}2\$ \#1 \{\textasciitilde{}\} & 0.300 [0.200, 0.400] & 98.7 \% & $<$.001 \\"
    )
    assert lines[-2] == r"\par\footnotesize 95 \% intervals."


def test_a_latex_row_that_starts_with_a_bracket_is_escaped() -> None:
    assert "{[}x]" in table("[x]").render("latex")


def test_html_escapes_names() -> None:
    seen: list[str] = []

    class Reader(HTMLParser):
        def handle_data(self, data: str) -> None:
            seen.append(data)

    parser = Reader()
    parser.feed(table("<script>alert('&')</script>").render("html"))
    assert "<script>alert('&')</script>" in seen
    assert "<script>" not in table("<script>").render("html")
    assert table("a")._repr_html_() == table("a").render("html")


def test_json_reads_back() -> None:
    assert json.loads(table(NASTY, "\ud800").render("json")) == {
        "title": "Scores",
        "columns": ["system", "rougeL", "coverage", "p"],
        "rows": [
            {"system": name, "rougeL": {"value": 0.3, "low": 0.2, "high": 0.4}, "coverage": 0.987, "p": 0.0001}
            for name in (NASTY, "\ud800")
        ],
        "notes": ["95 % intervals."],
    }


def on_terminal(drawn: Table, width: int) -> str:
    screen = io.StringIO()
    Console(file=screen, width=width, force_terminal=True, color_system=None).print(drawn)
    return screen.getvalue()


def test_a_terminal_does_not_interpret_markup_in_names() -> None:
    assert "[red]a\\x1b[2J" in on_terminal(table("[red]a\x1b[2J"), 120)


@pytest.mark.parametrize("width", [20, 30, 40, 50, 60, 120])
def test_numbers_are_not_cut_on_a_narrow_terminal(width: int) -> None:
    shown = on_terminal(table("name-one", "name-two"), width)
    assert max(map(len, shown.splitlines())) <= width
    for piece in ("name-one", "name-two", "0.300", "[0.200,", "0.400]", "98.7", "<.001", "intervals."):
        assert piece in shown


def test_a_table_may_be_empty() -> None:
    empty = Table(columns=[Column("system")], rows=[])
    assert empty.text() == "system\n------"
    assert str(empty) == empty.text()
    for form in FORMATS:
        assert "system" in empty.render(form)


def test_an_unknown_format_is_answered_with_the_nearest() -> None:
    with pytest.raises(RunError, match=r"no table format 'markdwn'; known are text, .*; did you mean 'markdown'\?"):
        table("a").render("markdwn")


def test_a_table_must_be_rectangular() -> None:
    with pytest.raises(ValueError, match="a row of 2 cells does not fit 1 columns"):
        Table(columns=[Column("a")], rows=[[1, 2]])
    with pytest.raises(ValueError, match="two columns of one table have the same name"):
        Table(columns=[Column("a"), Column("a")], rows=[])


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
def test_words_are_not_cut_on_any_screen(body: list[tuple[str, ...]], screen: int) -> None:
    rows = [["x", "y", "z"], *map(list, body)]
    lines = align_columns(rows, ["left", "right", "center"], screen)
    words = sorted(word for row in rows[1:] for cell in row for word in cell.split())
    if any(line.startswith("-") for line in lines):
        assert max(map(text_width, lines)) <= max(screen, 7)
        assert sorted(word for line in lines[2:] for word in line.split()) == words
