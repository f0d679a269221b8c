"""Systems in order, from choices between their outputs or from scores. Strengths and intervals are compared with a fit
by scipy's BFGS that knows nothing of metrist's."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize

import metrist
from error_codes import raises_code
from metrist.errors import MetristError, RunError
from metrist.evaluate.leaderboard import build_page
from metrist.evaluate.leaderboard.folder import read_vote_lines
from metrist.evaluate.leaderboard.votes import collect_votes
from metrist.evaluate.meta.join import join
from metrist.evaluate.meta.preferences import compare_systems
from metrist.stats.preferences import BradleyTerry, rank_ranges, votes_needed, win_rates
from real_records import rows as read_rows

Row = dict[str, Any]
#: Item, first and second system, 1, 0 or -1.
Vote = tuple[str, str, str, int]


def rows_of(votes: Sequence[Vote]) -> list[Row]:
    return [
        {"item": item, "systems": [first, second], "ratings": {"better": {1: 1, 0: 0, -1: 2}[choice]}}
        for item, first, second, choice in votes
    ]


def simulate(strengths: dict[str, float], count: int, tie: float = 0.6, seed: int = 0) -> list[Vote]:
    """Votes by Davidson's model, two or three of an item."""
    rng = np.random.default_rng(seed)
    votes = []
    for number in range(count):
        first, second = rng.choice(list(strengths), 2, replace=False)
        worth = np.exp([strengths[first], strengths[second]])
        shares = np.array([*worth, tie * math.sqrt(worth.prod())])
        choice = rng.choice([1, -1, 0], p=shares / shares.sum())
        votes.append((f"i{number * 2 // 5}", str(first), str(second), int(choice)))
    return votes


def make_rows(items: int) -> list[Row]:
    """Outputs of four systems, each better than the one before it, with a score and a rating."""
    rng = np.random.default_rng(1)
    rows = []
    for item in range(items):
        for number, system in enumerate("abcd"):
            truth = 0.6 * number + rng.normal()
            rows.append(
                {
                    "item": f"i{item}",
                    "system": system,
                    "output": "x" * (5 + (7 * item + number) % 40),
                    "task": ("qa", "summary")[item % 2],
                    "ratings": {"quality": [truth, truth + 0.1]},
                    "scores": {"near": truth + rng.normal(), "far": truth + rng.normal(0, 2)},
                }
            )
    return rows


def fit_by_scipy(votes: Sequence[Vote], systems: Sequence[str]) -> dict[str, float]:
    first = np.array([systems.index(vote[1]) for vote in votes])
    second = np.array([systems.index(vote[2]) for vote in votes])
    choice = np.array([vote[3] for vote in votes])

    def cost(at: NDArray[np.float64]) -> float:
        strengths, tie = np.append(at[:-1], 0.0), at[-1]
        half = (strengths[first] - strengths[second]) / 2
        whole = np.logaddexp(np.logaddexp(half, -half), tie)
        return float((whole - np.where(choice == 0, tie, choice * half)).sum())

    found = minimize(cost, np.zeros(len(systems)), method="BFGS", options={"gtol": 1e-6})
    strengths = np.append(found.x[:-1], 0.0)
    return dict(zip(systems, (strengths - strengths.mean()).tolist(), strict=True))


def check_against_scipy(votes: Sequence[Vote], draws: int = 8) -> None:
    board = metrist.leaderboard(rows_of(votes), draws=draws, seed=4)
    systems = sorted({name for vote in votes for name in vote[1:3]})
    expected = fit_by_scipy(votes, systems)
    assert [standing.system for standing in board.standings] == sorted(systems, key=lambda name: -expected[name])
    # Resamples of the items, with all their votes, as numpy draws them.
    items = list(dict.fromkeys(vote[0] for vote in votes))
    by_item = {item: [vote for vote in votes if vote[0] == item] for item in items}
    drawn = [
        fit_by_scipy([vote for number in numbers for vote in by_item[items[number]]], systems)
        for numbers in np.random.default_rng(4).integers(0, len(items), size=(draws, len(items)))
    ]
    for standing in board.standings:
        assert standing.strength == pytest.approx(expected[standing.system], abs=2e-4)
        low, high = np.quantile([own[standing.system] for own in drawn], [0.025, 0.975])
        # An interval contains its value.
        low, high = min(low, expected[standing.system]), max(high, expected[standing.system])
        assert (standing.low, standing.high) == (pytest.approx(low, abs=1e-3), pytest.approx(high, abs=1e-3))


