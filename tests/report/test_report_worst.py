"""Outputs with texts and reasons in every form."""

from __future__ import annotations

import io
import json
import math
import re
from dataclasses import replace

import pytest
from rich.console import Console

from error_codes import raises_code
from metrist.errors import RunError
from metrist.ratings import Error
from metrist.records import Record
from metrist.report.output_card import OutputCard
from metrist.report.outputs import WorstEntry, WorstOutputs
from metrist.scores import Score

LONG = "start " + "middle " * 300 + "end"
MAJOR = Error(aspect="Accuracy", severity="major", penalty=4.0, text="cat", start=4, end=7, explanation="It is a dog.")
MINOR = Error(aspect="Style", severity="minor", start=4, end=11, text="cat sat")


def output(system: str = "a", text: str = "The cat sat.", **more: object) -> OutputCard:
    scores = {
        "judge": Score(value=1.0, explanation="It names the wrong animal."),
        "tiger": Score(value=-4.0, errors=(MAJOR,)),
        "broken": Score(value=math.nan, failure="the server is asleep"),
    }
    record = Record(item="1", system=system, output=text, source=LONG, references=("The dog sat.",))
    fields = {"scores": scores, "record": record, "ratings": {"fluency": (4.5, 2)}, "errors": (MINOR,)}
    return OutputCard(item="1", system=system, **{**fields, **more})


def page(*outputs: OutputCard, **more: object) -> WorstOutputs:
    entry = WorstEntry(outputs=outputs or (output(),), value=1.0, reason="because")
    fields = {"title": "The worst", "entries": [entry], "notes": ["a note"], "decimals": {"judge": 2}} | more
    return WorstOutputs(**fields)


def test_plain_text_shows_scores_texts_marks_and_reasons() -> None:
    text = page().text()
    assert "1. item 1 · system a\n   because\n" in text
    assert "judge 1.00 · tiger -4.000 · broken n/a · people: fluency 4.5 (2 ratings)" in text
    assert "   output:\n     The cat sat.\n         1==\n         2~~~~~~\n" in text
    assert "   1. major -4 Accuracy “cat”: It is a dog. (tiger)\n   2. minor Style “cat sat” (people)\n" in text
    assert "   judge: It names the wrong animal.\n   broken: no score: the server is asleep\n" in text
    assert "   reference:\n     The dog sat.\n" in text
    assert text.endswith("a note\nUnderlined with = are major and critical errors, with ~ minor ones, with - others.")


def test_long_texts_lose_their_middle_unless_full() -> None:
    short, full = page().text(), page(full=True).text()
    assert "characters …" in short
    assert short.count("middle") < 100
    assert full == page().text(full=True) == page().render(full=True)
    assert full.count("middle") == 300
    assert "characters …" not in full
    lines = [page(output(text="line\n" * 200), full=full).text().count("line\n") for full in (False, True)]
    assert lines[0] < 100
    assert lines[1] == 200


def test_two_outputs_share_their_source_and_references() -> None:
    text = page(output("a"), output("b", "A dog sat.", errors=(), scores={"judge": Score(value=2.0)})).text()
    assert text.count("source:") == text.count("reference:") == 1
    assert "1. item 1\n" in text
    assert text.index("source:") < text.index("system a") < text.index("system b")
    different = Record(item="1", system="b", output="A dog sat.", source="another")
    assert page(output("a"), output("b", record=different)).text().count("source:") == 2


