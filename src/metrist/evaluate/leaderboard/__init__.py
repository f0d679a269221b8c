"""`leaderboard`: many systems in one order, from choices between their outputs or from scores."""

from metrist.evaluate.leaderboard.board import Leaderboard, Standing, build_page, leaderboard

__all__ = ["Leaderboard", "Standing", "build_page", "leaderboard"]
