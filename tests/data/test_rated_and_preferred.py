"""Preferences and ratings of the same aspect: which make a pair, how the cap applies, and how they are split."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from judged_pairs import AIM, SOURCE, Row, build, write

from error_codes import raises_code
from metrist.data.build import Splitting, build_pairs, share_above
from metrist.data.judgments import read_judgments
from metrist.data.leaks import leaks
from metrist.data.pairs import Shape
from metrist.data.rules import Aim, Rules
from metrist.errors import InputError


def preferred_row(item: str, systems: str, value: int, outputs: list[str] | None = None, **more: Any) -> Row:
    texts = outputs or [f"text of {system} for {item}" for system in systems]
    return {"item": item, "systems": list(systems), "outputs": texts, "ratings": {"fluency": [value]}, **more}


def test_preferences_across_contexts_are_dropped_as_ratings_are(tmp_path: Path) -> None:
    judged = read_judgments([write(tmp_path, [preferred_row("1", "ab", 1, source="the one source")])])
    judged.records["1", "b"] = replace(judged.records["1", "b"], source="another source")
    with raises_code(InputError, "too_little_data", "'fluency'"):
        build_pairs(judged, [AIM], Rules(), SOURCE)
    result = build_pairs(judged, [AIM], Rules(within="all"), SOURCE).pairs
    assert [pair.contexts for pair in result] == [("the one source", "another source")]


@pytest.mark.parametrize("empty", ["", " \n"])
def test_empty_outputs_make_no_pair(tmp_path: Path, empty: str) -> None:
    texts = ["o0", "o1", empty]
    rows = [
        {"item": "1", "system": f"s{at}", "output": text, "ratings": {"fluency": [at]}} for at, text in enumerate(texts)
    ]
    built = build(tmp_path, rows, Rules(), shape=Shape())
    assert [pair.answers for pair in built.pairs] == [("o1", "o0")]
    assert built.accounts[0].dropped == {"empty text": 2}
    compared = [preferred_row("1", "ab", 2, ["x", empty]), preferred_row("2", "ab", 1)]
    built = build(tmp_path, compared, Rules(), shape=Shape())
    assert [pair.item for pair in built.pairs] == ["2"]
    assert built.accounts[0].dropped == {"empty text": 1}


def rated_and_preferred(items: int = 1) -> list[Row]:
    """Six systems rated in the order of their names, the last highest; people who saw neighbours took the first."""
    rows: list[Row] = []
    for item in map(str, range(items)):
        rows += [
            {"item": item, "system": system, "output": f"text of {system} for {item}", "ratings": {"fluency": [at]}}
            for at, system in enumerate("abcdef")
        ]
        rows += [preferred_row(item, "abcdef"[at : at + 2], 1) for at in range(5)]
    return rows


def test_compared_texts_are_not_paired_again_by_ratings(tmp_path: Path) -> None:
    built = build(tmp_path, rated_and_preferred(), Rules(), shape=Shape())
    # Of the 15 couples the 5 of neighbours are in the order of the preference, all others in that of the ratings.
    expected = {
        (first, second) if ord(second) - ord(first) == 1 else (second, first)
        for first, second in combinations("abcdef", 2)
    }
    assert {pair.systems for pair in built.pairs} == expected
    assert len(built.pairs) == 15
    assert built.accounts[0].possible == 20
    assert built.accounts[0].dropped == {"compared": 5}


@pytest.mark.parametrize("within", ["item", "all"])
def test_a_cap_holds_for_ratings_and_preferences_together(tmp_path: Path, within: Any) -> None:
    built = build(tmp_path, rated_and_preferred(items=8), Rules(cap=2, within=within), shape=Shape())
    taking_part = Counter(
        item for pair in built.pairs for item in {answer.rsplit(maxsplit=1)[1] for answer in pair.answers}
    )
    assert max(taking_part.values()) == 2
    assert built.accounts[0].adds_up


def test_two_comparisons_of_the_same_texts_are_one_pair(tmp_path: Path) -> None:
    rows = [preferred_row("1", "ab", 1, ["x", "y"]), preferred_row("1", "cd", 1, ["x", "y"])]
    built = build(tmp_path, rows, Rules(), shape=Shape())
    assert len(built.pairs) == 1
    assert built.accounts[0].dropped == {"repeated": 1}


def test_preferences_are_split_with_ratings_of_all_items(tmp_path: Path) -> None:
    rows = [row for row in rated_and_preferred(items=60) if row.get("system", "a") in "ab"]
    for row in rows:
        if "systems" in row:
            row["ratings"] = {"overall": [1]}
        row["source"] = f"one{row['item']} source{row['item']} text{row['item']}"
    aims = [AIM, Aim(aspect="overall", criterion="overall")]
    splitting = Splitting(shares=(0.6, 0.2, 0.2))
    built = build_pairs(read_judgments([write(tmp_path, rows)]), aims, Rules(within="all", cap=3), SOURCE, splitting)
    assert [account.criterion for account in built.accounts if account.adds_up] == ["fluency", "overall"]
    sides = Counter(pair.split for pair in built.pairs if pair.criterion == "overall")
    # 60 items with 5 preferences each, of which the cap leaves 3.
    assert sides.total() == built.accounts[1].kept == 180
    assert set(sides) == {"train", "dev", "test"}
    assert all(row.elsewhere == 0 for row in leaks(built.pairs))


def test_a_few_raters_in_common_do_not_decide_alone() -> None:
    first, second = [("r", 5.0), ("s", 1.0), ("t", 1.0)], [("r", 4.0), ("x", 5.0), ("y", 5.0)]
    # r alone would be sure. Of the nine comparisons, 5 > 4 counts 1, 5 = 5 twice a half, all others nothing.
    assert share_above(first, second) == pytest.approx(2 / 9)
    assert share_above(second, first) == pytest.approx(7 / 9)
    # r and s gave four of these five values, and both put the first higher.
    assert share_above(first[:2], [("r", 4.0), ("s", 0.0), ("x", 5.0)]) == 1.0
    # A common rater who judged one of them twice counts twice.
    assert share_above([("r", 2.0), ("r", 4.0)], [("r", 3.0)]) == 0.5


def named_row(system: str, values: list[float | None], raters: list[str | None] | None = None, item: str = "1") -> Row:
    row = {"item": item, "system": system, "output": f"text of {system}", "ratings": {"fluency": values}}
    return row if raters is None else {**row, "raters": raters}


RATERS: list[str | None] = ["ann", "bob", "cy"]


def test_a_rater_who_skipped_one_output_does_not_decide(tmp_path: Path) -> None:
    rows = [named_row("a", [5, 1, 1], RATERS), named_row("b", [4, None, 2], RATERS)]
    # By hand: ann and cy give a 5 + 1 and b 4 + 2, a tie. All values would give a 2.33 and b 3, as bob skipped b.
    with raises_code(InputError, "too_little_data"):
        build(tmp_path, rows, Rules(), shape=Shape())
    rows[1]["ratings"]["fluency"] = [3, None, 2]
    result = build(tmp_path, rows, Rules(), shape=Shape()).pairs
    assert [(pair.systems, pair.good_rating, pair.bad_rating) for pair in result] == [(("a", "b"), 3.0, 2.5)]
    # Unless all raters are named, it is unknown who skipped what: all values count.
    rows = [named_row("a", [5, 1, 1], ["ann", None, "cy"]), named_row("b", [3, None, 2], RATERS)]
    result = build(tmp_path, rows, Rules(), shape=Shape()).pairs
    assert [(pair.systems, pair.good_rating) for pair in result] == [(("b", "a"), 2.5)]


def test_outputs_without_a_rater_in_common_make_no_pair(tmp_path: Path) -> None:
    rows = [named_row("a", [5], ["ann"]), named_row("b", [3], ["bob"]), named_row("c", [4, 4], ["ann", "bob"])]
    built = build(tmp_path, rows, Rules(), shape=Shape())
    assert {pair.systems for pair in built.pairs} == {("a", "c"), ("c", "b")}
    assert built.accounts[0].dropped == {"no common rater": 1}
    for row in rows:
        del row["raters"]
    assert len(build(tmp_path, rows, Rules(), shape=Shape()).pairs) == 3


@pytest.mark.parametrize("wrong", [0.5, 2, -1])
def test_a_choice_is_one_or_nothing(tmp_path: Path, wrong: float) -> None:
    rows = [named_row("a", [1]), named_row("b", [0]), named_row("c", [0, wrong], item="7")]
    judged = read_judgments([write(tmp_path, rows)])
    with raises_code(InputError, "invalid_value", "'fluency'", f"got {wrong:g}", "'7'", "'c'"):
        build_pairs(judged, [replace(AIM, choice=True)], Rules(), Shape())
