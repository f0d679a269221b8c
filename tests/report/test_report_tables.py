from __future__ import annotations

import csv
import io
import json
import math
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from error_codes import raises_code
from metrist.errors import ErrorCode, RunError
from metrist.metrics.cards import name_in_papers
from metrist.metrics.registry import build
from metrist.report.scores import score_column
from metrist.report.tables import (
    FORMATS,
    Change,
    Column,
    Count,
    Estimate,
    Marked,
    MetricSignature,
    Number,
    PValue,
    Share,
    Table,
    TableLayout,
    align_columns,
    escape_controls,
    render_page,
    text_width,
)

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
    for form in ("markdown", "latex", "json", "html", "csv"):
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
    assert lines[3:5] == [r"\caption{Scores}", r"\label{tab:scores}"]
    assert lines[5:8] == [r"\begin{tabular}{lrrc}", r"\toprule", r"system & rougeL & coverage & p \\"]
    assert lines[9] == (
        r"a\textbar{}b\_ \textbackslash{}x1b{[}31m{*}x{*} {[}red]\textless{}b\textgreater{}\textbackslash{} "
        r"\& 50\% \$x\textasciicircum{}2\$ \#1 \{\textasciitilde{}\} & 0.300 {\scriptsize [0.200, 0.400]} & 98.7 \% "
        r"& $<$.001 \\"
    )
    assert lines[-2] == r"\par\footnotesize 95 \% intervals."


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
    with raises_code(RunError, "unknown_name", "'markdwn'", "'markdown'"):
        table("a").render("markdwn")


def test_a_table_must_be_rectangular() -> None:
    with pytest.raises(ValueError, match="a row of 2 cells does not fit 1 columns"):
        Table(columns=[Column("a")], rows=[[1, 2]])
    with pytest.raises(ValueError, match="two columns of one table have the same name"):
        Table(columns=[Column("a"), Column("a")], rows=[])


ROWS = [["system", "score"], ["a", "0.300 [0.200, 0.400]"], ["not separated", "n/a"]]


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


SIGNED = Table(
    title="Scores",
    columns=[Column("system"), score_column(build("bleu"), name_in_papers), score_column(build("ter"), name_in_papers)],
    rows=[["a", Estimate(41.25, 40, 42.5, 1), Number(60.0, 1)], ["b", Estimate(12, 11, 13, 1), Number(72.0, 1)]],
    notes=["Lower is better: ter", "95% intervals"],
    signatures=[
        MetricSignature("bleu", "bleu(tokenize='13a') | metrist 1", "BLEU|nrefs:1|version:2.6.0"),
        MetricSignature(
            "judge(llm=fake(answers='…'))", "judge(llm=fake(answers='…'), " + "rubric='x', " * 20 + ") | metrist 1"
        ),
    ],
)


def test_signatures_are_a_block_at_the_foot_and_long_ones_are_folded() -> None:
    lines = SIGNED.text().splitlines()
    start = lines.index("Signatures")
    assert lines[start + 1] == "bleu                      bleu(tokenize='13a') | metrist 1"
    assert lines[start + 2] == " " * 26 + "BLEU|nrefs:1|version:2.6.0"
    assert lines[start + 3] == "judge(llm=fake(answers='…'))"
    assert max(map(len, lines)) <= 100
    folded = " ".join(line.strip() for line in lines[start + 4 :])
    assert folded == SIGNED.signatures[1].text
    assert max(map(len, SIGNED.text(60).splitlines()[start:])) <= 60


def test_signatures_are_in_every_format_but_csv() -> None:
    assert "- `bleu`: `bleu(tokenize='13a') | metrist 1`; `BLEU|nrefs:1|version:2.6.0`" in SIGNED.render("markdown")
    assert "<dt>bleu</dt><dd><code>bleu(tokenize=&#39;13a&#39;) | metrist 1</code></dd>" in SIGNED.render("html")
    assert "% bleu: BLEU|nrefs:1|version:2.6.0\n" in SIGNED.render("latex")
    assert json.loads(SIGNED.render("json"))["signatures"]["bleu"] == {
        "metrist": "bleu(tokenize='13a') | metrist 1",
        "sacrebleu": "BLEU|nrefs:1|version:2.6.0",
    }
    assert "nrefs" not in SIGNED.render("csv")