def test_the_output_and_the_reasons_come_before_the_references_which_may_be_many() -> None:
    references = tuple(f"Reference text {number}." for number in range(1, 12))
    record = Record(item="1", system="a", output="The cat sat.", source="Le chat.", references=references)
    score = Score(value=1.0, explanation="It is too short.")
    shown = page(output(record=record, scores={"judge": score}))
    text = shown.text()
    order = [
        "Le chat.",
        "The cat sat.",
        "It is too short.",
        "text 1.",
        "text 2.",
        "… and 9 more references (full=True)",
    ]
    places = [text.index(words) for words in order]
    assert places == sorted(places)
    assert "text 3." not in text
    full = replace(shown, full=True).text()
    assert all(reference in full for reference in references)
    assert "more reference" not in full
    three = replace(record, references=references[:3])
    two = page(output(record=three), output("b", record=replace(three, system="b"))).text()
    assert two.count("text 2.") == two.count("… and 1 more reference (full=True)") == 1
    assert two.index("text 1.") > two.index("system b")


def test_failures_stand_apart() -> None:
    worst = page(failures=[output("z", scores={"judge": Score(value=math.nan, failure="<too long")}, record=None)])
    assert "Not scored:\n  item 1 · system z: judge: <too long" in worst.text()
    assert "<li>item 1 · system z: judge: &lt;too long</li>" in worst.render("html")
    assert "### Not scored\n\n- item 1 · system z: judge: \\<too long" in worst.render("markdown")


def test_json_holds_whole_texts_and_plain_numbers() -> None:
    facts = json.loads(page().render("json"))
    (entry,) = facts["entries"]
    (one,) = entry["outputs"]
    assert (one["source"], one["references"], one["output"]) == (LONG, ["The dog sat."], "The cat sat.")
    assert one["scores"] == {"judge": 1.0, "tiger": -4.0, "broken": None}
    assert one["failures"] == {"broken": "the server is asleep"}
    assert one["explanations"] == {"judge": "It names the wrong animal."}
    assert one["errors"]["tiger"][0]["start"] == 4
    assert one["errors"]["people"][0]["severity"] == "minor"
    assert [row["rank"] for row in page(output("a"), output("b")).rows()] == [1, 1]


def test_html_marks_errors_and_interprets_no_markup() -> None:
    html = page(output(text="The cat <b>sat</b>.", errors=())).render("html")
    assert re.search(r'The <mark class="major"[^>]*>cat<.*?</mark><sup [^>]*>1</sup> &lt;b&gt;sat&lt;/b&gt;\.', html)
    assert html.startswith("<!doctype html>")
    assert "http" not in html
    assert "<script" not in page(output(system="<script>", scores={"<script>": Score(value=1.0)})).render("html")


def test_markdown_quotes_texts_and_escapes_markup() -> None:
    text = page(output(text="The cat *sat*.", errors=())).render("markdown")
    assert "> The **cat** [1] \\*sat\\*.  " in text
    assert "### 1. item 1 · system a" in text
    assert "*judge*: It names the wrong animal." in text


def test_control_characters_never_reach_the_terminal() -> None:
    worst = page(
        output("a\x1b[31m", "out\x1b[2Jput", scores={"judge": Score(value=1.0, explanation="red\x1b[0m")}, errors=()),
        title="t\x1b[1m",
        notes=["n\x1b[1m"],
    )
    for form in ("text", "markdown", "html"):
        assert "\x1b" not in worst.render(form)


@pytest.mark.parametrize("full", [False, True])
def test_a_terminal_shows_the_same_words(full: bool) -> None:
    stream = io.StringIO()
    Console(file=stream, width=200, force_terminal=False).print(page(full=full))
    text = stream.getvalue()
    assert "The cat[1] sat[2]." in text
    assert "1. major -4 Accuracy “cat”: It is a dog. (tiger)" in text
    assert "judge: It names the wrong animal." in text
    assert text.count("middle") == 300 if full else text.count("middle") < 100


def test_an_unknown_form_is_refused() -> None:
    with raises_code(RunError, "unknown_name", "htm", "html"):
        page().render("htm")


def test_empty_texts_and_no_texts() -> None:
    empty = Record(item="1", system="a", output="")
    for form in ("text", "markdown", "html", "json"):
        assert page(output(record=empty, scores={}, errors=())).render(form)
        assert "source" not in page(output(record=None, scores={}, errors=())).render(form)