def test_strengths_and_intervals_of_simulated_votes_are_those_of_scipy() -> None:
    check_against_scipy(simulate({"a": 1.0, "b": 0.3, "c": -0.2, "d": -1.1}, 300))


def test_strengths_and_intervals_of_real_preferences_are_those_of_scipy(data: Callable[[str], Path]) -> None:
    signs = {1: 1, 2: -1, 0: 0}
    votes = [
        (row["item"], *row["systems"], signs[value])
        for row in read_rows(data("pandalm"))
        for value in next(iter(row["ratings"].values()))[:1]
    ]
    check_against_scipy(votes, draws=3)


def test_a_vote_counts_as_often_as_its_sampling_weight_says() -> None:
    """A vote of weight 3 is that of three raters, in the tables of `meta`, too."""
    votes = simulate({"a": 0.4, "b": 0.0, "c": -0.3}, 120)
    times = [1 + number % 3 for number in range(len(votes))]
    rows = rows_of(votes)
    weighted = [{**row, "sampling_weight": 2.5 * count} for row, count in zip(rows, times, strict=True)]
    repeated = [row for row, count in zip(rows, times, strict=True) for _ in range(count)]
    board, expected = (metrist.leaderboard(own, draws=40) for own in (weighted, repeated))
    for standing in expected.standings:
        for name in ("strength", "low", "high", "win_rate", "win_low", "win_high", "best_rank", "worst_rank"):
            assert getattr(board[standing.system], name) == pytest.approx(getattr(standing, name), abs=1e-6)
    assert board.votes == len(votes)
    assert any("sampling_weight" in note for note in board.notes)
    datasets = [join(own) for own in (weighted, repeated)]
    by_weight, by_votes = (
        win_rates(compare_systems(dataset, dataset.preferences["better"])[0], 40, np.random.default_rng(0))
        for dataset in datasets
    )
    assert by_weight.value == pytest.approx(by_votes.value)
    assert by_weight.low == pytest.approx(by_votes.low)
    assert by_weight.games.sum() == 2 * len(votes)


def test_win_rates_and_counts_are_those_by_counting() -> None:
    votes = [("1", "a", "b", 1), ("1", "b", "a", 0), ("2", "a", "b", -1), ("3", "b", "c", 1), ("4", "c", "a", 1)]
    board = metrist.leaderboard(rows_of(votes), draws=0)
    assert (board.votes, board.items) == (5, 4)
    a = board["a"]
    assert (a.won, a.tied, a.lost) == (1, 1, 2)
    assert a.win_rate == pytest.approx(1.5 / 4)
    assert math.isnan(a.low)


def test_systems_that_never_lost_are_named_and_the_order_is_that_of_win_rates() -> None:
    board = metrist.leaderboard(rows_of([("1", "a", "b", 1), ("2", "b", "c", 1), ("3", "c", "b", 1)]), draws=20)
    assert [standing.system for standing in board.standings] == ["a", "c", "b"]
    assert math.isnan(board["a"].strength)
    assert "{a} {b, c}" in board.notes[0]
    assert math.isnan(board.votes_needed("a", "b"))


def test_choices_of_comparators_and_scores_of_runs_make_the_same_leaderboard(tmp_path: Path) -> None:
    rows = [
        {"item": str(item), "system": system, "output": "x " * ((item * step) % 7), "references": ["x x x"]}
        for item in range(12)
        for step, system in enumerate(("one", "two", "three"), 1)
    ]
    metrist.score(rows, ["rougeL"], out=tmp_path / "run")
    metrist.prefer(rows, ["rougeL"], out=tmp_path / "choices.jsonl")
    by_run, by_choices = (metrist.leaderboard(tmp_path / name, draws=50).to_dict() for name in ("run", "choices.jsonl"))
    assert by_run["standings"] == by_choices["standings"]
    assert by_run["votes"] == 36


