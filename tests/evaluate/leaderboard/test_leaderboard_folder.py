"""A leaderboard in a folder: updates add up to what all votes at once give, and survive being cut off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import metrist
from error_codes import raises_code
from metrist.errors import MetristError, RunError
from metrist.evaluate.leaderboard import build_page
from metrist.evaluate.leaderboard import folder as folder_module

Row = dict[str, Any]


def make_votes(start: int, end: int, rater: str = "ann") -> list[Row]:
    """Votes among three systems in all orders; `c` wins more often than `b`, and `b` than `a`."""
    pairs = [("a", "b"), ("c", "b"), ("c", "a"), ("b", "a")]
    rows = []
    for item in range(start, end):
        first, second = pairs[item % 4]
        choice = (1, 2, 0)[(item * 7 + (first < second)) % 3 if item % 5 else int(first < second)]
        texts = ["x" * (3 + item % 7), "y" * (2 + item % 5)]
        rows.append(
            {"item": f"i{item}", "systems": [first, second], "outputs": texts, "task": ("qa", "code")[item % 2]}
            | {"ratings": {"better": choice}, "rater": rater}
        )
    return rows


def test_updates_add_up_to_all_votes_at_once(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"categories": "task", "control": "output_length", "draws": 20}
    metrist.leaderboard(make_votes(0, 40), into=tmp_path, date="2026-01-01", **settings)
    # Later updates have the settings of the first, and overlap.
    board = metrist.leaderboard(make_votes(30, 80), into=tmp_path, date="2026-02-01", draws=20)
    whole = metrist.leaderboard(make_votes(0, 80), **settings)
    assert (board.votes, board.items, board.by) == (80, 80, "better")
    for standing in whole.standings:
        own = board[standing.system]
        assert own.strength == pytest.approx(standing.strength)
        assert own.controlled_win_rate == pytest.approx(standing.controlled_win_rate)
        assert (own.won, own.tied, own.lost) == (standing.won, standing.tied, standing.lost)
        of_task = board.categories["task=qa"][standing.system]
        assert of_task.strength == pytest.approx(whole.categories["task=qa"][standing.system].strength)
    assert [(own.date, own.votes) for own in board.history] == [("2026-01-01", 40), ("2026-02-01", 80)]
    stored = json.loads((tmp_path / "board.json").read_text())
    assert stored["history"][1]["strengths"]["a"] == board["a"].strength
    page = build_page(board).html()
    assert '<section id="history"' in page
    assert "2026-02-01" in page


def test_a_vote_counts_once_and_the_latest_one_of_a_rater_counts(tmp_path: Path) -> None:
    first = make_votes(0, 20)
    metrist.leaderboard(first, into=tmp_path, draws=0)
    again = metrist.leaderboard(first, into=tmp_path, draws=0)
    assert again.votes == 20
    assert len(again.history) == 1
    assert metrist.leaderboard(make_votes(0, 20, "bob"), into=tmp_path, draws=0).votes == 40
    # The same pair in the other order, with the other choice.
    row = next(row for row in first if row["ratings"]["better"] == 1)
    turned = {**row, "systems": row["systems"][::-1], "outputs": row["outputs"][::-1]}
    before = metrist.leaderboard([turned | {"ratings": {"better": 2}}], into=tmp_path, draws=0)
    after = metrist.leaderboard([turned], into=tmp_path, draws=0)
    winner, loser = row["systems"]
    assert (before.votes, after.votes) == (40, 40)
    assert (after[winner].won, after[loser].won) == (before[winner].won - 1, before[loser].won + 1)


def test_a_folder_and_a_table_of_votes_are_sources(tmp_path: Path) -> None:
    folder, table = tmp_path / "board", tmp_path / "arena.parquet"
    rows = make_votes(0, 60)
    board = metrist.leaderboard(rows, into=folder, categories="task", control="output_length", draws=10)
    again = metrist.leaderboard(folder, draws=10)
    assert again.to_dict() == {name: value for name, value in board.to_dict().items() if name != "history"}
    signs = {1: 1.0, 2: -1.0, 0: 0.0}
    votes = [(row["item"], *row["systems"], signs[row["ratings"]["better"]]) for row in rows]
    columns = dict(zip(("item", "first", "second", "choice"), zip(*votes, strict=True), strict=True))
    pq.write_table(pa.table({**columns, "task": [row["task"] for row in rows]}), table)
    read = metrist.leaderboard(table, "preference", categories="task", draws=10)
    assert read.by == "preference"
    plain = metrist.leaderboard(rows, categories="task", draws=10)
    assert [own.won for own in read.standings] == [own.won for own in plain.standings]
    assert read.categories["task=qa"]["a"].strength == pytest.approx(plain.categories["task=qa"]["a"].strength)
    with raises_code(RunError, "invalid_value", "where"):
        metrist.leaderboard(table, where="task=qa", draws=0)
    with raises_code(RunError, "unreadable", "language"):
        metrist.leaderboard(table, categories="language", draws=0)
    for choices in ([2.0] * 60, [None] * 60):
        pq.write_table(pa.table({**columns, "choice": pa.array(choices, pa.float64())}), table)
        with raises_code(RunError, "invalid_value", "choice"):
            metrist.leaderboard(table, draws=0)


def test_an_update_that_is_cut_off_is_completed_by_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrist.leaderboard(make_votes(0, 20), into=tmp_path, date="2026-01-01", draws=0)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(folder_module, "_read_table", stop)
        with pytest.raises(KeyboardInterrupt):
            metrist.leaderboard(make_votes(20, 40), into=tmp_path, date="2026-02-01", draws=0)
    board = metrist.leaderboard(make_votes(20, 40), into=tmp_path, date="2026-02-01", draws=0)
    assert [own.votes for own in board.history] == [20, 40]


def test_votes_of_another_kind_are_not_added_to_a_first_update_that_was_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [row | {"ratings": {**row["ratings"], "shorter": 0}} for row in make_votes(0, 20)]

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(folder_module, "_read_table", stop)
        with pytest.raises(KeyboardInterrupt):
            metrist.leaderboard(rows, "better", into=tmp_path, draws=0)
    with raises_code(RunError, "invalid_value", "better"):
        metrist.leaderboard(rows, "shorter", into=tmp_path, draws=0)
    assert len(metrist.leaderboard(rows, "better", into=tmp_path, draws=0).history) == 1
    (tmp_path / "board.json").unlink()
    with raises_code(RunError, "missing_file", "board.json"):
        metrist.leaderboard(rows, "better", into=tmp_path, draws=0)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "board"):
        with raises_code(RunError, "cannot_write", str(folder)):
            metrist.leaderboard(make_votes(0, 9), into=folder, draws=0)


def test_what_does_not_fit_the_folder_is_refused(tmp_path: Path) -> None:
    with raises_code(RunError, "invalid_value", "soon"):
        metrist.leaderboard(make_votes(0, 9), into=tmp_path, date="soon", draws=0)
    metrist.leaderboard(make_votes(0, 9), into=tmp_path, draws=0)
    with raises_code(RunError, "invalid_value", "control"):
        metrist.leaderboard(make_votes(0, 9), into=tmp_path, control="output_length", draws=0)
    weighted = [row | {"sampling_weight": 1 + number % 2} for number, row in enumerate(make_votes(0, 9))]
    with raises_code(RunError, "invalid_value", "weights"):
        metrist.leaderboard(weighted, into=tmp_path, draws=0)
    for name, text in (("votes.parquet", "PAR1"), ("board.json", '{"settings": {}, "history": []}')):
        kept = (tmp_path / name).read_bytes()
        (tmp_path / name).write_text(text)
        with raises_code(MetristError, "unreadable", name):
            metrist.leaderboard(make_votes(0, 9), into=tmp_path, draws=0)
        (tmp_path / name).write_bytes(kept)
