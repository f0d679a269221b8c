"""Choices between two outputs."""

from __future__ import annotations

import json
import lzma
import re
from collections import Counter
from itertools import chain, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from judged_rows import Row, drop_fields, make_rows, write_rows

import metrist
from error_codes import raises_code
from fault_server import Act, FaultServer, Request, answer
from metrist.errors import ErrorCode, MetristError, RunError
from metrist.evaluate.meta import meta_evaluate
from metrist.evaluate.meta.analyses import analyse
from metrist.evaluate.meta.preferences import best_epsilon, choice_table


def pair(
    item: int, ratings: list[int], scores: dict[str, Any] | None = None, outputs: tuple[str, str] = ("x", "y")
) -> Row:
    return {
        "item": str(item),
        "systems": ["a", "b"] if item % 2 else ["b", "a"],
        "outputs": list(outputs),
        "task": "even" if item % 2 == 0 else "odd",
        "ratings": {"better": ratings},
        **({"scores": scores} if scores else {}),
    }


STORED = [
    pair(1, [1, 1, 2], {"m": 1}),
    pair(2, [2, 2, 2], {"m": "2"}),
    pair(3, [0, 0, 1], {"m": 1}),
    pair(4, [1, 2, 0], {"m": 0}),
    pair(5, [1, 1, 1], {"m": "neither"}),
    pair(6, [2, 2, 1], {"m": 1}),
]


def test_stored_choices_are_judged_by_the_majority_of_raters() -> None:
    result = meta_evaluate(STORED, preferences=True, draws=20)
    accuracy = result.figure("m", measure="accuracy")
    # Undecided raters (item 4) make a tie; an answer that names no choice (item 5) is left out and lowers coverage.
    assert accuracy.value == pytest.approx(3 / 5)
    assert (accuracy.n, accuracy.coverage) == (5, pytest.approx(5 / 6))
    assert accuracy.all_ties == pytest.approx(2 / 5)
    # first: 2·1/(1+3); second: 2·1/(2+1); tie: 2·1/(2+1)
    assert result.figure("m", measure="f1").value == pytest.approx(np.mean([0.5, 2 / 3, 2 / 3]))


def test_scores_of_a_run_choose_the_higher_output(tmp_path: Path) -> None:
    rows = [
        {**pair(item, [1 + item % 2], outputs=("the cat sat", "a dog")), "references": ["the cat sat here"]}
        for item in range(10)
    ]
    path = write_rows(tmp_path / "pairs.jsonl", rows)
    metrist.score(path, ["rougeL", "ter"], out=tmp_path / "run")
    result = meta_evaluate(
        [tmp_path / "run", path],
        preferences=True,
        measures=["accuracy", "darr_wmt17", "gamma"],
        draws=20,
        slices="task",
    )
    for metric in ("rougeL", "ter"):
        assert result.figure(metric, measure="accuracy").value == 0.5
        assert result.figure(metric, measure="darr_wmt17").value == 0
        assert result.figure(metric, measure="accuracy", on="task=even").value == 1
        assert result.figure(metric, measure="gamma", on="task=odd").value == -1


def test_a_pair_shown_in_either_order_is_one_pair() -> None:
    rows = [
        {"item": "1", "systems": ["a", "b"], "outputs": ["x", "y"], "ratings": {"p": [1]}, "rater": "r"},
        {
            "item": "1",
            "systems": ["b", "a"],
            "outputs": ["y", "x"],
            "ratings": {"p": [2]},
            "rater": "s",
            "scores": {"m": 2},
        },
    ]
    result = meta_evaluate(rows, preferences=True, measures="accuracy", draws=0).figure("m")
    assert (result.n, result.value) == (1, 1)


def test_one_raters_choices_may_be_the_gold() -> None:
    rows = [{**pair(i, [1, 2], {"m": 2}), "raters": ["kind", "stern"]} for i in range(4)]
    assert meta_evaluate(rows, preferences=True, gold="stern", draws=0).figure("m", measure="accuracy").value == 1
    assert meta_evaluate(rows, preferences=True, gold="kind", draws=0).figure("m", measure="accuracy").value == 0
    with raises_code(RunError, "unknown_name", "'median'", "'majority'", "'kind'"):
        meta_evaluate(rows, preferences=True, gold="median")


