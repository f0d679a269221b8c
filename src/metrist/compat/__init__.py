"""Published systems under the signatures of their authors' own code, for scripts that call them."""

from __future__ import annotations

from metrist.compat.bart_scorer import BARTScorer

__all__ = ["BARTScorer"]