def test_a_signature_cannot_break_out_of_its_place() -> None:
    nasty = Table(columns=[Column("a")], rows=[], signatures=[MetricSignature("x``y`", "1\n\\input{x}\r2", "<script>")])
    assert "\n\\input" not in nasty.render("latex")
    assert all(line.startswith("%") for line in nasty.render("latex").splitlines()[:3])
    assert "<script>" not in nasty.render("html")
    assert "``` x``y` ```: `1\\n" in nasty.render("markdown")


def test_latex_is_fit_for_a_paper() -> None:
    text = SIGNED.render("latex", TableLayout(caption="My 100 % scores", label="tab:main"))
    assert r"system & BLEU $\uparrow$ & TER $\downarrow$ \\" in text
    assert r"a & \textbf{41.2} {\scriptsize [40.0, 42.5]} & \textbf{60.0} \\" in text
    assert r"b & 12.0 {\scriptsize [11.0, 13.0]} & 72.0 \\" in text
    assert r"\caption{My 100 \% scores}" in text
    assert r"\label{tab:main}" in text
    # The arrow says it.
    assert "Lower is better" not in text
    assert r"\par\footnotesize 95\% intervals" in text


def test_values_that_print_alike_are_best_together_and_equal_columns_have_no_best() -> None:
    metrics = (build("bleu"), build("bleu(lowercase=True)"))
    columns = [Column("system"), *(score_column(metric, name_in_papers) for metric in metrics)]
    rows = [["a", Number(1.04, 1), Number(2, 1)], ["b", Number(1.0, 1), Number(2, 1)], ["c", Number(0.5, 1), None]]
    lines = Table(columns=columns, rows=rows).render("latex").splitlines()
    assert r"a & \textbf{1.0} & 2.0 \\" in lines
    assert r"b & \textbf{1.0} & 2.0 \\" in lines
    assert r"c & 0.5 & n/a \\" in lines


def test_two_settings_of_a_metric_keep_their_texts_as_names() -> None:
    texts = ("bleu", "bleu(lowercase=True)", "chrf(word_order=2)")
    columns = [score_column(build(text), name_in_papers) for text in texts]
    head = Table(columns=columns, rows=[]).render("latex").splitlines()[6]
    assert head == r"bleu $\uparrow$ & bleu(lowercase=True) $\uparrow$ & chrF++ $\uparrow$ \\"


def test_marks_line_up_in_text_and_stand_raised_in_latex() -> None:
    rows = [["x", Marked(Number(1.5, 1), "a", 2)], ["y", Marked(Estimate(10.5, 9.5, 11.5, 1), "bc", 2)]]
    marked = Table(columns=[Column("s"), Column("m", "right")], rows=rows)
    assert marked.text().splitlines()[2:] == ["x               1.5 a", "y  10.5 [9.5, 11.5] bc"]
    assert r"x & 1.5\textsuperscript{a} \\" in marked.render("latex")
    assert r"$^{\dagger}$" in Table(columns=[Column("m")], rows=[[Marked(Number(1), "†")]]).render("latex")
    assert json.loads(marked.render("json"))["rows"][1]["m"] == {"value": 10.5, "low": 9.5, "high": 11.5, "marks": "bc"}
    assert marked.render("csv").splitlines()[1:] == ["x,1.5,a,,", "y,10.5,bc,9.5,11.5"]


def test_csv_has_plain_numbers_with_all_digits() -> None:
    rows = [["a, b", Estimate(1 / 3, 0.25, math.nan), Share(0.987), PValue(1e-9), Count(1600), None, True, 0.1]]
    columns = [Column(name) for name in ("system", "rougeL", "coverage", "p", "n", "none", "yes", "x")]
    assert Table(columns=columns, rows=rows, notes=["a note"]).render("csv").splitlines() == [
        "system,rougeL,rougeL low,rougeL high,coverage,p,n,none,yes,x",
        '"a, b",0.3333333333333333,0.25,,0.987,1e-09,1600,,true,0.1',
    ]