@given(
    st.lists(
        st.tuples(st.sampled_from([-1.0, 0.0, 1.0]), st.integers(-4, 4).map(lambda n: n / 4)), min_size=1, max_size=12
    )
)
def test_the_best_threshold_equals_a_search(pairs: list[tuple[float, float]]) -> None:
    human, leaning = (np.array(column) for column in zip(*pairs, strict=True))

    def right(epsilon: float) -> float:
        return float(np.trace(choice_table(human, leaning, epsilon)))

    tried = sorted({0.0, *np.abs(leaning).tolist()})
    best = max(tried, key=lambda epsilon: (right(epsilon), -epsilon))
    assert best_epsilon(human, leaning) == best


@pytest.mark.parametrize(
    ("settings", "code", "values"),
    [
        ({"measures": "acuracy"}, "unknown_name", ["'acuracy'", "'accuracy'"]),
        ({"aspects": "worse"}, "unknown_name", ["'worse'", "'better'"]),
        ({"systems": ["a"]}, "run_failed", ["'better'"]),
        ({"top_k": 3}, "invalid_value", ["top_k=3", 2]),
        ({"epsilon_over": "crossfit"}, "conflict", ["epsilon_over='crossfit'"]),
        ({"group": "none"}, "conflict", ["group='none'"]),
        ({"group": "system-level"}, "conflict", ["group='system-level'", "gold='win-rate'"]),
        ({"group_average": "micro"}, "conflict", ["group_average='micro'"]),
        ({"resample": "systems"}, "conflict", ["resample='systems'"]),
        ({"resample": "systems", "metrics": ()}, "conflict", ["resample='systems'"]),
        ({"test": "bootstrap"}, "conflict", ["test='bootstrap'", "auto, permutation, none"]),
        ({"gold": "win-rate"}, "conflict", ["gold='win-rate'"]),
    ],
)
def test_settings_that_do_not_fit_preferences_are_refused(
    settings: dict[str, Any], code: ErrorCode, values: list[object]
) -> None:
    with raises_code(MetristError, code, *values):
        meta_evaluate(STORED, preferences=True, **settings)


def test_data_without_preferences_are_refused() -> None:
    rows = [{"item": "1", "system": "a", "output": "x", "ratings": {"q": 1}, "scores": {"m": 1}}]
    with raises_code(RunError, "no_data", "preferences"):
        meta_evaluate(rows, preferences=True)
    with raises_code(RunError, "no_data", "`preferences=True`"):
        meta_evaluate([*STORED, {"item": "9", "system": "a", "output": "x", "scores": {"m": 1}}])


def test_real_choices_of_judges_are_read(data: Any) -> None:
    """PandaLM's stored judge against the majority of three people, counted anew from the file."""
    path = data("pandalm")
    right = []
    with lzma.open(path, "rt", encoding="utf-8") as file:
        for row in map(json.loads, file):
            counts = Counter(row["ratings"]["preference"]).most_common()
            decided = len(counts) == 1 or counts[0][1] > counts[1][1]
            right.append(int(row["scores"]["pandalm-7b"]) == (counts[0][0] if decided else 0))
    figure = meta_evaluate(path, preferences=True, draws=0).figure("pandalm-7b", measure="accuracy")
    assert figure.n == len(right)
    assert figure.value == pytest.approx(np.mean(right))


THREE = ("a", "b", "c")


def three_systems(items: int = 30, seed: int = 3) -> list[Row]:
    """Two people choose between each two of three systems; `good` mostly agrees with them, `bad` tosses a coin."""
    rng = np.random.default_rng(seed)
    rows = []
    for item in range(items):
        for first_system, second_system in ((0, 1), (1, 2), (0, 2)):
            chosen = [1 if rng.random() < 0.25 + 0.25 * (second_system - first_system) else 2 for _ in range(2)]
            right = chosen[0] if chosen[0] == chosen[1] else 0
            scores = {"good": right if rng.random() < 0.8 else 0, "bad": int(rng.integers(1, 3))}
            rows.append(
                {
                    "item": f"i{item}",
                    "systems": [THREE[first_system], THREE[second_system]],
                    "outputs": [f"{THREE[first_system]}{item}", f"{THREE[second_system]}{item}"],
                    "task": "even" if item % 3 else "odd",
                    "ratings": {"better": chosen},
                    "raters": ["kind", "stern"],
                    "scores": scores,
                }
            )
    return rows


def points(rows: list[Row], name: str, rater: int | None = None) -> list[float]:
    """What each preference gave a system: 1 for a win, 0 for a loss."""
    result = []
    for row in rows:
        if name in row["systems"]:
            side = row["systems"].index(name) + 1
            given = row["ratings"]["better"]
            result += [float(choice == side) for choice in (given if rater is None else [given[rater]])]
    return result


