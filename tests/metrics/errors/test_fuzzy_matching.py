"""The quick ways to the nearest part of a text find what the plain ones find."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from call_counts import count_calls
from metrist.metrics.errors import fuzzy_matching
from metrist.metrics.errors.fuzzy_matching import (
    CLEAR_LEAD,
    MAX_EDITED,
    FuzzyMatch,
    WordTable,
    edit_distances,
    edit_distances_along,
)
from metrist.metrics.errors.span_alignment import align_quotes

Column = list[tuple[float, int]]


def _cost(word_a: str, word_b: str) -> float:
    return edit_distances(word_a, word_b, anywhere=False)[-1] / max(len(word_a), len(word_b))


def _all_ends(expected: Sequence[str], words: Sequence[str]) -> Column:
    """The whole table of edits, without any short cut: (edits, words) of the best alignment that ends at each word."""
    column, ends = [(float(k), 0) for k in range(len(expected) + 1)], []
    for word in words:
        after: Column = [(0.0, 0)]
        for k, word_a in enumerate(expected, 1):
            changed, extra, missing = column[k - 1], column[k], after[k - 1]
            choices = (
                (changed[0] + _cost(word_a, word), changed[1] + 1),
                (extra[0] + 1, extra[1] + 1),
                (missing[0] + 1, missing[1]),
            )
            after.append(min(choices, key=lambda choice: choice[0]))
        column = after
        ends.append(column[-1])
    return ends


def _plainly(form: str, text: str) -> FuzzyMatch | None:
    expected, words = re.findall(r"\w+", form), list(re.finditer(r"\w+", text))
    ends = _all_ends(expected, [word.group() for word in words])
    best = min(range(len(ends)), key=lambda at: (round(ends[at][0], 6), abs(ends[at][1] - len(expected))))
    edited, length = ends[best]
    if edited > MAX_EDITED * len(expected) or not length:
        return None
    least = CLEAR_LEAD * len(expected)
    lead = all(ends[at][0] - edited >= least for at in range(len(ends)) if abs(at - best) >= least)
    first, last = words[best - length + 1], words[best]
    borders = max(_cost(expected[0], first.group()), _cost(expected[-1], last.group()))
    return FuzzyMatch(first.start(), last.end(), lead and borders < 0.5, 1 - edited / len(expected))


def _case(rng: random.Random) -> tuple[str, str]:
    """A text of few or many distinct words, and some of its words after a few edits."""
    letters = rng.choice(["ab", "abcdef", "abcdefghijklmnopqrstuvwxyz", "äöé한국中文"])

    def word() -> str:
        return "".join(rng.choices(letters, k=rng.choice([1, 2, 3, 5, 8, 12])))

    known = [word() for _ in range(rng.choice([3, 8, 30, 100]))]
    words = rng.choices(known, k=rng.choice([3, 10, 40, 150]))
    at = rng.randrange(len(words))
    quoted = [*words[at : at + rng.choice([3, 5, 8, 15])], word(), word()][: rng.randint(3, 17)]
    for _ in range(rng.randrange(4)):
        place = rng.randrange(len(quoted))
        quoted[place : place + 1] = rng.choice(
            [[word()], [quoted[place], word()], [quoted[place][:-1] + rng.choice(letters)]]
        )
    return " ".join(quoted), " ".join(words)


def test_the_nearest_words_are_those_of_the_whole_table() -> None:
    rng = random.Random(5)
    result = 0
    for form, text in (_case(rng) for _ in range(300)):
        match = fuzzy_matching.find_nearest(form, text)
        if len(form) >= fuzzy_matching.MIN_CHARACTERS:
            assert match == _plainly(form, text), (form, text)
        result += match is not None
    assert result > 100


_SOME_WORDS = st.lists(st.text("abcé中", min_size=1, max_size=6) | st.text("ab", min_size=60, max_size=70), min_size=1)


@given(_SOME_WORDS, _SOME_WORDS)
def test_words_compared_together_are_compared_as_one_by_one(expected: list[str], words: list[str]) -> None:
    table = WordTable(words)
    assert table.edit_shares(expected).tolist() == [[_cost(word_a, word_b) for word_b in words] for word_a in expected]


@given(st.text("abc ", min_size=1, max_size=30), st.text("abc ", min_size=1, max_size=60))
def test_edits_row_by_row_are_those_character_by_character(form: str, text: str) -> None:
    assert edit_distances_along(form, text).tolist() == edit_distances(form, text, anywhere=True)


@pytest.mark.parametrize("quote", [" ".join(f"v{n}" for n in range(100, 120)), "zyxwvutsrq ponmlk"])
def test_a_quote_that_is_not_in_a_long_text_is_given_up_soon(quote: str) -> None:
    rng = random.Random(0)
    text = " ".join(f"w{rng.randrange(5000)}" for _ in range(30_000))
    # Comparing the 20 words of the quote with the 30,000 of the text one by one would take 600,000 calls.
    assert count_calls(lambda: align_quotes([quote], text)) < 300_000
    assert align_quotes([quote], text) == [None]
