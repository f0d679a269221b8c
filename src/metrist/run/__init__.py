"""Runs: score records, keep the results, load them again."""

from __future__ import annotations

from metrist.run.loading import export, load
from metrist.run.results import Results
from metrist.run.scoring import Progress, score
from metrist.run.summary import SystemScore

__all__ = ["Progress", "Results", "SystemScore", "export", "load", "score"]