def test_ratings_choose_by_their_mean_and_the_judge_must_be_named_where_there_are_several() -> None:
    rows = make_rows(items=20)
    with raises_code(RunError, "missing_value", "near"):
        metrist.leaderboard(rows, draws=0)
    board = metrist.leaderboard(rows, "quality", draws=0)
    assert board["d"].rank == 1
    with raises_code(MetristError, "unknown_name", "qualty"):
        metrist.leaderboard(rows, "qualty", draws=0)


def test_categories_have_the_leaderboard_of_their_votes() -> None:
    rows = make_rows(items=30)
    board = metrist.leaderboard(rows, "far", categories=["task", "output_length:2"], draws=20)
    assert set(board.categories) >= {"task=qa", "task=summary"}
    alone = metrist.leaderboard([row for row in rows if row["task"] == "qa"], "far", draws=20)
    assert board.categories["task=qa"].to_dict() == alone.to_dict()
    assert sum(own.votes for name, own in board.categories.items() if name.startswith("task")) == board.votes
    kept = metrist.leaderboard(rows, "far", where=["task=qa"], draws=20)
    assert kept.to_dict()["standings"] == alone.to_dict()["standings"]


def make_alpaca_eval(path: Path) -> list[Row]:
    """Rows with the judge's answer (1: the first is better, 2: the second) and the lengths as scores."""
    rows = []
    for row in read_rows(path):
        baseline = row["baseline"]
        if row["system"] != baseline:
            answer = {"gpt4": 3 - row["preference"]}
            rows.append({"item": row["item"], "systems": [row["system"], baseline], "scores": answer})
            rows.append({"item": row["item"], "system": row["system"], "scores": {"characters": row["length"]}})
        else:
            rows.append({"item": row["item"], "system": baseline, "scores": {"characters": row["baseline_length"]}})
    return rows


def test_win_rates_of_alpaca_eval_are_the_published_ones(data: Callable[[str], Path]) -> None:
    """AlpacaEval 2 (Dubois et al. 2024). Its length-controlled figures rest on a model with a coefficient of the length
    for each system, and eases fitted on all systems of its leaderboard."""
    path = data("../leaderboard/alpacaeval2")
    board = metrist.leaderboard(make_alpaca_eval(path), "gpt4", control="characters", draws=0)
    with path.with_name("alpacaeval2-published.csv").open(encoding="utf-8", newline="") as file:
        published = {row["system"]: row for row in csv.DictReader(file) if row["system"] != "gpt4_1106_preview"}
    assert len(published) == 56
    win_rates = [(100 * board[name].win_rate, float(row["win_rate"])) for name, row in published.items()]
    assert [own for own, _ in win_rates] == pytest.approx([other for _, other in win_rates], abs=1e-4)
    controlled = np.array(
        [
            (100 * board[name].controlled_win_rate, float(row["length_controlled_win_rate"]))
            for name, row in published.items()
        ]
    )
    assert np.corrcoef(controlled.T)[0, 1] > 0.99
    assert np.abs(controlled[:, 0] - controlled[:, 1]).mean() < 2


def test_at_equal_length_a_system_that_is_only_longer_is_not_ahead() -> None:
    rng = np.random.default_rng(0)
    rows: list[Row] = []
    for item in range(150):
        short, long = int(rng.integers(5, 40)), int(rng.integers(17, 52))
        wins = 1 / (1 + math.exp(-(long - short) / 8 + 0.8))
        choice = "first" if rng.random() < wins else "second"
        outputs = ["x" * long, "x" * short]
        rows.append({"item": item, "systems": ["long", "short"], "outputs": outputs, "ratings": {"good": choice}})
    plain = metrist.leaderboard(rows, draws=20)
    assert plain.standings[0].system == "long"
    assert math.isnan(plain["long"].controlled_win_rate)
    board = metrist.leaderboard(rows, control="output_length", categories="item:2", draws=20)
    assert board.standings[0].system == "short"
    assert board["long"].win_rate == plain["long"].win_rate
    assert board["short"].controlled_low < board["short"].controlled_win_rate < board["short"].controlled_high
    assert board["long"].controlled_win_rate == pytest.approx(1 - board["short"].controlled_win_rate)
    (effect,) = board.controls
    assert 0 < effect.low < effect.coefficient < effect.high
    differences = np.array([len(row["outputs"][0]) - len(row["outputs"][1]) for row in rows])
    assert effect.scale == pytest.approx(np.sqrt((differences**2).mean()))
    assert [table.title for table in board.tables()] == [board.table().title, "Controls", "Categories"]
    assert json.loads(board.to_json())["controls"][0]["control"] == "output_length"


