"""Runs: score records, keep the results, load them again."""

from __future__ import annotations

from metrist.report.progress import Progress
from metrist.run.inputs import read_inputs
from metrist.run.loading import export, load
from metrist.run.results import Results, SystemScore
from metrist.run.scoring import score

__all__ = ["Progress", "Results", "SystemScore", "export", "load", "read_inputs", "score"]