@pytest.mark.parametrize("name", ["=1+1", "+x", "-x()", "@x", '=HYPERLINK("x")'])
def test_csv_holds_no_formula(name: str) -> None:
    (row,) = csv.reader([table(name).render("csv").splitlines()[1]])
    assert row[0] == f"'{name}"
    change = Table(columns=[Column("d")], rows=[[Change(-0.5, -1, 0)]])
    assert change.render("csv").splitlines()[1] == "-0.5,-1,0"


@given(st.lists(st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=20), max_size=4))
def test_csv_reads_back(names: list[str]) -> None:
    read = list(csv.reader(io.StringIO(table(*names).render("csv"))))
    assert [row[0].removeprefix("'") for row in read[1:]] == [escape_controls(name).removeprefix("'") for name in names]


def test_a_page_of_html_stands_alone_and_names_rows_and_columns() -> None:
    page = render_page([table("<b>"), SIGNED])
    assert page.startswith('<!DOCTYPE html>\n<html lang="en">')
    assert page.count("<table") == page.count("<caption") == 2
    assert '<th scope="col"' in page
    assert '<th scope="row"' in page
    assert "<b>" not in page

    class Balance(HTMLParser):
        open: list[str]

        def handle_starttag(self, tag: str, _attrs: list[tuple[str, str | None]]) -> None:
            if tag != "meta":
                self.open.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert self.open.pop() == tag

    parser = Balance()
    parser.open = []
    parser.feed(page)
    assert parser.open == []


def test_a_layout_changes_names_columns_and_decimals_but_no_number() -> None:
    layout = TableLayout(
        drop=["ter"], rename={"bleu": "B", "a": "Ours"}, decimals=3, intervals="plusminus", caption="New"
    )
    (shown,) = layout.apply([SIGNED])
    assert shown.text().splitlines()[:5] == [
        "New",
        "",
        "system               B",
        "------  --------------",
        "Ours    41.250 ± 1.250",
    ]
    assert "± is half the width of the interval." in shown.notes
    assert shown.signatures[0].name == "B"
    assert shown.to_dict()["rows"][0] == {"system": "Ours", "B": {"value": 41.25, "low": 40, "high": 42.5}}
    assert "B $" in shown.render("latex")
    assert TableLayout(intervals="none").apply([SIGNED])[0].render("csv") == SIGNED.render("csv")


def test_columns_to_drop_may_be_listed_and_may_hold_commas() -> None:
    drawn = Table(columns=[Column("a"), Column("f(x=1, y=2)"), Column("b"), Column("c")], rows=[])
    (shown,) = TableLayout(drop=["f(x=1, y=2)", "a, b"]).apply([drawn])
    assert [column.name for column in shown.columns] == ["c"]


@pytest.mark.parametrize(
    ("options", "code", "values"),
    [
        ({"drop": ["tre"]}, "unknown_name", ["'tre'", "'ter'"]),
        ({"drop": ["system,bleu,ter"]}, "invalid_value", ["`drop`"]),
        ({"rename": {"c": "d"}}, "unknown_name", ["`rename`", "'c'"]),
        ({"label": "a}b"}, "invalid_value", ["'a}b'"]),
        ({"decimals": -1}, "invalid_value", ["15", "-1"]),
    ],
)
def test_a_layout_that_does_not_fit_is_refused(options: dict[str, Any], code: ErrorCode, values: list[str]) -> None:
    with raises_code(RunError, code, *values):
        TableLayout(**options).apply([SIGNED])


def test_a_layout_may_name_what_only_one_of_several_tables_has() -> None:
    first, second = TableLayout(drop=["p"], rename={"a": "A"}).apply([SIGNED, table("a")])
    assert first.rows[0][0] == second.rows[0][0] == "A"
    assert "p" not in [column.name for column in second.columns]