def test_the_best_systems_of_preferences_are_those_that_win_most() -> None:
    rows = three_systems()
    best = sorted(THREE, key=lambda name: -np.mean(points(rows, name)))[:2]
    alone = [row for row in rows if set(row["systems"]) == set(best)]
    result = meta_evaluate(rows, preferences=True, top_k=2, draws=0)
    assert result.rows() == meta_evaluate(alone, preferences=True, draws=0).rows()


def test_metrics_of_a_family_are_marked_on_preferences_too() -> None:
    result = meta_evaluate(three_systems(), preferences=True, measures="accuracy", marked="good", draws=200)
    assert (result.figure("good").mark, result.figure("bad").mark) == ("‡", "")
    untested = meta_evaluate(three_systems(), preferences=True, measures="accuracy", test="none", draws=50)
    assert [figure.rank for figure in untested.figures] == [0, 0]
    assert not any("Rank:" in note for note in untested.notes)


def test_slices_of_preferences_are_averaged_macro_or_micro() -> None:
    rows = three_systems()
    macro = meta_evaluate(rows, preferences=True, measures="accuracy", slices="task", draws=50)
    parts = [macro.figure("good", on=f"task={task}") for task in ("odd", "even")]
    mean = macro.figure("good", on="task: macro mean")
    assert mean.value == pytest.approx(np.mean([part.value for part in parts]))
    assert mean.low < mean.value < mean.high
    assert (mean.n, mean.groups) == (sum(part.n for part in parts), 2)
    micro = meta_evaluate(rows, preferences=True, measures="accuracy", slices="task", average="micro", draws=50)
    pooled = micro.figure("good", on="task: micro mean")
    assert pooled.value == pytest.approx(macro.figure("good").value)
    assert (pooled.low, pooled.high) == (macro.figure("good").low, macro.figure("good").high)


def test_a_metric_is_better_by_the_items_that_both_judged() -> None:
    """`few` judged only hard items and beats `all` there, which shines on the easy ones."""
    rows = [pair(i, [1], {"all": 2 if i < 30 else 1, **({"few": 1} if i < 30 else {})}) for i in range(400)]
    result = meta_evaluate(rows, preferences=True, measures="accuracy", draws=200)
    assert result.figure("few").value > result.figure("all").value
    tests = result.tests[0]
    few, everything = (tests.metrics.index(name) for name in ("few", "all"))
    assert tests.differences[few, everything] == 1
    turned = [pair(i, [1], {"all": 1 if i < 30 else 2, **({"few": 1 + i % 2} if i < 30 else {})}) for i in range(400)]
    result = meta_evaluate(turned, preferences=True, measures="accuracy", draws=200)
    assert result.figure("few").value > result.figure("all").value
    assert result.figure("all").rank < result.figure("few").rank


def test_strengths_are_of_the_systems_and_choices_that_take_part() -> None:
    rows = three_systems()
    (table,) = analyse(meta_evaluate(rows, preferences=True, exclude_systems="a", draws=100), "strengths")
    without_a = [row for row in rows if "a" not in row["systems"]]
    assert {line[0]: line[2].value for line in table.rows} == {
        name: pytest.approx(np.mean(points(without_a, name))) for name in ("b", "c")
    }
    # Between two systems without ties, the strengths differ by the log odds of a win.
    odds = np.mean(points(without_a, "b")) / np.mean(points(without_a, "c"))
    strength = {line[0]: line[3] for line in table.rows}
    assert strength["b"].value - strength["c"].value == pytest.approx(np.log(odds))
    assert strength["b"].low < strength["b"].value < strength["b"].high
    (stern,) = analyse(meta_evaluate(rows, preferences=True, gold="stern", draws=0), "strengths")
    assert stern.rows[0][1].value == 60
    assert stern.rows[0][2].value == pytest.approx(np.mean(points(rows, stern.rows[0][0], rater=1)))
    (votes,) = analyse(meta_evaluate(rows, preferences=True, gold="majority", draws=0), "strengths")
    assert [line[1].value for line in votes.rows] == [60, 60, 60]
    assert votes.notes[0].startswith("Counted: one choice per pair")
    wide, narrow = (
        analyse(meta_evaluate(rows, preferences=True, confidence=c, draws=200), "strengths")[0].rows[0][2]
        for c in (0.99, 0.5)
    )
    assert wide.high - wide.low > narrow.high - narrow.low