def test_a_control_needs_a_value_for_all_outputs_and_an_effect_that_is_determined() -> None:
    with raises_code(MetristError, "missing_field", "output_length"):
        metrist.leaderboard(rows_of([("1", "a", "b", 1)]), control="output_length", draws=0)
    with raises_code(MetristError, "unknown_name", "verbosity"):
        metrist.leaderboard(make_rows(items=3), "far", control="verbosity", draws=0)
    # The score that the choices are made of: its sign says who wins.
    board = metrist.leaderboard(make_rows(items=20), "far", control="far", draws=0)
    assert not board.controls
    assert math.isnan(board["d"].strength)
    assert board["d"].rank == 1


def test_only_the_named_systems_are_compared() -> None:
    board = metrist.leaderboard(make_rows(items=30), "far", systems=["a", "d"], draws=0)
    assert sorted(standing.system for standing in board.standings) == ["a", "d"]
    assert board.votes == 30


def test_pairs_of_outputs_are_all_of_those_with_a_value() -> None:
    rows = [
        {"item": item, "system": system, "output": "x", "scores": {"m": value}}
        for item, system, value in (
            ("1", "a", 2),
            ("1", "b", 1),
            ("2", "b", 5),
            ("2", "a", 5),
            ("2", "c", 6),
            ("3", "c", 1),
        )
    ]
    votes = collect_votes(join(rows))
    named = sorted(
        (votes.systems[first], votes.systems[second], choice)
        for first, second, choice in zip(votes.first, votes.second, votes.choice.tolist(), strict=True)
    )
    assert named == [("a", "b", 1.0), ("a", "c", -1.0), ("b", "a", 0.0), ("b", "c", -1.0)]


def test_the_range_of_ranks_is_that_of_most_resamples() -> None:
    drawn = np.array([[3.0, 2.0, 1.0]] * 96 + [[2.0, 3.0, 1.0]] * 4 + [[np.nan] * 3] * 5)
    assert rank_ranges(drawn, 0.95).tolist() == [[1, 1, 3], [2, 2, 3]]
    assert rank_ranges(drawn, 0.9).tolist() == [[1, 2, 3], [1, 2, 3]]


def test_as_many_votes_as_are_needed_tell_two_systems_apart() -> None:
    """After so many further votes with the same shares, 0 is at the limit of the interval by the model's errors."""
    fitted = fit_two(won=60, tied=20, lost=50)
    resampled = np.random.default_rng(0).multivariate_normal([0, 0], fitted.covariance, 200_000)
    needed = votes_needed(fitted, resampled, 0, 1, 0.95)
    factor = (130 + needed) / 130
    later = fit_two(*(count * factor for count in (60, 20, 50)))
    gap = later.strength[0] - later.strength[1]
    error = math.sqrt(later.covariance[0, 0] + later.covariance[1, 1] - 2 * later.covariance[0, 1])
    assert gap / error == pytest.approx(1.96, rel=0.01)
    # Resamples that vary twice as much: twice the votes, but for those that are there.
    wider = votes_needed(fitted, resampled * math.sqrt(2), 0, 1, 0.95)
    assert wider + 130 == pytest.approx(2 * (needed + 130), rel=0.02)
    # Equal strengths, but for rounding.
    equal = replace(fitted, strength=np.array([1e-14, 0.0]))
    assert votes_needed(equal, resampled, 0, 1, 0.95) == math.inf


