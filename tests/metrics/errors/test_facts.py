"""Numbers, amounts, dates and times as values: equal however they are written, and whole."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrist.metrics.errors.facts import Fact, find_facts


def find(text: str) -> list[Fact]:
    return find_facts(text, (0, len(text)), names=False)


def only(text: str) -> Fact:
    [fact] = find(text)
    return fact


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("€9.99", "9,99 €"),
        ("€1,234.50", "1.234,50 EUR"),
        ("30 euros", "€30"),
        ("US$5m", "$5 million"),
        ("£3.2bn", "3.2 billion pounds"),
        ("99p", "99 pence"),
        ("$0.50", "50 cents"),
        ("3.5 million people", "3,500,000 people"),
        ("two", "2"),
        ("twenty-five", "25"),
        ("a hundred and five", "105"),
        ("two thousand", "2,000"),
        ("half a million", "500,000"),
        ("two dozen", "24"),
        ("12,000", "12\u202f000"),
        ("12'000", "12,000"),
        ("735,000", "735 , 000"),
        ("5 percent", "5%"),
        ("five per cent", "5 %"),
        ("-5 °C", "minus five °C"),
        ("−3.2", "-3.2"),
        ("60 minutes", "one hour"),
        ("2 km", "2,000 metres"),
        ("five decades", "50 years"),
        ("3rd", "third"),
        ("12 May 2021", "May 12, 2021"),
        ("2021-05-12", "the 12th of May 2021"),
        ("12.05.2021", "12 May 2021"),
        ("Sept. 3", "3 September"),
        ("2021", "12 May 2021"),
        ("5pm", "17:00"),
        ("9:30 a.m.", "9:30"),
        ("noon", "12:00"),
        ("midnight", "00:00"),
        ("half past two", "14:30"),
        ("a quarter to six", "5:45"),
        ("Twenty-five past 9", "21:25"),
        ("nine o'clock", "9 am"),
        ("twelve o’clock", "12:00"),
        ("five to one", "12:55"),
        ("+44 20 7946 0958", "+44 (20) 7946-0958"),
        # Rounded, and said to be so.
        ("3.5 million", "3,512,000"),
        ("€10", "€9.99"),
        ("about 3,000", "2,987"),
    ],
)
def test_values_are_equal_however_they_are_written(text: str, source: str) -> None:
    assert only(text).equals(only(source))


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("€9.99", "€9.90"),
        ("€30", "$30"),
        ("30%", "€30"),
        ("3.5 million", "3.5 billion"),
        ("-5", "5"),
        ("12 May 2021", "13 May 2021"),
        ("12 May 2021", "May 2021"),
        ("1998", "1989"),
        ("2.0.1", "2.0.10"),
        ("version 3.1", "version 3.10"),
        ("third", "3"),
        ("5pm", "5am"),
        ("60 minutes", "60 hours"),
        ("3,512,000", "3.5 million"),
        ("31", "30"),
    ],
)
def test_other_values_are_not(text: str, source: str) -> None:
    assert not only(text).equals(only(source))


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("It costs US$1.5m, not €9.99.", ["US$1.5m", "€9.99"]),
        ("Rain: 10-20 mm, -5 °C to 3 °C.", ["10", "20 mm", "-5 °C", "3 °C"]),
        ("They won 3-2 on 12 May 2021.", ["3", "2", "12 May 2021"]),
        ("Call 555-1234 or (555) 123-4567.", ["555-1234", "(555) 123-4567"]),
        ("Version 2.0.1 follows version 1.9", ["2.0.1", "1.9"]),
        ("From $1.2 million to 98.7 per cent.", ["$1.2 million", "98.7 per cent"]),
        ("A five-year-old, 735,000 followers.", ["five-year", "735,000"]),
    ],
)
def test_facts_are_whole(text: str, facts: list[str]) -> None:
    assert [fact.text for fact in find(text)] == facts


@pytest.mark.parametrize(
    "text",
    [
        "COVID-19, A4, F-16, 5G and MP3",
        "the 1980s and the 1990's",
        "One of them, no one, one another",
        "two-thirds, one third, 3/4, 24/7",
        "As he said [1], and others [2, 3].",
        "1. First come",
        "May I ask?",
    ],
)
def test_what_is_no_quantity_has_no_value(text: str) -> None:
    assert [fact for fact in find(text) if fact.kind not in ("ordinal",)] == []


def test_a_point_before_three_digits_has_two_readings() -> None:
    assert only("1.234").values == (1.234, 1234.0)
    assert only("1.234").equals(only("1,234"))


def test_a_bound_differs_only_from_what_it_excludes() -> None:
    assert not only("more than $1 million").differs(only("$181 million"))
    assert only("more than $200 million").differs(only("$181 million"))
    assert only("under 20").differs(only("25"))


def test_a_date_that_says_less_contradicts_none() -> None:
    assert only("12 May 2021").agrees(only("in May"))
    assert not only("12 May 2021").differs(only("in May"))
    assert only("13 May").differs(only("12 May 2021"))
    assert only("1989").narrow(only("12 May 1998")).text == "1998"
    assert only("in April").narrow(only("12 May 1998")).text == "May"


@given(st.text(alphabet="0123456789.,:-–/$€% abmpkst'", max_size=60))
def test_any_text_has_facts_in_order(text: str) -> None:
    facts = find_facts(text, (0, len(text)))
    assert all(text[fact.start : fact.end] == fact.text for fact in facts)
    assert all(one.end <= other.start for one, other in pairwise(facts))
    assert all(fact.equals(fact) for fact in facts)


@pytest.mark.parametrize(
    "text", ["1-" * 20_000, "1 , 000" * 3_000, "two hundred and " * 3_000, "(0" * 3_000, "9." * 20_000]
)
def test_long_texts_take_no_time(text: str) -> None:
    find(text)