def test_raters_may_agree_on_choices() -> None:
    rows = three_systems()
    (table,) = analyse(meta_evaluate(rows, preferences=True, draws=20), "agreement")
    value = {line[1]: line[2].value for line in table.rows}
    given = np.array([row["ratings"]["better"] for row in rows])
    same, first = np.mean(given[:, 0] == given[:, 1]), np.mean(given == 1, axis=0)
    by_chance = first.prod() + (1 - first).prod()
    assert value["Cohen's κ, mean of rater pairs"] == pytest.approx((same - by_chance) / (1 - by_chance))
    pooled = np.mean(given == 1)
    fleiss = pooled**2 + (1 - pooled) ** 2
    assert value["Fleiss' κ"] == pytest.approx((same - fleiss) / (1 - fleiss))
    (unnamed,) = analyse(meta_evaluate(drop_fields(rows, "raters"), preferences=True, draws=0), "agreement")
    assert [line[1] for line in unnamed.rows][-1] == "Fleiss' κ"
    assert "better: agreement between raters needs named raters" in unnamed.notes[0]
    assert "Left out: Cohen's κ" in unnamed.notes[0]


def test_agreement_on_choices_does_not_depend_on_the_order_of_rows_and_pairs() -> None:
    rows = three_systems()
    turned = [
        {
            **row,
            "systems": row["systems"][::-1],
            "outputs": row["outputs"][::-1],
            "ratings": {"better": [{1: 2, 2: 1}.get(choice, 0) for choice in row["ratings"]["better"]]},
        }
        if number % 3
        else row
        for number, row in enumerate(rows)
    ]
    shuffled = [turned[at] for at in np.random.default_rng(2).permutation(len(turned))]
    # Krippendorff (2011) by hand: pairs of ratings within a pair of outputs, against pairs of all ratings.
    chosen = []
    for row in rows:
        is_sorted = row["systems"][0] < row["systems"][1]
        chosen.append([choice if is_sorted else {1: 2, 2: 1}.get(choice, 0) for choice in row["ratings"]["better"]])
    observed = np.mean([a != b for own in chosen for a, b in permutations(own, 2)])
    expected = np.mean([a != b for a, b in permutations(chain(*chosen), 2)])
    for data in (rows, turned, shuffled):
        (table,) = analyse(meta_evaluate(data, preferences=True, draws=0), "agreement")
        value = {line[1]: line[2].value for line in table.rows}
        assert value["Krippendorff's α, nominal"] == pytest.approx(1 - observed / expected)


def test_people_can_be_looked_at_without_any_metric() -> None:
    rows = drop_fields(three_systems(), "scores")
    result = meta_evaluate(rows, preferences=True, metrics=(), draws=20)
    assert not result.figures
    assert analyse(result, "strengths")[0].rows
    assert analyse(result, "agreement")[0].rows
    with raises_code(RunError, "conflict", "neither"):
        meta_evaluate(rows, preferences=True)
    with raises_code(RunError, "no_data", "`preferences=True`"):
        meta_evaluate(rows, metrics=())


def scored(rows: list[Row]) -> list[Any]:
    """The pairs without stored choices, beside scores of each output by a metric that likes late letters."""
    stored = {
        (row["item"], system): {
            "item": row["item"],
            "system": system,
            "output": output,
            "task": row["task"],
            "scores": {"late": ord(system) + len(row["item"]) / 7},
        }
        for row in rows
        for system, output in zip(row["systems"], row["outputs"], strict=True)
    }
    return [*drop_fields(rows, "scores"), *stored.values()]


def test_win_rates_may_be_the_gold_of_scores() -> None:
    rows = three_systems()
    result = meta_evaluate(
        scored(rows), gold="win-rate", group="system-level", measures=["pearson", "acc_eq"], draws=50
    )
    rates = [np.mean(points(rows, name)) for name in THREE]
    late = [np.mean([ord(name) + len(row["item"]) / 7 for row in rows]) for name in THREE]
    pearson = result.figure("late", measure="pearson")
    assert pearson.value == pytest.approx(np.corrcoef(rates, late)[0, 1])
    assert (pearson.aspect, pearson.n) == ("better", 90)
    assert result.plan.gold == "win-rate"
    assert any("the share of its preferences that an output won" in note for note in result.notes)
    by_item = meta_evaluate(scored(rows), gold="win-rate", group="none", measures="pearson", draws=0).figure("late")
    assert by_item.n == 90
    result = meta_evaluate(
        scored(rows), gold="win-rate", group="system-level", measures="acc_eq", exclude_systems="a", draws=0
    )
    b, c = (np.mean(points([row for row in rows if "a" not in row["systems"]], name)) for name in "bc")
    assert result.figure("late").value == float(c > b)