def fit_two(won: float, tied: float, lost: float) -> BradleyTerry:
    """Davidson's model of two systems in closed form: the logarithm of the odds, and half its variance to each side."""
    gap, tie = math.log(won / lost), tied / math.sqrt(won * lost)
    total = won + tied + lost
    points = (won + tied / 2) / total
    variance = 1 / (total * ((won + tied / 4) / total - points**2))
    # The number of ties takes a part of the information on the gap.
    shared = tied * (0.5 - points)
    of_ties = tied * (1 - tied / total)
    variance = 1 / (1 / variance - shared**2 / of_ties)
    covariance = variance / 4 * np.array([[1.0, -1.0], [-1.0, 1.0]])
    return BradleyTerry(
        strength=np.array([gap / 2, -gap / 2]), error=np.sqrt(np.diag(covariance)), covariance=covariance, tie=tie
    )


def test_the_page_has_all_tables_and_shows_names_as_they_are() -> None:
    rows = make_rows(items=12)
    for row in rows:
        row["system"] = f"<script>{row['system']}"
    board = metrist.leaderboard(rows, "far", categories="task", control="output_length", draws=20)
    page = build_page(board, title="a <b> title").html()
    assert "<script>a" not in page
    assert "&lt;script&gt;a" in page
    assert "a &lt;b&gt; title" in page
    assert [
        name for name in ("systems", "strengths", "controls", "categories") if f'<section id="{name}"' not in page
    ] == []
    assert all(f"<summary>{name}</summary>" in page for name in board.categories)
    undetermined = build_page(metrist.leaderboard(rows_of([("1", "a", "b", 1)]), draws=0)).html()
    assert "win rate" in undetermined


def test_json_has_everything_and_null_for_what_is_not_determined() -> None:
    board = metrist.leaderboard(rows_of([("1", "a", "b", 1)]), draws=0)
    data = json.loads(board.to_json())
    assert data["standings"][0]["system"] == "a"
    assert data["standings"][0]["strength"] is None


def test_lines_of_votes_alone_are_read_as_all_rows_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    votes = simulate({"a": 0.0, "b": 0.5, "c": 1.2}, 60)
    rows = rows_of([*{(item, min(one, other)): (item, one, other, own) for item, one, other, own in votes}.values()])
    raters = [{**row, "rater": f"r{n % 3}" if n % 4 else None} for n, row in enumerate(rows)]
    cases: list[tuple[list[Row], bool]] = [
        (rows, True),
        (rows + rows, False),
        (raters, True),
        (raters + raters, False),
        (rows + [{**row, "rater": "another"} for row in rows], True),
        ([*rows, {**rows[0], "note": "a"}], False),
        ([*rows, {**rows[0], "item": 3}], False),
        ([{**row, "ratings": {"better": 1, "longer": 2}} for row in rows], False),
        ([{**row, "ratings": {"better": ("tie", "first", "second")[row["ratings"]["better"]]}} for row in rows], False),
        ([*rows, {**rows[0], "ratings": {"better": 3}}], False),
        ([*rows, {**rows[0], "systems": ["a", "a"]}], False),
        ([*rows, {"item": "", "systems": ["a", "b"], "ratings": {"better": 1}}], False),
    ]
    for number, (case, is_fast) in enumerate(cases):
        path = tmp_path / f"{number}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in case))
        assert (read_vote_lines(path, None) is not None) == is_fast, number
        found = describe_board(path)
        with monkeypatch.context() as patch:
            patch.setattr("metrist.evaluate.leaderboard.board.read_vote_lines", lambda *_: None)
            assert found == describe_board(path), number
    assert read_vote_lines(tmp_path / "0.jsonl", "longer") is None
    (tmp_path / "0.jsonl").write_text("not JSON\n")
    assert read_vote_lines(tmp_path / "0.jsonl", None) is None


def describe_board(path: Path) -> str:
    """The board of a file, or the error."""
    try:
        return metrist.leaderboard(path, draws=20).to_json()
    except MetristError as error:
        return f"{error.code}: {error}"
