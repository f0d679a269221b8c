"""What explanations say about marked words, from the nearest passage of the source."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrist.metrics.errors.evidence import align_values, compare, find_contradictions, snap_to_values
from metrist.metrics.errors.facts import find_facts

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
        ("Work begins in May 2031.", "May 2031", WORK, "says “March 2031”, not “May 2031”", "March 2031"),
        ("Work begins in May.", "May", WORK, "says “March”, not “May”", "March"),
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
        ("date", "1999"), ("name", "Ann"), ("money", "$3.50"), ("number", "1,200"), ("percentage", "5 per cent"),
        ("number", "two dozen"), ("weekday", "Friday"),
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
    text = "A" * 100_000 + " 1" * 5_000
    findings, _ = compare(text, (0, len(text)), (0, len(text)), text + " x", (0, len(text)))
    assert findings == []


SHOP = (
    "The basic plan costs €30 a month. The premium plan costs €45 a month, and 5 % less for members. Delivery takes 5 "
    "days, at most 30 minutes from the shop to the post office. The shop has 3.5 million customers and opened on "
    "12 May 2021. In winter it has −5 °C outside, and three lamps."
)


@pytest.mark.parametrize(
    ("sentence", "fact", "source_fact"),
    [
        ("The basic plan costs €60 a month.", "€60", "€30"),
        ("The basic plan costs 9,99 € a month.", "9,99 €", "€30"),
        ("The premium plan costs 54 euros a month.", "54 euros", "€45"),
        # The source has it, for something else.
        ("The premium plan costs €30 a month.", "€30", "€45"),
        ("Members pay 15 percent less for the premium plan.", "15 percent", "5 %"),
        # The nearest of the same kind, not the first number.
        ("From the shop to the post office, delivery takes 60 minutes.", "60 minutes", "30 minutes"),
        ("The shop has 4.5 million customers.", "4.5 million", "3.5 million"),
        ("The shop has two million customers.", "two million", "3.5 million"),
        ("The shop opened on 13 May 2021.", "13 May 2021", "12 May 2021"),
        ("The shop opened on 2021-12-05.", "2021-12-05", "12 May 2021"),
        ("The shop opened in 2012.", "2012", "2021"),
        ("In winter it has 5 °C outside.", "5 °C", "−5 °C"),
        ("In winter it has four lamps outside.", "four", "three"),
    ],
)
def test_another_value_for_the_same_thing_is_a_contradiction(sentence: str, fact: str, source_fact: str) -> None:
    [found] = find_contradictions(sentence, (0, len(sentence)), SHOP)
    assert (found.fact.text, found.source_fact.text) == (fact, source_fact)
    assert SHOP[found.source_fact.start : found.source_fact.end] == source_fact
    assert found.passage[0] <= found.source_fact.start < found.source_fact.end <= found.passage[1]


@pytest.mark.parametrize(
    "sentence",
    [
        "The basic plan costs 30 euros a month.",
        "The basic plan costs 30,00 € a month.",
        "The shop has 3,500,000 customers.",
        "The shop has over three million customers.",
        "The shop has about 4 million customers.",
        "The shop opened on 2021-05-12.",
        "The shop opened in May.",
        "In winter it has minus five °C outside.",
        "In winter it has 3 lamps outside.",
        # Nothing in the source is about that.
        "The owner is 60 years old.",
        "The phone number of the shop is 555-1234.",
        "The shop uses version 2.0.1 of its software.",
        # What is denied may hold for another value.
        "The basic plan does not cost €60 a month.",
    ],
)
def test_what_the_source_does_not_contradict_is_none(sentence: str) -> None:
    assert find_contradictions(sentence, (0, len(sentence)), SHOP) == []


def test_equal_values_are_written_as_in_the_source() -> None:
    output = "It costs 30 euros, opened 2021-05-12, and has 7 lamps."
    aligned = align_values(output, SHOP)
    assert aligned.text == "It costs €30, opened 12 May 2021, and has 7 lamps."
    for words in ("costs", "opened", "and has 7 lamps."):
        start, end = aligned.restore(find(aligned.text, words))
        assert output[start:end] == words
    start, end = aligned.restore(find(aligned.text, "May"))
    assert output[start:end] == "2021-05-12"
    assert aligned.restore((0, len(aligned.text))) == (0, len(output))
    assert align_values("It costs €30.", SHOP).places == ()


def test_marks_have_whole_values() -> None:
    output = "It costs €9.99 and has 4.5 million customers."
    for part in ("€9", "99", "4", "5 million"):
        start, end = snap_to_values(output, find(output, part))
        assert output[start:end] in ("€9.99", "4.5 million")
    assert snap_to_values(output, find(output, "costs")) == find(output, "costs")


@given(st.text(alphabet="12.,€% May", max_size=30), st.text(alphabet="12.,€% May", max_size=30))
def test_aligned_texts_can_be_restored(output: str, source: str) -> None:
    aligned = align_values(output, source)
    assert aligned.restore((0, len(aligned.text))) == (0, len(output))