def test_bradley_terry_strengths_may_be_the_gold_between_systems() -> None:
    rows = three_systems()
    settings = {"gold": "bradley-terry", "group": "system-level", "measures": "pearson"}
    result = meta_evaluate(scored(rows), **settings, draws=50)
    (table,) = analyse(result, "strengths")
    strength = {line[0]: line[3].value for line in table.rows}
    late = [np.mean([ord(name) + len(row["item"]) / 7 for row in rows]) for name in THREE]
    expected = np.corrcoef([strength[name] for name in THREE], late)[0, 1]
    assert result.figure("late").value == pytest.approx(expected)
    assert any("Bradley-Terry strength with ties" in note for note in result.notes)
    with raises_code(RunError, "run_failed", "`group='system-level'`", "`gold='win-rate'`"):
        meta_evaluate(scored(rows), gold="bradley-terry")
    with raises_code(RunError, "no_data", "preferences"):
        meta_evaluate(make_rows(items=3), **settings)


def test_a_file_of_preferences_that_is_read_twice_is_pointed_out() -> None:
    note = "better: 90 of 90 pairs are judged in more than one row"
    rows = drop_fields(three_systems(), "raters")
    assert any(note in text for text in meta_evaluate([*rows, *rows], preferences=True, draws=0).notes)
    assert not any("more than one row" in text for text in meta_evaluate(rows, preferences=True, draws=0).notes)


def judge_pairs(*counts: tuple[int, int, int]) -> list[Row]:
    """Pairs from (number, people's choice, the judge's choice)."""
    choices = [(human, judge) for count, human, judge in counts for _ in range(count)]
    return [pair(item, [human], {"judge": judge}) for item, (human, judge) in enumerate(choices)]


@pytest.mark.parametrize("measure", ["accuracy", "pair_accuracy", "darr_wmt17", "acc_eq"])
@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(judge_pairs((17, 1, 0), (4, 1, 1), (4, 1, 2)), id="mostly ties, else a coin"),
        pytest.param(judge_pairs((25, 1, 0)), id="only ties"),
        # Four of four wrong: a coin does so in 6 of 100 cases, above 2.5; resamples of the four would not vary.
        pytest.param(judge_pairs((21, 1, 0), (4, 1, 2)), id="mostly ties, else wrong"),
        pytest.param(judge_pairs((25, 0, 1)), id="people only tie"),
    ],
)
def test_a_judge_that_ties_does_not_run_against_people(rows: list[Row], measure: str) -> None:
    result = meta_evaluate(rows, preferences=True, measures=measure, draws=200)
    assert not any(row["against"] for row in result.rows())
    assert "against people" not in "".join([*result.notes, result.table().text()])
    (table,) = analyse(result, "advice")
    assert "Do not use" not in table.text()


@pytest.mark.parametrize("measure", ["accuracy", "pair_accuracy", "acc_eq"])
def test_a_judge_that_decides_against_people_is_marked_whatever_it_ties(measure: str) -> None:
    rows = judge_pairs((60, 1, 0), (36, 1, 2), (4, 2, 2), (10, 0, 1))
    (row,) = meta_evaluate(rows, preferences=True, measures=measure, draws=200).rows()
    assert row["against"].startswith("right in 0.100 [")
    assert row["against"].endswith("] of the 40 pairs that neither ties, chance 0.500")


def test_a_note_says_how_many_pairs_a_judge_ties() -> None:
    rows = judge_pairs((17, 1, 0), (4, 1, 1), (4, 1, 2))
    note = "judge ties 68 % of the pairs. A tie is a miss where people prefer one output."
    assert note in meta_evaluate(rows, preferences=True, draws=0).notes
    assert "ties" not in "".join(meta_evaluate(judge_pairs((9, 1, 1)), preferences=True, draws=0).notes)


#: What a comparator chose of 12 pairs: by item the winner of a against b, b against c and a against c; "" is a tie.
CHOSEN = (("a", "b", "a"), ("b", "b", ""), ("a", "c", "a"), ("", "b", "c"))


