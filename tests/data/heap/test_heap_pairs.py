"""The suite's pairs from a file: invented here, and the authors' own if they are available."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from error_codes import raises_code
from metrist import criteria
from metrist.data.heap import add_instructions, read_heap_pairs
from metrist.data.pairs import GoodBad, write_good_bad
from metrist.data.splits import split_by_position
from metrist.errors import InputError, SpecError


def advice(text: str, situation: str = "My bike was stolen.") -> tuple[tuple[str, str], ...]:
    return (("situation", situation), ("advice", text))


PAIR = GoodBad(criterion="AH", good=advice("Tell the police."), bad=advice("Buy a fish."))
MESSAGE = GoodBad(criterion="HSO", good=(("hate speech", "worse"),), bad=(("hate speech", "bad"),))


def saved(folder: Path, *pairs: GoodBad) -> Path:
    write_good_bad(folder / "pairs.jsonl", pairs)
    return folder / "pairs.jsonl"


def test_the_wording_is_chosen_for_all_or_by_code(tmp_path: Path) -> None:
    path = saved(tmp_path, PAIR, MESSAGE)
    assert read_heap_pairs(path, 2)[1].instruction == criteria.find("HSO").instructions[2]
    chosen = read_heap_pairs(path, {"AH": 1})
    assert chosen[0].instruction == criteria.find("AH").instructions[1]
    assert chosen[1].instruction == criteria.find("HSO").instructions[0]


def test_a_wording_that_is_not_there_is_refused() -> None:
    with raises_code(SpecError, "invalid_value", "'AH'", "got 3"):
        add_instructions([PAIR], 3)


def test_a_pair_of_another_suite_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, PAIR, replace(PAIR, criterion="fluency"))
    with raises_code(InputError, "unreadable", "pairs.jsonl", "'task'", "'heap'", "got 'fluency'"):
        read_heap_pairs(path)


def test_fields_that_are_not_the_criterions_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, replace(PAIR, bad=(("advice", "Buy a fish."),)))
    message = r"pairs.jsonl: pair 1: 'bad' of AH must have the fields situation, advice; got advice"
    with pytest.raises(InputError, match=message):
        read_heap_pairs(path)


@pytest.fixture(scope="module")
def authors_pairs(data: Callable[[str], Path]) -> list[GoodBad]:
    return read_heap_pairs(data("heap-pairs"))


def test_the_authors_pairs_are_31767_of_16_criteria_split_by_position(authors_pairs: list[GoodBad]) -> None:
    """The numbers are those of the data's own index; HSO's messages and pairs are those of the authors' code."""
    pairs = authors_pairs
    assert len(pairs) == 31_767
    assert len({pair.criterion for pair in pairs}) == 16
    assert split_by_position(pairs) == pairs
    messages = [pair for pair in pairs if pair.criterion == "HSO"]
    first, second = (
        {text for pair in part for text in pair.answers} for part in (messages[:13_033], messages[13_033:])
    )
    assert (len(messages), len(first), len(second), len(first & second)) == (16_503, 229, 119, 0)


def test_all_pairs_of_the_348_messages_are_as_many_as_table_1_says(authors_pairs: list[GoodBad]) -> None:
    """29,970 in Table 1, 16,503 in the authors' code, which keeps two groups of messages apart."""
    ratings: dict[str, float | None] = {}
    for pair in authors_pairs:
        if pair.criterion == "HSO":
            ratings.update(zip(pair.answers, (pair.good_rating, pair.bad_rating), strict=True))
    tied = sum(count * (count - 1) // 2 for count in Counter(ratings.values()).values())
    assert len(ratings) * (len(ratings) - 1) // 2 - tied == criteria.find("HSO").examples == 29_970
