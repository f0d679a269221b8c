"""Which metric can be trusted: human judgments and scores joined, agreement measured, slice by slice."""

from __future__ import annotations

from metrist.evaluate.meta.dataset import Judged
from metrist.evaluate.meta.evaluate import evaluate, meta_evaluate
from metrist.evaluate.meta.join import join
from metrist.evaluate.meta.notes import advice
from metrist.evaluate.meta.results import Figure, MetaEvaluation, Plan

__all__ = ["Figure", "Judged", "MetaEvaluation", "Plan", "advice", "evaluate", "join", "meta_evaluate"]
