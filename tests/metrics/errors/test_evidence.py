"""What explanations say about marked words, from the nearest passage of the source."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrist.metrics.errors.evidence import compare, find_facts

SOURCE = (
    "The council met on Monday in Perth. It voted 12 to 3 to build a bridge over the Tay, said mayor Anna Bell. "
    "The bridge will cost $5 million. Work will not begin before March 2031. About 40% of drivers use the tunnel."
)


def find(text: str, words: str) -> tuple[int, int]:
    start = text.index(words)
    return start, start + len(words)


def explain(output: str, passage: str | None, marked: str | None = None) -> tuple[str, str]:
    span = find(output, marked or output)
    findings, revision = compare(
        output, span, (0, len(output)), SOURCE, find(SOURCE, passage) if passage is not None else None
    )
    return " ".join(findings), revision


VOTE = "It voted 12 to 3 to build a bridge over the Tay, said mayor Anna Bell."
COST = "The bridge will cost $5 million."
WORK = "Work will not begin before March 2031."
TUNNEL = "About 40% of drivers use the tunnel."
MEETING = "The council met on Monday in Perth."


@pytest.mark.parametrize(
    ("output", "marked", "passage", "finding", "revision"),
    [
        ("It voted 15 to 3.", None, VOTE, "The source says “12”, not “15”", "It voted 12 to 3."),
        ("It voted 15 to 3.", "15", VOTE, "The source says “12”, not “15”", "12"),
        ("It voted fifteen to 3.", "fifteen", VOTE, "says “12”, not “fifteen”", "12"),
        ("The bridge will cost $6m.", "$6m", COST, "says “$5 million”, not “$6m”", "$5 million"),
        ("The council met on Friday.", None, MEETING, "says “Monday”, not “Friday”", "The council met on Monday."),
        ("Work begins in May 2031.", "May", WORK, "says “March”, not “May”", "March"),
        ("Work begins after 2035.", "2035", WORK, "says “2031”, not “2035”", "2031"),
        ("About 60% use the tunnel.", "60%", TUNNEL, "says “40%”, not “60%”", "40%"),
        ("So said mayor John Smith.", None, VOTE, "says “Anna Bell”, not “John Smith”", "So said mayor Anna Bell."),
        ("So said Mayor John Smith.", "John Smith", VOTE, "says “Anna Bell”, not “John Smith”", "Anna Bell"),
        ("The bridge is in Paris.", None, COST, "The name “Paris” does not occur in the source.", ""),
        ("It met Anna Bell.", "Anna Bell", MEETING, "“Anna Bell” occurs in the source, but not in", ""),
        ("The bridge will cost 40% more.", "40%", COST, "“40%” occurs in the source, but not in the nearest", ""),
        ("The bridge will be in the tunnel.", "tunnel", COST, "“tunnel” does not occur in the nearest passage.", ""),
        ("Work will begin before March 2031.", "will begin", WORK, "The source says “not”", ""),
        ("The bridge will not cost $5 million.", "not", COST, "The output says “not”, the source does not.", ""),
        ("It has 77 lamps.", None, COST, "The number “77” does not occur in the source.", ""),
        ("Work will begin before March 2031.", None, WORK, "The source says “not”", ""),
        ("The bridge will not cost $5 million.", None, COST, "The output says “not”, the source does not.", ""),
        ("The bridge won't cost $5 million.", None, COST, "The output says “won't”, the source does not.", ""),
        ("Penguins dance.", None, None, "“Penguins” and “dance” occur nowhere in the source.", ""),
        ("It will be painted.", "painted", COST, "“painted” occurs nowhere in the source.", ""),
    ],
)
def test_the_source_says_what_is_wrong(
    output: str, marked: str | None, passage: str | None, finding: str, revision: str
) -> None:
    text, suggested = explain(output, passage, marked)
    assert finding in text
    assert suggested == revision


def test_characters_are_those_of_the_source() -> None:
    text, _ = explain("It voted 15 to 3.", VOTE)
    start = SOURCE.index("12")
    assert f"(characters {start} to {start + 2})" in text


@pytest.mark.parametrize(
    ("output", "passage"),
    [
        # The same number, written differently.
        ("The bridge will cost 5 million dollars.", COST),
        ("The vote was twelve to three.", VOTE),
        ("Bridges cost, and the councils voted.", VOTE),
        ("The bridge will cost $5 million.", COST),
        ("", COST),
        ("...", None),
    ],
)
def test_what_the_texts_do_not_show_is_not_said(output: str, passage: str | None) -> None:
    findings, revision = compare(
        output, (0, len(output)), (0, len(output)), SOURCE, find(SOURCE, passage) if passage else None
    )
    assert (findings, revision) == ([], "")


def test_a_revision_that_leaves_something_wrong_is_not_suggested() -> None:
    text, revision = explain("It voted 15 to 3, said mayor Anna Bell in Oslo.", VOTE)
    assert "“12”, not “15”" in text
    assert "“Oslo” does not occur" in text
    assert revision == ""


def test_a_negation_elsewhere_in_the_passage_says_nothing_about_marked_words() -> None:
    assert explain("Work will begin before March 2031.", WORK, "before") == ("", "")
    assert explain("The bridge will not cost $5 million.", COST, "bridge") == ("", "")


def test_names_are_whole() -> None:
    text = "The New York office of Mr Smith's Bank of Perth."
    names = [fact.text for fact in find_facts(text, (0, len(text)))]
    assert names == ["New York", "Smith's Bank of Perth"]


def test_a_revision_that_leaves_unknown_words_is_not_suggested() -> None:
    text, revision = explain("The bridge will cost $6m and open.", COST, "$6m and open")
    assert "“$5 million”, not “$6m”" in text
    assert "“open” occurs nowhere" in text
    assert revision == ""


def test_only_marked_words_are_compared() -> None:
    text, revision = explain("It voted 15 to 3, said mayor John Smith.", VOTE, "15")
    assert "John" not in text
    assert revision == "12"


def test_facts_lie_within_the_characters_that_are_asked_for() -> None:
    text = "In 1999 Ann paid $3.50 for 1,200 eggs, 5 per cent of two dozen, on Friday."
    facts = find_facts(text, (0, len(text)))
    assert [(fact.kind, fact.text) for fact in facts] == [
        ("year", "1999"), ("name", "Ann"), ("money", "$3.50"), ("number", "1,200"), ("percentage", "5 per cent"),
        ("number", "two"), ("day", "Friday"),
    ]  # fmt: skip
    assert all(text[fact.start : fact.end] == fact.text for fact in facts)
    assert [fact.text for fact in find_facts(text, (11, 26))] == ["$3.50"]


@given(st.text(max_size=80), st.text(max_size=80), st.integers(0, 80), st.integers(0, 80))
def test_any_texts_can_be_compared(output: str, source: str, start: int, length: int) -> None:
    start = min(start, len(output))
    marked = (start, min(start + length, len(output)))
    findings, _ = compare(output, marked, (0, len(output)), source, (0, len(source)))
    assert all(findings)


def test_huge_texts_take_no_time() -> None:
    text = "A" * 100_000 + " 1" * 50_000
    findings, _ = compare(text, (0, len(text)), (0, len(text)), text + " x", (0, len(text)))
    assert findings == []
