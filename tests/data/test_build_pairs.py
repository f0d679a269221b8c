"""Pairs from judgments, checked against a naive enumeration of all pairs written here."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from statistics import mean, median, multimode
from typing import Any

import pytest
from judged_pairs import AIM, SOURCE, Row, build, write

from error_codes import raises_code
from metrist.data.build import Splitting, build_pairs
from metrist.data.judgments import read_judgments
from metrist.data.leaks import leaks
from metrist.data.pairs import GoodBad, Shape
from metrist.data.rules import Aim, Rules
from metrist.errors import ErrorCode, InputError, SpecError

WAYS: dict[str, Callable[[list[float]], float]] = {
    "mean": mean,
    "median": median,
    "majority": lambda values: mean(multimode(values)),
}


def rated_rows(seed: int, items: int = 12, systems: int = 5, raters: int = 3) -> list[Row]:
    rng = random.Random(seed)
    return [
        {
            "item": f"i{item}",
            "system": f"s{system}",
            "source": f"one{item} source{item} text{item} of{item} item{item}",
            "output": f"output{rng.randint(0, 20)} for{item} this{item}",
            "ratings": {"fluency": [rng.randint(1, 4) for _ in range(raters)]},
        }
        for item in range(items)
        for system in range(systems)
    ]


def naive(rows: list[Row], rules: Rules, sign: int = 1) -> tuple[Counter[tuple[str, str, str]], Counter[str]]:
    """(item, good output, bad output) and the reasons, by looking at each two rows."""
    expected_pairs: Counter[tuple[str, str, str]] = Counter()
    reasons: Counter[str] = Counter()
    for first, second in combinations(rows, 2):
        if first["item"] != second["item"]:
            continue
        values = [sign * WAYS[rules.aggregate](row["ratings"]["fluency"]) for row in (first, second)]
        good, bad = (first, second) if values[0] > values[1] else (second, first)
        result = (first["item"], good["output"], bad["output"])
        if first["output"] == second["output"]:
            reasons["same text"] += 1
        elif abs(values[0] - values[1]) < 1e-12:
            reasons["tie"] += 1
        elif abs(values[0] - values[1]) < rules.margin - 1e-12:
            reasons["below margin"] += 1
        elif result in expected_pairs:
            reasons["repeated"] += 1
        else:
            expected_pairs[result] += 1
    return expected_pairs, reasons


def as_triples(pairs: list[GoodBad]) -> Counter[tuple[str, str, str]]:
    return Counter((pair.item, *pair.answers) for pair in pairs)


@pytest.mark.parametrize("aggregate", ["mean", "median", "majority"])
@pytest.mark.parametrize("margin", [0.0, 1 / 3, 1.0])
def test_pairs_and_reasons_are_those_of_looking_at_all_pairs(tmp_path: Path, aggregate: Any, margin: float) -> None:
    rows = rated_rows(seed=3)
    rules = Rules(aggregate=aggregate, margin=margin)
    built = build(tmp_path, rows, rules)
    expected_pairs, reasons = naive(rows, rules)
    account = built.accounts[0]
    assert as_triples(built.pairs) == expected_pairs
    assert account.dropped == reasons
    assert account.possible == 12 * 10 == account.kept + account.dropped.total()
    assert account.adds_up


def test_no_order_of_rows_or_of_unknown_raters_changes_a_pair(tmp_path: Path) -> None:
    rows = rated_rows(seed=4)
    rules = Rules(cap=3, certainty="shares", seed=7)
    splitting = Splitting(shares=(0.5, 0.25, 0.25))
    first = build(tmp_path, rows, rules, splitting=splitting)
    random.Random(0).shuffle(rows)
    for row in rows:
        row["ratings"]["fluency"].reverse()
    assert build(tmp_path, rows, rules, splitting=splitting) == first


def test_opposite_aspects_turn_the_order_and_the_ratings_round(tmp_path: Path) -> None:
    rows = rated_rows(seed=5)
    opposite = Aim(aspect="fluency", criterion="clumsiness", opposite=True)
    built = build(tmp_path, rows, Rules(), opposite)
    assert as_triples(built.pairs) == naive(rows, Rules(), sign=-1)[0]
    assert built.accounts[0].good == "lower fluency"
    assert all(pair.good_rating > pair.bad_rating for pair in built.pairs if pair.bad_rating is not None)  # type: ignore[operator]


def test_soft_ties_keep_equal_ratings_with_half_certainty(tmp_path: Path) -> None:
    rows = rated_rows(seed=6)
    built = build(tmp_path, rows, Rules(ties="soft"))
    expected_pairs, reasons = naive(rows, Rules())
    soft = [pair for pair in built.pairs if pair.certainty == 0.5]
    repeated = built.accounts[0].dropped["repeated"] - reasons["repeated"]
    assert len(soft) + repeated == reasons["tie"]
    assert as_triples([pair for pair in built.pairs if pair.certainty == 1]) == expected_pairs
    assert built.accounts[0].adds_up
    assert built.accounts[0].soft == len(soft)


def test_certainty_is_the_share_of_raters_who_agree(tmp_path: Path) -> None:
    rows = [
        {"item": "1", "system": "a", "output": "x", "ratings": {"fluency": [4, 4, 1]}, "raters": ["r", "s", "t"]},
        {"item": "1", "system": "b", "output": "y", "ratings": {"fluency": [3, 4, 1]}, "raters": ["r", "s", "t"]},
        {"item": "2", "system": "a", "output": "x", "ratings": {"fluency": [4, 2]}},
        {"item": "2", "system": "b", "output": "y", "ratings": {"fluency": [1, 3]}},
        {"item": "3", "system": "a", "output": "x", "ratings": {"fluency": [9, 1, 1]}, "raters": ["r", "s", "t"]},
        {"item": "3", "system": "b", "output": "y", "ratings": {"fluency": [2, 2, 2]}, "raters": ["r", "s", "t"]},
    ]
    built = build(tmp_path, rows, Rules(certainty="shares"), shape=Shape())
    # Item 1: one rater of three for a, two undecided. Item 2: 4 > 1, 4 > 3, 2 > 1 of four comparisons. Item 3: the
    # mean is for a, two of three raters are for b.
    assert [(pair.item, pair.certainty) for pair in built.pairs] == [("1", pytest.approx(2 / 3)), ("2", 0.75)]
    assert built.accounts[0].dropped == {"raters split": 1}
    soft = build(tmp_path, rows, Rules(certainty="shares", ties="soft"), shape=Shape())
    assert [pair.certainty for pair in soft.pairs] == [pytest.approx(2 / 3), 0.75, 0.5]


def test_equal_means_are_ties_despite_rounding(tmp_path: Path) -> None:
    rows = [
        {"item": "1", "system": "a", "output": "x", "ratings": {"fluency": [0.1, 0.2]}},
        {"item": "1", "system": "b", "output": "y", "ratings": {"fluency": [0.15]}},
        {"item": "1", "system": "c", "output": "z", "ratings": {"fluency": [0.45]}},
    ]
    built = build(tmp_path, rows, Rules(margin=0.3), shape=Shape())
    assert [pair.systems for pair in built.pairs] == [("c", "a"), ("c", "b")]
    assert built.accounts[0].dropped == {"tie": 1}


def test_a_cap_draws_from_each_item_by_the_seed(tmp_path: Path) -> None:
    rows = rated_rows(seed=8)
    everything = as_triples(build(tmp_path, rows, Rules()).pairs)
    drawn = [build(tmp_path, rows, Rules(cap=2, seed=seed)) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    for built in drawn:
        assert as_triples(built.pairs) <= everything
        per_item = Counter(pair.item for pair in built.pairs)
        expected = {item: min(2, count) for item, count in Counter(item for item, _, _ in everything).items()}
        assert per_item == expected
        assert built.accounts[0].adds_up


def test_outputs_of_all_items_are_paired_on_request(tmp_path: Path) -> None:
    rows = rated_rows(seed=9, items=20, systems=1, raters=1)
    built = build(tmp_path, rows, Rules(within="all"))
    values = {row["source"]: row["ratings"]["fluency"][0] for row in rows}
    expected = sum(values[first] != values[second] for first, second in combinations(values, 2))
    assert len(built.pairs) == expected
    assert all(values[pair.good[0][1]] > values[pair.bad[0][1]] for pair in built.pairs)
    assert built.accounts[0].possible == 190
    assert built.accounts[0].adds_up
    assert {pair.item for pair in built.pairs} == {""}


def test_no_item_takes_part_in_more_pairs_than_the_cap(tmp_path: Path) -> None:
    rows = rated_rows(seed=10, items=40, systems=2)
    built = build(tmp_path, rows, Rules(within="all", cap=3, seed=2))
    taking_part = Counter(text for pair in built.pairs for text in {pair.good[0][1], pair.bad[0][1]})
    assert max(taking_part.values()) == 3
    assert mean(taking_part.values()) > 2.5
    assert built.accounts[0].possible == 80 * 79 // 2
    assert built.accounts[0].adds_up
    assert build(tmp_path, rows[::-1], Rules(within="all", cap=3, seed=2)) == built


def test_pairs_across_items_never_cross_the_split(tmp_path: Path) -> None:
    rows = rated_rows(seed=11, items=60, systems=1)
    for row in rows:
        row["output"] += f" {row['item']}"
    built = build(tmp_path, rows, Rules(within="all", cap=4), splitting=Splitting(shares=(0.6, 0.2, 0.2)))
    assert {pair.split for pair in built.pairs} == {"train", "dev", "test"}
    sides: dict[str, set[str | None]] = {}
    for pair in built.pairs:
        for context in pair.contexts:
            sides.setdefault(context, set()).add(pair.split)
    assert all(len(side) == 1 for side in sides.values())
    assert built.accounts[0].dropped["on two sides"] > 0
    assert built.accounts[0].adds_up


def test_too_many_pairs_across_items_need_a_cap(tmp_path: Path) -> None:
    rows = [{"item": str(at), "output": f"o{at}", "ratings": {"fluency": [at]}} for at in range(1500)]
    with raises_code(SpecError, "invalid_value", "1,500", "1,124,250", "'fluency'"):
        build(tmp_path, rows, Rules(within="all"), shape=Shape())


def test_preferences_become_pairs_in_either_order_of_systems(tmp_path: Path) -> None:
    def row(item: int, systems: list[str], values: list[int]) -> Row:
        outputs = [f"text of {system}" for system in systems]
        return {"item": item, "systems": systems, "outputs": outputs, "ratings": {"preference": values}}

    rows = [row(1, ["b", "a"], [1, 1, 2]), row(2, ["a", "b"], [2]), row(3, ["a", "b"], [0]), row(4, ["a", "b"], [1, 2])]
    rows += [row(5, ["a", "b"], [1]), row(5, ["b", "a"], [2]), row(6, ["a", "b"], [1, 0])]
    aim = Aim(aspect="preference", criterion="overall")
    built = build(tmp_path, rows, Rules(certainty="shares"), aim, shape=Shape())
    result = {pair.item: (pair.systems, round(pair.certainty, 4)) for pair in built.pairs}
    assert result == {
        "1": (("b", "a"), 0.6667),
        "2": (("b", "a"), 1.0),
        "5": (("a", "b"), 1.0),
        "6": (("a", "b"), 0.75),
    }
    assert built.accounts[0].dropped == {"tie": 2}
    assert built.accounts[0].possible == 6
    turned = build(tmp_path, rows, Rules(), Aim(aspect="preference", criterion="x", opposite=True), shape=Shape())
    assert {pair.item: pair.systems[0] for pair in turned.pairs if pair.systems} == {
        "1": "a",
        "2": "a",
        "5": "b",
        "6": "b",
    }
    soft = build(tmp_path, rows, Rules(ties="soft"), aim, shape=Shape())
    assert {pair.item for pair in soft.pairs if pair.certainty == 0.5} == {"3", "4"}


def test_real_preferences_give_the_counts_of_their_labels(data: Callable[[str], Path]) -> None:
    # Counted from the files: pandalm by the sum of the signs of three raters, where no text is empty (54 are); llmbar
    # has one pair of equal texts and one empty text.
    pandalm = read_judgments([data("pandalm")])
    full = {key for key, record in pandalm.records.items() if record.output.strip()}
    signs = [
        sum(sign for _, sign in values)
        for (item, *systems), values in pandalm.preferences["preference"].items()
        if all((item, system) in full for system in systems)
    ]
    built = build_pairs(pandalm, [Aim(aspect="preference", criterion="overall")], Rules(), SOURCE)
    assert len(built.pairs) == sum(sign != 0 for sign in signs) == 861
    llmbar = read_judgments([data("llmbar")])
    built = build_pairs(llmbar, [Aim(aspect="preference", criterion="overall")], Rules(), SOURCE)
    assert len(built.pairs) == 1198
    for pair in built.pairs:
        assert pair.systems is not None
        first_is_good = llmbar.preferences["preference"][pair.item, "a", "b"][0][1] > 0
        assert pair.systems == (("a", "b") if first_is_good else ("b", "a"))


def test_the_chosen_output_beats_the_others_and_they_have_no_order(tmp_path: Path) -> None:
    rows = [
        {"item": "1", "outputs": ["w", "x", "y", "z"], "chosen": 2},
        {"item": "2", "outputs": ["w", "x", "y"], "systems": ["p", "q", "r"], "chosen": ["q", 2, "p", None]},
    ]
    aim = Aim(aspect="chosen", criterion="overall", choice=True)
    built = build(tmp_path, rows, Rules(ties="soft", certainty="shares"), aim, shape=Shape())
    result = [(pair.item, *pair.answers, round(pair.certainty, 4)) for pair in built.pairs]
    assert result == [
        ("1", "x", "w", 1.0),
        ("1", "x", "y", 1.0),
        ("1", "x", "z", 1.0),
        ("2", "x", "w", 0.6667),
        ("2", "w", "y", 1.0),
        ("2", "x", "y", 1.0),
    ]
    assert built.accounts[0].dropped == {"neither chosen": 3}
    worst = Aim(aspect="chosen", criterion="worst", choice=True, opposite=True)
    built = build(tmp_path, rows[1:], Rules(certainty="shares"), worst, shape=Shape())
    assert [(*pair.answers, round(pair.certainty, 4)) for pair in built.pairs] == [
        ("w", "x", 0.6667),
        ("y", "w", 1.0),
        ("y", "x", 1.0),
    ]
    assert built.accounts[0].good == "not chosen"


def test_a_rater_who_skipped_a_choice_is_not_counted(tmp_path: Path) -> None:
    rows = [{"item": "1", "outputs": ["w", "x", "y"], "chosen": [2, None, 2], "raters": ["a", "b", "c"]}]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_judgments([path]).ratings["chosen"]["1", "2"] == [("a", 1), ("c", 1)]


def test_choices_are_read_from_tables_too(tmp_path: Path) -> None:
    path = tmp_path / "choices.csv"
    path.write_text('item,outputs,chosen\n1,"[""x"", ""y""]",2\n2,"[""x"", ""y"", ""z""]","[1, 1]"\n')
    aim = Aim(aspect="chosen", criterion="overall", choice=True)
    built = build_pairs(read_judgments([path]), [aim], Rules(), Shape())
    assert [(pair.item, *pair.answers) for pair in built.pairs] == [("1", "y", "x"), ("2", "x", "y"), ("2", "x", "z")]
    path.write_text('item,outputs,chosen\n1,"[""x"", ""y""]",[2\n')
    with raises_code(InputError, "invalid_row", "choices.csv:2", "'chosen'"):
        read_judgments([path])


def test_context_fields_have_their_labels_and_missing_ones_are_counted(tmp_path: Path) -> None:
    def row(system: str, value: int, **more: Any) -> Row:
        return {"item": "1", "system": system, "output": system, "ratings": {"fluency": [value]}, **more}

    full = {"source": "the source", "references": ["first", "second"], "topic": "cats"}
    rows = [row("a", 1, **full), row("b", 2, **full), row("c", 3, source="the source"), row("d", 4, **full)]
    shape = Shape(context=("source", "references", "topic"), labels={"source": "article", "output": "summary"})
    built = build(tmp_path, rows, Rules(), shape=shape)
    article = (("article", "the source"), ("reference", "first"), ("topic", "cats"))
    assert (built.pairs[0].good, built.pairs[0].bad) == ((*article, ("summary", "b")), (*article, ("summary", "a")))
    assert built.accounts[0].dropped == {"no context": 3}
    assert built.accounts[0].adds_up


def test_ratings_and_texts_may_be_in_different_files(tmp_path: Path) -> None:
    rows = rated_rows(seed=2, items=2, systems=2)
    rows[3]["ratings"]["fluency"] = [9]
    texts = [{name: row[name] for name in ("item", "system", "output", "source")} for row in rows[:3]]
    ratings = [{name: row[name] for name in ("item", "system", "ratings")} for row in rows]
    paths = [write(tmp_path, texts, "texts.jsonl"), write(tmp_path, ratings, "ratings.jsonl")]
    account = build_pairs(read_judgments(paths), [AIM], Rules(ties="soft"), SOURCE).accounts[0]
    assert (account.outputs, account.without_text, account.possible) == (4, 1, 1)


def test_errors_explain_why_nothing_can_be_paired(tmp_path: Path) -> None:
    one_each = rated_rows(seed=1, items=3, systems=1)
    with raises_code(InputError, "unreadable"):
        build(tmp_path, one_each, Rules())
    ties = rated_rows(seed=1, items=1, systems=3)
    for at, row in enumerate(ties):
        row |= {"ratings": {"fluency": [2]}, "output": f"o{at}"}
    with raises_code(InputError, "too_little_data", "'fluency'"):
        build(tmp_path, ties, Rules())
    with raises_code(InputError, "unknown_name", "'fluensy'", "'fluency'"):
        build(tmp_path, ties, Rules(), Aim(aspect="fluensy", criterion="x"))
    twice = [Aim(aspect="fluency", criterion="x"), Aim(aspect="fluency", criterion="x")]
    with raises_code(SpecError, "invalid_value", "'x'"):
        build_pairs(read_judgments([write(tmp_path, ties)]), twice, Rules(), SOURCE)


@pytest.mark.parametrize(
    ("rows", "code", "values"),
    [
        ([], "no_data", ()),
        ([{"output": "x"}], "invalid_value", ("'ratings'",)),
        ([{"item": "1", "ratings": {"fluency": [1]}}], "no_data", ()),
        ([{"output": "x", "ratings": {"fluency": [float("nan")]}}], "invalid_row", (":1:", "'fluency'")),
        ([{"output": "x", "ratings": {"fluency": ["good"]}}], "invalid_row", (":1:", "'fluency'")),
        ([{"output": "x", "ratings": [1]}], "invalid_row", (":1:", "'ratings'")),
        ([{"outputs": ["x", "y"], "chosen": 3}], "invalid_row", (":1:", "'chosen'", "1 to 2", "got 3")),
        ([{"outputs": ["x", "y"], "chosen": True}], "invalid_row", (":1:", "'chosen'")),
        ([{"outputs": ["x", "y"], "chosen": "c"}], "invalid_row", (":1:", "'chosen'", "'c'")),
        ([{"outputs": ["x", "y"], "chosen": []}], "invalid_row", (":1:", "'chosen'")),
        ([{"outputs": ["x", "y"], "chosen": 1, "systems": ["a"]}], "invalid_row", (":1:", "'systems'")),
        ([{"outputs": ["x", "y"], "chosen": 1, "systems": ["a", "a"]}], "invalid_row", (":1:", "'systems'")),
        ([{"outputs": ["x"], "chosen": 1, "ratings": {"a": [1]}}], "invalid_row", ("'ratings'", "'chosen'")),
        ([{"outputs": "x", "chosen": 1}], "invalid_row", ("'outputs'",)),
    ],
)
def test_bad_input_raises_an_error_with_its_line(
    tmp_path: Path, rows: list[Row], code: ErrorCode, values: tuple[str, ...]
) -> None:
    with raises_code(InputError, code, *values):
        read_judgments([write(tmp_path, rows)])


def test_bad_rows_can_be_skipped_and_a_huge_line_is_a_line_like_others(tmp_path: Path) -> None:
    rows = rated_rows(seed=1, items=2, systems=2)
    rows[0]["source"] = rows[1]["source"] = "word " * 500_000
    rows += [{"outputs": ["x"], "chosen": 7}]
    judged = read_judgments([write(tmp_path, rows)], skip_bad=True)
    assert judged.skipped == 1
    built = build_pairs(judged, [AIM], Rules(ties="soft"), SOURCE, Splitting(shares=(1.0, 0.0, 0.0)))
    assert {pair.split for pair in built.pairs} == {"train"}


def test_pairs_of_real_ratings_split_without_leaks(data: Callable[[str], Path]) -> None:
    judged = read_judgments([data("summeval")])
    aims = [Aim(aspect=aspect, criterion=aspect) for aspect in judged.aspects]
    built = build_pairs(judged, aims, Rules(cap=4), SOURCE, Splitting(shares=(0.8, 0.1, 0.1)))
    assert all(account.adds_up and account.possible == 100 * 120 for account in built.accounts)
    assert all(row.elsewhere == 0 for row in leaks(built.pairs))
