"""Outputs on a page: errors with their reasons, differences word by word, nothing interpreted."""

from __future__ import annotations

from dataclasses import replace

from metrist.ratings import Error
from metrist.records import Record
from metrist.report.output_card import MAX_CHARACTERS, MarkedText, OutputCard, find_changes
from metrist.report.outputs import WorstEntry, WorstOutputs
from metrist.scores import Score

ATTACK = "<img src=x onerror=alert(1)>\x00\x1b[31m\u202e"


def make_output(text: str, system: str = "a", errors: tuple[Error, ...] = (), **fields: object) -> OutputCard:
    record = Record(item="1", system=system, output=text, source="the source", references=("one", "two"))
    scores = {"judge": Score(value=0.5, errors=errors, explanation="It is wrong.")}
    return OutputCard(item="1", system=system, scores=scores, record=record, **fields)


def write(*outputs: OutputCard, reason: str = "") -> str:
    entry = WorstEntry(outputs=outputs, value=0.5, reason=reason)
    worst = WorstOutputs(title="t", entries=[entry], decimals={"judge": 2})
    return worst._repr_html_().partition("</style>")[2]


def test_an_error_is_marked_and_tells_its_reason() -> None:
    error = Error(aspect="facts", severity="major", penalty=2.0, explanation="not in the source", start=4, end=7)
    page = write(make_output("the cat sat", errors=(error,)))
    assert '<mark class="major" tabindex="0" aria-describedby="tip-1">cat<span class="tip" role="tooltip"' in page
    assert "1. major facts: not in the source (judge)" in page
    assert "It is wrong." in page
    assert "judge <b>0.50</b>" in page


def test_an_error_that_errors_repeats_from_its_model_is_shown_once() -> None:
    mark = Error(aspect="facts", severity="major", penalty=2.0, explanation="not there", start=4, end=7)
    other = replace(mark, aspect="Fluency", rater="fluency", start=0, end=3)
    scores = {
        "consistency": Score(value=0.5, errors=(mark,)),
        "errors": Score(value=-4.0, errors=(other, replace(mark, rater="consistency"))),
    }
    numbered, names = OutputCard(item="1", system="a", scores=scores).number_errors()
    assert [error for _, error in numbered] == [mark, other]
    assert names == {1: "consistency, errors", 2: "errors"}


def test_where_errors_overlap_the_worst_gives_the_colour() -> None:
    errors = [
        (1, Error(aspect="a", severity="minor", start=0, end=7)),
        (2, Error(aspect="b", severity="critical", start=4, end=7)),
    ]
    pieces = list(MarkedText(name="output", text="the cat sat", errors=errors).pieces())
    assert [(piece.text, piece.severity, len(piece.notes)) for piece in pieces] == [
        ("the ", "minor", 1),
        ("cat", "critical", 2),
        (" sat", "", 0),
    ]


def test_words_that_only_one_text_has_are_changes() -> None:
    first, second = find_changes("the old cat sat", "the cat sat down")
    assert [first, second] == [[(4, 7)], [(12, 16)]]
    assert find_changes("同じ文", "同じ字") == ([(2, 3)], [(2, 3)])
    assert find_changes("x " * 5000, "y " * 5000) == ([], [])


def test_two_outputs_stand_side_by_side() -> None:
    page = write(make_output("the old cat"), make_output("the cat", system="b"), reason="b is better")
    assert '<div class="beside">' in page
    assert 'the <b class="changed">old</b> cat' in page
    assert page.count("References and source") == 1


def test_texts_are_escaped() -> None:
    output = make_output(ATTACK, system=ATTACK, ratings={ATTACK: (1.0, 1)}, percentiles={"people": 3.0})
    page = write(output, reason=ATTACK)
    assert not any(text in page for text in ("<img", "\x00", "\x1b", "\u202e"))
    assert "&lt;img src=x onerror=alert(1)&gt;\\x00\\x1b[31m\\u202e" in page


def test_a_very_long_text_is_cut() -> None:
    page = write(make_output("x" * 1_000_000))
    assert len(page) < 2 * MAX_CHARACTERS
    assert "980,000 more characters are not shown" in page


def test_a_script_gets_places_as_javascript_counts_them() -> None:
    errors = (
        Error(aspect="a", severity="Major", start=2, end=5, text="bad"),
        Error(aspect="b", severity=None, start=1, end=3, side="source", rater="R1"),
        Error(aspect="c", severity="minor"),
    )
    card = make_output("😀 bad", errors=errors).for_script()
    assert (card["output"], card["source"], card["references"]) == ("😀 bad", "the source", ["one", "two"])
    assert [(error["severity"], error.get("start"), error.get("end")) for error in card["errors"]] == [
        ("major", 3, 6),
        ("neutral", 1, 3),
        ("minor", None, None),
    ]
    assert card["errors"][1]["text"] == "error b by R1"
    assert card["said"] == [{"by": "judge", "explanation": "It is wrong."}]
    assert make_output("x" * 100).for_script(10)["output"] == "x" * 10 + "\n[… 90 more characters]"


def test_a_card_without_texts_is_drawn() -> None:
    card = OutputCard(item="1", system="a", scores={"judge": Score.failed("busy", raw="?")})
    assert card.for_script()["output"] is None
    assert card.for_script()["said"] == [{"by": "judge", "failure": "busy", "raw": "?"}]
    assert "no score: busy" in write(card)


def test_a_passage_of_the_source_is_quoted_once_and_places_and_penalties_stay_away() -> None:
    """The explanation is as `consistency` writes it."""
    says = "Not supported (characters 4 to 7). The nearest passage, characters 0 to 10 of the source: “the source”"
    error = Error(aspect="facts", severity="major", penalty=2.5, explanation=says, source_start=0, source_end=10)
    errors = tuple(replace(error, start=n, end=n + 1) for n in range(3))
    page = write(make_output("the cat sat", errors=errors)).partition("References and source")[0]
    assert page.count("“the source”") == 1
    assert "Nearest in the source (1, 2, 3):" in page
    assert "characters" not in page
    assert "-2.5" not in page
    script = make_output("the cat sat", errors=errors).for_script()
    assert script["passages"] == [("1, 2, 3", "the source")]


def test_the_instruction_is_on_the_card_and_shown_once_for_two_outputs() -> None:
    record = Record(item="1", system="a", output="yes", instruction="Is it?", source="the source")
    cards = [OutputCard(item="1", system=s, scores={}, record=replace(record, system=s)) for s in ("a", "b")]
    page = write(*cards)
    assert page.count("Is it?") == 1
    assert page.index("Is it?") < page.index("yes") < page.index("References and source")
