"""`metrist leaderboard` as a user calls it: pages, folders, and input that is damaged or hostile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Row = dict[str, Any]
ATTACK = "<script>alert(1)</script>"


def write_votes(path: Path, count: int, first: str = "a", second: str = "b") -> Path:
    rows = [
        {"item": f"{item}", "systems": [first, second], "ratings": {"better": (1, 2, 1, 0)[item % 4]}, "rater": "ann"}
        for item in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_a_folder_has_the_page_of_all_updates(metrist, tmp_path: Path) -> None:
    board = tmp_path / "board"
    for date, count in (("2026-01-31", 12), ("2026-02-28", 20)):
        votes = write_votes(tmp_path / "votes.jsonl", count, second=ATTACK)
        result = metrist(
            "leaderboard", votes, "--into", board, "--date", date, "--draws", 10, "--json", tmp_path / "out.json"
        )
        assert result.code == 0, result.err
    page = (board / "index.html").read_text(encoding="utf-8")
    assert '<section id="history"' in page
    assert ATTACK not in page
    assert [own["votes"] for own in json.loads((tmp_path / "out.json").read_text())["history"]] == [12, 20]
    # Another page is not replaced.
    (board / "index.html").write_text("<p>mine</p>", encoding="utf-8")
    result = metrist("leaderboard", votes, "--into", board, "--draws", 10)
    assert result.code == 2
    assert (board / "index.html").read_text(encoding="utf-8") == "<p>mine</p>"