def choose_by_table(comparator: str = "judge_pair(llm=one)") -> list[Row]:
    rows: list[Row] = []
    for item, winners in enumerate(CHOSEN):
        for (first, second), winner in zip((("a", "b"), ("b", "c"), ("a", "c")), winners, strict=True):
            choice = "tie" if not winner else "first" if winner == first else "second"
            rows.append({"item": f"i{item}", "systems": [first, second], "comparator": comparator, "choice": choice})
    return rows


def score_by_letter() -> list[Row]:
    return [
        {
            "item": f"i{item}",
            "system": system,
            "output": f"{system}{item}",
            "scores": {"m": (item * 7 + ord(system)) % 5},
        }
        for item in range(4)
        for system in THREE
    ]


def test_choices_of_a_comparator_may_be_the_gold_where_people_chose_nothing() -> None:
    """Wins of 2 by hand: i0 a 2, b 1, c 0; i1 a ½ (a tie), b 2, c ½; i2 a 2, b 0, c 1; i3 a ½, b 1½, c 1."""
    won = {"a": (2, 0.5, 2, 0.5), "b": (1, 2, 0, 1.5), "c": (0, 0.5, 1, 1)}
    rows = score_by_letter()
    shares = [won[row["system"]][int(row["item"][1])] / 2 for row in rows]
    expected = np.corrcoef(shares, [row["scores"]["m"] for row in rows])[0, 1]
    settings: dict[str, Any] = {"group": "none", "measures": "pearson", "draws": 0}
    result = meta_evaluate([*rows, *choose_by_table()], gold="win-rate", **settings)
    assert result.figure("m").value == pytest.approx(expected)
    assert "Gold: choices of judge_pair(llm=one), not of people." in result.notes
    assert "humans" not in result.table().title
    human: Row = {"item": "i0", "systems": ["a", "b"], "ratings": {"better": [1]}}
    several = [*rows, *choose_by_table(), *choose_by_table("longer"), human]
    named = meta_evaluate(several, gold="win-rate:judge_pair", **settings)
    assert named.figure("m").value == result.figure("m").value
    assert meta_evaluate(several, gold="win-rate", **settings).figure("m").n == 2
    strength = meta_evaluate(several, gold="bradley-terry:longer", **{**settings, "group": "system-level"})
    assert strength.figure("m").systems == 3
    with raises_code(RunError, "unknown_name", "'judge'", "'longer'"):
        meta_evaluate(several, gold="win-rate:judge", **settings)
    with raises_code(RunError, "missing_value", "`gold='win-rate:longer'`"):
        meta_evaluate(several[:-1], gold="win-rate", **settings)
    with raises_code(RunError, "conflict", "win-rate:longer"):
        meta_evaluate(several, gold="win-rate:longer", preferences=True, draws=0)


def test_the_folder_and_the_file_of_a_judge_are_read(tmp_path: Path) -> None:
    """The judge prefers the output that ends in the later letter."""

    def judge(request: Request) -> Act:
        marks = re.findall(r'"id": "([^"]+)"', request.prompt)
        if not marks:
            return answer("yes")  # The question by which metrist gets to know a server.
        first, second = re.findall(r"\boutput ([abc])\b", request.prompt)[:2]
        return answer(json.dumps({"reasons": "…", "better": "A" if first > second else "B", "id": marks[-1]}))

    rows: list[Row] = [
        {"item": str(item), "system": system, "source": "x", "output": f"output {system}", "references": ["output c"]}
        for item in range(3)
        for system in THREE
    ]
    path = write_rows(tmp_path / "rows.jsonl", rows)
    metrist.score(path, "rougeL", out=tmp_path / "run")
    with FaultServer(judge) as server:
        comparator = f"judge_pair(llm=openai(model='m', url='{server.url}'))"
        results = metrist.prefer(path, comparator, pairs="all", out=tmp_path / "preferred")
        metrist.prefer(path, comparator, pairs="all", out=tmp_path / "preferred.jsonl")
    settings: dict[str, Any] = {"gold": "win-rate:judge_pair", "group": "none", "measures": "pearson", "draws": 0}
    scores = metrist.load(tmp_path / "run")["rougeL"].values
    expected = np.corrcoef(scores, [THREE.index(row["system"]) / 2 for row in rows])[0, 1]
    for source in (tmp_path / "preferred", tmp_path / "preferred.jsonl", results):
        figure = meta_evaluate([tmp_path / "run", source], **settings).figure("rougeL")
        assert (figure.value, figure.n) == (pytest.approx(expected), 9)
