"""Published systems under the signatures of their authors' own code, for scripts that call them."""

from __future__ import annotations

from metrist.compat.bart_scorer import BARTScorer
from metrist.compat.tiger_scorer import TIGERScorer

__all__ = ["BARTScorer", "TIGERScorer"]
